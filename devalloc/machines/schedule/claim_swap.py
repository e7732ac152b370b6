"""Give claims the devices that wait for them on the node to which their machine has moved. Pure.

The node that the machine left gives up the claim's old devices, and with them its mark on the claim. Two writes follow,
each of one object: first the claim gets the devices that wait for it; then, once the machine's node has marked the
claim, the machine's status no longer lists them. A device counts as used if either object lists it, and once if both
do. So the controller may be killed at any time: the devices stay this claim's, and the next round goes on. Until the
second write the controller writes nothing else on the claim, so a user's release waits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from devalloc.api import meta
from devalloc.api.moved_claims import MovedDevices, moved_devices
from devalloc.api.views import ClaimKey, ClaimView, MachineView, as_mappings, device_claims_in
from devalloc.controller.reconcile.decision import WriteUnit, allocation_words, has_answer, with_given
from devalloc.controller.reconcile.pool_attributes import PoolAttributes
from devalloc.machines.schedule.solver_input import SchedulingInput
from devalloc.store import Change, Key, Object

_OF_DEVICES = ("deviceStatuses",)
"""Parts of a claim's status that are about its devices."""


def swap_units(
    placing: SchedulingInput, documents: Sequence[Object], units: Iterable[WriteUnit], now: str
) -> list[WriteUnit]:
    """``units`` without those of claims for which devices wait, unless their machine leaves its node; and what is
    to be written instead. ``documents``: as they are stored. ``now``: RFC 3339."""
    arriving = {Key("DeviceClaim", *key) for key in placing.arriving}
    others = [unit for unit in units if len(unit.changes) > 1 or not unit.keys & arriving]
    machines = [doc for doc in placing.objects.values() if moved_devices(doc)]
    if not machines:
        return others
    claims = {ClaimView(doc).key: doc for doc in device_claims_in(documents)}
    taken = {key for unit in others for key in unit.keys}
    attributes = PoolAttributes(documents)
    swaps = [unit for machine in machines for unit in _units(machine, claims, attributes, now)]
    return others + [unit for unit in swaps if not unit.keys & taken]


def _units(
    machine: Object, claims: Mapping[ClaimKey, Object], attributes: PoolAttributes, now: str
) -> Iterator[WriteUnit]:
    plugged = {one.get("claim") for one in as_mappings(MachineView(machine).status.get("devices"))}
    done: set[str] = set()
    for devices in moved_devices(machine):
        claim = claims.get(devices.claim)
        is_plugged = devices.claim[1] in plugged
        if claim is None or not devices.is_of(claim):
            done |= set() if is_plugged else {devices.claim[1]}
        elif devices.is_given(claim):
            done |= {devices.claim[1]} if ClaimView(claim).is_held or not is_plugged else set()
        elif _is_free(ClaimView(claim), devices):
            yield WriteUnit((_swap_change(claim, devices, attributes, now),), granted=False, released=True)
    if done:
        yield WriteUnit((_without(machine, done),), granted=False, follows_up=True)


def _is_free(claim: ClaimView, devices: MovedDevices) -> bool:
    """Whether no other node has the claim's devices."""
    return not claim.is_unsettled and (not claim.is_held or claim.holder == devices.node)


def _swap_change(claim: Object, devices: MovedDevices, attributes: PoolAttributes, now: str) -> Change:
    status = {name: part for name, part in ClaimView(claim).status.items() if name not in _OF_DEVICES}
    status["allocations"] = [*devices.allocations]
    if has_answer(status):
        status = with_given(claim, status, devices.node, now)
    notes: dict[str, str | None] = {
        meta.ALLOCATED_NODE: devices.node,
        meta.ALLOCATED_DEVICES: allocation_words(devices.allocations),
        meta.ALLOCATED_IDENTITIES: attributes.identities(devices.allocations),
        meta.REASON: None,
        meta.MESSAGE: None,
    }
    return Change.of(claim, status, notes)


def _without(machine: Object, names: Collection[str]) -> Change:
    """The machine's status without what waited for these claims."""
    status = {name: part for name, part in MachineView(machine).status.items() if name != "movedClaims"}
    if left := [one for one in MachineView(machine).moved_claims if one.get("name") not in names]:
        status["movedClaims"] = left
    return Change.of(machine, status)
