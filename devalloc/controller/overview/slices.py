"""Pools of ResourceSlices as cards: what nodes publish for pods, and what ResourceClaims have of it.

Judged by the rules of resource.k8s.io. Of a pool the newest generation counts, once all of its slices are there. A
device with a taint is ``unavailable``, for most claims do not tolerate it; but for the taint by which a node is set
aside for devalloc's controller. One is ``excluded`` where too little is left of a counter that it draws on.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from devalloc.api.aside import ALLOCATOR, is_aside
from devalloc.api.cordon import CORDONED
from devalloc.api.meta import UNAVAILABLE
from devalloc.api.quantity import Quantity
from devalloc.controller.claims import ClaimKey, claim_key
from devalloc.controller.overview import claims
from devalloc.controller.overview.facts import EXCLUDED, STATES, Card, Counts, Device, DeviceState, Holder, Supply
from devalloc.controller.overview.parts import nested, what
from devalloc.controller.overview.words import mapping, mappings, short
from devalloc.store import Object
from devalloc_solver.naming import natural

ASIDE = "set aside for devalloc's controller"
_BLOCKING = ("NoSchedule", "NoExecute")
_SHOWN = ("function", "profile", "pciBusID", "pfPciBusID", "model", "numa", UNAVAILABLE)
"""Attributes that are looked at."""
PoolName = tuple[str, str]
"""Driver and pool."""
CounterName = tuple[str, str]
"""Counter set and counter."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The newest slices of a pool."""

    driver: str
    name: str
    slices: tuple[Mapping[str, Any], ...]
    """Their specs."""

    @property
    def devices(self) -> list[Mapping[str, Any]]:
        """Each name once."""
        found: dict[str, Mapping[str, Any]] = {}
        for spec in self.slices:
            for device in mappings(spec.get("devices")):
                found.setdefault(str(device.get("name", "")), device)
        return list(found.values())

    @property
    def wrong(self) -> str:
        """Why nothing is given of it now; "" where nothing is wrong."""
        told = {_whole(mapping(spec.get("pool")).get("resourceSliceCount")) for spec in self.slices}
        if told != {len(self.slices)}:
            return f"it is being published: {len(self.slices)} of {max(told)} slices are there"
        names = Counter(str(one.get("name", "")) for spec in self.slices for one in mappings(spec.get("devices")))
        twice = next((name for name, number in names.items() if number > 1), None)
        return "" if twice is None else short(f"two of its devices are named {twice}")

    @property
    def node(self) -> str:
        """Where it is; "" where several nodes may reach it."""
        names = {str(spec.get("nodeName") or "") for spec in self.slices}
        return names.pop() if len(names) == 1 else ""


@dataclass(frozen=True, slots=True)
class Share:
    """What one claim has of a device, and does not only look at."""

    claim: ClaimKey
    is_whole: bool
    nano: Mapping[str, int]
    """How much of each capacity."""


@dataclass(slots=True)
class Use:
    """What claims have of a device."""

    shares: list[Share] = field(default_factory=list)
    holders: list[Holder] = field(default_factory=list)
    is_held: bool = False
    """By somebody who does not only look on."""
    is_whole: bool = False
    nano: Counter[str] = field(default_factory=Counter)
    """Of shares: how much of each capacity."""


Uses = Mapping[tuple[str, str, str], Use]
"""By driver, pool and device."""


def pools(documents: Iterable[Object]) -> list[Pool]:
    """Of all slices, in natural order."""
    found: dict[PoolName, list[Mapping[str, Any]]] = defaultdict(list)
    for doc in documents:
        if doc["kind"] == "ResourceSlice":
            spec = mapping(doc.get("spec"))
            found[str(spec.get("driver", "")), str(mapping(spec.get("pool")).get("name", ""))].append(spec)
    return [
        Pool(driver, name, tuple(_newest(found[driver, name])))
        for driver, name in sorted(found, key=lambda key: natural(key[1]))
    ]


