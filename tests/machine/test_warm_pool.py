"""The pool of warm setups on a real kernel: what it makes, and that nothing of it is left, whatever happens to it."""

from __future__ import annotations

import ctypes
import os
import random
import resource
import signal
import socket
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyroute2 import IPRoute, netns

from devalloc_machines.qemu.spawn import open_tap
from devalloc_machines.qemu.spec import AmountBounds, MachineSpec, Nic
from devalloc_machines.warm import network
from devalloc_machines.warm.pool import PoolBackground, WarmSandboxes
from devalloc_machines.warm.setup import Setup, SetupNotTaken
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, NodeError
from tests.support import warm_bed
from tests.support.deadlines import soon
from tests.support.fault_gates import HOWS, KILLS, FaultGate
from tests.support.node_errors import raises
from tests.support.warm_bed import NAMESPACES, RUN, forked, in_a_bed, opened, opened_after_a_kill, snapshot

pytestmark = warm_bed.needs_root

_FIXED = AmountBounds(1000, 1000, 1000)
WEB = MachineSpec("default", "web", "uid", _FIXED, _FIXED, nics=(Nic(warm=True),))


_UP = 1
"""IFF_UP"""
_TAP = 2
"""IFF_TAP"""


def links(setup: Setup) -> dict[str, Any]:
    """The interfaces in the namespace of a setup, by name, as the kernel describes them."""
    with IPRoute(netns=str(setup.namespace)) as kernel:
        return {link.get("ifname"): link for link in kernel.get_links()}


def addresses(setup: Setup) -> set[str]:
    """The addresses of the interfaces in the namespace of a setup."""
    with IPRoute(netns=str(setup.namespace)) as kernel:
        return {address.get("address") for address in kernel.get_addr()}


def give_address(setup: Setup, address: str) -> None:
    """Give the TAP of a setup an address."""
    with IPRoute(netns=str(setup.namespace)) as kernel:
        (index,) = kernel.link_lookup(ifname=setup.tap)
        kernel.addr("add", index=index, address=address, prefixlen=24)


def test_a_setup_is_a_namespace_with_a_tap_that_is_up_and_a_private_folder() -> None:
    def body() -> None:
        pool = opened(users=range(1234, 1240))
        setup = pool.take("a").setup
        there = links(setup)
        assert set(there) == {"lo", setup.tap}
        assert all(link["flags"] & _UP for link in there.values())
        assert there[setup.tap].get_nested("IFLA_LINKINFO", "IFLA_INFO_KIND") == "tun"
        tap = dict(there[setup.tap].get_nested("IFLA_LINKINFO", "IFLA_INFO_DATA")["attrs"])
        assert (tap["IFLA_TUN_TYPE"], tap["IFLA_TUN_OWNER"]) == (_TAP, 1234)
        assert setup.folder.stat().st_mode & 0o7777 == 0o700
        assert setup.folder.stat().st_uid == 1234
        assert setup.id in netns.listnetns()  # as `ip netns` lists them
        assert {name for _, name in socket.if_nameindex()} == {"lo"}, "this process stays where it is"
        other = pool.take("b").setup
        assert (other.id, other.mac, other.folder, other.inode) != (setup.id, setup.mac, setup.folder, setup.inode)

    in_a_bed(body)


def test_what_a_setup_was_used_for_is_gone_with_it_and_its_id_never_comes_back() -> None:
    def body() -> None:
        before = snapshot()
        pool = opened()
        ids = set()
        for _ in range(3):
            setup = pool.take("a").setup
            assert setup.id not in ids
            assert list(setup.folder.iterdir()) == []
            assert "10.1.1.1" not in addresses(setup)
            ids.add(setup.id)
            give_address(setup, "10.1.1.1")
            assert "10.1.1.1" in addresses(setup)
            (setup.folder / "deep").mkdir()
            (setup.folder / "deep" / "log").write_text("secret")
            (setup.folder / "out").symlink_to("/run/devalloc")
            pool.give_back(setup.id, soon())
            assert not setup.folder.exists()
            assert not setup.namespace.exists()
            with pytest.raises(SetupNotTaken):
                pool.give_back(setup.id, soon())
        pool.close(soon())
        assert snapshot() == before

    in_a_bed(body)


