"""The reader of guests' reports, on real sockets: floods, silence, restarts, other users, and machines that finish."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from devalloc_machines.qemu.guest_report import MAX_NAMES, NAME_SECONDS
from devalloc_machines.qemu.settings import MachineConfig
from devalloc_machines.vms import guest_reports
from devalloc_machines.vms.guest_reports import GuestReports, ReportPort, ReportPorts
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Failed
from tests.support.toy_machines import machine_of, vm
from tests.support.waiting import in_threads, until

KEY, RUN = "default/web", "run-1"


@dataclass
class ToyPorts(ReportPorts):
    ports: dict[str, ReportPort] = field(default_factory=dict)
    fails: bool = False

    def all(self) -> dict[str, ReportPort]:
        if self.fails:
            raise Failed("JournalUnavailable", "the disk is gone")
        return dict(self.ports)

    def one(self, key: str) -> ReportPort | None:
        return self.all().get(key)


class World:
    """A reader driven by hand, and guests that are sockets."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self.stack, self.now = folder, stack, 1000.0
        self.ports = ToyPorts()
        self.changed: list[str] = []
        self.finished: list[tuple[str, str, str]] = []
        self.refusal: Exception | None = None
        self.works: list[Callable[[], None]] = []
        self.reader = self.new_reader()

    def new_reader(self) -> GuestReports:
        return GuestReports(
            self.ports, self.finish, self.changed.append, clock=lambda: self.now, spawn=self.works.append
        )

    def finish(self, key: str, run: str, message: str, deadline: Deadline) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.finished.append((key, run, message))

    def port(self, key: str = KEY, run: str = RUN, user: int | None = None) -> socket.socket:
        """A machine begins: the side of its QEMU, which listens."""
        path = self.folder / f"{key.rpartition('/')[2]}-{run}"
        listener = self.stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(os.fspath(path))
        listener.listen(1)
        self.ports.ports[key] = ReportPort(run, path, os.geteuid() if user is None else user)
        self.reader.hear([f"machine {key}"])
        return listener

    def guest(self, key: str = KEY, run: str = RUN) -> socket.socket:
        """A machine begins, and the plugin is connected to it."""
        listener = self.port(key, run)
        self.turn()
        return self.accept(listener)

    def accept(self, listener: socket.socket) -> socket.socket:
        listener.settimeout(30)
        connection = self.stack.enter_context(listener.accept()[0])
        connection.settimeout(30)
        return connection

    def turn(self, seconds: float = 0.0, times: int = 3) -> None:
        self.now += seconds
        for _ in range(times):
            self.reader.turn(0.0)

    def status(self, key: str = KEY, run: str = RUN) -> str | None:
        report = self.reader.report(key, run)
        return None if report is None else report.status


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with ExitStack() as stack:
        made = World(tmp_path, stack)
        with made.reader.opened():
            yield made


def line(**content: Any) -> bytes:
    return json.dumps(content).encode() + b"\r\n"


def test_a_report_arrives_and_says_so_once(world: World) -> None:
    guest = world.guest()
    assert world.status() is None
    guest.sendall(line(status="ready", message="up", metrics={"queue": 3}))
    world.turn()
    assert world.reader.report(KEY, RUN) is not None
    assert (world.status(), world.changed) == ("ready", [KEY])
    assert {key: dict(of) for key, of in world.reader.metrics().items()} == {KEY: {"queue": 3.0}}
    guest.sendall(line(status="ready", message="up") * 5)
    world.turn(60.0)
    assert world.changed == [KEY], "nothing changed"


def test_a_report_is_of_one_run(world: World) -> None:
    world.guest().sendall(line(status="ready"))
    world.turn()
    assert world.status(run="run-0") is None
    second = world.guest(run="run-2")
    assert (world.status(), world.status(run="run-2")) == (None, None), "its first run is over"
    second.sendall(line(status="not-ready"))
    world.turn()
    assert world.status(run="run-2") == "not-ready"


