"""What stores on a cluster do otherwise than the embedded one (``devalloc.store.protocol``): as ``store_contract``."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest

from devalloc.store import Change, Conflict, EventType, Expired, Fence, FenceBroken, Invalid, Key, NotFound
from devalloc.store.kubernetes import KubernetesStore
from tests.support.minimal_manifests import a_config, claim, pool
from tests.support.store_contract import A, Object, now, seen, version, wants


class TestDifferences:
    def test_times_have_whole_seconds(self, store: KubernetesStore) -> None:
        made = store.create(claim())["metadata"]["creationTimestamp"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", made)

    @pytest.mark.parametrize(
        "obj", [{**claim(), "kind": "Counter"}, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}]
    )
    def test_only_kinds_that_it_knows(self, store: KubernetesStore, obj: Object) -> None:
        with pytest.raises(Invalid, match="supports DeviceClaim"):
            store.create(obj)
        with pytest.raises(Invalid, match="supports DeviceClaim"):
            store.list(obj["kind"])

    def test_a_kind_is_in_namespaces_or_is_not(self, store: KubernetesStore) -> None:
        with pytest.raises(Invalid, match=r"metadata\.namespace is required"):
            store.get("DeviceClaim", None, "a")
        with pytest.raises(Invalid, match="must not be set"):
            store.get("DevicePool", "default", "p")

    @pytest.mark.parametrize(
        ("change", "field"),
        [({"metadata": []}, "metadata"), ({"metadata": {}}, "metadata.name"), ({"apiVersion": None}, "apiVersion")],
    )
    def test_an_object_without_identity_is_refused(self, store: KubernetesStore, change: Object, field: str) -> None:
        with pytest.raises(Invalid, match=re.escape(field)):
            store.create({**claim(), **change})
        assert store.list().objects == []

    def test_a_configuration_has_no_status(self, store: KubernetesStore) -> None:
        made = store.create(a_config("c"))
        with pytest.raises(Invalid, match="has no status"):
            store.replace_status({**made, "status": {"x": 1}})
        with pytest.raises(Invalid, match="has no status"):
            store.commit([Change(Key.of(made), version(made), {"x": 1})])

    def test_places_are_no_versions_of_objects(self, store: KubernetesStore) -> None:
        since = now(store)
        made = store.create(claim())
        (event,) = store.watch(None, since, timeout=0)
        assert event.object == made
        assert int(since) < int(event.resource_version) == int(now(store)) != int(version(made))

    def test_a_place_of_another_process_is_expired(self, store: KubernetesStore) -> None:
        other = KubernetesStore(store.client)
        try:
            other.list()
            with pytest.raises(Expired):
                list(store.watch(None, str(int(now(other)) + 10_000_000), timeout=0))
            with pytest.raises(Expired):
                list(other.watch(None, str(int(now(store)) - 10_000_000), timeout=0))
        finally:
            other.close()

    def test_the_first_watch_of_a_kind_gets_all_its_objects(self, store: KubernetesStore) -> None:
        """What came before the place as well; and the deletion of what was read singly."""
        store.create(claim())
        store.create(claim("b"))
        other = KubernetesStore(store.client)
        try:
            since = other.list([]).resource_version
            assert other.get(*A)
            store.delete(*A)
            events = sorted(seen(other, since, "DeviceClaim"))
            assert events == [(EventType.ADDED, "b"), (EventType.DELETED, "a")]
        finally:
            other.close()

    def test_leases_are_those_of_devallocs_namespace(self, store: KubernetesStore) -> None:
        made = store.create(lease("l"))
        assert store.list("Lease").objects == [made]
        assert store.list().objects == [], "they are not among all kinds"
        again = store.replace({**made, "spec": {"holderIdentity": "b"}})
        assert again["spec"] == {"holderIdentity": "b"}
        assert store.replace(again) == again
        elsewhere = store.create(lease("l", "default"))
        assert store.get("Lease", "default", "l") == elsewhere
        store.delete("Lease", store.namespace, "l")
        store.delete("Lease", "default", "l")
        assert store.list("Lease").objects == []

    def test_a_node_looks_at_its_own_pools(self, store: KubernetesStore) -> None:
        def of(name: str, node: str) -> Object:
            return {**pool(name), "spec": {"driver": "d", "nodeName": node}}

        own_pool = store.create(of("mine", "a"))
        store.create(of("theirs", "b"))
        store.create(claim())
        own = KubernetesStore(store.client, node="a")
        try:
            assert own.list(["DevicePool", "DeviceClaim"]).objects == [store.get(*A), own_pool]
            assert own.get("DevicePool", None, "theirs")["spec"]["nodeName"] == "b"
            since = now(own)
            store.create(of("theirs-too", "b"))
            store.delete(*Key.of(own_pool))
            for event in own.watch("DevicePool", since, timeout=60):
                assert (event.type, event.object["metadata"]["name"]) == (EventType.DELETED, "mine")
                break
            own.refresh()
            assert seen(own, since, "DevicePool") == [(EventType.DELETED, "mine")]
        finally:
            own.close()

    def test_it_is_known_by_its_cluster(self, store: KubernetesStore) -> None:
        other = KubernetesStore(store.client)
        assert re.fullmatch(r"[0-9a-f-]{36}", store.identity())
        assert other.identity() == store.identity()
        other.close()


class TestTwoProcesses:
    def test_each_hears_of_what_the_other_does(self, store: KubernetesStore) -> None:
        other = KubernetesStore(store.client)
        try:
            since = other.list().resource_version
            made = store.create(claim())
            made = store.replace_status({**made, "status": {"podNames": ["x"]}})
            store.delete(*A)
            states = []
            for event in other.watch("DeviceClaim", since, timeout=60):
                states.append((event.type, event.object.get("status")))
                if event.type is EventType.DELETED:
                    break
            assert states[-1] == (EventType.DELETED, {"podNames": ["x"]})
        finally:
            other.close()

    def test_a_fence_holds_what_others_do_off_as_far_as_it_is_heard(self, store: KubernetesStore) -> None:
        other = KubernetesStore(store.client)
        try:
            own_claim = store.create(claim())
            fence = Fence(store.list().resource_version, specs=frozenset({"DevicePool"}))
            other.create(pool())
            for _ in store.watch("DevicePool", fence.resource_version, timeout=60):
                break
            with pytest.raises(FenceBroken):
                store.commit([Change(A, version(own_claim), {"podNames": ["x"]})], fence)
        finally:
            other.close()

    def test_a_conflict_brings_what_is_there_now(self, store: KubernetesStore) -> None:
        """So that a client that reads again and tries again does not meet what it knew."""
        other = KubernetesStore(store.client)
        try:
            made = store.create(claim())
            other.list()
            store.replace({**made, "spec": wants("other")})
            store.delete(*Key.of(store.create(pool())))
            with pytest.raises(NotFound):
                other.replace({**pool(), "metadata": {"name": "p", "resourceVersion": "1"}})
            with suppress(Conflict):
                other.replace_status({**made, "status": {"podNames": ["x"]}})
            assert other.list("DeviceClaim").objects[0]["spec"] == wants("other")
        finally:
            other.close()


def lease(name: str, namespace: str = "devalloc-system") -> Object:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"holderIdentity": "a"},
    }