def test_a_setup_is_not_taken_back_while_a_process_uses_it() -> None:
    def body() -> None:
        before = snapshot()
        pool = opened()
        setup = pool.take("a").setup
        lodger = subprocess.Popen(["nsenter", f"--net={setup.namespace}", "sleep", "60"])
        while Path(f"/proc/{lodger.pid}/comm").read_text() != "sleep\n":
            time.sleep(0.001)
        with raises(Denied, "SetupInUse", match=rf"process {lodger.pid} \(sleep\)") as refused:
            pool.give_back(setup.id, Deadline.after(0))
        assert refused.value.retryable
        PoolBackground(pool).take_back_forgotten()
        assert [taken.setup for taken in pool.status().taken] == [setup]
        threading.Timer(0.1, lodger.kill).start()
        threading.Thread(target=lodger.wait).start()
        pool.give_back(setup.id, soon())

        tapped = pool.take("b").setup
        descriptor = network._inside(tapped.namespace, lambda: open_tap(tapped.tap))
        with pytest.raises(Denied, match="a process in another namespace that has tap0 open"):
            pool.give_back(tapped.id, Deadline.after(0))
        os.close(descriptor)
        pool.give_back(tapped.id, soon())
        pool.close(soon())
        assert snapshot() == before

    in_a_bed(body)


def test_what_its_owner_has_forgotten_is_taken_back_when_its_lease_is_over() -> None:
    def body() -> None:
        before = snapshot()
        now = [0.0]
        pool = opened(lease_seconds=100.0)
        keeper = PoolBackground(pool, clock=lambda: now[0])
        pool.take("a")
        keeper.take_back_forgotten()
        now[0] = 99.0
        keeper.take_back_forgotten()
        assert len(pool.status().taken) == 1
        now[0] = 100.0
        keeper.take_back_forgotten()
        assert pool.status().total == 0
        pool.close(soon())
        assert snapshot() == before

    in_a_bed(body)


def test_objects_of_others_stay_even_with_a_name_of_the_pool() -> None:
    def body() -> None:
        network.make_namespace(NAMESPACES / "warm-somebody")
        (NAMESPACES / "warm-plain").touch()
        (RUN / "setups" / "warm-somebody").mkdir()
        (RUN / "setups" / "warm-somebody" / "file").touch()
        before = snapshot()
        pool = opened()
        pool.fill(2)

        swapped = pool.take("a").setup  # whose namespace an admin replaces by another one of that name
        network.remove_namespace(swapped.namespace, None)
        network.make_namespace(swapped.namespace)
        pool.give_back(swapped.id, soon())
        assert network.namespace_inode(swapped.namespace) != swapped.inode
        network.remove_namespace(swapped.namespace, None)

        gone = pool.take("b").setup  # whose namespace an admin has removed
        network.remove_namespace(gone.namespace, None)
        pool.give_back(gone.id, soon())

        pool.close(soon())
        assert snapshot() == before

    in_a_bed(body)


def test_a_name_in_use_creates_nothing_and_removes_nothing() -> None:
    def body() -> None:
        def squat_namespace(name: str) -> str:
            network.make_namespace(NAMESPACES / name)
            return name

        def squat_folder(name: str) -> str:
            (RUN / "setups" / name).mkdir()
            (RUN / "setups" / name / "file").touch()
            return name

        from devalloc_machines.warm import builder

        chosen = builder.new_identifier
        for squat in (squat_namespace, squat_folder):
            builder.new_identifier = lambda prefix, squat=squat: squat(chosen(prefix))
            pool = opened()
            with raises(Failed, "SetupFailed", match="exists"):
                pool.take("a")
            assert pool.close(soon()).total == 0
            builder.new_identifier = chosen
        assert len(list(NAMESPACES.iterdir())) == 1
        assert [path.name for path in (RUN / "setups").rglob("*") if path.is_file()] == ["file"]
        assert list((RUN / "records").iterdir()) == []

    in_a_bed(body)


