"""Warm setups with a real QEMU waiting in each."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from devalloc_machines.qemu.machine_files import process_of
from devalloc_machines.qemu.process import process
from devalloc_machines.qemu.qmp import QmpMonitor
from devalloc_machines.warm import network
from devalloc_machines.warm.pool import Pool, PoolBackground
from devalloc_machines.warm.setup import Setup
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied
from tests.support import warm_bed
from tests.support.deadlines import soon
from tests.support.images import Image
from tests.support.machines import config as machine_config
from tests.support.machines import virtual_machine
from tests.support.node_errors import raises
from tests.support.warm_bed import Snapshot, in_a_bed, snapshot

pytestmark = [warm_bed.needs_root, warm_bed.needs_host_processes]

USERS = range(71000, 71010)
PREFIX = f"t{os.getpid()}"
"""What only the setups of this run of the tests begin with."""
ROUNDS = int(os.environ.get("DEVALLOC_WARM_ROUNDS", "0"))
"""More kills, at moments that are drawn."""


def opened(image: Image, **more: Any) -> Pool:
    small = virtual_machine("any", image, memory={"min": "64Mi", "max": "128Mi"}, pciSlots=2)
    machines = machine_config(image, Path("/none"), users=None)
    return warm_bed.opened(machine=small, machines=machines, users=USERS, workers=2, prefix=PREFIX, **more)


def there_is() -> tuple[Snapshot, set[Path], list[str]]:
    """On this host, of a pool and its machines: also cgroups and processes, which are not of the bed alone."""
    machines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended meanwhile
            if f"guest={PREFIX}-".encode() in (line := path.read_bytes()):
                machines.append(line.decode(errors="replace"))
    # Not those below all others: cgroups come and go beside this.
    places = (Path("/sys/fs/cgroup").glob(f"{above}devalloc/{PREFIX}-*") for above in ("", "*/"))
    return snapshot(), {group for paths in places for group in paths}, machines


def in_a_bed_that_had_one(image: Image, body: Callable[[], None]) -> None:
    def there() -> None:
        pool = opened(image)
        pool.fill(1)
        pool.close(soon())
        body()

    try:
        in_a_bed(there)
    finally:  # of a test that failed: machines outlive their bed
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                if f"guest={PREFIX}-".encode() in path.read_bytes():
                    os.kill(int(path.parent.name), signal.SIGKILL)


def qemu(pool: Pool, setup: Setup) -> int:
    """Its process."""
    assert setup.qmp is not None
    process = process_of(setup.qmp.parent.name, pool.config.paused)
    assert process is not None
    return process.pid


def query(setup: Setup, command: str) -> Any:
    line = QmpMonitor(setup.id, str(setup.qmp))
    try:
        return line.execute(command, deadline=soon())
    finally:
        line.close()


def test_a_machine_waits_in_its_setup_and_runs_when_its_owner_says_so(open_image: Image) -> None:
    def body() -> None:
        before = there_is()
        pool = opened(open_image)
        pool.fill(2)
        first, second = pool.take("a").setup, pool.take("b").setup
        pids = [qemu(pool, setup) for setup in (first, second)]
        for pid, setup in zip(pids, (first, second), strict=True):
            assert os.stat(f"/proc/{pid}/ns/net").st_ino == setup.inode[1]  # type: ignore[index]
            assert network.is_tap_used(setup.namespace, setup.tap)
            assert query(setup, "query-status")["status"] == "prelaunch"
            assert setup.mac.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
            assert f"\nUid:\t{setup.user}\t{setup.user}\t" in Path(f"/proc/{pid}/status").read_text()
        assert len({first.user, second.user}) == 2
        assert {first.user, second.user} <= {*USERS}

        query(first, "cont")
        assert query(first, "query-status")["status"] == "running"
        with raises(Denied, "SetupInUse", match=rf"process {pids[0]} \("):
            pool.give_back(first.id, Deadline.after(0))
        query(first, "quit")
        pool.give_back(first.id, soon())

        pool.give_back(second.id, soon())  # which has never run, and ends with its setup
        assert [process(pid) for pid in pids] == [None, None]
        pool.close(soon())
        assert there_is() == before

    in_a_bed_that_had_one(open_image, body)


def test_a_forgotten_machine_that_never_ran_ends_and_one_that_runs_does_not(open_image: Image) -> None:
    def body() -> None:
        now = [0.0]
        pool = opened(open_image, lease_seconds=10.0)
        keeper = PoolBackground(pool, clock=lambda: now[0])
        pool.fill(2)
        forgotten, used = pool.take("a").setup, pool.take("b").setup
        query(used, "cont")
        for now[0] in (0.0, 11.0, 12.0, 30.0):
            keeper.take_back_forgotten()
        assert [taken.setup for taken in pool.status().taken] == [used]
        assert query(used, "query-status")["status"] == "running"
        assert not forgotten.folder.exists()
        query(used, "quit")
        pool.give_back(used.id, soon())
        pool.close(soon())

    in_a_bed_that_had_one(open_image, body)


def test_a_machine_that_ended_while_it_waited_is_not_given_out(open_image: Image) -> None:
    def body() -> None:
        before = there_is()
        pool = opened(open_image)
        pool.fill(2)
        (oldest, _) = pool._pool_state.ready
        os.kill(pool._builder.process_of(oldest) or 0, signal.SIGKILL)
        while pool._builder.lives(oldest):
            time.sleep(0.01)
        setup = pool.take("a").setup
        assert setup.id != oldest.id
        assert query(setup, "query-status")["status"] == "prelaunch"
        pool.give_back(setup.id, soon())
        pool.close(soon())
        assert there_is() == before

    in_a_bed_that_had_one(open_image, body)


def test_machines_that_wait_no_more_by_the_next_plugins_config_are_ended_too(open_image: Image) -> None:
    def body() -> None:
        before = there_is()
        child = os.fork()
        if not child:
            try:
                pool = opened(open_image)
                pool.fill(2)
                pool.take("a")
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert len(there_is()[2]) == 2
        pool = warm_bed.opened_after_a_kill(lambda: warm_bed.opened(prefix=PREFIX))
        assert pool.status().ready == 0
        (taken,) = pool.status().taken
        assert query(taken.setup, "query-status")["status"] == "prelaunch"
        assert len(there_is()[2]) == 1
        pool.give_back(taken.setup.id, soon())
        pool.close(soon())
        assert there_is() == before

    in_a_bed_that_had_one(open_image, body)


def test_kill_9_at_any_moment_leaves_only_machines_with_an_owner(open_image: Image) -> None:
    def body() -> None:
        before = there_is()
        draw = random.Random(7)
        for moment in (0.15, 0.45, 0.9, *(draw.uniform(0.0, 1.0) for _ in range(ROUNDS))):
            child = os.fork()
            if not child:
                try:
                    pool = opened(open_image, target=3)
                    taken = pool.take("owner").setup if moment > 0.4 else None
                    if taken is not None:
                        query(taken, "cont")
                    pool.fill(2)
                    time.sleep(60)
                finally:
                    os._exit(1)
            time.sleep(moment)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)

            pool = warm_bed.opened_after_a_kill(lambda: opened(open_image))
            for taken in pool.status().taken:
                if query(taken.setup, "query-status")["status"] == "running":
                    query(taken.setup, "quit")
                pool.give_back(taken.setup.id, soon())
            assert pool.close(soon()).total == 0
            assert there_is() == before

    in_a_bed_that_had_one(open_image, body)


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"claims": ["gpu"], "pciSlots": 2}, "it has claims"),
        ({"nics": [{"backend": "tap", "interface": "tap7"}]}, "a TAP interface of the host"),
        (
            {"start": {"kernel": "/none", "disks": [{"path": "/disk", "format": "raw"}]}},
            "a disk that is not read-only",
        ),
    ],
)
def test_what_many_machines_cannot_share_is_refused(spec: dict[str, Any], why: str) -> None:
    machine = virtual_machine("m", **spec)
    with raises(Denied, "WarmMachineInvalid", match=why):
        Pool(warm_bed.config(machine=machine), warm_bed.BOOT)
