"""Where pods may run: judged in bounded time, and only anew where something counts that has changed."""

from __future__ import annotations

from typing import Any

import pytest

from devalloc.controller.reconcile.resource_claims import suitable_nodes
from devalloc.controller.reconcile.resource_claims.suitable_nodes import SuitableNodes

Object = dict[str, Any]


def node(name: str, **labels: str) -> Object:
    return {"metadata": {"name": name, "labels": labels}}


def wishing(*terms: int) -> Object:
    """A pod that may run on no node with one of these labels, in so many words."""
    expressions = [{"key": f"k{term}", "operator": "DoesNotExist"} for term in terms]
    required = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
    return {"spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}}


def test_pods_that_say_the_same_are_judged_once_until_labels_or_taints_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of many kubelets reports now and then."""
    suitable, first, second = SuitableNodes(), wishing(1), wishing(1)
    nodes = {"n": node("n"), "m": node("m", k1="x")}
    assert suitable.of([first, second], nodes) == {id(first): {"n"}, id(second): {"n"}}
    with monkeypatch.context() as patch:
        patch.setattr(suitable_nodes, "read_node_selector", None)
        nodes["n"] = {**nodes["n"], "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        assert suitable.of([first], nodes) == {id(first): {"n"}}
    assert suitable.of([first], {**nodes, "m": node("m")}) == {id(first): {"n", "m"}}
    taints = [{"key": "a", "effect": "NoSchedule"}]
    assert suitable.of([first], {**nodes, "n": {**node("n"), "spec": {"taints": taints}}}) == {id(first): set()}


def test_those_for_which_there_is_no_time_come_later_and_the_shortest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 0.1, 1.0, 10.0, 10.1, 10.2])
    suitable, long, short, nodes = SuitableNodes(lambda: next(times)), wishing(*range(50)), wishing(1), {"n": node("n")}
    assert suitable.of([long, short], nodes) == {id(short): {"n"}}
    assert suitable.of([long, short], nodes) == {id(short): {"n"}, id(long): {"n"}}


def test_a_pod_that_says_more_than_any_real_one_may_run_nowhere() -> None:
    pod = wishing(*range(2000))
    assert SuitableNodes().of([pod], {"n": node("n")}) == {id(pod): set()}
