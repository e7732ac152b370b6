"""Several objects written as one: whatever the process is at when it is killed, all or none is there afterwards."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

import pytest

from devalloc.store import Change, Conflict, Invalid, Key, NotLeader, StoreError, Unavailable
from devalloc.store.kubernetes import ApiError, KubernetesStore, object_writer, transaction
from devalloc.store.kubernetes.transaction import COMMITTED
from tests.support.fake_kube import ClientKilled, FakeClient, FakeKube
from tests.support.minimal_manifests import claim

Object = dict[str, Any]
NAMES = ("a", "b", "c")
WRITES = 1 + 3 + 3 + 1 + 3 + 1
"""A record, three marks, three statuses, the point from which on it counts, three marks, the record."""
POINT = 7
BEFORE, AFTER = {"podNames": ["before"], "k": "1"}, {"podNames": ["after"], "new": "1"}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What became of a write is looked for at once."""
    monkeypatch.setattr(object_writer, "PAUSE_SECONDS", 0.001)


def opened(kube: FakeKube, **settings: Any) -> tuple[KubernetesStore, FakeClient]:
    client = FakeClient(kube)
    return KubernetesStore(client, **settings), client  # type: ignore[arg-type]


def prepared(store: KubernetesStore) -> list[Object]:
    """Claims with a status and annotations, one of which goes, one changes, and one comes."""
    made = [store.create(claim(name, annotations={"goes": "1", "changes": "1", "stays": "1"})) for name in NAMES]
    return [store.replace_status({**obj, "status": BEFORE}) for obj in made]


def change(obj: Object) -> Change:
    annotations = {"goes": None, "changes": "2", "comes": "2"}
    return Change(Key.of(obj), obj["metadata"]["resourceVersion"], AFTER, annotations, {"label": "2"})


def status_and_annotations(obj: Object) -> tuple[Object, Object]:
    """With the label that the commit writes, among the annotations."""
    labels = {name: text for name, text in obj["metadata"].get("labels", {}).items() if name == "label"}
    return obj.get("status", {}), {**obj["metadata"].get("annotations", {}), **labels}


OLD = (BEFORE, {"goes": "1", "changes": "1", "stays": "1"})
NEW = (AFTER, {"changes": "2", "comes": "2", "stays": "1", "label": "2"})


def records(kube: FakeKube) -> list[Object]:
    return [obj for path, obj in kube.objects.items() if "/configmaps/" in path]


def test_it_is_so_many_writes_and_leaves_nothing() -> None:
    kube = FakeKube()
    store, client = opened(kube)
    with closing(store):
        olds = prepared(store)
        client.writes.clear()
        done = store.commit([change(obj) for obj in olds]).objects
        assert len(client.writes) == WRITES
        assert [status_and_annotations(obj) for obj in done] == [NEW] * 3
        assert store.list("DeviceClaim").objects == done
        assert records(kube) == []


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", range(WRITES))
def test_killed_at_any_write_another_brings_it_to_its_end(at: int, is_done: bool) -> None:
    kube = FakeKube()
    store, client = opened(kube)

    def kill(number: int, what: str) -> None:
        if number >= at:
            raise ClientKilled(what)

    with closing(store):
        olds = prepared(store)
        client.writes.clear()
        if is_done:
            client.after = kill
        else:
            client.before = kill
        with pytest.raises(ClientKilled):
            store.commit([change(obj) for obj in olds])
    counts = at > POINT or (at == POINT and is_done)
    heir, heirs = opened(kube)
    with closing(heir):
        assert all(transaction.transaction_of(obj) for obj in half(heir)), "what is not at its end is marked"
        heir.recover()
        assert [status_and_annotations(obj) for obj in heir.list("DeviceClaim").objects] == [NEW if counts else OLD] * 3
        assert records(kube) == []
        writes = list(heirs.writes)
        heir.recover()
        assert heirs.writes == writes, "once is enough"


def half(store: KubernetesStore) -> list[Object]:
    """Those whose status is new while others' is not."""
    objects = store.list("DeviceClaim").objects
    statuses = [obj.get("status") for obj in objects]
    return [obj for obj in objects if obj.get("status") == AFTER] if BEFORE in statuses else []


