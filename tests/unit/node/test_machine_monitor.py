"""The line to QEMU: three kinds of answers kept apart, however QEMU behaves."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from pathlib import Path

import pytest

from devalloc_machines.qemu import hotplug, qmp
from devalloc_machines.qemu.qmp import QmpMonitor, QmpRefused, SocketPeer, checked_text
from devalloc_node.errors import Denied, Failed, Unknown
from tests.support.deadlines import soon
from tests.support.fake_qmp import FakeQemu, Trouble
from tests.support.node_errors import raises
from tests.support.waiting import until


def test_an_answer_is_given_and_an_error_of_qemu_is_denied_with_its_words(line: QmpMonitor) -> None:
    assert line.execute("query-status", deadline=soon())["status"] == "running"
    with pytest.raises(QmpRefused) as refused:
        line.execute("device_del", {"id": "nothing"}, deadline=soon())
    assert refused.value.kind == "DeviceNotFound"
    assert "default/m" in str(refused.value)
    assert "Device 'nothing' not found" in str(refused.value)
    assert line.execute("query-status", deadline=soon())["running"] is True


@pytest.mark.parametrize("trouble", ["hang", "die", "garbage", "huge"])
def test_a_command_without_an_answer_is_unknown_never_denied(
    qemu: FakeQemu, line: QmpMonitor, trouble: Trouble
) -> None:
    line.execute("query-status", deadline=soon())
    qemu.trouble["cont"] = trouble
    with pytest.raises(Unknown) as unknown:
        line.execute("cont", deadline=soon(0.3))
    assert "cont" in str(unknown.value)
    assert unknown.value.retryable


def test_a_device_may_take_as_long_as_its_caller_waits(qemu: FakeQemu) -> None:
    """VFIO locks all of a machine's memory with the first device, and QEMU answers when that is done."""
    monitor = QmpMonitor("default/m", str(qemu.path), command_seconds=0.1)
    monitor.execute("netdev_add", {"id": "n", "type": "user"}, deadline=soon())
    qemu.trouble = {"device_add": "late", "query-status": "late"}
    monitor.execute("device_add", {"driver": "virtio-net-pci", "id": "x", "bus": "port0"}, deadline=soon())
    with pytest.raises(Unknown, match="no answer to query-status"):
        monitor.execute("query-status", deadline=soon())
    monitor.close()


