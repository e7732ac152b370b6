"""Runners of machines: each at its own address, for those whom the admin lists, for as long as its run lives."""

from __future__ import annotations

import asyncio
import socket
import threading
from dataclasses import dataclass, field, replace
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from devalloc.api.decode import decode
from devalloc.settings import Network
from devalloc.store.sqlite import SQLiteStore
from devalloc_machines.agent.channels import RunnerAddress
from devalloc_machines.vms import MachineControls
from devalloc_neon.cpu_time_server import MachineCpuShare, RunnerServers
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, NodeError
from devalloc_node.net.http import HttpRequest, HttpResponse, http_request
from tests.support.node_service import ToyLoop
from tests.support.ports import free_ports
from tests.support.toy_machines import vm
from tests.support.waiting import until_async

KEY = "default/web"
HERE = "127.7.0.1"
NETWORKS: tuple[Network, ...] = (ip_network("127.7.0.0/24"),)


@dataclass
class FakeRunners:
    """Stands where the runners are."""

    networks: tuple[Network, ...] = NETWORKS
    by_key: dict[str, RunnerAddress] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    def keep(self, at: RunnerAddress) -> None:
        self.by_key[at.key] = at

    def drop(self, key: str) -> None:
        self.by_key.pop(key, None)

    def problem(self, key: str) -> str | None:
        return self.problems.get(key)

    def allows(self, address: str) -> bool:
        return address.startswith("127.7.0.")


class World(ToyLoop):
    def __init__(self, folder: Path, store: SQLiteStore) -> None:
        self.runners = FakeRunners()
        super().__init__(folder, store, MachineControls(runners=self.runners))

    def change(self, **spec: Any) -> None:
        old = self.store.get("VirtualMachine", "default", "web")
        self.store.replace({**old, "spec": {k: v for k, v in {**old["spec"], **spec}.items() if v is not None}})
        self.round()

    def at(self, port: int = 0) -> RunnerAddress:
        machine = self.machines.views[KEY]
        return RunnerAddress(KEY, machine.uid, machine.id, HERE, port)


@pytest.fixture
def world(tmp_path: Path, store: SQLiteStore) -> World:
    made = World(tmp_path, store)
    store.create(vm("web", runner={"address": HERE}))
    made.round()
    return made


class TestObjects:
    def test_its_runner_is_at_its_address_and_of_its_run(self, world: World) -> None:
        machine = world.machines.views[KEY]
        assert world.runners.by_key == {KEY: RunnerAddress(KEY, machine.uid, machine.id, HERE, 25183)}
        assert "reason" not in world.status()

    def test_its_controller_decides_about_its_time_and_its_spec_about_the_rest(self, world: World) -> None:
        world.machines.scale(KEY, "cpu", 1250, Deadline.after(1))
        world.change(cpu={"min": 1, "max": 4, "use": 3})
        observed = world.machines.views[KEY].observed
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
        assert world.runners.by_key == {}

    def test_nothing_listens_at_an_address_that_the_admin_does_not_list(self, world: World) -> None:
        world.change(runner={"address": "127.8.0.1"})
        assert world.runners.by_key == {}
        assert world.status()["reason"] == "RunnerElsewhere"
        assert "127.8.0.1 is in none of the networks" in world.status()["message"]
        assert "(127.7.0.0/24)" in world.status()["message"]

    def test_a_runner_that_cannot_listen_is_the_reason(self, world: World) -> None:
        world.runners.problems[KEY] = "its runner cannot listen at 127.7.0.1 port 25183: Address already in use"
        world.round()
        assert world.status()["reason"] == "RunnerFailed"

    def test_it_is_off_by_default_and_its_time_is_that_of_its_spec(self, world: World) -> None:
        world.loop = world.new_loop()
        world.machines.scale(KEY, "cpu", 1250, Deadline.after(1))
        world.round()
        assert world.status()["reason"] == "RunnerOff"
        assert world.machines.views[KEY].observed.cpu_milli == 2000

    def test_not_both_its_guest_and_a_controller_decide(self) -> None:
        manifest = vm("web", runner={"address": HERE}, scaling={"address": "10.0.0.5"})
        ((path, message),) = [(each.path, each.message) for each in decode(manifest).problems]
        assert (path, "cannot be combined with scaling" in message) == ("spec.runner", True)
        for address in ("0.0.0.0", "224.0.0.1", "node-a", "fe80::1%eth0"):
            (problem,) = decode(vm("web", runner={"address": address})).problems
            assert problem.path == "spec.runner.address"


