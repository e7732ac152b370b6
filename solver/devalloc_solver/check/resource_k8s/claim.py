"""The rules for one claim and its result: each request gets what it asks for, of devices that it may have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from devalloc.api.node_rules import node_restrictions_of
from devalloc_solver.check.resource_k8s.cel_results import SelectorResults
from devalloc_solver.check.resource_k8s.pools import DeviceId, NodeDevice, PublishedPools
from devalloc_solver.check.resource_k8s.quantities import UncountableAmount, amounts_to_take, to_nano

Manifest = Mapping[str, Any]

MAX_DEVICES = 32
"""Devices of a claim."""
_NAMES = ("request", "driver", "pool", "device")
"""What each entry of a result has."""


class AnsweredRequest(NamedTuple):
    """A request without alternatives, or the chosen alternative of one."""

    parent: str
    """the request's own name"""
    name: str
    """as results have it: the request's name, or request/alternative"""
    spec: Manifest
    twins: tuple[Manifest, ...] = ()
    """alternatives after it that have the same name, which results cannot tell from it"""

    @property
    def is_admin(self) -> bool:
        return bool(self.spec.get("adminAccess"))

    def is_named(self, names: list[str]) -> bool:
        """Whether a constraint or config with these ``requests`` applies to it."""
        return not names or self.parent in names or self.name in names


class AllocatedResult(NamedTuple):
    """An entry of the result whose request and device exist."""

    request: AnsweredRequest
    device: NodeDevice
    entry: Manifest


class AnsweredClaim(NamedTuple):
    """A claim without allocation, and what it was given."""

    number: int
    claim: Manifest
    result: Manifest
    requests: tuple[AnsweredRequest, ...]
    """the chosen ones, in the claim's order"""
    taken: tuple[AllocatedResult, ...]

    @property
    def title(self) -> str:
        metadata = self.claim.get("metadata") or {}
        return f"claim {self.number} ({metadata.get('namespace', '')}/{metadata.get('name', '')})"


def read_claim(
    number: int, claim: Manifest, result: Manifest, offer: PublishedPools
) -> tuple[AnsweredClaim, list[str]]:
    """What was chosen, and what of the result names nothing that exists."""
    violations: list[str] = []
    entries = (result.get("devices") or {}).get("results") or []
    named = {entry["request"] for entry in entries}
    requests: list[AnsweredRequest] = []
    for spec in _devices(claim).get("requests") or ():
        options = [
            AnsweredRequest(spec["name"], f"{spec['name']}/{sub['name']}", sub)
            for sub in spec.get("firstAvailable") or ()
        ]
        if not options:
            requests.append(AnsweredRequest(spec["name"], spec["name"], spec["exactly"]))
            continue
        chosen = [option for option in options if option.name in named]
        if len({option.name for option in chosen}) == 1:
            chosen = [chosen[0]._replace(twins=tuple(option.spec for option in chosen[1:]))]
        if len(chosen) > 1:
            violations.append(f"request {spec['name']} is given {len(chosen)} of its alternatives")
        elif not chosen and all(option.spec.get("count", 1) for option in options):
            violations.append(f"request {spec['name']} is given none of its alternatives")
        requests += chosen
    taken: list[AllocatedResult] = []
    for entry, request in _match_entries(entries, requests):
        pool = offer.pool(entry["driver"], entry["pool"])
        device = None if pool is None else pool.devices.get(entry["device"])
        if request is None:
            violations.append(f"{_where(entry)} is given to {entry['request']}, and the claim has no such request")
        elif pool is None or device is None:
            violations.append(f"{entry['request']}: the node reaches no device {_where(entry)}")
        elif pool.problem is not None:
            violations.append(f"{entry['request']}: {_where(entry)}: the pool {pool.problem}")
        else:
            taken.append(AllocatedResult(request, device, entry))
    if len(entries) > MAX_DEVICES:
        violations.append(f"has {len(entries)} devices, more than {MAX_DEVICES}")
    return AnsweredClaim(number, claim, result, tuple(requests), tuple(taken)), violations


def _where(entry: Manifest) -> str:
    return "/".join((entry["driver"], entry["pool"], entry["device"]))


