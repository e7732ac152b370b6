"""Allocations of resource.k8s.io against exhaustive search, and what must not matter to them. Needs no peer."""

from __future__ import annotations

import json
from copy import deepcopy
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from devalloc_solver import dra
from tests.support import dra_oracle
from tests.support.dra_differential import judge, ours
from tests.support.dra_instances import Instance, instance
from tests.support.dra_random_pools import Manifest
from tests.support.examples import examples

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
INSTANCES = st.randoms(use_true_random=False).map(instance)


@settings(max_examples=examples(24, 0.2), deadline=None, suppress_health_check=SLOW)
@given(one=INSTANCES)
def test_shrinkable_instances_agree_with_exhaustive_search(one: Instance) -> None:
    assert list(judge(one, ours(one), dra_oracle.solve(one))) == []


@settings(max_examples=examples(18, 0.15), deadline=None, suppress_health_check=SLOW)
@given(one=INSTANCES, seed=st.integers(0, 1000))
def test_the_order_of_slices_and_classes_does_not_matter(one: Instance, seed: int) -> None:
    other = deepcopy(one)
    rng = Random(seed)
    for name in ("slices", "classes", "allocatedDevices", "allocatedSharedDeviceIDs", "aggregatedCapacity"):
        rng.shuffle(other["input"][name])
    first, second = ours(one), ours(other)
    assert json.dumps(first.results) == json.dumps(second.results)
    assert (first.outcome, first.node_local) == (second.outcome, second.node_local)


@settings(max_examples=examples(18, 0.15), deadline=None, suppress_health_check=SLOW)
@given(one=INSTANCES)
def test_what_allocated_claims_hold_is_in_use(one: Instance) -> None:
    content = one["input"]
    amounts = {json.dumps(_key(entry)): entry["consumedCapacity"] for entry in content["aggregatedCapacity"]}
    held = [_claim([{"request": "r", **entry} for entry in content["allocatedDevices"]])]
    for share in content["allocatedSharedDeviceIDs"]:
        consumed = amounts.get(json.dumps(_key(share)), {})
        held.append(_claim([{"request": "r", **share, "consumedCapacity": consumed}]))
    features = [name for name, enabled in one["features"].items() if enabled]
    try:
        results = dra.allocate(
            content["node"],
            [*held, *content["claimsToAllocate"]],
            content["classes"],
            content["slices"],
            features=features,
        )
    except dra.AllocationError:
        results = None
    expected = ours(one)
    assert [_devices(result) for result in (results or ())[len(held) :]] == [
        _devices(result) for result in expected.results or ()
    ]


def _devices(result: Manifest) -> list[tuple[str, str, str, str]]:
    """Without share ids, which tell claims apart by their place."""
    entries = result.get("devices", {}).get("results", ())
    return [(entry["request"], entry["driver"], entry["pool"], entry["device"]) for entry in entries]


def _key(entry: Manifest) -> list[str]:
    return [entry["driver"], entry["pool"], entry["device"]]


def _claim(results: list[Manifest]) -> Manifest:
    """A claim that is allocated already."""
    exactly = {"deviceClassName": "any", "allocationMode": "ExactCount", "count": 1}
    return {
        "metadata": {"name": "held", "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}},
        "status": {"allocation": {"devices": {"results": results}}},
    }