def test_a_machine_that_is_gone_is_forgotten_with_its_metrics(world: World) -> None:
    guest = world.guest()
    guest.sendall(line(status="ready", metrics={"a": 1}))
    world.turn()
    del world.ports.ports[KEY]
    world.reader.hear([f"machine {KEY}"])
    world.turn()
    assert (world.status(), world.reader.metrics()) == (None, {})
    assert guest.recv(1) == b"", "the port is free for others"


def test_machines_that_no_one_speaks_of_are_taken_up_in_time(world: World) -> None:
    world.turn()
    listener = world.port()
    world.reader._heard.clear()
    world.turn()
    listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        listener.accept()
    world.turn(guest_reports.LOOK_SECONDS)
    world.accept(listener)


def test_a_status_that_flaps_is_shown_now_and_then_with_its_last_value(world: World) -> None:
    guest = world.guest()
    for number in range(100):
        guest.sendall(line(status=("ready", "not-ready")[number % 2]))
        world.turn(0.1, times=1)
    world.turn()
    assert 2 <= len(world.changed) <= 3, "10 s, and at most one in 5 s"
    world.turn(guest_reports.SHOW_SECONDS)
    assert world.status() == "not-ready"


def test_a_flood_is_read_at_its_bound_and_delays_no_other_guest(world: World) -> None:
    loud, quiet = world.guest("default/loud"), world.guest("default/quiet")
    loud.setblocking(False)
    for _ in range(20):
        for _ in range(100):
            try:
                loud.send(b"x" * 65536)
            except BlockingIOError:
                break
        world.turn(0.01, times=20)
    assert world.reader._lines["default/loud"].bytes_left == 0, "0.2 s have passed, and no more is read"
    assert world.reader._lines["default/loud"].is_watched is False, "nor does it wake the thread"
    assert world.reader._next_at() > world.now, "nor does it keep the thread awake"
    quiet.sendall(line(status="ready"))
    world.turn()
    assert world.status("default/quiet") == "ready"


def test_more_lines_than_there_may_be_wait_and_none_is_lost(world: World) -> None:
    guest = world.guest()
    number = guest_reports.LINES_A_SECOND * 3
    guest.sendall(b"".join(line(metrics={"n": n}) for n in range(number)))
    world.turn(times=20)
    assert world.reader.metrics()[KEY] == {"n": guest_reports.LINES_A_SECOND - 1}
    world.turn(1.0, times=20)
    assert world.reader.metrics()[KEY] == {"n": 2 * guest_reports.LINES_A_SECOND - 1}
    for _ in range(3):
        world.turn(1.0, times=20)
    assert world.reader.metrics()[KEY] == {"n": number - 1}


def test_garbage_is_counted_and_what_comes_after_it_counts(world: World) -> None:
    guest = world.guest()
    guest.sendall(b"login: \n\xff\xfe\n" + b"y" * 6000 + b"\n" + line(status="ready"))
    world.turn(times=10)
    assert (world.status(), world.reader.dropped) == ("ready", 3)


def test_a_line_that_breaks_off_is_not_continued_by_another_connection(world: World) -> None:
    listener = world.port()
    world.turn()
    first = world.accept(listener)
    first.sendall(line(status="ready") + b'{"status": ')
    world.turn()
    first.close()
    world.turn()
    world.turn(guest_reports.CONNECT_SECONDS)
    second = world.accept(listener)
    assert world.status() == "ready", "a QEMU that closes a port has taken nothing back"
    second.sendall(b'"not-ready"}\n' + line(metrics={"a": 1}))
    world.turn(guest_reports.SHOW_SECONDS)
    assert (world.status(), dict(world.reader.metrics()[KEY])) == ("ready", {"a": 1.0})


def test_a_port_that_is_not_there_yet_is_tried_again(world: World) -> None:
    world.ports.ports[KEY] = ReportPort(RUN, world.folder / "late", os.geteuid())
    world.turn()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(world.folder / "late"))
        listener.listen(1)
        world.turn()
        world.turn(guest_reports.CONNECT_SECONDS)
        world.accept(listener).sendall(line(status="ready"))
        world.turn()
    assert world.status() == "ready"


