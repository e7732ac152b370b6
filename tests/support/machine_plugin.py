"""A plugin to kill, run as a program: ``SETTINGS-JSON VIRTUALMACHINE-JSON [WHERE]``.

Starts the machine, lets it run, says ``ready``, and waits. With WHERE it kills itself (SIGKILL) there: ``before cont``
is before that command goes to QEMU, ``before record 1`` and ``after record 1`` around the second write to the journal.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from devalloc.api.virtual_machine import VirtualMachine
from devalloc_machines.qemu.qmp import Monitor, QmpMonitor, SocketPeer
from devalloc_machines.qemu.settings import AllowedFolder, MachineConfig
from devalloc_node.deadline import Deadline
from devalloc_node.journal import Journal
from tests.support.machines import plugin

WHERE = sys.argv[3] if len(sys.argv) > 3 else ""


def here(place: str) -> None:
    if place == WHERE:
        os.kill(os.getpid(), signal.SIGKILL)


class KillingMonitor(QmpMonitor):
    def execute(
        self, command: str, arguments: Mapping[str, Any] | None = None, *, deadline: Deadline, fd: int | None = None
    ) -> Any:
        here(f"before {command}")
        answer = super().execute(command, arguments, deadline=deadline, fd=fd)
        here(f"after {command}")
        return answer


class KillingRecords:
    """A journal that is killed around its writes."""

    def __init__(self, records: Journal) -> None:
        self._records = records
        self._writes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._records, name)

    def put(self, room: str, name: str, content: Mapping[str, Any]) -> None:
        here(f"before record {self._writes}")
        self._records.put(room, name, content)
        here(f"after record {self._writes}")
        self._writes += 1


def connect(machine: str, path: str, *, command_seconds: float, check: Callable[[SocketPeer], None]) -> Monitor:
    return KillingMonitor(machine, path, command_seconds=command_seconds, check=check)


def main() -> None:
    settings = {
        name: Path(value) if name in ("state", "run") else value for name, value in json.loads(sys.argv[1]).items()
    }
    settings["folders"] = tuple(AllowedFolder(Path(folder), "any") for folder in settings["folders"])
    machine = VirtualMachine.model_validate(json.loads(sys.argv[2]))
    key = "/".join(machine.key)
    with plugin(MachineConfig(**settings), connect=connect, records=KillingRecords) as machines:
        machines.start(machine, Deadline.after(60))
        machines.resume(key, Deadline.after(30))
        print("ready", flush=True)
        time.sleep(600)


if __name__ == "__main__":
    main()
