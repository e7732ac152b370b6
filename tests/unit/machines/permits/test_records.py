"""What of a VirtualMachine counts, also where it is damaged."""

from __future__ import annotations

from typing import Any

import pytest

from devalloc.machines.permits.ledger import has_no_devices
from devalloc.machines.permits.sources import read_vm
from devalloc.scaling.resources import Resources
from tests.support.permit_bench import GIB, amounts, machine
from tests.support.permit_records import permit_change

RUNS = {"phase": "Running", "machineID": "run-2", "observed": {"cpus": "500m", "memory": "2Gi"}}


def stored(obj: dict[str, Any], **status: Any) -> dict[str, Any]:
    obj["metadata"] |= {"uid": "u", "resourceVersion": "7", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {**obj, "status": status} if status else obj


def test_a_machine_as_the_ledger_takes_it() -> None:
    labels = {
        "autoscaling.neon.tech/enabled": "true",
        "autoscaling.neon.tech/auto-migration-enabled": "True",  # only the exact text says yes
        "autoscaling.neon.tech/testing-only-always-migrate": "true",
    }
    annotations = {
        "autoscaling.neon.tech/billing-endpoint-id": "ep",
        "vm.neon.tech/overcommit": '{"cpu":"2500m","memory":"1500m"}',
    }
    obj = machine("a", labels=labels, annotations=annotations, slot=GIB, reserveMax=True)
    permitted = {"cpus": "1500m", "memory": "3Gi", "givenBy": "s", "machineID": "run-2"}
    record = read_vm(stored(obj, **RUNS, permitted=permitted, runnerPod="a-x7"))
    assert record is not None
    assert (record.key, record.node, record.runner_pod) == (("default", "a"), "node-a", ("default", "a-x7"))
    assert (record.least, record.most, record.use) == (amounts(250, 1), amounts(8000, 16), amounts(500, 2))
    assert (record.permit, record.slot, record.reserve_max) == (amounts(1500, 3), GIB, True)
    assert (record.scaled, record.movable, record.must_move, record.billed_to) == (True, False, True, "ep")
    assert record.overcommit == Resources(2500, 1500)


def test_huge_pages_are_none_of_the_memory_that_permits_share_out() -> None:
    obj = stored(machine("a"), **RUNS, nodeName="n", allocations=[
        {"devicePoolName": "n-host", "deviceName": "numa0",
         "allocations": [{"name": "cpu", "allocation": "500m"}, {"name": "hugepages-2Mi", "allocation": "2Gi"}]}
    ])  # fmt: skip
    obj["spec"]["memory"]["hugePages"] = "2Mi"
    record = read_vm(obj)
    assert record is not None
    assert (record.least.memory, record.most.memory, record.use.memory) == (0, 0, 0)
    assert (record.least.cpu, record.use.cpu) == (250, 500)


@pytest.mark.parametrize(
    ("permitted", "counts"),
    [
        ({"cpus": "1", "memory": "1Gi"}, None),  # its bounds say so, and no server
        ({"cpus": "1", "memory": "1Gi", "givenBy": "s", "machineID": "run-1"}, None),  # of another run
        ({"cpus": "1", "memory": "1Gi", "givenBy": "s"}, amounts(1000, 1)),
        ({"cpus": "??", "memory": -5, "givenBy": "s"}, amounts(8000, 16)),  # all that it could have
        ({"cpus": "1", "memory": "1Gi", "givenBy": "s", "machineID": "run-2"}, amounts(1000, 1)),
        ("nonsense", None),
    ],
)
def test_which_permit_counts(permitted: Any, counts: Resources | None) -> None:
    record = read_vm(stored(machine("a"), **RUNS, permitted=permitted))
    assert record is not None
    assert record.permit == counts


def test_what_its_node_does_not_keep_for_it_yet_is_not_its_own() -> None:
    def host_allocation(cpus: str, memory: str) -> dict[str, Any]:
        given = [{"name": "cpu", "allocation": cpus}, {"name": "memory", "allocation": memory}]
        entry = {"devicePoolName": "node-a-host", "deviceName": "numa0", "allocations": given}
        return {"nodeName": "node-a", "allocations": [entry]}

    def least(**status: Any) -> Resources:
        obj = machine("a", reserveMax=True)
        obj["spec"] |= {"cpu": {"min": "2", "max": "8"}, "memory": {"min": "4Gi", "max": "16Gi"}}
        record = read_vm(stored(obj, **RUNS, **status))
        assert record is not None
        assert record.reserve_max is (record.least != amounts(1000, 4))
        return record.least

    assert least(**host_allocation("1", "4Gi")) == amounts(1000, 4)
    assert least(**host_allocation("8", "16Gi")) == amounts(2000, 4)
    assert least() == amounts(2000, 4), "nothing is reserved: its node admits it by its name"
    for damaged in ({"cpus": "x"}, {"nodeName": "node-a", "allocations": [{"devicePoolName": 1}]}):
        assert least(**damaged) == amounts(2000, 4)
    broken = host_allocation("1", "4Gi")
    broken["allocations"].append({"devicePoolName": "node-a-host"})
    assert least(**broken) == amounts(2000, 4)


def test_machines_that_are_not_to_run_and_do_not_take_nothing() -> None:
    assert read_vm(stored(machine("a", running=False), phase="Stopped")) is None
    assert read_vm(stored(machine("a", running=False))) is None
    assert read_vm(stored(machine("a", running=False), phase="Stopping")) is not None
    waiting = read_vm(stored(machine("a"), phase="Stopped", observed={"cpus": "8"}))
    assert waiting is not None
    assert (waiting.runs, waiting.use) == (False, Resources(0, 0))


def test_a_machine_without_scaling_counts_with_its_spec() -> None:
    record = read_vm(stored(machine("a", labels={}, cpu={"min": "1", "max": "4", "use": "3"})))
    assert record is not None
    assert (record.scaled, record.use) == (False, Resources(3000, 0))


def test_a_scaled_machine_counts_with_its_start_amounts_until_it_runs() -> None:
    obj = machine("a", cpu={"min": "1", "max": "4", "use": "3"})
    before, after = read_vm(stored(obj)), read_vm(stored(obj, **RUNS))
    assert before is not None
    assert after is not None
    assert (before.scaled, before.use.cpu, after.use.cpu) == (True, 3000, 500)


def test_a_placed_machine_counts_on_the_chosen_node() -> None:
    obj = machine("a")
    del obj["spec"]["nodeName"]
    del obj["metadata"]["annotations"]
    allocations = [{"devicePoolName": "node-b-host", "deviceName": "numa0", "allocations": []}]
    record = read_vm(stored(obj, nodeName="node-b", allocations=allocations))
    assert record is not None
    assert record.node == "node-b"
    assert read_vm(stored(obj, nodeName="node-b")) is None, "nothing is kept for it there"


@pytest.mark.parametrize("status", [{}, {"observed": {"cpus": [1], "memory": "2Gi"}}, {"conditions": {"a": 1}}])
@pytest.mark.parametrize("spec", [{}, {"cpu": []}, {"cpu": {"min": True, "max": "1"}}, {"memory": {"max": "1e30"}}])
def test_damaged_objects_are_read(spec: dict[str, Any], status: dict[str, Any]) -> None:
    obj = machine("a")
    obj["spec"] = {"nodeName": "n", **spec}
    record = read_vm({**stored(obj), "status": {"phase": "Running", **status}})
    assert record is not None
    assert not record.least.exceeds(record.most)
    assert read_vm({**obj, "spec": "nonsense", "status": None}) is None


def test_a_record_is_written_with_the_run_it_is_for_and_leaves_the_rest_alone() -> None:
    status = {**RUNS, "conditions": [{"type": "Other"}, {"type": "Migrating", "status": "True"}], "reason": "x"}
    update = permit_change(
        stored(machine("a"), **status),
        permit=amounts(1250, 2),
        given_by="s-1",
        conditions={"Migrating": (False, "Done", "it is there")},
        now="2026-02-02T00:00:00Z",
    )
    assert (update.key, update.resource_version) == (("VirtualMachine", "default", "a"), "7")
    assert update.status is not None
    permitted = {"cpus": "1250m", "memory": "2Gi", "givenBy": "s-1", "machineID": "run-2"}
    assert update.status["permitted"] == permitted
    assert {k: v for k, v in update.status.items() if k not in ("permitted", "conditions")} == {**RUNS, "reason": "x"}
    assert [(c["type"], c.get("status")) for c in update.status["conditions"]] == [
        ("Other", None),
        ("Migrating", "False"),
    ]
    same = permit_change(
        stored(machine("a"), **update.status), permit=amounts(1250, 2), given_by="s-2", conditions={}, now="later"
    )
    assert same.status == update.status, "who gave it stays, as nothing else changes"
    gone = permit_change(stored(machine("a"), **update.status), permit=None, given_by="s-2", conditions={}, now="later")
    assert gone.status is not None
    assert "permitted" not in gone.status


def test_devices_keep_a_machine_where_it_is() -> None:
    assert has_no_devices(machine("a"))
    assert not has_no_devices(machine("a", claims=["gpu"]))
    assert not has_no_devices({**machine("a"), "status": {"devices": [{"claim": "gpu"}]}})


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ('{"cpu":"2500m"}', Resources(2500, 1000)),
        ('{"memory":"1500m","cpu":null}', Resources(1000, 1500)),
        ("{}", Resources(1000, 1000)),
        ('{"cpu":"0","memory":"1"}', None),
        ('{"cpu":-1}', None),
        ('{"cpu":NaN}', None),
        ('{"cpu":[1]}', None),
        ('{"cpu":1e99}', None),
        ("[]", None),
        ("[" * 1000, None),
        ('"2"' + " " * 2000, None),
    ],
)
def test_overcommit_is_once_where_it_is_not_said(text: str, counts: Resources | None) -> None:
    record = read_vm(stored(machine("a", annotations={"vm.neon.tech/overcommit": text})))
    assert record is not None
    assert record.overcommit == counts


