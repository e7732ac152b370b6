"""What became of a machine follows from its record, its process and QEMU alone."""

from __future__ import annotations

from itertools import product

import pytest

from devalloc_machines.qemu.process import Process
from devalloc_machines.qemu.records import (
    LIVING,
    MachineObservation,
    MachineRecord,
    MachineView,
    RecordState,
    State,
    state_of,
)
from devalloc_node.errors import Unknown
from tests.support.machines import virtual_machine

QEMU = Process(1, 1)
LOOKS = {
    "runs": MachineObservation(),
    "stands still": MachineObservation(status="paused"),
    "is silent": MachineObservation(problem=Unknown("MonitorSilent", "it does not answer")),
}
TABLE: dict[RecordState, tuple[State, State, State, State, State]] = {
    #  it lives and: runs, stands still, is silent; it does not live; that cannot be told
    "starting": (State.CUT_OFF, State.CUT_OFF, State.CUT_OFF, State.STARTING, State.SILENT),
    "incoming": (State.INCOMING, State.INCOMING, State.SILENT, State.ENDED, State.SILENT),
    "running": (State.RUNNING, State.HALTED, State.SILENT, State.ENDED, State.SILENT),
    "stopping": (State.STOPPING, State.STOPPING, State.SILENT, State.ENDED, State.SILENT),
    "stopped": (State.STOPPED, State.STOPPED, State.SILENT, State.STOPPED, State.SILENT),
    "failed": (State.FAILED, State.FAILED, State.SILENT, State.FAILED, State.SILENT),
}


@pytest.mark.parametrize("of", TABLE)
def test_each_record_has_a_state_whatever_its_process_and_qemu_say(of: RecordState) -> None:
    record = MachineRecord(virtual_machine("m").to_manifest(), of, "run")
    seen = [(QEMU, look) for look in LOOKS.values()] + [(None, LOOKS["runs"]), (None, LOOKS["is silent"])]
    assert tuple(state_of(record, process, look) for process, look in seen) == TABLE[of]


@pytest.mark.parametrize("look", LOOKS)
def test_what_has_no_record_is_lost_if_it_lives(look: str) -> None:
    assert state_of(None, QEMU, LOOKS[look]) is State.LOST
    assert state_of(None, None, LOOKS[look]) is State.ABSENT


def test_a_machine_may_hold_devices_unless_it_is_certain_that_it_does_not_live() -> None:
    for state, is_silent in product(State, (False, True)):
        view = MachineView("default/m", "u", state, is_silent=is_silent)
        assert view.runs is (state in LIVING)
        if not is_silent and state not in (State.ABSENT, State.OTHER):
            assert view.runs is (view.phase not in ("Stopped", "Failed"))
        assert is_silent <= (view.phase == "Unknown")
