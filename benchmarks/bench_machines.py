"""What the loop from VirtualMachines to machines costs a node: a burst of new ones, and many that only run."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

from benchmarks.harness import Row, benchmark
from tests.support.host_pools import host, machine
from tests.support.machine_allocator import machine_allocator
from tests.support.node_with_forked_qemu import NODE, NodeWithForkedQemu, node_with_forked_qemu
from tests.support.waiting import until

BURST, ROOM = 200, 50
IDLE = 500
WINDOW_SECONDS = 120.0
"""Of real time: each idle machine comes to its turn once in it."""
PATIENCE = 600.0


@benchmark(
    "machine_burst",
    "A burst of machines on one node",
    method=f"Real time from the first of {BURST} VirtualMachines that are created at once, on a node with room for "
    f"{ROOM}, until {ROOM} run and each of the others has its reason. `restart`: the plugin ends in the middle of it, "
    "and its successor goes on (its start counts). Plugin, allocator and SQLite store share one process; each machine "
    "is a process that answers as QEMU does.",
)
def machine_burst(runs: int) -> Iterator[Row]:
    for is_restarted in (False, True):
        seconds = tuple(_burst(is_restarted) for _ in range(runs + 1))[1:]
        yield Row({"machines": BURST, "run": ROOM, "plugin": "restart" if is_restarted else "goes on"}, seconds)


@benchmark(
    "idle_machines",
    "Idle machines of VirtualMachines on one node",
    method=f"CPU time, user and system, of the plugin's process in {WINDOW_SECONDS:g} s of real time in which nothing "
    "happens, with its usual intervals; the allocator has ended. Each machine is a process that answers as QEMU does, "
    "and is not counted. `% of a CPU` is the median. At most three windows are measured.",
)
def idle_machines(runs: int) -> Iterator[Row]:
    for count in (0, IDLE):
        seconds = _idle(count, min(runs, 3))
        share = sorted(seconds)[len(seconds) // 2] / WINDOW_SECONDS
        yield Row({"machines": count, "% of a CPU": f"{share * 100:.1f}"}, seconds)


def _burst(is_restarted: bool) -> float:
    with node_with_forked_qemu() as node, _allocating(node, ROOM):
        specs = [
            machine(f"m{number}", start={"kernel": str(node.kernel)}, powerdownSeconds=0) for number in range(BURST)
        ]
        if not is_restarted:
            with node.running(of_store=True):
                started = time.perf_counter()
                _create(node, specs)
                return _all_settled(node, started)
        with node.running(of_store=True):
            started = time.perf_counter()
            _create(node, specs)
            until(lambda: len(node.processes) > 3, "some are begun", PATIENCE)
        with node.running(of_store=True):
            return _all_settled(node, started)


def _idle(count: int, windows: int) -> tuple[float, ...]:
    with node_with_forked_qemu() as node:
        node.settings = replace(node.settings, resync=60.0)
        with node.running(of_store=True):
            with _allocating(node, max(count, 1)):
                specs = [machine(f"m{n}", start={"kernel": str(node.kernel)}, powerdownSeconds=0) for n in range(count)]
                _create(node, specs)
                until(lambda: _phases(node)["Running"] == count, "all run", PATIENCE)
            time.sleep(30)  # until what follows from their start is over
            seconds = []
            for _ in range(windows):
                before = time.process_time()
                time.sleep(WINDOW_SECONDS)
                seconds.append(time.process_time() - before)
            for spec in specs:
                node.store.delete("VirtualMachine", "default", spec["metadata"]["name"])
            until(lambda: not node.processes, "all have ended", PATIENCE)
            return tuple(seconds)


@contextmanager
def _allocating(node: NodeWithForkedQemu, room: int) -> Iterator[None]:
    """Inside, the allocator runs, and the node has room for so many machines."""
    node.store.create(host(NODE, cpus=room, memory=room))
    stop = threading.Event()
    allocator = threading.Thread(target=machine_allocator(node.store).run, args=(stop,))
    allocator.start()
    try:
        yield
    finally:
        stop.set()
        allocator.join()


def _create(node: NodeWithForkedQemu, specs: list[dict[str, object]]) -> None:
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(node.store.create, specs))


def _all_settled(node: NodeWithForkedQemu, started: float) -> float:
    until(lambda: _phases(node) == {"Running": ROOM, "Pending": BURST - ROOM}, f"{ROOM} run", PATIENCE)
    return time.perf_counter() - started


def _phases(node: NodeWithForkedQemu) -> Counter[str]:
    return Counter(one.get("status", {}).get("phase", "") for one in node.store.list(["VirtualMachine"]).objects)
