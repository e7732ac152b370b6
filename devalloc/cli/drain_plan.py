"""What ``devalloc drain`` will do with each machine and claim of a node, and what the solver says becomes of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from devalloc.api.views import ClaimView
from devalloc.cli.options.places import StoreTarget
from devalloc.cli.render.output import show_spinner
from devalloc.cli.solver_input import objects_for_solver
from devalloc.machines import drain as drains
from devalloc.machines.drain import (
    DrainedMachine,
    Fate,
    Outlook,
    arrivals,
    moved_claims,
    name_of,
    node_has_pools,
    other_claims,
)
from devalloc.store import Forbidden, Key, Store

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
    """As ``devalloc.machines.drain.predict``, of the objects of a store; empty if the user may not read what it
    needs. Raises StoreError."""
    if not claims and not any(one.fate in (Fate.MOVE, Fate.MIGRATE) for one in machines):
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
    used = [claim for claim in claims if claim.is_held]
    for word, some in (("release", [claim for claim in claims if not claim.is_held]), ("take away from", used)):
        names = ", ".join("/".join(claim.key) for claim in some)
        if some and (some is not used or force):
            steps.append(f"{word} {len(some)} {'claim' if len(some) == 1 else 'claims'}: {names}")
        elif some:
            steps.append(f"leave {len(some)} in use (--force takes them away): {names}")
    if moved := moved_claims(objects, node):
        names = ", ".join("/".join(claim.key) for claim in moved)
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
