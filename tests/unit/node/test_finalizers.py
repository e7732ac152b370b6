"""A device that a node holds goes to no other claim: marks of the node, releases and deletions, in either order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from devalloc.api import meta
from devalloc.api.views import ClaimView
from devalloc.controller.reconcile.device_claims import DeviceClaimAllocator
from devalloc.controller.reconcile.release import InUse, release_claim
from devalloc.store import NotFound, Object, Store
from devalloc.store.sqlite import SQLiteStore
from devalloc_node.claims.finalizers import (
    add_finalizer,
    claims_of_node,
    remove_finalizer,
    set_device_statuses,
    set_users,
)
from devalloc_node.errors import Denied
from devalloc_node.model.grant import ClaimRef
from tests.support.fleet_manifests import annotations, fill, gpu_claim, gpu_class, gpu_pool, held
from tests.support.node_errors import raises

MEANWHILE = ("replace", "commit", "delete", "get")


class Interrupted:
    """A store to which something happens right before one call of a method."""

    def __init__(self, store: Store, method: str, meanwhile: Callable[[], object]) -> None:
        self._store = store
        self._method = method
        self._meanwhile: Callable[[], object] | None = meanwhile

    def __getattr__(self, name: str) -> Any:
        if name == self._method and self._meanwhile is not None:
            meanwhile, self._meanwhile = self._meanwhile, None
            meanwhile()
        return getattr(self._store, name)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    """One device, which claim a holds; b waits for it."""
    with closing(SQLiteStore(tmp_path / "devalloc.db")) as opened:
        fill(opened, gpu_pool(devices=1), gpu_class(), gpu_claim("a"), gpu_claim("b"))
        DeviceClaimAllocator(opened).round()
        yield opened


def claim(store: Store, name: str = "a") -> Object:
    return store.get("DeviceClaim", "default", name)


def ref(store: Store, name: str = "a") -> ClaimRef:
    return ClaimRef("default", name, claim(store, name)["metadata"]["uid"])


class TestMarking:
    def test_a_marked_claim_is_returned_as_it_now_stays(self, store: SQLiteStore) -> None:
        marked_claim = add_finalizer(store, "n", ref(store))
        assert ClaimView(marked_claim).is_held
        assert marked_claim == claim(store)
        assert [each["metadata"]["name"] for each in claims_of_node(store.list("DeviceClaim").objects, "n")] == ["a"]
        assert list(claims_of_node(store.list("DeviceClaim").objects, "other")) == []
        assert add_finalizer(store, "n", ref(store)) == marked_claim, "a second mark writes nothing"
        remove_finalizer(store, "n", ref(store))
        assert not ClaimView(claim(store)).is_held

    def test_only_the_node_that_set_a_mark_removes_it(self, store: SQLiteStore) -> None:
        add_finalizer(store, "n", which := ref(store))
        before = store.list()
        remove_finalizer(store, "m", which)
        store.replace_status({**claim(store), "status": {}})
        with raises(Denied, "ClaimElsewhere"):
            add_finalizer(store, "m", which)
        assert list(claims_of_node(store.list("DeviceClaim").objects, "m")) == []
        assert claim(store)["metadata"]["finalizers"] == before.objects[0]["metadata"]["finalizers"]
        remove_finalizer(store, "n", which)
        assert claim(store)["metadata"].keys().isdisjoint({"finalizers"})
        assert "prepared-on" not in annotations(store, "a")

    def test_what_cannot_be_prepared_here_is_not_marked(self, store: SQLiteStore) -> None:
        cases = {
            "ClaimNotFound": ("n", ClaimRef("default", "nobody", "x")),
            "ClaimUidMismatch": ("n", ClaimRef("default", "a", "x")),
            "ClaimNotAllocated": ("n", ref(store, "b")),
            "ClaimElsewhere": ("m", ref(store)),
        }
        before = store.list()
        for code, (node, which) in cases.items():
            with raises(Denied, code):
                add_finalizer(store, node, which)
        assert store.list() == before

    def test_nor_what_is_just_being_allocated_with_others(self, store: SQLiteStore) -> None:
        """On a cluster, where that is several writes: it may be put back. What is marked already stays."""
        before = claim(store)
        annotations = {**before["metadata"]["annotations"], meta.TRANSACTION: "devalloc-transaction-0"}
        during = store.replace({**before, "metadata": {**before["metadata"], "annotations": annotations}})
        with raises(Denied, "ClaimNotAllocated", retryable=True):
            add_finalizer(store, "n", ref(store))
        assert claim(store) == during
        store.replace({**during, "metadata": {**during["metadata"], "annotations": before["metadata"]["annotations"]}})
        marked_one = add_finalizer(store, "n", ref(store))
        annotations = {**marked_one["metadata"]["annotations"], meta.TRANSACTION: "devalloc-transaction-1"}
        during = store.replace({**marked_one, "metadata": {**marked_one["metadata"], "annotations": annotations}})
        assert add_finalizer(store, "n", ref(store)) == during

    def test_nor_what_is_being_deleted(self, store: SQLiteStore) -> None:
        store.replace({**claim(store), "metadata": {**claim(store)["metadata"], "finalizers": ["other"]}})
        store.delete("DeviceClaim", "default", "a")
        with raises(Denied, "ClaimBeingDeleted"):
            add_finalizer(store, "n", ref(store))

    def test_unmarking_what_is_gone_or_another_one_is_no_error(self, store: SQLiteStore) -> None:
        old = ref(store)
        for name in ("a", "b"):
            store.delete("DeviceClaim", "default", name)
        remove_finalizer(store, "n", old)
        store.create(gpu_claim("a"))
        DeviceClaimAllocator(store).round()
        marked_one = add_finalizer(store, "n", ref(store))
        remove_finalizer(store, "n", old)
        assert claim(store) == marked_one, "its mark is not the old one's"


class TestReleasing:
    def test_a_marked_claim_is_not_released_and_says_where_it_is(self, store: SQLiteStore) -> None:
        add_finalizer(store, "n", ref(store))
        set_users(store, ref(store), ["vm-1"])
        with pytest.raises(InUse, match="prepared on n for vm-1"):
            release_claim(store, "default", "a")
        assert held(store, "a") == ["p/d0"]

    def test_force_asks_the_node_and_the_allocator_releases_when_it_has_let_go(self, store: SQLiteStore) -> None:
        add_finalizer(store, "n", ref(store))
        allocator = DeviceClaimAllocator(store)
        assert release_claim(store, "default", "a", force=True) == "asked"
        allocator.round()
        assert held(store, "a") == ["p/d0"], "the node holds it"
        before = store.list()
        assert release_claim(store, "default", "a", force=True) == "asked"
        assert store.list() == before, "asking twice writes nothing"
        remove_finalizer(store, "n", ref(store))
        done = allocator.round()
        assert held(store, "a") == []
        assert list(store.watch(None, done.resource_version, timeout=0)), "a round is due for what was freed"
        allocator.round()
        assert held(store, "a") == ["p/d0"], "no request for its release is left"
        allocator.round()
        assert held(store, "a") == ["p/d0"]

    def test_the_device_goes_to_who_waits_only_when_the_node_has_let_go(self, store: SQLiteStore) -> None:
        add_finalizer(store, "n", ref(store))
        store.delete("DeviceClaim", "default", "a")
        allocator = DeviceClaimAllocator(store)
        allocator.round()
        assert held(store, "b") == []
        remove_finalizer(store, "n", ref(store))
        with pytest.raises(NotFound):
            claim(store)
        allocator.round()
        assert held(store, "b") == ["p/d0"]

    def test_a_claim_that_is_taken_from_a_node_that_is_gone_is_free(self, store: SQLiteStore) -> None:
        add_finalizer(store, "n", ref(store))
        assert release_claim(store, "default", "a", abandon=True) == "released"
        assert (held(store, "a"), ClaimView(claim(store)).is_held) == ([], False)

    def test_so_is_one_that_is_being_deleted(self, store: SQLiteStore) -> None:
        add_finalizer(store, "n", ref(store))
        store.delete("DeviceClaim", "default", "a")
        assert release_claim(store, "default", "a", abandon=True) == "released"
        with pytest.raises(NotFound):
            claim(store)

    def test_a_claim_that_lost_its_status_under_its_node_waits_for_the_node(self, store: SQLiteStore) -> None:
        add_finalizer(store, "n", ref(store))
        store.replace_status({**claim(store), "status": {}})
        store.delete("DeviceClaim", "default", "b")
        allocator = DeviceClaimAllocator(store)
        allocator.round()
        assert held(store, "a") == []
        assert annotations(store, "a")["reason"] == "StillPrepared"
        remove_finalizer(store, "n", ref(store))
        allocator.round()
        assert held(store, "a") == ["p/d0"]

    def test_and_its_group_with_it(self, tmp_path: Path) -> None:
        with closing(SQLiteStore(tmp_path / "group.db")) as store:
            fill(store, gpu_pool(devices=2), gpu_class(), gpu_claim("a", group="g"), gpu_claim("b", group="g"))
            allocator = DeviceClaimAllocator(store)
            allocator.round()
            add_finalizer(store, "n", ref(store))
            store.replace_status({**claim(store), "status": {}})
            assert release_claim(store, "default", "b") == "released"
            allocator.round()
            assert (held(store, "a"), held(store, "b")) == ([], [])
            remove_finalizer(store, "n", ref(store))
            allocator.round()
            assert sorted(held(store, "a") + held(store, "b")) == ["p/d0", "p/d1"]


@pytest.mark.parametrize("method", MEANWHILE)
class TestRaces:
    """Whatever happens between any two calls to the store, of a node and a release exactly one wins."""

    def test_a_release_while_the_node_marks(self, store: SQLiteStore, method: str) -> None:
        which = ref(store)
        between = Interrupted(store, method, lambda: release_claim(store, "default", "a"))
        if method in ("replace", "get"):
            with pytest.raises(Denied, match="has no devices"):
                add_finalizer(between, "n", which)  # type: ignore[arg-type]
            assert (held(store, "a"), ClaimView(claim(store)).is_held) == ([], False)
        else:
            assert add_finalizer(between, "n", which)["status"]["allocations"]  # type: ignore[arg-type]
            assert (held(store, "a"), ClaimView(claim(store)).is_held) == (["p/d0"], True)

    def test_a_finalizer_during_a_release(self, store: SQLiteStore, method: str) -> None:
        which = ref(store)
        between = Interrupted(store, method, lambda: add_finalizer(store, "n", which))
        if method in ("commit", "get"):
            with pytest.raises(InUse):
                release_claim(between, "default", "a")  # type: ignore[arg-type]
            assert (held(store, "a"), ClaimView(claim(store)).is_held) == (["p/d0"], True)
        else:
            assert release_claim(between, "default", "a") == "released"  # type: ignore[arg-type]
            assert (held(store, "a"), ClaimView(claim(store)).is_held) == ([], False)

    def test_a_mark_while_an_allocator_releases(self, store: SQLiteStore, method: str) -> None:
        add_finalizer(store, "n", which := ref(store))
        release_claim(store, "default", "a", force=True)
        remove_finalizer(store, "n", which)
        between = Interrupted(store, method, lambda: add_finalizer(store, "n", which))
        DeviceClaimAllocator(between).round()  # type: ignore[arg-type]
        assert (held(store, "a"), ClaimView(claim(store)).is_held) in ((["p/d0"], True), ([], False))

    def test_a_deletion_while_the_node_marks(self, store: SQLiteStore, method: str) -> None:
        which = ref(store)
        between = Interrupted(store, method, lambda: store.delete("DeviceClaim", "default", "a"))
        if method in ("replace", "get"):
            with pytest.raises(Denied, match="does not exist"):
                add_finalizer(between, "n", which)  # type: ignore[arg-type]
        else:
            assert ClaimView(add_finalizer(between, "n", which)).is_held  # type: ignore[arg-type]
            store.delete("DeviceClaim", "default", "a")
            assert held(store, "a") == ["p/d0"], "a deletion waits for the node"


class TestConditions:
    NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
    LATER = datetime(2026, 1, 31, 13, tzinfo=UTC)
    DEVICE = ("p", "d0")

    def conditions(self, store: Store) -> dict[str, tuple[str, str, str]]:
        (only,) = claim(store)["status"]["deviceStatuses"]
        assert (only["devicePoolName"], only["deviceName"]) == self.DEVICE
        return {c["type"]: (c["status"], c.get("message", ""), c["lastTransitionTime"]) for c in only["conditions"]}

    def test_a_condition_keeps_its_time_while_it_says_the_same(self, store: SQLiteStore) -> None:
        which = ref(store)
        healthy = {"type": "Healthy", "status": "True", "reason": "Healthy", "message": ""}
        set_device_statuses(store, which, {self.DEVICE: [healthy, {"type": "Ready", "status": "True"}]}, now=self.NOW)
        before = store.list()
        set_device_statuses(store, which, {self.DEVICE: [healthy]}, now=self.LATER)
        assert store.list() == before
        set_device_statuses(store, which, {self.DEVICE: [{**healthy, "message": "well"}]}, now=self.LATER)
        assert self.conditions(store)["Healthy"] == ("True", "well", "2026-01-31T12:00:00Z")
        set_device_statuses(store, which, {self.DEVICE: [{**healthy, "status": "False"}]}, now=self.LATER)
        assert self.conditions(store) == {
            "Healthy": ("False", "", "2026-01-31T13:00:00Z"),
            "Ready": ("True", "", "2026-01-31T12:00:00Z"),
        }

    def test_what_the_allocator_says_stays_beside_it(self, store: SQLiteStore) -> None:
        allocator = DeviceClaimAllocator(store)
        store.delete("DevicePool", None, "p")
        allocator.round()
        set_device_statuses(store, ref(store), {self.DEVICE: [{"type": "Healthy", "status": "False"}]}, now=self.NOW)
        allocator.round()
        assert {name: condition[0] for name, condition in self.conditions(store).items()} == {
            "DeviceLost": "True",
            "Healthy": "False",
        }

    def test_nothing_is_said_of_devices_that_the_claim_does_not_hold(self, store: SQLiteStore) -> None:
        before = store.list()
        set_device_statuses(store, ref(store), {("p", "d7"): [{"type": "Healthy", "status": "False"}]}, now=self.NOW)
        assert store.list() == before
