"""NeonVM's machines in the ledgers: what counts of them, where their permits are, and what is never written on them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devalloc.machines.permits import Settings
from devalloc.machines.permits.decide import PermitTransaction
from devalloc.machines.permits.ledger import Host, PermitLedgers, VmState
from devalloc.scaling.messages.permits import RequestError, WireResources, decode_reply, decode_request
from devalloc.scaling.resources import Resources
from devalloc.store import Key
from devalloc.store.metadata_rules import with_annotations
from devalloc_neon.machines import APPROVED, KIND, PERMIT
from tests.support.neon_installation import SCALED, vm
from tests.support.neon_plugin import scheduler_reserved
from tests.support.permit_bench import GIB, amounts, machine
from tests.support.permit_records import SOURCES, changes_of, permit_change

Object = dict[str, Any]
RUNS = {"phase": "Running", "node": "node-a", "podName": "vm1-x7k2p"}
TEN = Host(amounts(10_000, 10))


def neon_vm(status: Object = RUNS, *, version: int = 1, **metadata: dict[str, str]) -> Object:
    obj = vm("vm1", ("250m", "4", "1"), (1, 8, 2), **metadata)
    stored = {"namespace": "default", "uid": "u-1", "creationTimestamp": "2026-11-27T10:00:00Z"}
    return {**obj, "metadata": {**obj["metadata"], **stored, "resourceVersion": str(version)}, "status": status}


def state(obj: Object) -> VmState:
    record = SOURCES.read(obj).state
    assert record is not None
    return record


def test_what_it_has_and_may_have_is_what_its_object_says() -> None:
    record = state(neon_vm())
    assert (record.key, record.node) == (("default", "vm.neon.tech/vm1"), "node-a")
    assert (record.least, record.most) == (amounts(250, 1), amounts(4000, 8))
    assert (record.use, record.permit) == (amounts(1000, 2), None)
    assert (record.slot, record.wire_slot) == (GIB, GIB)
    assert (record.runner_pod, record.machine_id) == (("default", "vm1-x7k2p"), "vm1-x7k2p")
    assert record.runs
    assert record.scaled
    assert (record.movable, record.must_move, record.is_own) == (False, False, False)


@pytest.mark.parametrize(
    ("status", "use"),
    [
        ({"cpus": "1500m", "memorySize": "3Gi"}, amounts(1500, 3)),  # what QEMU still has counts
        ({"cpus": "500m", "memorySize": "1Gi"}, amounts(1000, 2)),  # and what it was told to take
        ({"cpus": True, "memorySize": "much"}, amounts(4000, 8)),  # what cannot be read counts for the most
    ],
)
def test_the_larger_of_spec_and_status_counts(status: Object, use: Resources) -> None:
    assert state(neon_vm({**RUNS, **status})).use == use


@pytest.mark.parametrize(
    "status", [{}, {"phase": "Pending"}, {**RUNS, "phase": "Succeeded"}, {**RUNS, "phase": "Failed"}]
)
def test_machines_without_a_node_and_ended_ones_do_not_count(status: Object) -> None:
    assert SOURCES.read(neon_vm(status)).state is None


@pytest.mark.parametrize(
    ("phase", "migrates"), [("Running", False), ("Scaling", False), ("PreMigrating", True), ("Migrating", True)]
)
def test_a_machine_that_neonvm_migrates_stays_as_it_is(phase: str, migrates: bool) -> None:
    record = state(neon_vm({**RUNS, "phase": phase}))
    assert record.runs
    assert (record.migrating is not None and record.migrating.is_true) is migrates


BOUNDS = "autoscaling.neon.tech/bounds"


def test_its_bounds_are_those_of_its_annotation() -> None:
    text = json.dumps({"min": {"cpu": "500m", "mem": "2Gi"}, "max": {"cpu": 2, "mem": "4Gi"}})
    record = state(neon_vm(annotations={BOUNDS: text}))
    assert (record.least, record.most) == (amounts(500, 2), amounts(2000, 4))


def test_annotations_that_cannot_be_read_end_its_scaling_and_it_counts_all_the_same() -> None:
    record = state(neon_vm(annotations={BOUNDS: "{"}))
    assert (record.least, record.most, record.use) == (amounts(250, 1), amounts(4000, 8), amounts(1000, 2))
    assert not record.scaled


def test_without_the_label_nothing_scales_it() -> None:
    assert not state(neon_vm(labels={})).scaled


# -- permits -----------------------------------------------------------------------------------------------------------


def written(obj: Object, permit: Resources | None, previous: Resources = Resources(0, 0)) -> Object:  # noqa: B008
    change = permit_change(
        obj,
        permit=permit,
        previous=previous,
        given_by="s-1",
        conditions={"ShouldMigrate": (True, "NodePressure", "it should leave")},
        now="now",
    )
    assert change.status == obj["status"], "its status is NeonVM's"
    assert change.key == Key(KIND, "default", "vm1")
    return with_annotations(obj, change.annotations)


@given(st.integers(1, 10**6), st.integers(1, 2**45), st.integers(1, 10**6), st.integers(1, 2**45))
def test_a_permit_is_read_back_as_it_was_written(cpu: int, memory: int, old_cpu: int, old_memory: int) -> None:
    permit, before = Resources(cpu, memory), Resources(old_cpu, old_memory)
    record = state(written(neon_vm(), permit, before))
    assert (record.permit, record.previous) == (permit, before)
    record = state(written(neon_vm(), permit))
    assert (record.permit, record.previous) == (permit, Resources(0, 0))


def test_a_permit_is_that_of_one_run_and_goes_with_its_record() -> None:
    obj = written(neon_vm(), amounts(2000, 4))
    assert state({**obj, "status": {**RUNS, "podName": "vm1-b2c3d"}}).permit is None
    assert PERMIT not in written(obj, None)["metadata"].get("annotations", {})


def test_the_same_permit_of_another_server_is_not_written_again() -> None:
    obj = written(neon_vm(), amounts(2000, 4))
    same = permit_change(obj, permit=amounts(2000, 4), given_by="s-2", conditions={}, now="later")
    assert same.annotations == {}
    other = permit_change(obj, permit=amounts(2500, 4), given_by="s-2", conditions={}, now="later")
    assert json.loads(str(other.annotations[PERMIT]))["givenBy"] == "s-2"


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"runnerPod": 1}', "x" * 5000])
def test_a_damaged_record_is_none(text: str) -> None:
    assert state(neon_vm(annotations={PERMIT: text})).permit is None


def test_names_of_both_kinds_never_coincide() -> None:
    own = {**machine("vm1"), "status": {}}
    for obj in (own, neon_vm()):
        assert SOURCES.object_key(SOURCES.key(obj)) == Key.of(obj)
        assert SOURCES.key_of(Key.of(obj)) == SOURCES.key(obj)
    assert SOURCES.key(own) == ("default", "vm1")
    assert SOURCES.key(neon_vm()) == ("default", "vm.neon.tech/vm1")


# -- in a ledger -------------------------------------------------------------------------------------------------------


def book_of(*objects: Object) -> PermitLedgers:
    book = PermitLedgers(Settings(), SOURCES)
    book.begin({"node-a": TEN})
    for obj in objects:
        book.put(obj)
    return book


def permitted(book: PermitLedgers, pod: str, cpu: int, gib: int, **more: Any) -> WireResources:
    """What a pod is permitted, written down."""
    body = {
        "protoVersion": 7,
        "pod": {"namespace": "default", "name": pod},
        "computeUnit": {"vCPUs": "250m", "mem": "1Gi"},
        "resources": {"vCPUs": f"{cpu}m", "mem": f"{gib}Gi"},
    }
    draft = PermitTransaction(book, "s-1", "now")
    grant = draft.answer(decode_request(json.dumps(body).encode()), by_pod=True, **more)
    stored = []
    for change in changes_of(draft, book):
        obj = book.objects[SOURCES.key_of(change.key)]
        version = str(int(obj["metadata"]["resourceVersion"]) + 1)
        obj = with_annotations({**obj, "status": change.status}, change.annotations)
        stored.append({**obj, "metadata": {**obj["metadata"], "resourceVersion": version}})
    draft.adopt(stored)
    return decode_reply(grant.body).permit


def test_a_node_gives_no_more_than_it_has_to_machines_of_both_kinds() -> None:
    own = {**machine("web"), "status": {"phase": "Running", "observed": {"cpus": "2", "memory": "3Gi"}}}
    own["status"] |= {"runnerPod": "web-pod", "machineID": "run-1"}
    own["metadata"] |= {"uid": "u-2", "resourceVersion": "1"}
    book = book_of(own, neon_vm())
    assert book.nodes["node-a"].counted == amounts(3000, 5)
    assert permitted(book, "vm1-x7k2p", 20_000, 20) == WireResources(8000, 7 * GIB)
    assert permitted(book, "web-pod", 20_000, 20) == WireResources(2000, 3 * GIB)
    assert book.records["default", "vm.neon.tech/vm1"].permit == amounts(8000, 7)
    # What its agent gives back counts until it was read back.
    assert permitted(book, "vm1-x7k2p", 1000, 2) == WireResources(1000, 2 * GIB)
    assert permitted(book, "web-pod", 9000, 8) == WireResources(9000, 8 * GIB)


def test_it_is_known_by_its_pod_only() -> None:
    book = book_of(neon_vm())
    for name in ("vm1", "vm.neon.tech/vm1", "vm1-other"):
        with pytest.raises(RequestError, match="no machine"):
            book.find(("default", name), by_pod=True)
    assert book.find(("default", "vm1-x7k2p"), by_pod=True).key == ("default", "vm.neon.tech/vm1")
    with pytest.raises(RequestError, match="no machine"):
        book.find(("other", "vm1-x7k2p"), by_pod=True)


@pytest.mark.parametrize("order", [1, -1])
def test_a_machine_of_the_same_name_does_not_take_its_requests(order: int) -> None:
    """The controller names the pod on that one, too, if its owner asks for it and it is on the same node."""
    own = {**machine("vm1"), "status": {"phase": "Running", "runnerPod": "vm1-x7k2p"}}
    own["metadata"] |= {"uid": "u-2", "resourceVersion": "1"}
    book = book_of(*[own, neon_vm()][::order])
    for node in (None, "node-a", "node-b"):
        assert book.find(("default", "vm1-x7k2p"), node, by_pod=True).key == ("default", "vm.neon.tech/vm1")


def test_a_full_node_requests_no_migration_of_it() -> None:
    """Its migrations are NeonVM's: no condition is written on it."""
    always = {**SCALED, "autoscaling.neon.tech/testing-only-always-migrate": "true"}
    book = book_of(neon_vm(labels={**always, "autoscaling.neon.tech/auto-migration-enabled": "true"}))
    permitted(book, "vm1-x7k2p", 20_000, 20)
    draft = PermitTransaction(book, "s-1", "now")
    body = {
        "protoVersion": 7,
        "pod": {"namespace": "default", "name": "vm1-x7k2p"},
        "computeUnit": {"vCPUs": "250m", "mem": "1Gi"},
        "resources": {"vCPUs": 20, "mem": "20Gi"},
        "lastPermit": {"vCPUs": 10, "mem": "10Gi"},
        "metrics": {"loadAvg1M": 0.1},
    }
    grant = draft.answer(decode_request(json.dumps(body).encode()), by_pod=True)
    assert not grant.begins_migration
    assert not grant.wants_migration
    assert draft.records() == []


@given(st.integers(250, 4000), st.integers(1, 8), st.integers(250, 4000), st.integers(1, 8))
def test_neons_scheduler_counts_what_the_machine_may_have(cpu: int, memory: int, other: int, other_memory: int) -> None:
    permit, previous = amounts(cpu, memory), amounts(other, other_memory)
    obj = neon_vm(annotations={APPROVED: '{"vCPUs":"250m","mem":"1Gi"}'})
    change = permit_change(obj, permit=permit, previous=previous, given_by="s", conditions={}, now="now")
    after = with_annotations(obj, change.annotations)
    most = permit.most(previous)
    assert scheduler_reserved(after) == (most.cpu, most.memory)
    without = permit_change(after, permit=None, given_by="s", conditions={}, now="now")
    assert not with_annotations(after, without.annotations)["metadata"].get("annotations")


def test_what_neons_scheduler_wrote_stays_where_there_is_no_permit() -> None:
    obj = neon_vm(annotations={APPROVED: '{"vCPUs":"250m","mem":"1Gi"}'})
    assert permit_change(obj, permit=None, given_by="s", conditions={}, now="now").annotations == {}
