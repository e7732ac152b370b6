"""Machines made through the service come back by their policy, with their claims, and not in a circle."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from devalloc.api.virtual_machine import VirtualMachine
from devalloc_machines.qemu.records import MachineAmounts, State
from devalloc_machines.vms import RequestLoop
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied
from devalloc_node.operations.change_feed import ChangeNotifier, machine_change
from tests.support.node_service import platform_of, toy_bench
from tests.support.toy_machines import ToyMachines, machine_of, vm
from tests.support.vm_rounds import look_at_requests
from tests.support.waiting import until


def at_once(work: Callable[[], None]) -> None:
    work()


class World:
    def __init__(self, folder: Path) -> None:
        self.machines = ToyMachines()
        self.bench = toy_bench(folder, self.machines)
        self.operations = platform_of(self.bench, self.machines)
        self.now = 0.0
        self.requests = RequestLoop(self.operations, ChangeNotifier(), clock=lambda: self.now, spawn=at_once)

    def create(self, machine: VirtualMachine, *claims: str) -> None:
        refs = [self.operations.claims.named(_ref(name), prepared=False) for name in claims]
        self.operations.create(machine, refs, Deadline.after(10))

    def end(self, name: str = "web") -> None:
        self.machines.end(f"default/{name}")


def _ref(name: str):  # type: ignore[no-untyped-def]
    from devalloc_node.model.grant import ClaimRef

    return ClaimRef("default", name, "")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_it_comes_back_with_its_devices(world: World) -> None:
    world.bench.add("a/slot-0")
    world.create(machine_of(vm("web", "claim-uid-0")), "claim-uid-0")
    world.machines.end("default/web")
    assert world.machines.devices == {}
    world.now = 100
    look_at_requests(world.requests)
    assert world.machines.views["default/web"].runs
    assert len(world.machines.devices) == 1


def test_it_comes_back_with_what_was_attached_while_it_ran(world: World) -> None:
    world.create(machine_of(vm("web")))
    world.operations.attach(world.bench.add("a/slot-0"), "default/web", Deadline.after(10))
    world.machines.end("default/web")
    world.now = 100
    look_at_requests(world.requests)
    assert world.machines.views["default/web"].runs
    assert len(world.machines.devices) == 1


def test_what_was_taken_out_of_it_since_does_not_come_back(world: World) -> None:
    world.create(machine_of(vm("web")))
    ref = world.bench.add("a/slot-0")
    world.operations.attach(ref, "default/web", Deadline.after(10))
    for world.now, devices in ((100, 1), (500, 0)):
        world.end()
        look_at_requests(world.requests)
        assert world.machines.views["default/web"].runs
        assert len(world.machines.devices) == devices
        world.operations.detach(ref, "default/web", Deadline.after(10))
    assert world.bench.claims.prepared(), "it stays prepared for the next machine"


def test_it_comes_back_as_large_as_it_was_last_asked_to_be(world: World) -> None:
    machine = machine_of(vm("web"))
    world.create(machine)
    large = MachineAmounts(3000, 3, 2 << 30)
    for what, amount in (("vcpus", 3), ("cpu", 3000), ("memory", 2 << 30)):
        world.operations.scale("default/web", what, amount, Deadline.after(10))
    for world.now in (100, 500):
        world.machines.end("default/web")
        look_at_requests(world.requests)
        assert world.operations.machine("default/web").observed == large
    world.machines.end("default/web")
    world.create(machine)
    assert world.operations.machine("default/web").observed == MachineAmounts(2000, 2, 1 << 30), (
        "who creates it says how large"
    )


def test_there_is_time_to_lock_as_much_memory_as_it_comes_back_with(world: World) -> None:
    world.bench.add("a/slot-0")
    world.create(
        machine_of(vm("web", "claim-uid-0", memory={"min": "1Gi", "max": "64Gi", "use": "1Gi"})), "claim-uid-0"
    )
    world.operations.scale("default/web", "memory", 64 << 30, Deadline.after(10))
    world.machines.end("default/web")
    world.now = 100
    look_at_requests(world.requests)
    assert world.machines.given["default/web"] > 64


def test_what_was_attached_is_not_lost_by_a_start_that_failed(world: World) -> None:
    world.create(machine_of(vm("web")))
    world.operations.attach(world.bench.add("a/slot-0"), "default/web", Deadline.after(10))
    world.machines.end("default/web")
    world.machines.fail.add("start")
    look_at_requests(world.requests)
    world.machines.fail.clear()
    world.now = 100
    look_at_requests(world.requests)
    assert world.machines.views["default/web"].runs
    assert len(world.machines.devices) == 1


def test_a_machine_does_not_wait_for_what_was_attached_and_is_gone(world: World) -> None:
    world.create(machine_of(vm("web")))
    ref = world.bench.add("a/slot-0")
    world.operations.attach(ref, "default/web", Deadline.after(10))
    world.machines.end("default/web")
    world.machines.fail.add("start")
    look_at_requests(world.requests)
    world.machines.fail.clear()
    del world.bench.grants.grants[ref.uid]
    for world.now in (100, 500):
        look_at_requests(world.requests)
    assert world.machines.views["default/web"].runs
    assert world.machines.devices == {}


def test_one_whose_start_was_cut_off_is_started_to_its_end(world: World) -> None:
    machine = machine_of(vm("web"))
    world.machines.start(machine, Deadline.after(10))  # and then the plugin was killed
    look_at_requests(world.requests)
    there = world.machines.views["default/web"]
    assert there.state is State.RUNNING


def test_one_that_hangs_or_is_beyond_understanding_holds_up_no_other(world: World) -> None:
    for name in ("a", "b", "web"):
        world.create(machine_of(vm(name)))
        world.machines.end(f"default/{name}")
    over, start = threading.Event(), world.machines.start

    def slow(machine: VirtualMachine, deadline: Deadline, **more: bool) -> None:
        if machine.metadata.name == "a":
            over.wait(60)  # for its image
        if machine.metadata.name == "b":
            raise ZeroDivisionError
        start(machine, deadline)

    world.machines.start = slow  # type: ignore[method-assign]
    look_at_requests(RequestLoop(world.operations, ChangeNotifier(), clock=lambda: 100.0))
    until(lambda: world.machines.views["default/web"].runs, "the last one is back")
    assert not world.machines.views["default/a"].runs
    over.set()
    until(lambda: world.machines.views["default/a"].runs, "and so is the first one")


def test_a_machine_that_another_caller_changes_is_left_alone_in_silence(world: World) -> None:
    """Else each try has devices looked at and published anew, and calls for the next try, while a machine starts."""
    notifier, beats = ChangeNotifier(), 0
    operations = platform_of(world.bench, world.machines, notifier)
    operations.create(machine_of(vm("web")), (), Deadline.after(10))
    world.machines.end("default/web")
    requests = RequestLoop(operations, notifier, clock=lambda: world.now, spawn=at_once)
    with operations.claims.exclusive("machine/default/web", Deadline.after(10), "start"):
        beats = notifier.count
        look_at_requests(requests)
        assert notifier.count == beats
    world.now = 20
    look_at_requests(requests)
    assert world.machines.views["default/web"].runs
    assert notifier.count > beats


def test_a_change_has_the_machine_looked_at_unless_it_is_that_of_an_object(world: World) -> None:
    notifier, began = ChangeNotifier(), list[Callable[[], None]]()
    world.create(machine_of(vm("web")))
    world.create(machine_of(vm("db", uid="of-an-object")))
    requests = RequestLoop(world.operations, notifier, clock=lambda: 100.0, spawn=began.append)
    for name in ("web", "db"):
        world.end(name)
        notifier.beat(machine_change(f"default/{name}"))
    requests.worker.round()
    (work,) = began
    work()
    assert world.machines.views["default/web"].runs
    assert not world.machines.views["default/db"].runs


def test_one_gets_the_time_to_lock_its_memory_also_for_what_was_attached_while_it_ran(world: World) -> None:
    world.create(machine_of(vm("web", memory={"min": "1Gi", "max": "600Gi", "use": "600Gi"})))
    world.operations.attach(world.bench.add("a/slot-0"), "default/web", Deadline.after(10))
    world.machines.end("default/web")
    world.now = 100
    look_at_requests(world.requests)
    assert world.machines.given["default/web"] > 600


def test_a_machine_that_ends_again_and_again_starts_after_growing_pauses(world: World) -> None:
    world.create(machine_of(vm("web")))
    starts = []
    for _ in range(3000):
        world.machines.end("default/web")
        world.now += 1
        look_at_requests(world.requests)
        if world.machines.views["default/web"].runs:
            starts.append(world.now)
    pauses = [later - earlier for earlier, later in pairwise(starts)]
    assert pauses[0] <= 2
    assert max(pauses) == 301, "the longest pause, from when it was seen to have ended"
    assert len(starts) < 25


def test_a_machine_whose_first_start_is_under_way_is_left_alone_in_silence(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.create(machine_of(vm("web")))
    world.machines.views["default/web"] = replace(world.machines.views["default/web"], state=State.STARTING)
    world.machines.calls.clear()
    with world.bench.claims.locks.named("machine/default/web", Deadline.after(10), "start"):
        look_at_requests(world.requests)
    assert not world.machines.calls
    assert not caplog.records
    look_at_requests(world.requests)
    assert world.machines.views["default/web"].runs, "nothing holds it up once the other start has failed"


def test_what_does_not_go_away_by_itself_is_tried_rarely_and_said_once(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(machine: VirtualMachine, deadline: Deadline, **more: bool) -> None:
        tries.append(world.now)
        raise Denied("PathNotAllowed", "machine default/web: /images/vmlinuz lies below no folder that is listed")

    tries: list[float] = []
    world.create(machine_of(vm("web")))
    world.end()
    with monkeypatch.context() as patch:
        patch.setattr(world.machines, "start", refuse)
        for world.now in range(700):
            look_at_requests(world.requests)
    assert tries == [0, 300, 600]
    assert [record.message for record in caplog.records] == [
        "cannot keep machines of the service: default/web; next try in 300 s: machine default/web: /images/vmlinuz "
        "lies below no folder that is listed"
    ]
    world.now = 900
    look_at_requests(world.requests)
    assert world.machines.views["default/web"].runs


def test_in_a_dry_run_it_is_left_alone_in_silence(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(machine: VirtualMachine, deadline: Deadline, **more: bool) -> None:
        tries.append(world.now)
        raise Denied("DryRun", "dry run: nothing was changed; would change machine default/web")

    tries, notifier = list[float](), ChangeNotifier()
    operations = platform_of(world.bench, world.machines, notifier)
    requests = RequestLoop(operations, notifier, clock=lambda: world.now, spawn=at_once)
    operations.create(machine_of(vm("web")), (), Deadline.after(10))
    world.end()
    monkeypatch.setattr(world.machines, "start", refuse)
    for _ in range(40):
        world.now += 0.25
        look_at_requests(requests)
    assert tries == [0.25], "it is not tried because of what a try reports"
    assert not caplog.records


def test_a_bug_is_not_met_again_with_each_change_of_the_machine(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(machine: VirtualMachine, deadline: Deadline, **more: bool) -> None:
        tries.append(world.now)
        raise ZeroDivisionError

    tries: list[float] = []
    world.create(machine_of(vm("web")))
    world.end()
    monkeypatch.setattr(world.machines, "start", break_down)
    for _ in range(40):
        world.now += 0.25
        world.requests.worker.tell("default/web")  # as each try does
        look_at_requests(world.requests)
    assert tries == [0.25, 1.25, 3.25, 7.25]


@pytest.mark.parametrize("what", ["deleted", "stopped"])
def test_one_that_is_taken_away_while_it_is_looked_for_stays_away(world: World, what: str) -> None:
    world.create(machine_of(vm("web")))
    world.machines.end("default/web")
    exclusive, calls = world.operations.claims.exclusive, len(world.machines.calls)

    @contextmanager
    def taken_away(*given: Any) -> Iterator[None]:
        """Seen as ended; before it is started again a user deletes or stops it."""
        world.operations.claims.exclusive = exclusive  # type: ignore[method-assign]
        change = world.operations.delete if what == "deleted" else world.operations.stop
        change("default/web", None, Deadline.after(10))
        with exclusive(*given):
            yield

    world.operations.claims.exclusive = taken_away  # type: ignore[method-assign]
    look_at_requests(world.requests)
    assert len(world.machines.calls) > calls, "it was looked for"
    assert not any(machine.runs for machine in world.machines.list())


def test_one_that_cannot_be_started_does_not_keep_the_others(world: World) -> None:
    world.bench.add("a/slot-0")
    world.create(machine_of(vm("web", "claim-uid-0")), "claim-uid-0")
    world.create(machine_of(vm("db")))
    for name in ("web", "db"):
        world.machines.end(f"default/{name}")
    world.machines.fail.add("a/slot-0")
    look_at_requests(world.requests)
    assert world.machines.views["default/db"].runs
    assert world.machines.devices == {}
    assert not world.machines.views["default/web"].runs, "it is not forgotten"
    assert "stop default/web" not in world.machines.calls, "which would be a wish that it stays so"
    world.machines.fail.clear()
    world.now = 100
    look_at_requests(world.requests)
    assert world.machines.views["default/web"].runs
