"""Machines and their claims, placed by a round of the allocator, against all ways there are to place them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest

from devalloc.controller.reconcile.loop import AllocatorSettings
from devalloc.store.sqlite import SQLiteStore
from devalloc_solver import solve_manifests
from tests.support.examples import examples
from tests.support.fleet_manifests import fill, gpu_claim, gpu_class, gpu_pool, held, owners
from tests.support.host_pools import host, machine, node_by_machine, reserved_for, status
from tests.support.machine_allocator import machine_allocator

Object = dict[str, Any]
EXAMPLES = examples(10, 0.15)
MILLION = 10**6


@dataclass(frozen=True)
class Node:
    cpus: int
    memory: int
    """GiB; CPUs and memory are in halves on two NUMA nodes."""
    network: int
    """MB/s"""
    gpus: tuple[int, ...]
    """The NUMA node of each."""


@dataclass(frozen=True)
class Machine:
    cpu: int
    memory: int
    network: int
    gpu: bool
    single: bool
    pin: int | None

    @property
    def worth(self) -> int:
        """Claims that stand for it and that it has (S17)."""
        return 1 + self.gpu + (self.single and self.gpu and self.network > 0)


Place = tuple[int, int | None, int | None]
"""Node, NUMA node where the machine is on one, and GPU."""


def drawn(random: Random) -> tuple[list[Node], list[Machine]]:
    nodes = [
        Node(
            random.choice([2, 4]),
            random.choice([2, 4, 8]),
            random.choice([1, 10]),
            tuple(random.choice([0, 1]) for _ in range(random.choice([0, 1, 2]))),
        )
        for _ in range(random.choice([1, 2]))
    ]
    machines = [
        Machine(
            random.choice([1, 1, 2, 3]),
            random.choice([1, 2, 4]),
            random.choice([0, 0, 1, 6]),
            random.random() < 0.5,
            random.random() < 0.5,
            random.randrange(len(nodes)) if random.random() < 0.2 else None,
        )
        for _ in range(random.choice([1, 2, 3, 4]))
    ]
    return nodes, machines


def places(machine: Machine, nodes: list[Node]) -> Iterator[Place | None]:
    yield None
    for number, node in enumerate(nodes):
        if machine.pin in (None, number):
            for numa in (0, 1) if machine.single else (None,):
                gpus = [i for i, on in enumerate(node.gpus) if numa in (None, on)] if machine.gpu else [None]
                for gpu in gpus:
                    yield number, numa, gpu


def fits(machines: list[Machine], where: tuple[Place | None, ...], nodes: list[Node]) -> bool:
    """What is on one NUMA node has to find room there; what does not mind, in what is left of its node."""
    cpus: Counter[tuple[int, int | None]] = Counter()
    memory: Counter[tuple[int, int | None]] = Counter()
    network: Counter[int] = Counter()
    gpus: Counter[tuple[int, int]] = Counter()
    for one, place in zip(machines, where, strict=True):
        if place is not None:
            number, numa, gpu = place
            cpus[number, numa] += one.cpu
            memory[number, numa] += one.memory
            network[number] += one.network
            if gpu is not None:
                gpus[number, gpu] += 1
    if any(count > 1 for count in gpus.values()):
        return False
    for number, node in enumerate(nodes):
        if network[number] > node.network:
            return False
        for taken, half in ((cpus, node.cpus // 2), (memory, node.memory // 2)):
            if max(taken[number, 0], taken[number, 1]) > half:
                return False
            if sum(taken[number, numa] for numa in (0, 1, None)) > 2 * half:
                return False
    return True


def most(machines: list[Machine], nodes: list[Node]) -> int:
    """What can be placed at best."""
    best = 0
    for where in product(*(places(one, nodes) for one in machines)):
        worth = sum(one.worth for one, place in zip(machines, where, strict=True) if place is not None)
        if worth > best and fits(machines, where, nodes):
            best = worth
    return best


def manifests(nodes: list[Node], machines: list[Machine]) -> Iterator[Object]:
    yield gpu_class()
    for number, node in enumerate(nodes):
        yield host(f"n{number}", cpus=node.cpus, memory=node.memory, network=node.network * MILLION)
        pool = gpu_pool(f"p{number}", node=f"n{number}")
        devices = [
            {"name": f"d{i}", "attributes": [{"name": "numa", "intValue": on}]} for i, on in enumerate(node.gpus)
        ]
        yield {**pool, "spec": {**pool["spec"], "devices": devices}}
    for number, one in enumerate(machines):
        if one.gpu:
            yield gpu_claim(f"g{number}")
        more: Object = {"nics": [{"bandwidth": f"{one.network}M"}]} if one.network else {}
        more |= {"numaPolicy": "single-numa-node"} if one.single else {}
        more |= {} if one.pin is None else {"nodeName": f"n{one.pin}"}
        yield machine(f"m{number}", str(one.cpu), f"{one.memory}Gi", *([f"g{number}"] if one.gpu else []), **more)


def wrong_with(store: SQLiteStore, nodes: list[Node], machines: list[Machine]) -> list[str]:
    """What the store says that cannot be so."""
    problems = []
    taken: dict[tuple[str, str, str], int] = defaultdict(int)
    on = node_by_machine(store)
    for number, one in enumerate(machines):
        name, node = f"m{number}", on.get(f"m{number}")
        gpu = held(store, f"g{number}") if one.gpu else []
        if node is None:
            problems += [f"{name} is not placed, and its claim is"] if gpu else []
            problems += [] if status(store, name).get("reason") else [f"{name} is not told why"]
            continue
        entries = reserved_for(store, name)
        for device, amounts in entries.items():
            for resource, amount in amounts.items():
                taken[node, device, resource] += _number(amount)
        given = {r: sum(_number(a.get(r, "0")) for a in entries.values()) for r in ("cpu", "memory", "network")}
        if given != {"cpu": one.cpu, "memory": one.memory << 30, "network": one.network * MILLION}:
            problems.append(f"{name} has {given}")
        if one.gpu and [d.partition("/")[0] for d in gpu] != [f"p{node[1:]}"]:
            problems.append(f"{name} is on {node}, and its GPU is {gpu}")
        compute = {device for device, amounts in entries.items() if "cpu" in amounts or "memory" in amounts}
        if one.single:
            numa = {f"numa{nodes[int(d[1])].gpus[int(d[-1])]}" for d in gpu}
            problems += [f"{name} is on {compute} with {gpu}"] if len(compute | numa) > 1 else []
        if one.pin is not None and node != f"n{one.pin}":
            problems.append(f"{name} is on {node}")
    for (node, device, resource), amount in taken.items():
        of = nodes[int(node[1:])]
        limit = {"cpu": of.cpus // 2, "memory": of.memory // 2 << 30, "network": of.network * MILLION}[resource]
        problems += [f"{node}/{device} gives {amount} {resource} of {limit}"] if amount > limit else []
    return problems + [f"{device} is given {times} times" for device, times in owners(store).items() if times > 1]


def _number(text: str) -> int:
    from devalloc.api.quantity import NANO, Quantity

    return Quantity.parse(text).nano // NANO


@pytest.mark.parametrize("first", range(0, EXAMPLES, 10))
def test_as_many_are_placed_as_can_be_each_with_all_that_it_needs(first: int, tmp_path: Path) -> None:
    wrong: dict[int, Any] = {}
    for seed in range(first, first + 10):
        nodes, machines = drawn(Random(seed))
        with closing(SQLiteStore(tmp_path / f"{seed}.db")) as store:
            fill(store, *manifests(nodes, machines))
            allocator = machine_allocator(store, settings=AllocatorSettings(deadline=None), solve=solve_manifests)
            for _ in range(2):  # the round after reports who lost to others
                allocator.round()
            problems: list[Any] = list(wrong_with(store, nodes, machines))
            reached = sum(one.worth for number, one in enumerate(machines) if f"m{number}" in node_by_machine(store))
            if (best := most(machines, nodes)) != reached:
                problems.append(f"{reached} of {best}")
            before = store.list().resource_version
            machine_allocator(store, solve=solve_manifests).round()
            if {f"m{n}" for n in range(len(machines))} == node_by_machine(store).keys():
                problems += ["a second round writes"] if store.list().resource_version != before else []
        if problems:
            wrong[seed] = (problems, nodes, machines)
    assert wrong == {}
