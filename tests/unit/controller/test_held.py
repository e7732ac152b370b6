"""What is allocated stays until it is released, whatever becomes of the claim, its class and its devices."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from devalloc.controller.reconcile.device_claims import DeviceClaimAllocator
from devalloc.controller.reconcile.release import InUse, release_claim
from devalloc.store import NotFound
from devalloc.store.sqlite import SQLiteStore
from tests.support.fleet_manifests import annotations, fill, gpu_claim, gpu_class, gpu_pool, held, owners

Object = dict[str, Any]


class TestWhatIsAllocatedStays:
    def test_an_edit_is_reported_and_ignored_until_release(self, store: SQLiteStore) -> None:
        fill(store, gpu_pool(devices=2), gpu_class(), gpu_claim("a"))
        allocator = DeviceClaimAllocator(store)
        allocator.round()
        edited = store.get("DeviceClaim", "default", "a")
        original = edited["spec"]
        edited["spec"] = gpu_claim("a", count=2)["spec"]
        store.replace(edited)
        allocator.round()
        assert held(store, "a") == ["p/d0"]
        assert annotations(store, "a")["reason"] == "SpecChanged"
        assert "devalloc release -n default a" in annotations(store, "a")["message"]
        store.replace({**store.get("DeviceClaim", "default", "a"), "spec": original})
        allocator.round()
        assert "reason" not in annotations(store, "a")
        store.replace({**store.get("DeviceClaim", "default", "a"), "spec": edited["spec"]})
        assert release_claim(store, "default", "a") == "released"
        allocator.round()
        assert held(store, "a") == ["p/d0", "p/d1"]

    @pytest.mark.parametrize(
        "edit", [{"claims": [{"deviceClass": "observer"}]}, "nonsense", {"claims": []}, {"claims": [{"oops": 1}]}]
    )
    def test_no_edit_frees_what_is_held(self, store: SQLiteStore, edit: Any) -> None:
        fill(store, gpu_pool(devices=1), gpu_class(), gpu_class("observer", adminAccess=True), gpu_claim("a"))
        allocator = DeviceClaimAllocator(store)
        allocator.round()
        store.replace({**store.get("DeviceClaim", "default", "a"), "spec": edit})
        store.create(gpu_claim("b", priority="9"))
        allocator.round()
        assert owners(store) == {"p/d0": 1}
        assert held(store, "a") == ["p/d0"]
        assert annotations(store, "a")["reason"] == "SpecChanged"
        assert store.get("DevicePool", None, "p")["status"] == {"availableDevices": 0}

    @pytest.mark.parametrize("amount", ["-5", "junk"])
    def test_an_invalid_amount_has_a_reason_and_frees_nothing(self, store: SQLiteStore, amount: str) -> None:
        fill(store, gpu_pool(devices=1), gpu_class(), gpu_claim("a"))
        allocator = DeviceClaimAllocator(store)
        allocator.round()
        share = {"devicePoolName": "p", "deviceName": "d0", "allocations": [{"name": "mem", "allocation": amount}]}
        store.replace_status({**store.get("DeviceClaim", "default", "a"), "status": {"allocations": [share]}})
        store.create(gpu_claim("b", priority="9"))
        allocator.round()
        assert held(store, "b") == []
        assert store.get("DeviceClaim", "default", "a")["status"] == {"allocations": [share]}
        assert annotations(store, "a")["reason"] == "ClaimInvalid"
        assert "status.allocations[0].allocations[0].allocation: " in annotations(store, "a")["message"]

    def test_admin_access_given_to_its_class_later_does_not_free_it(self, store: SQLiteStore) -> None:
        fill(store, gpu_pool(devices=1), gpu_class(), gpu_class("other"), gpu_claim("a"))
        allocator = DeviceClaimAllocator(store)
        allocator.round()
        store.replace({**store.get("DeviceClass", None, "gpu"), "spec": {"adminAccess": True}})
        waiting = gpu_claim("b")
        waiting["spec"]["claims"][0]["deviceClass"] = "other"
        store.create(waiting)
        allocator.round()
        assert owners(store) == {"p/d0": 1}
        assert held(store, "a") == ["p/d0"]
        assert "reason" not in annotations(store, "a")
        release_claim(store, "default", "a")
        allocator.round()
        assert (held(store, "a"), held(store, "b")) == (["p/d0"], ["p/d0"])  # a only observes now
        assert annotations(store, "a")["admin-classes"] == '["gpu"]'

    @pytest.mark.parametrize("spec", [{"driver": "gpu.devalloc.io"}, None])
    def test_admin_access_taken_from_its_class_later_takes_nothing_from_others(
        self, store: SQLiteStore, spec: Object | None
    ) -> None:
        looks = gpu_claim("looks", count=2)
        looks["spec"]["claims"][0]["deviceClass"] = "admin"
        fill(store, gpu_pool(devices=2), gpu_class(), gpu_class("admin", adminAccess=True), looks)
        allocator = DeviceClaimAllocator(store)
        allocator.round()
        if spec is None:
            store.delete("DeviceClass", None, "admin")
        else:
            store.replace({**store.get("DeviceClass", None, "admin"), "spec": spec})
        store.create(gpu_claim("a", count=2))
        assert allocator.round().available == 0
        assert held(store, "a") == held(store, "looks") == ["p/d0", "p/d1"]
        assert "reason" not in annotations(store, "looks")
        release_claim(store, "default", "looks")
        allocator.round()
        assert held(store, "looks") == [], "it is a claim like others now"

    @pytest.mark.parametrize("nonsense", ['{"claims":[{"deviceClass":["gpu"]}]}', "[1,", '"gpu"', "null"])
    def test_junk_in_its_annotations_stops_no_other_claim(self, store: SQLiteStore, nonsense: str) -> None:
        fill(store, gpu_pool(devices=2), gpu_class(), gpu_claim("a"))
        allocator = DeviceClaimAllocator(store)
        allocator.round()
        claim = store.get("DeviceClaim", "default", "a")
        notes = {"devalloc.io/allocated-spec": nonsense, "devalloc.io/admin-classes": nonsense}
        claim["metadata"]["annotations"] |= notes
        store.replace(claim)
        store.create(gpu_claim("b"))
        allocator.round()
        assert owners(store) == {"p/d0": 1, "p/d1": 1}

    def test_a_lost_device_is_a_condition_until_it_is_back(self, store: SQLiteStore) -> None:
        clock = [datetime(2026, 1, 1, tzinfo=UTC)]
        allocator = DeviceClaimAllocator(store, now=lambda: clock[0])
        pool = gpu_pool(devices=2)
        fill(store, pool, gpu_class(), gpu_claim("a", count=2))
        allocator.round()
        status = store.get("DeviceClaim", "default", "a")["status"]
        status["deviceStatuses"] = [{"devicePoolName": "p", "deviceName": "d1", "deviceIP": "10.0.0.1"}]
        store.replace_status({**store.get("DeviceClaim", "default", "a"), "status": status})

        def condition() -> dict[str, str]:
            (status,) = store.get("DeviceClaim", "default", "a")["status"]["deviceStatuses"]
            assert status["deviceIP"] == "10.0.0.1"
            (only,) = status["conditions"]
            assert only["type"] == "DeviceLost"
            return dict(only)

        store.replace({**store.get("DevicePool", None, "p"), "spec": gpu_pool(devices=1)["spec"]})
        allocator.round()
        assert (condition()["status"], condition()["lastTransitionTime"]) == ("True", "2026-01-01T00:00:00Z")
        clock[0] += timedelta(hours=1)
        before = store.list()
        allocator.round()
        assert store.list() == before
        store.replace({**store.get("DevicePool", None, "p"), "spec": pool["spec"]})
        allocator.round()
        assert (condition()["status"], condition()["lastTransitionTime"]) == ("False", "2026-01-01T01:00:00Z")
        store.delete("DevicePool", None, "p")
        allocator.round()
        statuses = store.get("DeviceClaim", "default", "a")["status"]["deviceStatuses"]
        assert {s["deviceName"]: s["conditions"][0]["status"] for s in statuses} == {"d0": "True", "d1": "True"}
        assert len(held(store, "a")) == 2


class TestRelease:
    def test_clears_the_allocation_and_keeps_the_claim(self, store: SQLiteStore) -> None:
        fill(store, gpu_pool(), gpu_class(), gpu_claim("a", priority="3"))
        DeviceClaimAllocator(store).round()
        assert release_claim(store, "default", "a") == "released"
        after = store.get("DeviceClaim", "default", "a")
        assert "status" not in after
        assert annotations(store, "a") == {"priority": "3"}
        assert release_claim(store, "default", "a") == "held nothing"

    def test_frees_the_devices_for_the_next(self, store: SQLiteStore) -> None:
        fill(store, gpu_pool(devices=1), gpu_class(), gpu_claim("a"))
        allocator = DeviceClaimAllocator(store)
        allocator.round()
        store.create(gpu_claim("b", priority="1"))
        allocator.round()
        assert held(store, "b") == []  # priority does not preempt
        release_claim(store, "default", "a")
        allocator.round()
        assert (held(store, "a"), held(store, "b")) == ([], ["p/d0"])

    def test_release_is_refused_while_a_pod_uses_it(self, store: SQLiteStore) -> None:
        fill(store, gpu_pool(), gpu_class(), gpu_claim("a"))
        DeviceClaimAllocator(store).round()
        obj = store.get("DeviceClaim", "default", "a")
        store.replace_status({**obj, "status": {**obj["status"], "podNames": ["vm-1"]}})
        with pytest.raises(InUse, match="vm-1"):
            release_claim(store, "default", "a")
        assert held(store, "a") == ["p/d0"]
        assert release_claim(store, "default", "a", force=True) == "released"

    def test_a_claim_that_is_not_there(self, store: SQLiteStore) -> None:
        with pytest.raises(NotFound):
            release_claim(store, "default", "a")
