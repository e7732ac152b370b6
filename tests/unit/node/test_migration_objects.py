"""What a live migration leaves in the store: one write decides whose the machine is, and nothing is taken on trust."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devalloc.api import meta
from devalloc.api.virtual_machine_migration import (
    MigrationAmounts,
    MigrationCell,
    MigrationDestination,
    MigrationDevice,
    MigrationFirmware,
    MigrationOffer,
    MigrationPlatform,
    MigrationQueues,
    MigrationRootPort,
)
from devalloc.store import Conflict, Object
from devalloc.store.sqlite import SQLiteStore
from devalloc_machines.qemu.settings import MigrationSettings
from devalloc_machines.vms import MigrationLoop
from devalloc_machines.vms import migration_objects as moves
from devalloc_machines.vms.migrations import ALL, _Move
from devalloc_machines.vms.status import write_status
from devalloc_node.errors import Denied, Failed
from devalloc_node.operations.change_feed import ChangeNotifier
from tests.support.migration_nodes import migration

RUN = "7d3c2f3e-0000-4000-8000-00000000a001"
SIZE = st.integers(0, 2**40)
DIGEST = st.sampled_from(["0f" * 32, "a1" * 32])


OFFER: Object = {
    "run": RUN,
    "accel": "tcg",
    "platform": {"machineType": "pc-q35-7.2", "firmware": {"codeDigest": "0" * 64, "variablesSize": 1}},
    "amounts": {"cpuMilli": 1000, "vcpus": 1, "memoryBytes": 2**28},
    "certificate": "PEM",
}


@st.composite
def offers(draw: st.DrawFn) -> MigrationOffer:
    count = draw(st.integers(0, 3))
    table = st.lists(st.integers(10, 254), min_size=count**2, max_size=count**2)
    queues = draw(st.dictionaries(st.integers(0, 7), st.integers(1, 16), max_size=3))
    cell = st.builds(MigrationCell, cpuMilli=st.integers(0, 64000), memory=SIZE)
    platform = MigrationPlatform(
        machine_type=draw(st.sampled_from(["pc-q35-7.2", "pc-q35-10.0"])),
        root_ports=draw(st.lists(st.builds(MigrationRootPort, prefetchable=SIZE, memory=SIZE), max_size=4)),
        queues=[MigrationQueues(nic=nic, count=pairs) for nic, pairs in sorted(queues.items())],
        cells=draw(st.lists(cell, min_size=count, max_size=count)),
        distances=draw(table) if draw(st.booleans()) else [],
        address_bits=draw(st.none() | st.integers(32, 64)),
        cpu_flags=draw(st.lists(st.sampled_from(["avx2", "sse4_1", "3dnow"]), unique=True)),
        firmware=draw(st.none() | st.builds(MigrationFirmware, codeDigest=DIGEST, variablesSize=SIZE)),
    )
    cpu, vcpus = draw(st.none() | st.integers(0, 4000)), draw(st.integers(1, 64))
    device = st.builds(
        MigrationDevice,
        claim=st.sampled_from(["uid-1", "uid-2"]),
        index=st.integers(0, 255),
        port=st.just("port-1"),
        functions=st.lists(st.just("vfio-pci vendor=0x10de"), min_size=1, max_size=8),
    )
    return MigrationOffer(
        run=RUN,
        accel=draw(st.sampled_from(["kvm", "tcg"])),
        platform=platform,
        amounts=MigrationAmounts(cpu_milli=cpu, vcpus=vcpus, memory_bytes=draw(SIZE)),
        devices=draw(st.lists(device, max_size=3)),
        certificate="PEM",
        restart_digest=draw(st.none() | DIGEST),
    )


@given(offers())
def test_the_target_reads_what_the_source_writes(offered: MigrationOffer) -> None:
    assert moves.offer_of({"status": {"offer": offered.to_manifest()}}) == offered


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("run",), "../../etc/passwd"),
        (("run",), f"{RUN} -S"),
        (("accel",), "xen"),
        (("accel",), "tcg,thread=single"),
        (("certificate",), "x" * 100_000),
        (("platform", "machineType"), "pc-q35-7.2,kernel=/etc/shadow"),
        (("platform", "machineType"), "microvm"),
        (("platform", "cpuFlags"), ["avx2"] * 5000),
        (("platform", "cpuFlags"), ["-o yes"]),
        (("platform", "distances"), [10] * 5),
        (("platform", "rootPorts"), [{"prefetchable": -1}]),
        (("platform", "firmware", "codeDigest"), "AB" * 32),
        (("platform", "firmware", "variablesSize"), -1),
        (("restartDigest",), "x" * 100_000),
        (("amounts", "memoryBytes"), 2**70),
        (("amounts", "cpuMilli"), -1),
        (("amounts",), None),
        (("devices",), [{"claim": "c", "index": 0, "port": "../x y", "functions": ["a"]}]),
        (("devices",), [{"claim": "c", "index": -1, "port": "p", "functions": ["a"]}]),
        (("devices",), [{"claim": "c", "index": 0, "port": "p", "functions": ["x" * 300]}]),
        (("devices",), [{"claim": "c", "index": 0, "port": "p", "functions": []}]),
    ],
)
def test_an_offer_that_no_source_makes_is_refused(path: tuple[str, ...], value: Any) -> None:
    offer = deepcopy(OFFER)
    moves.offer_of({"status": {"offer": offer}})
    part = offer
    for name in path[:-1]:
        part = part[name]
    part[path[-1]] = value
    with pytest.raises(Denied, match=path[-1]):
        moves.offer_of({"status": {"offer": offer}})


def test_why_an_offer_is_refused_is_one_line_of_visible_characters() -> None:
    with pytest.raises(Denied, match=r"cannot be read: \\x1b\[31m\\n: Extra inputs"):
        moves.offer_of({"status": {"offer": {**OFFER, "\x1b[31m\n": 1}}})
    for missing in ({}, {"status": {"offer": None}}):
        with pytest.raises(Denied, match="what the source offers cannot be read: Input should be"):
            moves.offer_of(missing)


@pytest.mark.parametrize(
    "wrong", [{"address": "host; reboot"}, {"port": 0}, {"port": 70000}, {"certificate": "x" * 5000}, {"address": None}]
)
def test_a_destination_that_no_target_has_is_refused(wrong: dict[str, Any]) -> None:
    right = MigrationDestination(address="10.0.0.7", port=40000, certificate="PEM")
    to = right.to_manifest()
    assert moves.destination_of({"status": {"destination": to}}) == right
    with pytest.raises(Denied, match=next(iter(wrong))):
        moves.destination_of({"status": {"destination": {**to, **wrong}}})


UID = "uid-of-the-migration"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with closing(SQLiteStore(tmp_path / "store.db")) as opened:
        made = opened.create(
            {
                "apiVersion": meta.DEVALLOC,
                "kind": "VirtualMachine",
                "metadata": {
                    "name": "m",
                    "namespace": "default",
                    "annotations": {meta.PREPARED_ON: "a"},
                    "finalizers": [meta.NODE_FINALIZER],
                },
                "spec": {"cpu": {"min": 1, "max": 1}, "memory": {"min": "64Mi", "max": "64Mi"}},
            }
        )
        state = {"migrationName": "x", "migrationUID": UID, "sourceNode": "a", "targetNode": "b", "numaNode": 1}
        there = [{"devicePoolName": "b-host", "deviceName": "numa1"}]
        here = [{"devicePoolName": "a-host", "deviceName": "numa0"}]
        placed = {"type": "Placed", "status": "True", "reason": "Placed", "message": "on node a"}
        status: Object = {"phase": "Running", "nodeName": "a", "pid": 7, "machineID": RUN, "allocations": here}
        status["conditions"] = [placed, {"type": "Served", "status": "True"}]
        opened.replace_status({**made, "status": {**status, "migrationState": {**state, "allocations": there}}})
        yield opened


def machine(store: SQLiteStore) -> Object:
    return store.get("VirtualMachine", "default", "m")


def test_the_machine_is_its_targets_by_one_write_with_what_was_reserved_there(store: SQLiteStore) -> None:
    moves.hand_over_object(store, machine(store))
    status = machine(store)["status"]
    assert (status["nodeName"], status["numaNode"], status["machineID"]) == ("b", 1, RUN)
    assert [entry["devicePoolName"] for entry in status["allocations"]] == ["b-host"]
    assert not {"migrationState", "pid"} & status.keys()
    assert [one.get("message") for one in status["conditions"]] == ["on node b", None]


def test_of_handing_over_and_withdrawing_only_the_first_takes_effect(store: SQLiteStore) -> None:
    before = machine(store)
    moves.withdraw(store, before, UID)
    with pytest.raises(Conflict):
        moves.hand_over_object(store, before)
    assert machine(store)["status"]["nodeName"] == "a"


def test_withdrawing_comes_too_late_for_a_machine_that_was_handed_over(store: SQLiteStore) -> None:
    before = machine(store)
    moves.hand_over_object(store, before)
    now = moves.withdraw(store, before, UID)
    assert now is not None
    assert now["status"]["nodeName"] == "b"


def test_a_node_takes_only_what_was_handed_over_to_it(store: SQLiteStore) -> None:
    assert not moves.take_moved_object(store, machine(store), UID, "b"), "it is the source's"
    moves.hand_over_object(store, machine(store))
    assert not moves.take_moved_object(store, machine(store), UID, "c")
    assert machine(store)["metadata"]["annotations"][meta.PREPARED_ON] == "a"
    for _ in range(2):  # the answer of the first may be lost
        assert moves.take_moved_object(store, machine(store), UID, "b")
    assert machine(store)["metadata"]["annotations"][meta.PREPARED_ON] == "b"


def test_what_a_node_writes_of_its_machine_leaves_the_reservation_on_the_target(store: SQLiteStore) -> None:
    write_status(store, machine(store), {"phase": "Running", "machineID": RUN}, at_rest=True)
    assert machine(store)["status"]["migrationState"]["migrationUID"] == UID


def test_a_migration_that_is_over_stays_so(store: SQLiteStore) -> None:
    spec = {"vmName": "m"}
    metadata = {"name": "x", "namespace": "default"}
    made = store.create({"apiVersion": meta.DEVALLOC, "kind": moves.KIND, "metadata": metadata, "spec": spec})
    moves.write_migration(store, made, "Running", progress={"total": 1})
    moves.write_failed(store, made, "MigrationSlow", "x" * 10_000)
    moves.write_succeeded(store, made)
    status = store.get(moves.KIND, "default", "x")["status"]
    assert (status["phase"], status["reason"], len(status["message"])) == ("Failed", "MigrationSlow", 4096)


def test_a_plugin_remembers_only_migrations_that_are_there(store: SQLiteStore) -> None:
    """Users create and delete any number of them."""
    machines, operations = SimpleNamespace(moving=lambda: []), SimpleNamespace(node_name="a")
    loop = MigrationLoop(store, operations, machines, ChangeNotifier(), MigrationSettings())  # type: ignore[arg-type]
    for number in range(3):
        store.create(migration(f"x{number}", "m"))
        loop.concerned()
        store.delete("VirtualMachineMigration", "default", f"x{number}")
    loop.concerned()
    assert loop._names == {}


def test_a_node_without_an_address_for_migrations_receives_no_machine_that_runs(store: SQLiteStore) -> None:
    operations = SimpleNamespace(node_name="b")
    loop = MigrationLoop(store, operations, SimpleNamespace(), ChangeNotifier(), MigrationSettings())  # type: ignore[arg-type]
    made = store.create(migration("x", "m"))
    moves.write_migration(store, made, "PreparingTarget")
    assert loop._receive(_Move("default/m", UID, None, machine(store), made)) == 0.0
    status = store.get(moves.KIND, "default", "x")["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "MigrationOff")
    assert "--migration-address" in status["message"]


def test_a_migration_is_ready_when_its_machine_has_moved(store: SQLiteStore) -> None:
    kind = "VirtualMachineMigration"
    made = store.create(migration("move", "m"))

    def reported() -> list[tuple[str, str, str, str]]:
        conditions = store.get(kind, "default", "move")["status"]["conditions"]
        return [(one["type"], one["status"], one["reason"], one["message"]) for one in conditions]

    moves.write_migration(store, made, "PreparingTarget")
    assert reported() == [("Ready", "False", "PreparingTarget", "its phase is PreparingTarget")]
    version = store.get(kind, "default", "move")["metadata"]["resourceVersion"]
    moves.write_migration(store, made, "PreparingTarget")
    assert store.get(kind, "default", "move")["metadata"]["resourceVersion"] == version, "nothing has changed"
    moves.write_succeeded(store, made)
    assert reported() == [("Ready", "True", "Succeeded", "its phase is Succeeded")]


@pytest.mark.parametrize("fails", [False, True])
def test_what_others_report_has_no_step_repeated_before_its_time(store: SQLiteStore, fails: bool) -> None:
    operations, steps = SimpleNamespace(node_name="a"), []
    loop = MigrationLoop(store, operations, SimpleNamespace(), ChangeNotifier(), MigrationSettings())  # type: ignore[arg-type]

    def step(key: str) -> float | None:
        steps.append(key)
        if fails:
            raise Failed("MachineBusy", "another change is under way")
        return 0.5

    loop.step = step  # type: ignore[method-assign]
    loop.concerned = lambda: ["default/m"]  # type: ignore[method-assign]
    loop.worker._spawn, now = lambda work: work(), 0.0
    loop.worker._clock = lambda: now
    for _ in range(20):
        loop.worker.add(ALL)
        loop.worker.round()
        now += 0.02
    assert len(steps) == 1
    now += 2.0
    loop.worker.round()
    assert len(steps) == 2
