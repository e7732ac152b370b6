"""What taking a warm setup costs its caller, and what filling the pool costs the host."""

from __future__ import annotations

import ctypes
import os
import pickle
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc

from benchmarks.harness import Row, benchmark
from devalloc_machines.warm.pool import Pool
from devalloc_machines.warm.service import WarmService
from devalloc_machines.warm.settings import WarmConfig
from devalloc_node.deadline import Deadline
from devalloc_node.metrics.registry import NodeMetrics
from devalloc_node.pb.warm_pb2 import ReturnSetupRequest, TakeSetupRequest
from devalloc_node.pb.warm_pb2_grpc import WarmPoolStub
from devalloc_node.service.peer_credentials import open_proxy

SETUPS = 100
_NEW_MOUNTS, _NEW_NETWORK, _PRIVATE, _RECURSIVE = 0x20000, 0x40000000, 1 << 18, 1 << 14

Times = tuple[float, ...]


@benchmark(
    "warm",
    "Taking a warm setup",
    method=f"Real network namespaces and TAP interfaces, in mount and network namespaces of their own, with /run in "
    f"memory as it is on hosts. A run: {SETUPS} setups are made (fill), taken one after the other, and given back, "
    "which removes them. Median, min and max are of one setup, over all runs: for `fill` its share of the time of all. "
    "`by gRPC`: through the node plugin's socket, in the same process. `none ready`: the setup is made for who takes "
    "it. 99th of a hundred: beside it. Needs root.",
    packages=("pyroute2", "grpcio"),
)
def warm(runs: int) -> Iterator[Row]:
    if os.geteuid() != 0:
        return
    by_call: dict[str, list[float]] = {}
    for _ in range(runs):
        for what, seconds in apart(one_run).items():
            by_call.setdefault(what, []).extend(seconds)
    for what, times in by_call.items():
        ordered = sorted(times)
        columns: dict[str, str | int] = {
            "what": what,
            "setups": len(times),
            "99th": f"{ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] * 1000:.2f}",
            "all of a run, s": f"{statistics.fmean(times) * SETUPS:.2f}",
        }
        yield Row(columns, tuple(ordered))


def one_run() -> dict[str, Times]:
    times: dict[str, Times] = {}
    run = Path("/run/devalloc/warm")
    pool = Pool(WarmConfig(most=2 * SETUPS, run=run), "boot")
    pool.open()
    pool.fill(1)  # the first one loads what the others need
    pool.give_back(pool.take("first").setup.id, soon())

    times["fill"] = shares(lambda: pool.fill(SETUPS))
    times["take"] = each(SETUPS, lambda: pool.take("owner", vcpus=2))
    times["take, none ready"] = each(10, lambda: pool.take("owner", vcpus=2))
    times["give back"] = each_of(pool, lambda name: pool.give_back(name, soon()))

    pool.fill(SETUPS)
    socket = run / "node.sock"
    door = open_proxy(socket, [WarmService(pool, NodeMetrics()).service()])
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        stub = WarmPoolStub(channel)
        stub.TakeSetup(TakeSetupRequest(owner="first"))
        times["take, by gRPC"] = each(SETUPS - 1, lambda: stub.TakeSetup(TakeSetupRequest(owner="owner", vcpus=2)))
        times["give back, by gRPC"] = each_of(pool, lambda name: stub.ReturnSetup(ReturnSetupRequest(id=name)))
    door.stop()

    pool.fill(SETUPS)
    times["close"] = shares(lambda: pool.close(soon()))
    return times


def each(number: int, act: Callable[[], object]) -> Times:
    def timed() -> float:
        start = time.perf_counter()
        act()
        return time.perf_counter() - start

    return tuple(timed() for _ in range(number))


def each_of(pool: Pool, act: Callable[[str], object]) -> Times:
    names = iter([taken.setup.id for taken in pool.status().taken])
    return each(len(pool.status().taken), lambda: act(next(names)))


def shares(act: Callable[[], object]) -> Times:
    start = time.perf_counter()
    act()
    return ((time.perf_counter() - start) / SETUPS,) * SETUPS


def soon() -> Deadline:
    return Deadline.after(30)


def apart(act: Callable[[], Any]) -> Any:
    """What it answers in a process of its own, on a host of its own: its namespaces and mounts end with it."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            for done in (
                libc.unshare(_NEW_MOUNTS | _NEW_NETWORK),
                libc.mount(None, b"/", None, _PRIVATE | _RECURSIVE, None),
                libc.mount(b"none", b"/run", b"tmpfs", 0, None),
            ):
                assert done == 0, os.strerror(ctypes.get_errno())
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(pickle.dumps(act()))
        finally:
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        output = pipe.read()
    os.waitpid(child, 0)
    return pickle.loads(output)