@pytest.mark.parametrize("heir_dies_at", range(8))
@pytest.mark.parametrize("at", [2, 5, POINT, POINT + 2])
def test_killed_again_while_it_is_brought_to_its_end(at: int, heir_dies_at: int) -> None:
    kube = FakeKube()
    store, client = opened(kube)
    with closing(store):
        olds = prepared(store)
        client.writes.clear()
        client.after = dying(at)
        with suppress(ClientKilled):
            store.commit([change(obj) for obj in olds])
    first, client = opened(kube)
    with closing(first):
        client.after = dying(heir_dies_at)
        with suppress(ClientKilled):
            first.recover()
    second, _ = opened(kube)
    with closing(second):
        second.recover()
        counts = at >= POINT
        assert [status_and_annotations(obj) for obj in second.list("DeviceClaim").objects] == [
            NEW if counts else OLD
        ] * 3
        assert records(kube) == []


def dying(at: int) -> Callable[[int, str], None]:
    def die(number: int, what: str) -> None:
        if number >= at:
            raise ClientKilled(what)

    return die


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", range(WRITES))
def test_a_commit_with_a_lost_answer_is_read_back(at: int, is_done: bool) -> None:
    kube = FakeKube()
    store, client = opened(kube)

    def lose(number: int, what: str) -> None:
        if number == at:
            raise ApiError(0, "NoAnswer", what)

    with closing(store):
        olds = prepared(store)
        client.writes.clear()
        if is_done:
            client.after = lose
        else:
            client.before = lose
        done = store.commit([change(obj) for obj in olds]).objects
        assert [status_and_annotations(obj) for obj in done] == [NEW] * 3
        assert store.list("DeviceClaim").objects == done
        assert records(kube) == []


@pytest.mark.parametrize("gone", [False, True], ids=["changed", "deleted"])
@pytest.mark.parametrize("victim", range(3))
@pytest.mark.parametrize("at", range(1, POINT + 1))
def test_another_writer_changes_one_of_them_meanwhile(at: int, victim: int, gone: bool) -> None:
    """Before the point from which on it counts that ends it, unless all of that object was written already; what he
    wrote stays."""
    kube = FakeKube()
    store, client = opened(kube)
    other, _ = opened(kube)

    def meddle(number: int, what: str) -> None:
        if number != at:
            return
        key = ("DeviceClaim", "default", NAMES[victim])
        if gone:
            other.delete(*key)
        else:
            now = other.get(*key)
            labels = {**now["metadata"].get("labels", {}), "theirs": "1"}
            other.replace({**now, "metadata": {**now["metadata"], "labels": labels}})

    with closing(store), closing(other):
        olds = prepared(store)
        client.writes.clear()
        client.before = meddle
        try:
            store.commit([change(obj) for obj in olds])
            is_written = True
        except Conflict:
            is_written = False
        store.refresh()
        objects = store.list("DeviceClaim").objects
        assert [status_and_annotations(obj) for obj in objects] == [NEW if is_written else OLD] * (2 if gone else 3)
        if not gone:
            assert objects[victim]["metadata"]["labels"]["theirs"] == "1"
        assert records(kube) == []
        assert is_written == (at > 4 + victim)


def test_what_others_write_to_an_object_meanwhile_is_not_put_back() -> None:
    """A node says how it is, and a user asks for a release, while the commit is at other objects."""
    kube = FakeKube()
    store, client = opened(kube)
    node, _ = opened(kube)

    def write(number: int, what: str) -> None:
        if number != 5:
            return
        now = node.get("DeviceClaim", "default", "a")
        now = node.replace_status({**now, "status": {**now["status"], "observed": "here"}})
        annotations = now["metadata"]["annotations"]
        node.replace({**now, "metadata": {**now["metadata"], "annotations": {**annotations, "changes": "by user"}}})
        other = node.get("DeviceClaim", "default", "b")
        node.replace({**other, "spec": {"claims": [{"deviceClass": "x"}]}})

    with closing(store), closing(node):
        olds = prepared(store)
        client.writes.clear()
        client.before = write
        with pytest.raises(Conflict, match="default/b"):
            store.commit([change(obj) for obj in olds])
        status, annotations = status_and_annotations(store.get("DeviceClaim", "default", "a"))
        assert status == {**BEFORE, "observed": "here"}
        assert annotations == {"goes": "1", "changes": "by user", "stays": "1"}


