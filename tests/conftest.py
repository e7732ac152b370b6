"""Rules that hold for every tier."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

# Tests that kill the plugin fork it. Where gRPC has been used before, it would have its threads stop for each fork, and
# abort in a child that has closed all it does not need; none of the children uses it. Read when it is imported.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

# Nor may such a child finalize what this process left to the garbage collector: channels and servers of gRPC then wait
# for threads that the child does not have.
os.register_at_fork(after_in_child=gc.freeze)

TIERS_THAT_NEED_A_MACHINE = (Path(__file__).parent / "machine", Path(__file__).parent / "cluster")


# No deadline for an example: on a machine that has other work a test is slow, not wrong.
settings.register_profile("drawn anew", deadline=None)
settings.register_profile("the same every time", derandomize=True, deadline=None)


def pytest_configure(config: pytest.Config) -> None:
    """Property tests look at the same examples each time unless a seed is given, as ``make fuzz`` does.

    A shell that starts the tests in the background lets them ignore Ctrl-C, and so would every child they start.
    """
    is_drawn = config.getoption("hypothesis_seed", None) is not None
    settings.load_profile("drawn anew" if is_drawn else "the same every time")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """What collection leaves behind lives as long as the run: without this the garbage collector walks all of it anew
    every few hundred tests, a twelfth of the time of the unit tier."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With CI=true a skip in the machine and cluster tiers is a failure: there the machine is expected to be able."""
    report = yield
    needs_machine = any(item.path.is_relative_to(tier) for tier in TIERS_THAT_NEED_A_MACHINE)
    if os.environ.get("CI") == "true" and needs_machine and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped although CI=true: {report.longrepr}"
    return report
