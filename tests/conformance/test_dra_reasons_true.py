"""Reasons of resource.k8s.io are true: without its blockers ``allocate`` succeeds, with any one of them it does not.

What the blockers name is done to the manifests by hand here, and not by the code that found them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import combinations
from typing import Any

import pytest

from devalloc_solver import dra
from tests.support.dra_builders import ANY, claim, counter_slice, device, devices, request, slice_
from tests.support.reference_data import resource_claim_cases

Content = dict[str, Any]


def _corpus() -> Iterator[Any]:
    for case in resource_claim_cases():
        given, gates = case["input"], [name for name, on in case["features"].items() if on]
        if case["expected"]["outcome"] == "not-allocated" and given["claimsToAllocate"]:
            in_use = {
                "devices": given["allocatedDevices"] or [],
                "shares": given["allocatedSharedDeviceIDs"] or [],
                "consumedCapacity": given["aggregatedCapacity"] or [],
            }
            claims = [_with_names_of_its_own(claim) for claim in given["claimsToAllocate"]]
            content = {"node": given["node"], "claims": claims, "classes": given["classes"] or []}
            content |= {"slices": given["slices"] or [], "allocated": in_use, "features": gates}
            yield pytest.param(content, id=case["name"])


def _with_names_of_its_own(claim: Content) -> Content:
    """The API lets no two requests have one name; a case of the suite does."""
    claim = deepcopy(claim)
    requests = claim["spec"]["devices"]["requests"]
    for number, one in enumerate(requests):
        if any(other["name"] == one["name"] for other in requests[:number]):
            one["name"] += f"-{number}"
    return claim


HELD = {"driver": "gpu.io", "pool": "p", "device": "a"}
HALVES = [device(f"h{i}", counters={"s": {"m": "6"}}) for i in range(2)]
OVERDRAWING = [
    device("a", counters={"s": {"m": "6"}}),
    *(device(name, {"small": True}, counters={"s": {"n": "1"}}) for name in "bc"),
]
"""Nothing of the pool is to be had while its first device is in use."""
TAINT = {"key": "k", "value": "v", "effect": "NoSchedule"}


def _call(*claims: Content, slices: Sequence[Content], **more: Any) -> Content:
    content = {"node": "n1", "claims": list(claims), "classes": [ANY], "slices": list(slices)}
    return content | {"allocated": {}, "features": None} | more


@pytest.mark.parametrize("content", [*_corpus()])
def test_corpus(content: Content) -> None:
    _judge(content)


@pytest.mark.parametrize(
    ("kinds", "content"),
    [
        (["amount"], _call(claim(request("r", 5)), slices=[slice_("s", devices("a", "b", "c"))])),
        (
            ["amount", "device"],
            _call(claim(request("r", 5)), slices=[slice_("s", devices("a", "b"))], allocated={"devices": [HELD]}),
        ),
        (
            ["counter"],
            _call(
                claim(request("r", 2)),
                slices=[counter_slice("c", {"s": {"m": "10"}}, count=2), slice_("s", HALVES, count=2)],
            ),
        ),
        (
            ["taint"],
            _call(claim(request("r", 2)), slices=[slice_("s", [device("a", taints=[TAINT]), *devices("b")])]),
        ),
        (["device"], _call(claim(request()), slices=[slice_("s", devices("a"))], allocated={"devices": [HELD]})),
        (
            ["amount", "device"],
            _call(
                claim(request("r", 3, "'small' in device.attributes['gpu.io']")),
                slices=[counter_slice("c", {"s": {"m": "5", "n": "5"}}, count=2), slice_("s", OVERDRAWING, count=2)],
                allocated={"devices": [HELD]},
            ),
        ),
        (["selector"], _call(claim(request("r", 1, "false")), slices=[slice_("s", devices("a"))])),
        (
            ["request"],
            _call(claim(request("r", 1), request("t", 1), request("u", 1)), slices=[slice_("s", devices("a", "b"))]),
        ),
        (["member"], _call(claim(request()), claim(request()), slices=[slice_("s", devices("a"))])),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_kinds(kinds: list[str], content: Content) -> None:
    assert [blocker["kind"] for blocker in _judge(content)] == kinds


def test_what_fits_has_no_reason() -> None:
    content = _call(claim(request()), slices=[slice_("s", devices("a"))])
    assert dra.explain(**content)["reason"] is None


def _judge(content: Content) -> list[Content]:
    explanation = dra.explain(**content)
    blockers: list[Content] = explanation["blockers"]
    assert explanation["reason"], explanation
    assert blockers, explanation
    assert _fits(_remedied(content, blockers)), explanation["message"]
    for size in range(len(blockers)):
        for part in combinations(blockers, size):
            assert not _fits(_remedied(content, part)), (explanation["message"], "and this is enough:", part)
    return blockers


def _fits(content: Content) -> bool:
    try:
        return dra.allocate(**content) is not None
    except dra.AllocationError:
        return False


# -- what blockers name, done by hand ------------------------------------------------------------------------------


def _remedied(content: Content, blockers: Sequence[Mapping[str, Any]]) -> Content:
    changed = deepcopy(content)
    gone: list[tuple[list[Any], Any]] = []
    for blocker in blockers:
        match blocker["kind"]:
            case "request" | "constraint":
                listed, index = _listed(changed, blocker)
                gone.append((listed, listed[index]))
            case "member" | "claim":
                gone.append((changed["claims"], next(c for c in changed["claims"] if _names(c, blocker))))
            case "amount":
                _at(changed, blocker["path"].removesuffix(".count"), blocker)["count"] = int(blocker["most"])
            case "capacity":
                path = blocker["path"].partition(".capacity.")[0]
                del _at(changed, path, blocker)["capacity"]["requests"][blocker["capacity"]]
            case "selector":
                _at(changed, blocker["path"].removesuffix(".selectors"), blocker)["selectors"] = []
            case "class":
                for one in changed["classes"]:
                    if one["metadata"]["name"] == blocker["deviceClassName"]:
                        one["spec"] = {**one["spec"], "selectors": []}
            case "feature":
                changed["features"] = [*changed["features"], blocker["feature"]]
            case "device":
                where = {field: blocker[field] for field in ("driver", "pool", "device")}
                for part, items in changed["allocated"].items():
                    changed["allocated"][part] = [i for i in items if not where.items() <= i.items()]
            case _:
                _supply(changed["slices"], blocker, changed["node"])
    for listed, item in gone:
        listed[:] = [other for other in listed if other is not item]
    return changed


def _names(content: Mapping[str, Any], blocker: Mapping[str, Any]) -> bool:
    metadata = content["metadata"]
    return (metadata.get("namespace") or "default", metadata["name"]) == (blocker["namespace"], blocker["name"])


def _claim_of(content: Content, blocker: Mapping[str, Any]) -> Content:
    namespace, _, name = blocker["claim"].partition("/")
    return next(c for c in content["claims"] if _names(c, {"namespace": namespace, "name": name}))


def _listed(content: Content, blocker: Mapping[str, Any]) -> tuple[list[Any], int]:
    """The list of a claim, and the index, that a path ends with."""
    path, _, index = blocker["path"].rstrip("]").rpartition("[")
    return _at(content, path, blocker), int(index)


def _at(content: Content, path: str, blocker: Mapping[str, Any]) -> Any:
    value: Any = _claim_of(content, blocker)
    for part in path.split("."):
        name, _, index = part.rstrip("]").partition("[")
        value = value[name][int(index)] if index else value[name]
    return value


def _supply(slices: Sequence[Content], blocker: Mapping[str, Any], node: Any) -> None:
    specs = [
        s["spec"]
        for s in slices
        if (s["spec"]["driver"], s["spec"]["pool"]["name"]) == (blocker["driver"], blocker["pool"])
    ]
    assert specs
    match blocker["kind"]:
        case "taint":
            named = {field: blocker[field] for field in ("key", "value", "effect") if field in blocker}
            for one in (d for spec in specs for d in spec.get("devices") or () if d["name"] == blocker["device"]):
                one["taints"] = [t for t in one["taints"] if t != named]
        case "counter":
            for counters in (s for spec in specs for s in spec.get("sharedCounters") or ()):
                if counters["name"] == blocker["counterSet"]:
                    counters["counters"][blocker["counter"]]["value"] = blocker["needed"]
        case "pool":
            newest = max(spec["pool"].get("generation", 0) for spec in specs)
            for spec in specs:
                spec["pool"]["resourceSliceCount"] = sum(s["pool"].get("generation", 0) == newest for s in specs)
        case "node":
            name = node if isinstance(node, str) else node["metadata"]["name"]
            for spec in specs:
                for field in ("nodeSelector", "allNodes", "perDeviceNodeSelection"):
                    spec.pop(field, None)
                spec["nodeName"] = name
        case kind:
            raise AssertionError(f"this test cannot take away a {kind}")
