"""Drain a node: what becomes of its machines, and the request that has one leave.

A request is one write on one machine (``devalloc.io/evict``). The node and the controller carry it out, whatever
becomes of the one who asked: the node powers the machine down and lets it go, and then the controller releases its
claims and takes its node away in one commit, and places it anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum

from devalloc.api import meta
from devalloc.api.decode import decode
from devalloc.api.host_pool_names import node_of_host_pool
from devalloc.api.machine_location import local_parts, shared_storage, storage_folders
from devalloc.api.views import ClaimKey, ClaimView, MachineView
from devalloc.api.virtual_machine import VirtualMachine
from devalloc.controller.reconcile.vm_scheduling.machines import KIND, claims_of, has_ended, is_running
from devalloc.store import Conflict, Key, NotFound, Object, Store
from devalloc.store.metadata_rules import with_annotations


class Fate(Enum):
    """What a drain does with a machine."""

    MOVE = "move"
    """It leaves, and starts on another node if it is to run."""
    STOP = "stop"
    """It leaves, and waits until it can start on this node again."""
    LEAVING = "leaving"
    """It leaves already."""
    STAY = "stay"


@dataclass(frozen=True, slots=True)
class DrainedMachine:
    """A machine of the node."""

    machine: Object
    fate: Fate
    why: str
    """Why it is not moved; empty if it is."""
    runs: bool
    """Whether it runs there, or would be started there."""

    @property
    def key(self) -> Key:
        return Key.of(self.machine)

    @property
    def leaves(self) -> bool:
        """Whether nothing of it runs on the node afterwards."""
        return self.fate is not Fate.STAY


def drained_machines(store: Store, node: str, *, force: bool) -> list[DrainedMachine]:
    """The machines of a node, by namespace and name, and what a drain does with each. ``force``: also with those that
    run, or cannot start elsewhere. Raises StoreError."""
    listed = store.list(("VirtualMachine", "DevicePool", "DeviceClaim")).objects
    pools = {name: pool for pool in listed if (name := node_of_host_pool(pool)) is not None}
    machines = [one for one in listed if one["kind"] == KIND and is_on(one, node)]
    claims = {ClaimView(one).key: one for one in listed if one["kind"] == "DeviceClaim"}
    planned = [_fate(one, node, pools, force) for one in sorted(machines, key=lambda one: MachineView(one).key)]
    return _with_shared_claims(planned, claims, node)


def is_on(machine: Object, node: str) -> bool:
    """Whether a node has the machine, or it is to run there."""
    view = MachineView(machine)
    return node == view.holder or (view.holder is None and node == view.node)


def evict(store: Store, machine: Object, node: str) -> None:
    """Ask a machine to leave its node, as it was read. Raises Conflict if it changed meanwhile, and NotFound."""
    notes: dict[str, str | None] = {meta.EVICT: node}
    if MachineView(machine).holder == node:  # it may have begun there: its disks are where they are
        notes[meta.LAST_NODE] = node
    store.replace(with_annotations(machine, notes))


def withdraw_evictions(store: Store, node: str) -> list[Key]:
    """Take back the requests to leave a node; the machines that had not left yet. Raises StoreError."""
    withdrawn = []
    for machine in store.list(KIND).objects:
        while MachineView(machine).must_leave(node):
            try:
                store.replace(with_annotations(machine, {meta.EVICT: None}))
                withdrawn.append(Key.of(machine))
                break
            except NotFound:
                break
            except Conflict:
                with suppress(NotFound):
                    machine = store.get(*Key.of(machine))
    return withdrawn


def _fate(machine: Object, node: str, pools: Mapping[str, Object], force: bool) -> DrainedMachine:
    view, vm = MachineView(machine), decode(machine).object
    runs = is_running(machine)
    if not isinstance(vm, VirtualMachine):
        return DrainedMachine(machine, Fate.STAY, "its manifest is invalid: `devalloc validate` shows why", runs)
    wanted = runs or (vm.spec.running and not has_ended(vm))
    if view.is_deleting:
        return DrainedMachine(machine, Fate.LEAVING, "it is being deleted", runs)
    if view.must_leave(node):
        return DrainedMachine(machine, Fate.LEAVING, "it was asked to leave before", runs)
    if view.node != node:
        return DrainedMachine(machine, Fate.LEAVING, f"it moves to {view.node or 'another node'}", runs)
    if vm.spec.adopt is not None:
        why = "it was adopted: the one who started its QEMU must stop it, and then delete the machine"
        return DrainedMachine(machine, Fate.STAY, why, wanted)
    pinned = ["spec.nodeName names the node"] if vm.spec.node_name == node else []
    if pinned and node not in pools:
        return DrainedMachine(machine, Fate.STAY, f"{pinned[0]}; name another one, or set spec.running: false", wanted)
    if pinned and view.holder is None and view.status.get("nodeName") != node:
        why = f"{pinned[0]}, so it waits until that is uncordoned; nothing of it is there"
        return DrainedMachine(machine, Fate.STAY, why, False)
    last = node if view.holder == node else view.annotation(meta.LAST_NODE)
    folders = storage_folders(shared_storage(pools.get(last or "")))
    local = [f"only node {last} has {part}" for part in local_parts(machine, folders)] if last else []
    ties = "; ".join([*pinned, *local])
    if ties and not (force and wanted):
        return DrainedMachine(machine, Fate.STAY, ties, wanted)
    if runs and not force:
        return DrainedMachine(machine, Fate.STAY, "it runs", wanted)
    return DrainedMachine(machine, Fate.STOP if ties else Fate.MOVE, ties, wanted)


def _with_shared_claims(
    planned: Iterable[DrainedMachine], claims: Mapping[ClaimKey, Object], node: str
) -> list[DrainedMachine]:
    """A machine stays if a claim of it has devices of the node and is also that of one that stays."""
    planned = list(planned)
    while True:
        users = {claim: one for one in planned if not one.leaves for claim in claims_of(one.machine)}
        here = {claim: one for claim, one in users.items() if claim in claims and ClaimView(claims[claim]).node == node}
        after = [_unless_claim_stays(one, here) for one in planned]
        if after == planned:
            return planned
        planned = after


def _unless_claim_stays(one: DrainedMachine, staying: Mapping[ClaimKey, DrainedMachine]) -> DrainedMachine:
    if one.fate not in (Fate.MOVE, Fate.STOP):
        return one
    for claim in claims_of(one.machine):
        if (other := staying.get(claim)) is not None:
            owner = f"{other.key.namespace}/{other.key.name}"
            why = f"its claim {'/'.join(claim)} is also that of machine {owner}, which stays"
            return replace(one, fate=Fate.STAY, why=why)
    return one
