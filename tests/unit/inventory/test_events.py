"""The udev source with a scripted monitor: what it reports, and what it survives."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from devalloc.inventory.watch import (
    DRAIN_LIMIT,
    MIN_LIFE_SECONDS,
    REOPEN_SECONDS,
    UdevEvent,
    UdevMonitor,
    UdevSource,
)

NIC = "/devices/pci0000:00/0000:00:03.0/0000:41:00.0"


@dataclass(frozen=True)
class Event:
    device_path: str


class ScriptedMonitor:
    """Gives its events, one at a time; its file descriptor is readable while there is something."""

    def __init__(self, *script: str | Exception) -> None:
        self.script = list(script)
        self._fd = os.eventfd(len(self.script), os.EFD_SEMAPHORE | os.EFD_NONBLOCK)

    def __del__(self) -> None:
        os.close(self._fd)

    def fileno(self) -> int:
        return self._fd

    def poll(self, timeout: float) -> UdevEvent | None:
        assert timeout == 0
        if not self.script:
            return None
        os.eventfd_read(self._fd)
        step = self.script.pop(0)
        if isinstance(step, Exception):
            raise step
        return Event(step)


class Udev:
    """Opens the monitors that a test has prepared, in order; an exception refuses."""

    def __init__(self, *results: UdevMonitor | Exception) -> None:
        self.results = list(results)
        self.now = 0.0
        self.source = UdevSource(self.open, lambda: self.now)

    def open(self) -> UdevMonitor:
        result = self.results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result


Plug = Callable[..., Udev]


@pytest.fixture
def plug() -> Iterator[Plug]:
    """Udev(...), closed at the end."""
    made: list[Udev] = []

    def make(*results: UdevMonitor | Exception) -> Udev:
        made.append(Udev(*results))
        return made[-1]

    yield make
    for udev in made:
        udev.source.close()


def waits(udev: Udev, count: int) -> list[bool]:
    return [udev.source.wait(0) for _ in range(count)]


class TestEvents:
    def test_listening_itself_is_news_and_silence_is_not(self, plug: Plug) -> None:
        assert waits(plug(ScriptedMonitor()), 3) == [True, False, False]

    def test_a_burst_is_one_piece_of_news(self, plug: Plug) -> None:
        assert waits(plug(ScriptedMonitor(*[NIC] * 3000)), 3) == [True, True, False]

    def test_an_endless_burst_is_handed_over_in_parts(self, plug: Plug) -> None:
        assert waits(plug(ScriptedMonitor(*[NIC] * (DRAIN_LIMIT + 1))), 4) == [True, True, True, False]

    @pytest.mark.parametrize("path", ["/devices/virtual/net/veth1a2b", "/devices/virtual/block/loop7"])
    def test_what_containers_make_is_no_news(self, plug: Plug, path: str) -> None:
        assert waits(plug(ScriptedMonitor(path, path)), 2) == [True, False]
        assert waits(plug(ScriptedMonitor(path, NIC, path)), 2) == [True, True]


class TestFaults:
    def test_an_interrupted_read_goes_on(self, plug: Plug) -> None:
        assert waits(plug(ScriptedMonitor(InterruptedError(), NIC)), 3) == [True, True, False]

    @pytest.mark.parametrize(
        "error",
        [
            OSError(errno.ENOBUFS, "No buffer space available"),
            OSError("Error while polling fd: 7"),
            UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        ],
    )
    def test_lost_events_are_news_and_the_monitor_is_opened_again(self, plug: Plug, error: Exception) -> None:
        udev = plug(ScriptedMonitor(error), ScriptedMonitor(NIC))
        assert waits(udev, 3) == [True, True, False]
        udev.now += MIN_LIFE_SECONDS
        assert waits(udev, 3) == [True, True, False]  # it listens again; the NIC; nothing more

    def test_a_monitor_that_always_fails_is_not_opened_in_a_tight_loop(self, plug: Plug) -> None:
        udev = plug(*[ScriptedMonitor(OSError("broken")) for _ in range(3)])
        assert waits(udev, 50).count(True) == 2
        assert len(udev.results) == 2

    def test_a_monitor_that_cannot_be_opened_again_is_tried_later_and_said_once(
        self, plug: Plug, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        refused = [OSError(errno.EPERM, "Operation not permitted")] * 2
        udev = plug(ScriptedMonitor(OSError("gone")), *refused, ScriptedMonitor())
        assert waits(udev, 2) == [True, True]
        for attempt in range(2):
            udev.now = MIN_LIFE_SECONDS + attempt * REOPEN_SECONDS
            assert waits(udev, 2) == [False, False]
        udev.now = MIN_LIFE_SECONDS + 2 * REOPEN_SECONDS
        assert waits(udev, 2) == [True, False]  # events in between are unknown: look
        records = [r.message for r in caplog.records]
        assert [m for m in records if "not permitted" in m] == [
            "no device events ([Errno 1] Operation not permitted): changes are found only by the periodic resync"
        ]
        assert records[-1] == "device events arrive again"

    def test_without_pyudev_it_only_waits(self, plug: Plug, caplog: pytest.LogCaptureFixture) -> None:
        udev = plug(ImportError("No module named 'pyudev'"))
        assert waits(udev, 1) == [False]
        udev.now = 1e9
        assert waits(udev, 2) == [False, False]  # a second attempt would fail the test: there is no second result
        assert len(caplog.records) == 1


class TestWake:
    def test_it_ends_the_next_wait(self, plug: Plug) -> None:
        udev = plug(ScriptedMonitor())
        waits(udev, 1)
        udev.source.wake()
        assert udev.source.wait(float("inf")) is False

    def test_it_ends_a_running_wait_also_without_a_monitor(self, plug: Plug) -> None:
        udev = plug(ImportError("none"))
        thread = threading.Thread(target=udev.source.wait, args=(3600,))
        thread.start()
        udev.source.wake()
        thread.join(60)
        assert not thread.is_alive()

    def test_after_close_it_does_nothing(self, plug: Plug) -> None:
        udev = plug(ScriptedMonitor())
        before = {int(fd) for fd in os.listdir("/proc/self/fd")}
        udev.source.close()
        others = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(8)]
        try:
            assert before & set(others), "its descriptor belongs to another now"
            udev.source.wake()
            for other in others:
                with pytest.raises(BlockingIOError):
                    os.eventfd_read(other)
        finally:
            for other in others:
                os.close(other)
