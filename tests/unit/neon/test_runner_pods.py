"""Which pod runs a machine: written to its status, from the labels and annotations of pods as NeonVM makes them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from devalloc.store import Change, CommitResult, Conflict, Event, EventType, Invalid, NotLeader, Unavailable
from devalloc.store.kubernetes import KubernetesStore
from devalloc.store.kubernetes.reflector import clean_object
from devalloc.store.sqlite import SQLiteStore
from devalloc_neon.runner_pods import RUNNER_PODS, RunnerPods
from tests.support.fake_kube import FakeClient, FakeKube
from tests.support.permit_bench import KIND, machine
from tests.support.waiting import in_threads, until

Object = dict[str, Any]
AMOUNTS = {"cpus": {"min": 1, "max": 4, "use": 1}, "memorySlots": {"min": 1, "max": 4, "use": 1}}


def pod(name: str, of: str = "web", *, node: str = "node-a", phase: str = "Running", created: int = 0) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {"vm.neon.tech/name": of},
            "annotations": {"vm.neon.tech/resources": json.dumps(AMOUNTS)},
            "creationTimestamp": f"2026-11-27T10:00:{created:02}Z",
            "resourceVersion": "1",
        },
        "spec": {"nodeName": node},
        "status": {"phase": phase},
    }


class World:
    """A store with machines, and pods that events tell of."""

    def __init__(self, store: SQLiteStore) -> None:
        self.store = store
        self.pods = RunnerPods(store)

    def machine(self, name: str = "web", **more: Any) -> None:
        self.tell(self.store.create(machine(name, **more)))

    def tell(self, obj: Object, kind: EventType = EventType.MODIFIED) -> None:
        self.pods.heard(Event(kind, obj, "1"))

    def named(self, name: str = "web") -> str | None:
        status = self.store.get(KIND, "default", name).get("status", {})
        pod_name: str | None = status.get("runnerPod")
        return pod_name


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with closing(SQLiteStore(tmp_path / "store.db")) as store:
        yield World(store)


def test_the_newest_pod_on_its_node_is_named_until_it_is_gone(world: World) -> None:
    world.machine()
    world.tell(pod("web-a", created=1))
    assert world.named() == "web-a"
    world.tell(pod("web-b", created=2))
    assert world.named() == "web-b"
    world.tell(pod("web-c", created=3, node="node-b"))  # the target of a migration
    assert world.named() == "web-b"
    world.tell(pod("web-b", created=2, phase="Succeeded"))
    assert world.named() == "web-a"
    world.tell(pod("web-a", created=1), EventType.DELETED)
    assert world.named() is None


def test_a_pod_that_was_there_before_its_machine_is_named(world: World) -> None:
    world.tell(pod("web-a"))
    world.machine()
    assert world.named() == "web-a"


@pytest.mark.parametrize("labels", [{}, {"autoscaling.neon.tech/enabled": "yes"}])
def test_a_machine_whose_owner_did_not_ask_for_it_keeps_its_status(world: World, labels: dict[str, str]) -> None:
    world.machine(labels=labels)
    world.tell(pod("web-a"))
    assert world.named() is None


def without(obj: Object, part: str) -> Object:
    return {**obj, "metadata": {**obj["metadata"], part: {}}}


@pytest.mark.parametrize(
    "other",
    [
        pod("web-a", of="other"),
        without(pod("web-a"), "labels"),
        without(pod("web-a"), "annotations"),
        {**pod("web-a"), "metadata": {**pod("web-a")["metadata"], "namespace": "elsewhere"}},
        {**pod("web-a"), "metadata": {**pod("web-a")["metadata"], "deletionTimestamp": "2026-11-27T10:00:00Z"}},
        {**pod("web-a"), "spec": {}},
    ],
    ids=["of another", "no label", "no amounts", "elsewhere", "ends", "on no node"],
)
def test_other_pods_are_not_its_own(world: World, other: Object) -> None:
    world.machine()
    world.tell(other)
    assert world.named() is None


def test_a_pod_that_changes_its_label_leaves_the_machine_that_it_named(world: World) -> None:
    world.machine()
    world.machine("other")
    world.tell(pod("a"))
    world.tell(pod("a", of="other"))
    assert (world.named(), world.named("other")) == (None, "a")


def test_what_others_write_meanwhile_stays(world: World) -> None:
    world.machine()
    old = world.store.get(KIND, "default", "web")
    world.store.replace_status({**old, "status": {"phase": "Running", "message": "as its node says"}})
    world.tell(pod("web-a"))  # it knows the object as it was before
    assert world.store.get(KIND, "default", "web")["status"] == {
        "phase": "Running",
        "message": "as its node says",
        "runnerPod": "web-a",
    }


def test_nothing_is_written_that_is_so_already(world: World) -> None:
    world.machine()
    world.tell(pod("web-a"))
    before = world.store.get(KIND, "default", "web")["metadata"]["resourceVersion"]
    world.tell(pod("web-a"))
    world.tell(world.store.get(KIND, "default", "web"))
    assert world.store.get(KIND, "default", "web")["metadata"]["resourceVersion"] == before


def test_a_process_that_begins_reads_what_is_there_and_follows_it(world: World) -> None:
    world.store.create(machine("web"))
    world.store.create(pod("web-a"))
    with in_threads(RunnerPods(world.store).run):
        until(lambda: world.named() == "web-a", "the pod is named")
        world.store.delete("Pod", "default", "web-a")
        until(lambda: world.named() is None, "it is gone")


def test_a_machine_that_the_store_refuses_does_not_block_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.machine("a")
    world.machine("b")
    write = world.store.commit

    def refused(changes: Sequence[Change]) -> CommitResult:
        if changes[0].key.name == "a":
            raise Invalid("cannot write it: its spec has not been valid since an update of its CRD")
        return write(changes)

    monkeypatch.setattr(world.store, "commit", refused)
    world.tell(pod("of-a", of="a"))
    world.pods.write([("default", "a"), ("default", "b")])
    world.tell(pod("of-b", of="b"))
    assert (world.named("a"), world.named("b")) == (None, "of-b")


def test_a_machine_that_others_write_all_the_time_is_given_up_for_now(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.machine()

    def conflict(changes: Sequence[Change]) -> CommitResult:
        raise Conflict({changes[0].key: "it has changed"})

    monkeypatch.setattr(world.store, "commit", conflict)
    with pytest.raises(Unavailable, match="VirtualMachine default/web keeps changing"):
        world.tell(pod("web-a"))
    world.store.delete(KIND, "default", "web")
    world.tell(pod("web-a"))  # it is gone


def test_a_process_that_no_longer_leads_writes_nothing() -> None:
    kube = FakeKube()
    is_led = True
    with closing(
        KubernetesStore(FakeClient(kube), resources=(RUNNER_PODS,), may_write=lambda: is_led)  # type: ignore[arg-type]
    ) as store:
        pods = RunnerPods(store)
        pods.heard(Event(EventType.ADDED, store.create(machine("web")), "1"))
        is_led = False
        with pytest.raises(NotLeader):
            pods.heard(Event(EventType.ADDED, pod("web-a"), "1"))
        assert "runnerPod" not in store.get(KIND, "default", "web").get("status", {})
        is_led = True
        pods.heard(Event(EventType.ADDED, pod("web-a"), "1"))
        assert store.get(KIND, "default", "web")["status"]["runnerPod"] == "web-a"


def test_pods_without_the_label_are_not_even_read() -> None:
    assert RUNNER_PODS.params == {"labelSelector": "vm.neon.tech/name"}
    assert RUNNER_PODS.covers(pod("a"))
    assert not RUNNER_PODS.covers(without(pod("a"), "labels"))


def test_of_a_pod_only_what_is_needed_stays_in_memory() -> None:
    long = {**pod("a"), "spec": {"nodeName": "n", "volumes": [{"name": "v"}], "hostname": "h" * 1000}}
    container = {"name": "runner", "env": [{"name": "A", "value": "x" * 1000}], "resources": {"limits": {"cpu": "1"}}}
    long["spec"]["containers"], long["status"] = [container], {"phase": "Running", "message": "m" * 1000}
    read = clean_object(long, RUNNER_PODS)
    assert read["metadata"] == long["metadata"]
    assert read["spec"] == {"nodeName": "n", "containers": [{"resources": {"limits": {"cpu": "1"}}}]}
    assert read["status"] == {"phase": "Running"}
