"""Claims that move with their machine while it runs: what keeps one from it, and the devices that wait for claims on
the node to which a machine moves.

Reads manifests tolerantly: what has another type than the API's is not there.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from devalloc.api import meta
from devalloc.api.claim import DeviceClaim
from devalloc.api.decode import decode
from devalloc.api.views import ClaimKey, ClaimView, MachineKey, MachineView, as_mappings

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class MovedDevices:
    """Devices that a claim gets, or has got by now, on the node to which its machine moves."""

    claim: ClaimKey
    uid: str
    node: str
    """The node of the devices; empty if no one says it."""
    allocations: list[Any]
    """The entries that the claim's status.allocations become."""

    def is_of(self, claim: Object | None) -> bool:
        """Whether it is this claim that gets them, and no other one of its name."""
        return claim is not None and str(ClaimView(claim).metadata.get("uid") or "") == self.uid

    def is_given(self, claim: Object | None) -> bool:
        """Whether the claim has them by now."""
        return claim is not None and self.is_of(claim) and ClaimView(claim).entries == self.allocations


def booked_devices(machine: Object) -> list[MovedDevices]:
    """What a migration has reserved for the claims of a machine on its target; empty without one."""
    view = MachineView(machine)
    return _read(view, view.booked_claims, view.migration_target)


def moved_devices(machine: Object) -> list[MovedDevices]:
    """What waits for the claims of a machine on the node to which it has moved."""
    view = MachineView(machine)
    return _read(view, view.moved_claims, view.status.get("nodeName"))


def _read(view: MachineView, entries: Iterable[Mapping[str, Any]], node: object) -> list[MovedDevices]:
    name_of_node = node if isinstance(node, str) else ""
    return [
        MovedDevices((view.key[0], name), str(entry.get("uid") or ""), name_of_node, allocations)
        for entry in entries
        if isinstance(name := entry.get("name"), str) and isinstance(allocations := entry.get("allocations"), list)
    ]


def moved_entries(machine: Object) -> list[Any]:
    """All entries that claims get by a machine's moves, as they are in its status."""
    return [entry for one in (*booked_devices(machine), *moved_devices(machine)) for entry in one.allocations]


def moved_claim(devices: MovedDevices, claim: Object | None) -> Object | None:
    """A claim like this one that has the devices: who counts devices counts it, too. None if the claim has them by now,
    so that they count already. ``claim``: the one of that name, if there is one."""
    if devices.is_given(claim):
        return None
    source = claim if claim is not None and devices.is_of(claim) else {}
    view = ClaimView(source)
    notes = {name: value for name, value in (view.metadata.get("annotations") or {}).items() if name in _COUNTED}
    metadata: Object = {
        "namespace": devices.claim[0],
        "name": devices.claim[1],
        "uid": devices.uid,
        "annotations": {**notes, meta.ALLOCATED_NODE: devices.node},
    }
    spec = view.spec or {"claims": [{}]}
    status = {"allocations": devices.allocations}
    return {"apiVersion": meta.DEVMGMT, "kind": "DeviceClaim", "metadata": metadata, "spec": spec, "status": status}


_COUNTED = (meta.ALLOCATION_DETAILS, meta.DEVICE_RECORDS, meta.ALLOCATED_SPEC, meta.ADMIN_CLASSES)


def moved_claims_among(objects: Sequence[Object]) -> list[Object]:
    """Such claims of all machines among objects, beside the claims that are among them."""
    claims = {ClaimView(one).key: one for one in objects if one.get("kind") == "DeviceClaim"}
    machines = (one for one in objects if one.get("kind") == "VirtualMachine")
    moved = (each for one in machines for each in (*booked_devices(one), *moved_devices(one)))
    return [doc for each in moved if (doc := moved_claim(each, claims.get(each.claim))) is not None]


def claim_users(machines: Iterable[Object]) -> dict[ClaimKey, list[MachineKey]]:
    """The machines that name each claim."""
    users: dict[ClaimKey, list[MachineKey]] = defaultdict(list)
    for machine in machines:
        view = MachineView(machine)
        for name in view.claim_names:
            users[view.key[0], name].append(view.key)
    return dict(users)