def _match_entries(
    entries: list[Manifest], requests: list[AnsweredRequest]
) -> Iterator[tuple[Manifest, AnsweredRequest | None]]:
    """Entries with the request that they are for; requests of one name have theirs one after the other."""
    by_name: dict[str, list[AnsweredRequest]] = {}
    for request in requests:
        by_name.setdefault(request.name, []).append(request)
    if len(by_name) == len(requests):
        for entry in entries:
            same = by_name.get(entry["request"])
            yield entry, same[0] if same else None
        return
    given: dict[str, int] = {}
    for entry in entries:
        name = entry["request"]
        same, number = by_name.get(name), given.get(name, 0)
        if same is not None and len(same) > 1 and number == same[0].spec.get("count", 1):
            del same[0]
            number = 0
        given[name] = number + 1
        yield entry, same[0] if same else None


def request_violations(
    answered: AnsweredClaim,
    offer: PublishedPools,
    classes: Mapping[str, Manifest],
    verdicts: SelectorResults,
    features: Container[str],
) -> list[str]:
    """What is wrong with what the requests were given, each on its own."""
    violations: list[str] = []
    for request in answered.requests:
        own_devices = [one for one in answered.taken if one.request is request]
        readings = []
        for spec in (request.spec, *request.twins):
            device_class = classes.get(spec.get("deviceClassName") or "")
            if device_class is None:
                readings.append(["its class does not exist"])
            else:
                one = request if spec is request.spec else request._replace(spec=spec)
                judge = _RequestJudge(one, device_class, verdicts, features)
                readings.append(list(_violations(own_devices, judge, offer)))
        violations += [f"{request.name}: {sentence}" for sentence in min(readings, key=len)]
    return violations


def _violations(own_devices: list[AllocatedResult], judge: _RequestJudge, offer: PublishedPools) -> Iterator[str]:
    spec = judge.request.spec
    for key, times in duplicate_devices([one.device.id for one in own_devices]):
        yield f"has {'/'.join(key)} {times} times"
    if spec.get("allocationMode", "ExactCount") == "All":
        yield from _all_violations(own_devices, judge, offer)
    elif len(own_devices) != spec.get("count", 1):
        yield f"has {len(own_devices)} devices instead of {spec.get('count', 1)}"
    for one in own_devices:
        if not judge.is_plainly_right(one):
            for sentence in judge.violations(one):
                yield f"{'/'.join(one.device.id)} {sentence}"


def duplicate_devices(given: Sequence[DeviceId]) -> list[tuple[DeviceId, int]]:
    """Devices that are there more than once, and how often."""
    if len({*given}) == len(given):
        return []
    return [(key, times) for key, times in Counter(given).items() if times > 1]


def _all_violations(own_devices: list[AllocatedResult], judge: _RequestJudge, offer: PublishedPools) -> Iterator[str]:
    given = {one.device.id for one in own_devices}
    wanted = set()
    for pool in offer.pools():
        if pool.problem is not None:
            yield f"asks for all devices, and a pool {pool.problem}"
            continue
        wanted |= {device.id for device in pool.devices.values() if judge.wants(device)}
    if not wanted:
        yield "asks for all devices, and there are none"
    for lacking in sorted(wanted - given):
        yield f"asks for all devices, and lacks {'/'.join(lacking)}"


