"""A machine that its policy starts again is as it was last asked to be: as the monitor of its new QEMU says."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from devalloc_machines.vms import RequestLoop
from devalloc_node.operations.change_feed import ChangeNotifier
from tests.support.deadlines import soon
from tests.support.fake_tree import memory_folder
from tests.support.machine_faults import KEY, MachineFaults, MachinePlugin, MachineScenario, amounts
from tests.support.machine_scenarios import DIMMS
from tests.support.vm_rounds import look_at_requests
from tests.support.waiting import until

MIB = 1 << 20


def created(plugin: MachinePlugin) -> None:
    plugin.operations.create(plugin.machine, (), soon())


def killed(plugin: MachinePlugin) -> None:
    os.kill(plugin.operations.machine(KEY).pid, signal.SIGKILL)
    until(lambda: not plugin.operations.machine(KEY).runs, "it has ended")


def brought_back(plugin: MachinePlugin) -> None:
    look_at_requests(RequestLoop(plugin.operations, ChangeNotifier(), spawn=lambda work: work()))


def seen(world: MachineFaults) -> tuple[int, int, str]:
    """vCPUs, MiB of memory, and the bound of its CPU time."""
    machine: dict[str, Any] = world.state()["machines"][KEY]
    base, virtio, requested = machine["qemu"]["memory"]
    assert virtio == requested
    dimms = [name for name in machine["qemu"]["backends"] if name.startswith("dimm")]
    return len(machine["qemu"]["cpus"]), (base + virtio) // MIB + 512 * len(dimms), machine["share"].split()[0]


@pytest.mark.parametrize("spec", [{}, DIMMS], ids=["virtio-mem", "dimms"])
def test_it_comes_back_as_it_was_last_asked_to_be(spec: dict[str, Any]) -> None:
    """Also where another plugin brings it back than the one that was asked, and for good."""
    scenario = MachineScenario(
        "again",
        lambda host: None,
        (),
        before=created,
        there=lambda plugin: amounts(plugin, 3, 2500, 1536),
        back=lambda plugin: amounts(plugin, 1, 1000, 512),
        spec=spec,
    )
    with memory_folder() as folder, MachineFaults(scenario, Path(folder)) as world:
        with world.life() as plugin:
            amounts(plugin, 3, 2500, 1536)
        as_asked = seen(world)
        assert as_asked == (3, 1536, "250000")
        for _ in range(2):
            with world.life() as plugin:
                killed(plugin)
                assert plugin.operations.machine(KEY).wanted.vcpus == 3, "that is what it comes back with"
            with world.life() as plugin:
                plugin.recover()
                brought_back(plugin)
                machine = plugin.operations.machine(KEY)
                assert (machine.phase, machine.applied) == ("Running", machine.observed)
                assert (machine.wanted.vcpus, machine.wanted.cpu_milli) == (3, 2500)
            assert seen(world) == as_asked
        with world.life() as plugin:  # no bound of its CPU time: its vCPUs are one
            amounts(plugin, 2, 0, 512)
            killed(plugin)
            brought_back(plugin)
        assert seen(world) == (2, 512, "max")
        with world.life() as plugin:
            killed(plugin)
            created(plugin)
        assert seen(world) == (1, 512, "max"), "who creates it anew says how large it is to be"
