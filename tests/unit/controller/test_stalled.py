"""Only what a change of the object itself can help is Stalled: tools such as Flux then fail at once."""

from __future__ import annotations

from typing import Any

import pytest

from devalloc.api.decode import decode
from devalloc.controller.reconcile.decision import IN_CONDITIONS
from devalloc.controller.reconcile.loop import AllocatorSettings
from devalloc.store import Key
from devalloc.store.sqlite import SQLiteStore
from tests.support.fleet_manifests import fill, gpu_claim, gpu_class, gpu_pool, held
from tests.support.host_pools import host, machine
from tests.support.machine_allocator import machine_allocator

SETTINGS = AllocatorSettings(form=IN_CONDITIONS)


def stalled(store: SQLiteStore, key: Key) -> tuple[str, str] | None:
    """Status and reason."""
    obj = store.get(*key)
    assert [problem for problem in decode(obj).problems if problem.path.startswith("status")] == []
    conditions = [one for one in obj["status"]["conditions"] if one["type"] == "Stalled"]
    return (conditions[0]["status"], conditions[0]["reason"]) if conditions else None


def correct(store: SQLiteStore, key: Key, spec: Any) -> None:
    store.replace({**store.get(*key), "spec": spec})


def test_a_claim_is_while_it_is_invalid(store: SQLiteStore) -> None:
    wrong = gpu_claim("wrong")
    wrong["spec"]["claims"][0]["constraints"] = "device.model =="
    early = gpu_claim("early")
    early["spec"]["claims"][0]["deviceClass"] = "later"
    fill(store, gpu_pool(), gpu_class(), wrong, gpu_claim("big", 9), early)
    allocator = machine_allocator(store, settings=SETTINGS)
    allocator.round()
    of = {name: stalled(store, Key("DeviceClaim", "default", name)) for name in ("wrong", "big", "early")}
    assert of == {"wrong": ("True", "ClaimInvalid"), "big": None, "early": None}
    correct(store, Key("DeviceClaim", "default", "wrong"), gpu_claim("wrong")["spec"])
    allocator.round()
    assert len(held(store, "wrong")) == 1
    assert stalled(store, Key("DeviceClaim", "default", "wrong")) is None


def test_a_machine_is_while_it_is_invalid(store: SQLiteStore) -> None:
    wrong = machine("wrong", "1", "1Gi")
    right = wrong["spec"]
    fill(store, host("n", cpus=4, numa=1), {**wrong, "spec": {**right, "cpu": {"min": "3", "max": "1"}}})
    fill(store, machine("big", "8", "1Gi"))
    allocator = machine_allocator(store, settings=SETTINGS)
    allocator.round()
    of = {name: stalled(store, Key("VirtualMachine", "default", name)) for name in ("wrong", "big")}
    assert of == {"wrong": ("True", "MachineInvalid"), "big": None}
    correct(store, Key("VirtualMachine", "default", "wrong"), right)
    allocator.round()
    assert stalled(store, Key("VirtualMachine", "default", "wrong")) is None


@pytest.mark.parametrize("wrong", [{"cpu": {"min": "3", "max": "1"}}, {"cpu": {"min": "8", "max": "8"}}])
def test_a_machine_that_was_refused_and_is_to_run_no_more_waits_for_nothing(
    store: SQLiteStore, wrong: dict[str, Any]
) -> None:
    body, key = machine("web", "1", "1Gi"), Key("VirtualMachine", "default", "web")
    fill(store, host("n", cpus=4, numa=1), {**body, "spec": {**body["spec"], **wrong}})
    allocator = machine_allocator(store, settings=SETTINGS)
    allocator.round()
    assert store.get(*key)["status"]["reason"] in ("MachineInvalid", "NodesTooSmall")
    correct(store, key, {**body["spec"], "running": False})
    allocator.round()
    (placed,) = store.get(*key)["status"]["conditions"]
    assert (placed["type"], placed["status"], placed["reason"]) == ("Placed", "False", "StoppedOnRequest")
    assert store.get(*key)["status"].keys() == {"conditions"}
    version = store.list().resource_version
    allocator.round()
    assert store.list().resource_version == version