class _RequestJudge:
    """What one request says of single devices."""

    def __init__(
        self, request: AnsweredRequest, device_class: Manifest, verdicts: SelectorResults, features: Container[str]
    ) -> None:
        spec = request.spec
        self.request, self.verdicts = request, verdicts
        selectors = (*((device_class.get("spec") or {}).get("selectors") or ()), *(spec.get("selectors") or ()))
        self.expressions = [selector["cel"]["expression"] for selector in selectors]
        self.requested: Mapping[str, object] = (spec.get("capacity") or {}).get("requests") or {}
        self.tolerations = spec.get("tolerations") or []
        self.is_ordinary = not (self.requested or self.tolerations or request.is_admin)
        self.taints, self.binding = "DRADeviceTaints" in features, "DRADeviceBindingConditions" in features
        self.partitions, self.sharing = "DRAPartitionableDevices" in features, "DRAConsumableCapacity" in features
        self.fractional = "DRAFractionalCapacityRange" in features

    def wants(self, device: NodeDevice) -> bool:
        """Whether an ``All`` request is about this device, in use or not."""
        if not self._is_selected(device):
            return False
        try:
            return not self.sharing or self._amounts(device) is not None
        except UncountableAmount:
            return True

    def is_plainly_right(self, one: AllocatedResult) -> bool:
        """Whether the entry says nothing but which device, which matches, and there is nothing else to say of it."""
        return (
            self.is_ordinary
            and one.device.is_ordinary
            and len(one.entry) == len(_NAMES)
            and self._is_selected(one.device)
        )

    def violations(self, one: AllocatedResult) -> Iterator[str]:
        device, manifest = one.device, one.device.manifest
        if not self._is_selected(device):
            yield "does not match the selectors, or its conditions are not supported"
        if self.taints:
            for taint in manifest.get("taints") or ():
                if taint.get("effect") in ("NoSchedule", "NoExecute") and not self._tolerates(taint):
                    yield f"has the taint {taint['key']}, which is not tolerated"
        if device.skips_operations:
            yield "skips operations of the node, which is not supported"
        if not self.partitions and manifest.get("consumesCounters"):
            yield "draws on counters, which are not supported"
        if bool(one.entry.get("adminAccess")) is not self.request.is_admin:
            yield "does not have the request's adminAccess"
        if (one.entry.get("tolerations") or []) != self.tolerations:
            yield "does not have the request's tolerations"
        for name in ("bindingConditions", "bindingFailureConditions"):
            if (one.entry.get(name) or []) != ((manifest.get(name) if self.binding else None) or []):
                yield f"does not have the device's {name}"
        yield from self._share_violations(one)

    def _share_violations(self, one: AllocatedResult) -> Iterator[str]:
        if not self.sharing:
            if one.entry.get("shareID") or one.entry.get("consumedCapacity"):
                yield "is shared, which is not supported"
            return
        try:
            amounts = self._amounts(one.device)
        except UncountableAmount as error:
            yield f"cannot be accounted for: {error}"
            return
        if amounts is None:
            yield "does not have the requested capacity"
            return
        consumed = {name: to_nano(amount) for name, amount in (one.entry.get("consumedCapacity") or {}).items()}
        if not one.device.manifest.get("allowMultipleAllocations"):
            amounts = {}
            if one.entry.get("shareID"):
                yield "has a share, and is not shareable"
        elif not one.entry.get("shareID"):
            yield "is shareable, and has no share"
        if consumed != amounts:
            yield f"consumes {consumed} instead of {amounts} (nano units)"

    def _is_selected(self, device: NodeDevice) -> bool:
        if not self.binding and device.manifest.get("bindingConditions"):
            return False
        return all(self.verdicts.matches(expression, device) for expression in self.expressions)

    def _amounts(self, device: NodeDevice) -> dict[str, int] | None:
        capacities = device.manifest.get("capacity") or {}
        return amounts_to_take(self.requested, capacities, fractional=self.fractional)

    def _tolerates(self, taint: Manifest) -> bool:
        return any(_is_tolerated(taint, one) for one in self.tolerations)


def _is_tolerated(taint: Manifest, toleration: Manifest) -> bool:
    for name in ("effect", "key"):
        if toleration.get(name) and toleration[name] != taint.get(name):
            return False
    if (toleration.get("operator") or "Equal") == "Equal":
        return bool((toleration.get("value") or "") == (taint.get("value") or ""))
    return bool(toleration["operator"] == "Exists")


def _devices(claim: Manifest) -> Manifest:
    devices: Manifest = (claim.get("spec") or {}).get("devices") or {}
    return devices


