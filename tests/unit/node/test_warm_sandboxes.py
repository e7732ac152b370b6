"""Warm setups as homes of machines of the node: each run has one, and none keeps what an earlier run left."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devalloc_machines.qemu.cpu_pinning import NotEnoughCpus, pin_vcpus
from devalloc_machines.qemu.process import Process
from devalloc_machines.qemu.resources import free_cpus
from devalloc_machines.qemu.spec import CPU, HOST_SANDBOX, AmountBounds, MachineSpec, Nic, SandboxProvider
from devalloc_machines.warm.pool import Pool, WarmSandboxes
from devalloc_machines.warm.records import SetupRecord
from devalloc_machines.warm.settings import WarmConfig
from devalloc_machines.warm.setup import NotEnoughSetups, Setup
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, NodeError
from tests.support.deadlines import soon
from tests.support.node_errors import raises
from tests.support.toy_setups import BOOT, ToyPart, host, opened

WEB = MachineSpec(
    "default",
    "web",
    "uid",
    AmountBounds(CPU, 2 * CPU, CPU),
    AmountBounds(1 << 30, 1 << 30, 1 << 30),
    nics=(Nic(warm=True),),
)
OTHER = replace(WEB, name="other")


@pytest.fixture
def toy() -> ToyPart:
    return ToyPart()


def owners(pool: Pool) -> list[tuple[str, str]]:
    return [(taken.owner, taken.request) for taken in pool.taken()]


def test_a_run_has_one_home_however_often_it_asks_and_its_next_run_another(tmp_path: Path, toy: ToyPart) -> None:
    with opened(tmp_path, toy) as pool:
        homes = WarmSandboxes(pool)
        home = homes.give(WEB, "run-1")
        assert home == homes.give(WEB, "run-1") != HOST_SANDBOX
        assert homes.give(WEB, "run-2") != home
        assert owners(pool) == [("machine/default/web", "run-2")], "what a start that was cut off left is given back"
        homes.give(OTHER, "run-2")
        homes.take_back("default/web")
        homes.take_back("default/web")
        assert owners(pool) == [("machine/default/other", "run-2")]
        assert len(toy.there) == 1


def test_cpus_are_those_of_its_bound_and_of_its_numa_node_and_free_when_it_has_ended(
    tmp_path: Path, toy: ToyPart
) -> None:
    with opened(tmp_path, toy, vcpus_per_cpu=1) as pool:
        homes = WarmSandboxes(pool)
        assert homes.give(WEB, "run").cpus == ()
        pinned = replace(OTHER, pinned=True, numa_node=1)
        assert homes.give(pinned, "run").cpus == (2, 3)
        with pytest.raises(NotEnoughSetups, match="not enough free CPUs"):
            homes.give(replace(pinned, name="third"), "run")
        with raises(Denied, "CpusTooFew", match="machines may use node 7: none"):
            homes.give(replace(pinned, name="third", numa_node=7), "run")
        homes.take_back(OTHER.key)
        assert homes.give(replace(pinned, name="third"), "run").cpus == (2, 3)


def test_what_machines_of_an_earlier_plugin_have_left_is_swept_and_nothing_of_others(
    tmp_path: Path, toy: ToyPart
) -> None:
    with opened(tmp_path, toy) as pool:
        homes = WarmSandboxes(pool)
        homes.give(WEB, "run")
        homes.give(OTHER, "run")
        pool.take("web-7", "run")
    homes.take_back(WEB.key)  # while no pool is open, as when the next plugin starts
    with opened(tmp_path, toy) as pool:
        calls = []

        def lives_in(key: str, run: str) -> bool:
            calls.append((key, run))
            return key == OTHER.key

        WarmSandboxes(pool).sweep(lives_in)
        assert sorted(calls) == [("default/other", "run"), ("default/web", "run")]
        assert sorted(owners(pool)) == [("machine/default/other", "run"), ("web-7", "run")]


def test_names_of_machines_may_be_as_long_as_names_can_be(tmp_path: Path, toy: ToyPart) -> None:
    with opened(tmp_path, toy) as pool:
        WarmSandboxes(pool).give(replace(WEB, namespace="n" * 63, name="m" * 253), "f" * 36)
        assert len(pool.taken()) == 1


def test_a_node_without_setups_says_so() -> None:
    with raises(Denied, "PoolMissing", retryable=False, match="machine default/web requires a warm setup"):
        SandboxProvider().give(WEB, "run")


def test_a_setup_that_its_owner_changes_cannot_be_given_back(tmp_path: Path, toy: ToyPart) -> None:
    with opened(tmp_path, toy) as pool:
        name = pool.take("a").setup.id
        with pool._pool_state.changing(name), raises(Denied, "SetupBusy", retryable=True):
            pool.give_back(name, soon())
        pool.give_back(name, soon())


def test_a_setup_that_is_being_given_back_is_not_an_answer(tmp_path: Path, toy: ToyPart) -> None:
    answers: list[str] = []

    def ask_again(record: SetupRecord, due: Deadline) -> None:
        try:
            answers.append(pool.take("a", "request").setup.id)
        except Denied as error:
            answers.append(error.code)

    with opened(tmp_path, toy) as pool:
        name = pool.take("a", "request").setup.id
        pool._await_quiet = ask_again  # type: ignore[method-assign]
        pool.give_back(name, soon())
        assert answers == ["SetupBusy"]
        assert pool.take("a", "request").setup.id != name


def test_a_setup_made_for_a_machine_and_not_given_goes_to_no_other(tmp_path: Path) -> None:
    waits = ToyPart(name="machine")  # as the machine that is to wait in each setup
    folder = ToyPart(name="folder")
    config = WarmConfig(run=tmp_path / "run", namespaces=tmp_path / "netns")
    pool = Pool(config, BOOT, parts=[folder, waits], cpus=lambda: next(hosts))
    hosts = iter([host({0: "0-1"})] * 2)
    pool.open()

    def others_were_faster(setup: Setup) -> None:
        for cpu in (0, 1):  # while it is made
            record = replace(SetupRecord(f"x{cpu}", "taken", BOOT), cpus=(cpu,))
            pool._pool_state.taken[record.id] = record

    folder.making = others_were_faster
    pool.config = replace(config, vcpus_per_cpu=1)
    with pytest.raises(NotEnoughSetups, match="not enough free CPUs"):
        pool.take("machine/default/web", "run", vcpus=1, bare=True)
    assert (pool.status().ready, pool.status().removing, waits.there) == (0, 1, [])
    pool._pool_state.taken.clear()
    pool.look()
    assert (folder.there, pool.status().total) == ([], 0)
    pool.close(soon())


def test_what_waits_is_adopted_by_who_has_taken_it_also_through_a_link(tmp_path: Path) -> None:
    config = WarmConfig(run=tmp_path / "run", namespaces=tmp_path / "netns")
    pool = Pool(config, BOOT, parts=[ToyPart(name="machine")])
    pool.open()
    pool.fill(1)
    homes = WarmSandboxes(pool)
    waits = pool._builder.setup_of(pool._pool_state.ready[0]).qmp
    assert waits is not None
    (tmp_path / "link").symlink_to(waits)
    for socket in (waits, tmp_path / "link"):
        with raises(Denied, "SetupNotTaken"):
            homes.check_lent(replace(WEB, adopt=str(socket)))
    homes.check_lent(replace(WEB, adopt=str(tmp_path / "somebody.qmp")))
    pool.take("platform")
    for socket in (waits, tmp_path / "link"):
        homes.check_lent(replace(WEB, adopt=str(socket)))
    pool.close(soon())


def test_setups_and_machines_that_have_cpus_for_themselves_never_share_one(tmp_path: Path) -> None:
    on, own = host({0: "0-1"}), {0: "default/own"}
    pool = Pool(WarmConfig(run=tmp_path / "run", namespaces=tmp_path / "netns"), BOOT, parts=[ToyPart()],
                cpus=lambda: on, exclusive=lambda: own)  # fmt: skip
    pool.open()
    homes = WarmSandboxes(pool)
    pinned = replace(WEB, pinned=True, cpus=AmountBounds(CPU, CPU, CPU))
    assert homes.give(pinned, "run").cpus == (1,)
    with (
        homes.choosing_cpus() as in_setups,
        pytest.raises(Denied, match="is to run on CPUs of its own"),
    ):
        free_cpus(pinned, on, in_setups, own)
    with homes.choosing_cpus() as in_setups:
        assert free_cpus(pinned, on, in_setups, {}) == [0]
    with pytest.raises(NotEnoughSetups, match="not enough free CPUs for 2 vCPUs; available: 1 on node 0"):
        homes.give(replace(pinned, name="two", cpus=AmountBounds(CPU, 2 * CPU, CPU)), "run")
    pool.close(soon())


def test_a_machine_that_gets_no_cpus_of_its_own_names_who_has_them(tmp_path: Path) -> None:
    on = host({0: "0-2", 1: "3"})
    pool = Pool(WarmConfig(run=tmp_path / "run", namespaces=tmp_path / "netns"), BOOT, parts=[ToyPart()],
                cpus=lambda: on)  # fmt: skip
    pool.open()
    homes = WarmSandboxes(pool)
    setup = pool.take("web-7", vcpus=2, node=0).setup.id
    pinned = replace(WEB, name="big", pinned=True, cpus=AmountBounds(2 * CPU, 2 * CPU, 2 * CPU))

    def refusal(machines: Mapping[int, str], *, node: int | None = 0) -> str:
        with homes.choosing_cpus() as in_setups, pytest.raises(NotEnoughCpus) as refused:
            free_cpus(replace(pinned, numa_node=node), on, in_setups, machines)
        return refused.value.message

    begin = "machine default/big is to run on CPUs of its own: not enough free CPUs for 2 vCPUs; available: "
    end = "or start machine default/big without start.pinned"
    wait, stop_one = "wait until CPUs are free", "stop one of your machines"
    assert refusal({}) == f"{begin}1 on node 0; CPUs are in use by 1 setup of other owners; {wait}, {end}"
    assert refusal({2: "default/a", 3: "other/b"}, node=None) == (
        f"{begin}none; CPUs are in use by machine default/a, 1 machine of other namespaces, 1 setup of other owners; "
        f"stop this machine, {end}"
    )
    assert refusal({1: "other/b", 2: "other/c"}) == (
        f"{begin}none; CPUs are in use by 2 machines of other namespaces, 1 setup of other owners; {wait}, {end}"
    )
    message = refusal({1: "default/a", 2: "default/b"})
    assert message.endswith(f"machine default/a, machine default/b, 1 setup of other owners; {stop_one}, {end}")
    assert setup not in message, "a tenant cannot return it"
    assert "other/b" not in refusal({2: "default/a", 3: "other/b"}), "it has none of node 0"
    pool.give_back(setup, soon())
    homes.give(replace(WEB, pinned=True, cpus=AmountBounds(CPU, 2 * CPU, CPU), numa_node=0), "run")
    assert refusal({}) == f"{begin}1 on node 0; CPUs are in use by machine {WEB.key}; stop this machine, {end}"
    pool.close(soon())


class FakeQemu:
    """A QEMU that says which threads its vCPUs are."""

    def __init__(self, threads: dict[int, int]) -> None:
        self.threads = threads

    def execute(self, command: str, *_: Any, **__: Any) -> Any:
        assert command == "query-cpus-fast"
        return [{"props": {"core-id": slot}, "thread-id": thread} for slot, thread in self.threads.items()]


@pytest.mark.parametrize("threads", [{0: 1}, {1: 0}, {-1: 0}, {0: 1 << 40}])
def test_a_qemu_that_was_taken_over_has_no_thread_of_others_bound(threads: dict[int, int]) -> None:
    """Slot and thread; 0 stands for one of this process."""
    cpu, own = max(os.sched_getaffinity(0)), threading.get_native_id()
    monitor: Any = FakeQemu({slot: thread or own for slot, thread in threads.items()})
    before = os.sched_getaffinity(own), os.sched_getaffinity(1)
    with suppress(NodeError, ValueError):  # the latter becomes one where the monitor is lent
        pin_vcpus(monitor, "m", Process(os.getpid(), 0), {(0, 0): [cpu]}, soon())
    assert (os.sched_getaffinity(own), os.sched_getaffinity(1)) == before


def test_a_vcpu_whose_cpu_has_gone_offline_shares_the_others() -> None:
    before = os.sched_getaffinity(0)
    monitor: Any = FakeQemu({0: threading.get_native_id()})
    pin_vcpus(monitor, "m", Process(os.getpid(), 0), {(0, 0): [1023]}, soon())
    assert os.sched_getaffinity(0) == before
