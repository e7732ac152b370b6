"""The judge of the storm says what is wrong with a history, and nothing of one that is right."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import pytest

from tests.support.claim_judge import (
    CLAIM,
    MACHINE,
    MARK,
    POD,
    POOL,
    PREPARED,
    REASON,
    RECORD,
    RESOURCE_CLAIM,
    HistoryVerdict,
    State,
    judge,
)
from tests.support.fleet_manifests import gpu_claim
from tests.support.host_pools import host, machine

Object = dict[str, Any]
D0, D1 = "p/d0", "p/d1"


class Tale:
    """States in their order."""

    def __init__(self) -> None:
        self.states: list[State] = []
        self._versions = count(1)

    def tell(self, kind: str, obj: Object, *, gone: bool = False) -> None:
        self.states.append(State(next(self._versions), kind, json.loads(json.dumps(obj)), gone))

    def judge(self) -> HistoryVerdict:
        return judge(self.states)


def claim(name: str, *devices: str, mark: str | None = None, **more: Any) -> Object:
    obj = gpu_claim(name, **more)
    obj["metadata"] |= {"uid": f"uid-{name}"}
    if mark:
        obj["metadata"].setdefault("annotations", {})[MARK] = mark
    if devices:
        entries = [dict(zip(("devicePoolName", "deviceName"), one.split("/"), strict=True)) for one in devices]
        obj["status"] = {"allocations": entries}
    return obj


def vm(name: str, *claims: str, cpus: str | None = None, mark: str | None = None, device: str = "numa0") -> Object:
    obj = machine(name, "1", "1Gi", *claims)
    obj["metadata"] |= {"uid": f"uid-{name}", "annotations": {MARK: mark} if mark else {}}
    if cpus:
        amounts = [{"name": "cpu", "allocation": cpus}]
        entry = {"devicePoolName": "n-host", "deviceName": device, "allocations": amounts}
        obj["status"] = {"nodeName": "n", "allocations": [entry]}
    return obj


def record(state: str, *objects: Object) -> Object:
    """What they are to be, as the controller writes it."""
    members = [
        {
            "key": [obj["kind"], "default", obj["metadata"]["name"]],
            "uid": obj["metadata"]["uid"],
            "annotations": [],
            "status": [["allocations", None, obj["status"]["allocations"]]],
        }
        for obj in objects
    ]
    metadata = {"name": "t", "namespace": "devalloc-system", "labels": {MARK: "record"}}
    return {"metadata": metadata, "data": {"state": state, "members": json.dumps(members)}}


def resource_claim(*devices: str, pods: tuple[str, ...] = ()) -> Object:
    obj: Object = {"metadata": {"name": "r", "namespace": "a", "uid": "r"}, "spec": {}}
    if devices:
        results = [{"driver": "d", "pool": "p", "device": device, "request": "r"} for device in devices]
        obj["status"] = {"allocation": {"devices": {"results": results}}}
        obj["status"]["reservedFor"] = [{"resource": "pods", "name": pod, "uid": pod} for pod in pods]
    return obj


def pod(name: str, node: str | None = None) -> Object:
    used = [{"name": "r", "resourceClaimName": "r"}]
    spec = {"resourceClaims": used} | ({"nodeName": node} if node else {})
    return {"metadata": {"name": name, "namespace": "a", "uid": name}, "spec": spec}


def test_one_owner_at_a_time_is_right_and_two_are_wrong() -> None:
    tale = Tale()
    tale.tell(CLAIM, claim("a", D0))
    tale.tell(CLAIM, claim("b", D1))
    tale.tell(CLAIM, claim("a"))
    tale.tell(CLAIM, claim("b", D1), gone=True)
    tale.tell(CLAIM, claim("c", D0, D1))
    assert (tale.judge().wrong, tale.judge().grants) == ([], 3)
    tale.tell(CLAIM, claim("d", D1))
    assert tale.judge().doubles == [f"{D1} at 6: ['DeviceClaim default/c', 'DeviceClaim default/d']"]


def test_devices_are_taken_back_before_others_are_given() -> None:
    tale = Tale()
    for devices in ((D0,), (D1,)):
        tale.tell(CLAIM, claim("a", *devices))
    assert len(tale.judge().moved) == 1


def test_what_a_node_has_is_not_taken_away() -> None:
    tale, held, free = Tale(), claim("a", D0), claim("a")
    held["metadata"]["finalizers"] = free["metadata"]["finalizers"] = [PREPARED]
    tale.tell(CLAIM, held)
    tale.tell(CLAIM, free)
    assert len(tale.judge().torn) == 1


def test_only_a_machines_node_gives_back_what_is_reserved_for_it() -> None:
    for phase, wrong in (("Stopped", 0), ("Running", 1)):
        tale, held, free = Tale(), vm("m", cpus="1"), vm("m")
        free["status"] = {"phase": phase}
        held["metadata"]["finalizers"] = free["metadata"]["finalizers"] = [PREPARED]
        for obj in (held, free):
            tale.tell(MACHINE, obj)
        tale.states.insert(0, State(0, POOL, host("n")))
        assert len(tale.judge().torn) == wrong, phase


def test_of_a_host_no_more_is_kept_than_it_has() -> None:
    tale = Tale()
    tale.tell(POOL, host("n", cpus=4))  # two CPUs on each NUMA node
    tale.tell(MACHINE, vm("a", cpus="1500m"))
    tale.tell(MACHINE, vm("b", cpus="500m"))
    tale.tell(MACHINE, vm("c", cpus="2", device="numa1"))
    assert tale.judge().wrong == []
    tale.tell(MACHINE, vm("d", cpus="1m"))
    assert tale.judge().over == ["VirtualMachine default/d at 5: 2.001 of 2.0 of n-host/numa0/cpu are kept"]


def whole(tale: Tale, *steps: tuple[str, Object]) -> HistoryVerdict:
    tale.tell(POOL, host("n"))
    for kind, obj in steps:
        tale.tell(kind, obj)
    return tale.judge()


A, M = claim("a", D0, mark="t"), vm("m", "a", cpus="1", mark="t")
A_DONE, M_DONE = claim("a", D0), vm("m", "a", cpus="1")


def test_a_machine_and_its_claim_that_are_written_as_one_are_right() -> None:
    """Also where the marks are taken away one after the other."""
    tale = Tale()
    verdict = whole(
        tale,
        (RECORD, record("writing", A, M)),
        *((MACHINE, vm("m", "a", mark="t")), (CLAIM, claim("a", mark="t"))),
        *((MACHINE, M), (CLAIM, A)),
        (RECORD, record("committed", A, M)),
        *((MACHINE, M_DONE), (CLAIM, A_DONE)),
    )
    assert (verdict.wrong, verdict.joint) == ([], 1)


def test_one_that_is_put_back_is_right() -> None:
    verdict = whole(
        Tale(),
        (RECORD, record("writing", A, M)),
        *((MACHINE, M), (RECORD, record("undoing", A, M)), (MACHINE, vm("m", "a", mark="t")), (MACHINE, vm("m", "a"))),
    )
    assert verdict.wrong == []


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([(CLAIM, claim("a")), (MACHINE, M_DONE)], id="no record and no marks"),
        pytest.param([(RECORD, record("writing", A, M)), (CLAIM, A_DONE)], id="a mark that is missing"),
        pytest.param(
            [
                (RECORD, record("writing", A, M)),
                (CLAIM, A),
                (MACHINE, vm("m", "a")),
                (RECORD, record("committed", A, M)),
            ],
            id="it counts before all is written",
        ),
        pytest.param([(CLAIM, A), (MACHINE, M_DONE)], id="the claim's mark has no record"),
    ],
)
def test_what_is_half_written_is_wrong(steps: list[tuple[str, Object]]) -> None:
    assert whole(Tale(), *steps).half != []


def test_members_of_a_group_that_both_waited_get_devices_together() -> None:
    waits = {"group": "g", REASON.removeprefix("devalloc.io/"): "DevicesInUse"}
    tale = Tale()
    for name in "ab":
        tale.tell(CLAIM, claim(name, **waits))
    tale.tell(CLAIM, claim("a", D0, group="g"))
    assert len(tale.judge().half) == 1
    tale = Tale()
    tale.tell(CLAIM, claim("a", **waits))
    tale.tell(CLAIM, claim("a", D0, group="g"))
    tale.tell(CLAIM, claim("b", group="g"))
    assert tale.judge().wrong == [], "the other one came later"


def test_a_pod_runs_with_claims_of_its_own_and_keeps_them() -> None:
    tale = Tale()
    for claim_ in (resource_claim(), resource_claim("d0", pods=("x",))):
        tale.tell(RESOURCE_CLAIM, claim_)
    for one in (pod("x"), pod("x", "n")):
        tale.tell(POD, one)
    assert tale.judge().wrong == []
    tale.tell(POD, pod("y", "n"))
    assert tale.judge().torn == ["pod y at 5: it runs, and r is not its own"]
    tale.tell(RESOURCE_CLAIM, resource_claim())
    assert len(tale.judge().torn) == 2
