"""State that a node is powered off or back, and print what becomes of what it held."""

from __future__ import annotations

import math
import sys
from datetime import UTC, datetime

import click

from devalloc.api import meta
from devalloc.api.views import ClaimView, MachineView
from devalloc.cli.command import BadInput, NoSuchObject
from devalloc.cli.drain_plan import claim_text, predict
from devalloc.cli.follow import follow
from devalloc.cli.options.places import StoreTarget
from devalloc.cli.render.output import show_spinner
from devalloc.cli.served_store import ServedStore
from devalloc.cli.target import current_user, open_target
from devalloc.cli.terminal import print_line, print_note
from devalloc.controller.fencing import is_named, state_fence, withdraw_fence
from devalloc.controller.reconcile.fenced import held_objects, take_away
from devalloc.machines.drain import DrainedMachine, Fate, Outlook, drained_machines
from devalloc.store import Key, Store
from devalloc.store.serving import serving_process


def fence_node(name: str, reason: str, place: StoreTarget, *, dry_run: bool, yes: bool, timeout: float) -> int:
    """Fence a node, and wait until the controller has taken everything away. The exit code."""
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
        of_machines = {(one.key.namespace, claim) for one in machines for claim in one.machine.claim_names}
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
        if state_fence(store, node, why, keep=not reason):
            print_line(f"node {node} fenced")
        else:  # nothing is left on which to state it
            take_away(store, store.list(("VirtualMachine", "DeviceClaim")).objects, node, why)
            print_line(f"node {node} has no Node and no pools; what it held was taken away")
        return _wait(store, node, timeout)


def unfence_node(name: str, place: StoreTarget) -> int:
    """Withdraw the fence of a node. The exit code."""
    with open_target(place) as store:
        node = _node_of(store, name)
        changed = withdraw_fence(store, node)
        print_line(f"node {node} {'is no longer fenced' if changed else 'was not fenced'}")
    return 0


def _node_of(store: Store, name: str) -> str:
    """The node that is meant. Raises BadInput for another kind, NoSuchObject if nothing is of a node of that name."""
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
