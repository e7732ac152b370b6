"""What is recorded of the end of a machine: by whose request, or else how its QEMU ended."""

from __future__ import annotations

import signal
import time
from dataclasses import replace

from devalloc_machines.qemu import machine_files
from devalloc_machines.qemu.machine_files import MachineConfig
from devalloc_machines.qemu.records import MachineEnd, MachineRecord


def record_after_end(
    record: MachineRecord, config: MachineConfig, status: tuple[int | None, int | None] = (None, None)
) -> MachineRecord:
    """What is to be noted of a machine that was running and does not live. ``status``: as of ``exit_status``."""
    words = machine_files.last_words(config, record.spec.id)
    on_request = record.state == "stopping" or record.reason == "StopWanted"
    if record.state == "incoming":
        return record.become("failed", "MigrationFailed", f"it ended before it was taken over: {words}".rstrip(": "))
    if record.state == "starting" and not on_request:  # not to its end, so that no policy forbids to start it again
        return record.become("failed", "MachineDidNotStart", f"its start was not completed: {words}".rstrip(": "))
    if on_request:
        text = "it was stopped on request"
        return record.become("stopped", "StoppedOnRequest", f"{text}: {words}" if words else text)
    end = MachineEnd(round(time.time(), 3), record.run, words, *status)
    return with_end(replace(record, state="stopped"), end)


def with_end(record: MachineRecord, end: MachineEnd) -> MachineRecord:
    """Of a machine that has ended without a request: how."""
    text = f"it ended{how_it_ended(end)}"
    text = f"{text}: {end.words}" if end.words else text
    return replace(record.become(record.state, "MachineEnded", text), last_end=end)


def how_it_ended(end: MachineEnd) -> str:
    """As the end of a sentence; empty if it is not known."""
    if end.signal is not None:
        has_name = end.signal in set(signal.Signals)
        return f", killed by signal {end.signal}{f' ({signal.Signals(end.signal).name})' if has_name else ''}"
    return "" if end.code is None else f" with exit code {end.code}"


def restarts_of_next_run(existing: MachineRecord | None) -> int:
    """How often a machine that is started now was started again after an end that no one had asked for."""
    if existing is None:
        return 0
    return existing.restarts + (existing.last_end is not None and existing.last_end.run == existing.run)
