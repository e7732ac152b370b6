"""Random hosts: nothing that the host needs or that is in use is ever offered, and everything else is (T3 to T8).

`DEVALLOC_FUZZ_EXAMPLES` (see `make fuzz`) says how many hosts each batch has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from devalloc.inventory import network_use
from devalloc_node.errors import Denied
from tests.support.binding_runner import BindingRunner
from tests.support.discovery_view import DiscoveredPools
from tests.support.examples import examples
from tests.support.fake_host import FakeHost
from tests.support.fake_tree import memory_folder
from tests.support.random_hosts import NEEDED, UNNEEDED, RandomHost

BATCHES = 8
HOSTS = examples(24)
BOUND = 12
"""Hosts of each batch on which the devices are also taken."""


@contextmanager
def built(plan: RandomHost, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHost]:
    monkeypatch.setattr(network_use, "stacked_interfaces", lambda tree: plan.stacked)
    with memory_folder() as folder:
        yield plan.build(Path(folder))


def differences(plan: RandomHost, host: FakeHost) -> dict[str, str]:
    """By device: what is wrong about it."""
    inventory = DiscoveredPools.on(host.root, erase_policy=plan.erase_policy, allowed=plan.allowed)
    expected = plan.offered()
    assert inventory.devices.keys() == expected.keys(), f"seed {plan.seed}: other devices"
    return {
        name: f"seed {plan.seed}: {inventory.unavailable(name) or 'offered'}, which is wrong"
        for name in expected
        if (inventory.unavailable(name) is None) != expected[name]
    }


@pytest.mark.parametrize("batch", range(BATCHES))
def test_exactly_devices_that_are_neither_needed_nor_in_use_are_offered(
    batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(batch * HOSTS, (batch + 1) * HOSTS):
        plan = RandomHost.of(seed)
        with built(plan, monkeypatch) as host:
            assert differences(plan, host) == {}


@pytest.mark.parametrize("batch", range(BATCHES))
def test_a_card_that_is_offered_can_be_taken_and_no_other_can(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(batch * HOSTS, batch * HOSTS + BOUND):
        plan = RandomHost.of(seed)
        with built(plan, monkeypatch) as host:
            hand = BindingRunner.on(host, erase_policy=plan.erase_policy, allowed=plan.allowed)
            inventory = DiscoveredPools.on(host.root)
            before = host.snapshot()
            offered = plan.offered()
            for card in plan.cards:
                device = card.device
                is_offered = offered[device]
                refusal: Denied | None = None
                try:
                    hand.prepare(device, inventory.homes[device].metadata.name)
                    hand.unprepare(device)
                except Denied as error:
                    refusal = error
                outcome = "was taken" if refusal is None else f"was refused: {refusal}"
                assert (refusal is None) == is_offered, f"seed {seed}: {device} {outcome}"
                assert host.snapshot() == before, f"seed {seed}: {device} has changed the host"


def test_each_use_alone_decides_about_a_device_on_some_host() -> None:
    """A generator that never tries something proves nothing about it."""
    alone: Counter[str] = Counter()
    for seed in range(2000):
        plan = RandomHost.of(seed)
        offered = plan.offered()
        for card in plan.cards:
            uses = [each.use for member in card.members for each in member.interfaces if each.use not in UNNEEDED]
            uses += [disk.use for member in card.members for disk in member.disks if disk.use != "idle"]
            uses += ["node" for member in card.members for node in member.nodes if node.users]
            uses += ["group" for member in card.members if member.group_open]
            uses += ["partner" for member in card.members if member.partner is not None and member.is_needed]
            alone[uses[0] if len(uses) == 1 else "several" if uses else f"none, offered: {offered[card.device]}"] += 1
    for use in (*NEEDED, "elsewhere", "mounted", "mountinfo", "swap", "held", "node", "group", "partner"):
        assert alone[use] >= 10, alone
    assert alone["none, offered: True"] > 1000
