"""Must show: a pinned machine's vCPUs run each on a CPU of the host that no other pinned machine has, while it lives.

The host says of itself that its CPUs are on two NUMA nodes. Everything else is this kernel's and QEMU's word.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from devalloc.inventory.capacity import NumaNode
from devalloc.inventory.capacity.cpus import CpuTopology
from devalloc_machines.qemu.lifecycle import MachineLifecycle
from devalloc_machines.qemu.resources import exclusive_cpus
from devalloc_node.errors import Denied
from tests.support.deadlines import soon
from tests.support.images import Image
from tests.support.machines import MICRO_APPEND, config, ended, plugin, short_folder, virtual_machine
from tests.support.node_errors import raises

FIRST, SECOND = sorted(os.sched_getaffinity(0))[:2] if len(os.sched_getaffinity(0)) > 1 else (0, 0)
TWO_NODES = CpuTopology(
    2,
    frozenset({FIRST, SECOND}),
    frozenset(),
    (NumaNode(0, frozenset({FIRST}), 1 << 30), NumaNode(1, frozenset({SECOND}), 1 << 30)),
)
SMALL = {"memory": {"min": "128Mi", "max": "128Mi"}}


def start(machines: MachineLifecycle, image: Image, name: str, cpu: str = "1", **how: object) -> None:
    begin = {"kernel": str(image.kernel), "initrd": str(image.initrd), "append": MICRO_APPEND, "pinned": True, **how}
    machines.start(virtual_machine(name, image, start=begin, cpu={"min": "1", "max": cpu}, **SMALL), soon())


def vcpus(machines: MachineLifecycle, name: str) -> list[set[int]]:
    """Where QEMU's threads of each vCPU may run, by the kernel."""
    return [set(os.sched_getaffinity(thread)) for _, thread in sorted(threads(machines, name).items())]


def threads(machines: MachineLifecycle, name: str) -> dict[str, int]:
    """The threads of vCPUs, by what they are called."""
    seen = machines.get(f"default/{name}")
    assert seen is not None
    tasks = Path(f"/proc/{seen.pid}/task").iterdir()
    names = {(task / "comm").read_text().strip(): int(task.name) for task in tasks}
    return {name: thread for name, thread in names.items() if name.startswith("CPU ")}


@pytest.mark.skipif(FIRST == SECOND, reason="one CPU cannot be shared out")
def test_pinned_machines_have_cpus_for_themselves_until_they_end_also_after_a_restart_of_the_plugin(
    micro: Image,
) -> None:
    with short_folder() as folder:
        made = config(micro, folder, topology=lambda: TWO_NODES)
        with ended(made):
            with plugin(made) as machines:
                start(machines, micro, "a")
                assert vcpus(machines, "a") == [{FIRST}]
                with raises(
                    Denied, "CpusInUse", retryable=True, match="machine default/b is to run on CPUs of its own"
                ):
                    start(machines, micro, "b", cpu="2")
                assert machines.get("default/b") is None, "nothing was begun"
                with raises(Denied, "CpusTooFew", retryable=False, match="not enough CPUs for 3 vCPUs"):
                    start(machines, micro, "b", cpu="3")
            with plugin(made) as machines:  # what the journal says is all that this plugin knows
                with pytest.raises(
                    Denied,
                    match="not enough free CPUs for 1 vCPU; available: none; CPUs are in use by machine default/a;",
                ):
                    start(machines, micro, "c", numaNode=0)
                start(machines, micro, "b")
                assert vcpus(machines, "b") == [{SECOND}]
                machines.stop("default/b", 0, True, soon())
                machines.stop("default/a", 0, True, soon())
                start(machines, micro, "c", cpu="2")
                assert vcpus(machines, "c") == [{FIRST}]
                machines.resume("default/c", soon())
                machines.scale("default/c", "vcpus", 2, soon())
                assert vcpus(machines, "c") == [{FIRST}, {SECOND}]
                assert exclusive_cpus(machines.records).keys() == {FIRST, SECOND}
                for thread in threads(machines, "c").values():  # as those of vCPUs are that were just added
                    os.sched_setaffinity(thread, {FIRST, SECOND})
            with plugin(made) as machines:
                assert vcpus(machines, "c") == [{FIRST}, {SECOND}], "the plugin was killed before it had pinned them"
