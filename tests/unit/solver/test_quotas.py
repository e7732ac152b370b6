"""ResourceQuotas count in the library as they do in `devalloc up`, or it is said that they do not."""

from __future__ import annotations

from typing import Any

import pytest

from devalloc_solver import Fleet, gate, quota, solve_manifests
from devalloc_solver.reasons import SEARCHING
from tests.support.shell import claim, device_class, pool

QUOTA = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "few", "namespace": "default"},
    "spec": {"hard": {"gpu.deviceclass.devmgmtproto.k8s.io/devices": "1"}},
}


def reasons(answer: dict[str, Any]) -> dict[str, str | None]:
    return {one["name"]: one["reason"] for one in answer["claims"]}


def test_a_claim_over_its_quota_gets_nothing() -> None:
    answer = solve_manifests([pool(), device_class(), claim("a"), claim("b"), QUOTA])

    assert reasons(answer) == {"a": None, "b": "QuotaExceeded"}
    assert answer["problems"] == []


def test_a_quota_of_another_namespace_counts_for_nobody_here() -> None:
    other = {**QUOTA, "metadata": {"name": "few", "namespace": "team-a"}}

    assert reasons(solve_manifests([pool(), device_class(), claim("a"), claim("b"), other])) == {"a": None, "b": None}


def test_what_is_malformed_beside_a_quota_is_reported_and_costs_nothing_else() -> None:
    answer = solve_manifests([pool(), device_class(), claim("a"), QUOTA, 5, {"kind": "DeviceClaim", "metadata": 3}])  # type: ignore[list-item]

    assert reasons(answer) == {"a": None}
    assert len(answer["problems"]) >= 2


@pytest.mark.parametrize("amount", ["many", "-1", "", 1.5, None, "1e22"])
def test_an_amount_that_cannot_be_read_allows_no_device_and_is_a_problem(amount: Any) -> None:
    wrong = {**QUOTA, "spec": {"hard": {f"gpu{quota.SUFFIX}": amount}}}
    answer = solve_manifests([pool(), device_class(), claim("a"), wrong])

    (problem,) = answer["problems"]
    assert (problem["kind"], problem["name"]) == ("ResourceQuota", "few")
    assert problem["path"] == f"spec.hard[gpu{quota.SUFFIX}]"
    assert reasons(answer) == {"a": None if amount == 1.5 else "QuotaExceeded"}


def test_a_misspelled_quota_is_named() -> None:
    wrong = {**QUOTA, "spec": {"hard": {f"gpu{quota.SUFFIX.removesuffix('s')}": 1, "cpu": 4}}}
    (problem,) = solve_manifests([pool(), device_class(), claim("a"), wrong])["problems"]

    assert (problem["severity"], problem["message"]) == ("warning", f"is ignored: a quota counts <class>{quota.SUFFIX}")


@pytest.mark.parametrize("deadline", [-1.0, "soon"])
def test_a_deadline_that_is_none_is_refused_beside_a_quota_too(deadline: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        solve_manifests([pool(), QUOTA], deadline=deadline)


def test_a_claim_that_is_searched_for_keeps_its_turn() -> None:
    """A later one does not take what is left of the quota; it does once the first one is refused."""

    def solve(first: dict[str, Any]) -> dict[str, str | None]:
        def found(documents: list[dict[str, Any]]) -> dict[str, Any]:
            names = [one["metadata"]["name"] for one in documents if one["kind"] == "DeviceClaim"]
            given = {"allocated": True, "reason": None}
            answers = [{"namespace": "default", "name": name, **(first if name == "a" else given)} for name in names]
            return {"claims": answers, "seconds": 0.0}

        return reasons(gate.answered([pool(), device_class(), claim("a"), claim("b"), QUOTA], found))

    refused = {"allocated": False, "reason": "SearchLimit"}
    assert solve(refused) == {"a": "SearchLimit", "b": None}
    assert solve({**refused, SEARCHING: True}) == {"a": "SearchLimit", "b": "QuotaExceeded"}


def test_a_fleet_says_that_it_counts_no_quotas() -> None:
    fleet = Fleet.from_manifests([pool(), device_class(), QUOTA])

    (problem,) = fleet.allocate_all([claim("a")])["problems"]

    assert (problem["kind"], problem["name"], problem["severity"]) == ("ResourceQuota", "few", "warning")
    assert "is not applied" in problem["message"]
    fleet.delete(QUOTA)
    assert fleet.allocate_all([claim("b")])["problems"] == []
    assert fleet.update(QUOTA) == [problem]


def test_claims_of_one_name_are_refused_beside_a_quota_as_without() -> None:
    documents = [pool(), device_class(), claim("twice"), claim("twice"), claim("other")]
    without, beside = solve_manifests(documents), solve_manifests([*documents, QUOTA])

    assert beside["claims"] == without["claims"]
    assert reasons(beside) == {"twice": "ClaimInvalid", "other": None}
