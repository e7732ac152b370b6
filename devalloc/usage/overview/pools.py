"""Pools as cards: DevicePools, and pools of ResourceSlices, which nodes publish for pods, with what ResourceClaims have
of them.

ResourceSlices are judged by the rules of resource.k8s.io. Of a pool the newest generation counts, once all of its
slices are there. A device with a taint is ``unavailable``, because most claims do not tolerate it; but for the taint
by which a node is set aside for devalloc's controller. One is ``excluded`` if too little is left of a counter that
it draws on.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from devalloc.api import views
from devalloc.api.cordon import ALL_DEVICES, CORDONED, cordon_reasons
from devalloc.api.dedicated_pools import ALLOCATOR_KEY, is_dedicated
from devalloc.api.meta import UNAVAILABLE
from devalloc.api.owner_names import MACHINE, owner_of
from devalloc.api.pool import unavailability
from devalloc.api.quantity import Quantity, QuantityError
from devalloc.api.views import ClaimKey, ClaimView, as_mapping, as_mappings
from devalloc.controller.reconcile.availability import CountedPool, FleetCounts, HeldDevice
from devalloc.store import Object
from devalloc.usage.overview import claims
from devalloc.usage.overview.model import (
    EXCLUDED,
    STATES,
    CardSummary,
    CardSupply,
    DeviceCounts,
    DeviceHolder,
    DeviceState,
    DeviceSummary,
    device_kind,
    nested_devices,
    safe_text,
    shares_drawn,
    shorten,
)
from devalloc_solver.dialects.resource_k8s.taint_rules import selects_device, selects_pool
from devalloc_solver.problem.ordering import natural_key

DEDICATED_NOTE = "set aside for devalloc's controller"
_BLOCKING_EFFECTS = ("NoSchedule", "NoExecute")
_SHOWN_ATTRIBUTES = ("function", "profile", "pciBusID", "pfPciBusID", "model", "numa", "rack", UNAVAILABLE)
"""Attributes that are looked at."""
PoolName = tuple[str, str]
"""Driver and pool."""
CounterName = tuple[str, str]
"""Counter set and counter."""


@dataclass(frozen=True, slots=True)
class SlicePool:
    """The newest slices of a pool."""

    driver: str
    name: str
    slices: tuple[Mapping[str, Any], ...]
    """Their specs."""

    @property
    def devices(self) -> list[Mapping[str, Any]]:
        """Each name once."""
        by_name: dict[str, Mapping[str, Any]] = {}
        for spec in self.slices:
            for device in as_mappings(spec.get("devices")):
                by_name.setdefault(str(device.get("name", "")), device)
        return list(by_name.values())

    @property
    def wrong(self) -> str:
        """Why nothing is given of it now; "" if nothing is wrong."""
        counts = {_whole(as_mapping(spec.get("pool")).get("resourceSliceCount")) for spec in self.slices}
        if counts != {len(self.slices)}:
            return f"it is being published: {len(self.slices)} of {max(counts)} slices are there"
        names = Counter(str(one.get("name", "")) for spec in self.slices for one in as_mappings(spec.get("devices")))
        twice = next((name for name, number in names.items() if number > 1), None)
        return "" if twice is None else shorten(f"two of its devices are named {twice}")

    @property
    def node(self) -> str:
        """Where it is; "" if several nodes may reach it."""
        names = {str(spec.get("nodeName") or "") for spec in self.slices}
        return names.pop() if len(names) == 1 else ""


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """What one claim has of a device, and does not only look at."""

    claim: ClaimKey
    is_whole: bool
    nano: Mapping[str, int]
    """How much of each capacity."""


@dataclass(slots=True)
class SliceDeviceUse:
    """What claims have of a device."""

    shares: list[DeviceShare] = field(default_factory=list)
    holders: list[DeviceHolder] = field(default_factory=list)
    is_held: bool = False
    """By a claim without admin access."""
    is_whole: bool = False
    nano: Counter[str] = field(default_factory=Counter)
    """Of shares: how much of each capacity."""


SliceDeviceUses = Mapping[tuple[str, str, str], SliceDeviceUse]
"""By driver, pool and device."""


def slice_pools(documents: Iterable[Object]) -> list[SlicePool]:
    """Of all slices, in natural order."""
    by_pool: dict[PoolName, list[Mapping[str, Any]]] = defaultdict(list)
    for doc in documents:
        if doc["kind"] == "ResourceSlice":
            spec = as_mapping(doc.get("spec"))
            by_pool[str(spec.get("driver", "")), str(as_mapping(spec.get("pool")).get("name", ""))].append(spec)
    return [
        SlicePool(driver, name, tuple(_newest(by_pool[driver, name])))
        for driver, name in sorted(by_pool, key=lambda key: natural_key(key[1]))
    ]


def loss_finder(published: Iterable[SlicePool]) -> Callable[[str, str, str], bool]:
    """Says of a device, by driver, pool and name, whether it no longer exists. While slices of its pool are missing, or
    no slice of its driver can be read, that is not known."""
    names = {
        (pool.driver, pool.name): None if pool.wrong else {str(device.get("name", "")) for device in pool.devices}
        for pool in published
    }
    drivers = {driver for driver, _ in names}

    def is_lost(driver: str, pool: str, device: str) -> bool:
        there = names.get((driver, pool), set())
        return driver in drivers and there is not None and device not in there

    return is_lost


def _newest(specs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    generations = [_whole(as_mapping(spec.get("pool")).get("generation")) for spec in specs]
    newest = max(generations)
    return [spec for spec, generation in zip(specs, generations, strict=True) if generation == newest]


def slice_device_uses(documents: Iterable[Object]) -> SliceDeviceUses:
    """What the ResourceClaims among documents have, of every driver: any of them may be or have been adopted, and then
    two allocators gave its devices."""
    by_device: dict[tuple[str, str, str], SliceDeviceUse] = defaultdict(SliceDeviceUse)
    for doc in documents:
        if doc["kind"] != "ResourceClaim":
            continue
        namespace, name = ClaimView(doc).key
        for each in claims.results_of_drivers(doc):
            amounts = as_mapping(each.get("consumedCapacity"))
            text = ", ".join(shorten(f"{key} {amount}") for key, amount in amounts.items())
            is_admin = each.get("adminAccess") is True
            use = by_device[str(each.get("driver", "")), str(each.get("pool", "")), str(each.get("device", ""))]
            use.holders.append(
                DeviceHolder("ResourceClaim", namespace, name, text, is_admin=is_admin, pods=claims.reserved_for(doc))
            )
            if not is_admin:
                share = DeviceShare(
                    (namespace, name), not each.get("shareID"), {key: _nano(each) or 0 for key, each in amounts.items()}
                )
                use.shares.append(share)
                use.is_held = True
                use.is_whole |= share.is_whole
                use.nano.update(share.nano)
    return by_device


def taint_rules(documents: Iterable[Object]) -> list[Mapping[str, Any]]:
    """The specs of DeviceTaintRules that say which devices they are for."""
    specs = (as_mapping(doc.get("spec")) for doc in documents if doc["kind"] == "DeviceTaintRule")
    return [spec for spec in specs if isinstance(spec.get("deviceSelector"), dict)]


def slice_card(
    pool: SlicePool, uses: SliceDeviceUses, rules: Iterable[Mapping[str, Any]], cordon: str = ""
) -> CardSummary:
    """``rules``: of taints. ``cordon``: by whom the pool's Node is cordoned, which keeps new pods from its devices."""
    devices = {str(device.get("name", "")): device for device in pool.devices}
    own = {name: _attributes(device) for name, device in devices.items()}
    used = {name: use for name in devices if (use := uses.get((pool.driver, pool.name, name))) is not None}
    held = {name for name, use in used.items() if use.is_held}
    left, supplies = _counters(pool, devices, held)
    shares = _shares(pool, devices)
    concerning = [rule for rule in rules if selects_pool(rule, pool.driver, pool.name)]
    wrong = pool.wrong
    shown = []
    for name, level in nested_devices(devices, own):
        device, use = devices[name], used.get(name)
        taint = _taint(device, name, concerning)
        why = unavailability(own[name]) or wrong or taint or cordon
        state: DeviceState
        if use is not None and use.is_held:
            state = "shared" if not why and _can_be_shared(device, use) else "held"
        elif why:
            state = "unavailable"
        else:
            state = "free" if _fits(device, left) else "excluded"
        reason = EXCLUDED if state == "excluded" else shorten(why)
        shown.append(
            DeviceSummary(
                name, device_kind(own[name]), state, reason, tuple(use.holders) if use else (), level, shares[name]
            )
        )
    notes = [*([DEDICATED_NOTE] if is_dedicated(pool.name) else []), *([wrong] if wrong else [])]
    return CardSummary(
        name=pool.name,
        driver=pool.driver,
        model=next((shorten(each["model"]) for each in own.values() if each.get("model")), ""),
        numa=",".join(dict.fromkeys(shorten(each["numa"]) for each in own.values() if each.get("numa"))),
        cordoned="",
        devices=tuple(shown),
        counts=DeviceCounts(**{state: sum(device.state == state for device in shown) for state in STATES}),
        dialect="ResourceSlice",
        note="; ".join(notes),
        supplies=supplies,
        rack=next((shorten(each["rack"]) for each in own.values() if each.get("rack")), ""),
    )