def local_claims(machine: Object, claims: Mapping[ClaimKey, Object], network_pools: Container[str]) -> list[Object]:
    """The claims of a machine that have devices of a node. ``claims``: all DeviceClaims. ``network_pools``: names of
    the pools that every node reaches."""
    view = MachineView(machine)
    own = (claims.get((view.key[0], name)) for name in view.claim_names)
    return [claim for claim in own if claim is not None and has_local_devices(claim, network_pools)]


def has_local_devices(claim: Object, network_pools: Container[str]) -> bool:
    """Whether a claim has devices that are on a node."""
    return any(entry.get("devicePoolName") not in network_pools for entry in as_mappings(ClaimView(claim).entries))


def claim_obstacle(
    machine: Object,
    claims: Mapping[ClaimKey, Object],
    users: Mapping[ClaimKey, Sequence[MachineKey]],
    network_pools: Container[str],
) -> str:
    """What keeps the claims of a machine from moving with it, in words; empty if nothing does. ``claims``: all
    DeviceClaims. ``users``: ``claim_users`` of all machines."""
    view = MachineView(machine)
    for claim in local_claims(machine, claims, network_pools):
        key, group = ClaimView(claim).key, ClaimView(claim).group
        if why := _why_bound(view, claim, users.get(key, ()), network_pools):
            return f"claim {'/'.join(key)} {why}"
        if group is not None and (other := _partner(view, group, claims)) is not None:
            name = "/".join(other)
            return f"claim {'/'.join(key)} is in group {group} with claim {name}, which is not one of the machine"
    return ""


def _partner(machine: MachineView, group: str, claims: Mapping[ClaimKey, Object]) -> ClaimKey | None:
    """A claim of a group that is not one of the machine."""
    namespace, names = machine.key[0], machine.claim_names
    others = (key for key in claims if key[0] == namespace and key[1] not in names)
    return next((key for key in others if ClaimView(claims[key]).group == group), None)


def _why_bound(machine: MachineView, claim: Object, users: Sequence[MachineKey], network_pools: Container[str]) -> str:
    view = ClaimView(claim)
    names = view.status.get("podNames")
    others = ["machine " + "/".join(key) for key in users if key != machine.key]
    if isinstance(names, list):
        own = ("/".join(machine.key), machine.key[1])
        others += [str(name) for name in names if name not in own and f"machine {name}" not in others]
    if others:
        return f"is also that of {others[0]}; only a claim that one machine has moves with it"
    if any(entry.get("devicePoolName") in network_pools for entry in as_mappings(view.entries)):
        return "has devices of a node and of the network; make two claims of it"
    if view.has_admin_access:
        return "has admin access to devices of its node"
    if (node := view.annotation(meta.NODE)) is not None and node == view.node:
        return f"must have devices of node {node}; remove its annotation {meta.NODE}"
    if labels_of(claim) is None:
        return "does not say which device is for which request; detach it, release it, and attach it again"
    return ""


def labels_of(claim: Object) -> list[tuple[int, int | None]] | None:
    """For each device of an allocated claim the request that it is for: its index, and that of the alternative. None
    unless the devices answer all requests of the spec at the allocation, and one alternative of each."""
    spec = _allocated_spec(claim)
    model = decode({**claim, "spec": spec}).object
    if not isinstance(model, DeviceClaim) or model.status is None:
        return None
    entries = model.spec.claims
    labels = model.allocation_details()
    if labels is None and len(entries) == 1 and not entries[0].one_of:
        labels = [(0, None)] * len(model.status.allocations)
    chosen = sorted(set(labels or ()), key=lambda label: label[0])
    if [index for index, _ in chosen] != list(range(len(entries))):
        return None
    fits = all(
        alternative is None if not (options := entries[index].one_of) else alternative in range(len(options))
        for index, alternative in chosen
    )
    return labels if fits else None


def _allocated_spec(claim: Object) -> Any:
    try:
        return json.loads(ClaimView(claim).annotation(meta.ALLOCATED_SPEC) or "")
    except (ValueError, RecursionError):
        return ClaimView(claim).spec
