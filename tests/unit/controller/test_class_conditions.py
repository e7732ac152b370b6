"""A class says whether claims can name it: once for each generation."""

from __future__ import annotations

from typing import Any

import pytest

from devalloc.api.decode import decode
from devalloc.controller.reconcile.class_conditions import find_class_fault
from devalloc.controller.reconcile.decision import IN_CONDITIONS
from devalloc.controller.reconcile.device_claims import DeviceClaimAllocator
from devalloc.controller.reconcile.loop import AllocatorSettings
from devalloc.store.sqlite import SQLiteStore
from tests.support.fleet_manifests import fill, gpu_claim, gpu_class, gpu_pool, held

SETTINGS = AllocatorSettings(form=IN_CONDITIONS)


def condition(store: SQLiteStore, name: str) -> dict[str, Any]:
    valid, *stalled = store.get("DeviceClass", None, name)["status"]["conditions"]
    assert valid["type"] == "Valid"
    words = ("reason", "message", "lastTransitionTime", "observedGeneration")
    expected = [{"type": "Stalled", "status": "True", **{word: valid[word] for word in words}}]
    assert stalled == (expected if valid["status"] == "False" else []), "tools do not wait until it is corrected"
    return dict(valid)


def test_a_class_whose_expression_does_not_compile_says_so(store: SQLiteStore) -> None:
    fill(store, gpu_pool(), gpu_class(), gpu_class("broken", constraints="device.model =="), gpu_claim("a"))
    DeviceClaimAllocator(store, settings=SETTINGS).round()
    assert held(store, "a") == ["p/d0"]
    good, broken = condition(store, "gpu"), condition(store, "broken")
    assert (good["status"], good["reason"], good["observedGeneration"]) == ("True", "ClassValid", 1)
    assert (broken["status"], broken["reason"], broken["observedGeneration"]) == ("False", "ClassInvalid", 1)
    assert broken["message"].startswith("spec.constraints: line 1, column ")
    assert decode(store.get("DeviceClass", None, "broken")).problems == []


def test_it_is_written_once_for_each_generation(store: SQLiteStore) -> None:
    fill(store, gpu_class(constraints="device.model =="))
    allocator = DeviceClaimAllocator(store, settings=SETTINGS)
    allocator.round()
    version = store.list().resource_version
    allocator.round()
    DeviceClaimAllocator(store, settings=SETTINGS).round()
    assert store.list().resource_version == version
    store.replace({**store.get("DeviceClass", None, "gpu"), "spec": gpu_class()["spec"]})
    allocator.round()
    assert (condition(store, "gpu")["status"], condition(store, "gpu")["observedGeneration"]) == ("True", 2)


@pytest.mark.parametrize(
    "spec",
    [{"driver": 7}, {"constraints": "unknown.kind == 'gpu'"}, {"configs": [{"kind": "VfioConfig"}]}, {"classes": []}],
)
def test_a_class_that_cannot_be_used_has_a_fault(spec: dict[str, Any]) -> None:
    fault = find_class_fault({**gpu_class(), "spec": spec})
    assert fault is not None
    assert fault[1] == "ClassInvalid"


def test_an_embedded_store_has_none_because_the_release_before_would_not_read_the_class(store: SQLiteStore) -> None:
    fill(store, gpu_class())
    DeviceClaimAllocator(store).round()
    assert "status" not in store.get("DeviceClass", None, "gpu")
