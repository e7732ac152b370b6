"""The label of the node on claims and machines: written with the allocation, repaired, promised on the Lease."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from devalloc.api.meta import (
    ALLOCATED_NODE,
    LABELS_NODES,
    NODE_FINALIZER,
    NODE_LABEL,
    PREPARED_ON,
    RELEASE,
    is_promised,
    node_label,
)
from devalloc.controller.leader.lease import Lease, LeaseTerm
from devalloc.controller.manifest_apply import merge_manifest
from devalloc.controller.reconcile import device_claims
from devalloc.controller.reconcile.loop import AllocatorSettings
from devalloc.controller.reconcile.release import release_claim
from devalloc.store import Event, EventType, Key, Store
from devalloc.store.kubernetes import KubernetesStore
from devalloc.store.kubernetes.api_error import ApiError
from devalloc.store.sqlite import SQLiteStore
from tests.support.fake_kube import FakeClient, FakeKube, event_type
from tests.support.fleet_manifests import fill, gpu_claim, gpu_class, gpu_pool, held
from tests.support.host_pools import host, machine
from tests.support.machine_allocator import machine_allocator

Object = dict[str, Any]
LABELS = AllocatorSettings(labels_nodes=True)


@pytest.fixture(params=["embedded", "cluster"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "cluster":
        with closing(KubernetesStore(FakeClient(FakeKube()))) as cluster:  # type: ignore[arg-type]
            yield cluster
    else:
        with closing(SQLiteStore(tmp_path / "store.db")) as embedded:
            yield embedded


def label(store: Store, name: str, kind: str = "DeviceClaim") -> str | None:
    value: str | None = store.get(kind, "default", name)["metadata"].get("labels", {}).get(NODE_LABEL)
    return value


def change_metadata(store: Store, name: str, kind: str = "DeviceClaim", **parts: Any) -> None:
    obj = store.get(kind, "default", name)
    store.replace({**obj, "metadata": {**obj["metadata"], **parts}})


LONG = "x" * 40 + "." + "y" * 40


@pytest.mark.parametrize("name", ["n", "node-1.example.com", "A" * 63, "a" * 64, LONG, "-n", "n_", "näme", "", "n\n"])
def test_every_name_of_a_node_has_a_label_that_the_api_server_takes(name: str) -> None:
    import re

    value = node_label(name)
    assert re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", value)
    assert len(value) <= 63
    assert node_label(name) == value != node_label(name + "2")


@pytest.mark.parametrize("node", ["n", LONG])
def test_a_claim_has_its_label_from_the_moment_it_has_devices_until_they_are_taken_back(
    store: Store, node: str
) -> None:
    fill(store, gpu_class(), gpu_pool(node=node), gpu_claim("a"), gpu_claim("b", count=9))
    allocator = machine_allocator(store, settings=LABELS)
    labels = []
    for event in _events_of(store, allocator.round):
        obj = event.object
        if obj["kind"] == "DeviceClaim" and obj.get("status", {}).get("allocations"):
            labels.append(obj["metadata"].get("labels", {}).get(NODE_LABEL))
    assert set(labels) == {node_label(node)}, "in the same write, or before it"
    assert (label(store, "a"), label(store, "b")) == (node_label(node), None)
    release_claim(store, "default", "a", force=False)
    store.delete("DevicePool", None, "p")
    allocator.round()
    assert (held(store, "a"), label(store, "a")) == ([], None)


def _events_of(store: Store, act: Any) -> list[Any]:
    since = store.list().resource_version
    act()
    return [*store.watch(None, since, timeout=0)]


def test_a_group_gets_its_labels_together(store: Store) -> None:
    fill(store, gpu_class(), gpu_pool(), gpu_claim("a", group="g"), gpu_claim("b", group="g"))
    machine_allocator(store, settings=LABELS).round()
    assert (label(store, "a"), label(store, "b")) == ("n", "n")


def test_a_machine_has_the_label_of_the_node_that_has_it_and_else_of_the_one_that_is_to_have_it(store: Store) -> None:
    fill(store, host("n"), host("m"), machine("placed", nodeName="m"), machine("nowhere", cpu="999"))
    allocator = machine_allocator(store, settings=LABELS)
    allocator.round()
    assert [label(store, name, "VirtualMachine") for name in ("placed", "nowhere")] == ["m", None]
    change_metadata(store, "placed", "VirtualMachine", finalizers=[NODE_FINALIZER], annotations={PREPARED_ON: "n"})
    allocator.round()
    assert label(store, "placed", "VirtualMachine") == "n"
    change_metadata(store, "placed", "VirtualMachine", finalizers=[], annotations={})
    allocator.round()
    assert label(store, "placed", "VirtualMachine") == "m"


def test_what_an_earlier_version_wrote_gets_its_label_and_a_removed_label_comes_back(store: Store) -> None:
    fill(store, gpu_class(), gpu_pool(), gpu_claim("a"))
    machine_allocator(store).round()
    assert (held(store, "a"), label(store, "a")) == (["p/d0"], None)
    allocator = machine_allocator(store, settings=LABELS)
    allocator.round()
    assert (label(store, "a"), allocator.has_labelled) == ("n", True)
    change_metadata(store, "a", labels={"team": "x", NODE_LABEL: "elsewhere"})
    allocator.round()
    assert store.get("DeviceClaim", "default", "a")["metadata"]["labels"] == {"team": "x", NODE_LABEL: "n"}
    version = store.list().resource_version
    allocator.round()
    assert store.list().resource_version == version, "nothing is written twice"


def test_a_claim_that_is_prepared_keeps_the_label_of_its_node(store: Store) -> None:
    """Also if its devices are wanted back by force: the node must hear of that."""
    fill(store, gpu_class(), gpu_pool(), gpu_claim("a"))
    allocator = machine_allocator(store, settings=LABELS)
    allocator.round()
    noted = store.get("DeviceClaim", "default", "a")["metadata"]["annotations"]
    marked = {**noted, PREPARED_ON: "n", RELEASE: "forced"}
    change_metadata(store, "a", finalizers=[NODE_FINALIZER], annotations=marked)
    allocator.round()
    assert label(store, "a") == "n"
    change_metadata(store, "a", finalizers=[], annotations={k: v for k, v in marked.items() if k != PREPARED_ON})
    store.delete("DevicePool", None, "p")
    allocator.round()
    assert (held(store, "a"), label(store, "a")) == ([], None)


def test_an_upgrade_does_not_keep_claims_waiting(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_claims, "MAX_REPAIRS", 2)
    fill(store, gpu_class(), gpu_pool(devices=6), *(gpu_claim(f"c{number}") for number in range(5)))
    machine_allocator(store).round()
    allocator = machine_allocator(store, settings=LABELS)
    fill(store, gpu_claim("new"))
    allocator.round()
    labels = [label(store, f"c{number}") for number in range(5)]
    assert (labels.count("n"), label(store, "new"), allocator.has_labelled) == (2, "n", False)
    for _ in range(2):
        allocator.round()
    assert allocator.has_labelled


def test_labels_that_the_api_server_refuses_keep_no_others_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_claims, "MAX_REPAIRS", 2)
    refused = {f"c{number}" for number in range(3)}

    def before(number: int, what: str) -> None:
        if what.partition("/deviceclaims/")[2].partition("/")[0] in refused:
            raise ApiError(422, "Invalid", "a policy says no")

    kube = FakeKube()
    with closing(KubernetesStore(FakeClient(kube))) as plain:  # type: ignore[arg-type]
        fill(plain, gpu_class(), gpu_pool(devices=6), *(gpu_claim(f"c{number}") for number in range(6)))
        machine_allocator(plain).round()
    client = FakeClient(kube)
    client.before = before
    with closing(KubernetesStore(client)) as cluster:  # type: ignore[arg-type]
        allocator = machine_allocator(cluster, settings=LABELS)
        for _ in range(4):
            allocator.round()
        assert [label(cluster, f"c{number}") for number in range(6)] == [None, None, None, "n", "n", "n"]
        assert not allocator.loop.is_again


def test_a_round_follows_if_a_user_removes_the_label(store: Store) -> None:
    fill(store, gpu_class(), gpu_pool(), gpu_claim("a"))
    allocator = machine_allocator(store, settings=LABELS)
    allocator.round()
    before = store.get("DeviceClaim", "default", "a")
    assert not allocator._matters(Event(EventType.MODIFIED, before, "0"))
    change_metadata(store, "a", labels={})
    assert allocator._matters(Event(EventType.MODIFIED, store.get("DeviceClaim", "default", "a"), "0"))


def test_applying_a_manifest_leaves_the_label() -> None:
    old = gpu_claim("a")
    old["metadata"] |= {"labels": {NODE_LABEL: "n", "team": "x"}, "resourceVersion": "1"}
    new = merge_manifest(old, gpu_claim("a"))
    assert new["metadata"]["labels"] == {NODE_LABEL: "n"}


def test_a_claim_that_names_its_node_itself_has_no_label_before_it_has_devices(store: Store) -> None:
    fill(store, gpu_class(), gpu_claim("a", node="n"))
    machine_allocator(store, settings=LABELS).round()
    assert label(store, "a") is None
    obj = store.get("DeviceClaim", "default", "a")
    assert ALLOCATED_NODE not in obj["metadata"].get("annotations", {})


class TestPromise:
    """The Lease says whether the labels can be relied on."""

    @pytest.fixture
    def leases(self, tmp_path: Path) -> Iterator[SQLiteStore]:
        with closing(SQLiteStore(tmp_path / "leases.db")) as embedded:
            yield embedded

    @staticmethod
    def lease(store: SQLiteStore, holder: str, *, inherits: bool = True) -> Lease:
        made = Lease(store, holder, "devalloc-controller", term=LeaseTerm(15, 10))
        made.inherited = (LABELS_NODES,) if inherits else ()
        return made

    @staticmethod
    def is_kept(store: SQLiteStore) -> bool:
        return is_promised(store.get("Lease", "default", "devalloc-controller"), LABELS_NODES)

    def test_a_leader_promises_when_all_is_labelled_and_the_next_one_goes_on(self, leases: SQLiteStore) -> None:
        first, second = self.lease(leases, "first"), self.lease(leases, "second")
        assert first.take()
        assert not self.is_kept(leases)
        first.promises.add(LABELS_NODES)
        first.renew()
        assert self.is_kept(leases)
        first.give()
        assert self.is_kept(leases), "there is no leader, so no claim is allocated"
        assert second.take()
        assert self.is_kept(leases)
        second.renew()
        assert self.is_kept(leases)

    def test_a_leader_of_an_earlier_version_breaks_the_promise_until_all_is_labelled_again(
        self, leases: SQLiteStore
    ) -> None:
        first, old, third = (self.lease(leases, name, inherits=name != "old") for name in ("first", "old", "third"))
        assert first.take()
        first.promises.add(LABELS_NODES)
        first.renew()
        first.give()
        assert old.take()
        assert not self.is_kept(leases)
        old.renew()
        old.give()
        assert not self.is_kept(leases)
        assert third.take()
        assert not self.is_kept(leases)

    def test_a_promise_that_was_read_before_another_leader_came_is_void(
        self, leases: SQLiteStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first, old, third = (self.lease(leases, name, inherits=name != "old") for name in ("first", "old", "third"))
        assert first.take()
        first.promises.add(LABELS_NODES)
        first.renew()
        first.give()
        replace = leases.replace

        def replace_after_old(obj: Object) -> Object:
            monkeypatch.setattr(leases, "replace", replace)
            assert old.take()
            return replace(obj)

        monkeypatch.setattr(leases, "replace", replace_after_old)
        assert not third.take()
        old.renew()  # and allocates without labels
        old.give()
        assert third.take()
        assert not self.is_kept(leases)


def test_the_store_keeps_other_labels_and_finalizers(store: Store) -> None:
    from devalloc.store import Change

    made = store.create(gpu_claim("a") | {"metadata": {"name": "a", "namespace": "default", "labels": {"x": "1"}}})
    change = Change(
        Key.of(made), made["metadata"]["resourceVersion"], {"podNames": ["p"]}, {"n": "1"}, {"y": "2"}, ("f",)
    )
    (done,) = store.commit([change]).objects
    assert done == store.get(*Key.of(made))
    assert (done["metadata"]["labels"], done["metadata"]["finalizers"]) == ({"x": "1", "y": "2"}, ["f"])
    back = Change(Key.of(made), done["metadata"]["resourceVersion"], None, {"n": None}, {"x": None, "y": None}, ("f",))
    (done,) = store.commit([back]).objects
    assert (done["metadata"].get("labels"), done["metadata"]["finalizers"], done.get("status")) == (None, ["f"], None)


@pytest.mark.parametrize("is_labelled", [True, False])
def test_the_events_that_a_claim_costs_do_not_grow_with_the_number_of_nodes(is_labelled: bool) -> None:
    """Unless the nodes watch all claims, as they did before there was a label."""

    def events_for(nodes: int) -> float:
        kube = FakeKube()
        names = [f"node-{number:04}" for number in range(nodes)]
        with closing(KubernetesStore(FakeClient(kube))) as cluster:  # type: ignore[arg-type]
            fill(cluster, gpu_class(), *(gpu_pool(f"{name}-gpus", 1, name) for name in names[:10]))
            since = kube.revision
            fill(cluster, *(gpu_claim(f"c{number}") for number in range(10)))
            machine_allocator(cluster, settings=AllocatorSettings(labels_nodes=is_labelled)).round()
            assert all(held(cluster, f"c{number}") for number in range(10))
        selectors = [{"labelSelector": f"{NODE_LABEL}={node_label(name)}"} if is_labelled else {} for name in names]
        changes = [each for each in kube.history if each[0] > since and "/deviceclaims/" in each[2]]
        return (
            sum(
                bool(event_type(type_, obj, before, selector))
                for _, type_, _, obj, before in changes
                for selector in selectors
            )
            / 10
        )

    few, many = events_for(10), events_for(1_000)
    assert few == (2 if is_labelled else 30), "the allocation is two writes, as was the creation one"
    assert many == (few if is_labelled else 100 * few)
