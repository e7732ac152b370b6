"""The state of each node, with what it holds: in an overview, in metrics, and in `devalloc get nodes`."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import Any

import pytest

from devalloc.api import meta
from devalloc.api.cordon import unschedulable_nodes
from devalloc.api.fencing import fenced_nodes
from devalloc.controller.event_recorder import EventRecorder
from devalloc.controller.metrics import ControllerMetrics
from devalloc.controller.reconcile.fenced import held_objects
from devalloc.usage.overview import build_overview, node_statuses
from devalloc.usage.overview.cache import CachedOverview
from devalloc.usage.overview.metrics import MAX_NODES, OTHER_NODES, FleetCollector
from devalloc_solver import testing
from tests.support.fake_kube import FakeClient, FakeKube

Object = dict[str, Any]


def node(name: str, ready: str = "True", *, taints: list[Object] | None = None, cordoned: bool = False) -> Object:
    condition = {"type": "Ready", "status": ready, "reason": "NodeStatusUnknown" if ready == "Unknown" else "Test"}
    spec = {"taints": taints or [], "unschedulable": cordoned}
    metadata = {"name": name}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": metadata,
        "spec": spec,
        "status": {"conditions": [condition]},
    }


def pool(name: str, **notes: str) -> Object:
    made = testing.pool(f"card-{name}", name, "toy", devices=[testing.device("slot-0")])
    return {**made, "metadata": {**made["metadata"], "annotations": notes}}


def machine(name: str, on: str, *, target: str = "") -> Object:
    status: Object = {"nodeName": on, "phase": "Running"}
    if target:
        status["migrationState"] = {"targetNode": target}
    notes = {meta.PREPARED_ON: on}
    metadata = {"name": name, "namespace": "default", "annotations": notes, "finalizers": [meta.NODE_FINALIZER]}
    return {"apiVersion": meta.DEVALLOC, "kind": "VirtualMachine", "metadata": metadata, "spec": {}, "status": status}


def claim(name: str, on: str) -> Object:
    made = testing.claim(name, testing.request("toy"), namespace="default")
    allocation = {"devicePoolName": f"card-{on}", "deviceName": "slot-0"}
    notes = {meta.ALLOCATED_NODE: on}
    return {**made, "metadata": {**made["metadata"], "annotations": notes}, "status": {"allocations": [allocation]}}


OUT = {"key": meta.OUT_OF_SERVICE, "value": "nodeshutdown", "effect": "NoExecute"}


@pytest.mark.parametrize(
    ("documents", "state", "reason"),
    [
        ([pool("a")], "Ready", ""),
        ([pool("a"), node("a")], "Ready", ""),
        ([pool("a", **{meta.CORDONED_NODE: "by root"})], "Cordoned", "by root"),
        ([pool("a"), node("a", cordoned=True)], "Cordoned", "node is cordoned by kubectl"),
        ([pool("a"), node("a", "False")], "NotReady", "Test"),
        ([pool("a"), node("a", "Unknown")], "Lost", "NodeStatusUnknown"),
        ([pool("a"), node("a", "Unknown", cordoned=True)], "Lost", "NodeStatusUnknown"),
        ([pool("a"), node("b")], "Missing", "the cluster has no Node of this name"),
        ([pool("a", **{meta.FENCED_NODE: "by root: no power"})], "Fenced", "by root: no power"),
        ([pool("a"), node("a", "Unknown", taints=[OUT])], "Fenced", f"taint {meta.OUT_OF_SERVICE}"),
        ([pool("a"), node("a", taints=[OUT])], "Cordoned", f"fenced: node, taint {meta.OUT_OF_SERVICE}"),
    ],
)
def test_a_node_has_the_state_that_counts_most(documents: list[Object], state: str, reason: str) -> None:
    (status,) = node_statuses(documents)
    assert (status.name, status.state, status.reason, status.pools) == ("a", state, reason, 1)


def test_the_states_agree_with_what_decides() -> None:
    """A node is Fenced if and only if what it holds is taken away, and not Ready if it gets nothing new."""
    answers, cordons = ("True", "False", "Unknown"), (False, True)
    notes = ({}, {meta.FENCED_NODE: "off"}, {meta.CORDONED_NODE: "fan"})
    for ready, cordoned, taints, note in itertools.product(answers, cordons, ([], [OUT]), notes):
        documents = [node("a", ready, taints=taints, cordoned=cordoned), pool("a", **note)]
        (status,) = node_statuses(documents)
        assert (status.state == "Fenced") == bool(fenced_nodes(documents)), documents
        if unschedulable_nodes(documents) or meta.CORDONED_NODE in note:
            assert status.state != "Ready", documents
        assert bool(status.reason) == (status.state != "Ready"), documents


def test_it_counts_what_fencing_takes_away() -> None:
    documents = [pool("a"), pool("b"), claim("one", "a"), claim("two", "b"), machine("web", "a", target="b")]
    documents += [machine("db", "gone")]
    counts = {one.name: (one.machines, one.claims) for one in node_statuses(documents)}
    assert counts == {"a": (1, 1), "b": (1, 1), "gone": (1, 0)}

    class Listing:
        def list(self, kinds: object) -> Any:
            return type("Listed", (), {"objects": documents})()

    for name, (machines, claims) in counts.items():
        held = held_objects(Listing(), name)  # type: ignore[arg-type]
        assert [one["kind"] for one in held].count("VirtualMachine") == machines
        assert [one["kind"] for one in held].count("DeviceClaim") == claims


def test_objects_that_make_no_sense_change_nothing() -> None:
    broken = machine("web", "a")
    for status in ("x", {"nodeName": 3, "migrationState": []}, {"nodeName": ["a"]}, None):
        assert node_statuses([pool("a"), {**broken, "status": status}])[0].machines == 1
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q", "namespace": "default"}}
    assert node_statuses([quota]) == ()


def lost_in_metrics(
    documents: list[Object], unserved: dict[str, str] | None = None, name: str = "devalloc_lost_node_objects"
) -> dict[str, str]:
    seen = CachedOverview("1", build_overview(documents, unserved=unserved or {}), datetime.now(UTC))
    recorder = EventRecorder(FakeClient(FakeKube()), "one")
    fleet = FleetCollector(lambda: True, lambda: True, lambda: seen)
    text = ControllerMetrics(lambda: True, recorder, dict, parts=[fleet]).text().decode()
    lines = [line for line in text.splitlines() if line.startswith(f"{name}{{")]
    return {line.partition('node="')[2].partition('"')[0]: line.rpartition(" ")[2] for line in lines}


def test_metrics_show_lost_nodes_that_hold_something_until_they_are_fenced() -> None:
    documents = [pool("a"), claim("one", "a"), machine("web", "a")]
    assert lost_in_metrics([*documents, node("a", "Unknown")]) == {"a": "2.0"}
    assert lost_in_metrics([*documents, node("a", "Unknown", taints=[OUT])]) == {}
    assert lost_in_metrics([*documents, node("a", "False")]) == {}
    assert lost_in_metrics([pool("a"), node("a", "Unknown")]) == {}, "nothing waits for it"


def test_metrics_show_nodes_that_are_ready_and_whose_plugin_has_ended() -> None:
    documents, silent = [pool("a"), pool("b"), machine("web", "a")], {"a": "it has ended", "b": "it has ended"}

    def unserved(state: str) -> dict[str, str]:
        nodes = [node("a", state), node("b", state)]
        return lost_in_metrics([*documents, *nodes], silent, "devalloc_unserved_node_objects")

    assert unserved("True") == {"a": "1.0"}, "nothing waits for the other one"
    assert unserved("Unknown") == {}, "the whole node is lost"
    assert lost_in_metrics([*documents, node("a", "True")], {}, "devalloc_unserved_node_objects") == {}


def test_however_many_nodes_are_lost_there_are_few_labels() -> None:
    names = [f"node-{number}" for number in range(MAX_NODES + 3)]
    documents = [one for name in names for one in (node(name, "Unknown"), machine(f"on-{name}", name))]
    documents.append(machine("more", names[-1]))
    lost = lost_in_metrics(documents)
    assert (len(lost), lost[names[-1]], lost[OTHER_NODES]) == (MAX_NODES + 1, "2.0", "3.0")
