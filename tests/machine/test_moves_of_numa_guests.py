"""Must show: a machine whose guest has several NUMA nodes moves with its expander buses, root ports and windows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devalloc.inventory.pci import BarSizes
from devalloc_machines.qemu import migration
from devalloc_machines.qemu.lifecycle import MachineLifecycle
from devalloc_machines.qemu.pci import list_root_ports
from devalloc_machines.vms.situation import pending_changes
from devalloc_node.errors import Denied
from tests.machine.test_migration import HERE, KEY, TwoNodes, complete, move, nodes, qemu, small
from tests.support import played_nodes
from tests.support.deadlines import soon
from tests.support.machines import plugin, running, virtual_machine

__all__ = ["nodes", "qemu", "small"]


def ports_of(machines: MachineLifecycle) -> list[tuple[Any, ...]]:
    with machines.line(machines.record_for(KEY)) as monitor:
        return [(port.name, port.node, port.reserve) for port in list_root_ports(monitor, soon())]


def test_its_ports_and_windows_of_each_node_are_the_same_there_and_back(
    small: TwoNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played_nodes.play(tmp_path, monkeypatch)
    start = small.machine.to_manifest()["spec"]["start"]
    memory = {"min": "384Mi", "use": "384Mi", "max": "768Mi"}
    machine = virtual_machine("m", start=start, pciSlots=2, cpu={"min": "2", "max": "3"}, memory=memory)
    two = replace(small, machine=played_nodes.placed(machine))
    with_gpu = replace(two.first, devices=lambda: BarSizes(prefetchable=128 << 30, other=16 << 20))
    with plugin(with_gpu) as first, plugin(two.second) as second:
        first.start(two.machine, soon())
        first.resume(KEY, soon())
        ports = ports_of(first)
        assert [node for _, node, _ in ports] == [0, 0, 1, 1, None, None]
        assert len({reserve for _, _, reserve in ports}) > 1
        run = running(first).id

        offered = migration.offer(first, KEY, "wrong", soon())
        one_less = offered.platform.model_copy(update={"root_ports": offered.platform.root_ports[:-1]})
        wrong = offered.model_copy(update={"platform": one_less})
        with pytest.raises(Denied, match="another number of root ports"):
            migration.receive(second, two.machine, "wrong", wrong, HERE, soon())
        migration.cancel(first, KEY, "wrong", soon())

        move(first, second, two)
        complete(first, second)
        assert (ports_of(second), running(second).id) == (ports, run)
        record = second.record_for(KEY)
        assert (record.node_ports, len(record.spec.numa_cells)) == (2, 2)
        second.resume(KEY, soon())  # and no reset: its guest runs
        second.scale(KEY, "vcpus", 3, soon())
        move(second, first, two, "back")
        complete(second, first, "back")
        assert (ports_of(first), running(first).id) == (ports, run)


@pytest.mark.parametrize("has_nodes", [False, True])
def test_one_moves_whose_claims_have_changed_since_it_was_started(
    small: TwoNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_nodes: bool
) -> None:
    """A machine with a passed-through device moves once that is out: it keeps the slots that it was started with."""
    start = small.machine.to_manifest()["spec"]["start"]
    memory = {"min": "384Mi", "use": "384Mi", "max": "768Mi"}
    plain = {"start": start, "cpu": {"min": "2", "max": "3"}, "memory": memory}
    then, now = virtual_machine("m", claims=["gpu"], **plain), virtual_machine("m", **plain)
    if has_nodes:
        played_nodes.play(tmp_path, monkeypatch)
        then, now = played_nodes.placed(then), played_nodes.placed(now)
    with plugin(small.first) as first, plugin(small.second) as second:
        first.start(then, soon())
        first.resume(KEY, soon())
        ports = ports_of(first)
        move(first, second, replace(small, machine=now))
        complete(first, second)
        assert ports_of(second) == ports
        assert pending_changes(now, running(second)) == []
