"""Asking all guests of a host that shuts down to power down, while the plugin does not run.

Nothing is noted of it: the machines stay wanted, and come back with the host as their restart policies say.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from devalloc_node.deadline import Deadline
from devalloc_node.errors import NodeError
from devalloc_node.machine import launch, orphans
from devalloc_node.machine.process import Process
from devalloc_node.machine.records import MACHINES, MachineRecord, record_of
from devalloc_node.machine.registry import MachineRegistry

_MOST = 256
"""Machines that are waited for at the same time."""
_ANSWER_SECONDS = 5.0


def power_down_all(machines: MachineRegistry, deadline: Deadline) -> Mapping[str, str]:
    """What became of each machine that runs, by its key: "" where its guest has powered down, else why it has not.

    Each has as long as its own spec says. Adopted machines are left alone, and those whose CPUs do not run yet.
    Raises Failed where the machines are not known.
    """
    outcomes: dict[str, str] = {}
    pending: list[tuple[MachineRecord, Process]] = []
    for key, content in machines.records.records(MACHINES).items():
        try:
            record = record_of(key, content)
            process = None if record.spec.adopt else machines.process_of(record)
        except NodeError as error:
            outcomes[key] = error.message
        else:
            if process is not None:
                pending.append((record, process))
    if not pending:
        return outcomes

    def ask(one: tuple[MachineRecord, Process]) -> str | None:
        record, process = one
        seconds = min(record.spec.powerdown_seconds, deadline.seconds)
        try:
            with machines.line(record) as monitor:
                if orphans.is_paused(monitor, deadline.capped(_ANSWER_SECONDS)):
                    return None
                if launch.power_down(monitor, process, seconds, deadline):
                    return ""
        except NodeError as error:  # its guest is not even asked, as where its sockets are in another folder
            return error.message
        return f"its guest did not power down within {seconds:.0f} s"

    with ThreadPoolExecutor(min(_MOST, len(pending))) as pool:
        keys = (record.spec.key for record, _ in pending)
        answers = zip(keys, pool.map(ask, pending), strict=True)
        return outcomes | {key: answer for key, answer in answers if answer is not None}
