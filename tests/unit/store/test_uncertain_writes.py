"""Writes of which the answer is lost, and nothing can be read for a while: none decides before they are certain."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from devalloc.api.meta import LEADER
from devalloc.store import Change, Conflict, Fence, FenceBroken, Key, Object, StoreError, UnknownOutcome
from devalloc.store.fencing import UncertainWrites
from devalloc.store.kubernetes import ApiError, KubernetesStore, object_writer
from tests.support.fake_kube import FakeClient, FakeKube
from tests.support.permit_bench import KIND, machine

LOST = ApiError(0, "NoAnswer", "the answer is lost")
FEW = {"permitted": {"cpus": "1"}}
MANY = {"permitted": {"cpus": "8"}}


class Cut(FakeClient):
    """Of one whose connection breaks: the next write of a status goes out, and arrives when the test wants."""

    def __init__(self, kube: FakeKube) -> None:
        super().__init__(kube)
        self.is_cut = self.breaks = False
        self.on_its_way: list[tuple[str, Object]] = []

    def get(self, path: str, params: Any = None) -> Object:
        if self.is_cut:
            raise LOST
        return super().get(path, params)

    def replace(self, path: str, body: Object) -> Object:
        if self.breaks and path.endswith("/status"):
            self.on_its_way.append((path, body))
            self.is_cut, self.breaks = True, False
        if self.is_cut:
            raise LOST
        return super().replace(path, body)

    def arrive(self) -> str:
        """What the server makes of it."""
        try:
            self.kube.replace(*self.on_its_way[0])
        except ApiError as error:
            return error.reason
        return "done"


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Cut:
    monkeypatch.setattr(object_writer, "PAUSE_SECONDS", 0.001)
    return Cut(FakeKube())


@pytest.fixture
def store(client: Cut) -> Iterator[KubernetesStore]:
    with closing(KubernetesStore(client)) as opened:  # type: ignore[arg-type]
        yield opened


def one(obj: Object, status: Object) -> list[Change]:
    return [Change(Key.of(obj), obj["metadata"]["resourceVersion"], status)]


def claim_of(name: str) -> Object:
    spec = {"claims": [{"deviceClass": "gpu"}]}
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "devmgmtproto.k8s.io/v1alpha1", "kind": "DeviceClaim", "metadata": metadata, "spec": spec}


def lost(store: KubernetesStore, client: Cut) -> tuple[Object, Object, Fence]:
    """Two machines, and a fence of before one of them was written with an unknown outcome."""
    a, b = (store.create(machine(name)) for name in "ab")
    fence = Fence(store.list(KIND).resource_version, specs=frozenset({KIND}), statuses=frozenset({KIND}))
    client.breaks = True
    with pytest.raises(UnknownOutcome):
        store.commit_each([one(a, MANY)], fence)
    return a, b, fence


def test_nothing_is_written_while_it_is_not_known(client: Cut, store: KubernetesStore) -> None:
    _, b, fence = lost(store, client)
    for _ in range(2):
        with pytest.raises(StoreError):
            store.commit_each([one(b, FEW)], fence)
    client.is_cut = False
    assert "status" not in store.get(*Key.of(b))


def test_a_decision_about_other_kinds_does_not_wait(client: Cut, store: KubernetesStore) -> None:
    """Such as for a machine of another program, whose webhook is down."""
    _, b, fence = lost(store, client)
    client.is_cut = False

    def before(number: int, what: str) -> None:
        if "/virtualmachines/" in what:
            raise LOST

    client.before = before
    kind = frozenset({"DeviceClaim"})
    claim = store.create(claim_of("c"))
    others = Fence(store.list("DeviceClaim").resource_version, specs=kind, statuses=kind)
    assert not isinstance(store.commit_each([one(claim, {"podNames": ["p"]})], others)[0], Conflict)
    for about in (fence, others, None):  # what reads or writes machines, or does not say what it reads
        with pytest.raises(StoreError):
            store.commit_each([one(b, FEW)], about)


def test_a_write_that_did_not_arrive_cannot_arrive_after_the_next_write(client: Cut, store: KubernetesStore) -> None:
    a, b, fence = lost(store, client)
    client.is_cut = False
    assert not isinstance(store.commit_each([one(b, FEW)], fence)[0], Conflict)
    assert client.arrive() == "Conflict"
    there = store.get(*Key.of(a))
    assert "status" not in there
    assert LEADER in there["metadata"]["annotations"]
    writes = len(client.writes)
    store.commit_each([one(store.get(*Key.of(b)), MANY)])
    assert len(client.writes) == writes + 1, "it is certain from then on"


def test_what_was_done_breaks_the_fence_of_who_did_not_know(client: Cut, store: KubernetesStore) -> None:
    _, b, fence = lost(store, client)
    assert client.arrive() == "done"
    client.is_cut = False
    with pytest.raises(FenceBroken, match="a changed meanwhile"):
        store.commit_each([one(b, FEW)], fence)
    assert {obj["metadata"]["name"]: obj.get("status") for obj in store.list(KIND).objects} == {"a": MANY, "b": None}


def test_one_that_takes_no_annotation_is_labelled(client: Cut, store: KubernetesStore) -> None:
    a, b, fence = lost(store, client)
    client.is_cut = False

    def before(number: int, what: str) -> None:
        client.before = lambda number, what: None
        raise ApiError(422, "Invalid", "too many annotations")

    client.before = before
    assert not isinstance(store.commit_each([one(b, FEW)], fence)[0], Conflict)
    assert client.arrive() == "Conflict"
    assert LEADER in store.get(*Key.of(a))["metadata"]["labels"]


def test_one_that_is_gone_is_certain(client: Cut, store: KubernetesStore) -> None:
    a, b, _ = lost(store, client)
    client.is_cut = False
    store.delete(*Key.of(a))
    assert not isinstance(store.commit_each([one(b, FEW)])[0], Conflict)
    assert client.arrive() == "NotFound"


def test_a_change_that_changes_nothing_is_made_sure_of_by_the_server(client: Cut, store: KubernetesStore) -> None:
    """Also before the watch shows what another writer did to the object."""
    (obj,) = store.commit_each([one(store.create(machine("a")), FEW)])[0]
    writes = len(client.writes)
    assert store.commit_each([one(obj, FEW)]) == [[obj]]
    assert len(client.writes) == writes
    # The store holds no kind yet, so that no watch tells it anything.
    with closing(KubernetesStore(FakeClient(client.kube))) as other:  # type: ignore[arg-type]
        other.replace_status({**other.get(*Key.of(obj)), "status": MANY})
        assert isinstance(store.commit_each([one(obj, FEW)])[0], Conflict)
        other.delete(*Key.of(obj))
        assert isinstance(store.commit_each([one(obj, FEW)])[0], Conflict)


def test_a_write_that_ends_unknown_while_another_is_settled_stays_in_doubt() -> None:
    key, written = Key(KIND, "default", "a"), list[Object]()

    class Api:
        def read(self, key: Key) -> Object:
            return {"metadata": {"name": key.name}}

        def write(self, obj: Object) -> Object:
            written.append(obj)
            if len(written) == 1:
                doubts.note([key])  # by another thread
            return obj

    doubts = UncertainWrites(Api())
    doubts.note([key])
    doubts.settle()
    assert doubts
    doubts.settle()
    assert not doubts
    assert len(written) == 2


def test_a_webhook_that_cannot_be_reached_is_named_and_no_answer_was_lost(
    store: KubernetesStore, client: Cut, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The words of a real API server."""
    caplog.set_level("INFO")
    made = store.create(machine("a"))
    why = 'failed calling webhook "v.kb.io": failed to call webhook: Post "https://w.svc:443/": connection refused'

    def refuse(path: str, body: Object) -> Object:
        raise ApiError(500, "InternalError", f"Internal error occurred: {why}")

    monkeypatch.setattr(client, "replace", refuse)
    with pytest.raises(UnknownOutcome, match="a webhook that the API server asks could not be reached") as error:
        store.commit(one(made, FEW))
    assert why in str(error.value)
    assert "a webhook could not be reached; trying again" in caplog.text
    assert "lost" not in f"{error.value}{caplog.text}"
