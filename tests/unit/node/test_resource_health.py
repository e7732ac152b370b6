"""The health stream: all devices when a listener comes, all again when one changes, and none holds the plugin up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from devalloc_node.binding.binding import HealthState
from devalloc_node.health.watch import DeviceHealth, HealthSnapshot
from devalloc_node.pb import health_v1_pb2
from devalloc_node.service.resource_health import VERSIONS, ResourceHealth, cut
from devalloc_node.service.server import serve
from tests.support.kubelet_client import KubeletClient, kubelet_client
from tests.support.waiting import until


class Board:
    """A feed that the test writes to."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._devices: dict[str, DeviceHealth] = {}
        self._version = 0

    def set(self, device: str, health: HealthState) -> None:
        with self._changed:
            self._devices[device] = DeviceHealth("pool", device, health, 1700000000.5)
            self._version += 1
            self._changed.notify_all()

    def snapshot(self) -> HealthSnapshot:
        with self._changed:
            return HealthSnapshot(self._version, tuple(self._devices.values()))

    def wait(self, version: int, timeout: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._version > version, timeout)


@pytest.fixture
def board() -> Board:
    board = Board()
    board.set("gpu-0", HealthState("healthy"))
    board.set("gpu-1", HealthState("unknown", "not looked at yet"))
    return board


@pytest.fixture
def service(board: Board) -> ResourceHealth:
    return ResourceHealth(board)


@pytest.fixture
def kubelet(service: ResourceHealth, tmp_path: Path) -> Iterator[KubeletClient]:
    server = serve(tmp_path / "dra.sock", [service.service(version) for version in VERSIONS])
    try:
        with kubelet_client(tmp_path / "dra.sock") as client:
            yield client
    finally:
        service.stop()
        server.stop(grace=5)


def health_by_name(response) -> dict[str, tuple[int, str]]:
    return {each.device.device_name: (each.health, each.message) for each in response.devices}


@pytest.mark.parametrize("version", ["v1", "v1alpha1"])
def test_the_whole_list_at_first_and_at_each_change(kubelet: KubeletClient, board: Board, version: str) -> None:
    stream = kubelet.watch(version)
    first = next(stream)
    assert health_by_name(first) == {"gpu-0": (1, ""), "gpu-1": (0, "not looked at yet")}
    assert {each.device.pool_name for each in first.devices} == {"pool"}
    assert {each.last_updated_time for each in first.devices} == {1700000000}
    assert {each.health_check_timeout_seconds for each in first.devices} == {30}
    board.set("gpu-0", HealthState("unhealthy", "fell off the bus"))
    assert health_by_name(next(stream)) == {"gpu-0": (2, "fell off the bus"), "gpu-1": (0, "not looked at yet")}
    board.set("gpu-0", HealthState("healthy"))
    assert health_by_name(next(stream))["gpu-0"] == (1, "")
    stream.cancel()


def test_the_list_comes_again_without_a_change(board: Board, tmp_path: Path) -> None:
    service = ResourceHealth(board, repeat=0.02)
    server = serve(tmp_path / "dra.sock", [service.service("v1.DRAResourceHealth")])
    try:
        with kubelet_client(tmp_path / "dra.sock") as kubelet:
            stream = kubelet.watch()
            lists = [health_by_name(next(stream)) for _ in range(3)]
        assert lists == [lists[0]] * 3
    finally:
        service.stop()
        server.stop()


def test_a_slow_reader_misses_lists_but_never_the_last(kubelet: KubeletClient, board: Board) -> None:
    stream = kubelet.watch()
    next(stream)
    for number in range(2000):
        board.set("gpu-0", HealthState("unhealthy", f"{number} " + "x" * 900))
    lists = 0
    for response in stream:
        lists += 1
        if health_by_name(response)["gpu-0"][1].startswith("1999 "):
            break
    stream.cancel()
    assert lists < 2000


def test_listeners_are_bounded_and_a_place_is_free_again_when_one_goes(kubelet: KubeletClient) -> None:
    streams = [kubelet.watch() for _ in range(8)]
    for stream in streams:
        next(stream)
    with pytest.raises(grpc.RpcError, match="close one") as error:
        next(kubelet.watch())
    assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    streams[0].cancel()

    def is_heard() -> bool:
        try:
            next(kubelet.watch())
        except grpc.RpcError:
            return False
        return True

    until(is_heard, "the place of the listener that went is given to another")


def test_streams_end_when_the_plugin_stops(kubelet: KubeletClient, service: ResourceHealth) -> None:
    stream = kubelet.watch()
    next(stream)
    service.stop()
    assert list(stream) == []


def test_messages_are_cut_at_1024_bytes() -> None:
    assert cut("x" * 1024, 1024) == "x" * 1024
    assert cut("x" * 1025, 1024) == "x" * 1021 + "..."
    assert cut("ä" * 600, 1024) == "ä" * 510 + "..."  # 1020 bytes: none is cut in half
    assert cut("", 0) == cut("x", 0) == ""


def test_a_list_that_would_not_pass_has_shorter_messages(board: Board, tmp_path: Path) -> None:
    for number in range(6000):
        board.set(f"vf-{number}", HealthState("unhealthy", "x" * 2000))
    service = ResourceHealth(board)
    server = serve(tmp_path / "dra.sock", [service.service("v1.DRAResourceHealth")])
    try:
        with kubelet_client(tmp_path / "dra.sock") as kubelet:
            response = next(kubelet.watch())
        assert len(response.devices) == 6002
        assert response.devices[-1].message == "x" * 125 + "..."
        assert isinstance(response, health_v1_pb2.NodeWatchResourcesResponse)
    finally:
        service.stop()
        server.stop()
