"""``devalloc drain``: cordon a node, and have its machines and claims leave it."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from devalloc.api.views import ClaimView, MachineView
from devalloc.cli.command import BadInput, verb
from devalloc.cli.render.output import print_note, show_spinner
from devalloc.cli.target import StoreTarget, open_target, target_options
from devalloc.cli.verbs.cordon import current_user, timeout_option, wait_for_nodes

if TYPE_CHECKING:
    from devalloc.controller.drain import DrainedMachine
    from devalloc.store import Store
    from devalloc.store.errors import Key

Object = dict[str, Any]


@verb("drain")
@click.argument("name", metavar="node/NAME")
@click.option("--reason", default="", metavar="TEXT", help="Why it is cordoned; shown with the node.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, but do nothing.")
@click.option(
    "--force",
    is_flag=True,
    help="Also power down machines that run, and take the devices of claims in use away. MACHINES THAT DO NOT POWER "
    "DOWN IN TIME, OR DO NOT GIVE THE DEVICES UP, ARE KILLED.",
)
@timeout_option
@target_options
def drain(name: str, reason: str, dry_run: bool, force: bool, timeout: float, place: StoreTarget) -> int:
    """Cordon a node, move its machines and claims to other nodes, and wait until they have left.

    The command first prints what it will do with each machine. Machines that do not run move if another node reaches
    their disks. With --force, so do those that run; their guests are powered down first. A machine that cannot start
    on another node stays; with --force it is stopped, and starts again after `devalloc uncordon`. The claims of a
    machine move with it. Other claims are released and allocated again; those in use stay without --force.

    If you stop the command, machines that it has asked to leave still do so. Repeat it to see what is left. `devalloc
    uncordon` reverses the cordon. Exit code 1 if something runs or is in use on the node.

    \b
    devalloc drain node/node-a --dry-run
    devalloc drain node/node-a --reason 'new firmware' --force --timeout 5m
    """

    from devalloc.controller import cordon as cordons
    from devalloc.controller.drain import drained_machines

    with open_target(place) as store:
        target = cordons.find_target(store, name if "/" in name else f"node/{name}")
        if target.node is None:
            raise BadInput(f"cannot drain {target}, only nodes; to keep new claims off it: devalloc cordon {name}")
        machines = drained_machines(store, target.node, force=force)
        click.echo(_plan_text(target.node, _other_claims(store, target.node, machines), force=force))
        for one in machines:
            click.echo(_fate_text(one, force=force))
        if dry_run:
            return 0
        why = f"by {current_user()}, {datetime.now(UTC):%Y-%m-%d}: {reason or 'draining'}"
        changed = cordons.set_cordon(store, target, why, keep=not reason)
        click.echo(f"{target} cordoned" if changed else f"{target} is already cordoned")
        return _Drain(store, target.node, force, timeout).run()


class _Drain:
    """One run of the command, after the node was cordoned."""

    def __init__(self, store: Store, node: str, force: bool, timeout: float) -> None:
        self._store = store
        self._node = node
        self._force = force
        self._timeout = timeout
        self._until = time.monotonic() + timeout
        self._requested: dict[Key, DrainedMachine] = {}
        """Machines that are to leave."""
        self._seen: set[Key] = set()
        """Claims that are or were to be released."""
        self._has_failed = False

    def run(self) -> int:
        from devalloc.controller.drain import drained_machines

        try:
            self._ask_machines()
            claims = self._release_claims()
            left = self._wait_for_machines()
            claims += self._release_claims(left)  # of those that were deleted or moved by their users
            self._wait_for_claims(claims)
        except KeyboardInterrupt:
            if self._requested:
                print_note(
                    f"interrupted: machines that were asked to leave node {self._node} still do so; "
                    f"`devalloc drain node/{self._node} --dry-run` shows what is left"
                )
            raise
        staying = [one for one in drained_machines(self._store, self._node, force=self._force) if not one.leaves]
        for one in staying:
            print_note(f"{_name_of(one.key)} stays on the node: {one.why}")
            self._has_failed |= one.runs
        claims_left = _other_claims(self._store, self._node, ())
        return int(self._has_failed or any(ClaimView(claim).is_held for claim in claims_left))

    def _ask_machines(self) -> None:
        """Repeat until none is left: one that was placed before the cordon may be written after it."""
        from devalloc.controller.drain import Fate, drained_machines, evict
        from devalloc.store.errors import Conflict, NotFound

        while fresh := [
            one
            for one in drained_machines(self._store, self._node, force=self._force)
            if one.leaves and one.key not in self._requested
        ]:
            for one in fresh:
                try:
                    if one.fate is not Fate.LEAVING:
                        evict(self._store, one.machine, self._node)
                        click.echo(f"{_name_of(one.key)} asked to leave")
                except NotFound:
                    continue
                except Conflict:
                    continue  # it is read again
                self._requested[one.key] = one

    def _release_claims(self, left: Collection[Key] = ()) -> list[Key]:
        """Release claims that do not move with a machine; those that their node was asked for. ``left``: machines that
        have left."""
        from devalloc.controller.reconcile.release import InUse, release_claim
        from devalloc.store.errors import Key, NotFound

        waiting: list[Key] = []
        # Repeat until none is left: an allocation decided before the cordon may be written after it.
        while fresh := [key for key in map(Key.of, self._claims(left)) if key not in self._seen]:
            self._seen.update(fresh)
            for key in fresh:
                try:
                    outcome = release_claim(self._store, key.namespace or "default", key.name, force=self._force)
                except InUse as error:
                    print_note(f"error: {error}")
                    self._has_failed = True
                except NotFound:
                    continue
                else:
                    if outcome == "asked":
                        waiting.append(key)
                    elif outcome == "released":
                        click.echo(f"{key} released")
        return waiting

    def _claims(self, left: Collection[Key]) -> list[Object]:
        from devalloc.controller.drain import drained_machines

        machines = drained_machines(self._store, self._node, force=self._force)
        leaving = [one for key, one in self._requested.items() if key not in left]
        return _other_claims(self._store, self._node, machines, leaving)

    def _wait_for_machines(self) -> set[Key]:
        """Until those that were asked have left, and those that are to run have a node, or a reason why not; those that
        have left."""
        waiting = dict(self._requested)
        left: set[Key] = set()
        since = self._store.list(()).resource_version
        with show_spinner(f"waiting for machines to leave node {self._node}"):
            while waiting:
                waiting = {key: one for key, one in waiting.items() if not self._is_done(one, left)}
                if not waiting or (seconds := self._until - time.monotonic()) <= 0:
                    break
                for event in self._store.watch("VirtualMachine", since, timeout=min(seconds, 1.0)):
                    since = event.resource_version
                    break
        for key in waiting:
            if key in left:
                print_note(f"{_name_of(key)} has no other node yet; is the controller running?")
            else:
                print_note(
                    f"error: {_name_of(key)} has not left within {self._timeout:g} s; it will do so later, if the "
                    "node's plugin and the controller run and are of this version"
                )
                self._has_failed = True
        return left

    def _is_done(self, one: DrainedMachine, left: set[Key]) -> bool:
        from devalloc.controller.drain import Fate, is_on
        from devalloc.store.errors import NotFound

        name, node = _name_of(one.key), self._node
        try:
            machine = self._store.get(*one.key)
        except NotFound:
            click.echo(f"{name} is gone")
            left.add(one.key)
            return True
        view = MachineView(machine)
        was_asked = one.fate is not Fate.LEAVING
        if view.is_held and view.holder == node:
            return False
        if is_on(machine, node) and (view.must_leave(node) or (one.fate is Fate.MOVE and one.key not in left)):
            return False
        if one.key not in left:
            left.add(one.key)
            click.echo(f"{name} left node {node}")
            if one.fate is Fate.STOP:
                click.echo(f"{name} starts again on node {node} after `devalloc uncordon node/{node}`")
        if not was_asked or one.fate is Fate.STOP or not one.runs:
            return True
        if (chosen := view.node) is not None:
            click.echo(f"{name} placed on node {chosen}")
            return True
        if view.status.get("reason"):
            print_note(f"{name} waits for a node: {view.status.get('message') or view.status['reason']}")
            return True
        return False

    def _wait_for_claims(self, waiting: list[Key]) -> None:
        late = wait_for_nodes(self._store, waiting, max(0.0, self._until - time.monotonic())) if waiting else []
        for key in waiting:
            if key in late:
                print_note(
                    f"error: {key}: the node has not released the devices within {self._timeout:g} s; it will do so "
                    "later"
                )
                self._has_failed = True
            else:
                click.echo(f"{key} released")


def _name_of(key: Key) -> str:
    return f"virtualmachine {key.namespace}/{key.name}"


def _plan_text(node: str, claims: Sequence[Object], *, force: bool) -> str:
    steps = [f"cordon node {node}"]
    used = [claim for claim in claims if ClaimView(claim).is_held]
    for word, some in (("release", [one for one in claims if not ClaimView(one).is_held]), ("take away from", used)):
        names = ", ".join("/".join(ClaimView(claim).key) for claim in some)
        if some and (some is not used or force):
            steps.append(f"{word} {len(some)} {'claim' if len(some) == 1 else 'claims'}: {names}")
        elif some:
            steps.append(f"leave {len(some)} in use (--force takes them away): {names}")
    return f"will {'; '.join(steps)}"


def _fate_text(one: DrainedMachine, *, force: bool) -> str:
    """What happens to a machine, in one line."""
    from devalloc.controller.drain import Fate

    name = _name_of(one.key)
    if one.fate is Fate.MOVE:
        return f"{name}: will {'stop and move' if one.runs and force else 'move'} to another node"
    if one.fate is Fate.STOP:
        return f"{name}: will stop until the node is uncordoned: {one.why}"
    if one.fate is Fate.LEAVING:
        return f"{name}: leaves: {one.why}"
    advice = " (--force stops it)" if one.runs and not force else ""
    return f"{name}: stays: {one.why}{advice}"


def _other_claims(
    store: Store, node: str, machines: Collection[DrainedMachine], requested: Collection[DrainedMachine] = ()
) -> list[Object]:
    """The claims that have devices of the node, or that the node still has prepared, and that neither move with a
    machine nor stay for one that does not run."""
    from devalloc.controller.reconcile.vm_scheduling.machines import claims_of

    moving = {claim for one in (*machines, *requested) if one.leaves for claim in claims_of(one.machine)}
    resting = {claim for one in machines if not one.leaves and not one.runs for claim in claims_of(one.machine)}
    return [
        claim
        for claim in store.list("DeviceClaim").objects
        if (
            (ClaimView(claim).entries and ClaimView(claim).node == node)
            or (ClaimView(claim).is_held and ClaimView(claim).holder == node)
        )
        and ClaimView(claim).key not in moving
        and (ClaimView(claim).is_held or ClaimView(claim).key not in resting)
    ]
