"""Room on a host: what fits is admitted, exactly that, however many ask at the same time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devalloc.api.decode import decode
from devalloc.api.virtual_machine import VirtualMachine
from devalloc.inventory.capacity.machines import MachineUsage, booking_usage, machine_usage
from devalloc.inventory.capacity.room import Admission, Insufficient, Request
from devalloc.inventory.capacity.status import DiskUsageSources, UsageUnknown
from tests.support.capacity_fakes import host, machine
from tests.support.examples import examples

GIB = 2**30
ONE = {"cpu": "1", "memory": "1", "network": "1", "disk": "1", "disk_io": "1"}


def made(machine_id: str, request: Request, state: str = "Created") -> MachineUsage:
    """The machine that a request was for."""
    return MachineUsage(
        machine_id,
        machine_id,
        state,
        request.cpu,
        request.memory,
        overlay=request.disk,
        download=request.download,
        upload=request.upload,
        disk_io=request.disk_io,
    )


class Maker:
    """Makes machines as a node does: admitted, made, listed, and only then the reservation ends."""

    def __init__(self, room: int, *, fails: frozenset[str] = frozenset()) -> None:
        self.made: dict[str, MachineUsage] = {}
        self.refused: dict[str, str] = {}
        self.admission = Admission(host(cpu=room, ratios=ONE), lambda: list(self.made.values()))
        self.most = 0
        self._fails = fails
        self._seen = threading.Lock()
        self._being_made: set[str] = set()

    def make(self, name: str, request: Request) -> None:
        try:
            with self.admission.reserved(name, request):
                with self._seen:
                    self._being_made.add(name)
                    self.most = max(self.most, len(self._being_made | self.made.keys()))
                if name in self._fails:
                    with self._seen:
                        self._being_made.discard(name)
                    raise OSError("QEMU does not start")
                self.made[name] = made(name, request)
        except Insufficient as error:
            self.refused[name] = str(error)
        except OSError:
            pass


@pytest.fixture(autouse=True)
def _threads_take_turns_often() -> Iterator[None]:
    import sys

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def burst(maker: Maker, count: int, request: Request) -> None:
    """So many at once, each in a thread of its own."""
    together = threading.Barrier(count)

    def one(number: int) -> None:
        together.wait()
        maker.make(f"vm-{number}", request)

    with ThreadPoolExecutor(count) as threads:
        list(threads.map(one, range(count)))


def test_of_200_creations_at_once_on_a_host_with_room_for_50_exactly_50_are_admitted() -> None:
    maker = Maker(room=100)
    burst(maker, 200, Request(cpu=2000, memory=GIB))
    assert (len(maker.made), len(maker.refused), maker.most) == (50, 150, 50)
    assert maker.admission.reservations == {}
    assert {why.partition(" (")[0] for why in maker.refused.values()} == {
        "insufficient CPU: requested 2 vCPUs, but only 0 vCPUs available"
    }
    assert not maker.admission.can_allocate("cpu", 1)


def test_what_could_not_be_made_gives_its_room_back() -> None:
    failing = frozenset(f"vm-{number}" for number in range(0, 200, 2))
    maker = Maker(room=100, fails=failing)
    burst(maker, 200, Request(cpu=2000))
    assert maker.admission.reservations == {}
    assert maker.most <= 50
    again = [f"more-{number}" for number in range(50 - len(maker.made))]
    for name in again:
        maker.make(name, Request(cpu=2000))
    assert (len(maker.made), maker.made.keys() & failing) == (50, set())
    assert maker.made.keys() >= {*again}


def test_many_makers_and_removers_never_promise_more_than_there_is() -> None:
    """Machines come and go in eight threads; each looks, in between, at what all have together."""
    maker = Maker(room=7)
    beyond: list[int] = []

    def work(worker: int) -> None:
        for turn in range(60):
            name = f"vm-{worker}-{turn}"
            maker.make(name, Request(cpu=1000 + 500 * (turn % 3)))
            taken = sum(each.cpu for each in list(maker.made.values()))
            if taken > 7000:
                beyond.append(taken)
            maker.made.pop(f"vm-{worker}-{turn - 6}", None)  # a worker alone would want 9 CPUs

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    assert beyond == []
    assert maker.refused
    assert maker.admission.reservations == {}


def test_a_reservation_of_the_same_machine_is_replaced_and_a_refused_one_leaves_it() -> None:
    admission = Admission(host(cpu=8, ratios=ONE), tuple)
    admission.reserve("a", Request(cpu=6000))
    admission.reserve("a", Request(cpu=7000))
    assert not admission.can_allocate("cpu", 1001)
    with pytest.raises(Insufficient) as refused:
        admission.reserve("a", Request(cpu=9000))
    assert refused.value.resource == "cpu"
    assert admission.reservations == {"a": Request(cpu=7000)}
    admission.finish("a")
    admission.finish("a")
    admission.finish("")
    admission.finish("nobody")
    assert admission.can_allocate("cpu", 8000)


def test_a_machine_that_is_made_counts_once_before_and_after_its_reservation_ends() -> None:
    listed: list[MachineUsage] = []
    admission = Admission(host(cpu=8, ratios=ONE), lambda: listed)
    admission.reserve("a", Request(cpu=6000))
    listed.append(made("a", Request(cpu=5000)))
    assert (admission.can_allocate("cpu", 2000), admission.can_allocate("cpu", 2001)) == (True, False)
    admission.finish("a")
    assert (admission.can_allocate("cpu", 3000), admission.can_allocate("cpu", 3001)) == (True, False)


def test_a_machine_that_grows_asks_for_what_it_is_to_have_in_all() -> None:
    admission = Admission(host(cpu=8, ratios=ONE), lambda: [machine(5, id="a"), machine(1, id="b")])
    admission.validate(Request(cpu=7000), "a")
    with pytest.raises(Insufficient, match="only 7 vCPUs available"):
        admission.validate(Request(cpu=8000), "a")


def test_an_unknown_usage_admits_no_request_and_reserves_nothing() -> None:
    def broken() -> list[MachineUsage]:
        raise OSError("the journal is locked")

    admission = Admission(host(), broken, DiskUsageSources())
    with pytest.raises(UsageUnknown, match="list machine allocations: the journal is locked"):
        admission.reserve("a", Request(cpu=1))
    assert admission.reservations == {}
    with pytest.raises(ValueError, match="needs the machine's id"):
        Admission(host(), tuple).reserve("", Request(cpu=1))


def refusal(admission: Admission, name: str, request: Request) -> str | None:
    """The resource for which a reservation is refused; None when it is not."""
    try:
        admission.reserve(name, request)
    except Insufficient as error:
        return error.resource
    return None


AMOUNTS = st.builds(
    Request,
    cpu=st.integers(0, 6000),
    memory=st.integers(0, 6),
    disk=st.integers(0, 6),
    download=st.integers(0, 6),
    upload=st.integers(0, 6),
    disk_io=st.integers(0, 6),
)
NAMES = st.sampled_from("abcde")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), NAMES, AMOUNTS),
        st.tuples(st.just("finish"), NAMES, st.none()),
        st.tuples(st.just("list"), NAMES, AMOUNTS),
        st.tuples(st.just("stop"), NAMES, st.none()),
    ),
    max_size=20,
)


@given(STEPS)
@settings(max_examples=examples(18, 0.15), deadline=None)
def test_reservations_agree_with_adding_it_all_up_anew(steps: list[tuple[str, str, Request]]) -> None:
    """The oracle: a plain dictionary of who has or was promised what, added up for each question."""
    limits = (8000, 8, 8, 8, 8)
    capacity = host(cpu=8, memory="8", disk="8", network="8", disk_io="8", ratios=ONE)
    listed: dict[str, MachineUsage] = {}
    promised: dict[str, Request] = {}
    admission = Admission(capacity, lambda: list(listed.values()))

    def five(request: Request) -> tuple[int, ...]:
        way = request.download if request.download > request.upload else request.upload
        return request.cpu, request.memory, request.disk, way, request.disk_io

    def had(machine: MachineUsage | None) -> tuple[int, ...]:
        if machine is None or machine.state == "Stopped":
            return 0, 0, 0, 0, 0
        return machine.cpu, machine.memory, machine.overlay, max(machine.download, machine.upload), machine.disk_io

    for what, name, request in steps:
        if what == "finish":
            admission.finish(name)
            promised.pop(name, None)
        elif what == "list":
            listed[name] = made(name, request)
        elif what == "stop":
            if name in listed:
                listed[name] = made(name, Request(), "Stopped")
        else:
            expected = None
            for i, resource in enumerate(("cpu", "memory", "disk", "network", "disk_io")):
                others = {*listed, *promised} - {name}
                taken = sum(
                    max(had(listed.get(other))[i], five(promised[other])[i] if other in promised else 0)
                    for other in others
                )
                if five(request)[i] > 0 and taken + five(request)[i] > limits[i]:
                    expected = resource
                    break
            assert refusal(admission, name, request) == expected
            if expected is None:
                promised[name] = request
        assert admission.reservations == promised


def virtual_machine(reserve_max: bool, **status: object) -> VirtualMachine:
    content = {
        "apiVersion": "devalloc.io/v1alpha1",
        "kind": "VirtualMachine",
        "metadata": {"name": "db", "namespace": "team-a"},
        "spec": {
            "nodeName": "node-a",
            "cpu": {"min": "1500m", "max": "4"},
            "memory": {"min": "1Gi", "max": "4Gi"},
            "start": {"kernel": "/images/kernel"},
            "reserveMax": reserve_max,
        },
        "status": status,
    }
    decoded = decode(content)
    assert isinstance(decoded.object, VirtualMachine), decoded.problems
    return decoded.object


def test_a_machine_that_is_to_come_counts_with_what_its_migration_reserves() -> None:
    amounts = {"cpu": "2500m", "memory": "3Gi", "disk": "5", "network": "7", "diskIO": "11"}
    allocations = [{"name": name, "allocation": amount} for name, amount in amounts.items()]
    entry = {"devicePoolName": "b", "deviceName": "numa0", "allocations": allocations}
    state = {"migrationName": "move", "migrationUID": "u", "sourceNode": "a", "targetNode": "b"}
    use = booking_usage(virtual_machine(False, migrationState={**state, "allocations": [entry]}))
    assert use is not None
    assert (use.id, use.is_active) == ("team-a/db", True)
    assert (use.cpu, use.memory, use.overlay, use.download, use.upload, use.disk_io) == (2500, 3 * GIB, 5, 7, 7, 11)
    assert booking_usage(virtual_machine(False, phase="Running")) is None


@pytest.mark.parametrize(
    ("status", "reserve_max", "counts", "cpu", "memory"),
    [
        ({"phase": "Running"}, False, True, 1500, GIB),
        ({"phase": "Running"}, True, True, 4000, 4 * GIB),
        ({"phase": "Running", "permitted": {"cpus": "2", "memory": "2Gi"}}, False, True, 2000, 2 * GIB),
        ({"phase": "Running", "permitted": {"cpus": "1"}, "observed": {"memory": "3Gi"}}, False, True, 1500, 3 * GIB),
        ({"phase": "Running", "permitted": {"kept": {"cpus": "3", "memory": "2Gi"}}}, False, True, 3000, 2 * GIB),
        ({"phase": "Starting"}, False, True, 1500, GIB),
        ({"phase": "Stopping"}, False, True, 1500, GIB),
        ({"phase": "Pending"}, False, False, 1500, GIB),
        ({"phase": "Stopped"}, False, False, 1500, GIB),
        ({"phase": "Failed"}, False, False, 1500, GIB),
        ({"phase": "Unknown"}, False, False, 1500, GIB),
        ({"phase": "Unknown", "pid": 4711}, False, True, 1500, GIB),
    ],
)
def test_a_virtual_machine_counts_with_its_least_or_what_it_has_beyond(
    status: dict[str, object], reserve_max: bool, counts: bool, cpu: int, memory: int
) -> None:
    use = machine_usage(virtual_machine(reserve_max, **status))
    assert (use.id, use.is_active, use.cpu, use.memory) == ("team-a/db", counts, cpu, memory)
