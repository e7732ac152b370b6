"""Kinds that a cluster may lack: they are found when their CRD is installed, and cost next to nothing until then."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import pytest

from devalloc.store import Event, EventType
from devalloc.store.kubernetes import ApiError, KubernetesStore, reflector
from devalloc.store.kubernetes.resources import ApiResource
from tests.support.fake_kube import FakeClient, FakeKube
from tests.support.permit_bench import machine
from tests.support.waiting import until

Object = dict[str, Any]
OPTIONAL = ApiResource("Whale", "sea.example", "v1", "whales", True, False, is_optional=True)
KINDS = ("VirtualMachine", OPTIONAL.store_kind)


class PartialClient(FakeClient):
    """A cluster that may lack the optional kind, and whose watches of it can break."""

    def __init__(self, kube: FakeKube) -> None:
        super().__init__(kube)
        self.is_served = False
        self.requested = 0
        self.broken: str | None = None

    def _check(self, path: str) -> None:
        if f"/{OPTIONAL.plural}" in path:
            self.requested += 1
            if not self.is_served:
                raise ApiError(404, "NotFound", "the server could not find the requested resource")

    def get(self, path: str, params: Any = None) -> Object:
        self._check(path)
        return super().get(path, params)

    def list(self, path: str, params: Any = None) -> Iterator[Object]:
        self._check(path)
        yield from super().list(path, params)

    def watch(
        self, path: str, params: Any, resource_version: str, stop: threading.Event, begun: Any
    ) -> Iterator[Object]:
        self._check(path)
        cuts = self.kube.cuts
        yield from super().watch(path, params, resource_version, stop, begun)
        if self.kube.cuts != cuts and self.broken and OPTIONAL.plural in path:
            raise ApiError(0, "NoAnswer", self.broken)


def whale(name: str) -> Object:
    return {"apiVersion": "sea.example/v1", "kind": "Whale", "metadata": {"namespace": "default", "name": name}}


@pytest.fixture
def kube() -> FakeKube:
    return FakeKube()


@pytest.fixture
def client(kube: FakeKube) -> PartialClient:
    return PartialClient(kube)


@pytest.fixture
def store(client: PartialClient) -> Iterator[KubernetesStore]:
    with closing(KubernetesStore(client, resources=(OPTIONAL,))) as store:  # type: ignore[arg-type]
        yield store


def names(store: KubernetesStore) -> Mapping[str, str]:
    return {obj["metadata"]["name"]: obj["kind"] for obj in store.list(KINDS).objects}


def silent_seconds(store: KubernetesStore) -> float:
    """Of the optional kind: a cut of all watches makes the others silent for a moment."""
    return store._reflectors._by_kind[OPTIONAL.store_kind].silent_seconds


def test_a_kind_whose_crd_comes_later_is_found_and_its_objects_are_news(
    kube: FakeKube, client: PartialClient, store: KubernetesStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflector, "MISSING_SECONDS", 0.05)
    store.create(machine("web"))
    listing = store.list(KINDS)
    assert [obj["metadata"]["name"] for obj in listing.objects] == ["web"]
    heard: list[Event] = []
    stop = threading.Event()

    def follow() -> None:
        for event in store.watch(KINDS, listing.resource_version, stop=stop):
            heard.append(event)

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        kube.create("/apis/sea.example/v1/namespaces/default/whales", whale("moby"))
        until(lambda: client.requested > 3, "it is looked for again")
        assert heard == []
        assert silent_seconds(store) == 0.0
        client.is_served = True
        until(lambda: heard, "it is found")
        assert (heard[0].type, heard[0].object["metadata"]["name"]) == (EventType.ADDED, "moby")
        kube.create("/apis/sea.example/v1/namespaces/default/whales", whale("willy"))
        until(lambda: len(heard) > 1, "it is watched")
        client.is_served = False  # the CRD is deleted
        kube.cut()
        until(lambda: len(heard) > 3, "there are none any more")
        assert {event.type for event in heard[2:]} == {EventType.DELETED}
        assert set(names(store)) == {"web"}
        store.refresh()
        assert silent_seconds(store) == 0.0
        client.is_served = True  # and installed again
        until(lambda: set(names(store)) == {"web", "moby", "willy"}, "it is found again")
    finally:
        stop.set()
        thread.join(60)


def test_looking_for_a_kind_costs_one_request_in_a_while(client: PartialClient, store: KubernetesStore) -> None:
    assert reflector.MISSING_SECONDS >= 10
    for _ in range(50):
        store.list(KINDS)
        store.refresh()
    assert client.requested == 1


def test_a_watch_without_news_that_breaks_is_silent_only_from_then_on(
    kube: FakeKube, client: PartialClient, store: KubernetesStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/readyz fails after a minute of silence; a watch may have no event for longer than that."""
    client.is_served = True
    now = [1000.0]
    monkeypatch.setattr(reflector.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(reflector, "MIN_PAUSE_SECONDS", 3600.0)
    monkeypatch.setattr(reflector, "MAX_PAUSE_SECONDS", 3600.0)
    store.list(KINDS)
    until(lambda: client.requests().get(("watch", 200), 0) == 2, "both are watched")
    now[0] += 150
    client.broken = "the watch broke: timed out"
    kube.cut()
    until(lambda: store._reflectors._by_kind[OPTIONAL.store_kind]._fails, "it is noticed")
    assert store.silent_seconds == 0.0
    now[0] += 61
    assert store.silent_seconds == 61.0
