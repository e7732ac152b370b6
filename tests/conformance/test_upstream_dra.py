"""Cases of Kubernetes' own allocator: its outcome, its number of devices per request, and an answer the check takes.

The cases of the kubernetes project (Apache-2.0) are in ``tests/data``; our own are in ``cases/dra``, in the same form.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from devalloc_solver.dra import AllocationError, allocate
from tests.support import fast_yaml
from tests.support.reference_data import resource_claim_cases

OWN = Path(__file__).parent / "cases" / "dra"
CASES = [
    *resource_claim_cases(),
    *(case for path in sorted(OWN.glob("*.yaml")) for case in fast_yaml.load(path.read_text())["cases"]),
]

Result = dict[str, Any]


def ask(case: dict[str, Any]) -> list[Result] | None:
    given = case["input"]
    held = {
        "devices": given.get("allocatedDevices") or [],
        "shares": given.get("allocatedSharedDeviceIDs") or [],
        "consumedCapacity": given.get("aggregatedCapacity") or [],
    }
    return allocate(
        given["node"],
        given["claimsToAllocate"] or [],
        given["classes"] or [],
        given["slices"] or [],
        allocated=held,
        features=[name for name, on in case["features"].items() if on],
    )


def devices(result: Result) -> list[Result]:
    results: list[Result] = result["devices"].get("results") or []
    return results


def counts(results: list[Result]) -> list[Counter[str]]:
    return [Counter(one["request"] for one in devices(result)) for result in results]


def identities(results: list[Result]) -> list[list[tuple[str, ...]]]:
    return [
        sorted(tuple(one[k] for k in ("request", "driver", "pool", "device")) for one in devices(result))
        for result in results
    ]


def plain(value: Any) -> Any:
    """Without share ids, times and fields that say nothing, lists in one order."""
    if isinstance(value, dict):
        fields = {key: plain(inner) for key, inner in value.items() if key not in ("shareID", "allocationTimestamp")}
        return {key: inner for key, inner in fields.items() if inner not in (None, False, "", [], {})}
    if isinstance(value, list):
        return sorted((plain(inner) for inner in value), key=lambda inner: json.dumps(inner, sort_keys=True))
    return value


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_outcome_is_upstreams(case: dict[str, Any]) -> None:
    expected = case["expected"]
    if expected["outcome"] == "error":
        with pytest.raises(AllocationError) as caught:
            ask(case)
        assert caught.value.node_local is bool(expected["errorIsNodeLocal"])
        return

    results = ask(case)

    assert (results is not None) == (expected["outcome"] == "allocated")
    if results is not None and expected.get("results"):
        assert counts(results) == counts(expected["results"])
        if identities(results) == identities(expected["results"]):
            assert plain(results) == plain(expected["results"])


def test_cases_of_both_sources_are_there() -> None:
    assert len(resource_claim_cases()) >= 126
    assert len(CASES) >= len(resource_claim_cases()) + 6