def test_the_socket_of_another_user_is_not_read(world: World) -> None:
    listener = world.port(user=os.geteuid() + 1)
    world.turn()
    stranger = world.accept(listener)
    assert stranger.recv(1) == b""
    world.turn()
    assert world.status() is None


def test_a_guest_that_has_finished_is_ended_once(world: World) -> None:
    guest = world.guest()
    guest.sendall(line(status="ready") + line(status="finished", message="42 pages") + line(status="ready"))
    world.turn()
    assert (world.status(), world.changed[-1]) == ("finished", KEY), "at once, though it was just ready"
    world.turn(60.0)
    assert len(world.works) == 1
    world.works.pop()()
    assert world.finished == [(KEY, RUN, "42 pages")]
    del world.ports.ports[KEY]
    world.turn(60.0)
    assert world.works == []


def test_what_cannot_be_ended_now_is_tried_again(world: World) -> None:
    world.refusal = Failed("MachineBusy", "another change is under way")
    world.guest().sendall(line(status="finished"))
    world.turn()
    world.works.pop()()
    world.turn()
    assert world.works == []
    world.refusal = None
    world.turn(guest_reports.AGAIN_SECONDS)
    world.works.pop()()
    assert world.finished == [(KEY, RUN, "")]


def test_guests_that_do_not_power_down_hold_up_the_ends_of_no_others(world: World) -> None:
    keys = [f"default/m{number}" for number in range(20)]
    for key in keys:
        world.guest(key).sendall(line(status="finished"))
    world.turn()
    assert len(world.works) == len(keys), "each waits in a thread of its own"
    world.turn(3600.0)
    assert len(world.works) == len(keys), "and in one only"
    world.works[-1]()
    assert world.finished == [(keys[-1], RUN, "")]


def test_a_guest_that_has_finished_is_ended_by_the_next_plugin(world: World) -> None:
    guest = world.guest()
    world.reader.restore(KEY, "an earlier run", "")
    world.turn()
    assert world.works == []
    guest.sendall(line(status="ready"))
    world.turn()
    world.reader.restore(KEY, RUN, "42 pages")
    world.turn()
    world.works.pop()()
    assert (world.status(), world.finished) == ("finished", [(KEY, RUN, "42 pages")]), "it cannot take that back"
    for _ in range(5):  # as often as its object is looked at
        world.reader.restore(KEY, RUN, "42 pages")
        world.turn()
    assert (world.works, world.reader._restored) == ([], {})


def test_what_is_restored_of_a_machine_that_is_not_there_is_forgotten(world: World) -> None:
    world.reader.restore("default/gone", RUN, "")
    world.turn()
    assert (world.reader._restored, world.works) == ({}, [])


def test_names_of_metrics_are_few_in_an_hour_whatever_a_guest_does(world: World) -> None:
    guest, names = world.guest(), set()
    for hour in range(2):
        for number in range(200):
            guest.sendall(line(metrics={f"m{hour}_{number}": number}))
            world.turn(0.1)
            names |= world.reader.metrics()[KEY].keys()
        if hour == 0:
            assert (len(names), world.reader.dropped) == (MAX_NAMES, 200 - MAX_NAMES)
            assert world.reader.metrics()[KEY] == {f"m0_{MAX_NAMES - 1}": MAX_NAMES - 1}
        run = f"run-{hour + 2}"
        guest = world.guest(run=run)  # nor does it get others by a restart
        guest.sendall(line(status="ready", metrics={f"of_{run}": 1}))
        world.turn(guest_reports.LOOK_SECONDS)
        assert (world.status(run=run), world.reader.metrics()) == (None, {})
        guest.sendall(line(metrics={f"m{hour}_1": 1}))
        world.turn(1.0)
        assert world.reader.metrics()[KEY] == {f"m{hour}_1": 1.0}, "those that it has go on"
        world.turn(NAME_SECONDS)
    assert len(names) == 2 * MAX_NAMES
    del world.ports.ports[KEY]
    world.turn(NAME_SECONDS)
    world.turn(NAME_SECONDS)
    assert world.reader._names == {}


