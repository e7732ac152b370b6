"""GPUs as slots: what is said to be available can be made, however the cards share their framebuffer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from devalloc.api.meta import UNAVAILABLE
from devalloc.api.object_meta import ObjectMeta
from devalloc.api.pool import Attribute, Device, DevicePool, DevicePoolSpec
from devalloc.api.quantity import Quantity
from devalloc.inventory.capacity.gpus import GpuMemory, GpuStatus, gpu_status
from devalloc.inventory.capacity.machines import MachineUsage
from devalloc.inventory.capacity.room import Admission, Insufficient, Request
from devalloc.inventory.capacity.status import gpu_json, host_status
from tests.support import pci_cards, recorded_host
from tests.support.capacity_fakes import host as capacity
from tests.support.discovery_view import DiscoveredPools
from tests.support.fake_sysfs import FakeSysfs
from tests.support.pci_cards import Vgpu

A2 = tuple(kind for kind in pci_cards.A2_TYPES if kind.id in {"nvidia-745", "nvidia-746", "nvidia-747"})
L40S = tuple(kind for kind in pci_cards.L40S_TYPES if kind.id in {"1148", "1152", "1154", "1155", "1156"})
T4 = tuple(kind for kind in pci_cards.T4_TYPES if kind.id in {"nvidia-225", "nvidia-226", "nvidia-227"})


def a2(host: FakeSysfs, vfs: int = 5) -> str:
    return host.add(pci_cards.a2_vgpu_card(vfs=vfs, vgpu=Vgpu("mdev", 16384, A2)))


def l40s(host: FakeSysfs, vfs: int = 5) -> str:
    return host.add(pci_cards.l40s_vgpu_card(vfs=vfs, vgpu=Vgpu("vfio", 49152, L40S, one_size=False)))


def t4(host: FakeSysfs) -> str:
    return host.add(pci_cards.t4_vgpu_card(vgpu=Vgpu("mdev", 16384, T4)))


def status(host: FakeSysfs, **settings: object) -> GpuStatus:
    gpus = gpu_status(DiscoveredPools.on(host.root).pools, **settings)  # type: ignore[arg-type]
    assert gpus is not None
    return gpus


def available(gpus: GpuStatus) -> dict[str, int]:
    return {profile.name: profile.available for profile in gpus.profiles}


def create(host: FakeSysfs, card: str, profile: str, number: int) -> None:
    """One more, on the first function that takes it; OSError when none does."""
    vgpu = host.functions[card].spec.vgpu
    assert vgpu is not None
    for parent in host.vf_addresses(card) or [card]:
        with suppress(OSError):
            if vgpu.layout == "mdev":
                host.vgpu.create(parent, profile, f"00000000-0000-0000-0000-{number:012}")
                return
            if parent not in host.vgpu.current:
                host.vgpu.set_type(parent, profile.removeprefix("nvidia-"))
                return
    raise OSError("no function takes one more")


def made(host: FakeSysfs, card: str, profile: str) -> int:
    """How many of a profile the kernel really makes; they are removed again."""
    before, current = set(host.vgpu.mdevs), set(host.vgpu.current)
    count = 0
    try:
        while True:
            create(host, card, profile, 1000 + count)
            count += 1
    except OSError:
        for uuid in set(host.vgpu.mdevs) - before:
            host.vgpu.remove(uuid)
        for vf in set(host.vgpu.current) - current:
            host.vgpu.set_type(vf, "0")
        return count


@pytest.mark.parametrize("card", [a2, t4, l40s])
def test_the_available_number_can_be_created_and_is_exact_on_cards_that_report_all(
    host: FakeSysfs, card: Callable[[FakeSysfs], str]
) -> None:
    address = card(host)
    vgpu = host.functions[address].spec.vgpu
    assert vgpu is not None
    kind = next(each for each in vgpu.types if each.framebuffer == min(t.framebuffer for t in vgpu.types))
    for number in range(4):
        gpus = status(host)
        for profile in gpus.profiles:
            really = made(host, address, profile.id)
            if vgpu.layout == "mdev" or number == 0:
                assert profile.available == really, (number, profile)
            else:  # its lists show no longer how large the card is
                assert profile.available <= really, (number, profile)
        assert gpus.used == number
        assert gpus.allocatable == max(profile.available for profile in gpus.profiles)
        create(host, address, kind.id if kind.id.startswith("nvidia") else f"nvidia-{kind.id}", number)


def test_a_card_of_48_gib_gives_24_of_2_gib_or_one_of_48(host: FakeSysfs) -> None:
    l40s(host, vfs=32)
    by_profile = available(status(host))
    assert (by_profile["NVIDIA L40S-2Q"], by_profile["NVIDIA L40S-48Q"], by_profile["NVIDIA L40S-16Q"]) == (24, 1, 3)


def test_more_than_any_host_has_are_as_many_as_there_are(host: FakeSysfs) -> None:
    """They are not tried one by one once none is left."""
    l40s(host, vfs=24)
    assert status(host).remaining_gpus().take(None, 10**15) == 24


def test_what_lives_leaves_its_own_size_only_and_not_as_many_as_there_are_functions(tmp_path: Path) -> None:
    gpus = status(recorded_host.build_a2(tmp_path))
    assert (gpus.mode, gpus.total, gpus.used, gpus.allocatable) == ("vgpu", 16, 3, 1)
    assert available(gpus) == {"NVIDIA A2-2Q": 0, "NVIDIA A2-4A": 1, "NVIDIA A2-4C": 1, "NVIDIA A2-4Q": 1}


def test_a_function_with_a_vgpu_offers_no_other(host: FakeSysfs) -> None:
    card = a2(host, vfs=2)
    create(host, card, "nvidia-745", 1)
    assert available(status(host))["NVIDIA A2-2Q"] == 1


def test_what_claims_hold_is_taken_before_it_is_made(host: FakeSysfs) -> None:
    a2(host)
    before, held = status(host), "0000-08-00-4-nvidia-746"
    after = status(host, held={held})
    assert (before.used, available(before)) == (0, {"NVIDIA A2-2Q": 5, "NVIDIA A2-4Q": 4, "NVIDIA A2-8Q": 2})
    assert (after.used, available(after)) == (1, {"NVIDIA A2-2Q": 0, "NVIDIA A2-4Q": 3, "NVIDIA A2-8Q": 0})
    whole = status(host, held={"0000-08-00-0"})
    assert (whole.allocatable, set(available(whole).values())) == (0, {0})


def test_a_quarantined_function_is_not_allocatable_and_may_be_used_too(host: FakeSysfs) -> None:
    card = a2(host, vfs=3)
    create(host, card, "nvidia-745", 1)
    assert {instance.parent for instance in host.vgpu.mdevs.values()} == {"0000:08:00.4"}
    gpus = status(host, withheld={"0000-08-00-5"})
    assert (gpus.total, gpus.used, gpus.allocatable, gpus.quarantined) == (3, 1, 1, 1)
    both = status(host, withheld={"0000-08-00-4", "0000-08-00-5"})
    assert (both.total, both.used, both.allocatable, both.quarantined) == (3, 1, 1, 2)


def test_nothing_is_placed_on_gpus_of_unknown_health(host: FakeSysfs) -> None:
    card = a2(host, vfs=3)
    create(host, card, "nvidia-745", 1)
    gpus = status(host, disabled="VF health state unavailable", withheld={"0000-08-00-5"})
    assert (gpus.total, gpus.used, gpus.allocatable, gpus.quarantined) == (3, 1, 0, 0)
    assert gpu_json(gpus)["placement_disabled_reason"] == "VF health state unavailable"
    with pytest.raises(Insufficient, match="insufficient GPU: vGPU placement is disabled: VF health state unavailable"):
        Admission(capacity(), tuple, gpus=lambda: gpus).validate(Request(gpus=1))


def test_cards_without_vgpus_are_given_away_whole_with_their_audio_function(host: FakeSysfs) -> None:
    host.add(pci_cards.gpu("0000:01:00.0"))
    host.add(pci_cards.gpu_audio("0000:01:00.1"))
    host.add(pci_cards.gpu("0000:02:00.0", driver="vfio-pci"))
    host.add(pci_cards.bmc_vga())
    gpus = status(host, held={"0000-01-00-0"})
    assert (gpus.mode, gpus.total, gpus.used, gpus.allocatable) == ("passthrough", 2, 1, 1)
    assert [(device["name"], device["available"]) for device in gpu_json(gpus)["devices"]] == [
        ("0000-01-00-0", False),
        ("0000-02-00-0", True),
    ]


def test_a_card_that_is_only_unavailable_is_neither_used_nor_free_and_memory_counts_where_it_is_known() -> None:
    def gpu(name: str, memory: str | None, unavailable: str = "") -> Device:
        attributes = [Attribute.of("kind", "gpu"), Attribute.of("function", "whole")]
        attributes += [Attribute.of("framebuffer", Quantity.parse(memory))] if memory else []
        attributes += [Attribute.of(UNAVAILABLE, unavailable)] if unavailable else []
        return Device(name=name, attributes=attributes)

    devices = [
        gpu("free", "16Gi"),
        gpu("held", "24Gi"),
        gpu("hosts", "8Gi", "in use: process 7 has it open"),
        gpu("broken", "48Gi", "no IOMMU"),
        gpu("untold", None),
    ]
    spec = DevicePoolSpec(node_name="node-a", driver="gpu.devalloc.io", devices=devices)
    gpus = gpu_status([DevicePool(metadata=ObjectMeta(name="cards"), spec=spec)], held={"held"})
    assert gpus is not None
    assert (gpus.total, gpus.used, gpus.allocatable) == (5, 2, 2)
    assert gpus.memory == GpuMemory(total=96 << 30, used=32 << 30, available=16 << 30)
    assert gpu_json(gpus)["memory_available_bytes"] == 16 << 30


def test_a_card_whose_profiles_are_gone_hides_no_other_and_is_not_given_away_whole(host: FakeSysfs) -> None:
    card = a2(host)
    l40s(host)
    for vf in host.vf_addresses(card)[:5]:
        for kind in A2:
            host.remove(host.path(vf, f"mdev_supported_types/{kind.id}"))
    gpus = status(host)
    assert (gpus.mode, gpus.total, available(gpus)["NVIDIA L40S-48Q"]) == ("vgpu", 5, 1)
    assert [(device.name, device.available) for device in gpus.devices] == [("0000-08-00-0", False)]


def test_an_unreadable_function_counts_as_used_and_its_card_has_nothing_left(host: FakeSysfs) -> None:
    card = l40s(host, vfs=2)
    host.spoil(host.path(host.vf_addresses(card)[0], "nvidia/current_vgpu_type"), "garbage")
    gpus = status(host)
    assert (gpus.total, gpus.used, gpus.allocatable, {*available(gpus).values()}) == (2, 1, 0, {0})


def test_a_host_without_gpus_has_no_status_of_them(host: FakeSysfs) -> None:
    host.add(pci_cards.bmc_vga())
    host.add(pci_cards.nic())
    assert gpu_status(DiscoveredPools.on(host.root).pools) is None
    assert "gpu" not in host_status(capacity()).to_dict()


def test_gpus_never_fail_the_status_of_a_host() -> None:
    def broken() -> GpuStatus | None:
        raise OSError("sysfs is gone")

    host = host_status(capacity(), gpus=broken)
    assert (host.gpu, host.problems) == (None, ("GPUs: sysfs is gone",))


class TestAdmission:
    def test_the_first_reservation_gets_the_last_slot(self, host: FakeSysfs) -> None:
        a2(host, vfs=1)
        gpus = status(host)
        admission = Admission(capacity(), tuple, gpus=lambda: gpus)
        admission.reserve("a", Request(gpus=1))
        admission.reserve("a", Request(gpus=1))
        with pytest.raises(Insufficient, match=r"no allocatable vgpu slots available \(1 total, 0 in use\)"):
            admission.reserve("b", Request(gpus=1))
        admission.finish("a")
        admission.reserve("b", Request(gpus=1))

    def test_a_profile_is_admitted_only_where_it_fits_beside_those_reserved(self, host: FakeSysfs) -> None:
        a2(host)
        gpus = status(host)
        admission = Admission(capacity(), tuple, gpus=lambda: gpus)
        admission.reserve("a", Request(gpus=1, profile="NVIDIA A2-8Q"))
        admission.validate(Request(gpus=1, profile="nvidia-747"))
        with pytest.raises(Insufficient, match="requested 2 vgpu slots of NVIDIA A2-8Q, but only 1 available"):
            admission.validate(Request(gpus=2, profile="NVIDIA A2-8Q"))
        with pytest.raises(Insufficient, match="no allocatable vgpu slots of NVIDIA A2-4Q available"):
            admission.validate(Request(gpus=1, profile="NVIDIA A2-4Q"))  # one size at a time
        with pytest.raises(Insufficient, match="no allocatable vgpu slots of NVIDIA A9-4Q available"):
            admission.validate(Request(gpus=1, profile="NVIDIA A9-4Q"))

    def test_another_card_takes_the_other_size(self, host: FakeSysfs) -> None:
        a2(host)
        host.add(pci_cards.a2_vgpu_card("0000:09:00.0", vfs=2, vgpu=Vgpu("mdev", 16384, A2), ports=("0000:00:04.0",)))
        gpus = status(host)
        admission = Admission(capacity(), tuple, gpus=lambda: gpus)
        admission.reserve("a", Request(gpus=2, profile="NVIDIA A2-8Q"))
        admission.reserve("b", Request(gpus=2, profile="NVIDIA A2-4Q"))
        with pytest.raises(Insufficient):
            admission.reserve("c", Request(gpus=1, profile="NVIDIA A2-4Q"))

    def test_a_burst_for_vgpus_that_are_made_meanwhile_admits_what_fits(self, host: FakeSysfs) -> None:
        card = a2(host)
        machines: dict[str, MachineUsage] = {}
        refused: list[str] = []
        making = threading.Lock()

        def gpus() -> GpuStatus | None:
            with making:
                return status(host)

        admission = Admission(capacity(), lambda: list(machines.values()), gpus=gpus)

        def one(number: int) -> None:
            name = f"vm-{number}"
            try:
                with admission.reserved(name, Request(gpus=1, profile="NVIDIA A2-4Q")), making:
                    create(host, card, "nvidia-746", number)
                    machines[name] = MachineUsage(name, name, "Created", gpus=1)
            except Insufficient as error:
                refused.append(str(error))

        with ThreadPoolExecutor(12) as threads:
            list(threads.map(one, range(12)))
        assert (len(machines), len(host.vgpu.mdevs), len(refused)) == (4, 4, 8)
        assert admission.reservations == {}
