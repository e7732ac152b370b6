"""Relaxations of the input of ``dra.allocate``: of claims, of the fleet, of what is in use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from devalloc.api.quantity import Format
from devalloc_solver.dialects.resource_k8s import feature_gates as gate
from devalloc_solver.dialects.resource_k8s.errors import AllocationError
from devalloc_solver.dialects.resource_k8s.feature_gates import read_gates
from devalloc_solver.dialects.resource_k8s.fields import FieldError
from devalloc_solver.dialects.resource_k8s.pools import PoolStatus, name_of
from devalloc_solver.dialects.resource_k8s.quantities import Amount
from devalloc_solver.dialects.resource_k8s.usage import DeviceUsage, add_allocation, read_usage
from devalloc_solver.explain.relaxations import drop_unneeded
from devalloc_solver.explain.resource_k8s.call_input import (
    CallInput,
    ManifestContent,
    claim_title,
    devices_spec,
    is_allocated,
    subrequests_of,
)
from devalloc_solver.problem.allocations import Usage

UNLIMITED = "4E"
"""More of a counter than any device draws."""

DeviceId = tuple[str, str, str]


@dataclass(frozen=True, slots=True, eq=False)
class CallRelaxation:
    """Something to take away. ``entry`` is the blocker's JSON."""

    entry: Mapping[str, Any]
    words: str
    """completes "it fits ..." """
    apply: Callable[[CallInput], CallInput]
    narrow: Callable[[CallInput], Sequence[CallRelaxation]] | None = None
    """of one that takes away too much: what is needed of it, given the input with all else taken away"""
    alike: object | None = None


def apply_relaxations(inputs: CallInput, remedies: Sequence[CallRelaxation]) -> CallInput:
    """The input once all these are taken away."""
    for remedy in remedies:
        inputs = remedy.apply(inputs)
    return inputs


# -- of claims ---------------------------------------------------------------------------------------------------------


def constraints(inputs: CallInput) -> Iterator[CallRelaxation]:
    """matchAttributes and distinctAttributes, one by one."""
    for position, claim in inputs.waiting:
        for index, one in enumerate(devices_spec(claim).get("constraints") or ()):
            field = "matchAttribute" if one.get("matchAttribute") else "distinctAttribute"
            path = f"spec.devices.constraints[{index}]"
            entry = {"kind": "constraint", **_claim(claim), "path": path, field: one.get(field)}
            spot = (position, index)
            yield CallRelaxation(
                entry,
                f"without {path} ({field} {one.get(field)}) of {claim_title(claim)}",
                partial(_drop_constraint, spot),
            )


def _drop_constraint(spot: tuple[int, int], inputs: CallInput) -> CallInput:
    return replace(inputs, dropped_constraints=inputs.dropped_constraints | {spot})


def requests(inputs: CallInput) -> list[CallRelaxation]:
    """Whole requests."""
    remedies = []
    for position, claim in inputs.waiting:
        for index, request in enumerate(devices_spec(claim).get("requests") or ()):
            entry = {"kind": "request", **_claim(claim), "request": request["name"]}
            entry["path"] = f"spec.devices.requests[{index}]"
            words = f"without request {request['name']} of {claim_title(claim)}"
            remedies.append(CallRelaxation(entry, words, partial(_drop_request, (position, index))))
    return remedies


def _drop_request(spot: tuple[int, int], inputs: CallInput) -> CallInput:
    return replace(inputs, dropped_requests=inputs.dropped_requests | {spot})


def members(inputs: CallInput) -> list[CallRelaxation]:
    """Whole claims, where there are several."""
    waiting = [*inputs.waiting]
    if len(waiting) < 2:
        return []
    return [
        CallRelaxation(
            {"kind": "member", **_name(claim)}, f"without {claim_title(claim)}", partial(_drop_claim, position)
        )
        for position, claim in reversed(waiting)
    ]


def _drop_claim(position: int, inputs: CallInput) -> CallInput:
    return replace(inputs, dropped_claims=inputs.dropped_claims | {position})


def capacities(inputs: CallInput) -> Iterator[CallRelaxation]:
    """Requested capacities, one by one."""
    for position, claim, (index, alternative, path, ask) in _subrequests(inputs):
        for name, amount in ((ask.get("capacity") or {}).get("requests") or {}).items():
            field = f"{path}.capacity.requests[{name}]"
            entry = {"kind": "capacity", **_claim(claim), "path": field, "capacity": name, "requested": str(amount)}
            change = partial(_without_capacity, position, index, alternative, name)
            yield CallRelaxation(entry, f"without {field} of {claim_title(claim)}", change)