def _newest(specs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    generations = [_whole(mapping(spec.get("pool")).get("generation")) for spec in specs]
    newest = max(generations)
    return [spec for spec, generation in zip(specs, generations, strict=True) if generation == newest]


def uses(documents: Iterable[Object]) -> Uses:
    """What the ResourceClaims among documents have."""
    found: dict[tuple[str, str, str], Use] = defaultdict(Use)
    for doc in documents:
        if doc["kind"] != "ResourceClaim":
            continue
        namespace, name = claim_key(doc)
        for each in claims.results(doc):
            amounts = mapping(each.get("consumedCapacity"))
            told = ", ".join(short(f"{key} {amount}") for key, amount in amounts.items())
            is_admin = each.get("adminAccess") is True
            use = found[str(each["driver"]), str(each.get("pool", "")), str(each.get("device", ""))]
            use.holders.append(
                Holder("ResourceClaim", namespace, name, told, is_admin=is_admin, pods=claims.pods_of(doc))
            )
            if not is_admin:
                share = Share(
                    (namespace, name), not each.get("shareID"), {key: _nano(each) or 0 for key, each in amounts.items()}
                )
                use.shares.append(share)
                use.is_held = True
                use.is_whole |= share.is_whole
                use.nano.update(share.nano)
    return found


def rules_among(documents: Iterable[Object]) -> list[Mapping[str, Any]]:
    """The specs of DeviceTaintRules that say which devices they are for."""
    specs = (mapping(doc.get("spec")) for doc in documents if doc["kind"] == "DeviceTaintRule")
    return [spec for spec in specs if isinstance(spec.get("deviceSelector"), dict)]


def card(pool: Pool, uses: Uses, rules: Iterable[Mapping[str, Any]], cordon: str = "") -> Card:
    """``rules``: of taints. ``cordon``: by whom the pool's Node is cordoned, which keeps new pods from its devices."""
    devices = {str(device.get("name", "")): device for device in pool.devices}
    own = {name: _attributes(device) for name, device in devices.items()}
    used = {name: use for name in devices if (use := uses.get((pool.driver, pool.name, name))) is not None}
    held = {name for name, use in used.items() if use.is_held}
    left, supplies = _counters(pool, devices, held)
    concerning = [rule for rule in rules if _concerns(rule, pool)]
    wrong = pool.wrong
    found = []
    for name, level in nested(devices, own):
        device, use = devices[name], used.get(name)
        taint = _taint(device, name, concerning)
        why = own[name].get(UNAVAILABLE) or wrong or taint or cordon
        state: DeviceState
        if use is not None and use.is_held:
            state = "shared" if not why and _has_more(device, use) else "held"
        elif why:
            state = "unavailable"
        else:
            state = "free" if _fits(device, left) else "excluded"
        told = EXCLUDED if state == "excluded" else short(why)
        found.append(Device(name, what(own[name]), state, told, tuple(use.holders) if use else (), level))
    notes = [*([ASIDE] if is_aside(pool.name) else []), *([wrong] if wrong else [])]
    return Card(
        name=pool.name,
        driver=pool.driver,
        model=next((short(each["model"]) for each in own.values() if each.get("model")), ""),
        numa=",".join(dict.fromkeys(short(each["numa"]) for each in own.values() if each.get("numa"))),
        cordoned="",
        devices=tuple(found),
        counts=Counts(**{state: sum(device.state == state for device in found) for state in STATES}),
        dialect="ResourceSlice",
        note="; ".join(notes),
        supplies=supplies,
    )


# -- what keeps a device back ----------------------------------------------------------------------------------------


def _taint(device: Mapping[str, Any], name: str, rules: Sequence[Mapping[str, Any]]) -> str:
    """A taint that keeps it from claims that do not tolerate it, as kubectl writes taints. That of a DeviceTaintRule is
    a cordon: its driver did not say it."""
    taints = [("", taint) for taint in mappings(device.get("taints"))]
    for rule in rules:
        if rule["deviceSelector"].get("device") in (None, name):
            taints.append((CORDONED, mapping(rule.get("taint"))))
    for who, taint in taints:
        if taint.get("effect") in _BLOCKING and taint.get("key") != ALLOCATOR:
            value = f"={taint['value']}" if taint.get("value") else ""
            return f"{who}taint {taint.get('key', '')}{value}:{taint['effect']}"
    return ""


def _concerns(rule: Mapping[str, Any], pool: Pool) -> bool:
    selector = rule["deviceSelector"]
    return selector.get("driver") in (None, pool.driver) and selector.get("pool") in (None, pool.name)


def _has_more(device: Mapping[str, Any], use: Use) -> bool:
    """Whether one more share can be had of a device in use."""
    if device.get("allowMultipleAllocations") is not True or use.is_whole:
        return False
    for name, content in mapping(device.get("capacity")).items():
        capacity = mapping(content)
        there = _nano(capacity.get("value"))
        least = _least(mapping(capacity.get("requestPolicy")))
        if there is None or there - use.nano[name] < max(1, least):
            return False
    return True


def _least(policy: Mapping[str, Any]) -> int:
    """The least that a request can take by a policy."""
    amounts = [mapping(policy.get("validRange")).get("min"), policy.get("default")]
    values = policy.get("validValues")
    amounts += values[:1] if isinstance(values, list) else []
    return min((nano for each in amounts if each is not None and (nano := _nano(each)) is not None), default=0)


def _counters(
    pool: Pool, devices: Mapping[str, Mapping[str, Any]], held: Iterable[str]
) -> tuple[dict[CounterName, int], tuple[Supply, ...]]:
    """What is left of each counter in nano units, and in words."""
    totals = counters_of(pool)
    left = {key: amount.nano for key, amount in totals.items()}
    for name in held:
        for key, nano in draws_of(devices[name]):
            left[key] = left.get(key, 0) - (nano or 0)
    several = len({key[0] for key in totals}) > 1
    supplies = tuple(
        Supply(
            short(f"{key[0]}/{key[1]}" if several else key[1]),
            str(total),
            str(Quantity(max(0, left[key]), total.format)),
        )
        for key, total in totals.items()
    )
    return left, supplies


def counters_of(pool: Pool) -> dict[CounterName, Quantity]:
    """What there is of each counter that can be read."""
    totals: dict[CounterName, Quantity] = {}
    for spec in pool.slices:
        for counters in mappings(spec.get("sharedCounters")):
            for name, content in mapping(counters.get("counters")).items():
                if (amount := _quantity(mapping(content).get("value"))) is not None:
                    totals[str(counters.get("name", "")), name] = amount
    return totals


def shares_of(device: Mapping[str, Any]) -> dict[str, int]:
    """The nano units of each capacity that shares of a device take from, as far as they can be read."""
    found = {name: _nano(mapping(content).get("value")) for name, content in mapping(device.get("capacity")).items()}
    return {name: nano for name, nano in found.items() if nano is not None}


def draws_of(device: Mapping[str, Any]) -> list[tuple[CounterName, int | None]]:
    """What it draws in nano units; None for an amount that cannot be read."""
    return [
        ((str(each.get("counterSet", "")), name), _nano(mapping(content).get("value")))
        for each in mappings(device.get("consumesCounters"))
        for name, content in mapping(each.get("counters")).items()
    ]


def _fits(device: Mapping[str, Any], left: Mapping[CounterName, int]) -> bool:
    return all(nano is not None and nano <= left.get(key, 0) for key, nano in draws_of(device))


# -- contents --------------------------------------------------------------------------------------------------------


def _attributes(device: Mapping[str, Any]) -> dict[str, str]:
    found = mapping(device.get("attributes"))
    return {
        name: str(next(iter(content.values())))
        for name in _SHOWN
        if isinstance(content := found.get(name), dict) and content
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