# -- what keeps a device back ----------------------------------------------------------------------------------------


def _taint(device: Mapping[str, Any], name: str, rules: Sequence[Mapping[str, Any]]) -> str:
    """A taint that keeps it from claims that do not tolerate it, as kubectl writes taints. That of a DeviceTaintRule is
    a cordon: its driver did not say it."""
    taints = [("", taint) for taint in as_mappings(device.get("taints"))]
    for rule in rules:
        if selects_device(rule, name):
            taints.append((CORDONED, as_mapping(rule.get("taint"))))
    for who, taint in taints:
        if taint.get("effect") in _BLOCKING_EFFECTS and taint.get("key") != ALLOCATOR_KEY:
            value = f"={taint['value']}" if taint.get("value") else ""
            return f"{who}taint {taint.get('key', '')}{value}:{taint['effect']}"
    return ""


def _can_be_shared(device: Mapping[str, Any], use: SliceDeviceUse) -> bool:
    """Whether one more share can be had of a device in use."""
    if device.get("allowMultipleAllocations") is not True or use.is_whole:
        return False
    for name, content in as_mapping(device.get("capacity")).items():
        capacity = as_mapping(content)
        there = _nano(capacity.get("value"))
        least = _minimal_request(as_mapping(capacity.get("requestPolicy")))
        if there is None or there - use.nano[name] < max(1, least):
            return False
    return True


