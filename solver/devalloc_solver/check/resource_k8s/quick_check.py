"""A quick check that says yes to most answers: whole devices of one node by count, class and selectors, matched or not.

It never says no: what is not plainly right is judged by the rules themselves, which also say what is wrong.
"""

from __future__ import annotations

import marshal
from collections.abc import Container, Mapping
from typing import Any, NamedTuple

from devalloc_solver.check.resource_k8s.cel_results import SelectorResults
from devalloc_solver.check.resource_k8s.claim import MAX_DEVICES, is_allowed
from devalloc_solver.check.resource_k8s.pools import DeviceId, NodeDevice, PublishedPools
from devalloc_solver.check.resource_k8s.prior_allocations import PriorUsage
from devalloc_solver.check.resource_k8s.usage import counter_violations

Manifest = Mapping[str, Any]

MAX_SPECS = 4_096
"""Specs remembered; when there are more, all are forgotten."""
MAX_SPEC_SIZE = 16_384
"""Bytes of a spec that is remembered; larger ones are not plain."""

_REQUEST_FIELDS = {"name", "exactly"}
_EXACTLY_FIELDS = {"deviceClassName", "allocationMode", "count", "selectors"}
_CONSTRAINT_FIELDS = {"matchAttribute", "requests"}
_ENTRY_FIELDS = {"request", "driver", "pool", "device"}


class _Terms(NamedTuple):
    """What a plain spec asks for, with the classes as they are."""

    counts: Mapping[str, int]
    """name of a request -> devices"""
    expressions: Mapping[str, tuple[str, ...]]
    """name of a request -> what each of its devices must match"""
    matches: tuple[tuple[str, frozenset[str]], ...]
    """(attribute, names of the requests whose devices have one value of it in common)"""


class PlainAnswers:
    """Knows plain specs, as long as classes stay. What it remembers depends on nothing but its key, and is bounded."""

    def __init__(self, verdicts: SelectorResults, features: Container[str]) -> None:
        self._verdicts = verdicts
        self._partitions = "DRAPartitionableDevices" in features
        self._classes: Mapping[str, Manifest] | None = None
        self._specs: dict[bytes, _Terms | None] = {}

    def is_right(
        self,
        claim: Manifest,
        result: Manifest,
        offer: PublishedPools,
        held: PriorUsage,
        classes: Mapping[str, Manifest],
    ) -> bool:
        """Whether an answer is right, for certain, on its own. Raises budget.OutOfTime."""
        devices = result.get("devices")
        if result.keys() != {"devices", "nodeSelector"} or type(devices) is not dict or devices.keys() != {"results"}:
            return False
        if not is_allowed(claim, offer):
            return False
        terms = self._terms(claim.get("spec"), classes)
        return terms is not None and self._is_right(terms, devices["results"], result["nodeSelector"], offer, held)

    def _is_right(
        self, terms: _Terms, entries: list[Manifest], selector: Manifest, offer: PublishedPools, held: PriorUsage
    ) -> bool:
        left = {**terms.counts}
        given: dict[DeviceId, tuple[str, NodeDevice]] = {}
        drawing: dict[DeviceId, NodeDevice] = {}
        whole, shared, matches = held.whole, held.shared, self._verdicts.matches
        pool_id, pool, has_draws = ("", ""), None, False
        for entry in entries:
            name = entry["request"]
            if pool_id != (entry["driver"], entry["pool"]):
                pool_id = entry["driver"], entry["pool"]
                pool, has_draws = offer.pool(*pool_id), held.has_draws(*pool_id)
            device = None if pool is None or pool.problem is not None else pool.devices.get(entry["device"])
            if device is None or name not in left or entry.keys() != _ENTRY_FIELDS:
                return False
            key = device.id
            if key in given or key in whole or key in shared or not (device.is_simple and device.place.get("nodeName")):
                return False
            for expression in terms.expressions[name]:
                if not matches(expression, device):
                    return False
            left[name] -= 1
            given[key] = name, device
            if has_draws or "consumesCounters" in device.manifest:
                drawing[key] = device
        if any(left.values()) or not 0 < len(given) <= MAX_DEVICES:
            return False
        if drawing and (not self._partitions or any(counter_violations(drawing, offer, held))):
            return False
        for attribute, names in terms.matches:
            own = [device.values(attribute, lists=False) for name, device in given.values() if name in names]
            if not own or not frozenset.intersection(*own):
                return False
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [offer.node["metadata"]["name"]]}]}
        return selector == {"nodeSelectorTerms": [term]}

    def _terms(self, spec: Any, classes: Mapping[str, Manifest]) -> _Terms | None:
        if classes is not self._classes:
            self._classes = classes
            self._specs.clear()
        try:
            key = marshal.dumps(spec, 0)
        except ValueError:
            return None
        if len(key) > MAX_SPEC_SIZE:
            return None
        if key not in self._specs:
            if len(self._specs) >= MAX_SPECS:
                self._specs.clear()
            self._specs[key] = _read_terms(spec, classes)
        return self._specs[key]


def _read_terms(spec: object, classes: Mapping[str, Manifest]) -> _Terms | None:
    """None for a spec that is not plain."""
    devices = spec.get("devices") if isinstance(spec, Mapping) else None
    if not isinstance(devices, Mapping) or not devices.keys() <= {"requests", "constraints"}:
        return None
    counts: dict[str, int] = {}
    expressions: dict[str, tuple[str, ...]] = {}
    for request in devices.get("requests") or ():
        exactly, name = request.get("exactly"), request.get("name")
        if request.keys() != _REQUEST_FIELDS or name in counts or not exactly.keys() <= _EXACTLY_FIELDS:
            return None
        of_class = (classes.get(exactly.get("deviceClassName") or "") or {}).get("spec")
        count = exactly.get("count")
        if exactly.get("allocationMode") != "ExactCount" or type(count) is not int or count < 1:
            return None
        if of_class is None or of_class.get("config"):
            return None
        selectors = [*(of_class.get("selectors") or ()), *(exactly.get("selectors") or ())]
        counts[name], expressions[name] = count, tuple([one["cel"]["expression"] for one in selectors])
    matches = []
    for constraint in devices.get("constraints") or ():
        if not constraint.keys() <= _CONSTRAINT_FIELDS or not constraint.get("matchAttribute"):
            return None
        matches.append((constraint["matchAttribute"], frozenset(constraint.get("requests") or counts)))
    return _Terms(counts, expressions, tuple(matches))
