"""What ``devalloc drain`` will do with each machine and claim of a node, and what the solver says becomes of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from devalloc.api.cordon import pool_node
from devalloc.api.moved_claims import moved_devices
from devalloc.api.views import ClaimView, MachineView
from devalloc.cli.render.output import show_spinner
from devalloc.cli.solver_input import objects_for_solver
from devalloc.cli.target import StoreTarget
from devalloc.store.errors import Forbidden

if TYPE_CHECKING:
    from devalloc.controller.drain import DrainedMachine, Outlook
    from devalloc.store import Store
    from devalloc.store.errors import Key

Object = dict[str, Any]

PREDICTION_SECONDS = 10.0
"""How long --dry-run looks for other nodes."""


def predict(
    store: Store,
    place: StoreTarget,
    node: str,
    machines: Collection[DrainedMachine],
    claims: Collection[tuple[str, str]],
    note: str,
) -> dict[Key, Outlook]:
    """As ``devalloc.controller.drain.predict``, of the objects of a store; empty if the user may not read what it
    needs. Raises StoreError."""
    from devalloc.controller import drain as drains

    if not claims and not any(one.fate in (drains.Fate.MOVE, drains.Fate.MIGRATE) for one in machines):
        return {}
    try:
        objects, admin_namespaces, _ = objects_for_solver(store, is_cluster=place.is_cluster)
    except Forbidden:
        return {}
    with show_spinner("looking for other nodes"):
        return drains.predict(
            objects,
            node,
            machines,
            claims,
            note=note,
            deadline=PREDICTION_SECONDS,
            admin_namespaces=admin_namespaces,
            with_nodes=place.is_cluster,
        )


def plan_text(
    node: str, objects: Sequence[Object], machines: Collection[DrainedMachine], *, force: bool, cordoned: bool
) -> str:
    """What the drain will do, apart from the machines, in one line."""
    claims = other_claims(objects, node, machines)
    has_pools = node_has_pools(objects, node)
    steps = [] if cordoned or not has_pools else [f"cordon node {node}"]
    used = [claim for claim in claims if ClaimView(claim).is_held]
    for word, some in (("release", [one for one in claims if not ClaimView(one).is_held]), ("take away from", used)):
        names = ", ".join("/".join(ClaimView(claim).key) for claim in some)
        if some and (some is not used or force):
            steps.append(f"{word} {len(some)} {'claim' if len(some) == 1 else 'claims'}: {names}")
        elif some:
            steps.append(f"leave {len(some)} in use (--force takes them away): {names}")
    if moved := moved_claims(objects, node):
        names = ", ".join("/".join(ClaimView(claim).key) for claim in moved)
        steps.append(f"wait until the node gives up what it has of claims that moved with their machines: {names}")
    if not steps and not machines and not arrivals(objects, node):
        return f"node {node} is already cordoned, and nothing is left on it to drain"
    parts = [f"node {node} is already cordoned"] if cordoned else []
    if not has_pools:
        parts.append(f"node {node} has no pools: it gets nothing new, and a cordon of it cannot be recorded")
    return "; ".join([*parts, f"will {'; '.join(steps)}"] if steps else parts)


def fate_text(one: DrainedMachine, node: str, *, force: bool, is_forcible: bool, outlook: Outlook | None) -> str:
    """What happens to a machine, in one line. ``is_forcible``: with --force it leaves. ``outlook``: None if the solver
    does not say."""
    from devalloc.controller.drain import Fate

    name = name_of(one.key)
    where = outlook.place if outlook else "another node that has room,"
    waits = outlook.why if outlook else ""
    if one.fate is Fate.MIGRATE and waits:
        late = "be stopped when the time is up" if force else "stay"
        return f"{name}: will {late}, unless another node gets room: {waits}"
    if one.fate is Fate.MIGRATE:
        return f"{name}: will move to {where} while it runs"
    if one.fate is Fate.MOVE and not one.runs:
        return f"{name}: will leave, and start on a node that has room when it is to run"
    if one.fate is Fate.MOVE:
        if waits:
            return f"{name}: will {'stop, ' if force else ''}leave {node} and wait: {waits}"
        return f"{name}: will {'stop and move' if force else 'move'} to {where.rstrip(',')}"
    if one.fate is Fate.STOP:
        return f"{name}: will stop until the node is uncordoned: {one.why}"
    if one.fate is Fate.STOPPING:
        return f"{name}: {one.why}; the drain waits for that (--force asks it to leave)"
    if one.fate is Fate.LEAVING:
        return f"{name}: leaves: {one.why}"
    advice = " (--force stops it)" if one.runs and is_forcible and not force else ""
    return f"{name}: stays: {one.why}{advice}"


def claim_text(claim: ClaimView, *, force: bool, outlook: Outlook | None) -> str:
    """What happens to a claim that moves with no machine, in one line. ``outlook``: None if the solver does not say."""
    name = f"deviceclaim {'/'.join(claim.key)}"
    if claim.is_held and not force:
        return f"{name}: stays: it is in use (--force takes its devices away)"
    first = f"{name}: will {'lose its devices' if claim.is_held else 'be released'}"
    if outlook is None:
        return first
    return f"{first} and wait: {outlook.why}" if outlook.why else f"{first} and get devices of {outlook.place}"


def claims_on(objects: Sequence[Object], node: str) -> list[Object]:
    """The claims that have devices of the node, or that the node has prepared, and that take something of it: one that
    has admin access and is not prepared does not, and would get the same devices again."""
    return [
        claim
        for claim in objects
        if claim["kind"] == "DeviceClaim"
        and (view := ClaimView(claim)).is_on(node)
        and (view.is_held or not view.has_admin_access)
    ]


def moved_claims(objects: Sequence[Object], node: str) -> list[Object]:
    """The claims on the node whose machine has moved: they get other devices when the node has given up theirs."""
    machines = (one for one in objects if one["kind"] == "VirtualMachine")
    moved = [devices for one in machines for devices in moved_devices(one) if devices.node != node]
    return [
        claim
        for claim in claims_on(objects, node)
        if any(one.claim == ClaimView(claim).key and one.is_of(claim) for one in moved)
    ]


def other_claims(objects: Sequence[Object], node: str, machines: Collection[DrainedMachine]) -> list[Object]:
    """The claims on the node that neither move with a machine nor stay for one that does not run."""
    from devalloc.controller.reconcile.vm_scheduling.machines import claims_of

    moving = {claim for one in machines if one.leaves for claim in claims_of(one.machine)}
    moving |= {ClaimView(claim).key for claim in moved_claims(objects, node)}
    resting = {claim for one in machines if not one.leaves and not one.runs for claim in claims_of(one.machine)}
    return [
        claim
        for claim in claims_on(objects, node)
        if ClaimView(claim).key not in moving and (ClaimView(claim).is_held or ClaimView(claim).key not in resting)
    ]


def node_has_pools(objects: Iterable[Object], node: str) -> bool:
    return any(one["kind"] == "DevicePool" and pool_node(one) == node for one in objects)


def arrivals(objects: Sequence[Object], node: str) -> list[Object]:
    """The machines that move to a node and are not its own yet."""
    return [obj for obj in objects if obj["kind"] == "VirtualMachine" and MachineView(obj).arrives_on(node)]


def name_of(key: Key) -> str:
    """As output names a machine, or an object of another kind."""
    return f"virtualmachine {key.namespace}/{key.name}" if key.kind == "VirtualMachine" else str(key)


def name_of_object(machine: Object) -> str:
    return f"virtualmachine {'/'.join(MachineView(machine).key)}"


def is_held(obj: Object, node: str) -> bool:
    """Whether the node has something of a machine or claim."""
    if obj["kind"] == "VirtualMachine":
        return MachineView(obj).holder == node
    return obj["kind"] == "DeviceClaim" and ClaimView(obj).holder == node
