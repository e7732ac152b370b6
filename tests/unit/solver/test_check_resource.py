"""The judge of resource.k8s.io passes what the solver answers, and notices every way in which an answer is wrong."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import cache
from random import Random
from typing import Any
from unittest.mock import Mock

import pytest

from devalloc_solver.check import resource_k8s
from devalloc_solver.check.resource_k8s import cel_results, quick_check
from devalloc_solver.check.resource_k8s.pools import NodeDevice
from devalloc_solver.check.resource_k8s.prior_allocations import PriorUsage
from tests.support.dra_differential import ours, violations
from tests.support.dra_instances import Instance, instance

Results = list[dict[str, Any]]
Mutation = Callable[[Instance, Results, Random], bool]
"""Spoils an instance or its results; False where there is nothing to spoil."""

SEEDS = range(3000, 3200)
MUTATIONS: dict[str, Mutation] = {}


def mutation(act: Mutation) -> Mutation:
    MUTATIONS[act.__name__] = act
    return act


def _entry(results: Results, rng: Random) -> dict[str, Any] | None:
    entries = _entries(results)
    return rng.choice(entries) if entries else None


def _entries(results: Results) -> list[dict[str, Any]]:
    return [entry for result in results for entry in result.get("devices", {}).get("results", ())]


def _manifests(given: Instance, entry: dict[str, Any]) -> list[dict[str, Any]]:
    """The device of an entry, in every slice that has it."""
    return [
        device
        for one in given["input"]["slices"]
        if (one["spec"]["driver"], one["spec"]["pool"]["name"]) == (entry["driver"], entry["pool"])
        for device in one["spec"].get("devices", ())
        if device["name"] == entry["device"]
    ]


def _set(key: str, value: object) -> Mutation:
    """Give an entry another value of a field."""

    def act(given: Instance, results: Results, rng: Random) -> bool:
        entry = _entry(results, rng)
        if entry is None or (entry.get(key) or None) == value:
            return False
        entry[key] = value
        return True

    return act


MUTATIONS["another_device"] = _set("device", "none")
MUTATIONS["another_pool"] = _set("pool", "none")
MUTATIONS["another_driver"] = _set("driver", "none.io")
MUTATIONS["another_request"] = _set("request", "none")
MUTATIONS["other_tolerations"] = _set("tolerations", [{"key": "zz", "operator": "Exists"}])
MUTATIONS["other_conditions"] = _set("bindingConditions", ["zz"])
MUTATIONS["no_conditions"] = _set("bindingFailureConditions", None)
MUTATIONS["no_share"] = _set("shareID", None)
MUTATIONS["other_amounts"] = _set("consumedCapacity", {"m": "7"})


@mutation
def a_device_less(given: Instance, results: Results, rng: Random) -> bool:
    for result in results:
        if result.get("devices", {}).get("results"):
            result["devices"]["results"].pop()
            return True
    return False


@mutation
def a_device_twice(given: Instance, results: Results, rng: Random) -> bool:
    for result in results:
        if result.get("devices", {}).get("results"):
            result["devices"]["results"].append(dict(result["devices"]["results"][0]))
            return True
    return False


@mutation
def a_result_less(given: Instance, results: Results, rng: Random) -> bool:
    results.pop()
    return True


@mutation
def other_admin_access(given: Instance, results: Results, rng: Random) -> bool:
    entry = _entry(results, rng)
    if entry is not None:
        entry["adminAccess"] = not entry.get("adminAccess")
    return entry is not None


@mutation
def a_config_more(given: Instance, results: Results, rng: Random) -> bool:
    config = results[0].setdefault("devices", {}).setdefault("config", [])
    config.append({"source": "FromClass", "opaque": {"driver": "zz", "parameters": {}}})
    return True


@mutation
def a_config_less(given: Instance, results: Results, rng: Random) -> bool:
    return any(result["devices"]["config"].pop() for result in results if result.get("devices", {}).get("config"))


@mutation
def another_place(given: Instance, results: Results, rng: Random) -> bool:
    requirement = {"key": "metadata.name", "operator": "In", "values": ["elsewhere"]}
    results[0]["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": [requirement]}]}
    return True


@mutation
def no_place(given: Instance, results: Results, rng: Random) -> bool:
    return results[0].pop("nodeSelector", None) is not None


@mutation
def in_use(given: Instance, results: Results, rng: Random) -> bool:
    entry = _entry(results, rng)
    if entry is None or entry.get("adminAccess"):
        return False
    given["input"]["allocatedDevices"].append({key: entry[key] for key in ("driver", "pool", "device")})
    return True


@mutation
def a_share_in_use(given: Instance, results: Results, rng: Random) -> bool:
    entry = _entry(results, rng)
    if entry is None or entry.get("adminAccess"):
        return False
    key = {name: entry[name] for name in ("driver", "pool", "device")}
    given["input"]["allocatedSharedDeviceIDs"].append({**key, "shareID": entry.get("shareID", "a")})
    return True


@mutation
def no_capacity_left(given: Instance, results: Results, rng: Random) -> bool:
    entry = _entry(results, rng)
    taken = {name: amount for name, amount in (entry or {}).get("consumedCapacity", {}).items() if amount != "0"}
    if entry is None or entry.get("adminAccess") or not taken:
        return False
    key = {name: entry[name] for name in ("driver", "pool", "device")}
    given["input"]["aggregatedCapacity"].append({**key, "consumedCapacity": dict.fromkeys(taken, "200E")})
    return True


@mutation
def tainted(given: Instance, results: Results, rng: Random) -> bool:
    entry = _entry(results, rng)
    everything = {"operator": "Exists"}
    if entry is None or everything in entry.get("tolerations", ()) or not given["features"]["DeviceTaints"]:
        return False
    for device in _manifests(given, entry):
        device["taints"] = [{"key": "unheard", "effect": "NoExecute"}]
    return True


@mutation
def no_counters_left(given: Instance, results: Results, rng: Random) -> bool:
    entry = _entry(results, rng)
    if entry is None or entry.get("adminAccess"):
        return False
    draws = [
        draw
        for device in _manifests(given, entry)
        for draw in device.get("consumesCounters", ())
        if any(amount["value"] != "0" for amount in draw["counters"].values())
    ]
    held = (entry["driver"], entry["pool"], entry["device"])
    used = given["input"]["allocatedSharedDeviceIDs"]
    if not draws or any((one["driver"], one["pool"], one["device"]) == held for one in used):
        return False
    for one in given["input"]["slices"]:
        for counters in one["spec"].get("sharedCounters", ()):
            counters["counters"] = {name: {"value": "0"} for name in counters["counters"]}
    return True


@mutation
def an_incomplete_pool(given: Instance, results: Results, rng: Random) -> bool:
    entry = _entry(results, rng)
    for one in given["input"]["slices"] if entry is not None else ():
        if (one["spec"]["driver"], one["spec"]["pool"]["name"]) == (entry["driver"], entry["pool"]):
            one["spec"]["pool"]["resourceSliceCount"] += 7
    return entry is not None


@mutation
def a_constraint(given: Instance, results: Results, rng: Random) -> bool:
    devices = given["input"]["claimsToAllocate"][0]["spec"]["devices"]
    devices.setdefault("constraints", []).append({"matchAttribute": "zz.io/none"})
    return bool(results[0].get("devices", {}).get("results"))


@mutation
def a_selector(given: Instance, results: Results, rng: Random) -> bool:
    for one in given["input"]["classes"]:
        one["spec"].setdefault("selectors", []).append({"cel": {"expression": 'device.driver == "none"'}})
    return bool(_entries(results))


@mutation
def a_device_more_for_all(given: Instance, results: Results, rng: Random) -> bool:
    """All devices are asked for, and there is one more that every class takes."""
    every = [
        request["exactly"]
        for claim in given["input"]["claimsToAllocate"]
        for request in claim["spec"]["devices"]["requests"]
        if "exactly" in request
    ]
    wide = [one for one in every if one["deviceClassName"] != "a" and not one.keys() & {"selectors", "capacity"}]
    if not wide:
        return False
    wide[0]["allocationMode"] = "All"
    device = {"name": "more", "attributes": {"ok": {"bool": True}}}
    pool = {"name": "more", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "c.io", "pool": pool, "allNodes": True, "devices": [device]}
    given["input"]["slices"].append({"metadata": {"name": "more"}, "spec": spec})
    return True


@cache
def _answered() -> list[tuple[Instance, Results]]:
    drawn = [instance(Random(seed)) for seed in SEEDS]
    answers = [(one, ours(one).results) for one in drawn]
    return [(one, results) for one, results in answers if results]


@pytest.mark.parametrize(
    ("capacity", "is_share"),
    [
        (None, True),
        ({}, True),
        ({"memory": "0"}, True),
        ({"memory": "1Gi", "cores": "0"}, True),
        ({"memory": "-1"}, False),
        ({"memory": "1Gi", "cores": "-1"}, False),
        ({"memory": "much"}, False),
        ({"memory": "1Gi", 7: "1"}, False),
        (["memory"], False),
    ],
)
def test_a_share_of_unknown_size_holds_all_of_the_device(capacity: object, is_share: bool) -> None:
    device = ("d.io", "p", "g0")
    entry = {"driver": "d.io", "pool": "p", "device": "g0", "shareID": "s1", "consumedCapacity": capacity}
    held = PriorUsage({}, [{"status": {"allocation": {"devices": {"results": [entry]}}}}])
    assert (held.whole, held.shared) == (({}, {device: 1}) if is_share else ({device: 1}, {}))


def test_what_selectors_said_is_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    most = {"MAX_EXPRESSIONS": 3, "MAX_VERDICTS": 4, "MAX_DEVICES": 5}
    for name, number in most.items():
        monkeypatch.setattr(cel_results, name, number)
    results = cel_results.SelectorResults(frozenset())
    devices = [NodeDevice("d.io", "p", {"name": f"g{n}", "attributes": {"n": {"int": n}}}, {}, False) for n in range(8)]
    for number in range(24):
        for position, device in enumerate(devices):
            expression = f"device.attributes['d.io'].n == {number % 8}"
            assert results.matches(expression, device) is (number % 8 == position)
    assert len(results._programs) <= 3
    assert len(results._evaluated) <= 4
    assert len(results._of_devices) <= 5


def test_answers_of_the_solver_pass() -> None:
    assert len(_answered()) > 70
    for given, results in _answered():
        assert violations(given, results) == []


@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_a_spoiled_answer_is_noticed(name: str) -> None:
    spoiled = 0
    for number, (given, results) in enumerate(_answered()):
        other, changed = deepcopy(given), deepcopy(results)
        if MUTATIONS[name](other, changed, Random(number)):
            spoiled += 1
            assert violations(other, changed), (number, given, changed)
    assert spoiled >= 3


@pytest.mark.parametrize("name", [None, *sorted(MUTATIONS)])
def test_the_quick_check_says_yes_only_where_the_rules_find_nothing_wrong(
    name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge, quick = quick_check.PlainAnswers.is_right, []
    monkeypatch.setattr(
        quick_check.PlainAnswers,
        "is_right",
        lambda *given: bool(quick.append(judge(*given))),  # says no, and notes
    )
    for number, (given, results) in enumerate(_answered()):
        other, changed = deepcopy(given), deepcopy(results)
        if name is not None:
            MUTATIONS[name](other, changed, Random(number))
        quick.clear()
        wrong = violations(other, changed)
        assert not (any(quick) and wrong), (number, wrong)


def test_the_quick_check_knows_whole_devices_by_count_class_and_match(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_k8s, "read_claim", Mock(side_effect=AssertionError("the rules were asked")))
    entry = {"request": "r", "driver": "d.io", "pool": "p"}
    draws = [{"counterSet": "c", "counters": {"units": {"value": "1"}}}]
    devices = [{"name": f"g{n}", "attributes": {"numa": {"int": n // 2}}, "consumesCounters": draws} for n in range(3)]
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 2}
    place = {"driver": "d.io", "nodeName": "n1", "pool": pool}
    counters = [{"name": "c", "counters": {"units": {"value": "2"}}}]
    slices = [{"spec": {**place, "devices": devices}}, {"spec": {**place, "sharedCounters": counters}}]
    exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2}
    spec = {"requests": [{"name": "r", "exactly": exactly}], "constraints": [{"matchAttribute": "d.io/numa"}]}
    selector = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    gpu = {"metadata": {"name": "gpu"}, "spec": {"selectors": [{"cel": {"expression": "device.driver == 'd.io'"}}]}}

    def check(*names: str, used: str | None = None) -> list[str]:
        given = [{**entry, "device": name} for name in names]
        result = {"devices": {"results": given}, "nodeSelector": {"nodeSelectorTerms": [selector]}}
        claim = {"metadata": {"name": "x"}, "spec": {"devices": spec}}
        allocated = {"devices": [{"driver": "d.io", "pool": "p", "device": used}]} if used else None
        return resource_k8s.check_results(
            [result], "n1", [claim], [gpu], slices, allocated=allocated, features={"DRAPartitionableDevices"}
        )

    assert check("g0", "g1") == []
    for names, used in ((("g1", "g2"), None), (("g0",), None), (("g0", "g0"), None), (("g0", "g1"), "g1")):
        with pytest.raises(AssertionError, match="the rules were asked"):
            check(*names, used=used)
    with pytest.raises(AssertionError, match="the rules were asked"):
        check("g0", "g1", used="g2")  # which leaves one unit of two
