"""Machines whose node has no plugin say so, and so do Events."""

from __future__ import annotations

from typing import Any

import pytest

from devalloc.api import meta
from devalloc.controller.reconcile.device_claims import AllocatorListener
from devalloc.controller.reconcile.events import ObjectEvent
from devalloc.controller.reconcile.requester import events_of_write
from devalloc.machines.schedule.events import node_events
from devalloc.machines.schedule.requester import requesters
from devalloc.store.sqlite import SQLiteStore
from tests.support.fleet_manifests import fill, gpu_pool
from tests.support.host_pools import host, machine, status
from tests.support.machine_allocator import machine_allocator

Object = dict[str, Any]


def node(name: str = "n", publish: str | None = None) -> Object:
    labels = {"labels": {"devalloc.io/publish": publish}} if publish else {}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, **labels}}


def label(store: SQLiteStore, publish: str | None) -> None:
    before = store.get("Node", None, "n")
    unlabelled = {k: v for k, v in before["metadata"].items() if k != "labels"}
    store.replace({**before, "metadata": {**unlabelled, **node("n", publish)["metadata"]}})


def condition(store: SQLiteStore) -> Object:
    listed = status(store, "web").get("conditions", [])
    return next((one for one in listed if one["type"] == "Served"), {})


def held(store: SQLiteStore, **fields: Any) -> None:
    """What a node writes on a machine that it has."""
    stored = store.get("VirtualMachine", "default", "web")
    metadata = {**stored["metadata"], "finalizers": [meta.NODE_FINALIZER], "annotations": {meta.PREPARED_ON: "n"}}
    stored = store.replace({**stored, "metadata": metadata})
    store.replace_status({**stored, "status": {**stored.get("status", {}), **fields}})


@pytest.mark.parametrize(
    ("there", "reason", "message"),
    [
        (
            [node("n")],
            "NodeNotServed",
            "node n publishes no DevicePools, so no plugin there runs machines; to run one: ",
        ),
        ([node("n", "slices")], "NodeNotServed", "node n is labelled devalloc.io/publish=slices"),
        ([node("n", "none"), gpu_pool()], "NodeNotServed", "node n is labelled devalloc.io/publish=none"),
        (
            [node("n", "host")],
            "NodeNotServed",
            "no node plugin serves node n, which publishes no DevicePools: start devalloc-node.service there",
        ),
        ([node("n", "pools")], "NodeNotServed", "no node plugin serves node n, which publishes no DevicePools: check"),
        ([node("m")], "NodeNotFound", "there is no Node n in this cluster"),
    ],
)
def test_a_machine_for_a_node_that_runs_none_says_so(
    store: SQLiteStore, there: list[Object], reason: str, message: str
) -> None:
    events: list[ObjectEvent] = []
    fill(store, *there, machine("web", nodeName="n"))
    listener = AllocatorListener(
        wrote=lambda before, after: events.extend(events_of_write(before, after, requesters()))
    )
    allocator = machine_allocator(store, listener=listener)
    for _ in range(3):
        allocator.round()
    machine_status = status(store, "web")
    assert (machine_status["phase"], machine_status["reason"]) == ("Pending", reason)
    assert machine_status["message"].startswith(message)
    assert (condition(store)["status"], condition(store)["reason"]) == ("False", reason)
    assert [(one.type, one.reason) for one in events] == [("Warning", reason)], "once"


def test_a_machine_that_is_neither_placed_nor_served_is_not_written_again(store: SQLiteStore) -> None:
    fill(store, node("n", "none"), host("n", cpus=2), machine("web", "8", "8Gi", nodeName="n"))
    allocator = machine_allocator(store)
    allocator.round()
    allocator.round()
    before = store.get("VirtualMachine", "default", "web")
    assert [(one["type"], one["status"]) for one in before["status"]["conditions"]] == [
        ("Placed", "False"),
        ("Ready", "False"),
        ("Served", "False"),
    ]
    allocator.round()
    allocator.round()
    assert store.get("VirtualMachine", "default", "web") == before


@pytest.mark.parametrize("there", [[node("n", "host"), gpu_pool()], [node("n"), gpu_pool()], []])
def test_a_node_that_has_or_may_have_a_plugin_is_left_to_say_so_itself(store: SQLiteStore, there: list[Object]) -> None:
    fill(store, *there, machine("web", nodeName="n"))
    machine_allocator(store).round()
    assert status(store, "web") == {}


def test_a_plugin_that_publishes_nothing_serves_what_it_has_taken(store: SQLiteStore) -> None:
    fill(store, node("n", "host"), machine("web", nodeName="n"))
    allocator = machine_allocator(store)
    allocator.round()
    assert condition(store)["status"] == "False"
    held(store, phase="Pending", reason="QemuMissing", message="there is no QEMU")
    allocator.round()
    assert (status(store, "web")["reason"], condition(store)) == ("QemuMissing", {})


def test_a_stopped_machine_does_not_ask_whether_its_node_has_a_plugin(store: SQLiteStore) -> None:
    fill(store, node("n", "host"), machine("web", nodeName="n", running=False))
    machine_allocator(store).round()
    assert condition(store) == {}


def test_it_is_taken_back_when_the_node_is_served_again(store: SQLiteStore) -> None:
    fill(store, node("n"), machine("web", nodeName="n"))
    allocator = machine_allocator(store)
    allocator.round()
    fill(store, gpu_pool())
    allocator.round()
    now = status(store, "web")
    (ready,) = now.pop("conditions")
    assert now == {"phase": "Pending"}
    assert (ready["type"], ready["status"], ready["reason"]) == ("Ready", "False", "NotStarted")
    assert ready["message"] == "on node n, which has not started it yet"


def test_what_a_node_said_last_stays_and_a_condition_says_how_old_it_is(store: SQLiteStore) -> None:
    fill(store, node("n", "pools"), machine("web", nodeName="n"))
    held(store, phase="Pending", reason="QemuMissing", message="there is no QEMU")
    allocator = machine_allocator(store)
    allocator.round()
    assert condition(store) == {}
    label(store, None)
    store.delete("VirtualMachine", "default", "web")
    allocator.round()
    assert status(store, "web")["reason"] == "QemuMissing"
    assert "only if nothing of it runs there any more, remove its finalizer" in condition(store)["message"]


def test_what_a_node_says_of_a_machine_is_an_event_once(store: SQLiteStore) -> None:
    events: list[ObjectEvent] = []
    fill(store, node("n", "host"), machine("web", nodeName="n"))
    listener = AllocatorListener(heard=lambda before, after: events.extend(node_events(before, after)))
    allocator = machine_allocator(store, listener=listener)
    allocator.round()
    for reason in ("QemuMissing", "QemuMissing", "DeviceGone"):
        held(store, phase="Pending", reason=reason, message=f"because of {reason}")
        allocator.round()
    held(store, phase="Running", reason="", message="")
    allocator.round()
    assert [(one.reason, one.note) for one in events] == [
        ("QemuMissing", "because of QemuMissing"),
        ("DeviceGone", "because of DeviceGone"),
    ]
