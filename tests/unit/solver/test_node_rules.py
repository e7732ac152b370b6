"""A rule that keeps claims off nodes is one row of a table: all that a claim can ask knows it from there."""

from __future__ import annotations

from typing import Any

import pytest

from devalloc.api import meta, node_rules
from devalloc.api.node_rules import NODE_RULES, NodeRule
from devalloc.api.reasons import Reason
from devalloc_solver import Fleet, solve_manifests
from devalloc_solver.check import claim as check
from devalloc_solver.errors import AnswerRefused
from devalloc_solver.testing import claim, device, device_class, pool, request
from tests.support.manifests import Manifest

ONLY = "devalloc.io/rule-of-this-test"
GPU = device_class("gpu", driver="gpu")


@pytest.fixture
def only_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more row, for a claim that may be on the nodes that it names."""
    rows = (*NODE_RULES, NodeRule(ONLY, True, Reason.NODES_TOO_SMALL))
    monkeypatch.setattr(node_rules, "NODE_RULES", rows)
    monkeypatch.setitem(check.BARS, ONLY, lambda node, named: node not in named)  # type: ignore[arg-type]


def gpus(node: str | None, count: int = 1, kind: str = "a") -> Manifest:
    devices = [device(f"g{i}", attributes={"kind": kind}) for i in range(count)]
    return pool(f"of-{node or 'all'}", node, driver="gpu", devices=devices)


def waiting(name: str = "c", only: str = "", count: int = 1, **annotations: str) -> Manifest:
    marks = {ONLY: only, **annotations} if only else annotations
    return claim(name, request("gpu", count), annotations=marks)


def answers(*documents: Manifest) -> dict[str, dict[str, Any]]:
    return {one["name"]: dict(one) for one in solve_manifests(documents)["claims"]}


def test_the_check_judges_each_rule_by_a_table_of_its_own() -> None:
    assert {rule.annotation for rule in NODE_RULES} == check.BARS.keys()


@pytest.mark.usefixtures("only_nodes")
class TestOneMoreRow:
    def test_restricts_a_cold_and_a_warm_solve_alike(self) -> None:
        fleet = [GPU, *(gpus(f"n{number}") for number in range(4))]
        wanted = waiting(only="n3, n2")
        assert answers(*fleet, wanted)["c"]["node"] == "n2"
        warm = Fleet.from_manifests(fleet)
        assert [warm.allocate(waiting(name, only="n3,n2"))["node"] for name in "abc"] == ["n2", "n3", None]
        assert Fleet.from_manifests(fleet).allocate(wanted) == answers(*fleet, wanted)["c"]

    def test_has_its_own_reason_and_remedy(self) -> None:
        fleet = [GPU, gpus("n1", 2), gpus("n2")]
        wanted = waiting(only="n2", count=2)
        refused = answers(*fleet, wanted)["c"]
        assert refused["reason"] == "NodesTooSmall"
        assert [(one["kind"], one["annotation"]) for one in refused["blockers"]] == [("nodeRule", ONLY)]
        assert refused["message"] == f"it fits only on nodes that it may not be on; remove the annotation {ONLY}"
        assert Fleet.from_manifests(fleet).allocate(wanted) == refused

    def test_has_them_where_nothing_matches_beside_what_it_bars(self) -> None:
        refused = answers(GPU, gpus("n1"), waiting(only="n2"))["c"]
        assert (refused["reason"], refused["blockers"][0]["annotation"]) == ("NodesTooSmall", ONLY)
        assert refused["message"] == (f"it fits only on nodes that it may not be on; remove the annotation {ONLY}")

    def test_is_dropped_without_the_others(self) -> None:
        fleet = [GPU, gpus("n1", 2), gpus("n2", 2), gpus("n3")]
        refused = answers(*fleet, waiting(only="n3", count=2, **{meta.EXCLUDED_NODES: "n1"}))["c"]
        assert [one["annotation"] for one in refused["blockers"]] == [ONLY]

    def test_holds_for_a_node_without_pools_to_which_a_group_is_bound(self) -> None:
        first = claim("a", request("gpu"), group="g", node="far")
        second = claim("b", request("gpu"), group="g", annotations={ONLY: "n1"})
        assert {one["allocated"] for one in answers(GPU, gpus("n1"), gpus(None, 2), first, second).values()} == {False}

    def test_is_validated(self) -> None:
        assert answers(GPU, gpus("n1"), waiting(only="n\t1"))["c"]["reason"] == "ClaimInvalid"

    def test_is_seen_by_the_check(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(check.BARS, ONLY, lambda node, named: True)  # type: ignore[arg-type]
        with pytest.raises(AnswerRefused, match="must not be on node n1"):
            solve_manifests([GPU, gpus("n1"), waiting(only="n1")])