def constraint_violations(answered: AnsweredClaim, features: Container[str]) -> Iterator[str]:
    """Violated matchAttribute and distinctAttribute constraints; a list stands for each of its values."""
    devices = (answered.claim.get("spec") or {}).get("devices") or {}
    for constraint in devices.get("constraints") or ():
        name = constraint.get("matchAttribute") or constraint.get("distinctAttribute")
        requests = constraint.get("requests") or []
        lists = "DRAListTypeAttributes" in features
        values = [one.device.values(name, lists=lists) for one in answered.taken if one.request.is_named(requests)]
        if not all(values):
            yield f"{name}: a device does not have it"
        elif constraint.get("matchAttribute"):
            if values and not frozenset.intersection(*values):
                yield f"{name}: no value is on all devices"
        elif any(one & other for one, other in combinations(values, 2)):
            yield f"{name}: two devices have the same value"


Requirement = tuple[str, str, str, tuple[str, ...]]
"""kind, key, operator, values"""


def is_allowed(claim: Manifest, offer: PublishedPools) -> bool:
    """Whether a claim may have devices on the node: said here again, so that an error of the solver is found."""
    node = offer.node["metadata"]["name"]
    return all(node in named if rule.is_only else node not in named for rule, named in node_restrictions_of(claim))


def node_selector_violations(answered: AnsweredClaim, offer: PublishedPools) -> Iterator[str]:
    """One node when a device is local to it or binds to it, else what the selectors of all devices demand."""
    wanted: set[Requirement] = set()
    for one in answered.taken:
        place = one.device.place
        if place.get("nodeName") or one.device.manifest.get("bindsToNode"):
            name = offer.node["metadata"]["name"]
            own = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}
            if answered.result.get("nodeSelector") == {"nodeSelectorTerms": [own]}:
                return
            wanted = {("matchFields", "metadata.name", "In", (name,))}
            break
        for term in (place.get("nodeSelector") or {}).get("nodeSelectorTerms") or ():
            wanted |= _requirements(term)
    terms = (answered.result.get("nodeSelector") or {}).get("nodeSelectorTerms") or []
    given = {requirement for term in terms for requirement in _requirements(term)}
    if given != wanted or len(terms) > 1:
        yield f"has the node selector {sorted(given)} in {len(terms)} terms instead of {sorted(wanted)}"


def _requirements(term: Manifest) -> set[Requirement]:
    return {
        (kind, one["key"], one["operator"], tuple(sorted(set(_values(one)))))
        for kind in ("matchFields", "matchExpressions")
        for one in term.get(kind) or ()
    }


def _values(requirement: Manifest) -> Iterable[str]:
    values: Iterable[str] = requirement.get("values") or ()
    return values


def config_violations(answered: AnsweredClaim, classes: Mapping[str, Manifest]) -> Iterator[str]:
    """Configurations that are missing, too many, or for the wrong requests."""
    given = [_entry(one, one.get("source"), one.get("requests")) for one in _given_configs(answered)]
    wanted = _expected_configs(answered, classes)
    if given != wanted:
        yield f"has the configurations {given} instead of {wanted}"


def _given_configs(answered: AnsweredClaim) -> list[Manifest]:
    return (answered.result.get("devices") or {}).get("config") or []


def _expected_configs(answered: AnsweredClaim, classes: Mapping[str, Manifest]) -> list[Manifest]:
    entries: list[Manifest] = []
    by_class: dict[str, list[str]] = {}
    for request in answered.requests:
        by_class.setdefault(request.spec.get("deviceClassName") or "", []).append(request.name)
    for name, requests in by_class.items():
        spec = (classes.get(name) or {}).get("spec") or {}
        entries += [_entry(one, "FromClass", requests) for one in spec.get("config") or ()]
    devices = (answered.claim.get("spec") or {}).get("devices") or {}
    for one in devices.get("config") or ():
        named = one.get("requests") or []
        if any(request.is_named(named) for request in answered.requests) or not named:
            entries.append(_entry(one, "FromClaim", named))
    for one in entries:
        if all(request.is_named(one["requests"]) for request in answered.requests):
            one["requests"].clear()
    return entries


def _entry(config: Manifest, source: object, requests: object) -> Manifest:
    named = list(requests) if isinstance(requests, list) else []
    return {"source": source, "requests": named, "opaque": config.get("opaque")}