def _minimal_request(policy: Mapping[str, Any]) -> int:
    """The least that a request can take by a policy."""
    amounts = [as_mapping(policy.get("validRange")).get("min"), policy.get("default")]
    values = policy.get("validValues")
    amounts += values[:1] if isinstance(values, list) else []
    return min((nano for each in amounts if each is not None and (nano := _nano(each)) is not None), default=0)


def _counters(
    pool: SlicePool, devices: Mapping[str, Mapping[str, Any]], held: Iterable[str]
) -> tuple[dict[CounterName, int], tuple[CardSupply, ...]]:
    """What is left of each counter in nano units, and in words."""
    totals = pool_counters(pool)
    left = {key: amount.nano for key, amount in totals.items()}
    for name in held:
        for key, nano in consumed_counters(devices[name]):
            left[key] = left.get(key, 0) - (nano or 0)
    several = len({key[0] for key in totals}) > 1
    supplies = tuple(
        CardSupply(
            shorten(f"{key[0]}/{key[1]}" if several else key[1]),
            str(total),
            str(Quantity(max(0, left[key]), total.format)),
        )
        for key, total in totals.items()
    )
    return left, supplies


def _shares(pool: SlicePool, devices: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    draws = {
        name: {"/".join(key): nano or 0 for key, nano in consumed_counters(device)} for name, device in devices.items()
    }
    return shares_drawn(draws, {"/".join(key): amount.nano for key, amount in pool_counters(pool).items()})


def pool_counters(pool: SlicePool) -> dict[CounterName, Quantity]:
    """What there is of each counter that can be read."""
    totals: dict[CounterName, Quantity] = {}
    for spec in pool.slices:
        for counters in as_mappings(spec.get("sharedCounters")):
            for name, content in as_mapping(counters.get("counters")).items():
                if (amount := _quantity(as_mapping(content).get("value"))) is not None:
                    totals[str(counters.get("name", "")), name] = amount
    return totals


def shared_capacities(device: Mapping[str, Any]) -> dict[str, int]:
    """The nano units of each capacity that shares of a device take from, as far as they can be read."""
    amounts = {
        name: _nano(as_mapping(content).get("value")) for name, content in as_mapping(device.get("capacity")).items()
    }
    return {name: nano for name, nano in amounts.items() if nano is not None}


def consumed_counters(device: Mapping[str, Any]) -> list[tuple[CounterName, int | None]]:
    """What it draws in nano units; None for an amount that cannot be read."""
    return [
        ((str(each.get("counterSet", "")), name), _nano(as_mapping(content).get("value")))
        for each in as_mappings(device.get("consumesCounters"))
        for name, content in as_mapping(each.get("counters")).items()
    ]


def _fits(device: Mapping[str, Any], left: Mapping[CounterName, int]) -> bool:
    return all(nano is not None and nano <= left.get(key, 0) for key, nano in consumed_counters(device))


# -- contents --------------------------------------------------------------------------------------------------------


def _attributes(device: Mapping[str, Any]) -> dict[str, str]:
    attributes = as_mapping(device.get("attributes"))
    return {
        name: str(next(iter(content.values())))
        for name in _SHOWN_ATTRIBUTES
        if isinstance(content := attributes.get(name), dict) and content
    }


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def _nano(value: object) -> int | None:
    amount = _quantity(value)
    return None if amount is None else amount.nano


def _quantity(value: object) -> Quantity | None:
    return _parsed(value) if isinstance(value, (str, int)) else None


@lru_cache(maxsize=4096)
def _parsed(value: str | int) -> Quantity | None:
    try:
        return Quantity.parse(value)
    except (TypeError, ValueError):
        return None


DeviceName = tuple[str, str]
"""Pool and device."""


def device_holders(counted: FleetCounts, users: Mapping[ClaimKey, str]) -> dict[DeviceName, list[DeviceHolder]]:
    """Who has which device. ``users``: the machine that a claim is for."""
    by_device: dict[DeviceName, list[DeviceHolder]] = defaultdict(list)
    for holding in counted.holdings:
        entry = holding.entry
        by_device[entry.device_pool_name, entry.device_name].append(_holder(holding, users))
    return by_device


def pool_card(one: CountedPool, holders: Mapping[DeviceName, Sequence[DeviceHolder]]) -> CardSummary:
    spec, name = one.pool.spec, one.pool.metadata.name
    effective = spec.effective_attributes
    own = {device: {key: str(value) for key, value in each.items()} for device, each in effective.items()}
    shares = _shares_of_pool(one)
    devices = tuple(
        DeviceSummary(
            name=device,
            what=device_kind(own[device]),
            state=(state := _state(device, one, own[device])),
            why=EXCLUDED if state == "excluded" else shorten(unavailability(own[device]) or ""),
            holders=tuple(holders.get((name, device), ())),
            level=level,
            share=shares[device],
        )
        for device, level in nested_devices(own, own)
    )
    return CardSummary(
        name=name,
        driver=spec.driver,
        model=safe_text(views.pool_model, one.manifest),
        numa=safe_text(views.pool_numa_nodes, one.manifest),
        cordoned=shorten(cordon_reasons(one.manifest).get(ALL_DEVICES, "")),
        devices=devices,
        counts=DeviceCounts(**{state: sum(device.state == state for device in devices) for state in STATES}),
        supplies=_supplies(one),
        rack=next((shorten(each["rack"]) for each in own.values() if each.get("rack")), ""),
    )


def reported_available(one: CountedPool) -> object:
    """How many are available as the controller wrote it; None if it did not."""
    status = one.manifest.get("status")
    return status.get("availableDevices") if isinstance(status, dict) else None


def _state(name: str, one: CountedPool, attributes: Mapping[str, str]) -> DeviceState:
    if name in one.use:
        return "shared" if name in one.available else "held"
    if name in one.available:
        return "free"
    return "excluded" if unavailability(attributes) is None else "unavailable"


def _shares_of_pool(one: CountedPool) -> dict[str, float]:
    draws = {
        device.name: {name: amount.nano for name, amount in device.requests.items()} for device in one.pool.spec.devices
    }
    return shares_drawn(draws, {resource.name: resource.capacity.nano for resource in one.pool.spec.resources})


def _supplies(one: CountedPool) -> tuple[CardSupply, ...]:
    left = {resource.name: resource.capacity for resource in one.pool.spec.resources}
    try:
        for device in one.pool.spec.devices:
            if device.name in one.use:
                for name, amount in device.requests.items():
                    if name in left:
                        left[name] -= amount
    except QuantityError:  # the sum exceeds what a quantity can express
        return ()
    nothing = Quantity(0)
    return tuple(
        CardSupply(resource.name, str(resource.capacity), str(max(left[resource.name], nothing)))
        for resource in one.pool.spec.resources
    )


def _holder(holding: HeldDevice, users: Mapping[ClaimKey, str]) -> DeviceHolder:
    amounts = ", ".join(views.amount_text(part.name, part.allocation) for part in holding.entry.allocations)
    of, namespace, name = owner_of(holding.claim)
    kind: Literal["DeviceClaim", "VirtualMachine"] = "VirtualMachine" if of == MACHINE else "DeviceClaim"
    return DeviceHolder(kind, namespace, name, amounts, users.get(holding.claim, ""), holding.is_admin)
