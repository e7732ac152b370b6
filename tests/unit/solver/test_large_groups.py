"""Groups of more claims than Python's stack is deep: their owner chooses the size, and others wait for the answer."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest

from devalloc_solver import Fleet, dra, solve_manifests
from devalloc_solver.explain import relaxations
from tests.support import dra_builders
from tests.support.manifests import claim, device, device_class, pool

MEMBERS = 1_200
SHARED = pool("p", "n0", "gpu", devices=[device("d0", resources={"memory": f"{3 * MEMBERS}Gi/1Gi"})])
SHARE = {"deviceClass": "gpu", "requests": {"memory": "1Gi"}}


@pytest.fixture(autouse=True)
def pythons_own_limit() -> Iterator[None]:
    """Limit the stack to Python's default: celpy raises the limit for the whole process when it is first imported."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1_000)
    yield
    sys.setrecursionlimit(before)


def members(detail: dict[str, Any]) -> list[dict[str, Any]]:
    return [claim(f"c{number}", detail, annotations={"devalloc.io/group": "g"}) for number in range(MEMBERS)]


def test_all_members_of_a_large_group_are_answered() -> None:
    documents = [SHARED, device_class("gpu", driver="gpu")]
    for answer in (
        solve_manifests([*documents, *members(SHARE)]),
        Fleet.from_manifests(documents).allocate_all(members(SHARE)),
    ):
        assert [one["allocated"] for one in answer["claims"]] == [True] * MEMBERS


def test_alternatives_of_a_large_group_end_at_the_deadline_with_an_answer() -> None:
    detail = {"oneOf": [SHARE, {"deviceClass": "gpu", "requests": {"memory": "2Gi"}}]}
    answer = solve_manifests([SHARED, device_class("gpu", driver="gpu"), *members(detail)], deadline=1.0)
    assert len(answer["claims"]) == MEMBERS


def test_the_claims_of_a_large_pod_are_answered() -> None:
    capacity = {"memory": {"value": f"{3 * MEMBERS}Gi"}}
    shared = [dra_builders.device("d0", {}, capacity=capacity, allowMultipleAllocations=True)]
    request = dra_builders.request(capacity={"requests": {"memory": "1Gi"}})
    claims = [dra_builders.claim(request, name=f"c{number}") for number in range(MEMBERS)]
    assert dra.allocate("n0", claims, [dra_builders.ANY], [dra_builders.slice_("s", shared, nodeName="n0")]) is not None


def test_the_answers_to_a_large_group_name_some_of_the_members_to_leave_and_say_that_more_may_be_needed() -> None:
    """If each named all others, the answer would grow with the square of what one tenant asks for."""
    small = pool("p", "n0", "gpu", devices=[device("d0", resources={"memory": "3Gi/1Gi"})])
    answer = solve_manifests([small, device_class("gpu", driver="gpu"), *members(SHARE)])
    for one in answer["claims"]:
        assert len(one["blockers"]) == 100_000 // MEMBERS
        assert all(blocker["name"] != one["name"] for blocker in one["blockers"])
        assert "notEnough" in one["caveats"]


@pytest.mark.parametrize("dialect", ["DeviceClaim", "ResourceClaim"])
def test_as_many_members_are_to_leave_a_large_group_as_must_and_one_search_says_it_for_all(
    dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = Mock(wraps=relaxations.fewest_relaxations)
    monkeypatch.setattr(relaxations, "fewest_relaxations", search)
    if dialect == "DeviceClaim":
        room = pool("p", "n0", "gpu", devices=[device("d0", resources={"memory": "100Gi/1Gi"})])
        answer = solve_manifests([room, device_class("gpu", driver="gpu"), *members(SHARE)[:160]])
    else:
        capacity = {"memory": {"value": "100Gi"}}
        shared = [dra_builders.device("d0", {}, capacity=capacity, allowMultipleAllocations=True)]
        request = dra_builders.request(capacity={"requests": {"memory": "1Gi"}})
        group = [dra_builders.claim(request, name=f"c{number}") for number in range(160)]
        for one in group:
            one["metadata"]["annotations"] = {"devalloc.io/group": "g"}
        slices = dra_builders.slice_("s", shared, nodeName="n0")
        answer = dra.solve_manifests([dra_builders.ANY, slices, *group])
    assert {len(one["blockers"]) for one in answer["claims"]} == {60}
    assert search.call_count < 10  # a few for each set of rules, none for each member
