"""Finalizers and status that a node writes to DeviceClaims, so that nothing else allocates the devices it holds.

The protocol between a node that prepares a claim and the one that reclaims its devices:

1. The node *marks* the claim, before it looks at what the claim holds and long before it touches a device: it adds the
   finalizer ``devalloc.io/node`` and its own name (annotation ``devalloc.io/prepared-on``) in a write that is based on
   the very state it read, in which the claim was allocated to this node and not being deleted. If a release came first,
   that write is a conflict; the node reads again and finds a claim that holds nothing.
2. A release clears the status in a write that is based on a state without the finalizer. If the mark came first, that
   write is a conflict; the releaser reads again and finds a claim that is prepared. So exactly one of the two wins,
   and the allocation that a node finds on a claim it has marked stays until it removes the mark.
3. The finalizer keeps a deleted claim, with its allocation, until the node has unprepared it.
4. A forced release (annotation ``devalloc.io/release``) leaves allocation and finalizer alone. The node unprepares by
   force and unmarks; then the allocator clears the status.
5. The node *unmarks* the claim after it put back the last device, and only while nothing of it is in its journal.
   Marking and unmarking happen under the claim's lock, as preparing does: no claim is unmarked that was prepared again.

A crash between mark and prepare, or between unprepare and unmark, leaves a mark without devices. It is found by its
finalizer (``claims_of_node``), and removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from devalloc.api import meta
from devalloc.api.conditions import with_conditions
from devalloc.api.fencing import fenced_from
from devalloc.api.quantity import Quantity
from devalloc.api.views import ClaimView
from devalloc.store import Conflict, NotFound, Object, Store, StoreError
from devalloc_node.errors import Denied, Failed
from devalloc_node.model.grant import ClaimRef
from devalloc_node.model.step import MACHINE_ADDRESS

_ATTEMPTS = 20
Devices = Mapping[tuple[str, str], Sequence[Mapping[str, str]]]
"""Conditions (``{"type", "status", "reason", "message"}``) by pool and device."""
DeviceInfo = Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]
"""What the node knows of prepared devices, by pool and device: one object for each share that the claim has of it."""
_MOST_SHARES = 64
"""Entries of ``deviceInfo`` that the API allows."""
_OF_PREPARED = ("deviceIP", "deviceIPs", "deviceInfo", "allocations")
"""What a status says only while its device is prepared."""


def add_finalizer(store: Store, node_name: str, ref: ClaimRef) -> Object:
    """Mark a claim that holds devices of this node; returns it as it is then, which its allocation now stays.

    Raises Denied (``ClaimNotFound``, ``ClaimUidMismatch``, ``ClaimNotAllocated``, ``ClaimElsewhere``,
    ``ClaimBeingDeleted``) and Failed (``StoreUnavailable``).
    """

    def marked(claim: Object) -> Object:
        _check(claim, node_name, ref)
        if ClaimView(claim).is_held:
            return claim
        metadata = claim["metadata"]
        annotations = {**metadata.get("annotations", {}), meta.PREPARED_ON: node_name}
        changes = {
            "finalizers": [*claim["metadata"].get("finalizers", []), meta.NODE_FINALIZER],
            "annotations": annotations,
        }
        return {**claim, "metadata": {**metadata, **changes}}

    return _update_with_retry(store, ref, marked, store.replace)


def claim_as_is(store: Store, node_name: str, ref: ClaimRef) -> Object:
    """The claim as it is, if it could be marked. Writes nothing, promises nothing. Raises as ``add_finalizer``."""

    def checked(claim: Object) -> Object:
        _check(claim, node_name, ref)
        return claim

    return _update_with_retry(store, ref, checked, store.replace)


def _check(claim: Object, node_name: str, ref: ClaimRef) -> None:
    metadata = claim["metadata"]
    if ClaimView(claim).is_held and ClaimView(claim).holder != node_name:
        raise Denied(
            "ClaimElsewhere", f"claim {ref} is prepared on {ClaimView(claim).holder}, not on this node ({node_name})"
        )
    if node_name in fenced_from(claim):
        why = "was taken away from this node, which was fenced, and is not unprepared yet"
        raise Denied("ClaimTakenAway", f"claim {ref} {why}")
    if not ClaimView(claim).entries:
        raise Denied("ClaimNotAllocated", f"claim {ref} has no devices (yet)")
    if is_group_pending(claim):
        raise Denied("ClaimNotAllocated", f"claim {ref} is being allocated together with others")
    node = ClaimView(claim).node
    if node is not None and node != node_name:
        raise Denied("ClaimElsewhere", f"claim {ref} has devices of node {node}, not of this node ({node_name})")
    if not ClaimView(claim).is_held and "deletionTimestamp" in metadata:
        raise Denied("ClaimBeingDeleted", f"claim {ref} is being deleted, so it is no longer prepared")


def remove_finalizer(store: Store, node_name: str, ref: ClaimRef) -> None:
    """Remove this node's mark, if it has one; a claim that is being deleted then goes.

    Raises Failed (``StoreUnavailable``).
    """

    def unmarked(claim: Object) -> Object:
        if not ClaimView(claim).is_held or ClaimView(claim).holder != node_name:
            return claim
        left = [name for name in claim["metadata"].get("finalizers", []) if name != meta.NODE_FINALIZER]
        annotations = {k: v for k, v in claim["metadata"]["annotations"].items() if k != meta.PREPARED_ON}
        return {**claim, "metadata": {**claim["metadata"], "finalizers": left, "annotations": annotations}}

    try:
        _update_with_retry(store, ref, unmarked, store.replace)
    except Denied:
        return  # gone, or another claim has the name


def set_users(store: Store, ref: ClaimRef, names: Sequence[str]) -> None:
    """Say on a marked claim who uses it (``status.podNames``): machines or pods. Raises as ``add_finalizer``."""
    _set_status(store, ref, lambda status: _with_field(status, "podNames", list(names)))


def set_device_statuses(
    store: Store, ref: ClaimRef, devices: Devices, info: DeviceInfo | None = None, now: datetime | None = None
) -> None:
    """Say on a claim how its devices are (``status.deviceStatuses``, T29), of the devices that it holds.

    Conditions of other types stay; of a condition that says what it said before ``lastTransitionTime`` stays too.
    ``info``: what ``deviceInfo`` says of devices that are prepared, which then have the amounts of their shares in
    ``allocations``, too. A device that is not in it loses both, and the addresses that a network wrote. None: all that
    stays. Writes nothing if that changes nothing. Raises as ``add_finalizer``.
    """
    text = (now or datetime.now(UTC)).isoformat(timespec="seconds").replace("+00:00", "Z")

    def changed(status: Object) -> Object:
        statuses = _statuses(status, devices, text)
        if info is not None:
            statuses = [_with_info(each, status, info) if _key(each) in devices else each for each in statuses]
        return _with_field(status, "deviceStatuses", statuses)

    _set_status(store, ref, changed)


def is_group_pending(claim: Object) -> bool:
    """Whether what the claim holds may still be taken back, because others that are given theirs with it are not
    written yet. What is marked stays as it is."""
    view = ClaimView(claim)
    return view.is_unsettled and not view.is_held


def claims_of_node(claims: Iterable[Object], node_name: str) -> Iterator[Object]:
    """The claims that this node has marked: prepared ones, and those that a crash left."""
    return (claim for claim in claims if ClaimView(claim).is_held and ClaimView(claim).holder == node_name)


def _update_with_retry(
    store: Store, ref: ClaimRef, change: Callable[[Object], Object], write: Callable[[Object], Object]
) -> Object:
    """Read, change and write until no other writer comes in between."""
    for _ in range(_ATTEMPTS):
        try:
            claim = store.get("DeviceClaim", ref.namespace, ref.name)
            if claim["metadata"]["uid"] != ref.uid:
                raise Denied("ClaimUidMismatch", f"claim {ref} was created anew and no longer has UID {ref.uid}")
            after = change(claim)
            return claim if after is claim else write(after)
        except NotFound:
            raise Denied("ClaimNotFound", f"claim {ref} does not exist") from None
        except Conflict:
            continue
        except StoreError as error:
            raise Failed("StoreUnavailable", f"cannot read or write claim {ref}: {error}") from error
    raise Failed("StoreUnavailable", f"claim {ref} keeps changing; try again")


def _set_status(store: Store, ref: ClaimRef, change: Callable[[Object], Object]) -> None:
    def changed(claim: Object) -> Object:
        before = claim.get("status", {})
        after = change(before)
        return claim if after == before else {**claim, "status": after}

    _update_with_retry(store, ref, changed, store.replace_status)


def _with_field(status: Object, name: str, value: Any) -> Object:
    rest = {key: content for key, content in status.items() if key != name}
    return {**rest, name: value} if value else rest


def _statuses(status: Object, devices: Devices, now: str) -> list[Any]:
    statuses = list(status.get("deviceStatuses", ()))
    places = {(each.get("devicePoolName"), each.get("deviceName")): i for i, each in enumerate(statuses)}
    held = {(each["devicePoolName"], each["deviceName"]) for each in status.get("allocations", ())}
    for device, conditions in devices.items():
        if device not in held:
            continue
        if device not in places:
            places[device] = len(statuses)
            statuses.append({"devicePoolName": device[0], "deviceName": device[1]})
        before = statuses[places[device]]
        merged = with_conditions(before.get("conditions"), conditions, now)
        statuses[places[device]] = {**before, "conditions": merged}
    return statuses


def _key(status: Object) -> tuple[Any, Any]:
    return status.get("devicePoolName"), status.get("deviceName")


def _with_addresses(device: Object, info: Sequence[Mapping[str, Any]]) -> Object:
    """The status of a device with the addresses of the machines that have it. What a network component wrote stays:
    only an address that was noted in ``deviceInfo`` is the node's own, and goes with the machine."""
    before = {each.get(MACHINE_ADDRESS) for each in device.get("deviceInfo", ()) if isinstance(each, dict)}
    if device.get("deviceIP") not in (None, "", *before):
        return device
    now = list(dict.fromkeys(each[MACHINE_ADDRESS] for each in info if MACHINE_ADDRESS in each))
    device = _with_field(device, "deviceIP", now[0] if now else None)
    return _with_field(device, "deviceIPs", [{"ip": address} for address in now])


def _with_info(device: Object, status: Object, info: DeviceInfo) -> Object:
    """The status of a device with what the node knows of it, or without what holds no more."""
    if _key(device) not in info:
        return {name: value for name, value in device.items() if name not in _OF_PREPARED}
    device = _with_addresses(device, info[_key(device)])
    device = _with_field(device, "deviceInfo", [dict(each) for each in info[_key(device)]][:_MOST_SHARES])
    return _with_field(device, "allocations", _amounts(status, _key(device)))


def _amounts(status: Object, device: tuple[Any, Any]) -> list[Object]:
    """The amounts of the claim's shares of a device together; none if it has it whole."""
    total: dict[str, Quantity] = {}
    for entry in status.get("allocations", ()):
        if _key(entry) == device:
            for amount in entry.get("allocations", ()):
                more = Quantity.parse(amount["allocation"])
                total[amount["name"]] = total[amount["name"]] + more if amount["name"] in total else more
    return [{"name": name, "allocation": str(amount)} for name, amount in total.items()]
