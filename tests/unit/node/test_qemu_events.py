"""Events of QEMU, on real sockets: what they cause, and what a QEMU that was taken over cannot."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devalloc_machines.qemu.settings import MachineConfig
from devalloc_machines.vms.guest_reports import ReportPort, ReportPorts
from devalloc_machines.vms.qemu_events import QemuEvents
from tests.support.toy_machines import vm
from tests.support.waiting import until
from tests.unit.node.test_guest_reports import ToyPorts

STOP = b'{"timestamp": {"seconds": 1}, "event": "STOP"}\r\n'
OTHER = b'{"event": "RTC_CHANGE", "data": {"offset": 1}}\r\n'


class World:
    """Events that are heard in a thread, and QEMUs that are sockets."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.ports, self.changed = folder, ToyPorts(), list[str]()
        self.events = QemuEvents(self.ports, self.changed.append)
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.events.run, args=(self.stop,))
        self.thread.start()

    def begin(self, key: str = "default/web", run: str = "run-1", user: int | None = None) -> socket.socket:
        """A machine begins; the listening side of its QEMU."""
        path = self.folder / f"{key.replace('/', '-')}-{run}"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(os.fspath(path))
        listener.listen(1)
        listener.settimeout(20)
        self.ports.ports[key] = ReportPort(run, path, os.geteuid() if user is None else user)
        self.events.hear([f"machine {key}"])
        return listener

    def qemu(self, key: str = "default/web", run: str = "run-1") -> socket.socket:
        """The same, connected, after the plugin has asked for events."""
        connection, _ = self.begin(key, run).accept()
        connection.settimeout(20)
        assert connection.recv(100) == b'{"execute": "qmp_capabilities"}\n'
        return connection


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.stop.set()
    made.thread.join(30)
    assert not made.thread.is_alive()


def test_a_machine_whose_cpus_stop_is_looked_at_and_others_are_not(world: World) -> None:
    qemu, other = world.qemu(), world.qemu("default/other")
    other.sendall(OTHER)
    qemu.sendall(b'{"QMP": {"version": {}}}\r\n{"return": {}}\r\n' + STOP[:20])
    qemu.sendall(STOP[20:])
    until(lambda: world.changed == ["default/web"], "it is looked at", context=lambda: world.changed)


@pytest.mark.parametrize(
    "noise",
    [
        b"\xff\xfe",
        b"[]",
        b'{"event": 7}',
        b'{"event": ["STOP"]}',
        b'{"event": {"STOP": 1}}',
        b"[" * 4000,
        b"x" * 100_000,
    ],
    ids=lambda noise: noise[:20].decode(errors="replace"),
)
def test_what_is_no_event_is_passed_over(world: World, noise: bytes) -> None:
    qemu = world.qemu()
    threading.Thread(target=lambda: qemu.sendall(noise + b"\r\n" + STOP)).start()
    until(lambda: world.changed == ["default/web"], "the event behind it is heard", context=lambda: world.changed)


def test_a_flood_of_events_causes_a_few_looks(world: World) -> None:
    qemu = world.qemu()
    for _ in range(20):
        qemu.sendall(STOP * 100)
    until(lambda: world.changed, "it is looked at")
    assert len(world.changed) < 20


def test_the_next_run_of_a_machine_is_heard(world: World) -> None:
    world.qemu().close()
    qemu = world.qemu(run="run-2")
    qemu.sendall(STOP)
    until(lambda: world.changed == ["default/web"], "it is looked at")


def test_the_socket_of_another_user_is_not_read(world: World) -> None:
    """A QEMU that was taken over can put a link there that leads to another machine's."""
    listener = world.begin(user=os.geteuid() + 1)
    connection, _ = listener.accept()
    connection.settimeout(20)
    assert connection.recv(100) == b"", "it was closed without a word"


def test_a_journal_that_cannot_be_read_ends_nothing(world: World) -> None:
    world.ports.fails = True
    world.events.hear(["machine default/web"])
    world.ports.fails = False
    world.qemu().sendall(STOP)
    until(lambda: world.changed == ["default/web"], "it is looked at")


class Records(dict[str, Any]):
    def records(self, room: str) -> Any:
        return dict(self)


def test_all_machines_that_run_here_have_events_but_adopted_ones(tmp_path: Path) -> None:
    adopted = vm("adopted", adopt={"qmpSocket": "/run/a.qmp"})
    manifests = {"default/web": vm("web"), "default/adopted": adopted, "default/off": vm("off")}
    states = {"default/web": "running", "default/adopted": "running", "default/off": "stopped"}
    records = Records({key: {"manifest": each, "state": states[key], "run": "r"} for key, each in manifests.items()})
    ports = ReportPorts(records, MachineConfig(run=tmp_path), of_qemu=True)  # type: ignore[arg-type]
    assert {key: port.path.name for key, port in ports.all().items()} == {"default/web": "events"}
