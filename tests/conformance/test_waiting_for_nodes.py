"""What waits is woken by all that can help it: by a Node that opens, by room for machines, by a configuration.

Random histories of what ``test_waiting`` has not: Nodes are cordoned and opened, nodes get more or less for machines,
machines come and go, claims need configurations, and devices that claims have are lost. After each step the loop that
leaves alone what waits has given devices and nodes to the same claims and machines as one that asks for all of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devalloc.api.meta import DEVALLOC
from devalloc.controller.reconcile import round_solver
from devalloc.controller.reconcile.loop import AllocatorSettings
from devalloc.controller.reconcile.round_solver import RoundSolver
from devalloc.store import Key
from devalloc.store.sqlite import SQLiteStore
from devalloc_solver import testing
from tests.support.allocator_rounds import settle
from tests.support.examples import examples
from tests.support.host_pools import host, machine
from tests.support.machine_allocator import machine_allocator

Object = dict[str, Any]
NODES = ("n0", "n1", "n2")
STEPS = 12
SETTINGS = AllocatorSettings(deadline=None)


class History:
    """A store, the loop that answers its claims, and what happens to them."""

    def __init__(self, path: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.path = path
        self.store = SQLiteStore(path / "store.db")
        self.allocator = machine_allocator(self.store, settings=SETTINGS)
        self.number = 0
        self.most_claims = seed % 2
        """Of a machine: one without claims can be all there is of machines that wait."""
        self.store.create(testing.device_class("a", driver="a.io"))
        for node in NODES[:2]:
            self.store.create(self.pool(node))
            self.store.create(host(node, cpus=2))

    def pool(self, node: str) -> Object:
        devices = [testing.device(f"d{number}") for number in range(self.random.randint(1, 3))]
        return testing.pool(f"a-{node}", node, "a.io", attributes={"model": self.random.choice("xy")}, devices=devices)

    def claim(self) -> Object:
        self.number += 1
        chance = self.random.random
        request = testing.request("a", self.random.randint(1, 2))
        if chance() < 0.3:
            request["constraints"] = f"device.model == '{self.random.choice('xyz')}'"
        if chance() < 0.2:
            request["configs"] = [{"apiVersion": DEVALLOC, "kind": "VfConfig", "name": "c"}]
        group = "g" if chance() < 0.3 else None
        node = self.random.choice(NODES) if chance() < 0.2 else None
        priority = 5 if chance() < 0.2 else None
        return testing.claim(f"c{self.number:03}", request, group=group, node=node, priority=priority)

    def machine(self) -> Object:
        self.number += 1
        waiting = [one["metadata"]["name"] for one in self.all("DeviceClaim") if not _has_devices(one)]
        claims = self.random.sample(waiting, min(len(waiting), self.random.choice([0, 0, self.most_claims])))
        return machine(f"m{self.number:03}", self.random.choice("12"), "1Gi", *claims)

    def node(self) -> Object:
        taint = {"taints": [{"key": "k", "effect": "NoSchedule"}]}
        spec = self.random.choice([{}, {}, {"unschedulable": True}, taint])
        return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.random.choice(NODES)}, "spec": spec}

    def all(self, kind: str) -> list[Object]:
        return [*self.store.list(kind).objects]

    def put(self, obj: Object) -> None:
        there = {Key.of(each): each for each in self.all(obj["kind"])}.get(Key.of(obj))
        if there is None:
            self.store.create(obj)
        else:
            self.store.replace({**there, "spec": obj["spec"]})

    def drop_one(self, kind: str) -> None:
        if there := self.all(kind):
            metadata = self.random.choice(there)["metadata"]
            self.store.delete(kind, metadata.get("namespace"), metadata["name"])

    def happen(self) -> None:
        chance = self.random.random
        for _ in range(self.random.choice([0, 0, 1, 2])):
            self.store.create(self.claim())
        if chance() < 0.4:
            self.store.create(self.machine())
        for kind, likely in (("DeviceClaim", 0.3), ("VirtualMachine", 0.4), ("DevicePool", 0.1), ("VfConfig", 0.2)):
            if chance() < likely:
                self.drop_one(kind)
        if chance() < 0.2:
            for one in filter(_is_satisfied, self.all("VirtualMachine")):
                self.store.delete("VirtualMachine", "default", one["metadata"]["name"])
        if chance() < 0.4:
            self.put(self.node())
        if chance() < 0.2:
            self.put(host(self.random.choice(NODES), cpus=self.random.choice([1, 2, 4])))
        if chance() < 0.2:
            self.put(self.pool(self.random.choice(NODES)))
        if chance() < 0.2:
            metadata = {"name": "c", "namespace": "default"}
            self.put({"apiVersion": DEVALLOC, "kind": "VfConfig", "metadata": metadata, "spec": {}})

    def check_step(self) -> None:
        self.happen()
        copy = self.path / "copy.db"
        self.store.backup(copy)
        settle(self.allocator)
        other = SQLiteStore(copy)
        settle(machine_allocator(other, settings=SETTINGS, solve=RoundSolver()))
        given = [{Key.of(one) for one in store.list().objects if _is_satisfied(one)} for store in (self.store, other)]
        other.close()
        for file in self.path.glob("copy.db*"):
            file.unlink()
        assert given[0] == given[1]


def _has_devices(claim: Object) -> bool:
    return bool((claim.get("status") or {}).get("allocations"))


def _is_satisfied(obj: Object) -> bool:
    return obj["kind"] in ("DeviceClaim", "VirtualMachine") and _has_devices(obj)


@pytest.fixture(autouse=True)
def without_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a round does not look at for want of time is not compared."""
    monkeypatch.setattr(round_solver, "WAKE_SECONDS", None)


@pytest.fixture
def history(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[History]:
    made = History(tmp_path, request.param)
    yield made
    made.store.close()


@pytest.mark.parametrize("history", range(examples(2, 0.1)), indirect=True)
def test_it_comes_to_the_same_as_asking_for_all(history: History) -> None:
    for _ in range(STEPS):
        history.check_step()
