"""A machine moves with the devices of its claim, while the controller and the nodes are killed at every write.

Two claims never have the same device, no device is lost, and the next rounds end in the same state.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from devalloc.api.moved_claims import booked_devices, moved_devices
from devalloc.api.views import ClaimView, MachineView
from devalloc.store import Object
from devalloc.store.kubernetes import object_writer
from devalloc_solver import solve_manifests
from tests.support.dying_stores import STORES, ClusterStores, EmbeddedStores, Killed
from tests.support.examples import IS_FUZZ
from tests.support.fake_tree import memory_folder
from tests.support.fleet_manifests import fill, gpu_claim, gpu_class, gpu_pool
from tests.support.host_pools import host, machine
from tests.support.machine_allocator import machine_allocator
from tests.support.migration_nodes import ScriptedNodes, mark, migration, movable, play, settle

Stores = EmbeddedStores | ClusterStores


class Fleet:
    """Two nodes, the controller, and a store at each write to which the one who writes may be killed."""

    def __init__(self, folder: Path, kind: type[Stores]) -> None:
        self.left = self.steps = 0
        """``left``: steps until the process that makes one dies; 0: none does."""
        self.has_card = False
        self.stores = kind(folder, self.step)
        self.store: Any = self.stores.users
        self.opened: list[Any] = []
        self.start()

    def start(self) -> None:
        """As after kill -9 of everything."""
        self.left = 0
        self.opened.append(self.stores.connect())

    def close(self) -> None:
        for store in (*self.opened, self.store):
            store.close()

    def step(self) -> None:
        self.steps += 1
        self.check()
        if self.left and self.steps >= self.left:  # several writes of one commit may be under way
            raise Killed

    def check(self) -> None:
        """At every moment: a device is one claim's, and the claim that the machine has devices of has some."""
        owners: dict[str, set[str]] = defaultdict(set)
        objects = self.stores.objects()
        for claim in (one for one in objects if one.get("kind") == "DeviceClaim"):
            view = ClaimView(claim)
            if view.is_unsettled and not view.is_held:
                continue  # what it has may still be taken back
            for entry in view.entries:
                owners[f"{entry['devicePoolName']}/{entry['deviceName']}"].add(view.key[1])
            assert view.entries or view.key[1] != "card" or not self.has_card, "it lost its devices"
        for vm in (one for one in objects if one.get("kind") == "VirtualMachine"):
            for devices in (*booked_devices(vm), *moved_devices(vm)):
                for entry in devices.allocations:
                    owners[f"{entry['devicePoolName']}/{entry['deviceName']}"].add(devices.claim[1])
        assert all(len(names) == 1 for names in owners.values()), owners

    def round(self) -> None:
        """Each process looks once."""
        machine_allocator(self.opened[-1], solve=solve_manifests).round()
        play(self.opened[-1])
        settle(self.opened[-1])

    def get(self, kind: str, name: str) -> Object:
        """An object as it is now."""
        objects = self.stores.objects()
        return next(one for one in objects if one.get("kind") == kind and one["metadata"]["name"] == name)

    def machine(self) -> MachineView:
        return MachineView(self.get("VirtualMachine", "web"))

    def held(self, claim: str) -> list[str]:
        """The pools of a claim's devices."""
        return [entry["devicePoolName"] for entry in ClaimView(self.get("DeviceClaim", claim)).entries]

    def book(self) -> None:
        """Until the target has what the machine is to get there. A cluster's watches may come later than a round."""
        for _ in range(100):
            if self.machine().booked_claims:
                return
            machine_allocator(self.opened[-1], solve=solve_manifests).round()
        raise AssertionError("nothing is booked")

    def is_settled(self) -> bool:
        """Whether the machine has moved with its claim, and everyone else has got what was free."""
        vm = self.machine()
        has_moved = (vm.holder, vm.status.get("nodeName"), vm.migration_state, vm.moved_claims) == ("b", "b", {}, [])
        claim = ClaimView(self.get("DeviceClaim", "card"))
        return has_moved and claim.holder == claim.node == "b" and self.held("after") == ["pa"]


@contextmanager
def fleet(kind: type[Stores] = EmbeddedStores) -> Iterator[Fleet]:
    """The machine web runs on node a with a device, and is asked to move to node b, where one device is free; others
    want each device that becomes free for a moment."""
    with memory_folder() as name, closing(Fleet(Path(name), kind)) as made:
        store = made.store
        fill(store, gpu_class(), gpu_pool("pa", 1, "a"), host("a", cpus=4), gpu_claim("card"))
        fill(store, machine("web", "1", "1Gi", "card"))
        machine_allocator(store, solve=solve_manifests).round()
        mark(store, "card", "a")
        ScriptedNodes(store).take("a", conditions=movable(), devices=[plugged("pa")])
        fill(store, host("b", cpus=4), gpu_pool("pb", 1, "b"), migration())
        made.has_card = True
        yield made


def plugged(pool: str) -> Object:
    return {"claim": "card", "pool": pool, "device": "d0"}


def compete(made: Fleet) -> None:
    """Two claims that want the device that the machine leaves, and the one that it gets."""
    fill(made.store, gpu_claim("after", node="a"), gpu_claim("instead", node="b"))


def _moves(kind: type[Stores], at: int) -> bool:
    """Whether something died at that step; then all start again."""
    with fleet(kind) as made:
        made.book()
        compete(made)
        made.steps, made.left = 0, at
        has_died = False
        for _ in range(200):
            try:
                made.round()
            except Killed:
                has_died = True
                made.check()
                made.start()
            if made.is_settled():
                break
        else:
            raise AssertionError("it does not come to an end", at, made.machine().status)
        assert (made.held("card"), made.held("instead")) == (["pb"], [])
        return has_died


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("part", range(2))
def test_a_kill_at_any_write_ends_in_the_same_state(
    part: int, kind: type[Stores], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and after every third of them; `make fuzz` tries all."""
    monkeypatch.setattr(object_writer, "PAUSE_SECONDS", 0.001)
    steps = next(number for number in itertools.count(part + 1, 2 if IS_FUZZ else 6) if not _moves(kind, number))
    assert steps > 20, "there is something to kill"


@pytest.mark.parametrize("at", range(1, 9))
def test_a_migration_given_up_at_any_step_leaves_the_devices_to_others(at: int) -> None:
    with fleet() as made:
        made.book()
        machine_allocator(made.store, solve=solve_manifests).round()
        compete(made)
        ScriptedNodes(made.store).fail()
        made.left, made.steps = at, 0
        for _ in range(4):
            try:
                machine_allocator(made.opened[-1], solve=solve_manifests).round()
            except Killed:
                made.check()
                made.start()
        assert (made.machine().migration_state, made.machine().holder) == ({}, "a")
        assert (made.held("card"), made.held("instead")) == (["pa"], ["pb"])
