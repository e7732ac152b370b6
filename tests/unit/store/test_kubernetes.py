"""The contract of stores, of the one on a cluster: with an API server in memory; ``tests/cluster`` has a real one."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import closing

import pytest

from devalloc.api.meta import ALLOCATED_SPEC, TRANSACTION
from devalloc.store import Change, Conflict, EventType, Expired, Key
from devalloc.store.kubernetes import ApiError, KubernetesStore
from devalloc.store.kubernetes.informer_cache import InformerCache
from devalloc.store.kubernetes.reflector import Reflector
from devalloc.store.kubernetes.resources import OWN_KINDS, ResourceRegistry
from tests.support.cluster_contract import *  # noqa: F403
from tests.support.fake_kube import FakeClient, FakeKube
from tests.support.minimal_manifests import claim, pool
from tests.support.store_contract import *  # noqa: F403
from tests.support.waiting import until


@pytest.fixture
def store() -> Iterator[KubernetesStore]:
    opened = KubernetesStore(FakeClient(FakeKube()), deletions_kept=20)  # type: ignore[arg-type]
    yield opened
    opened.close()


def test_a_watch_that_is_far_behind_brings_nothing_back() -> None:
    """More was deleted since than is remembered."""
    kube = FakeKube()
    mirror = InformerCache(5)
    with closing(KubernetesStore(FakeClient(kube))) as other:  # type: ignore[arg-type]
        made = [other.create(claim(f"n{number}")) for number in range(20)]
    mirror.relist("DeviceClaim", [], "1")
    for obj in made:
        mirror.see(obj)
        mirror.lose(obj)
    place = mirror.newest
    for version, obj in enumerate(made, 10_000):
        mirror.tell("DeviceClaim", "ADDED", obj)
        last = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(version)}}
        mirror.tell("DeviceClaim", "DELETED", last)
    assert mirror.newest == place
    assert mirror.select(frozenset({"DeviceClaim"}), None).objects == []


def test_what_is_gone_and_was_not_heard_of_yet_is_a_conflict_of_its_unit_alone() -> None:
    kube = FakeKube()
    client = FakeClient(kube)
    with closing(KubernetesStore(client)) as store, closing(KubernetesStore(FakeClient(kube))) as other:  # type: ignore[arg-type]
        goes, stays = store.create(claim("goes")), store.create(claim("stays"))

        def before(number: int, what: str) -> None:
            if what.endswith("/goes/status"):
                other.delete(*Key.of(goes))

        client.before = before
        status = {"podNames": ["x"]}
        units = [[Change(Key.of(obj), obj["metadata"]["resourceVersion"], status)] for obj in (goes, stays)]
        gone, written = store.commit_each(units)
        assert isinstance(gone, Conflict)
        assert not isinstance(written, Conflict)


def test_a_grant_of_which_the_answer_is_lost_keeps_its_annotations_when_its_node_was_fast() -> None:
    kube = FakeKube()
    client = FakeClient(kube)
    with closing(KubernetesStore(client)) as store, closing(KubernetesStore(FakeClient(kube))) as other:  # type: ignore[arg-type]
        old = store.create(claim("a"))

        def after(number: int, what: str) -> None:
            if what.endswith("/a/status"):
                there = other.get(*Key.of(old))
                other.replace_status({**there, "status": {**there["status"], "podNames": ["machine"]}})
                raise ApiError(504, "Timeout", "the answer is lost")

        client.after = after
        given = {"allocations": [{"devicePoolName": "p", "deviceName": "d"}]}
        noted = {ALLOCATED_SPEC: "{}"}
        outcomes = store.commit_each([[Change(Key.of(old), old["metadata"]["resourceVersion"], given, noted)]])
        assert isinstance(outcomes[0], Conflict)
        there = store.get(*Key.of(old))
        assert (there["status"]["allocations"], there["metadata"]["annotations"]) == (given["allocations"], noted)


def test_a_late_deletion_of_the_previous_object_of_a_name_changes_nothing() -> None:
    kube, mirror = FakeKube(), InformerCache(5)
    with closing(KubernetesStore(FakeClient(kube))) as store:  # type: ignore[arg-type]
        first = store.create(claim("a"))
        gone = store.delete(*Key.of(first))
        there = store.create(claim("a"))
    mirror.see(there)  # as it was read, with the watch far behind
    place = mirror.newest
    version = str(int(gone["metadata"]["resourceVersion"]) + 1)
    mirror.tell("DeviceClaim", "DELETED", {**gone, "metadata": {**gone["metadata"], "resourceVersion": version}})
    mirror.tell("DeviceClaim", "ADDED", there)
    assert mirror.events(frozenset({"DeviceClaim"}), place, deletions=True)[0] == []
    assert mirror.select(frozenset({"DeviceClaim"}), None).objects == [there]


def test_large_objects_that_go_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("devalloc.store.kubernetes.informer_cache.MAX_DELETION_BYTES", 10_000)
    mirror = InformerCache(1000)
    with closing(KubernetesStore(FakeClient(FakeKube()))) as store:  # type: ignore[arg-type]
        made = [store.create(claim(f"n{number}", annotations={"large": "x" * 3000})) for number in range(9)]
    places = []
    for obj in made:
        mirror.see(obj)
        mirror.lose(obj)
        places.append(str(mirror.newest))
    since = int(places[-3])
    events = mirror.events(frozenset({"DeviceClaim"}), since, deletions=True)[0]
    assert [event.object["metadata"]["name"] for event in events] == ["n7", "n8"]
    with pytest.raises(Expired):
        mirror.events(frozenset({"DeviceClaim"}), int(places[0]), deletions=True)


def test_a_watch_of_an_unchanged_kind_does_not_expire_with_other_kinds() -> None:
    mirror = InformerCache(1)
    with closing(KubernetesStore(FakeClient(FakeKube()))) as store:  # type: ignore[arg-type]
        made, stays = [store.create(claim(f"n{number}")) for number in range(3)], store.create(pool())
    mirror.see(stays)
    place = mirror.newest
    for obj in made:
        mirror.see(obj)
        mirror.lose(obj)
    assert mirror.events(frozenset({"DevicePool"}), place, deletions=True) == ([], mirror.newest)
    with pytest.raises(Expired):
        mirror.events(frozenset({"DevicePool", "DeviceClaim"}), place, deletions=True)
    mirror.lose(stays)
    events, _ = mirror.events(frozenset({"DevicePool"}), mirror.newest - 1, deletions=True)
    assert [event.type for event in events] == [EventType.DELETED]


def test_a_mark_that_names_what_is_no_record_is_taken_away() -> None:
    """Each namespace has a ConfigMap kube-root-ca.crt."""
    client = FakeClient(FakeKube())
    client.create(
        "/api/v1/namespaces/devalloc-system/configmaps",
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kube-root-ca.crt"}},
    )
    with closing(KubernetesStore(client)) as store:  # type: ignore[arg-type]
        obj = store.create(claim("a", annotations={TRANSACTION: "kube-root-ca.crt"}))
        store.recover()
        assert TRANSACTION not in store.get(*Key.of(obj))["metadata"].get("annotations", {})


@pytest.mark.parametrize(("later", "stays"), [(-1, True), (0, False), (1, False)])
def test_what_a_list_leaves_out_is_gone_unless_it_is_newer_than_the_list(later: int, stays: bool) -> None:
    """Of objects that are looked at by a field, the write with which this process takes one out of it is its newest."""
    mirror = InformerCache(5)
    with closing(KubernetesStore(FakeClient(FakeKube()))) as store:  # type: ignore[arg-type]
        made = store.create(claim("a"))
    mirror.see(made)
    place = mirror.newest
    mirror.relist("DeviceClaim", [], str(int(made["metadata"]["resourceVersion"]) + later))
    events = mirror.events(frozenset({"DeviceClaim"}), place, deletions=True)[0]
    assert [event.type for event in events] == ([] if stays else [EventType.DELETED])
    assert mirror.select(frozenset({"DeviceClaim"}), None).objects == ([made] if stays else [])


def test_what_leaves_a_field_and_comes_back_is_heard_of_again(store: KubernetesStore) -> None:
    """Pools keep their node by a rule of their kind; a mirror knows no kinds."""
    with closing(KubernetesStore(store.client, node="here")) as here:
        made = store.create({**pool(), "spec": {"driver": "d", "nodeName": "here"}})
        with closing(here.watch("DevicePool", here.list("DevicePool").resource_version, timeout=60)) as events:
            left = store.replace({**made, "spec": {"driver": "d", "nodeName": "elsewhere"}})
            assert next(events).type is EventType.DELETED
            back = store.replace({**left, "spec": {"driver": "d", "nodeName": "here"}})
            event = next(events)
        assert (event.type, event.object) == (EventType.ADDED, back)
        assert here.list("DevicePool").objects == [back]


class TestReflector:
    def test_a_server_that_has_forgotten_what_it_just_listed_is_left_alone_for_a_while(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client = FakeClient(FakeKube())
        reflector = Reflector(client, ResourceRegistry(OWN_KINDS).of("DeviceClaim"), InformerCache(5))  # type: ignore[arg-type]
        pauses = []

        def watch(*of: object) -> Iterator[dict[str, object]]:
            client._count("watch")
            if client.requests()["watch", 200] > 20:
                reflector.end()
            raise ApiError(410, "Expired", "too old resource version")
            yield

        monkeypatch.setattr(client, "watch", watch)
        monkeypatch.setattr(reflector._over, "wait", pauses.append)
        reflector._run()
        assert len(pauses) > 10
        assert pauses[5] > pauses[0]

    def test_a_watch_that_the_server_has_forgotten_is_begun_anew_and_tells_what_differs(self) -> None:
        kube = FakeKube()
        with closing(KubernetesStore(FakeClient(kube))) as store, closing(KubernetesStore(FakeClient(kube))) as other:  # type: ignore[arg-type]
            keeps, goes, _ = (other.create(claim(name)) for name in ("keeps", "goes", "again"))
            since = store.list().resource_version
            with kube.changed:  # nothing of this is heard of by the watch
                other.replace_status({**keeps, "status": {"podNames": ["x"]}})
                other.delete(*Key.of(goes))
                other.delete("DeviceClaim", "default", "again")
                other.create(claim("again"))
                other.create(claim("new"))
                kube.forget()
            changes = []
            for event in store.watch(None, since, timeout=60):
                changes.append((event.type, event.object["metadata"]["name"]))
                if len(changes) == 5:
                    break
            assert sorted(changes) == [
                (EventType.ADDED, "again"),
                (EventType.ADDED, "new"),
                (EventType.DELETED, "again"),
                (EventType.DELETED, "goes"),
                (EventType.MODIFIED, "keeps"),
            ]
            assert changes.index((EventType.DELETED, "again")) < changes.index((EventType.ADDED, "again"))

    def test_a_server_that_was_put_back_to_an_older_state_counts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        kube = FakeKube()
        with closing(KubernetesStore(FakeClient(kube))) as store:  # type: ignore[arg-type]
            first = store.create(claim("a"))
            with kube.changed:
                backup = copy.deepcopy((kube.objects, kube.revision))
            store.replace({**first, "spec": {"claims": [{"deviceClass": "later"}]}})
            store.create(claim("b"))
            assert len(store.list().objects) == 2
            list(store.watch("DeviceClaim", "0", timeout=0.2))
            with kube.changed:
                kube.objects, kube.revision = backup
                kube.forget()
            until(lambda: store.list("DeviceClaim").objects == [first], "it is as it was when it was backed up")