def test_a_pool_is_filled_in_the_background_and_empties_when_it_is_closed() -> None:
    def body() -> None:
        before = snapshot()
        pool = opened(target=6)
        stop = threading.Event()
        keeper = threading.Thread(target=PoolBackground(pool).keep, args=(stop,))
        keeper.start()
        for round_ in range(4):
            while pool.status().ready < 6:
                time.sleep(0.001)
            taken = [pool.take(f"owner {round_}") for _ in range(6)]
            for each in taken:
                pool.give_back(each.setup.id, soon())
        stop.set()
        pool.poke()
        keeper.join()
        pool.close(soon())
        assert snapshot() == before

    in_a_bed(body)


def test_two_plugins_never_have_the_same_pool() -> None:
    def body() -> None:
        pool = opened()

        def second() -> None:
            with raises(Denied, "PoolInUse") as refused:
                opened()
            assert f"process {os.getppid()}" in str(refused.value)

        assert forked(second) is None
        pool.close(soon())
        opened().close(soon())

    in_a_bed(body)


def test_a_record_that_does_not_fit_on_the_disk_is_not_written_in_part() -> None:
    def body() -> None:
        pool = opened()
        pool.fill(4)
        libc = ctypes.CDLL(None, use_errno=True)
        records = {path.name: path.read_bytes() for path in (RUN / "records").iterdir()}
        assert libc.mount(b"none", str(RUN / "records").encode(), b"tmpfs", 0, b"size=40k") == 0
        for name, text in records.items():
            (RUN / "records" / name).write_bytes(text)
        page = os.sysconf("SC_PAGESIZE")
        room = os.statvfs(RUN / "records").f_bfree
        (RUN / "records" / ".full").write_bytes(b"x" * page * room)
        with raises(Failed, "RecordsUnavailable", match="No space left on device"):
            pool.take("\N{PILE OF POO}" * 400, "\N{PILE OF POO}" * 10)
        assert {path.name: path.read_bytes() for path in (RUN / "records").glob("w*")} == records
        os.truncate(RUN / "records" / ".full", page * (room - 1))
        assert [taken.owner for taken in [pool.take("short"), *pool.status().taken]] == ["short"] * 2
        pool.close(soon())

    in_a_bed(body)


def test_setups_can_be_returned_on_a_full_disk() -> None:
    def body() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mount(b"none", b"/run/devalloc", b"tmpfs", 0, b"size=1m") == 0
        pool = opened()
        for _ in range(2):
            pool.look()
            setup = pool.take("a").setup
            with suppress(OSError), (setup.folder / "log").open("wb", buffering=0) as log:
                while log.write(bytes(4096)):
                    pass
            assert os.statvfs(RUN).f_bfree == 0
            with pytest.raises(Failed, match="No space left on device"):
                pool.take("b")
            pool.give_back(setup.id, soon())
            assert pool.status().total == 0
        pool.close(soon())

    in_a_bed(body)


@pytest.mark.parametrize("hidden", ["/run/devalloc", "/run/netns"])
def test_while_another_file_system_hides_its_folders_nothing_is_given_back_and_then_nothing_lost(hidden: str) -> None:
    def body() -> None:
        before = snapshot()
        pool = opened(on_demand=False)
        pool.fill(2)
        first = pool.take("a")
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mount(b"none", hidden.encode(), b"tmpfs", 0, None) == 0
        with pytest.raises(NodeError):
            pool.take("b")
        if hidden == "/run/devalloc":
            with pytest.raises(Failed, match="cannot store records of warm setups"):
                pool.give_back(first.setup.id, soon())
        pool.look()
        assert libc.umount(hidden.encode()) == 0
        pool.look()
        assert [taken.setup for taken in pool.taken()] == [first.setup]
        assert (pool.status().making, pool.status().removing) == (0, 0)
        pool.give_back(first.setup.id, soon())
        pool.fill(1)
        pool.give_back(pool.take("b").setup.id, soon())
        pool.close(soon())
        assert snapshot() == before

    in_a_bed(body)


