"""Of 32 machines (200 each night) that are created at once on a host with room for a quarter of them exactly these run,
the others have a reason, and when all are deleted nothing is left. Through all of the plugin, with a process for each
machine."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from devalloc_node.pb import node_pb2 as pb
from devalloc_node.pb.node_pb2_grpc import NodeStub
from tests.support import waiting
from tests.support.capacity_fakes import host as capacity
from tests.support.examples import IS_FUZZ
from tests.support.host_pools import host, machine, node_by_machine
from tests.support.machine_allocator import machine_allocator
from tests.support.node_with_forked_qemu import NODE, NodeWithForkedQemu, node_with_forked_qemu

pytestmark = pytest.mark.timeout(600)
MANY, ROOM = (200, 50) if IS_FUZZ else (32, 8)
SECONDS = 60.0
"""For what takes under 15, also beside others on the same host. A machine that waits for a pause or for the next look
at everything, instead of for what it needs, takes longer (`python -m benchmarks machine_burst` measures it)."""
until = partial(waiting.until, seconds=SECONDS)


@pytest.fixture
def node() -> Iterator[NodeWithForkedQemu]:
    with node_with_forked_qemu() as made:
        yield made


def at_once(work: Callable[[int], Any], count: int = MANY) -> list[Any]:
    """All of them begin together."""
    gate = threading.Barrier(count)

    def begin(number: int) -> Any:
        gate.wait()
        return work(number)

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(begin, range(count)))


def ref(number: int) -> pb.MachineRef:
    return pb.MachineRef(namespace="default", name=f"m{number}")


def create(plugin: NodeStub, node: NodeWithForkedQemu, number: int) -> pb.Result:
    spec = pb.MachineSpec(
        cpu=pb.CpuBounds(min_milli=1000, max_milli=4000),
        memory=pb.MemoryBounds(min_bytes=512 << 20, max_bytes=2 << 30),
        start=pb.Start(kernel=str(node.kernel)),
    )
    return plugin.CreateMachine(pb.CreateMachineRequest(machine=ref(number), spec=spec), timeout=SECONDS).result


def delete(plugin: NodeStub, number: int) -> bool:
    return bool(plugin.DeleteMachine(pb.DeleteMachineRequest(machine=ref(number), force=True), timeout=SECONDS).found)


def test_of_many_calls_that_create_a_machine_as_many_succeed_as_have_room(node: NodeWithForkedQemu) -> None:
    with node.running(capacity(cpu=ROOM, memory="64Gi", ratios={"cpu": "1"})) as (instance, plugin):
        answers = at_once(lambda number: create(plugin, node, number))
        codes = Counter(answer.code for answer in answers)
        assert codes == {"": ROOM, "HostFull": MANY - ROOM}
        messages = {answer.message.split(": ", 1)[1] for answer in answers if answer.code}
        assert all(one.startswith("insufficient CPU: requested 1 vCPU, but only 0 vCPUs available") for one in messages)
        run = [number for number, answer in enumerate(answers) if not answer.code]
        assert node.records(instance) == sorted(f"default/m{number}" for number in run)
        assert len(node.processes) == ROOM

        assert Counter(at_once(lambda number: delete(plugin, number))) == {True: ROOM, False: MANY - ROOM}
        until(lambda: not node.processes, "all processes have ended")
        assert (node.records(instance), node.remains()) == ([], [])
        again = at_once(lambda number: create(plugin, node, number), ROOM)
        assert Counter(answer.code for answer in again) == {"": ROOM}, "all of the room is there again"


def test_of_many_objects_as_many_run_as_have_room_and_the_others_say_why(node: NodeWithForkedQemu) -> None:
    store, stop = node.store, threading.Event()
    store.create(host(NODE, cpus=ROOM, memory=ROOM))
    allocator = threading.Thread(target=machine_allocator(store).run, args=(stop,))

    def objects() -> list[Any]:
        return list(store.list(["VirtualMachine"]).objects)

    def phases() -> Counter[str]:
        return Counter(one.get("status", {}).get("phase", "") for one in objects())

    start = {"kernel": str(node.kernel)}
    with node.running(of_store=True):  # it ends in the middle of it
        allocator.start()
        at_once(lambda number: store.create(machine(f"m{number}", start=start, powerdownSeconds=0)))
        until(lambda: len(node.processes) > 3, "some are begun")
    with node.running(of_store=True) as (instance, _):
        try:
            until(lambda: phases() == {"Running": ROOM, "Pending": MANY - ROOM}, "as many run as have room")
            assert len(node_by_machine(store)) == len(node.processes) == ROOM
            rest = [one["status"] for one in objects() if one["status"]["phase"] == "Pending"]
            assert {one["reason"] for one in rest} <= {"NoRoom", "LostToCompetition"}
            assert all("CPU free" in one["message"] or "memory free" in one["message"] for one in rest)
            (pool,) = store.list(["DevicePool"]).objects
            assert pool["status"]["availableDevices"] == 1, "bandwidth and disk are left"

            at_once(lambda number: store.delete("VirtualMachine", "default", f"m{number}"))
            until(lambda: not objects() and not node.processes, "all are gone")
            until(lambda: not node.records(instance), "nothing is recorded")
            assert node.remains() == []
            (pool,) = store.list(["DevicePool"]).objects
            until(
                lambda: (
                    store.get("DevicePool", None, pool["metadata"]["name"])["status"]["availableDevices"]
                    == len(pool["spec"]["devices"])
                ),
                "all devices of the host's pool are free",
            )
        finally:
            stop.set()
            allocator.join(SECONDS)