def _without_capacity(position: int, index: int, alternative: int | None, name: str, inputs: CallInput) -> CallInput:
    def change(ask: ManifestContent) -> ManifestContent:
        others = {key: value for key, value in ask["capacity"]["requests"].items() if key != name}
        return {**ask, "capacity": {**ask["capacity"], "requests": others}}

    return inputs.with_ask(position, index, alternative, change)


def counts(inputs: CallInput) -> Iterator[CallRelaxation]:
    """Counts, narrowed to the most that fits."""
    several = len([*inputs.waiting]) > 1
    for position, claim, (index, alternative, path, ask) in _subrequests(inputs):
        count = ask.get("count") or 1
        if count > 1 and ask.get("allocationMode") != "All":
            entry = {"kind": "amount", **_claim(claim), "path": f"{path}.count", "requested": str(count)}
            asking = partial(_with_count, position, index, alternative)
            what = f"{path}.count" + (f" of {claim_title(claim)}" if several else "")
            narrow = partial(_max_count_relaxation, entry, what, count, asking)
            yield CallRelaxation(entry, f"with {what} of 1", partial(asking, 1), narrow)


def _with_count(position: int, index: int, alternative: int | None, count: int, inputs: CallInput) -> CallInput:
    return inputs.with_ask(position, index, alternative, lambda ask: {**ask, "count": count})


def _max_count_relaxation(
    entry: ManifestContent, what: str, count: int, asking: Callable[[int, CallInput], CallInput], inputs: CallInput
) -> Sequence[CallRelaxation]:
    fits, fails = 1, count
    while fails - fits > 1:
        middle = (fits + fails) // 2
        fits, fails = (middle, fails) if asking(middle, inputs).fits() else (fits, middle)
    words = f"with {what} of at most {fits}"
    return [CallRelaxation({**entry, "most": str(fits)}, words, partial(asking, fits))]


def selectors(inputs: CallInput) -> Iterator[CallRelaxation]:
    """The selectors of a request."""
    for position, claim, (index, alternative, path, ask) in _subrequests(inputs):
        if ask.get("selectors"):
            field = f"{path}.selectors"
            expressions = [one["cel"]["expression"] for one in ask["selectors"] if one.get("cel")]
            entry = {"kind": "selector", **_claim(claim), "path": field, "expressions": expressions}
            change = partial(_without_selectors, position, index, alternative)
            yield CallRelaxation(entry, f"without {field} of {claim_title(claim)}", change)


def _without_selectors(position: int, index: int, alternative: int | None, inputs: CallInput) -> CallInput:
    return inputs.with_ask(position, index, alternative, lambda ask: {**ask, "selectors": []})


def classes(inputs: CallInput) -> Iterator[CallRelaxation]:
    """The selectors of a class, for all requests that name it."""
    named = dict.fromkeys(ask["deviceClassName"] for _, _, (_, _, _, ask) in _subrequests(inputs))
    for name in named:
        entry = {"kind": "class", "deviceClassName": name}
        yield CallRelaxation(entry, f"without the selectors of class {name}", partial(_without_class_selectors, name))


def _without_class_selectors(name: str, inputs: CallInput) -> CallInput:
    def change(content: Mapping[str, Any]) -> Mapping[str, Any]:
        if name_of(content) != name:
            return content
        return {**content, "spec": {**(content.get("spec") or {}), "selectors": []}}

    return replace(inputs, classes=tuple(map(change, inputs.classes)))


# -- of the fleet ------------------------------------------------------------------------------------------------------


def taints(inputs: CallInput) -> list[CallRelaxation]:
    """All taints at once, narrowed to those of the devices that are needed."""
    has_taints = any(d.get("taints") for s in inputs.slices for d in s["spec"].get("devices") or ())
    words = "without the taints"
    return (
        [CallRelaxation({"kind": "taint"}, words, lambda i: i.with_devices(_without_taints), _needed_taints)]
        if has_taints
        else []
    )


def _without_taints(_: ManifestContent, device: ManifestContent) -> ManifestContent:
    return {key: value for key, value in device.items() if key != "taints"}


def _needed_taints(inputs: CallInput) -> Sequence[CallRelaxation]:
    taken = _devices_of(inputs.with_devices(_without_taints))
    remedies: list[CallRelaxation] = []
    for content in inputs.slices:
        spec = content["spec"]
        for device in spec.get("devices") or ():
            remedies += [_taint(spec, device, t) for t in device.get("taints") or () if _id(spec, device) in taken]
    return drop_unneeded(remedies, lambda some: apply_relaxations(inputs, some).fits())


def _taint(spec: ManifestContent, device: ManifestContent, taint: ManifestContent) -> CallRelaxation:
    driver, pool, name = where = _id(spec, device)
    text = f"{taint.get('key')}={taint.get('value', '')}:{taint.get('effect')}"
    entry = {"kind": "taint", "driver": driver, "pool": pool, "device": name}
    entry |= {field: taint[field] for field in ("key", "value", "effect") if field in taint}

    def change(spec: ManifestContent, other: ManifestContent) -> ManifestContent:
        if _id(spec, other) != where:
            return other
        return {**other, "taints": [t for t in other.get("taints") or () if t != taint]}

    return CallRelaxation(entry, f"without the taint {text} of {'/'.join(where)}", lambda i: i.with_devices(change))


