"""Pods that run NeonVM's machines count on their nodes from binding until they are gone, once with their machine."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devalloc.machines.permits import Settings
from devalloc.machines.permits.ledger import Host, PermitLedgers
from devalloc.scaling.resources import NO_RESOURCES, Resources
from devalloc.store.kubernetes.reflector import clean_object
from devalloc_neon.machines import read_runner_pod
from devalloc_neon.runner_pods import RUNNER_PODS
from tests.support.neon_installation import vm
from tests.support.permit_bench import amounts, machine
from tests.support.permit_records import SOURCES

Object = dict[str, Any]
LIMIT = amounts(10_000, 20)
POD = ("default", "vm1-x7k2p")
OWNER = {"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine", "name": "vm1", "uid": "u-1", "controller": True}


def neon_vm(version: int, uid: str = "u-1", **status: str) -> Object:
    obj = vm("vm1", ("250m", "4", "1"), (1, 8, 2))
    stored = {"namespace": "default", "uid": uid, "resourceVersion": str(version)}
    return {**obj, "metadata": {**obj["metadata"], **stored}, "status": status}


def running(version: int, node: str = "node-a", pod: str = POD[1]) -> Object:
    return neon_vm(version, phase="Running", node=node, podName=pod)


def pod(
    node: str | None = "node-a",
    phase: str = "Pending",
    usage: Resources | None = None,
    *,
    name: str = POD[1],
    use: tuple[str, int] = ("1", 2),
    most: tuple[str, int] = ("4", 8),
    owner: Object = OWNER,
) -> Object:
    resources = {
        "cpus": {"min": "250m", "max": most[0], "use": use[0]},
        "memorySlots": {"min": 1, "max": most[1], "use": use[1]},
        "memorySlotSize": "1Gi",
    }
    annotations = {"vm.neon.tech/resources": json.dumps(resources)}
    if usage is not None:
        annotations["vm.neon.tech/usage"] = json.dumps({"cpu": f"{usage.cpu}m", "memory": usage.memory})
    return {
        "kind": "Pod",
        "metadata": {
            "namespace": "default",
            "name": name,
            "labels": {"vm.neon.tech/name": "vm1"},
            "annotations": annotations,
            "ownerReferences": [owner],
        },
        "spec": {} if node is None else {"nodeName": node},
        "status": {"phase": phase},
    }


class Book:
    def __init__(self) -> None:
        self.ledgers = PermitLedgers(Settings(), SOURCES)
        self.ledgers.begin({"node-a": Host(LIMIT), "node-b": Host(LIMIT)})

    def put(self, obj: Object) -> None:
        if obj["kind"] != "Pod":
            self.ledgers.put(obj)
        elif (read := read_runner_pod(obj)) is not None:
            self.ledgers.put_runner(read)
        else:
            self.ledgers.drop_runner((obj["metadata"]["namespace"], obj["metadata"]["name"]))

    def counted(self, node: str = "node-a") -> Resources:
        return self.ledgers.nodes[node].counted


@pytest.fixture
def book() -> Book:
    return Book()


def test_a_bound_pod_counts_before_its_machine_runs_and_once_when_it_does(book: Book) -> None:
    book.put(neon_vm(1))
    book.put(pod(node=None))
    assert book.counted() == NO_RESOURCES, "it is on no node"
    book.put(pod())
    assert book.counted() == amounts(1000, 2)
    book.put(neon_vm(2, phase="Pending", podName=POD[1]))
    assert book.counted() == amounts(1000, 2)
    book.put(running(3))
    book.put(pod(phase="Running"))
    assert book.counted() == amounts(1000, 2)


def test_a_pod_counts_until_it_has_ended_though_its_machine_was_deleted(book: Book) -> None:
    book.put(running(1))
    book.put(pod(phase="Running", usage=amounts(2000, 4)))
    assert book.counted() == amounts(2000, 4), "what the pod says counts with its machine"
    book.ledgers.drop(SOURCES.key(running(1)))
    assert book.counted() == amounts(2000, 4)
    book.put(pod(phase="Succeeded", usage=amounts(2000, 4)))
    assert book.counted() == NO_RESOURCES


def test_a_pod_that_changes_after_its_machine_was_deleted_still_counts(book: Book) -> None:
    """As each does that ends: its deletion, its conditions and its containers are written one after the other."""
    book.put(running(1))
    book.put(pod(phase="Running", usage=amounts(2000, 4)))
    book.ledgers.drop(SOURCES.key(running(1)))
    for _ in range(3):
        ending = pod(phase="Running", usage=amounts(2000, 4))
        ending["metadata"]["deletionTimestamp"] = "2026-11-29T10:00:00Z"
        book.put(ending)
        assert book.counted() == amounts(2000, 4)
    book.put(pod(phase="Running", owner={**OWNER, "uid": "u-9"}))
    assert book.counted() == NO_RESOURCES, "another pod of its name has an owner that was never seen"


def test_what_a_machine_had_counts_although_its_pod_says_less(book: Book) -> None:
    book.put({**running(1), "status": {**running(1)["status"], "cpus": "3", "memorySize": "6Gi"}})
    book.put(pod(phase="Running"))
    book.ledgers.drop(SOURCES.key(running(1)))
    assert book.counted() == amounts(3000, 6)
    book.ledgers.drop_runner(POD)
    assert book.counted() == NO_RESOURCES


def test_a_machine_that_migrates_counts_on_both_nodes(book: Book) -> None:
    book.put(running(1))
    book.put(pod(phase="Running"))
    book.put(pod("node-b", "Running", name="vm1-target"))
    assert (book.counted("node-a"), book.counted("node-b")) == (amounts(1000, 2), amounts(1000, 2))
    book.put(running(2, "node-b", "vm1-target"))
    assert (book.counted("node-a"), book.counted("node-b")) == (amounts(1000, 2), amounts(1000, 2))
    book.ledgers.drop_runner(POD)
    assert (book.counted("node-a"), book.counted("node-b")) == (NO_RESOURCES, amounts(1000, 2))


@pytest.mark.parametrize("successor", [None, neon_vm(2, uid="u-2")], ids=["gone", "another"])
def test_a_pod_of_a_machine_that_is_no_longer_there_takes_no_room(book: Book, successor: Object | None) -> None:
    """A pod that comes after its machine has gone: a user who may create pods can name it as the owner."""
    book.put(neon_vm(1))
    assert SOURCES.key(neon_vm(1)) in book.ledgers.machines
    if successor is None:
        book.ledgers.drop(SOURCES.key(neon_vm(1)))
        assert not book.ledgers.machines
    else:
        book.put(successor)
    book.put(pod())
    assert book.counted() == NO_RESOURCES


def test_only_a_machine_that_exists_takes_room_and_no_more_than_it_may_have(book: Book) -> None:
    book.put(pod(use=("900", 16_000)))
    assert book.counted() == NO_RESOURCES, "any user who may create pods can name any owner"
    book.put(neon_vm(1))
    assert book.counted() == amounts(4000, 8)
    book.put(pod(owner={**OWNER, "apiVersion": "devalloc.io/v1alpha1"}))
    assert book.counted() == NO_RESOURCES


def test_many_pods_that_name_a_machine_take_the_room_of_one_on_a_node(book: Book) -> None:
    book.put(running(1))
    book.put(pod(phase="Running"))
    for number in range(20):
        book.put(pod(name=f"forged-{number}", use=("4", 8)))
    assert book.counted() == amounts(1000, 2) + amounts(4000, 8)
    for number in range(20):
        book.ledgers.drop_runner(("default", f"forged-{number}"))
    assert book.counted() == amounts(1000, 2)


def test_a_machine_of_another_namespace_is_no_owner(book: Book) -> None:
    elsewhere = pod()
    elsewhere["metadata"]["namespace"] = "elsewhere"
    book.put(neon_vm(1))
    book.put(elsewhere)
    assert book.counted() == NO_RESOURCES


def test_a_pod_that_takes_another_owner_counts_for_that_one(book: Book) -> None:
    other = neon_vm(2, "u-2")
    other["metadata"]["name"] = "vm2"
    book.put(neon_vm(1))
    book.put(pod())
    book.put(other)
    book.put(pod(owner={**OWNER, "uid": "u-2"}))
    assert book.counted() == amounts(1000, 2)
    book.ledgers.drop(SOURCES.key(neon_vm(1)))
    assert book.counted() == amounts(1000, 2)
    book.ledgers.drop_runner(POD)
    assert book.counted() == NO_RESOURCES


def test_another_machine_of_the_name_does_not_inherit_the_pod(book: Book) -> None:
    book.put(running(1))
    book.put(pod(phase="Running"))
    book.put(neon_vm(2, "u-2"))
    assert book.counted() == amounts(1000, 2), "the old pod is still there"
    book.ledgers.drop_runner(POD)
    assert book.counted() == NO_RESOURCES


def test_a_devalloc_machine_is_counted_beside_the_pod_of_neonvm_that_it_names(book: Book) -> None:
    own = machine("web", least=amounts(2000, 4))
    own["status"] = {"nodeName": "node-a", "phase": "Running", "machineID": "1", "runnerPod": POD[1]}
    own["metadata"] |= {"resourceVersion": "7", "namespace": "default"}
    book.put(neon_vm(1))
    book.put(pod(phase="Running"))
    before = book.counted()
    book.put(own)
    assert book.counted().cpu >= before.cpu + 2000


def test_a_pod_whose_machine_was_deleted_before_the_controller_led_counts_until_it_has_ended(book: Book) -> None:
    before, later = pod(phase="Running", usage=amounts(2000, 4)), pod(name="forged", owner={**OWNER, "uid": "u-9"})
    inherited = read_runner_pod(before)
    assert inherited is not None
    book.ledgers.put_runner(inherited, is_inherited=True)
    assert book.counted() == amounts(2000, 4), "its QEMU may still have that"
    assert [each.key for each in book.ledgers.ownerless_runners] == [POD]
    book.put(later)
    assert book.counted() == amounts(2000, 4), "while this process leads it sees each machine before it is deleted"
    before["metadata"]["deletionTimestamp"] = "2026-11-29T10:00:00Z"
    book.put(before)
    assert book.counted() == amounts(2000, 4)
    book.put(pod(phase="Failed"))
    assert book.counted() == NO_RESOURCES
    book.put(pod(phase="Running"))
    assert book.counted() == NO_RESOURCES, "a new pod of the name needs a machine"


def inherit(book: Book, obj: Object) -> None:
    read = read_runner_pod(clean_object(obj, RUNNER_PODS))
    assert read is not None
    book.ledgers.put_runner(read, is_inherited=True)


@pytest.mark.parametrize(
    ("spec", "counted"),
    [
        ({"containers": [{"resources": {"limits": {"cpu": "500m", "memory": "1Gi"}}}]}, amounts(500, 1)),
        ({"containers": [{"resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}] * 2}, amounts(2000, 2)),
        (
            {"resources": {"limits": {"cpu": "3", "memory": "4Gi"}}, "containers": [{"name": "runner"}]},
            amounts(3000, 4),
        ),
        ({"containers": [{"resources": {"limits": {"memory": "1Gi"}}}]}, amounts(10_000, 1)),
        ({"containers": [{"resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}, {"name": "other"}]}, LIMIT),
        ({"containers": [{"resources": {"limits": {"cpu": "0", "memory": "?"}}}]}, LIMIT),
        ({"containers": [{"resources": {"limits": {"neonvm/kvm": "1", "neonvm/vhost-net": "1"}}}]}, LIMIT),
        ({}, LIMIT),
    ],
    ids=["one", "two", "pod", "memory", "one-of-two", "no-amounts", "devices", "none"],
)
def test_an_inherited_pod_without_its_machine_counts_for_no_more_than_it_can_have(
    book: Book, spec: Object, counted: Resources
) -> None:
    """Anyone may have made it, with any amounts in its annotations, and have it end as late as they like."""
    forged = pod(use=("900", 16_000), most=("512", 512))
    forged["spec"] |= spec
    inherit(book, forged)
    assert book.counted() == counted


def test_an_inherited_pod_without_its_machine_counts_for_no_more_than_its_machine_could_have(book: Book) -> None:
    """NeonVM lets no machine have more; a machine that is there counts for no more either."""
    inherit(book, pod(use=("900", 16_000), usage=amounts(900_000, 16_000), most=("2", 3)))
    assert book.counted() == amounts(2000, 3)


def test_limits_above_what_an_inherited_runner_pod_says_take_nothing_of_it(book: Book) -> None:
    real = pod(phase="Running", usage=amounts(2000, 4))
    real["spec"]["containers"] = [{"resources": {"limits": {"cpu": "4", "memory": "8Gi"}}}]
    inherit(book, real)
    assert book.counted() == amounts(2000, 4)


def test_an_inherited_pod_counts_in_full_as_soon_as_the_size_of_its_node_is_published(book: Book) -> None:
    book.ledgers.limit({})
    inherit(book, pod(phase="Running", usage=amounts(2000, 4)))
    assert book.counted() == NO_RESOURCES, "nothing is granted there either"
    book.ledgers.limit({"node-a": Host(LIMIT)})
    assert book.counted() == amounts(2000, 4)


def test_an_inherited_pod_whose_machine_is_seen_counts_for_at_most_what_that_may_have(book: Book) -> None:
    read = read_runner_pod(pod(use=("900", 16_000)))
    assert read is not None
    book.ledgers.put_runner(read, is_inherited=True)
    book.put(neon_vm(1))
    assert book.counted() == amounts(4000, 8)
    assert not book.ledgers.ownerless_runners
    book.put(pod(owner={**OWNER, "uid": "u-9"}))
    assert book.counted() == NO_RESOURCES, "and for none if it takes another owner"


EVENTS = st.lists(st.integers(0, 8), max_size=14)


@given(EVENTS)
@settings(deadline=None)
def test_whatever_the_order_of_events_the_ledger_is_that_of_the_last_state(events: list[int]) -> None:
    """A server that begins anew counts the same, up to what a machine had that is gone."""
    changes: list[Object | None] = [
        neon_vm(1), running(1), running(1, "node-b"), None,
        pod(node=None), pod(), pod("node-b", "Running"), pod(phase="Failed"), None,
    ]  # fmt: skip
    book, last_vm, last_pod, was_owned = Book(), None, None, False
    for version, event in enumerate(events, 1):
        change = changes[event]
        if change is None and event == 3:
            book.ledgers.drop(SOURCES.key(neon_vm(1)))
            last_vm = None
        elif change is None:
            book.ledgers.drop_runner(POD)
            last_pod = None
        elif change["kind"] == "Pod":
            book.put(change)
            last_pod = change
        else:
            last_vm = {**change, "metadata": {**change["metadata"], "resourceVersion": str(version)}}
            book.put(last_vm)
        is_live = last_pod is not None and read_runner_pod(last_pod) is not None
        was_owned = last_vm is not None or (was_owned and is_live)
    anew = Book()
    for obj in (last_vm, last_pod):
        if obj is not None:
            anew.put(obj)
    for node in ("node-a", "node-b"):
        if last_vm is not None:
            assert book.counted(node) == anew.counted(node)
        elif last_pod is None or read_runner_pod(last_pod) is None:
            assert book.counted(node) == NO_RESOURCES
        elif was_owned and last_pod["spec"]["nodeName"] == node:
            assert book.counted(node) == amounts(1000, 2), "until the pod is gone"
