"""What machines are made to do, one scenario for each way; see `machine_faults`."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from importlib import import_module
from typing import Any

from devalloc_machines.qemu.process import process
from devalloc_machines.qemu.spec import Disk, EmulatedDevice, Nic
from devalloc_node.model.grant import GrantedDevice
from devalloc_node.operations.change_feed import ChangeNotifier
from tests.support.deadlines import soon
from tests.support.fault_scenarios import VF, a2, device, gpu_with_audio, nic, two_cards
from tests.support.machine_faults import KEY, MachinePlugin, MachineScenario, amounts, unprepare
from tests.support.waiting import until

GPU = device("0000-01-00", "0")
FIRST_VF = GrantedDevice(("0",), VF, "0000-41-10-0")
TWO_NODES = {"cpu": {"min": 2, "max": 2}, "memory": {"min": "384Mi", "max": "384Mi"}}
DIMMS = {"memory": {"min": "512Mi", "max": "2Gi", "use": "512Mi", "method": "dimm", "slotSize": "512Mi"}}


def _create(plugin: MachinePlugin) -> None:
    plugin.operations.create(plugin.machine, plugin.refs, soon())


def _create_empty(plugin: MachinePlugin) -> None:
    plugin.operations.create(plugin.machine, (), soon())


def _attach(plugin: MachinePlugin) -> None:
    for ref in plugin.refs:
        plugin.operations.attach(ref, KEY, soon())


def _detach(plugin: MachinePlugin) -> None:
    for ref in plugin.refs:
        plugin.operations.detach(ref, KEY, soon())
        unprepare(plugin.operations, ref)


def _unprepare(plugin: MachinePlugin) -> None:
    """What is in a machine comes out of it first."""
    for ref in plugin.refs:
        unprepare(plugin.operations, ref)


def _delete(plugin: MachinePlugin) -> None:
    plugin.operations.delete(KEY, None, soon())
    _unprepare(plugin)


def _delete_by_force(plugin: MachinePlugin) -> None:
    plugin.operations.delete(KEY, 0.1, soon(), force=True)  # enough to ask the guest once
    _unprepare(plugin)


def _stop(plugin: MachinePlugin) -> None:
    plugin.operations.stop(KEY, None, soon())


def _plug_in(plugin: MachinePlugin) -> None:
    """A disk and a network card of no claim, and CPUs beside them."""
    folder = plugin.machines.config.folders[0]
    image = getattr(folder, "path", folder) / "disk"  # 0.1.0 has paths there
    plugin.operations.plug(KEY, EmulatedDevice("data", Disk(str(image), "raw")), soon())
    plugin.operations.plug(KEY, EmulatedDevice("lan", Nic(mac="52:54:00:00:00:01")), soon())
    amounts(plugin, 2, 1000, 512)


def _unplug(plugin: MachinePlugin) -> None:
    amounts(plugin, 1, 1000, 512)
    for name in ("data", "lan"):
        plugin.operations.unplug(KEY, name, soon())


def _object(name: str, back: Callable[[Any, MachinePlugin], object], **more: Any) -> MachineScenario:
    """A VirtualMachine with a GPU that runs there, and of which ``back`` makes one that does not."""
    return MachineScenario(
        f"object-{name}",
        gpu_with_audio,
        (),
        claims=((GPU,),),
        has_object=True,
        there=lambda plugin: plugin.object.start(),
        back=lambda plugin: back(plugin.object, plugin),
        **more,
    )


def _restart_by_policy(plugin: MachinePlugin) -> None:
    """It ends, its policy starts it again, and it is deleted."""
    if (there := plugin.machines.get(KEY)) is not None:
        if there.pid:
            os.kill(there.pid, signal.SIGKILL)
            until(lambda: process(there.pid) is None, "it has ended")
            plugin.machines.forget_look(KEY)
        requests = import_module("devalloc_machines.vms").RequestLoop  # 0.1.0 has none
        rounds = import_module("tests.support.vm_rounds").look_at_requests
        rounds(requests(plugin.operations, ChangeNotifier(), spawn=lambda work: work()))
    _delete(plugin)


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        MachineScenario(
            "machine-attach-gpu",
            gpu_with_audio,
            (),
            claims=((GPU,),),
            before=_create_empty,
            there=_attach,
            back=_detach,
        ),
        MachineScenario(
            "machine-attach-vf", nic, (), claims=((FIRST_VF,),), before=_create_empty, there=_attach, back=_unprepare
        ),
        MachineScenario(
            "machine-attach-mdev",
            a2,
            (),
            claims=((GrantedDevice(("0",), "n-0000-08-00", "0000-08-00-4-nvidia-746"),),),
            before=_create_empty,
            there=_attach,
            back=_detach,
        ),
        MachineScenario(
            "machine-with-claims",
            two_cards,
            (),
            claims=((FIRST_VF,), (GPU,)),
            there=_create,
            back=_delete,
            spec={"cpu": {"min": "500m", "max": "4", "use": "1500m"}},
        ),
        MachineScenario(
            "machine-with-firmware-and-tpm",
            lambda host: None,
            (),
            there=_create_empty,
            back=_delete,
            start={"firmware": {"type": "uefi"}, "tpm": True},
        ),
        MachineScenario(
            "machine-with-disks-of-its-own",
            lambda host: None,
            (),
            there=_create_empty,
            back=_delete,
            spec={"disk": "4Mi"},
            start={
                "disks": [
                    {"path": "images/system", "format": "raw", "clone": "overlay"},
                    {"path": "images/data", "format": "raw", "clone": "copy"},
                ]
            },
        ),
        MachineScenario(
            "machine-on-two-numa-nodes",
            gpu_with_audio,
            (),
            claims=((GPU,),),
            there=_create,
            back=_delete,
            spec=TWO_NODES,
            on_two_nodes=True,
        ),
        MachineScenario(
            "machine-that-is-deaf",
            gpu_with_audio,
            (),
            claims=((GPU,),),
            there=_create,
            back=_delete_by_force,
            append="guest=deaf",
        ),
        MachineScenario(
            "machine-stop-and-start",
            gpu_with_audio,
            (),
            claims=((GPU,),),
            before=_create,
            there=_stop,
            back=_create,
        ),
        MachineScenario(
            "machine-adopted", gpu_with_audio, (), claims=((GPU,),), adopted=True, there=_create, back=_delete
        ),
        MachineScenario(
            "machine-scaled",
            lambda host: None,
            (),
            before=_create_empty,
            there=lambda plugin: amounts(plugin, 3, 2500, 1024),
            back=lambda plugin: amounts(plugin, 1, 1000, 512),
        ),
        MachineScenario(
            "machine-scaled-by-dimms",
            lambda host: None,
            (),
            before=_create_empty,
            there=lambda plugin: amounts(plugin, 2, 1000, 1536),
            back=lambda plugin: amounts(plugin, 1, 1000, 512),
            spec=DIMMS,
        ),
        MachineScenario(
            "machine-with-plain-devices",
            lambda host: None,
            (),
            before=_create_empty,
            there=_plug_in,
            back=_unplug,
        ),
        MachineScenario(
            "machine-restarted",
            gpu_with_audio,
            (),
            claims=((GPU,),),
            there=_create,
            back=_restart_by_policy,
        ),
        _object("stop", lambda served, plugin: served.stop()),
        _object("restart", lambda served, plugin: served.die_and_stop()),
        _object("journal-lost", lambda served, plugin: served.lose_and_stop()),
        _object("host-reboot", lambda served, plugin: served.reboot_and_stop(plugin.reboot)),
        _object("evict", lambda served, plugin: served.evict()),
        _object("fence", lambda served, plugin: served.fence()),
        _object("elsewhere", lambda served, plugin: served.move_elsewhere()),
        _object("delete", lambda served, plugin: served.delete()),
        _object("pause", lambda served, plugin: served.pause()),
    )
}
