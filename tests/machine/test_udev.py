"""The watch loop on this machine's own kernel: real uevents, real netlink.

Writing "change" to a device's `uevent` file makes the kernel send that event and does nothing else.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import pyudev

from devalloc.inventory.discover import Discovery
from devalloc.inventory.watch import InventoryWatcher, UdevMonitor, UdevSource, WatchSettings, open_monitor
from tests.support.waiting import in_threads

LONG = 60.0
"""Seconds after which a wait that should have ended is taken to hang."""


def pci_device() -> Path:
    devices = sorted(Path("/sys/bus/pci/devices").glob("*/uevent")) if os.geteuid() == 0 else []
    if os.geteuid() != 0:
        pytest.skip("only root may make the kernel send a uevent")
    if not devices:
        pytest.skip("this machine has no PCI device")
    if not os.access(devices[0], os.W_OK):
        pytest.skip("/sys is read-only")
    try:
        open_monitor()
    except (ImportError, OSError) as error:
        pytest.skip(f"no udev monitor: {error}")
    return devices[0]


@pytest.fixture
def source() -> Iterator[UdevSource]:
    udev = UdevSource()
    yield udev
    udev.close()


def test_a_real_uevent_is_news(source: UdevSource) -> None:
    device = pci_device()
    assert source.wait(0), "listening"
    device.write_text("change")
    assert source.wait(LONG)


def test_events_of_other_subsystems_wake_no_waiter(source: UdevSource) -> None:
    pci_device()
    source.wait(0)

    def news_after_noise() -> bool:
        Path("/sys/class/mem/null/uevent").write_text("change")
        Path("/sys/class/net/lo/uevent").write_text("change")  # virtual
        return source.wait(0.3)

    # Another event of this machine may fall into one of the waits, hardly into each.
    assert not all(news_after_noise() for _ in range(5))


def test_an_overrun_of_the_receive_buffer_is_news_and_it_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    device = pci_device()
    caplog.set_level("INFO")

    def tight() -> UdevMonitor:
        monitor = open_monitor()
        pyudev.Monitor.set_receive_buffer_size(monitor, 8192)
        return monitor

    source = UdevSource(tight)
    source.wait(0)
    for _ in range(2000):
        device.write_text("change")
    assert source.wait(LONG)
    assert "device events were lost" in caplog.text
    assert any(source.wait(LONG) for _ in range(10)), "it listens again, which is news itself"
    device.write_text("change")
    assert source.wait(LONG)
    source.close()


def test_a_burst_of_thousands_is_read(source: UdevSource) -> None:
    device = pci_device()
    source.wait(0)
    for _ in range(5000):
        device.write_text("change")
    assert source.wait(LONG)
    while source.wait(0.3):
        pass
    device.write_text("change")
    assert source.wait(LONG)


def test_a_real_uevent_ends_in_a_discovery(source: UdevSource) -> None:
    device = pci_device()
    looks = threading.Semaphore(0)

    def discover() -> Discovery:
        looks.release()
        return Discovery(pools=[], problems=[])

    settings = WatchSettings(quiet=0.05, min_interval=0.05, resync=10 * LONG)
    watcher = InventoryWatcher(discover, lambda discovery: None, source=source, settings=settings)
    with in_threads(watcher.run):
        assert looks.acquire(timeout=LONG), "the first look"
        device.write_text("change")
        assert looks.acquire(timeout=LONG), "the look after the event"
        watcher.rescan()
        assert looks.acquire(timeout=LONG), "the look after the rescan"
