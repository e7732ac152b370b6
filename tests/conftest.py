"""Rules that hold for every tier."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from hypothesis import settings

from tests.support.waiting import until

if TYPE_CHECKING:
    from devalloc.store.sqlite import SQLiteStore
    from devalloc_machines.qemu.qmp import QmpMonitor
    from tests.support.fake_qmp import FakeQemu

pytest.register_assert_rewrite("tests.support.store_contract", "tests.support.cluster_contract")

# Tests that kill the plugin fork it. Where gRPC has been used before, it would have its threads stop for each fork, and
# abort in a child that has closed all it does not need; none of the children uses it. Read when it is imported.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

# Nor may such a child finalize what this process left to the garbage collector: channels and servers of gRPC then wait
# for threads that the child does not have.
os.register_at_fork(after_in_child=gc.freeze)

_Report = TypeVar("_Report", pytest.TestReport, pytest.CollectReport)

_PATIENCE = 60.0
"""Seconds in which what is over must have ended."""
ALLOWED_SKIPS = {
    "tests/unit/install/test_manifests.py::test_systemd_finds_nothing_wrong_with_a_service_and_rates_it_no_worse": (
        "a container has no systemd; the options are held without it"
    ),
    "tests/conformance/test_upgrade_contract.py::test_where_the_tag_is_known_the_sources_are_those_of_the_tag": (
        "a shallow clone has no tags; the digest beside the archive is compared everywhere"
    ),
}
"""Tests that may be skipped also with CI=true, and why."""


# No deadline for an example: on a machine that has other work a test is slow, not wrong.
settings.register_profile("drawn anew", deadline=None)
settings.register_profile("the same every time", derandomize=True, deadline=None)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    """An empty store."""
    from devalloc.store.sqlite import SQLiteStore

    with closing(SQLiteStore(tmp_path / "devalloc.db")) as opened:
        yield opened


@pytest.fixture
def qemu(tmp_path: Path) -> Iterator[FakeQemu]:
    """A QEMU of which only the monitor is there."""
    from tests.support.fake_qmp import FakeQemu

    machine = FakeQemu(tmp_path / "qmp")
    yield machine
    machine.close()


@pytest.fixture
def line(qemu: FakeQemu) -> Iterator[QmpMonitor]:
    """What the plugin has open to it, as that of machine ``default/m``."""
    from devalloc_machines.qemu.qmp import QmpMonitor

    monitor = QmpMonitor("default/m", str(qemu.path))
    yield monitor
    monitor.close()


@pytest.fixture(scope="module", autouse=True)
def all_watches_end() -> Iterator[None]:
    """A store of a cluster that is left open goes on watching it: it slows down whatever comes after it in its process,
    and asks an API server that other tests count the requests of."""
    before = _watches()
    yield
    if _watches() - before:
        until(lambda: _watches() <= before, "no watch is left open", context=lambda: _watches() - before)


def _watches() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("watch-")}


def pytest_configure(config: pytest.Config) -> None:
    """Property tests look at the same examples each time unless a seed is given, as ``make fuzz`` does.

    A shell that starts the tests in the background lets them ignore Ctrl-C, and so would every child they start.
    """
    is_drawn = config.getoption("hypothesis_seed", None) is not None
    settings.load_profile("drawn anew" if is_drawn else "the same every time")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()  # until all is collected


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> Generator[None, object, object]:
    """A test that is out of time is failed again and again, until it has ended: the first time it may go on to wait,
    for a process or a thread, in a ``finally`` or at the end of a ``with``."""
    done = yield
    if settings.method == "signal" and threading.current_thread() is threading.main_thread():
        signal.setitimer(signal.ITIMER_REAL, settings.timeout, min(settings.timeout, _PATIENCE))
    return done


def pytest_unconfigure(config: pytest.Config) -> None:
    """A thread that a test has left would keep this process for ever; not a worker, which may wait for others here and
    is ended by who started it."""
    if hasattr(config, "workerinput"):
        return
    patience = min(float(config.getini("timeout") or _PATIENCE), _PATIENCE)
    faulthandler.dump_traceback_later(patience, exit=True, file=2)


def pytest_collection_finish() -> None:
    """What collection leaves behind lives as long as the run: the garbage collector would walk all of it anew while it
    is made, and again every few hundred tests. Of what tests leave it has less to do when it comes rarely."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(50_000, 20, 50)


def _with_room(test: Callable[..., object], /, **arguments: object) -> object:
    __tracebackhide__ = True
    return test(**arguments)


# Python keeps the frames of its functions in pieces of 16 KiB, and has the kernel map and unmap one at each call where
# a recursion goes back and forth over an end of one: a test then takes ten times as long, by how deep pytest and its
# plugins happen to be. So large a frame below a test leaves it the rest of a piece of 2 MiB.
_with_room.__code__ = _with_room.__code__.replace(co_stacksize=(1 << 20) // 8)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Call each test by ``_with_room``."""
    test = pyfuncitem.obj
    pyfuncitem.obj = partial(_with_room, test)
    try:
        return (yield)
    finally:
        pyfuncitem.obj = test


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With CI=true a skip is a failure: there the machine is expected to be able to run every test."""
    return _run_or_failed((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a module that skips itself whole."""
    return _run_or_failed((yield))


def _run_or_failed(report: _Report) -> _Report:
    is_expected = hasattr(report, "wasxfail") or report.nodeid.partition("[")[0] in ALLOWED_SKIPS
    if os.environ.get("CI") == "true" and report.skipped and not is_expected:
        report.outcome = "failed"
        report.longrepr = f"skipped although CI=true: {report.longrepr}"
    return report
