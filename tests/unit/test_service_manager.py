"""What systemd hears of a service: that it is ready, that its loops go on, and that it stops."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from devalloc.service_manager import Heartbeat, Round, ServiceManager


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    """Its end of the socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(60)
        yield listener


def manager(systemd: socket.socket, **more: str) -> ServiceManager:
    return ServiceManager({"NOTIFY_SOCKET": systemd.getsockname(), **more})


@contextmanager
def beating(heartbeat: Heartbeat) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=heartbeat.run, args=(stop,))
    thread.start()
    yield
    stop.set()
    thread.join(60)
    assert not thread.is_alive()


def heard(systemd: socket.socket) -> str:
    return systemd.recv(4096).decode()


def test_it_is_ready_when_it_serves_and_says_when_it_stops(systemd: socket.socket) -> None:
    serves = threading.Event()
    with beating(Heartbeat(manager(systemd), serves.is_set, lambda: ())):
        systemd.setblocking(False)
        time.sleep(0.3)
        with pytest.raises(BlockingIOError):
            systemd.recv(4096)
        systemd.settimeout(60)
        serves.set()
        assert heard(systemd) == "READY=1"
    assert heard(systemd) == "STOPPING=1"


def test_it_lives_as_long_as_no_loop_is_in_one_round_for_too_long(systemd: socket.socket) -> None:
    began: list[float | None] = [None]
    rounds: list[Round] = [lambda: None, lambda: began[0]]
    watched = manager(systemd, WATCHDOG_USEC="400000", WATCHDOG_PID=str(os.getpid()))
    with beating(Heartbeat(watched, lambda: True, lambda: rounds)):
        assert [heard(systemd) for _ in range(3)] == ["READY=1", "WATCHDOG=1", "WATCHDOG=1"]
        began[0] = time.monotonic() - 1
        time.sleep(0.2)
        systemd.setblocking(False)
        with suppress(BlockingIOError):
            while systemd.recv(4096):  # said before
                pass
        time.sleep(0.3)
        with pytest.raises(BlockingIOError):
            systemd.recv(4096)
        systemd.settimeout(60)
        began[0] = time.monotonic()
        assert heard(systemd) == "WATCHDOG=1"


@pytest.mark.parametrize(
    ("environment", "patience"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "600000000"}, 600),
        ({"WATCHDOG_USEC": "600000000", "WATCHDOG_PID": str(os.getpid())}, 600),
        ({"WATCHDOG_USEC": "600000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_how_long_it_may_be_silent(environment: dict[str, str], patience: float | None) -> None:
    assert ServiceManager(environment).patience == patience


def test_an_abstract_address_is_reached() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0devalloc-test-{os.getpid()}")
        listener.settimeout(60)
        ServiceManager({"NOTIFY_SOCKET": f"@devalloc-test-{os.getpid()}"}).send("READY=1")
        assert listener.recv(100) == b"READY=1"


@pytest.mark.parametrize("address", ["", "relative", "/no/such/socket", "/" + "x" * 200])
def test_a_service_goes_on_without_its_manager(address: str) -> None:
    ServiceManager({"NOTIFY_SOCKET": address}).send("READY=1")