def test_a_setup_whose_processes_cannot_be_seen_is_in_use() -> None:
    def body() -> None:
        pool = opened()
        lived_in, tapped, free = (pool.take(owner).setup for owner in "abc")
        lodger = subprocess.Popen(["nsenter", f"--net={lived_in.namespace}", "sleep", "60"])
        while Path(f"/proc/{lodger.pid}/comm").read_text() != "sleep\n":
            time.sleep(0.001)
        descriptor = network._inside(tapped.namespace, lambda: open_tap(tapped.tap))
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        for spare in range(4):  # descriptors that can be had: for /proc, and then not for what stands in it
            resource.setrlimit(resource.RLIMIT_NOFILE, (descriptor + 1 + spare, limits[1]))
            for setup in (lived_in, tapped):
                with pytest.raises(NodeError) as refused:
                    pool.give_back(setup.id, Deadline.after(0))
                assert refused.value.code in ("ProcessesUnseen", "SetupInUse", "RecordsUnavailable")
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert {taken.setup.id for taken in pool.status().taken} == {lived_in.id, tapped.id, free.id}
        assert tapped.tap in links(tapped)
        os.close(descriptor)
        lodger.kill()
        lodger.wait()
        for setup in (lived_in, tapped, free):
            pool.give_back(setup.id, soon())
        assert pool.close(soon()).total == 0

    in_a_bed(body)


ROUNDS = int(os.environ.get("DEVALLOC_WARM_ROUNDS", "4"))
"""Kills at moments that are drawn."""
STRIDE = int(os.environ.get("DEVALLOC_WARM_STRIDE", "13"))
"""Every so manieth of all points is tried (`make faults`: each). All ways to fail get their turn, for there are 5."""


def test_kill_9_at_any_moment_of_filling_leaves_nothing_and_forgets_no_owner() -> None:
    """100 are filled, taken and given back, and kill -9 comes at a moment drawn anew each time."""

    def body() -> None:
        draw = random.Random(6)
        before = snapshot()
        moments = [0.0] + [draw.uniform(0.0, 0.6) for _ in range(ROUNDS)]
        for moment in moments:
            reader, writer = os.pipe()
            child = os.fork()
            if not child:
                work_until_killed(writer)
            os.close(writer)
            time.sleep(moment)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            with os.fdopen(reader) as pipe:
                events = [line.split() for line in pipe.read().splitlines()]
            taken = {name for what, name in events if what == "taken"}
            asked_back = {name for what, name in events if what == "returning"}

            pool = opened_after_a_kill()
            still = {each.setup.id: each.setup for each in pool.status().taken}
            assert taken - asked_back <= still.keys(), "what was told to be taken stays so"
            for setup in still.values():
                assert network.namespace_inode(setup.namespace) == setup.inode
                assert setup.folder.is_dir()
                pool.give_back(setup.id, soon())
            assert pool.close(soon()).total == 0
            assert snapshot() == before

    in_a_bed(body)


def work_until_killed(writer: int) -> None:
    """Of the process that is killed. Complete lines show what was done."""
    try:
        pool = opened(target=100, workers=8)
        threading.Thread(target=pool.fill, args=(100,)).start()
        while True:
            time.sleep(0.002)
            with suppress(NodeError):
                name = pool.take("somebody").setup.id
                os.write(writer, f"taken {name}\n".encode())
                if int(name[-1], 16) % 2:
                    os.write(writer, f"returning {name}\n".encode())
                    pool.give_back(name, soon())
    finally:
        os._exit(1)