@pytest.mark.parametrize("command_seconds", [10.0, 0.2], ids=["one-answer", "several-questions"])
def test_a_bar_that_the_kernel_maps_slowly_gets_its_address(
    qemu: FakeQemu, command_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the kernel maps it, QEMU answers nothing: not within the time of one answer, and not at the next try."""
    monkeypatch.setattr(hotplug, "ADDRESS_ANSWER_SECONDS", 0.2)
    monitor = QmpMonitor("default/m", str(qemu.path), command_seconds=command_seconds)
    monitor.execute("device_add", {"driver": "vfio-pci", "id": "x", "host": "card", "bus": "port0"}, deadline=soon())
    qemu.trouble = {"query-pci": "late"}
    mapped = threading.Timer(1.2, qemu.trouble.clear)
    mapped.start()
    hotplug.await_addresses(monitor, "default/m", {"x": "card"}, soon())
    mapped.join()
    assert (qemu.connections > 1) == (command_seconds < 1), "a line without an answer is dropped"
    monitor.close()


def test_a_qemu_that_hangs_is_not_waited_for_beyond_the_deadline(
    qemu: FakeQemu, line: QmpMonitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hotplug, "ADDRESS_ANSWER_SECONDS", 0.2)
    line.execute("device_add", {"driver": "vfio-pci", "id": "x", "host": "card", "bus": "port0"}, deadline=soon())
    qemu.trouble = {"query-pci": "hang"}
    with raises(Unknown, "MonitorSilent"):
        hotplug.await_addresses(line, "default/m", {"x": "card"}, soon(0.5))


def test_after_a_broken_line_the_next_command_opens_another(qemu: FakeQemu, line: QmpMonitor) -> None:
    qemu.trouble["cont"] = "garbage"
    with pytest.raises(Unknown):
        line.execute("cont", deadline=soon())
    qemu.trouble.clear()
    assert line.execute("query-status", deadline=soon())["running"]
    assert qemu.connections == 2


@pytest.mark.parametrize("trouble", ["garbage", "huge"])
def test_a_listener_that_does_not_greet_as_qemu_gets_no_command(
    qemu: FakeQemu, line: QmpMonitor, trouble: Trouble
) -> None:
    qemu.trouble["greeting"] = trouble
    with raises(Failed, "MonitorUnreachable"):
        line.execute("cont", deadline=soon())
    assert qemu.commands == []


def test_events_for_the_last_client_before_the_greeting_do_no_harm(qemu: FakeQemu, line: QmpMonitor) -> None:
    qemu.left_over = [{"event": "DEVICE_DELETED", "data": {}, "timestamp": {"seconds": 1, "microseconds": 0}}]
    assert line.execute("query-status", deadline=soon())["running"]
    assert qemu.connections == 2


def test_a_qemu_that_hangs_before_its_greeting_costs_no_longer_than_the_deadline(
    qemu: FakeQemu, line: QmpMonitor
) -> None:
    qemu.trouble["greeting"] = "hang"
    with raises(Unknown, "MonitorSilent") as unknown:
        line.execute("cont", deadline=soon(0.2))
    assert "another client" in str(unknown.value)


def test_a_qemu_whose_queue_is_full_is_waited_for_and_then_unknown(tmp_path: Path) -> None:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "full"))
    server.listen(0)
    waiting = [socket.socket(socket.AF_UNIX) for _ in range(2)]
    for client in waiting:
        client.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            client.connect(str(tmp_path / "full"))
    with pytest.raises(Unknown, match="does not accept a connection"):
        QmpMonitor("default/m", str(tmp_path / "full")).execute("cont", deadline=soon(0.1))
    for each in (server, *waiting):
        each.close()


def test_a_qemu_that_greets_late_is_waited_for_until_the_deadline() -> None:
    ours, theirs = socket.socketpair()
    late = threading.Timer(0.3, theirs.send, [b"{}"])
    with ours, theirs, contextlib.ExitStack() as stack:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        with pytest.raises(TimeoutError):
            qmp._peer_of(ours, soon(0.05))
        late.start()
        stack.callback(late.join)
        assert qmp._peer_of(ours, soon(60)) == SocketPeer(os.getpid(), os.geteuid(), speaks=True)


def test_a_socket_without_a_listener_is_failed(tmp_path: Path) -> None:
    with raises(Failed, "MonitorUnreachable"):
        QmpMonitor("default/m", str(tmp_path / "none")).execute("cont", deadline=soon())


def test_a_stranger_gets_no_command(qemu: FakeQemu) -> None:
    seen: list[SocketPeer] = []

    def check(peer: SocketPeer) -> None:
        seen.append(peer)
        raise Denied("SocketNotOurs", "a stranger")

    monitor = QmpMonitor("default/m", str(qemu.path), check=check)
    with pytest.raises(Denied, match="a stranger"):
        monitor.execute("cont", deadline=soon())
    assert seen == [SocketPeer(os.getpid(), os.geteuid())]
    assert qemu.commands == []


def test_events_are_heard_from_before_the_command_that_causes_them(qemu: FakeQemu, line: QmpMonitor) -> None:
    line.execute("netdev_add", {"id": "n", "type": "user"}, deadline=soon())
    line.execute("device_add", {"driver": "virtio-net-pci", "id": "x", "bus": "port0"}, deadline=soon())
    with line.expect("DEVICE_DELETED") as events:
        line.execute("device_del", {"id": "x"}, deadline=soon())
        heard = [events.next(soon()), events.next(soon())]
        assert [event and event["data"].get("device") for event in heard] == [None, "x"]
        assert events.next(soon(0.05)) is None
    qemu.event("DEVICE_DELETED", device="earlier")
    line.execute("query-status", deadline=soon())  # its answer comes after the event
    with line.expect("DEVICE_DELETED") as events:
        assert events.next(soon(0.05)) is None, "an event from before is not one of this wait"


def test_a_wait_for_an_event_ends_when_the_line_breaks(qemu: FakeQemu, line: QmpMonitor) -> None:
    qemu.trouble["cont"] = "die"
    with line.expect("DEVICE_DELETED") as events:
        line.execute("query-status", deadline=soon())
        with pytest.raises(Unknown):
            line.execute("cont", deadline=soon())
        with pytest.raises(Unknown) as unknown:
            events.next(soon())
    assert unknown.value.code == "MonitorLost"


def test_a_late_answer_is_never_taken_for_the_next_commands(qemu: FakeQemu, line: QmpMonitor) -> None:
    qemu.trouble["query-uuid"] = "late"
    with pytest.raises(Unknown):
        line.execute("query-uuid", deadline=soon(0.1))
    assert "status" in line.execute("query-status", deadline=soon())


def test_threads_share_a_line_and_each_gets_its_own_answer(qemu: FakeQemu, line: QmpMonitor) -> None:
    answers: list[str] = []

    def ask(number: int) -> None:
        command, key = ("query-uuid", "UUID") if number % 2 else ("query-status", "status")
        answers.append(str(line.execute(command, deadline=soon(20))[key]))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == sorted([qemu.uuid] * 8 + ["running"] * 8)
    assert qemu.connections == 1


def test_a_line_that_is_given_back_is_free_for_another_client(qemu: FakeQemu, line: QmpMonitor) -> None:
    line.execute("query-status", deadline=soon())
    other = QmpMonitor("default/m", str(qemu.path))
    with pytest.raises(Unknown, match="another client"):
        other.execute("query-status", deadline=soon(0.2))
    line.close()
    began = time.monotonic()
    while True:
        try:
            assert other.execute("query-status", deadline=soon())["running"]
            break
        except Failed:
            assert time.monotonic() - began < 20
    other.close()


def test_a_wait_behind_a_command_that_hangs_ends_at_its_own_deadline(qemu: FakeQemu, line: QmpMonitor) -> None:
    qemu.trouble["cont"] = "hang"

    def hang() -> None:
        with pytest.raises(Unknown):
            line.execute("cont", deadline=soon(5))

    other = threading.Thread(target=hang)
    other.start()
    until(lambda: line._client is not None, "the line is open")
    with pytest.raises(Unknown) as unknown:
        line.execute("query-status", deadline=soon(0.1))
    assert other.is_alive(), "it was waited for"
    assert unknown.value.code == "MonitorSilent"
    qemu.close()
    other.join()


def test_a_command_without_time_left_is_not_sent_and_the_line_stays_open(qemu: FakeQemu, line: QmpMonitor) -> None:
    line.execute("query-status", deadline=soon())
    with line.expect("DEVICE_DELETED") as events:
        with pytest.raises(Unknown, match="cont to QEMU of machine default/m was not sent: no time is left"):
            line.execute("cont", deadline=soon(0.0))
        assert "cont" not in [command for command, _ in qemu.commands]
        assert events.next(soon(0.0)) is None, "no event reports that the connection broke"
    assert line.execute("query-status", deadline=soon())["running"]
    assert qemu.connections == 1


def test_events_without_a_waiter_are_dropped(qemu: FakeQemu, line: QmpMonitor) -> None:
    with line.expect("DEVICE_DELETED") as events:
        line.execute("query-status", deadline=soon())
        for _ in range(50):
            qemu.event("GUEST_SAYS", text="x" * 1000)
        qemu.event("DEVICE_DELETED", device="last")
        assert events.next(soon())["data"] == {"device": "last"}
        assert line._client.events.history == ()


def test_a_text_of_an_answer_has_a_bound() -> None:
    """A guest that has taken over its QEMU must not fill the plugin's memory, or its log."""
    assert checked_text("x" * 4096) == "x" * 4096
    assert checked_text("abc", 3) == "abc"
    with pytest.raises(ValueError, match="a text of 4 characters; the maximum is 3"):
        checked_text("abcd", 3)
    with pytest.raises(TypeError):
        checked_text(3)
