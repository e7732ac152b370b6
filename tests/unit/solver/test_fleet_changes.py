"""What a change costs a fleet: what depends on it, and not what else there is. Calls are counted, and not seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from devalloc.api.meta import DEVALLOC
from devalloc_solver import Fleet, solve_manifests
from devalloc_solver.dialects.device_claims.fleet_rules import DeviceClaimRules
from tests.support.call_count import calls
from tests.support.fleet_manifests import gpu_claim, gpu_class, gpu_pool
from tests.support.manifests import config, config_reference

Object = dict[str, Any]


def machine(number: int, team: str = "a") -> Object:
    """A machine that no class or claim has to do with."""
    metadata = {"name": f"m-{number}", "namespace": "team", "labels": {"team": team}}
    spec = {"cpu": {"min": 1, "max": 1}, "memory": {"min": "1Gi", "max": "1Gi"}, "disk": "4Gi"}
    return {"apiVersion": DEVALLOC, "kind": "VirtualMachine", "metadata": metadata, "spec": spec}


def calls_of_update(others: list[Object], changed: Object) -> int:
    fleet = Fleet.from_manifests([gpu_pool(), gpu_class(), *others])
    fleet.update(changed)  # models are built, patterns compiled
    assert fleet.allocate(gpu_claim("a"))["allocated"]
    fleet.release("default", "a")
    return calls(lambda: (fleet.update(changed), fleet.allocate(gpu_claim("a"))))


@pytest.mark.parametrize("make", [machine, lambda number: config(f"c-{number}")], ids=["machines", "configurations"])
def test_one_of_1500_costs_as_much_as_one_of_100(make: Callable[[int], Object]) -> None:
    few, many = (calls_of_update([make(number) for number in range(count)], make(7)) for count in (100, 1500))
    assert abs(many - few) <= few // 20


def test_classes_are_read_once_for_all_changes_of_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet.from_manifests([gpu_pool(), gpu_class()])
    renewals: list[object] = []
    renew = DeviceClaimRules.renewed

    def noted(rules: DeviceClaimRules, problem_input: Any) -> DeviceClaimRules:
        renewals.append(problem_input)
        return renew(rules, problem_input)

    monkeypatch.setattr(DeviceClaimRules, "renewed", noted)
    for number in range(20):
        fleet.update({**gpu_class(), "metadata": {"name": f"more-{number}"}})
        fleet.update(machine(number))
    assert fleet.allocate(gpu_claim("a"))["allocated"]
    assert len(renewals) == 1


def test_a_configuration_counts_as_soon_as_it_comes_changes_or_goes() -> None:
    claim = gpu_claim("a")
    claim["spec"]["claims"][0]["configs"] = [config_reference("c")]
    fleet = Fleet.from_manifests([gpu_pool(), gpu_class()])
    steps: list[Callable[[], object]] = [
        lambda: None,
        lambda: fleet.update(config("c")),
        lambda: fleet.update({**config("c"), "spec": {"trust": True}}),
        lambda: fleet.delete(config("c")),
        lambda: fleet.update(config("c")),
    ]
    now: list[list[Object]] = [[], [config("c")], [{**config("c"), "spec": {"trust": True}}], [], [config("c")]]
    for step, there in zip(steps, now, strict=True):
        step()
        cold = solve_manifests([gpu_pool(), gpu_class(), *there, claim])["claims"][0]
        assert fleet.allocate(claim) == cold
        assert cold["allocated"] is bool(there)
        if cold["allocated"]:
            fleet.delete(claim)


def test_a_machine_is_no_configuration_in_a_fleet_and_in_a_solve_from_scratch() -> None:
    claim = gpu_claim("a", namespace="team")
    claim["spec"]["claims"][0]["configs"] = [{"apiVersion": DEVALLOC, "kind": "VirtualMachine", "name": "m-1"}]
    documents = [gpu_pool(), gpu_class(), machine(1)]
    cold = solve_manifests([*documents, claim])["claims"][0]
    assert cold["reason"] == "ConfigNotFound"
    assert Fleet.from_manifests(documents).allocate(claim) == cold


def test_what_is_wrong_with_a_machine_is_a_problem_of_each_answer() -> None:
    wrong = {**machine(1), "spec": {"cpu": "many"}}
    documents = [gpu_pool(), gpu_class(), wrong]
    problems = solve_manifests([*documents, gpu_claim("a")])["problems"]
    assert problems
    assert Fleet.from_manifests(documents).allocate_all([gpu_claim("a")])["problems"] == problems