class TestShare:
    def test_the_share_shows_what_was_set_even_if_its_cpus_cannot_use_it(self, world: World) -> None:
        share = MachineCpuShare(world.operations, world.at())
        share.set(1500)
        assert share.get() == 1500
        there = world.machines.views[KEY]
        applied = replace(there.applied, cpu_milli=3500)
        world.machines.views[KEY] = replace(there, applied=applied, observed=replace(there.observed, cpu_milli=2000))
        assert share.get() == 3500
        world.machines.views[KEY] = replace(there, applied=applied, observed=replace(there.observed, cpu_milli=1700))
        assert share.get() == 1700, "another program has changed it"

    def test_another_run_or_machine_is_not_touched(self, world: World) -> None:
        at = world.at()
        for other in (replace(at, run="run-before"), replace(at, uid="another")):
            share = MachineCpuShare(world.operations, other)
            with pytest.raises(Denied):
                share.get()
            with pytest.raises(Denied):
                share.set(1500)
        world.machines.end(KEY)
        with pytest.raises(Failed):
            MachineCpuShare(world.operations, at).get()
        assert "scale default/web" not in world.machines.calls


async def send(port: int, milli: int | None = None) -> HttpResponse:
    if milli is None:
        return await http_request(HERE, port, HttpRequest("GET", "/cpu_current", b""), 5)
    return await http_request(HERE, port, HttpRequest("POST", "/cpu_change", b'{"VCPUs":"%dm"}' % milli), 5)


async def obeys(port: int) -> bool:
    try:
        return (await send(port, 2000)).status == 200
    except NodeError:
        return False


def test_a_runner_listens_as_long_as_it_is_listed_and_tries_a_port_in_use_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("devalloc_neon.cpu_time_server.LOOK_SECONDS", 0.05)
    news: list[str] = []

    async def main() -> None:
        stop, port = threading.Event(), free_ports(1)[0]
        runners = RunnerServers(world.operations, NETWORKS, changed=news.append)

        async def has_problem(problem: bool) -> bool:
            return (runners.problem(KEY) is not None) is problem

        serving = asyncio.create_task(runners.serve(stop))
        await asyncio.sleep(0.05)
        with socket.create_server((HERE, port)):
            runners.keep(world.at(port))
            await until_async(lambda: has_problem(True))
            assert f"{HERE} port {port}" in str(runners.problem(KEY))
        await until_async(lambda: has_problem(False))
        assert news == [KEY, KEY]
        changed = await send(port, 1250)
        assert (changed.status, changed.body) == (200, b"")
        world.machines.views[KEY] = replace(there := world.machines.views[KEY], applied=there.observed)
        assert (await send(port)).body == b'{"VCPUs":"1250m"}'
        # What came too late, for the run before, is refused.
        world.machines.views[KEY] = replace(world.machines.views[KEY], id="run-2")
        assert (await send(port, 2000)).status == 400
        runners.keep(world.at(port))
        await until_async(lambda: obeys(port))
        assert world.machines.views[KEY].observed.cpu_milli == 2000
        runners.drop(KEY)

        async def closed() -> bool:
            return not await obeys(port)

        await until_async(closed)
        stop.set()
        await serving

    asyncio.run(main())


def test_only_those_in_its_networks_and_the_host_itself_are_heard(world: World) -> None:
    runners = RunnerServers(world.operations, (ip_network("10.3.0.0/24"), ip_network("fd00::/64")))
    heard = {peer: runners.accepts_peer(peer) for peer in ("10.3.0.9", "fd00::9", "127.0.0.1", "10.4.0.1", "fd01::1")}
    assert heard == {"10.3.0.9": True, "fd00::9": True, "127.0.0.1": True, "10.4.0.1": False, "fd01::1": False}


def test_a_listener_that_fails_does_not_end_the_other_runners(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("devalloc_neon.cpu_time_server.LOOK_SECONDS", 0.05)

    def fails(key: str) -> None:
        raise ZeroDivisionError("a bug")

    async def main() -> None:
        stop, port = threading.Event(), free_ports(1)[0]
        runners = RunnerServers(world.operations, NETWORKS, changed=fails)
        serving = asyncio.create_task(runners.serve(stop))
        await asyncio.sleep(0.05)

        async def has_problem() -> bool:
            return runners.problem(KEY) is not None

        with socket.create_server((HERE, port)):
            runners.keep(world.at(port))
            await until_async(has_problem)
        await until_async(lambda: obeys(port))
        stop.set()
        await serving

    asyncio.run(main())
    assert "cannot reconcile the runners" in caplog.text
