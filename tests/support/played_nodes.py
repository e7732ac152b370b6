"""A host that says that it has two NUMA nodes, each with one of this host's CPUs.

What QEMU asks of the second one's memory, this kernel gives from its only node. All else is real.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from devalloc.api.virtual_machine import VirtualMachine, VirtualMachineStatus
from devalloc_machines.qemu import command_line, preflight

CPUS = sorted(os.sched_getaffinity(0))
FIRST, SECOND = CPUS[0], CPUS[-1]
"""The CPUs of node 0 and node 1."""


def play(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the plugin of this process see such a host."""
    for number, (cpu, distances) in enumerate(((FIRST, "10 17"), (SECOND, "17 10"))):
        node = folder / f"node{number}"
        node.mkdir()
        (node / "cpulist").write_text(f"{cpu}\n")
        (node / "distance").write_text(f"{distances}\n")
    monkeypatch.setattr(preflight, "NODES", folder)
    monkeypatch.setattr(preflight.check_host_limits, "__defaults__", (Path("/proc"), folder))
    real = command_line.ram_backend

    def of_the_only_node(*arguments: Any) -> dict[str, Any]:
        backend = real(*arguments)
        assert backend["host-nodes"] in ([0], [1])
        return backend | {"host-nodes": [0]}

    monkeypatch.setattr(command_line, "ram_backend", of_the_only_node)


def placed(machine: VirtualMachine) -> VirtualMachine:
    """Two thirds of its memory are reserved on node 1 of the host, and one of two CPUs."""
    amounts = {"numa0": ("1", "128Mi"), "numa1": ("1", "256Mi")}
    entries = [
        {
            "devicePoolName": "here-host",
            "deviceName": name,
            "allocations": [{"name": "cpu", "allocation": cpu}, {"name": "memory", "allocation": size}],
        }
        for name, (cpu, size) in amounts.items()
    ]
    return machine.model_copy(update={"status": VirtualMachineStatus.model_validate({"allocations": entries})})
