"""Must show: a card with as much memory of its own as a GPU goes into a guest that runs, or is refused and taken out.

QEMU's ``ivshmem-plain`` takes the place of the host's card where QEMU gets the command to plug it in. The service, the
engine with its journal, the machine, its firmware and its guest are real.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import yaml

from devalloc.inventory.pci import BarSizes
from devalloc_machines.qemu import adoption, attachment, hotplug, pci
from devalloc_machines.qemu.lifecycle import MachineLifecycle
from devalloc_machines.qemu.settings import MachineConfig
from devalloc_node.errors import Denied
from devalloc_node.model.step import PreparedDevice
from tests.support.cli_shell import Shell, devalloc
from tests.support.deadlines import soon
from tests.support.guest import Guest
from tests.support.images import Image
from tests.support.large_cards import bars, card, each_card
from tests.support.machines import config, ended, plugin, short_folder, virtual_machine
from tests.support.node_errors import raises
from tests.support.node_service import serving
from tests.support.qemu import QUICK_BOOT

__all__ = ["devalloc"]
GIB = 1 << 30
APPEND = f"console=ttyS0 quiet tsc=unstable lpj=4000000 no_timer_check {QUICK_BOOT}"
KEY = "default/m"
SMALL = {"cpu": {"min": 1, "max": 1}, "memory": {"min": "512Mi", "max": "512Mi"}}
OFFSET = 9 * GIB
"""Where in the card's memory the guest writes."""


@pytest.fixture
def settings(micro: Image, monkeypatch: pytest.MonkeyPatch) -> Iterator[MachineConfig]:
    if os.geteuid() != 0:  # only root raises the limit of locked memory; these cards, which QEMU emulates, need none
        monkeypatch.setattr(adoption, "check_memlock", lambda *_: None)
    with short_folder() as folder:
        made = config(micro, folder)
        with ended(made):
            yield made


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices of claims are cards of 16 GiB."""
    numbers = count()

    def passed_through(name: str, device: PreparedDevice) -> pci.PciDevice:
        return card(name, 16 * GIB, next(numbers))

    monkeypatch.setattr(attachment.pci, "passthrough_device", passed_through)


def machine_of(machines: MachineLifecycle, micro: Image, **start: object) -> None:
    kernel = {"kernel": str(micro.kernel), "initrd": str(micro.initrd), "append": APPEND}
    machines.start(virtual_machine("m", micro, **SMALL, start=kernel | start), soon())


def manifest(folder: Path, micro: Image, *claims: str) -> Path:
    start = {"kernel": str(micro.kernel), "initrd": str(micro.initrd), "append": APPEND}
    made = virtual_machine("m", nodeName="node-a", **SMALL, start=start, claims=list(claims)).to_manifest()
    path = folder / "machine.yaml"
    path.write_text(yaml.safe_dump(made))
    return path


def guest_of(machines: MachineLifecycle) -> Guest:
    return Guest(machines.config.folder(machines.record_for(KEY).spec.id) / "agent")


def in_qemu(machines: MachineLifecycle) -> Sequence[str]:
    with machines.line(machines.record_for(KEY)) as line:
        return [name for name in pci.present_devices(line, soon()) if hotplug.is_of_claim(name)]


def test_a_card_of_16_gib_goes_into_a_guest_that_runs_and_is_read_and_written_by_it(
    settings: MachineConfig, micro: Image, devalloc: Shell, tmp_path: Path, gpus: None
) -> None:
    with plugin(settings) as machines, serving(tmp_path, machines, ("gpu", "gpus/slot-0")) as socket:
        machine_of(machines, micro, pciWindow="32Gi")
        machines.resume(KEY, soon())
        guest = guest_of(machines)
        assert bars(guest) == []
        done = devalloc("vm", "attach", "m", "gpu", "--socket", socket)
        assert done.code == 0, done.err
        ((first, last),) = bars(guest)
        assert (last - first + 1, first % (16 * GIB)) == (16 * GIB, 0)
        assert first > 4 * GIB
        where = hex(first + OFFSET)
        each_card(guest, "echo 1 > ${f%device}enable")
        guest.check(f"busybox devmem {where} 64 0x1605160516051605")
        assert int(guest.check(f"busybox devmem {where} 64"), 16) == 0x1605160516051605
        assert int(guest.check(f"busybox devmem {hex(first)} 64"), 16) == 0
        done = devalloc("vm", "detach", "m", "gpu", "--socket", socket)
        assert done.code == 0, done.err
        assert bars(guest) == []


def test_a_card_for_which_the_window_is_too_small_is_refused_with_what_to_change_and_taken_out(
    settings: MachineConfig, micro: Image, devalloc: Shell, tmp_path: Path, gpus: None
) -> None:
    with plugin(settings) as machines, serving(tmp_path, machines, ("gpu", "gpus/slot-0")) as socket:
        machine_of(machines, micro, pciWindow="1Gi")
        machines.resume(KEY, soon())
        guest = guest_of(machines)
        done = devalloc("vm", "attach", "m", "gpu", "--socket", socket)
        assert done.code == 1
        assert "BAR 2 (16Gi, 64-bit prefetchable)" in done.err
        assert "set spec.start.pciWindow to 32Gi or more and restart it" in done.err
        assert "[NoPciWindow]" in done.err
        assert (in_qemu(machines), bars(guest)) == ([], [])


def test_a_machine_that_starts_with_a_card_runs_when_its_firmware_has_given_that_addresses(
    settings: MachineConfig, micro: Image, devalloc: Shell, tmp_path: Path, gpus: None
) -> None:
    with plugin(settings) as machines, serving(tmp_path, machines, ("gpu", "gpus/slot-0")) as socket:
        done = devalloc("vm", "create", "-f", manifest(tmp_path, micro, "gpu"), "--socket", socket)
        assert done.code == 0, done.err
        with machines.line(machines.record_for(KEY)) as line:
            (function,) = hotplug.guest_functions(line, KEY, in_qemu(machines), soon())
        assert function.is_placed
        ((first, last),) = bars(guest_of(machines))
        assert last - first + 1 == 16 * GIB


def test_a_machine_whose_firmware_finds_no_addresses_for_its_cards_does_not_start(
    settings: MachineConfig, micro: Image, devalloc: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Emulated CPUs reach 1 TiB, and two cards of half of that leave no room for anything else."""
    monkeypatch.setattr(attachment.pci, "passthrough_device", lambda name, device: card(name, 512 * GIB))
    claims = (("one", "gpus/slot-0"), ("two", "gpus/slot-1"))
    with plugin(settings) as machines, serving(tmp_path, machines, *claims) as socket:
        done = devalloc("vm", "create", "-f", manifest(tmp_path, micro, "one", "two"), "--socket", socket)
        assert (done.code, "[NoPciWindow]" in done.err, "512Gi" in done.err) == (1, True, True), done.err
        assert machines.list() == []


