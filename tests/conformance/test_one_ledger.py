"""One ledger (T25): what is permitted and not given yet is not there for machines that begin beside it, and the other
way round. The plugin's own service, its own server of permits and real processes race for one host."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from random import Random
from typing import Any

import pytest

from devalloc.inventory.capacity import discover_capacity
from devalloc.machines.permits.sources import read_vm
from devalloc.programs.node_permits import frozen_hosts
from devalloc.store import Conflict, Store
from devalloc_machines.part import machines_of
from devalloc_node.deadline import Deadline
from devalloc_node.pb import node_pb2 as pb
from tests.support.host_pools import host
from tests.support.machine_allocator import machine_allocator
from tests.support.node_with_forked_qemu import NODE, NodeWithForkedQemu, node_with_forked_qemu
from tests.support.permit_bench import GIB, KIND, machine, node_of, serving
from tests.support.waiting import until

LIMIT = 16_000
"""Thousandths of a CPU that the played host has."""
SCALED = 4


@pytest.fixture
def node() -> Iterator[NodeWithForkedQemu]:
    with node_with_forked_qemu() as made:
        yield made


def test_machines_whose_specs_change_all_the_time_never_have_more_than_there_is(node: NodeWithForkedQemu) -> None:
    """Placing, its node and the writers of the objects race; what counts is what the processes have."""
    cpus, names = 8, [f"vm{number}" for number in range(4)]
    store, over = node.store, threading.Event()
    store.create(host(NODE, cpus=cpus, numa=2, memory=64))
    highest = [0]

    def spec(least: int, use: int) -> Any:
        return {
            "cpu": {"min": str(least), "max": "8", "use": str(use)},
            "memory": {"min": "1Gi", "max": "8Gi"},
            "start": {"kernel": str(node.kernel)},
            "powerdownSeconds": 0,
        }

    def watch() -> None:
        while not over.is_set():
            # One is asked after the other: what is the same twice was so all at once.
            has, again = ([each["cpus"] for each in node.machine_answers()] for _ in range(2))
            highest[0] = max(highest[0], sum(map(len, has)) if has == again else 0)

    def write(name: str, seed: int) -> None:
        rng = Random(seed)
        for _ in range(6):
            least = rng.randint(1, 2)
            change(store, name, spec(least, rng.randint(least, 7)))
            time.sleep(rng.uniform(0, 0.15))

    for name in names:
        store.create({**machine(name, node=NODE), "spec": spec(1, 1)})
    stop = threading.Event()
    with node.running(of_store=True):
        allocators = [threading.Thread(target=machine_allocator(store).run, args=(stop,)) for _ in range(2)]
        for thread in (*allocators, watching := threading.Thread(target=watch)):
            thread.start()
        try:
            until(lambda: len(node.processes) == len(names), "all run")
            with ThreadPoolExecutor(len(names)) as threads:
                list(threads.map(write, names, range(len(names))))
            for name in names:
                change(store, name, spec(1, 2))
            until(
                lambda: [len(each["cpus"]) for each in node.machine_answers()] == [2] * len(names),
                "all fit, and have it",
            )
            until(lambda: highest[0] >= cpus, "the processes are watched")
            change(store, names[0], spec(1, 3))
            until(lambda: reason(store, names[0]) == "NoRoomToGrow", "one more does not fit, and that is said")
            change(store, names[1], spec(1, 1))
            until(
                lambda: sorted(len(each["cpus"]) for each in node.machine_answers()) == [1, 2, 2, 3],
                "what one gives back",
            )
            until(lambda: reason(store, names[0]) is None, "nothing is in the way")
        finally:
            over.set()
            stop.set()
            for thread in (*allocators, watching):
                thread.join(60)
    assert highest[0] == cpus


def change(store: Store, name: str, spec: Any) -> None:
    while True:
        with suppress(Conflict):
            store.replace({**store.get(KIND, "default", name), "spec": {**spec, "nodeName": NODE}})
            return


def reason(store: Store, name: str) -> str | None:
    content: str | None = store.get(KIND, "default", name).get("status", {}).get("reason")
    return content


def test_permits_and_machines_that_begin_never_take_the_same_room(node: NodeWithForkedQemu) -> None:
    random = Random(7)
    limit = discover_capacity(node.host.root, node.settings.limits)
    assert limit.cpu.effective_limit == LIMIT
    over, tally = threading.Event(), Counter[str]()
    outcomes = ("granted", "short", "begun", "HostFull")
    highest = [0]

    def taken() -> int:
        """All that is promised at one moment, to machines with an object and without."""
        with machines_of(instance).machines.still((), Deadline.after(30)) as others:
            records = [read_vm(obj) for obj in node.store.list([KIND]).objects]
        scaled = [max(one.least.cpu, one.permit.cpu if one.permit else 0) for one in records if one is not None]
        return sum(scaled) + sum(use.cpu for use in others)

    def watch() -> None:
        while not over.is_set():
            highest[0] = max(highest[0], taken())

    def ask(name: str, seed: int) -> None:
        rng = Random(seed)
        with closing(bench.client()) as client:
            for _ in range(12):
                wanted = rng.randint(1, 10)
                granted = client.ask(name, wanted, "1Gi")["permit"]["vCPUs"]
                tally["granted" if granted == wanted else "short"] += 1

    def begin(number: int, seed: int) -> None:
        rng, name = Random(seed), pb.MachineRef(namespace="default", name=f"other{number}")
        for _ in range(4):
            milli = rng.randint(1, 5) * 1000
            spec = pb.MachineSpec(
                cpu=pb.CpuBounds(min_milli=1000, use_milli=milli, max_milli=8000),
                memory=pb.MemoryBounds(min_bytes=64 << 20, max_bytes=GIB),
                start=pb.Start(kernel=str(node.kernel)),
            )
            made = plugin.CreateMachine(pb.CreateMachineRequest(machine=name, spec=spec), timeout=60).result
            tally[made.code or "begun"] += 1
            more = pb.ScaleMachineRequest(machine=name, vcpus=rng.randint(1, 8))
            if not made.code:
                results = plugin.ScaleMachine(more, timeout=60)
                tally[f"scaled {results.result.code}".strip()] += 1
            plugin.DeleteMachine(pb.DeleteMachineRequest(machine=name, force=True), timeout=60)

    start = {"kernel": str(node.kernel)}
    for number in range(SCALED):
        node.store.create(machine(f"vm{number}", node=NODE, start=start, powerdownSeconds=0))
    with node.running(limit, of_store=True) as (instance, plugin):
        still = frozen_hosts(instance)
        with still() as now:
            hosts = node_of(now[NODE].limit)
        with serving(node.folder / "devalloc.db", hosts, still=still) as bench:
            until(lambda: len(node.processes) == SCALED, "the machines of the store run")
            watching = threading.Thread(target=watch)
            watching.start()
            for _ in range(10):  # a busy machine may run one side when the other has ended
                with ThreadPoolExecutor(SCALED + 4) as threads:
                    jobs = [threads.submit(ask, f"vm{n}", random.getrandbits(32)) for n in range(SCALED)]
                    jobs += [threads.submit(begin, n, random.getrandbits(32)) for n in range(4)]
                    for job in jobs:
                        job.result()
                if all(tally[outcome] for outcome in outcomes):
                    break
            over.set()
            watching.join()
    assert highest[0] <= LIMIT
    assert highest[0] > LIMIT // 2
    assert all(tally[outcome] for outcome in outcomes), tally
