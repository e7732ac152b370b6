"""DevicePools as cards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from devalloc.api import inwords
from devalloc.api.cordon import ALL, cordons
from devalloc.api.meta import UNAVAILABLE
from devalloc.api.quantity import Quantity, QuantityError
from devalloc.controller.availability import Counted, CountedPool, Holding
from devalloc.controller.claims import ClaimKey
from devalloc.controller.overview.facts import EXCLUDED, STATES, Card, Counts, Device, DeviceState, Holder, Supply
from devalloc.controller.overview.parts import nested, what
from devalloc.controller.overview.words import said, short

DeviceName = tuple[str, str]
"""Pool and device."""


def holders(counted: Counted, users: Mapping[ClaimKey, str]) -> dict[DeviceName, list[Holder]]:
    """Who has which device. ``users``: the machine that a claim is for."""
    found: dict[DeviceName, list[Holder]] = defaultdict(list)
    for holding in counted.holdings:
        entry = holding.entry
        found[entry.device_pool_name, entry.device_name].append(_holder(holding, counted, users))
    return found


def card(one: CountedPool, holders: Mapping[DeviceName, Sequence[Holder]]) -> Card:
    spec, name = one.pool.spec, one.pool.metadata.name
    common = {each.name: str(each.value) for each in spec.attributes}
    own = {device.name: common | {each.name: str(each.value) for each in device.attributes} for device in spec.devices}
    devices = tuple(
        Device(
            name=device,
            what=what(own[device]),
            state=(state := _state(device, one, own[device])),
            why=EXCLUDED if state == "excluded" else short(own[device].get(UNAVAILABLE, "")),
            holders=tuple(holders.get((name, device), ())),
            level=level,
        )
        for device, level in nested(own, own)
    )
    return Card(
        name=name,
        driver=spec.driver,
        model=said(inwords.pool_model, one.manifest),
        numa=said(inwords.pool_numas, one.manifest),
        cordoned=short(cordons(one.manifest).get(ALL, "")),
        devices=devices,
        counts=Counts(**{state: sum(device.state == state for device in devices) for state in STATES}),
        supplies=_supplies(one),
    )


def status_says(one: CountedPool) -> object:
    """How many are available as the controller wrote it; None where it did not."""
    status = one.manifest.get("status")
    return status.get("availableDevices") if isinstance(status, dict) else None


def _state(name: str, one: CountedPool, attributes: Mapping[str, str]) -> DeviceState:
    if name in one.use:
        return "shared" if name in one.available else "held"
    if name in one.available:
        return "free"
    return "unavailable" if UNAVAILABLE in attributes else "excluded"


def _supplies(one: CountedPool) -> tuple[Supply, ...]:
    left = {resource.name: resource.capacity for resource in one.pool.spec.resources}
    try:
        for device in one.pool.spec.devices:
            if device.name in one.use:
                for name, amount in device.requests.items():
                    if name in left:
                        left[name] -= amount
    except QuantityError:  # somebody gave out more than numbers can say
        return ()
    nothing = Quantity(0)
    return tuple(
        Supply(resource.name, str(resource.capacity), str(max(left[resource.name], nothing)))
        for resource in one.pool.spec.resources
    )


def _holder(holding: Holding, counted: Counted, users: Mapping[ClaimKey, str]) -> Holder:
    amounts = ", ".join(f"{part.name} {part.allocation}" for part in holding.entry.allocations)
    machine = counted.machines.get(holding.claim)
    if machine is not None:
        return Holder("VirtualMachine", *machine, amounts)
    namespace, name = holding.claim
    return Holder("DeviceClaim", namespace, name, amounts, users.get(holding.claim, ""), holding.is_admin)