@pytest.mark.parametrize("at", [5, POINT])
def test_what_the_server_fills_in_or_drops_is_put_back_all_the_same(at: int) -> None:
    def stores(status: Object) -> Object:
        given = [{"at": "once", **{k: v for k, v in each.items() if k != "odd"}} for each in status.get("given", [])]
        return {**status, "given": given} if given else status

    kube = FakeKube()
    kube.stores = stores
    store, client = opened(kube)
    heir, _ = opened(kube)
    with closing(store), closing(heir):
        olds = prepared(store)
        client.writes.clear()
        client.after = dying(at - 1)
        after = {**AFTER, "given": ({"device": "d", "odd": 1},)}
        with pytest.raises(ClientKilled):
            store.commit([replace(change(obj), status=after) for obj in olds])
        heir.recover()
        assert [status_and_annotations(obj) for obj in heir.list("DeviceClaim").objects] == [OLD] * 3


def test_one_who_commits_late_loses_against_one_who_put_it_back() -> None:
    kube = FakeKube()
    store, client = opened(kube)
    heir, _ = opened(kube)

    def recover(number: int, what: str) -> None:
        if number == POINT:
            heir.recover()

    with closing(store), closing(heir):
        olds = prepared(store)
        client.writes.clear()
        client.before = recover
        with pytest.raises((Conflict, Unavailable)):
            store.commit([change(obj) for obj in olds])
        heir.refresh()
        assert [status_and_annotations(obj) for obj in heir.list("DeviceClaim").objects] == [OLD] * 3
        assert records(kube) == []


def test_nothing_is_decided_on_what_is_half_written() -> None:
    """A store that could not put back does so before it writes anything else, or writes nothing."""
    kube = FakeKube()
    store, client = opened(kube)
    away = False

    def leave(number: int, what: str) -> None:
        nonlocal away
        away = away or number == 5
        if away:
            raise ApiError(0, "NoConnection", what)

    with closing(store):
        olds = prepared(store)
        d = store.create(claim("d"))
        client.writes.clear()
        client.before = leave
        with pytest.raises(Unavailable):
            store.commit([change(obj) for obj in olds])
        with pytest.raises(Unavailable):
            store.commit([change(d)])
        assert status_and_annotations(store.get("DeviceClaim", "default", "d")) == ({}, {})
        client.before = lambda number, what: None
        store.commit([change(d)])
        assert [status_and_annotations(store.get("DeviceClaim", "default", name)) for name in NAMES] == [OLD] * 3
        assert records(kube) == []


def test_objects_of_a_running_transaction_are_not_written_by_others_but_may_be_sealed() -> None:
    kube = FakeKube()
    store, client = opened(kube)
    other, _ = opened(kube)
    outcomes: list[str] = []

    def meddle(number: int, what: str) -> None:
        if number != 5:
            return
        now = other.get("DeviceClaim", "default", "a")
        with pytest.raises(Conflict, match="part of a running transaction"):
            other.commit([Change(Key.of(now), now["metadata"]["resourceVersion"], {"podNames": ["mine"]})])
        other.commit([Change(Key.of(now), now["metadata"]["resourceVersion"], now["status"], {"seal": "1"})])
        outcomes.append("sealed")

    with closing(store), closing(other):
        olds = prepared(store)
        client.writes.clear()
        client.before = meddle
        with suppress(Conflict):
            store.commit([change(obj) for obj in olds])
        assert outcomes == ["sealed"]