class CountingEvent(threading.Event):
    """Counts the waits that end by themselves."""

    waits = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.waits += timeout is not None
        return super().wait(timeout)


def test_bytes_that_come_one_by_one_do_not_make_a_turn_each(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, stop, turns = world.reader, CountingEvent(), 0
    turn = reader.turn

    def counted() -> None:
        nonlocal turns
        turns += 1
        turn(0.01)

    monkeypatch.setattr(reader, "turn", counted)
    listener = world.port()
    thread = threading.Thread(target=reader.run, args=(stop,))
    thread.start()
    try:
        guest = world.accept(listener)
        for byte in line(status="ready"):
            guest.sendall(bytes([byte]))
        until(lambda: world.status() == "ready", "the report arrives")
    finally:
        stop.set()
        thread.join()
    assert stop.waits == turns, "a pause follows each"


def test_a_journal_that_fails_for_a_moment_costs_nothing(world: World) -> None:
    guest = world.guest()
    guest.sendall(line(status="ready"))
    world.turn()
    world.ports.fails = True
    world.reader.hear([f"machine {KEY}"])
    world.turn(guest_reports.LOOK_SECONDS)
    assert world.status() == "ready"
    world.ports.fails = False
    guest.sendall(line(status="not-ready"))
    world.turn(guest_reports.LOOK_SECONDS)
    assert world.status() == "not-ready"


def test_it_runs_in_a_thread_until_it_is_stopped(world: World) -> None:
    reader = GuestReports(world.ports, world.finish, world.changed.append)
    world.reader = reader
    with in_threads(reader.run):
        world.accept(world.port()).sendall(line(status="ready"))
        until(lambda: world.status() == "ready", "the report arrives")
        until(lambda: world.changed == [KEY], "others hear of it")


class ToyRecords:
    def __init__(self, **of: dict[str, Any]) -> None:
        self.of = {f"default/{name}": content for name, content in of.items()}

    def records(self, room: str) -> dict[str, dict[str, Any]]:
        assert room == "machine"
        return self.of

    def record(self, room: str, key: str) -> dict[str, Any] | None:
        return self.of.get(key)


def content(name: str, state: str, user: int | None = 4711, **spec: Any) -> dict[str, Any]:
    manifest = machine_of(vm(name, **spec)).to_manifest()
    return {"manifest": manifest, "state": state, "run": f"run of {name}", "user": user}


def test_machines_that_live_and_were_started_to_report_have_ports(tmp_path: Path) -> None:
    records = ToyRecords(
        web=content("web", "running", guestReports=True, powerdownSeconds=7),
        begins=content("begins", "starting", guestReports=True),
        silent=content("silent", "running"),
        over=content("over", "stopped", guestReports=True),
        incoming=content("incoming", "incoming", guestReports=True),
        broken={"state": "running", "manifest": {"spec": {"guestReports": True}}},
        worse={"state": "running", "manifest": 3},
    )
    ports = ReportPorts(records, MachineConfig(run=tmp_path))  # type: ignore[arg-type]
    assert set(ports.all()) == {"default/web", "default/begins", "default/incoming"}
    web = ports.one("default/web")
    assert web is not None
    assert (web.run, web.user, web.powerdown_seconds, web.path.name) == ("run of web", 4711, 7.0, "agent")
    assert web.path.is_relative_to(tmp_path)
    records.of["default/web"] = {**records.of["default/web"], "run": "the next"}
    assert {port.run for port in ports.all().values()} == {"the next", "run of begins", "run of incoming"}
    del records.of["default/web"]
    assert set(ports.all()) == {"default/begins", "default/incoming"}
    records.of["default/web"] = content("web", "running", user=4712, guestReports=True)
    assert ports.all()["default/web"].user == 4712, "no one's port is kept for the next machine of its name"
    assert [ports.one(f"default/{name}") for name in ("silent", "over", "broken", "worse", "none")] == [None] * 5
    dry = ReportPorts(records, MachineConfig(run=tmp_path, dry_run=True))  # type: ignore[arg-type]
    assert dry.all() == {}, "a dry run connects to nothing"
