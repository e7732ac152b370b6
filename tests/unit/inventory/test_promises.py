"""What is offered can be had: whatever fits beside what claims hold, the kernel really makes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.support import pci_cards
from tests.support.discovery_view import DiscoveredPools
from tests.support.fake_sysfs import FakeSysfs
from tests.support.pci_cards import Vgpu

STEPS = 7


def a2(host: FakeSysfs) -> str:
    types = tuple(kind for kind in pci_cards.A2_TYPES if kind.id in {"nvidia-745", "nvidia-746", "nvidia-747"})
    return host.add(pci_cards.a2_vgpu_card(vfs=5, vgpu=Vgpu("mdev", 16384, types)))


def l40s(host: FakeSysfs) -> str:
    types = tuple(kind for kind in pci_cards.L40S_TYPES if kind.id in {"1152", "1154", "1155"})
    return host.add(pci_cards.l40s_vgpu_card(vfs=5, vgpu=Vgpu("vfio", 49152, types, one_size=False)))


def l40s_of_one_size(host: FakeSysfs) -> str:
    types = tuple(kind for kind in pci_cards.L40S_TYPES if kind.id in {"1152", "1154", "1155"})
    return host.add(pci_cards.l40s_vgpu_card(vfs=5, vgpu=Vgpu("vfio", 49152, types)))


def t4(host: FakeSysfs) -> str:
    types = tuple(kind for kind in pci_cards.T4_TYPES if kind.id in {"nvidia-225", "nvidia-226", "nvidia-227"})
    return host.add(pci_cards.t4_vgpu_card(vgpu=Vgpu("mdev", 16384, types)))


def nic(host: FakeSysfs) -> str:
    return host.add(pci_cards.nic())


def prepare(host: FakeSysfs, inventory: DiscoveredPools, device: str, card: str, number: int) -> None:
    """What a binding does with a device; OSError when the kernel refuses."""
    attributes = inventory.attributes(device)
    address = str(attributes["pciBusID"])
    if attributes["function"] == "mdev":
        profile = str(attributes["profileID"])
        vgpu = host.functions[card].spec.vgpu
        if vgpu is not None and vgpu.layout == "vfio":
            host.vgpu.set_type(address, profile.removeprefix("nvidia-"))
        else:
            host.vgpu.create(address, profile, f"00000000-0000-0000-0000-{number:012}")
        return
    if attributes["function"] == "vf" and attributes["state"] == "creatable":
        host.set_numvfs(card, len(host.vf_addresses(card)))
    if attributes["function"] == "whole" and host.functions[card].spec.sriov:
        host.set_numvfs(card, 0)
    driver = host.driver_of(address)
    if driver:
        host.unbind(driver, address)
    host.set_override(address, "vfio-pci")
    host.probe(address)
    assert host.driver_of(address) == "vfio-pci"


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("plug", [a2, l40s, l40s_of_one_size, t4, nic])
def test_whatever_fits_can_be_prepared(tmp_path: Path, plug: Callable[[FakeSysfs], str], seed: int) -> None:
    host, random = FakeSysfs(tmp_path), Random(seed)
    card = plug(host)
    held: list[str] = []
    for number in range(STEPS):
        inventory = DiscoveredPools.on(host.root, held=frozenset(held))
        assert set(held) <= set(inventory.devices), "a held device never loses its name"
        assert inventory.fits(*held), "and stays as good as it was"
        possible = [d for d in inventory.devices if d not in held and inventory.fits(*held, d)]
        if not possible:
            break
        device = random.choice(possible)
        prepare(host, inventory, device, card, number)
        held.append(device)
    assert held


@pytest.mark.parametrize("plug", [a2, l40s, l40s_of_one_size, t4])
def test_so_it_is_beside_vgpus_without_a_claim(tmp_path: Path, plug: Callable[[FakeSysfs], str]) -> None:
    host, random = FakeSysfs(tmp_path), Random(plug.__name__)
    card = plug(host)
    first = DiscoveredPools.on(host.root)
    prepare(host, first, first.names(function="mdev")[1], card, 99)
    held: list[str] = []
    for number in range(STEPS):
        inventory = DiscoveredPools.on(host.root, held=frozenset(held))
        possible = [d for d in inventory.devices if d not in held and inventory.fits(*held, d)]
        if not possible:
            break
        device = random.choice(possible)
        prepare(host, inventory, device, card, number)
        held.append(device)
    assert held


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("plug", [a2, l40s_of_one_size, t4, nic])
def test_a_whole_set_chosen_at_once_can_be_prepared(
    tmp_path: Path, plug: Callable[[FakeSysfs], str], seed: int
) -> None:
    host, random = FakeSysfs(tmp_path), Random(seed)
    card = plug(host)
    inventory = DiscoveredPools.on(host.root)
    chosen: list[str] = []
    for device in random.sample(list(inventory.devices), len(inventory.devices)):
        if inventory.fits(*chosen, device):
            chosen.append(device)
    for number, device in enumerate(chosen):
        now = DiscoveredPools.on(host.root, held=frozenset(chosen))
        assert set(chosen) <= set(now.devices)
        assert not any(now.unavailable(device) for device in chosen)
        prepare(host, now, device, card, number)