@pytest.mark.parametrize(
    ("text", "cpu", "memory"),
    [
        ('{"cpu":"3","memory":"1Gi"}', 3000, 2 * GIB),  # what is more of either
        ('{"memory":"4Gi"}', 500, 4 * GIB),
        ('{"cpu":"nonsense","memory":"4Gi"}', 8000, 4 * GIB),
        ("nonsense", 8000, 16 * GIB),  # it has an unknown amount
    ],
)
def test_what_others_say_that_a_machine_uses_counts(text: str, cpu: int, memory: int) -> None:
    obj = stored(machine("a", annotations={"vm.neon.tech/usage": text}), **RUNS)
    record, stopped = read_vm(obj), read_vm({**obj, "status": {"phase": "Stopped"}})
    assert record is not None
    assert stopped is not None
    assert (record.use, stopped.use) == (Resources(cpu, memory), Resources(0, 0))


def test_a_started_machine_that_waits_counts_with_its_amounts() -> None:
    """Its CPUs stand still until its devices are there, and it is Pending so long."""
    waits = {**RUNS, "phase": "Pending"}
    for running in (True, False):
        record = read_vm(stored(machine("a", running=running), **waits))
        assert record is not None
        assert record.use == amounts(500, 2)


@pytest.mark.parametrize("kind", [[], {}, None, 7])
def test_a_condition_of_an_invalid_type_does_no_harm(kind: Any) -> None:
    obj = stored(machine("a"), **RUNS, conditions=[{"type": kind, "status": "True"}])
    assert read_vm(obj) is not None
    update = permit_change(
        obj, permit=None, given_by="s", conditions={"Migrating": (True, "A", "b")}, now="2026-02-02T00:00:00Z"
    )
    assert update.status is not None
    assert [c["type"] for c in update.status["conditions"]] == [kind, "Migrating"]