def counters(inputs: CallInput) -> list[CallRelaxation]:
    """All counters raised at once, narrowed to those that fall short, and by how much."""
    if not any(s["spec"].get("sharedCounters") for s in inputs.slices):
        return []
    return [CallRelaxation({"kind": "counter"}, "with more of the counters", _raise_all_counters, _short_counters)]


def _raise_all_counters(inputs: CallInput) -> CallInput:
    return inputs.with_slices(lambda spec: _counted(spec, lambda *_: UNLIMITED))


def _counted(spec: ManifestContent, value: Callable[[str, str, Any], Any]) -> ManifestContent:
    """A slice with other values of its counters, by set, counter and old value."""
    if not spec.get("sharedCounters"):
        return spec

    def counted(one: ManifestContent) -> ManifestContent:
        counts = (one.get("counters") or {}).items()
        return {**one, "counters": {n: {**c, "value": value(one["name"], n, c.get("value"))} for n, c in counts}}

    sets = [counted(one) for one in spec["sharedCounters"]]
    return {**spec, "sharedCounters": sets}


def _short_counters(inputs: CallInput) -> Sequence[CallRelaxation]:
    task, placements = inputs.task(), _raise_all_counters(inputs).placements()
    if task is None or placements is None:
        return []
    ledger = Usage.of(task.snapshot, task.holdings)
    taken = {e.device.index for p in placements for e in p.entries if not e.request.mode.is_admin}
    new = [task.snapshot.devices[i] for i in sorted(taken) if not ledger.in_use(task.snapshot.devices[i])]
    remedies = []
    for pool in [task.snapshot.pools[p] for p in sorted({d.pool for d in new if d.draws})]:
        offer = next(offer for offer in task.offers if offer.index == pool.devices[0].index)
        for name, resource in pool.resources.items():
            drawn = ledger.drawn[pool.index][name] + sum(
                dict(d.draws).get(name, 0) for d in new if d.pool == pool.index
            )
            if drawn > resource.nano:
                remedies.append(_counter((offer.pool.driver, offer.pool.name), name, drawn, drawn - resource.nano))
    return drop_unneeded(remedies, lambda some: apply_relaxations(inputs, some).fits())


def _counter(pool: tuple[str, str], name: str, wanted: int, missing: int) -> CallRelaxation:
    entry, words = counter_entry(pool, name, wanted, missing)
    counter_set, counter = entry["counterSet"], entry["counter"]

    def change(spec: ManifestContent) -> ManifestContent:
        if (spec["driver"], spec["pool"]["name"]) != pool:
            return spec
        return _counted(spec, lambda s, n, old: entry["needed"] if (s, n) == (counter_set, counter) else old)

    return CallRelaxation(entry, words, lambda i: i.with_slices(change))


def counter_entry(pool: tuple[str, str], name: str, wanted: int, missing: int) -> tuple[ManifestContent, str]:
    """The blocker for a counter that falls short, and the words. ``name`` is "set/counter"; amounts are in nano."""
    counter_set, _, counter = name.rpartition("/")
    shown = [str(Amount(nano, _quantity_format(nano))) for nano in (wanted, missing)]
    entry = {"kind": "counter", "driver": pool[0], "pool": pool[1], "counterSet": counter_set, "counter": counter}
    words = f"with {shown[1]} more of counter {name} in pool {'/'.join(pool)}"
    return {**entry, "needed": shown[0], "missing": shown[1]}, words


def _quantity_format(nano: int) -> Format:
    return Format.BINARY_SI if nano and nano % (2**20 * 10**9) == 0 else Format.DECIMAL_SI


def pools(inputs: CallInput) -> Iterator[CallRelaxation]:
    """Pools that are incomplete: as if the slices there are were all."""
    try:
        task = inputs.task()
    except AllocationError:
        return
    for pool in task.pools if task is not None else ():
        if pool.state is PoolStatus.INCOMPLETE:
            key = pool.driver, pool.name
            entry = {
                "kind": "pool",
                "driver": pool.driver,
                "pool": pool.name,
                "state": pool.state.value,
                "why": pool.why,
            }
            words = f"once pool {pool.title} is complete"
            yield CallRelaxation(entry, words, partial(_complete_pool, key))