def one_life() -> None:
    """All that a pool does, once: each call of it that changes something is a point at which it is disturbed."""
    pool = opened(workers=1)
    with suppress(NodeError):
        pool.fill(1)
    with suppress(NodeError):
        taken = pool.take("a", "first")
        with suppress(NodeError):
            pool.give_back(taken.setup.id, soon())
    with suppress(NodeError):
        pool.take("b")
    with suppress(NodeError):
        pool.fill(1)
    pool.close(soon())


def test_whichever_call_fails_or_is_the_last_a_later_run_leaves_nothing() -> None:
    def body() -> None:
        before = snapshot()
        calls: list[str] = []

        def undisturbed() -> None:
            gate = FaultGate()
            warm_bed.gate_all(gate)
            one_life()
            (RUN / "calls").write_text("\n".join(gate.calls))

        assert forked(undisturbed) is None
        calls = (RUN / "calls").read_text().splitlines()
        (RUN / "calls").unlink()
        assert {"make namespace", "make tap", "make folder", "remove tap", "put record taken"} <= set(calls)
        settle(before)
        points = [(number, call, how) for number, call in enumerate(calls, 1) for how in HOWS]
        for number, call, how in points[::STRIDE]:

            def disturbed(number: int = number, how: str = how) -> None:
                warm_bed.gate_all(FaultGate(number, how))
                one_life()

            assert forked(disturbed) == ("killed" if how in KILLS else None), (number, call, how)
            try:
                settle(before)
            except AssertionError as error:
                raise AssertionError(f"call {number} ({call}), {how}: {error}") from error

    in_a_bed(body)


def machines_come_and_go() -> None:
    """What homes of machines of the node go through: a start that is repeated, the next run, and its end."""
    pool = opened(workers=1)
    homes = WarmSandboxes(pool)
    for run in ("run-1", "run-1", "run-2"):
        with suppress(NodeError):
            homes.give(WEB, run)
    homes.take_back(WEB.key)
    with suppress(NodeError):
        homes.give(WEB, "run-3")
    pool.close(soon())


def test_whichever_call_for_a_machine_fails_or_is_the_last_its_home_is_swept() -> None:
    def body() -> None:
        before = snapshot()

        def undisturbed() -> None:
            gate = FaultGate()
            warm_bed.gate_all(gate)
            machines_come_and_go()
            (RUN / "calls").write_text("\n".join(gate.calls))

        def next_run(run: str) -> list[str]:
            """As if only this run of the machine lived."""
            pool = opened()
            WarmSandboxes(pool).sweep(lambda key, request: (key, request) == (WEB.key, run))
            left = [taken.request for taken in pool.taken()]
            pool.close(soon())
            return left

        def check(when: str) -> None:
            def later() -> None:
                assert next_run("run-2") in ([], ["run-2"])
                assert next_run("none") == []

            assert (why := forked(later)) is None, f"{when}: {why}"
            assert snapshot() == before, when

        assert forked(undisturbed) is None
        calls = (RUN / "calls").read_text().splitlines()
        (RUN / "calls").unlink()
        check("undisturbed")
        points = [(number, call, how) for number, call in enumerate(calls, 1) for how in HOWS]
        for number, call, how in points[::STRIDE]:

            def disturbed(number: int = number, how: str = how) -> None:
                warm_bed.gate_all(FaultGate(number, how))
                machines_come_and_go()

            assert forked(disturbed) == ("killed" if how in KILLS else None), (number, call, how)
            check(f"call {number} ({call}), {how}")

    in_a_bed(body)


def settle(before: warm_bed.Snapshot) -> None:
    """The next run of the plugin: each owner gives its setup back, and then nothing is left."""

    def next_run() -> None:
        pool = opened()
        for taken in pool.status().taken:
            assert network.namespace_inode(taken.setup.namespace) == taken.setup.inode
            assert taken.owner in ("a", "b")
            pool.give_back(taken.setup.id, soon())
        assert pool.close(soon()).total == 0

    assert (why := forked(next_run)) is None, why
    assert snapshot() == before