def test_a_former_leader_stops_writing() -> None:
    kube = FakeKube()
    left = [0]
    store, client = opened(kube, may_write=lambda: left.append(0) is None and len(left) < 6)
    with closing(store):
        olds = prepared(store)
        client.writes.clear()
        with pytest.raises(NotLeader):
            store.commit([change(obj) for obj in olds])
        assert len(client.writes) == 4
        assert store.create(claim("else")), "single writes are not asked for: its lease is one"


def test_a_mark_without_a_record_goes_and_a_forged_record_is_not_read_from_objects() -> None:
    kube = FakeKube()
    store, _ = opened(kube)
    with closing(store):
        store.create(claim("a", annotations={"devalloc.io/transaction": '{"before": {"status": {"podNames": ["x"]}}}'}))
        store.recover()
        assert status_and_annotations(store.get("DeviceClaim", "default", "a")) == ({}, {})


@pytest.mark.parametrize("mark", ["devalloc-transaction-0", "../secrets/x", "x y", ""])
def test_a_mark_without_a_record_keeps_a_claim_from_being_written_once(mark: str) -> None:
    """Such as one that arrives after all was put back, because its answer had been lost."""
    kube = FakeKube()
    store, _ = opened(kube)
    with closing(store):
        obj = store.create(claim("a", annotations={"devalloc.io/transaction": mark, "stays": "1"}))
        outcomes = []
        for _ in range(2):
            now = store.get("DeviceClaim", "default", "a")
            outcomes += store.commit_each([[Change(Key.of(obj), now["metadata"]["resourceVersion"], AFTER)]])
        assert isinstance(outcomes[0], Conflict) == bool(mark)
        assert status_and_annotations(store.get("DeviceClaim", "default", "a")) == (
            AFTER,
            {"stays": "1"} if mark else status_and_annotations(obj)[1],
        )


@pytest.mark.parametrize("data", [None, {}, {"state": "odd", "members": "[]"}, {"state": COMMITTED, "members": "{"}])
def test_an_unreadable_record_stops_every_leader(data: Object | None) -> None:
    kube = FakeKube()
    labels = {"devalloc.io/transaction": "record"}
    body: Object = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "r", "namespace": "devalloc-system"},
        "data": data,
    }
    body["metadata"]["labels"] = labels
    kube.create("/api/v1/namespaces/devalloc-system/configmaps", body)
    store, _ = opened(kube)
    with closing(store), pytest.raises(StoreError, match="ConfigMap devalloc-system/r is not a record"):
        store.recover()


def test_what_is_too_large_for_a_record_is_refused_before_anything_is_written() -> None:
    kube = FakeKube()
    store, client = opened(kube)
    with closing(store):
        a, b = store.create(claim("a")), store.create(claim("b"))
        client.writes.clear()
        large = {"podNames": ["x" * 500_000]}
        with pytest.raises(Invalid, match="smaller"):
            store.commit([Change(Key.of(obj), obj["metadata"]["resourceVersion"], large) for obj in (a, b)])
        assert client.writes == []


def test_a_foreign_write_before_a_mark_went_does_not_count_as_own() -> None:
    """It is known by its resourceVersion, which the write that took the mark away must not give as its own."""
    kube = FakeKube()
    store, client = opened(kube)
    other, _ = opened(kube)

    def meddle(number: int, what: str) -> None:
        if number == POINT + 1:
            now = other.get("DeviceClaim", "default", "a")
            noted = {**now["metadata"]["annotations"], "mine": "1"}
            other.replace({**now, "metadata": {**now["metadata"], "annotations": noted}})

    with closing(store), closing(other):
        olds = prepared(store)
        client.writes.clear()
        client.before = meddle
        done = store.commit([change(obj) for obj in olds]).objects
        there = store.list("DeviceClaim").objects
    assert [obj["metadata"]["annotations"].get("mine") for obj in there] == ["1", None, None]
    assert all("devalloc.io/transaction" not in obj["metadata"]["annotations"] for obj in there)
    is_own = [
        one["metadata"]["resourceVersion"] == obj["metadata"]["resourceVersion"]
        for one, obj in zip(done, there, strict=True)
    ]
    assert is_own == [False, True, True]
    assert records(kube) == []
