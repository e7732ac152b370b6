"""Runners of machines: each at its own address, for those whom the admin lists, for as long as its run lives."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from devalloc.api.decode import decode
from devalloc.store.sqlite import SQLiteStore
from devalloc_node.agent.runners import MachineShare, RunnerAt, Runners
from devalloc_node.agent.settings import Network
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, NodeError
from devalloc_node.plainhttp import Request, Response, call
from devalloc_node.service.watching import Pulse
from devalloc_node.vms import VirtualMachines
from tests.support.faketree import memory_folder
from tests.support.nodeservice import platform_of, toy_bench
from tests.support.ports import free_ports
from tests.support.toymachines import ToyMachines, vm
from tests.support.waiting import until_async

KEY = "default/web"
HERE = "127.7.0.1"
NETWORKS: tuple[Network, ...] = (ip_network("127.7.0.0/24"),)


@dataclass
class Told:
    """Stands where the runners are."""

    networks: tuple[Network, ...] = NETWORKS
    kept: dict[str, RunnerAt] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    def keep(self, at: RunnerAt) -> None:
        self.kept[at.key] = at

    def drop(self, key: str) -> None:
        self.kept.pop(key, None)

    def problem(self, key: str) -> str | None:
        return self.problems.get(key)

    def allows(self, address: str) -> bool:
        return address.startswith("127.7.0.")


class World:
    """A store, machines in memory, and the loop between them, driven by hand."""

    def __init__(self, folder: Path, store: SQLiteStore) -> None:
        self.store, self.machines, self.told, self.now = store, ToyMachines(), Told(), 0.0
        self.bench = toy_bench(folder, self.machines)
        self.bench.start()
        self.platform = platform_of(self.bench, self.machines)
        self.platform.node_name = "node-a"
        self.loop = self.loop_with(self.told)

    def loop_with(self, runners: Told | None) -> VirtualMachines:
        return VirtualMachines(
            self.store, self.platform, Pulse(), clock=lambda: self.now, spawn=lambda work: work(), runners=runners
        )

    def round(self) -> None:
        self.now += 400.0
        self.loop.round()

    def change(self, **spec: Any) -> None:
        old = self.store.get("VirtualMachine", "default", "web")
        self.store.replace({**old, "spec": {k: v for k, v in {**old["spec"], **spec}.items() if v is not None}})
        self.round()

    def status(self) -> Any:
        return self.store.get("VirtualMachine", "default", "web")["status"]

    def at(self, port: int = 0) -> RunnerAt:
        machine = self.machines.known[KEY]
        return RunnerAt(KEY, machine.uid, machine.id, HERE, port)


@pytest.fixture
def world() -> Iterator[World]:
    with memory_folder() as name, closing(SQLiteStore(Path(name) / "store.db")) as store:
        made = World(Path(name), store)
        store.create(vm("web", runner={"address": HERE}))
        made.round()
        yield made


class TestObjects:
    def test_its_runner_is_at_its_address_and_of_its_run(self, world: World) -> None:
        machine = world.machines.known[KEY]
        assert world.told.kept == {KEY: RunnerAt(KEY, machine.uid, machine.id, HERE, 25183)}
        assert "reason" not in world.status()

    def test_its_controller_decides_about_its_time_and_its_spec_about_the_rest(self, world: World) -> None:
        world.machines.scale(KEY, "cpu", 1250, Deadline.after(1))
        world.change(cpu={"min": 1, "max": 4, "use": 3})
        observed = world.machines.known[KEY].observed
        assert (observed.cpu_milli, observed.vcpus) == (1250, 3)

    @pytest.mark.parametrize("how", ["stopped", "without", "deleted", "ended"])
    def test_it_is_closed_with_its_machine(self, world: World, how: str) -> None:
        match how:
            case "stopped":
                world.change(running=False)
            case "without":
                world.change(runner=None)
            case "ended":
                world.machines.end(KEY)
                world.machines.fail.add("start")
                world.round()
            case _:
                world.store.delete("VirtualMachine", "default", "web")
                world.round()
        assert world.told.kept == {}

    def test_nothing_listens_at_an_address_that_the_admin_does_not_list(self, world: World) -> None:
        world.change(runner={"address": "127.8.0.1"})
        assert world.told.kept == {}
        assert world.status()["reason"] == "RunnerElsewhere"
        assert "127.8.0.1 is in none of the networks" in world.status()["message"]
        assert "(127.7.0.0/24)" in world.status()["message"]

    def test_why_it_does_not_listen_is_told(self, world: World) -> None:
        world.told.problems[KEY] = "its runner cannot listen at 127.7.0.1 port 25183: Address already in use"
        world.round()
        assert world.status()["reason"] == "RunnerFailed"

    def test_it_is_off_by_default_and_its_time_is_that_of_its_spec(self, world: World) -> None:
        world.loop = world.loop_with(None)
        world.machines.scale(KEY, "cpu", 1250, Deadline.after(1))
        world.round()
        assert world.status()["reason"] == "RunnerOff"
        assert world.machines.known[KEY].observed.cpu_milli == 2000

    def test_not_both_its_guest_and_a_controller_decide(self) -> None:
        manifest = vm("web", runner={"address": HERE}, scaling={"address": "10.0.0.5"})
        ((path, message),) = [(each.path, each.message) for each in decode(manifest).problems]
        assert (path, "must not stand next to scaling" in message) == ("spec.runner", True)
        for address in ("0.0.0.0", "224.0.0.1", "node-a", "fe80::1%eth0"):
            (problem,) = decode(vm("web", runner={"address": address})).problems
            assert problem.path == "spec.runner.address"


class TestShare:
    def test_what_was_set_is_told_also_where_its_cpus_cannot_use_it(self, world: World) -> None:
        share = MachineShare(world.platform, world.at())
        share.set(1500)
        assert share.get() == 1500
        there = world.machines.known[KEY]
        told = replace(there.applied, cpu_milli=3500)
        world.machines.known[KEY] = replace(there, applied=told, observed=replace(there.observed, cpu_milli=2000))
        assert share.get() == 3500
        world.machines.known[KEY] = replace(there, applied=told, observed=replace(there.observed, cpu_milli=1700))
        assert share.get() == 1700, "somebody else has changed it"

    def test_another_run_or_machine_is_not_touched(self, world: World) -> None:
        at = world.at()
        for other in (replace(at, run="run-before"), replace(at, uid="another")):
            share = MachineShare(world.platform, other)
            with pytest.raises(Denied):
                share.get()
            with pytest.raises(Denied):
                share.set(1500)
        world.machines.end(KEY)
        with pytest.raises(Failed):
            MachineShare(world.platform, at).get()
        assert "scale default/web" not in world.machines.told


async def asked(port: int, milli: int | None = None) -> Response:
    if milli is None:
        return await call(HERE, port, Request("GET", "/cpu_current", b""), 5)
    return await call(HERE, port, Request("POST", "/cpu_change", b'{"VCPUs":"%dm"}' % milli), 5)


async def obeys(port: int) -> bool:
    try:
        return (await asked(port, 2000)).status == 200
    except NodeError:
        return False


def test_a_controller_is_served_for_as_long_as_it_is_said_and_a_port_that_is_taken_is_tried_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("devalloc_node.agent.runners.LOOK_SECONDS", 0.05)
    news: list[str] = []

    async def main() -> None:
        stop, port = threading.Event(), free_ports(1)[0]
        runners = Runners(world.platform, NETWORKS, changed=news.append)

        async def is_told(problem: bool) -> bool:
            return (runners.problem(KEY) is not None) is problem

        serving = asyncio.create_task(runners.serve(stop))
        await asyncio.sleep(0.05)
        with socket.create_server((HERE, port)):
            runners.keep(world.at(port))
            await until_async(lambda: is_told(True))
            assert f"{HERE} port {port}" in str(runners.problem(KEY))
        await until_async(lambda: is_told(False))
        assert news == [KEY, KEY]
        changed = await asked(port, 1250)
        assert (changed.status, changed.body) == (200, b"")
        world.machines.known[KEY] = replace(there := world.machines.known[KEY], applied=there.observed)
        assert (await asked(port)).body == b'{"VCPUs":"1250m"}'
        # What came too late, for the run before, is refused.
        world.machines.known[KEY] = replace(world.machines.known[KEY], id="run-2")
        assert (await asked(port, 2000)).status == 400
        runners.keep(world.at(port))
        await until_async(lambda: obeys(port))
        assert world.machines.known[KEY].observed.cpu_milli == 2000
        runners.drop(KEY)

        async def closed() -> bool:
            return not await obeys(port)

        await until_async(closed)
        stop.set()
        await serving

    asyncio.run(main())


def test_only_those_in_its_networks_and_the_host_itself_are_heard(world: World) -> None:
    runners = Runners(world.platform, (ip_network("10.3.0.0/24"), ip_network("fd00::/64")))
    heard = {peer: runners.hears(peer) for peer in ("10.3.0.9", "fd00::9", "127.0.0.1", "10.4.0.1", "fd01::1")}
    assert heard == {"10.3.0.9": True, "fd00::9": True, "127.0.0.1": True, "10.4.0.1": False, "fd01::1": False}


def test_whoever_fails_to_hear_that_one_listens_does_not_end_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("devalloc_node.agent.runners.LOOK_SECONDS", 0.05)

    def fails(key: str) -> None:
        raise ZeroDivisionError("a bug")

    async def main() -> None:
        stop, port = threading.Event(), free_ports(1)[0]
        runners = Runners(world.platform, NETWORKS, changed=fails)
        serving = asyncio.create_task(runners.serve(stop))
        await asyncio.sleep(0.05)

        async def is_told() -> bool:
            return runners.problem(KEY) is not None

        with socket.create_server((HERE, port)):
            runners.keep(world.at(port))
            await until_async(is_told)
        await until_async(lambda: obeys(port))
        stop.set()
        await serving

    asyncio.run(main())
    assert "runners could not be looked after" in caplog.text
