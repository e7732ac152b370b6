"""The slices of a node follow its pools, and what becomes of the API server and of the node."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from devalloc.api.pool import DevicePool
from devalloc.store.kubernetes.api_error import ApiError
from devalloc.store.kubernetes.client import Client
from devalloc_node.kube import publisher as publishing
from devalloc_node.kube.publisher import SLICES, SlicePublisher
from tests.support import pci_cards
from tests.support.discovery_view import DiscoveredPools
from tests.support.fake_sysfs import FakeSysfs
from tests.support.waiting import in_threads, until

NODE = "/api/v1/nodes/node-a"
Object = dict[str, Any]


class Server:
    """An API server of one node's slices, as its client sees it; what its features do not know it drops."""

    def __init__(self) -> None:
        self.counters = True
        self.apart = True
        """Counters may be in another slice than the devices that consume them."""
        self.node: str | None = "uid-1"
        """UID of the node; None while it does not exist."""
        self.refused: set[str] = set()
        """Slices that may not be written."""
        self.slices: dict[str, Object] = {}
        self.version = 0
        self.probes = 0
        self.watches: list[str] = []
        """From which version each watch began."""
        self.events: list[Object] = []
        """What the next watch tells before it ends."""
        self.breaks = threading.Event()
        """The watch breaks."""

    def get(self, path: str, params: Any = None, *, deadline: Any = None) -> Object:
        if path == SLICES:
            return {"metadata": {"resourceVersion": str(self.version)}, "items": copy.deepcopy([*self.slices.values()])}
        assert path == NODE
        if self.node is None:
            raise ApiError(404, "NotFound", 'nodes "node-a" not found', {"name": "node-a"})
        return {"metadata": {"uid": self.node}}

    def create(self, path: str, body: Object, params: Any = None) -> Object:
        if params == {"dryRun": "All"}:
            self.probes += 1
            return self._pruned(body)
        assert body["metadata"]["name"] not in self.slices
        body["metadata"]["uid"] = f"uid-of-{body['metadata']['name']}"
        return self._stored(body)

    def replace(self, path: str, body: Object, params: Any = None) -> Object:
        return self._stored(body)

    def delete(self, path: str, uid: str, resource_version: str) -> None:
        self._refuse(name := path.rpartition("/")[2])
        del self.slices[name]

    def watch(self, path: str, params: Any, resource_version: str, stop: threading.Event) -> Iterator[Object]:
        self.watches.append(resource_version)
        yield from self.events
        while not stop.wait(0.005):
            if self.breaks.is_set():
                self.breaks.clear()
                raise ApiError(0, "NoAnswer", "the watch broke")
            if self.events:
                self.events = []
                return

    def _stored(self, body: Object) -> Object:
        self._refuse(name := body["metadata"]["name"])
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        self.slices[name] = self._pruned(body)
        return copy.deepcopy(self.slices[name])

    def _refuse(self, name: str) -> None:
        if name in self.refused:
            raise ApiError(403, "Forbidden", f"{name} may not be written")

    def _pruned(self, body: Object) -> Object:
        stored = copy.deepcopy(body)
        if not self.apart and any("consumesCounters" in device for device in stored["spec"].get("devices", [])):
            raise ApiError(422, "Invalid", "counterSet: must reference a counter set of this slice")
        if not self.counters:
            stored["spec"].pop("sharedCounters", None)
            for device in stored["spec"].get("devices", []):
                device.pop("consumesCounters", None)
        return stored


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "RETRY_SECONDS", 0.01)


@pytest.fixture
def one(server: Server) -> SlicePublisher:
    return SlicePublisher(cast(Client, server), "devalloc.io", "node-a")


@pytest.fixture
def pools(tmp_path: Path) -> list[DevicePool]:
    host = FakeSysfs(tmp_path)
    host.add(pci_cards.gpu("0000:81:00.0"))
    host.add(pci_cards.a2_vgpu_card("0000:08:00.0", vfs=1))
    return DiscoveredPools.on(host.root).pools


@contextmanager
def started(one: SlicePublisher) -> Iterator[None]:
    with in_threads(*one.loops):
        yield


def test_features_that_are_switched_on_later_are_used(
    server: Server, one: SlicePublisher, pools: list[DevicePool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For that API servers are started anew, which ends the watch; or that of another one does not end."""

    def has_counters() -> bool:
        return any("sharedCounters" in content["spec"] for content in [*server.slices.values()])

    server.counters = False
    with started(one):
        one.set(pools)
        assert one.wait(lambda published: published.slices > 0, 30)
        assert not has_counters()
        server.counters = True
        server.breaks.set()
        until(has_counters, "the features are asked for again")
        until(lambda: one.published.problems == () and not one.published.error, "all of the pools is published")

        probes = server.probes
        monkeypatch.setattr(one, "_ask_features_at", 0.0)  # the time is over
        server.events = [{"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "4711"}}}]
        server.breaks.set()
        until(lambda: server.probes > probes and "4711" in server.watches, "they are asked for when a watch ends")


def test_a_node_that_came_back_owns_its_slices(server: Server, one: SlicePublisher, pools: list[DevicePool]) -> None:
    """The former one's would be collected as garbage, again and again."""

    def owners() -> set[str]:
        return {owner["uid"] for each in server.slices.values() for owner in each["metadata"]["ownerReferences"]}

    one.publish(pools)
    assert owners() == {"uid-1"}
    server.slices.clear()
    server.node = None
    assert 'nodes "node-a" not found' in (one.publish(pools).error or "")
    assert server.slices == {}, "no collector would delete them"
    server.node = "uid-2"
    assert one.publish(pools).error is None
    assert owners() == {"uid-2"}


def test_a_slice_that_may_not_be_removed_holds_up_no_other_pool(
    server: Server, one: SlicePublisher, pools: list[DevicePool]
) -> None:
    first, second = pools
    one.publish([first])
    server.refused = set(server.slices)
    published = one.publish([second])
    assert published.error is not None
    assert published.error.startswith(f"pool {first.metadata.name}: ")
    assert {each["spec"]["pool"]["name"] for each in server.slices.values()} == {each.metadata.name for each in pools}


def test_each_failed_attempt_is_reported(server: Server, pools: list[DevicePool]) -> None:
    failures: list[str | None] = []

    def failed() -> None:
        failures.append(server.node)
        if len(failures) == 2:
            server.node = node

    node, server.node = server.node, None
    one = SlicePublisher(cast(Client, server), "devalloc.io", "node-a", failed=failed)
    with started(one):
        one.set(pools)
        assert one.wait(lambda published: published.error is None and len(failures) == 2, 30)
    assert failures == [None, None]


def test_a_server_that_wants_counters_beside_their_devices_gets_none(
    server: Server, one: SlicePublisher, pools: list[DevicePool]
) -> None:
    server.apart = False
    published = one.publish(pools)
    assert published.error is None
    assert any("DRAPartitionableDevices is off" in problem.message for problem in published.problems)
    assert server.slices