def test_the_previous_amounts_go_with_their_permit() -> None:
    obj = stored(machine("a"), **RUNS)
    common: dict[str, Any] = {"given_by": "s", "conditions": {}, "now": "2026-02-02T00:00:00Z"}
    status = permit_change(obj, permit=amounts(1000, 1), previous=amounts(4000, 2), **common).status
    assert status is not None
    record = read_vm({**obj, "status": status})
    assert record is not None
    assert (record.permit, record.previous) == (amounts(1000, 1), amounts(4000, 2))
    another_run = read_vm({**obj, "status": {**status, "machineID": "run-3"}})
    assert another_run is not None
    assert (another_run.permit, another_run.previous) == (None, Resources(0, 0))
    damaged = read_vm({**obj, "status": {**status, "permitted": {**status["permitted"], "kept": {"cpus": "??"}}}})
    assert damaged is not None
    assert damaged.previous == Resources(8000, 0)
    written = permit_change({**obj, "status": status}, permit=amounts(1000, 1), **common).status
    assert written is not None
    assert "kept" not in written["permitted"]


def test_a_permit_that_cannot_be_read_is_written_anew() -> None:
    status = {**RUNS, "permitted": {"cpus": "??", "memory": "1Gi", "givenBy": "s"}}
    obj = stored(machine("a"), **status)
    written = permit_change(
        obj, permit=amounts(1000, 1), given_by="s", conditions={}, now="2026-02-02T00:00:00Z"
    ).status
    assert written is not None
    assert written["permitted"]["cpus"] == "1"