def _complete_pool(key: tuple[str, str], inputs: CallInput) -> CallInput:
    specs = [s["spec"] for s in inputs.slices if (s["spec"]["driver"], s["spec"]["pool"]["name"]) == key]
    newest = max(spec["pool"].get("generation") or 0 for spec in specs)
    count = sum((spec["pool"].get("generation") or 0) == newest for spec in specs)

    def change(spec: ManifestContent) -> ManifestContent:
        if (spec["driver"], spec["pool"]["name"]) != key:
            return spec
        return {**spec, "pool": {**spec["pool"], "resourceSliceCount": count}}

    return inputs.with_slices(change)


def reaches(inputs: CallInput) -> Iterator[CallRelaxation]:
    """Pools of other nodes: as if every node reached them."""
    for key in dict.fromkeys((s["spec"]["driver"], s["spec"]["pool"]["name"]) for s in inputs.slices):
        entry = {"kind": "node", "node": inputs.node_name, "driver": key[0], "pool": key[1]}
        yield CallRelaxation(
            entry, f"if node {inputs.node_name} reached pool {'/'.join(key)}", partial(_reach_pool_from_all, key)
        )


def _reach_pool_from_all(key: tuple[str, str], inputs: CallInput) -> CallInput:
    where = ("nodeName", "nodeSelector", "perDeviceNodeSelection", "allNodes")

    def change(spec: ManifestContent) -> ManifestContent:
        if (spec["driver"], spec["pool"]["name"]) != key:
            return spec
        devices = [{k: v for k, v in d.items() if k not in where} for d in spec.get("devices") or ()]
        rest = {k: v for k, v in spec.items() if k not in where}
        return {**rest, "allNodes": True, **({"devices": devices} if devices else {})}

    return inputs.with_slices(change)


def gates(inputs: CallInput) -> Iterator[CallRelaxation]:
    """Features that are off, of those that are on by default."""
    for name in sorted(gate.DEFAULT_GATES - read_gates(inputs.features)):
        change = partial(_switch_on, name)
        yield CallRelaxation({"kind": "feature", "feature": name}, f"with feature {name}", change)


def _switch_on(name: str, inputs: CallInput) -> CallInput:
    return replace(inputs, features=inputs.features | {name})


# -- of what is in use -------------------------------------------------------------------------------------------------


def holders(inputs: CallInput) -> list[tuple[CallRelaxation, DeviceUsage]]:
    """Claims that hold something, and devices that are in use without a claim that is known to hold them."""
    remedies = []
    for position, claim in sorted(enumerate(inputs.claims), key=lambda one: claim_title(one[1])):
        if is_allocated(claim):
            entry = {"kind": "claim", **_name(claim), "priority": 0}
            remedy = CallRelaxation(entry, f"once {claim_title(claim)} is released", partial(_drop_claim, position))
            usage = DeviceUsage()
            with suppress(FieldError):  # all that names a device is added before
                add_allocation(usage, claim["status"]["allocation"], "status.allocation")
            remedies.append((remedy, usage))
    used = [_used(item) for part in inputs.allocated.values() for item in part or ()]
    for where in sorted(set(used)):
        entry = {"kind": "device", **dict(zip(("driver", "pool", "device"), where, strict=True))}
        remedy = CallRelaxation(entry, f"once {'/'.join(where)} is free", partial(_release_holder, where))
        same = {part: [i for i in items or () if _used(i) == where] for part, items in inputs.allocated.items()}
        remedies.append((remedy, read_usage(same, ())))
    return remedies


def _release_holder(where: DeviceId, inputs: CallInput) -> CallInput:
    remaining = {part: [i for i in items or () if _used(i) != where] for part, items in inputs.allocated.items()}
    return replace(inputs, allocated=remaining)


def _used(item: Mapping[str, Any]) -> DeviceId:
    return item["driver"], item["pool"], item["device"]


# -- small things ------------------------------------------------------------------------------------------------------


def _subrequests(
    inputs: CallInput,
) -> Iterator[tuple[int, Mapping[str, Any], tuple[int, int | None, str, ManifestContent]]]:
    for position, claim in inputs.waiting:
        for ask in subrequests_of(claim):
            yield position, claim, ask


def _devices_of(inputs: CallInput) -> set[DeviceId]:
    """The devices of an answer."""
    task, placements = inputs.task(), inputs.placements()
    if task is None:
        return set()
    offers = {offer.index: offer.id for offer in task.offers}
    return {offers[entry.device.index] for placement in placements or () for entry in placement.entries}


def _id(spec: Mapping[str, Any], device: Mapping[str, Any]) -> DeviceId:
    return spec["driver"], spec["pool"]["name"], device["name"]


def _claim(claim: Mapping[str, Any]) -> dict[str, str]:
    return {"claim": claim_title(claim)}


def _name(claim: Mapping[str, Any]) -> dict[str, str]:
    namespace, _, name = claim_title(claim).partition("/")
    return {"namespace": namespace, "name": name}
