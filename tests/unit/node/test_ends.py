"""How the end of a machine is recorded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from devalloc_machines.qemu.process import exit_status, pidfd, process
from devalloc_machines.qemu.records import (
    MachineEnd,
    MachineRecord,
    content_of,
    how_it_ended,
    record_of,
    restarts_of_next_run,
    with_end,
)
from devalloc_machines.vms.status import status_of
from tests.support.toy_machines import ToyMachines, machine_of, vm

RECORD = MachineRecord(machine_of(vm("web")).to_manifest(), "stopped", "run-1")
END = MachineEnd(1_700_000_000.0, "run-1", "qemu: no space")


def test_how_a_machine_ended_is_a_part_of_its_message() -> None:
    assert with_end(RECORD, END).message == "it ended: qemu: no space"
    assert with_end(RECORD, replace(END, code=1)).message == "it ended with exit code 1: qemu: no space"
    assert with_end(RECORD, replace(END, signal=9, words="")).message == "it ended, killed by signal 9 (SIGKILL)"
    assert how_it_ended(replace(END, signal=200)) == ", killed by signal 200"
    assert with_end(RECORD, END).reason == "MachineEnded"


def test_a_record_keeps_it_and_one_of_an_earlier_version_has_none() -> None:
    ended = replace(with_end(RECORD, replace(END, signal=9)), restarts=2, began=1_699_999_000.0)
    assert record_of("default/web", content_of(ended)) == ended
    old = {name: value for name, value in content_of(RECORD).items() if name not in ("began", "restarts", "last_end")}
    assert record_of("default/web", old) == RECORD


def test_only_starts_after_an_end_that_no_one_asked_for_are_restarts() -> None:
    assert restarts_of_next_run(None) == 0
    ended = with_end(replace(RECORD, restarts=3), END)
    assert restarts_of_next_run(ended) == 4
    tried = replace(ended, run="run-2", restarts=4, state="failed")
    assert restarts_of_next_run(tried) == 4, "the same end, though the next start failed"
    stopped = replace(ended, run="run-3", restarts=4, state="stopped", reason="StoppedOnRequest")
    assert restarts_of_next_run(stopped) == 4, "a start after a stop is none"


def test_the_status_has_it() -> None:
    machines = ToyMachines()
    view = replace(
        machines._new(machine_of(vm("web")), is_paused=False), began=1_700_000_100.0, restarts=1, last_end=END
    )
    status = status_of(None, view, (), "", "")
    assert {name: status[name] for name in ("startTime", "restarts", "lastEnd")} == {
        "startTime": "2023-11-14T22:15:00Z",
        "restarts": 1,
        "lastEnd": {"time": "2023-11-14T22:13:20Z", "message": "qemu: no space"},
    }


@pytest.mark.parametrize(("code", "expected"), [("raise SystemExit(3)", (3, None)), ("", (None, signal.SIGKILL))])
def test_the_exit_status_of_a_process_is_read_by_its_descriptor(code: str, expected: tuple[int, int]) -> None:
    child = subprocess.Popen([sys.executable, "-c", f"import time\n{code or 'time.sleep(60)'}"])
    before = process(child.pid)
    fd = os.pidfd_open(child.pid) if before is None else pidfd(before)
    assert fd is not None
    try:
        if not code:
            child.kill()
        child.wait()
        status = exit_status(fd, 5.0)
        assert status in (expected, (None, None))
        major, minor = os.uname().release.split(".")[:2]
        if (int(major), int(minor)) >= (6, 15):
            assert status == expected
    finally:
        os.close(fd)


def test_of_a_process_that_is_not_collected_the_status_is_not_waited_for_long() -> None:
    child = subprocess.Popen(["true"])
    fd = os.pidfd_open(child.pid)
    try:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert exit_status(fd, 0.05) == (None, None)
    finally:
        child.wait()
        os.close(fd)
