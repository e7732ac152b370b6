"""Claims and machines together, by many at once."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

from devalloc_node.deadline import Deadline
from devalloc_node.errors import Failed, NodeError
from tests.support.node_errors import raises
from tests.support.node_service import platform_of, toy_bench
from tests.support.toy_machines import ToyMachines, machine_of, vm

THREADS, STEPS = 64, 6
MACHINES = [f"m{number}" for number in range(4)]


def test_64_at_once_never_have_a_device_in_two_machines_and_never_wait_for_each_other_for_ever(tmp_path: Path) -> None:
    machines = ToyMachines(slots=64)
    bench = toy_bench(tmp_path, machines)
    operations = platform_of(bench, machines)
    for machine in MACHINES:
        operations.create(machine_of(vm(machine)), (), Deadline.after(30))
    # Overlapping claims: each device is wanted by three of them.
    refs = [bench.add(f"{card}/slot-{slot}") for card in "ab" for slot in range(4) for _ in range(3)]
    doubles: list[str] = []
    bugs: list[BaseException] = []

    def look() -> None:
        with machines.mutex:
            inside = [value["device"] for value in machines.devices.values()]
        doubles.extend(device for device in set(inside) if inside.count(device) > 1)

    def work(number: int) -> None:
        draw = random.Random(number)
        for _ in range(STEPS):
            ref, key, due = draw.choice(refs), f"default/{draw.choice(MACHINES)}", Deadline.after(30)
            try:
                match draw.randrange(4):
                    case 0 | 1:
                        operations.attach(ref, key, due)
                    case 2:
                        operations.detach(ref, key, due)
                    case _:
                        operations.claims.unprepare(ref, due)
            except NodeError as error:
                if error.code in ("SharedBusy", "ClaimBusy") or (isinstance(error, Failed) and not error.retryable):
                    bugs.append(error)
            except BaseException as error:
                bugs.append(error)
            look()

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not [thread for thread in threads if thread.is_alive()]
    assert (bugs, doubles) == ([], [])
    plugs = [plug for held in operations.claims.held() for plug in held.plugs]
    assert sorted(plug.step.target for plug in plugs) == sorted(machines.devices)
    for machine in MACHINES:
        operations.delete(f"default/{machine}", None, Deadline.after(30))
    for ref in refs:
        operations.claims.unprepare(ref, Deadline.after(30))
    assert bench.is_initial()
    assert (machines.views, machines.devices) == ({}, {})


def test_a_guest_that_does_not_power_down_leaves_time_to_give_its_devices_back(tmp_path: Path) -> None:
    """A forced deletion ended such a machine at the very end of its time, had none for the rest, and said "busy"."""

    class Slow(ToyMachines):
        def stop(self, key: str, seconds: float | None, force: bool, deadline: Deadline) -> None:
            time.sleep(deadline.seconds)
            super().stop(key, seconds, force, deadline)

        def forget(self, key: str, deadline: Deadline) -> None:
            if deadline.passed:  # who notes that it ended has its lock just then
                raise Failed("MachineBusy", f"another change of machine {key} is under way")
            super().forget(key, deadline)

    machines = Slow()
    bench = toy_bench(tmp_path, machines)
    operations = platform_of(bench, machines)
    operations.create(machine_of(vm("web")), [bench.add("a/slot-0")], Deadline.after(30))
    assert operations.delete("default/web", None, Deadline.after(2), force=True)
    assert bench.is_initial()


def test_what_has_no_time_left_when_its_turn_comes_is_not_begun(tmp_path: Path) -> None:
    machines = ToyMachines()
    bench = toy_bench(tmp_path, machines)
    operations = platform_of(bench, machines)
    operations.create(machine_of(vm("web")), (), Deadline.after(30))
    ref, late = bench.add("a/slot-0"), Deadline.after(0)
    for change in (
        lambda: operations.attach(ref, "default/web", late),
        lambda: operations.stop("default/web", None, late, force=True),
        lambda: operations.delete("default/web", None, late, force=True),
    ):
        with raises(Failed, "DeadlineExceeded", retryable=True):
            change()
    assert operations.machine("default/web").runs
    assert operations.claims.held() == []
