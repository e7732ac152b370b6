"""Nodes of Kubernetes count on a cluster, and among the manifests of a whole fleet, such as a dump of a cluster; not in
an embedded store. All verbs agree with `devalloc up` on that."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from devalloc.cli import target
from devalloc.store.kubernetes.resources import CORE_KINDS, OWN_KINDS
from devalloc.store.sqlite import SQLiteStore
from tests.support.cli_shell import Shell, claim, device_class, pool, text
from tests.support.fake_kube import FakeClient, FakeKube
from tests.support.store_loops import StoreLoops

Object = dict[str, Any]

STATES = (
    {},
    {"spec": {"unschedulable": True}},
    {"spec": {"taints": [{"key": "gpu", "effect": "NoSchedule"}]}},
    {"spec": {"taints": [{"key": "gpu", "effect": "NoExecute"}]}},
    {"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "KubeletStopped"}]}},
    {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}},
)
NODES = st.dictionaries(st.sampled_from(["node-a", "node-b", "elsewhere"]), st.sampled_from(STATES))


def node(name: str, **content: Any) -> Object:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, **content}


def up_until_settled(path: Path) -> list[str]:
    """What the loops of `devalloc up` report as problems when they have answered all claims."""
    reported: list[str] = []

    def look(done: Any) -> None:
        reported.extend(done.problems)
        up.stop()

    up = StoreLoops(path, None, on_round=look)
    up.run()
    return reported


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(nodes=NODES)
def test_in_an_embedded_store_all_verbs_answer_as_if_there_were_no_nodes(
    devalloc: Shell, nodes: dict[str, Object]
) -> None:
    """`devalloc` is here for the log handlers that it puts back."""
    with tempfile.TemporaryDirectory(dir=devalloc.store.parent) as folder:
        shell = Shell(Path(folder) / "store.db")
        fleet = [pool("a"), pool("b", node="node-b"), device_class(), claim("all", count=2)]
        shell("apply", "-f", "-", stdin=text(*fleet, *(node(name, **content) for name, content in nodes.items())))

        solved = shell("solve", "-o", "json").json
        (would,) = (one["allocations"] for one in solved["claims"])
        assert shell("explain", "all").code == 0
        assert shell("capacity", "all").out.startswith("2 more like default/all: 1 on node-a, 1 on node-b")
        problems = up_until_settled(shell.store)
        store = SQLiteStore(shell.store)
        (holds,) = (one["status"]["allocations"] for one in store.list("DeviceClaim").objects)
        pools = {one["metadata"]["name"]: one["status"]["availableDevices"] for one in store.list("DevicePool").objects}
        store.close()
        shown = shell("top", "-o", "json").json

    assert [one["deviceName"] for one in holds] == [one["deviceName"] for one in would]
    assert sorted(pools.values()) == [0, 2]
    assert {each["name"]: each["counts"]["available"] for each in shown["nodes"]} == {
        f"node-{name}": count for name, count in pools.items()
    }
    assert [each["cordoned"] for each in shown["nodes"]] == ["", ""]
    assert (solved["problems"], problems, shown["problems"]) == ([], [], [])


def test_a_node_that_is_tried_out_in_an_embedded_store_does_not_count_either(devalloc: Shell) -> None:
    devalloc("apply", "-f", "-", stdin=text(pool(), device_class()))
    cordoned = node("node-a", spec={"unschedulable": True})

    assert devalloc("solve", "-f", "-", stdin=text(cordoned, claim())).code == 0


class TestInManifestsOfAFleet:
    @pytest.mark.parametrize("state", STATES[1:])
    def test_answers_for_a_dump_agree_with_the_controller_of_that_cluster(self, devalloc: Shell, state: Object) -> None:
        dump = text(pool(), device_class(), claim(), node("node-a", **state))

        solved = devalloc("solve", "--no-store", "-f", "-", "-o", "json", stdin=dump)
        assert solved.code == 3
        (one,) = solved.json["claims"]
        assert "node-a" in one["message"]
        assert one["verdict"] == "impossible now"
        assert [(each["kind"], each["node"]) for each in one["blockers"]] == [("unavailable", "node-a")]
        assert solved.err == ""
        assert devalloc("capacity", "train", "--no-store", "-f", "-", stdin=dump).out.startswith("0 more")

    @pytest.mark.parametrize(
        "wrong", [{"metadata": {"name": "node-a", "annotations": ["x"]}}, {"spec": ["x"]}, {"spec": {"taints": 3}}]
    )
    def test_an_unreadable_node_does_not_hold_up_claims(self, devalloc: Shell, wrong: Object) -> None:
        dump = text(pool(), device_class(), claim(), {**node("node-a"), **wrong})

        assert devalloc("solve", "--no-store", "-f", "-", stdin=dump).code == 0

    @pytest.mark.parametrize("attributes", [None, "x", {"name": "model"}])
    def test_attributes_that_are_no_list_are_read_as_without_nodes(self, devalloc: Shell, attributes: Any) -> None:
        odd = pool("odd")
        odd["spec"]["devices"][0]["attributes"] = attributes
        cordoned = node("node-a", spec={"unschedulable": True})
        manifests = text(odd, pool("b", node="node-b"), device_class(), claim())
        without = devalloc("solve", "--no-store", "-f", "-", "-o", "json", stdin=manifests)
        solved = devalloc("solve", "--no-store", "-f", "-", "-o", "json", stdin=manifests + "---\n" + text(cordoned))
        assert (solved.code, solved.err) == (without.code, without.err)
        assert [one["allocated"] for one in solved.json["claims"]] == [True]


class TestOnACluster:
    @pytest.fixture
    def cluster(self, devalloc: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeKube:
        kube = FakeKube()
        paths = {resource.kind: resource for resource in (*OWN_KINDS, *CORE_KINDS)}
        waiting = claim("waiting", namespace="default")
        for obj in (pool(), device_class(), node("node-a", spec={"unschedulable": True}), waiting):
            kube.create(paths[obj["kind"]].within(obj["metadata"].get("namespace")), obj)
        monkeypatch.setattr(target, "connect_cluster", lambda kubeconfig: FakeClient(kube))
        (tmp_path / "kubeconfig").touch()
        monkeypatch.setenv("DEVALLOC_KUBECONFIG", str(tmp_path / "kubeconfig"))
        return kube

    def test_answers_agree_with_the_controller(self, devalloc: Shell, cluster: FakeKube) -> None:
        wanted = text(claim("new", namespace="default"))

        solved = devalloc("solve", "-f", "-", "-o", "json", stdin=wanted)
        (one,) = solved.json["claims"]
        assert solved.code == 3
        assert "node is cordoned by kubectl" in json.dumps(one)
        assert "node is cordoned by kubectl" in devalloc("describe", "claim/waiting").out
        assert devalloc("capacity", "-f", "-", stdin=wanted).out.startswith("0 more like default/new")
        explained = devalloc("explain", "new", "-f", "-", stdin=wanted).out
        assert "node node-a would do, but is cordoned by kubectl; run `kubectl uncordon node-a`\n" in explained
        assert explained.endswith("What to do: Run `kubectl uncordon node-a`.\n")

    @pytest.mark.parametrize("wrong", [{"metadata": {"name": "n", "annotations": ["x"]}}, {"spec": ["x"]}])
    def test_a_node_of_a_file_does_not_count(self, devalloc: Shell, cluster: FakeKube, wrong: Object) -> None:
        """It is not the cluster that says how it is."""
        wanted = text({**node("node-a"), **wrong}, claim("new", namespace="default"))

        solved = devalloc("solve", "-f", "-", stdin=wanted)

        assert "node node-a would do, but is cordoned by kubectl" in solved.out
        assert "warning: Node" in solved.err
