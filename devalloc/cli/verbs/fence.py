"""``devalloc fence`` and ``unfence``: state that a lost node is powered off, and that it is back."""

from __future__ import annotations

import math
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from devalloc.api import meta
from devalloc.api.views import ClaimView, MachineView
from devalloc.cli.command import BadInput, NoSuchObject, verb
from devalloc.cli.follow import follow
from devalloc.cli.render.output import show_spinner
from devalloc.cli.target import StoreTarget, current_user, open_target, target_options
from devalloc.cli.terminal import print_line, print_note
from devalloc.cli.verbs.cordon import timeout_option
from devalloc.store.errors import Key

if TYPE_CHECKING:
    from devalloc.controller.drain import DrainedMachine, Outlook
    from devalloc.store import Store


@verb("fence")
@click.argument("name", metavar="node/NAME")
@click.option(
    "--reason",
    default="",
    metavar="TEXT",
    help="Why; shown with the node. Without it, an earlier reason stays. Not stored if the node has a Node of "
    "Kubernetes: its taint has no reason.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be done, but do nothing.")
@click.option("--yes", is_flag=True, help="Do not ask whether the node is powered off.")
@timeout_option
@target_options
def fence(name: str, reason: str, dry_run: bool, yes: bool, timeout: float, place: StoreTarget) -> int:
    """State that a lost node is powered off. Its machines start on other nodes, and its claims get other devices.

    USE IT ONLY IF THE NODE IS POWERED OFF, or cut off from all storage and networks that other nodes use. If its
    machines still run, two guests write to the same disks. A node that only does not answer may still run them.

    On a cluster the Node must not be Ready, and gets the taint node.kubernetes.io/out-of-service, so that its pods and
    volumes are given up, too. Exit code 1 if the controller has not taken everything away in time; it does so later.

    \b
    devalloc fence node/node-a --dry-run
    devalloc fence node/node-a --reason 'mainboard is broken'
    """
    from devalloc.cli.drain_plan import claim_text, predict
    from devalloc.cli.served_store import ServedStore
    from devalloc.controller import fencing
    from devalloc.controller.drain import drained_machines
    from devalloc.controller.reconcile.fenced import held_objects, take_away
    from devalloc.store.serving import serving_process

    with open_target(place) as store:
        node = _node_of(store, name)
        machines = drained_machines(store, node, force=True, live=False)
        print_line(f"will fence node {node}: it gets nothing new, and what it holds is taken away")
        held_by_node = held_objects(store, node)
        held_claims = [ClaimView(one).key for one in held_by_node if one["kind"] == "DeviceClaim"]
        looks = dry_run or not yes
        outlook = predict(store, place, node, machines, held_claims, meta.FENCED_NODE) if looks else {}
        for machine in machines:
            print_line(_machine_text(machine, node, outlook.get(machine.key)))
        of_machines = {(one.key.namespace, claim) for one in machines for claim in MachineView(one.machine).claim_names}
        for held in held_by_node:
            if held["kind"] == "DeviceClaim" and ClaimView(held).key not in of_machines:
                print_line(claim_text(ClaimView(held), force=True, outlook=outlook.get(Key.of(held))))
            elif held["kind"] == "VirtualMachine" and not (view := MachineView(held)).is_on(node):
                print_line(
                    f"virtualmachine {'/'.join(view.key)}: will stay on node {view.holder}: its migration to node "
                    f"{node} ends"
                )
        if isinstance(store, ServedStore) and (runs := serving_process(store.path, node)):
            print_note(f"warning: node {node} is not off: {runs} runs its plugin on this store")
        if dry_run:
            return 0
        if not yes:
            _confirm(node)
        why = f"by {current_user(store)}, {datetime.now(UTC):%Y-%m-%d}" + (f": {reason}" if reason else "")
        if fencing.state_fence(store, node, why, keep=not reason):
            print_line(f"node {node} fenced")
        else:  # nothing is left on which to state it
            take_away(store, store.list(("VirtualMachine", "DeviceClaim")).objects, node, why)
            print_line(f"node {node} has no Node and no pools; what it held was taken away")
        return _wait(store, node, timeout)


@verb("unfence")
@click.argument("name", metavar="node/NAME")
@target_options
def unfence(name: str, place: StoreTarget) -> int:
    """State that a fenced node is back: its devices can be allocated again, and machines that wait for it start.

    Start the node and its plugin first. The plugin ends what is left of machines that were taken away before it does
    anything else.

    \b
    devalloc unfence node/node-a
    """
    from devalloc.controller import fencing

    with open_target(place) as store:
        node = _node_of(store, name)
        changed = fencing.withdraw_fence(store, node)
        print_line(f"node {node} {'is no longer fenced' if changed else 'was not fenced'}")
    return 0


def _node_of(store: Store, name: str) -> str:
    """The node that is meant. Raises BadInput for another kind, NoSuchObject if nothing is of a node of that name."""
    from devalloc.controller.fencing import is_named

    kind, _, node = name.rpartition("/")
    if kind in ("", "node") and not node:
        raise BadInput("the name is missing; write node/NAME")
    if kind not in ("", "node"):
        raise BadInput(f"cannot fence {name}, only nodes: node/NAME")
    if not is_named(store, node):
        raise NoSuchObject(f"there is no node {node}; `devalloc get nodes` lists all nodes")
    return node


def _confirm(node: str) -> None:
    """Raises BadInput unless the user confirms it."""
    if not sys.stdin.isatty():
        raise BadInput(f"is node {node} powered off? To state that it is, add --yes")
    question = f"Is node {node} powered off? If its machines still run, their disks get two writers"
    if not click.confirm(question, default=False, err=True):
        raise BadInput("nothing was changed")


def _machine_text(one: DrainedMachine, node: str, outlook: Outlook | None) -> str:
    """What happens to a machine, in one line. ``outlook``: None if the solver does not say."""
    from devalloc.controller.drain import Fate

    name = f"virtualmachine {one.key.namespace}/{one.key.name}"
    if one.fate is Fate.STAY and not one.why:
        return f"{name}: will be taken away"
    if one.fate in (Fate.STAY, Fate.STOP):
        return f"{name}: will wait for node {node}: {one.why}"
    if not one.runs:
        return f"{name}: will leave, and start on a node that has room when it is to run"
    if outlook and outlook.why:
        return f"{name}: will leave {node} and wait: {outlook.why}"
    return f"{name}: will start on {outlook.place if outlook else 'another node that has room'}"


def _wait(store: Store, node: str, timeout: float) -> int:
    """Until the controller has taken everything away."""
    from devalloc.controller.reconcile.fenced import held_objects

    def left() -> list[str]:
        views = [
            MachineView(one) if one["kind"] == "VirtualMachine" else ClaimView(one) for one in held_objects(store, node)
        ]
        return [
            f"{one.content['kind'].lower()} {'/'.join(one.key)}" for one in views if one.is_held and one.holder == node
        ]

    held = names = left()

    def look() -> float | None:
        nonlocal names
        names = left()
        return math.inf if names else None

    with show_spinner(f"waiting for the controller to take everything away from node {node}"):
        follow(store, ("VirtualMachine", "DeviceClaim"), look, timeout)
    for name in (name for name in held if name not in names):
        print_line(f"{name} taken away from node {node}")
    for name in names:
        print_note(
            f"error: {name} was not taken away within {timeout:g} s; is the controller running, and of this version?"
        )
    return 1 if names else 0
