"""What a leader that stood still would still write is refused, whenever it wakes up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from devalloc.api.meta import LEADER, TRANSACTION
from devalloc.store import Change, Conflict, Key, Listing, Object, StoreError
from devalloc.store.fencing import FencingInterrupted, fence_objects
from devalloc.store.kubernetes import ApiError, KubernetesStore
from devalloc.store.sqlite import SQLiteStore
from tests.support.fake_kube import FakeClient, FakeKube
from tests.support.fleet_manifests import fill, gpu_claim, gpu_class, gpu_pool
from tests.support.machine_allocator import machine_allocator
from tests.support.minimal_manifests import claim


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with closing(SQLiteStore(tmp_path / "store.db")) as store:
        yield store


def stamps(store: SQLiteStore) -> dict[str, str | None]:
    objects = store.list(["DeviceClaim", "VirtualMachine"]).objects
    return {obj["metadata"]["name"]: obj["metadata"].get("annotations", {}).get(LEADER) for obj in objects}


def machine(name: str) -> Object:
    return {"apiVersion": "devalloc.io/v1alpha1", "kind": "VirtualMachine", "metadata": {"name": name}, "spec": {}}


def test_all_that_is_not_given_is_sealed_once(store: SQLiteStore) -> None:
    fill(store, gpu_pool(devices=1), gpu_class(), gpu_claim("has"))
    machine_allocator(store).round()
    fill(store, gpu_claim("waits"), machine("vm"))
    store.commit([_annotated(store.get("DeviceClaim", "default", "has"), "other", "x")])
    assert fence_objects(store, "1 a", threading.Event()) == 2
    assert stamps(store) == {"has": None, "waits": "1 a", "vm": "1 a"}
    assert fence_objects(store, "1 a", threading.Event()) == 0
    assert fence_objects(store, "2 b", threading.Event()) == 2


def test_what_was_cut_off_in_the_middle_is_sealed_too(store: SQLiteStore) -> None:
    """Its leader's last write would finish it."""
    fill(store, gpu_pool(devices=1), gpu_class(), gpu_claim("half"))
    machine_allocator(store).round()
    store.commit([_annotated(store.get("DeviceClaim", "default", "half"), TRANSACTION, "{}")])
    assert fence_objects(store, "1 a", threading.Event()) == 1


def test_a_grant_that_was_decided_before_is_refused_after(store: SQLiteStore) -> None:
    fill(store, gpu_pool(devices=1), gpu_class(), gpu_claim("a"))
    old = store.get("DeviceClaim", "default", "a")
    grant = Change(Key.of(old), old["metadata"]["resourceVersion"], {"allocations": []})
    fence_objects(store, "1 a", threading.Event())
    assert isinstance(store.commit_each([[grant]])[0], Conflict)


def test_an_object_that_changes_meanwhile_is_read_again(store: SQLiteStore) -> None:
    fill(store, *(gpu_claim(f"c{number}") for number in range(3)))
    read, left = store.list, [2]

    def raced(*of: object) -> Listing:
        current = read(*of)  # type: ignore[arg-type]
        if left[0]:
            left[0] -= 1
            store.commit([_annotated(store.get("DeviceClaim", "default", "c1"), "other", str(left[0]))])
        return current

    store.list = raced  # type: ignore[method-assign, assignment]
    assert fence_objects(store, "1 a", threading.Event(), pause=lambda seconds: None) == 3
    assert set(stamps(store).values()) == {"1 a"}


def test_it_stops_where_it_is_to(store: SQLiteStore) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(FencingInterrupted):
        fence_objects(store, "1 a", stop)


def _annotated(obj: Object, name: str, value: str) -> Change:
    return Change(Key.of(obj), obj["metadata"]["resourceVersion"], obj.get("status"), {name: value})


class TestWhatRefusesTheStamp:
    """The API server takes 256 KiB of annotations, and any user who makes a claim may fill them."""

    def test_it_is_sealed_by_a_label(self) -> None:
        client = FakeClient(FakeKube())
        with closing(KubernetesStore(client)) as store:  # type: ignore[arg-type]
            full, other = store.create(claim("full")), store.create(claim("other"))

            def before(number: int, what: str) -> None:
                if what.endswith("/full"):  # the first write, which is that of the annotation
                    client.before = lambda number, what: None
                    raise ApiError(422, "Invalid", "metadata.annotations: Too long")

            client.before = before
            assert fence_objects(store, "1 a", threading.Event(), pause=lambda seconds: None) == 2
            for old in (full, other):
                late = Change(Key.of(old), old["metadata"]["resourceVersion"], {"podNames": ["late"]})
                assert isinstance(store.commit_each([[late]])[0], Conflict)
            assert labels(client, "full").keys() == {LEADER}

    @pytest.mark.parametrize(
        "answer",
        [
            ApiError(422, "Invalid", "it is too large"),
            ApiError(500, "", "etcdserver: request is too large"),
            ApiError(500, "", "rpc error: trying to send message larger than max (2097200 vs. 2097152)"),
        ],
        ids=["Invalid", "etcd", "grpc"],
    )
    def test_an_object_that_takes_no_label_either_delays_no_other(self, answer: ApiError) -> None:
        client = FakeClient(FakeKube())
        with closing(KubernetesStore(client)) as store:  # type: ignore[arg-type]
            store.create(claim("full"))
            store.create(claim("other"))

            def before(number: int, what: str) -> None:
                if what.endswith("/full"):
                    raise answer

            client.before = before
            assert fence_objects(store, "1 a", threading.Event(), pause=lambda seconds: None) == 1

    @pytest.mark.parametrize(
        "answer",
        [
            ApiError(422, "Invalid", "denied request: paramKind kind `Class` not yet synced to use for admission"),
            ApiError(403, "Forbidden", 'claims "c" is forbidden: not yet ready to handle request'),
            ApiError(403, "Forbidden", 'claims "c" is forbidden: User "u" cannot update resource "claims": RBAC: '),
        ],
        ids=["policies", "admission", "rights"],
    )
    def test_nothing_is_decided_while_a_starting_server_refuses_the_fence(self, answer: ApiError) -> None:
        """What the last leader still sends may find one that lets it through."""
        client = FakeClient(FakeKube())
        with closing(KubernetesStore(client)) as store:  # type: ignore[arg-type]
            store.create(claim("a"))

            def before(number: int, what: str) -> None:
                if what.endswith("/a"):
                    raise answer

            client.before = before
            with pytest.raises(StoreError, match=r"is forbidden|not yet"):
                fence_objects(store, "1 a", threading.Event(), pause=lambda seconds: None)


def labels(client: FakeClient, name: str) -> dict[str, str]:
    path = f"/apis/devmgmtproto.k8s.io/v1alpha1/namespaces/default/deviceclaims/{name}"
    by_name: dict[str, str] = client.kube.get(path)["metadata"].get("labels", {})
    return by_name
