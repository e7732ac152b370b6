"""What the exact model must not lose: nodes that look alike and are not, amounts beyond 64 bits, broken records."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ortools.sat.python import cp_model

from devalloc.api.meta import COMPATIBILITY_GROUP
from devalloc_solver import solve_manifests
from devalloc_solver.dialects.device_claims.manifest_records import read_documents
from devalloc_solver.dialects.device_claims.problem import prepare
from devalloc_solver.exact.claim_groups import are_shares_countable
from devalloc_solver.exact.goal_search import GoalSearch
from devalloc_solver.exact.model import build_model
from devalloc_solver.exact.policy import order_cost, policy_cost
from devalloc_solver.problem.placement_policy import POLICIES, PlacementPolicy
from devalloc_solver.problem.snapshot import Resource
from tests.support.manifests import allocated, claim, device, device_class, entry, pool

GPU = device_class("gpu", driver="gpu")
MOST = 2**63 - 1


def answers(*documents: dict[str, Any]) -> dict[str, dict[str, Any]]:
    answer = solve_manifests([GPU, *documents])
    assert answer["problems"] == []
    assert answer["optimal"]
    return {content["name"]: content for content in answer["claims"]}


def blockers(answer: dict[str, Any]) -> list[str]:
    return [content["name"] for content in answer["blockers"]]


def want(name: str = "c", **detail: Any) -> dict[str, Any]:
    return claim(name, {"deviceClass": "gpu", **detail})


def hold(name: str, pool_name: str, device_name: str, node: str = "n1") -> dict[str, Any]:
    return allocated(want(name), [entry(pool_name, device_name)], node=node)


def test_pools_that_differ_in_which_resource_has_how_much_are_not_alike() -> None:
    big = [device("d", requests={"a": "8"})]
    short = pool("p1", "n1", resources={"a": "4", "b": "8"}, devices=big)
    roomy = pool("p2", "n2", resources={"b": "4", "a": "8"}, devices=big)
    assert answers(short, roomy, want())["c"]["node"] == "n2"


def test_nodes_differ_by_allocations_beside_the_candidates() -> None:
    def card(number: int) -> dict[str, Any]:
        parts = [device(f"s{i}", attributes={"size": "small"}, requests={"m": "1"}) for i in range(4)]
        whole = device("big", attributes={"size": "big"}, requests={"m": "4"})
        return pool(f"p{number}", f"n{number}", resources={"m": "4"}, devices=[whole, *parts])

    held = [hold("h1", "p1", "s0"), hold("h2", "p1", "s1"), hold("h3", "p2", "s0", node="n2")]
    by_name = answers(card(1), card(2), *held, want(constraints="device.size == 'big'"))["c"]
    assert by_name["reason"] == "DevicesInUse"
    assert blockers(by_name) == ["h3"]


def test_a_pool_of_which_more_is_held_than_it_has_needs_all_of_that_back() -> None:
    both = [device(name, attributes={"k": name}, requests={"m": "4"}) for name in ("d1", "d2")]
    card = pool("p", resources={"m": "4"}, devices=both)
    held = [hold("h1", "p", "d1"), hold("h2", "p", "d2")]
    answer = solve_manifests([GPU, card, *held, want(constraints="device.k == 'd1'")])
    assert blockers({content["name"]: content for content in answer["claims"]}["c"]) == ["h1", "h2"]
    assert [problem["name"] for problem in answer["problems"]] == ["h1", "h2"]
    assert all("hold more m than the pool of devices" in problem["message"] for problem in answer["problems"])


def test_groups_that_were_mixed_before_block_no_claim_elsewhere() -> None:
    mixed = pool("p", devices=[device(f"d{g}", attributes={COMPATIBILITY_GROUP: g}) for g in "xy"])
    other = pool("q", devices=[device("d", attributes={"k": "other"})])
    held = [hold("h1", "p", "dx"), hold("h2", "p", "dy"), hold("h3", "q", "d")]
    wanted = want(constraints="'k' in device && device.k == 'other'")
    assert blockers(answers(mixed, other, *held, wanted)["c"]) == ["h3"]


def test_a_device_of_another_group_waits_for_the_groups_in_use() -> None:
    card = pool("p", devices=[device(f"d{g}", attributes={COMPATIBILITY_GROUP: g}) for g in "xyz"])
    held = [hold("h1", "p", "dx"), hold("h2", "p", "dy")]
    wanted = want(constraints=f"device['{COMPATIBILITY_GROUP}'] == 'z'")
    assert blockers(answers(card, *held, wanted)["c"]) == ["h1", "h2"]


@pytest.mark.parametrize("count", [10**18, 2**62, MOST])
def test_any_count_can_be_asked_for_and_any_limit_set(count: int) -> None:
    fleet = pool("p", devices=[device("d1"), device("d2")])
    assert answers(fleet, want(requests={"count": count}))["c"]["reason"] == "NotEnoughDevices"
    assert answers(fleet, want(limits={"count": count}))["c"]["allocated"]
    shares = pool("p", devices=[device("d", resources={"m": 4})])
    assert answers(shares, want(requests={"m": 2}, limits={"count": count}))["c"]["allocated"]


@pytest.mark.parametrize(
    ("amounts", "is_countable"),
    [(("4", "8"), True), (("4", str(2**42)), False), ((str(2**42), "4"), False), ((str(2**42), str(2**42)), False)],
)
def test_shares_are_counted_only_where_no_device_has_too_many_blocks(
    amounts: tuple[str, str], is_countable: bool
) -> None:
    """One of them is enough: sums over thousands of members would not fit into 64 bits."""
    groups: Any = [
        SimpleNamespace(one=SimpleNamespace(index=n, resources={"m": Resource(1, int(amount))}))
        for n, amount in enumerate(amounts)
    ]
    wanted: Any = SimpleNamespace(max_count=1, requests={"m": 2}, candidates=SimpleNamespace(accepted={0, 1}))
    assert are_shares_countable(wanted, groups) is is_countable


@pytest.mark.parametrize("block", ["", "/1n", "/7", "/4Gi"])
@pytest.mark.parametrize("request_", ["1", "4611686018427387904", "9223372032559808512"])
def test_shares_of_any_size_are_added_up(block: str, request_: str) -> None:
    fleet = pool("p", devices=[device(f"d{i}", resources={"m": f"{MOST}{block}"}) for i in range(2)])
    by_name = answers(fleet, want("c", requests={"m": request_}), want("d", requests={"m": request_}))
    assert by_name["c"]["allocated"]
    assert by_name["d"]["allocated"]


def test_shares_of_huge_amounts_over_blocks_without_a_common_measure_are_answered() -> None:
    fleet = pool("p", devices=[device(f"d{i}", resources={"m": f"{9 * 10**18}/{b}"}) for i, b in enumerate(["1n", 7])])
    assert answers(fleet, want(requests={"m": 10**18}))["c"]["allocated"]
    answers(fleet, want("c", requests={"m": 9_200_000_000_000_000_000}), want("d", requests={"m": 1}))


@pytest.mark.parametrize("block", ["", "/1n"])
def test_pool_resources_of_any_size_are_added_up(block: str) -> None:
    half = 2**62
    parts = [device(f"d{i}", requests={"m": size}) for i, size in enumerate([MOST, half, half - 1])]
    card = pool("p", resources={"m": f"{MOST}{block}"}, devices=parts)
    by_name = answers(card, want("a"), want("b"), want("c"))
    assert [by_name[name]["allocated"] for name in "abc"] == [True, True, False]


def test_shares_of_many_like_devices_take_the_fewest() -> None:
    fleet = pool("p", devices=[device(f"d{i}", resources={"m": "80Gi"}) for i in range(60)])
    by_name = answers(fleet, *(want(f"c{i}", requests={"m": "30Gi"}) for i in range(8)))
    used = {entry["deviceName"] for content in by_name.values() for entry in content["allocations"]}
    assert len(used) == 3, "240 Gi fill 3 devices: a share may be split"


@pytest.mark.parametrize(("devices", "fit"), [(5, 2), (6, 3)])
def test_shares_with_a_limit_on_devices_may_each_need_their_own(devices: int, fit: int) -> None:
    """10 of at most two devices of 6: five hold 30 in sum, and yet a third claim finds no two that have 10 left."""
    fleet = pool("p", devices=[device(f"d{i}", resources={"m": "6"}) for i in range(devices)])
    by_name = answers(fleet, *(want(f"c{i}", requests={"m": 10}, limits={"count": 2}) for i in range(3)))
    assert sum(content["allocated"] for content in by_name.values()) == fit


def test_amounts_at_the_end_of_64_bits_lose_nothing() -> None:
    fleet = pool("p", devices=[device("d", resources={"m": MOST})])
    by_name = answers(fleet, want("a", requests={"m": MOST - 1}), *(want(name, requests={"m": 1}) for name in "bc"))
    assert [by_name[name]["allocated"] for name in "abc"] == [True, True, False]


@pytest.mark.parametrize(
    ("requests", "fit"),
    [
        (("9Gi", "7Gi"), 2),
        (("9Gi", "7Gi", "1"), 2),
        (("7680Mi", "8.5Gi"), 2),
        (("7.5Gi", "7.5Gi", "1Gi"), 3),
        (("7.2Gi", "7.2Gi", "1.2Gi"), 3),
        (("8.5Gi", "7Gi", "512Mi"), 3),
    ],
)
def test_fine_and_coarse_blocks_of_one_resource_go_together(requests: tuple[str, ...], fit: int) -> None:
    fleet = pool("p", devices=[device("d0", resources={"m": "8Gi"}), device("d1", resources={"m": "8Gi/1Gi"})])
    by_name = answers(fleet, *(want(f"c{i}", requests={"m": amount}) for i, amount in enumerate(requests)))
    assert sum(content["allocated"] for content in by_name.values()) == fit


def test_claims_of_a_batch_share_a_node_if_they_can() -> None:
    """The first node has room for one of them only."""

    def card(name: str, node: str, *groups: int) -> dict[str, Any]:
        like = [device(f"d{number}", attributes={"group": group}) for number, group in enumerate(groups)]
        return pool(name, node, devices=like)

    fleet = (card("p0", "n0", 2), card("p1", "n1", 1), card("p2", "n1", 1, 1), card("p3", "n1", 2))
    of_one_group = {"deviceClass": "gpu", "matchAttributes": ["group"]}
    pair, single = claim("pair", of_one_group, of_one_group), claim("single", of_one_group)
    assert {content["node"] for content in answers(*fleet, pair, single).values()} == {"n1"}


def test_devices_that_differ_are_taken_in_natural_order() -> None:
    fleet = pool("p", devices=[device(f"d{i}", attributes={"numa": 12 - i}) for i in range(12)])
    by_name = answers(fleet, want("a", matchAttributes=["numa"]), want("b", matchAttributes=["numa"]))
    assert {by_name[name]["allocations"][0]["deviceName"] for name in "ab"} == {"d0", "d1"}


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_what_no_claim_may_use_changes_no_preference(policy: PlacementPolicy) -> None:
    """A warm fleet searches without it, and is to find the same."""
    claims = [want("a"), want("b", requests={"count": 2})]
    fleet = [GPU, *(pool(f"p{n}", f"n{n}", "gpu", devices=[device("d0"), device("d1")]) for n in (2, 5)), *claims]
    others = [pool(f"q{n}", f"n{n}", "nic", devices=[device("d")]) for n in (1, 2, 3, 5)]
    costs = []
    for documents in (fleet, [*fleet, *others]):
        problem = prepare(read_documents(documents))
        model = build_model(problem.snapshot, problem.allocations, problem.units, policy=policy)
        costs.append([[weight for weight, _ in cost] for cost in (policy_cost(model, policy), order_cost(model))])
    assert costs[0] == costs[1]


def test_cp_sat_does_not_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its probing ends the process on some models."""
    run, levels = GoalSearch._run, []

    def note(search: GoalSearch, solver: cp_model.CpSolver, hints: Any) -> cp_model.CpSolverStatus:
        levels.append(solver.parameters.cp_model_probing_level)
        return run(search, solver, hints)

    monkeypatch.setattr(GoalSearch, "_run", note)
    fleet = pool("p", devices=[device("d0"), device("d1")])
    answers(fleet, *(want(name, requests={"count": 1 + (name == "b")}) for name in "abc"))
    assert {*levels} == {0}


def test_an_error_of_the_presolve_of_cp_sat_costs_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may call a model infeasible that has a solution."""
    run, denied = GoalSearch._run, []

    def deny(search: GoalSearch, solver: cp_model.CpSolver, hints: Any) -> cp_model.CpSolverStatus:
        if not solver.parameters.cp_model_presolve:
            return run(search, solver, hints)
        denied.append(search)
        return cp_model.INFEASIBLE

    monkeypatch.setattr(GoalSearch, "_run", deny)
    fleet = pool("p", devices=[device("d0"), device("d1")])
    by_name = answers(fleet, *(want(name, requests={"count": 1 + (name == "b")}) for name in "abc"))
    assert [content["allocated"] for content in by_name.values()] == [True, False, True]
    assert denied