def test_what_the_guests_kernel_has_switched_off_has_its_addresses_all_the_same(
    settings: MachineConfig, micro: Image, devalloc: Shell, tmp_path: Path, gpus: None
) -> None:
    """A device without a driver may stay off, and query-pci then says of no BAR where it is."""
    with plugin(settings) as machines, serving(tmp_path, machines, ("gpu", "gpus/slot-0")) as socket:
        machine_of(machines, micro, pciWindow="32Gi")
        machines.resume(KEY, soon())
        guest = guest_of(machines)
        assert devalloc("vm", "attach", "m", "gpu", "--socket", socket).code == 0
        each_card(guest, r"printf '\0\0' | dd of=${f%device}config bs=1 seek=4 conv=notrunc 2>&1")
        ((first, _),) = bars(guest)
        with machines.line(machines.record_for(KEY)) as line:
            regions = str(line.execute("query-pci", deadline=soon()))
            (function,) = hotplug.guest_functions(line, KEY, in_qemu(machines), soon())
        assert str(first) not in regions
        assert [bar.address for bar in function.bars if bar.prefetchable] == [first]
        assert function.is_placed


def test_the_windows_are_as_large_as_the_devices_of_the_node_need(micro: Image, settings: MachineConfig) -> None:
    with_gpu = config(micro, settings.state.parent, devices=lambda: BarSizes(16 * GIB, 17 << 20))
    with plugin(with_gpu) as machines:
        machine_of(machines, micro)
        machines.resume(KEY, soon())
        guest = guest_of(machines)
        with machines.line(machines.record_for(KEY)) as line:
            for number in range(4):  # each of its slots takes one
                one = card(f"claim-{number:016x}", 16 * GIB)
                hotplug.plug_device(line, KEY, one, soon())
                hotplug.await_addresses(line, KEY, {one.function_id(0): one.id}, soon())
        assert len(bars(guest)) == 4


def test_all_functions_of_a_card_go_into_one_slot_before_and_while_the_guest_runs_and_come_out_together(
    micro: Image, settings: MachineConfig
) -> None:
    """As a GPU has an audio function beside it."""

    def card_of_two(number: int) -> pci.PciDevice:
        gpu = card(f"claim-{number:016x}", 16 * GIB)
        return replace(gpu, functions=(*gpu.functions, {"driver": "virtio-rng-pci"}))

    def functions() -> list[list[str]]:
        """Of each card in the guest: the folders of the functions in its slot."""
        return [line.split() for line in each_card(guest, "echo ${f%0/device}?")]

    cold, hot = card_of_two(1), card_of_two(2)
    with plugin(config(micro, settings.state.parent, devices=lambda: BarSizes(16 * GIB, 1 << 20))) as machines:
        machine_of(machines, micro)
        with machines.line(machines.record_for(KEY)) as line:
            hotplug.plug_device(line, KEY, cold, soon())
        machines.resume(KEY, soon())
        guest = guest_of(machines)
        (of_cold,) = functions()
        assert [name.rpartition(".")[2] for name in of_cold] == ["0", "1"]

        with machines.line(machines.record_for(KEY)) as line:
            assert hotplug.plug_device(line, KEY, hot, soon()) == hotplug.plug_device(line, KEY, hot, soon())
            hotplug.await_addresses(line, KEY, {hot.function_id(number): hot.id for number in (0, 1)}, soon())
        (of_hot,) = [each for each in functions() if each != of_cold]
        assert [name.rpartition(".")[2] for name in of_hot] == ["0", "1"]
        drivers = guest.check(f"for f in {of_cold[1]} {of_hot[1]}; do readlink $f/driver; done")
        assert [name.rpartition("/")[2] for name in drivers.splitlines()] == ["virtio-pci"] * 2

        with machines.line(machines.record_for(KEY)) as line:
            hotplug.unplug_device(line, KEY, hot.id, soon())
        assert sorted(in_qemu(machines)) == [cold.function_id(0), cold.function_id(1)]
        assert functions() == [of_cold]


def test_more_windows_than_the_cpus_can_address_are_refused_before_anything_is_started(
    micro: Image, settings: MachineConfig
) -> None:
    with plugin(settings) as machines:
        with raises(Denied, "NoPciWindow", match="40 bits"):
            machine_of(machines, micro, pciWindow="512Gi")
        assert machines.list() == []
