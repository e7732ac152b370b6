"""What is cordoned is not given away, keeps its owner, and stays cordoned through publications, until uncordoned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from devalloc.api.cordon import apply_cordons, cordon_reasons, unschedulable_reasons
from devalloc.api.decode import decode
from devalloc.api.pool import DevicePool
from devalloc.controller.cordon import NoPools, TargetNotFound, find_target, list_cordons, set_cordon
from devalloc.controller.pool_publisher import PoolPublisher, PublishResult
from devalloc.controller.reconcile.stored_claims import solver_documents
from devalloc.inventory.discover import discover
from devalloc.store import Event, EventType, Forbidden
from devalloc.store.sqlite import SQLiteStore
from devalloc.usage.overview import build_overview
from devalloc_solver import solve_manifests
from tests.support import pci_cards
from tests.support.fake_sysfs import FakeSysfs
from tests.support.fleet_manifests import annotations, fill, gpu_claim, gpu_class, gpu_pool, held
from tests.support.host_pools import host, machine, status
from tests.support.machine_allocator import machine_allocator

Object = dict[str, Any]
WHY = "by root, 2026-01-31: replacing the fan"


def put(store: SQLiteStore, word: str, why: str | None = WHY) -> bool:
    return set_cordon(store, find_target(store, word), why)


def published(*manifests: Object) -> list[DevicePool]:
    decoded = [decode(manifest).object for manifest in manifests]
    return [pool for pool in decoded if isinstance(pool, DevicePool)]


def reasons(pool: Object) -> dict[str, str]:
    """Why devices of a pool are unavailable."""
    return {
        device["name"]: attribute["stringValue"]
        for device in pool["spec"].get("devices", [])
        for attribute in device.get("attributes", [])
        if attribute["name"] == "devalloc.io/unavailable"
    }


def pool(store: SQLiteStore, name: str = "p") -> Object:
    return store.get("DevicePool", None, name)


class TestAllocation:
    def test_a_cordoned_device_stays_with_its_owner_and_goes_to_no_other(self, store: SQLiteStore) -> None:
        fill(store, gpu_pool(devices=2), gpu_class(), gpu_claim("a"))
        allocator = machine_allocator(store)
        allocator.round()
        for device in ("d0", "d1"):
            assert put(store, device)
        store.create(gpu_claim("b"))
        done = allocator.round()
        assert (held(store, "a"), held(store, "b")) == (["p/d0"], [])
        assert annotations(store, "b")["reason"]
        assert (done.available, pool(store)["status"]) == (0, {"availableDevices": 0})
        assert put(store, "d1", None)
        allocator.round()
        assert held(store, "b") == ["p/d1"]

    def test_a_pool_without_a_node_can_be_cordoned(self, store: SQLiteStore) -> None:
        fill(store, gpu_pool("network", node=None), gpu_class(), gpu_claim("a"))
        put(store, "pool/network")
        machine_allocator(store).round()
        assert held(store, "a") == []

    def test_a_node_is_cordoned_with_all_its_pools_at_once(self, store: SQLiteStore) -> None:
        fill(store, gpu_pool("p"), gpu_pool("q"), gpu_pool("other", node="m"), gpu_class(), gpu_claim("a", count=2))
        put(store, "node/n")
        machine_allocator(store).round()
        assert held(store, "a") == ["other/d0", "other/d1"]
        assert list(list_cordons(store)) == [("n", name, "*", f"cordoned: node, {WHY}") for name in ("p", "q")]

    def test_explanations_see_it_too(self, store: SQLiteStore) -> None:
        fill(store, gpu_pool(devices=1), gpu_class(), gpu_claim("a"))
        put(store, "d0")
        (answer,) = solve_manifests(solver_documents(store.list().objects))["claims"]
        assert not answer["allocated"]

    def test_cordoning_twice_changes_nothing(self, store: SQLiteStore) -> None:
        fill(store, gpu_pool())
        put(store, "d0")
        before = store.list()
        assert not put(store, "d0")
        assert not put(store, "d1", None)
        assert store.list() == before


def node(name: str = "n", *, annotations: dict[str, str] | None = None, ready: str = "True", **spec: Any) -> Object:
    """A Node of Kubernetes."""
    conditions = [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": ready, "reason": "Why"}]
    metadata = {"name": name, **({"annotations": annotations} if annotations else {})}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": metadata,
        "spec": spec,
        "status": {"conditions": conditions},
    }


def taint(key: str, effect: str, **more: str) -> Object:
    return {"taints": [{"key": key, "effect": effect, **more}]}


CLOSED = {
    "cordoned": (node(unschedulable=True), "is cordoned by kubectl"),
    "tainted": (node(**taint("gpu", "NoSchedule", value="yes")), "has taint gpu=yes:NoSchedule"),
    "drained": (node(**taint("gpu", "NoExecute")), "has taint gpu:NoExecute"),
    "not ready": (node(ready="False"), "is not Ready (Why)"),
    "silent": (node(ready="Unknown"), "is not Ready (Why)"),
}
OPEN = {
    "ready": node(),
    "ready again": node(**taint("node.kubernetes.io/not-ready", "NoSchedule")),
    "never reported": {**node(), "status": {}},
    "only preferred": node(**taint("gpu", "PreferNoSchedule")),
    "for machines": node(**taint("devalloc.io/machines", "NoSchedule")),
    "tolerated": node(annotations={"devalloc.io/tolerated-taints": "a, gpu"}, **taint("gpu", "NoSchedule")),
}


def change(store: SQLiteStore, new: Object) -> None:
    """Make another one of the Node that there is."""
    before = store.get("Node", None, new["metadata"]["name"])
    stored = store.replace({**new, "metadata": {**before["metadata"], **new["metadata"]}})
    store.replace_status({**stored, "status": new["status"]})


class TestNodes:
    @pytest.mark.parametrize("state", CLOSED)
    def test_an_unschedulable_node_gets_nothing_new_and_what_is_allocated_stays(
        self, store: SQLiteStore, state: str
    ) -> None:
        closed, why = CLOSED[state]
        fill(store, node(), gpu_pool(devices=3), gpu_class(), gpu_claim("a"))
        allocator = machine_allocator(store)
        assert allocator.round().available == 2
        change(store, closed)
        store.create(gpu_claim("b"))
        done = allocator.round()
        assert (held(store, "a"), held(store, "b"), done.available) == (["p/d0"], [], 0)
        assert annotations(store, "b")["message"].startswith(f"node n would do, but {why}; ")
        change(store, node())
        allocator.round()
        assert held(store, "b") == ["p/d1"]

    @pytest.mark.parametrize("state", CLOSED)
    def test_a_node_is_seen_to_close_and_to_open_though_its_pools_stay_as_they_are(
        self, store: SQLiteStore, state: str
    ) -> None:
        closed, _ = CLOSED[state]
        fill(store, node(), gpu_pool(), gpu_class())
        allocator = machine_allocator(store)
        for _ in range(2):  # the first writes on the pools
            allocator.round()
        change(store, closed)
        store.create(gpu_claim("a"))
        allocator.round()
        allocator.round()
        assert held(store, "a") == []
        change(store, node())
        allocator.round()
        assert held(store, "a") == ["p/d0"]

    @pytest.mark.parametrize("state", OPEN)
    def test_any_other_node_is_used(self, store: SQLiteStore, state: str) -> None:
        fill(store, OPEN[state], gpu_pool(), gpu_class(), gpu_claim("a"))
        machine_allocator(store).round()
        assert held(store, "a") == ["p/d0"]

    @pytest.mark.parametrize("state", CLOSED)
    def test_machines_are_placed_elsewhere(self, store: SQLiteStore, state: str) -> None:
        closed, _ = CLOSED[state]
        fill(store, node(), host("n"), node("other"), host("other"), machine("web"))
        change(store, closed)
        machine_allocator(store).round()
        assert status(store, "web")["nodeName"] == "other"

    def test_a_machine_that_wants_an_unschedulable_node_waits_and_says_why(self, store: SQLiteStore) -> None:
        fill(store, node(unschedulable=True), host("n"), machine("web", nodeName="n"))
        machine_allocator(store).round()
        assert "nodeName" not in status(store, "web")
        assert status(store, "web")["message"].startswith("node n would do, but is cordoned by kubectl; ")

    @pytest.mark.parametrize("pinned", [{}, {"nodeName": "n"}], ids=["any node", "a node by name"])
    def test_a_machine_whose_nodes_are_all_cordoned_has_that_as_its_reason(
        self, store: SQLiteStore, pinned: dict[str, str]
    ) -> None:
        """NoMatchingDevices would send its user to look for devices, of which it asks for none."""
        fill(store, node(unschedulable=True), host("n"), host("m"), machine("web", **pinned))
        put(store, "node/m", WHY)
        machine_allocator(store).round()
        assert status(store, "web")["reason"] == "NodesCordoned"
        assert "would do, but is cordoned by" in status(store, "web")["message"]
        change(store, node())
        machine_allocator(store).round()
        assert status(store, "web")["nodeName"] == "n"

    @pytest.mark.parametrize("state", sorted({*CLOSED} - {"cordoned"}))
    def test_a_machine_whose_nodes_get_nothing_new_for_several_reasons_has_that_reason(
        self, store: SQLiteStore, state: str
    ) -> None:
        closed, _ = CLOSED[state]
        fill(store, node(), host("n"), node("m", unschedulable=True), host("m"), machine("web"))
        change(store, closed)
        machine_allocator(store).round()
        assert status(store, "web")["reason"] == "NodesUnschedulable"

    def test_a_machine_that_is_too_large_for_all_of_them_has_that_reason(self, store: SQLiteStore) -> None:
        fill(store, node(unschedulable=True), host("n", cpus=2), machine("web", "5"))
        machine_allocator(store).round()
        assert status(store, "web")["reason"] == "NodesTooSmall"

    def test_other_news_of_nodes_are_no_reason_to_decide_anew(self, store: SQLiteStore) -> None:
        allocator = machine_allocator(store)
        fill(store, node(), gpu_pool())
        allocator.round()
        beat = {**node(), "status": {"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "now"}]}}
        changed = [Event(EventType.MODIFIED, each, "9") for each in (beat, node(unschedulable=True), node("new"))]
        assert [allocator._matters(event) for event in changed] == [False, True, True]

    def test_a_pool_of_no_node_is_a_problem(self, store: SQLiteStore) -> None:
        fill(store, node("node-a"), gpu_pool(node="nodea"), gpu_pool("anywhere", node=None))
        (problem,) = machine_allocator(store).round().problems
        assert problem.startswith("DevicePool p: spec.nodeName: there is no Node nodea")
        shown = build_overview(store.list().objects)
        assert shown.problems == ("DevicePool p: its node nodea is not a Node of the cluster",)

    def test_without_a_cluster_there_are_no_nodes_to_miss(self, store: SQLiteStore) -> None:
        fill(store, gpu_pool(node="nodea"))
        assert machine_allocator(store).round().problems == ()

    def test_it_is_shown(self) -> None:
        (shown,) = build_overview([node(unschedulable=True), gpu_pool()]).nodes
        assert (shown.cordoned, shown.counts.unavailable) == ("node is cordoned by kubectl", 2)


class TestPublication:
    def test_what_is_published_says_so_until_it_is_uncordoned(self, store: SQLiteStore) -> None:
        publisher = PoolPublisher(store, "n")
        publisher.publish(published(gpu_pool()))
        put(store, "p/d0")
        assert publisher.is_overwritten(Event(EventType.MODIFIED, pool(store), "1"))
        assert publisher.publish(published(gpu_pool())) == PublishResult(updated=("p",))
        assert reasons(pool(store)) == {"d0": f"cordoned: {WHY}"}
        assert not publisher.is_overwritten(Event(EventType.MODIFIED, pool(store), "1"))
        assert PoolPublisher(store, "n").publish(published(gpu_pool())) == PublishResult(), (
            "after a restart it is the same"
        )
        put(store, "p/d0", None)
        assert publisher.is_overwritten(Event(EventType.MODIFIED, pool(store), "1"))
        publisher.publish(published(gpu_pool()))
        assert reasons(pool(store)) == {}

    def test_it_stands_beside_other_reasons_once(self) -> None:
        there = gpu_pool(devices=1)
        there["spec"]["devices"][0]["attributes"] = [{"name": "devalloc.io/unavailable", "stringValue": "in use: qemu"}]
        there["metadata"]["annotations"] = {"devalloc.io/cordoned": '{"d0": "by root"}'}
        assert reasons(apply_cordons(there)) == {"d0": "in use: qemu; cordoned: by root"}
        assert apply_cordons(apply_cordons(there)) == apply_cordons(there)

    def test_a_card_that_goes_and_comes_back_is_cordoned_still(self, store: SQLiteStore) -> None:
        publisher = PoolPublisher(store, "n")
        publisher.publish(published(gpu_pool()))
        put(store, "d0")
        publisher.publish([])
        assert pool(store)["spec"] == {"nodeName": "n", "driver": "gpu.devalloc.io"}
        publisher.publish(published(gpu_pool()))
        assert reasons(pool(store)) == {"d0": f"cordoned: {WHY}"}
        publisher.publish([])
        put(store, "d0", None)
        assert publisher.is_overwritten(Event(EventType.MODIFIED, pool(store), "1"))
        assert publisher.publish([]) == PublishResult(deleted=("p",))

    def test_a_card_that_comes_to_a_cordoned_node_is_cordoned(self, store: SQLiteStore) -> None:
        publisher = PoolPublisher(store, "n")
        publisher.publish(published(gpu_pool("p")))
        put(store, "node/n")
        publisher.publish(published(gpu_pool("q", devices=1)))
        assert reasons(pool(store, "q")) == {"d0": f"cordoned: node, {WHY}"}
        put(store, "node/n", None)
        publisher.publish(published(gpu_pool("q", devices=1)))
        assert {obj["metadata"]["name"]: reasons(obj) for obj in store.list("DevicePool").objects} == {"q": {}}

    @pytest.mark.parametrize("text", ["{", "[]", "3", '"d0"'])
    def test_a_note_that_cannot_be_read_cordons_all(self, text: str) -> None:
        noted = gpu_pool()
        noted["metadata"]["annotations"] = {"devalloc.io/cordoned": text}
        assert cordon_reasons(noted) == {"*": "cordoned: annotation devalloc.io/cordoned cannot be read"}
        assert len(reasons(apply_cordons(noted))) == 2


class TestNames:
    def test_a_card_is_cordoned_with_what_is_on_it_and_a_port_with_its_own(
        self, store: SQLiteStore, tmp_path: Path
    ) -> None:
        host = FakeSysfs(tmp_path / "host")
        host.add(pci_cards.nic("0000:41:00.0", vfs=2))
        host.add(pci_cards.nic("0000:51:00.0", netdev="eth1", sriov=None))
        host.add(pci_cards.nic("0000:51:00.1", netdev="eth2", vfs=2))
        PoolPublisher(store, "n").publish(discover(host.root, node_name="n").pools)
        assert find_target(store, "0000-41-00-0").devices == (None,)
        (vf,) = set(find_target(store, "0000-51-00-1").devices) & {"0000-51-10-1"}
        assert "0000-51-00-0" not in find_target(store, "0000-51-00-1").devices
        assert find_target(store, str(vf)).devices == (vf,)

    def test_an_ambiguous_name_is_refused_with_its_meanings(self, store: SQLiteStore) -> None:
        fill(store, gpu_pool("n", node="n"), gpu_pool("p", node="n"))
        with pytest.raises(TargetNotFound, match="node n or pool n"):
            find_target(store, "n")
        with pytest.raises(TargetNotFound, match="device d0 of pool n or device d0 of pool p"):
            find_target(store, "d0")
        assert find_target(store, "p/d0").pool == "p"
        with pytest.raises(TargetNotFound, match="there is no node, pool or device absent"):
            find_target(store, "absent")

    def test_a_node_with_machines_or_claims_alone_is_one_but_records_no_cordon(self, store: SQLiteStore) -> None:
        web = store.create(machine("web", nodeName="of-machine"))
        store.replace_status({**web, "status": {"nodeName": "of-machine", "phase": "Running"}})
        fill(store, gpu_pool("p", node="of-claim"), gpu_class(), gpu_claim("a"))
        machine_allocator(store).round()
        store.delete("DevicePool", None, "p")
        assert {one.name for one in build_overview(store.list().objects).node_statuses} == {"of-machine", "of-claim"}
        for name in ("of-machine", "of-claim"):
            assert find_target(store, f"node/{name}").node == find_target(store, name).node == name
            with pytest.raises(NoPools, match=f"node {name} cannot be cordoned: .* and it has none"):
                put(store, name)

    def test_a_user_who_reads_no_claims_may_cordon(self, store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
        fill(store, gpu_pool("p", node="n"))
        original = store.list

        def list_pools(kinds: Any = None) -> Any:
            if kinds != "DevicePool":
                raise Forbidden(f"you may not list {kinds}")
            return original(kinds)

        monkeypatch.setattr(store, "list", list_pools)
        assert put(store, "node/n")
        with pytest.raises(TargetNotFound, match="there is no node m"):
            find_target(store, "node/m")


@pytest.mark.parametrize(
    ("why", "remedies"),
    [
        ("cordoned: node, by root: old; loud", ["run `devalloc uncordon node/{node}`"]),
        (
            "cordoned: node, by root; node is cordoned by kubectl",
            ["run `devalloc uncordon node/{node}`", "run `kubectl uncordon {node}`"],
        ),
        (
            "fenced: node, by root; cordoned: node, by root",
            ["run `devalloc unfence node/{node}`", "run `devalloc uncordon node/{node}`"],
        ),
        ("fenced: node, by root; cordoned: by root", []),
        (
            "cordoned: node, by root; cordoned: node, by root; node is not Ready (Gone)",
            ["run `devalloc uncordon node/{node}`", "wait until node {node} is Ready"],
        ),
        ("node has taint a=b:NoSchedule", ["remove the taint of node {node}"]),
        ("cordoned: by root", []),
        ("cordoned: by root; node, by root", []),
        ("unhealthy: Xid 79; cordoned: node, by root", []),
    ],
)
def test_a_node_is_unschedulable_if_no_reason_is_of_the_device_alone(why: str, remedies: list[str]) -> None:
    assert [f"{reason.verb} {reason.remedy}" for reason in unschedulable_reasons(why)] == remedies
