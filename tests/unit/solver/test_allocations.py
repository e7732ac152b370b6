"""What a status says of held devices gives nothing away, whatever is wrong with it (S13, S18)."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from devalloc.api.claim import DeviceAllocation, DeviceClaim, DeviceClaimStatus, ResourceAllocation
from devalloc.api.fields import quote_value
from devalloc.api.json_content import DecimalFloat
from devalloc.api.meta import GROUP, GROUP_MATCH
from devalloc.api.pool import DevicePool
from devalloc.api.quantity import NANO, Quantity
from devalloc_solver import Fleet, solve, solve_manifests
from devalloc_solver.check import check
from tests.support.manifests import Manifest, allocated, claim, device, entry, pool

POOL = pool("p", "n1", devices=[device("x", resources={"mem": 8})])
PATH = "status.allocations[0].allocations[0].allocation"
HALF = json.loads('"m\\ud800"')
UNREADABLE = [
    "-5",
    -5,
    "-1n",
    "junk",
    "",
    None,
    True,
    [],
    {},
    DecimalFloat("1e400"),
    10**400,
    "99999999999999999999Ei",
    "1e-99",
    HALF,
]


def holder(name: str, amount: Any, node: str | None = "n1") -> Manifest:
    return allocated(claim(name, {"requests": {"mem": 2}}), [entry("p", "x", mem=amount)], node=node)


def wants(mem: int, name: str = "new") -> Manifest:
    return claim(name, {"requests": {"mem": mem}})


def answers(*documents: Any) -> dict[str, dict[str, Any]]:
    return {c["name"]: c for c in solve_manifests(documents)["claims"]}


@pytest.mark.parametrize("amount", UNREADABLE, ids=quote_value)
@pytest.mark.parametrize("neighbours", [[], [holder("full", "8")]], ids=["alone", "beside another"])
def test_an_amount_that_tells_nothing_holds_the_whole_device(amount: Any, neighbours: list[Manifest]) -> None:
    answer = solve_manifests([POOL, *neighbours, holder("odd", amount), wants(1)])
    by_name = {c["name"]: c for c in answer["claims"]}
    owners = [("full", "status"), ("odd", "status")] if neighbours else []
    assert sorted((p["name"], p["path"]) for p in answer["problems"]) == sorted([("odd", PATH), *owners])
    assert all("has several owners" in p["message"] for p in answer["problems"] if p["path"] == "status")
    assert not by_name["new"]["allocated"]
    assert by_name["new"]["reason"] == "DevicesInUse"
    assert by_name["odd"]["allocated"]
    assert by_name["odd"]["allocations"] == [{"devicePoolName": "p", "deviceName": "x"}]
    assert PATH in by_name["odd"]["warnings"][0]


@pytest.mark.parametrize("amount", ["-5", "junk"])
def test_nor_does_a_fleet_give_the_device_away(amount: str) -> None:
    documents = [POOL, holder("full", "8")]
    loaded = Fleet.from_manifests([*documents, holder("odd", amount)])
    updated = Fleet.from_manifests(documents)
    assert [p["path"] for p in updated.update(holder("odd", amount))] == [PATH]
    for fleet in (loaded, updated):
        assert not fleet.allocate(wants(1))["allocated"]
        fleet.delete(holder("full", "8"))
        assert not fleet.allocate(wants(1))["allocated"]
        assert not fleet.allocate_all([wants(1)])["claims"][0]["allocated"]
        fleet.release("default", "odd")
        assert fleet.allocate(wants(8))["allocated"]
        assert not fleet.allocate_all([wants(1, "later")])["claims"][0]["allocated"]


def test_each_entry_is_read_by_itself() -> None:
    both = pool("p", "n1", devices=[device(name, resources={"mem": 8}) for name in ("x", "y", "z")])
    entries: list[Any] = [entry("p", "x", mem=2), {"devicePoolName": "p"}, entry("p", "y", mem="junk"), 7]
    odd = allocated(claim("odd", {}), entries, node="n1")
    by_name = answers(both, odd, claim("new", {"requests": {"mem": 14}}), claim("then", {"requests": {"mem": 1}}))
    assert [(e["deviceName"], e.get("allocations", [])) for e in by_name["odd"]["allocations"]] == [
        ("x", [{"name": "mem", "allocation": "2"}]),
        ("y", []),
    ]
    assert {e["deviceName"] for e in by_name["new"]["allocations"]} == {"x", "z"}
    assert not by_name["then"]["allocated"]


def test_a_node_that_cannot_be_read_may_be_any() -> None:
    by_name = answers(POOL, holder("odd", "2", node=HALF), claim("new", {"requests": {"mem": 8}}))
    assert by_name["odd"]["node"] is None
    assert by_name["odd"]["allocated"]
    assert not by_name["new"]["allocated"]


def test_a_status_that_names_no_device_holds_none() -> None:
    odd = {**claim("odd", {}), "status": {"allocations": [{"devicePoolName": "p", "deviceName": HALF}, "x"]}}
    by_name = answers(POOL, odd, wants(8))
    assert not by_name["odd"]["allocated"]
    assert by_name["new"]["allocated"]


def test_an_invalid_claim_shows_what_it_lost() -> None:
    odd = allocated(claim("odd", {"colour": "red"}), [entry("p", "gone", mem=2)], node="n1")
    answer = solve_manifests([POOL, odd])
    assert [p["message"] for p in answer["problems"] if p["path"] == "status.allocations"] == [
        "DeviceLost: device p/gone no longer exists"
    ]


def negative() -> DeviceClaim:
    """A claim that holds less than nothing, which no manifest can say."""
    minus = ResourceAllocation.model_construct(name="mem", allocation=Quantity(-5 * NANO))
    share = DeviceAllocation.model_construct(device_pool_name="p", device_name="x", allocations=[minus])
    odd = DeviceClaim.model_validate(holder("odd", "2"))
    return odd.model_copy(update={"status": DeviceClaimStatus.model_construct(allocations=[share])})


def test_typed_objects_give_nothing_away_either() -> None:
    valid, new = DevicePool.model_validate(POOL), DeviceClaim.model_validate(wants(1))
    full = DeviceClaim.model_validate(holder("full", "8"))
    solution = solve([valid], [], [full, negative(), new])
    assert not solution["default", "new"].allocated


@pytest.mark.parametrize("twice", [False, True], ids=["valid", "left out"])
def test_the_check_finds_that_by_itself(twice: bool) -> None:
    valid, new = DevicePool.model_validate(POOL), DeviceClaim.model_validate(wants(1))
    granted = {"namespace": "default", "name": "new", "allocated": True, "node": "n1", "oneOf": [None]}
    granted["allocations"] = [entry("p", "x", mem="1")]
    granted["annotations"] = {"devalloc.io/allocation-details": '["0"]', "devalloc.io/allocated-node": "n1"}
    odd = negative()
    echo = {"namespace": "default", "name": "odd", "allocated": True, "node": "n1", "oneOf": [None]}
    echo["allocations"] = [entry("p", "x", mem="-5")]

    class LeftOut:
        key, group, node, status = odd.key, None, "n1", odd.status

    wrong = check([valid], [], [new] if twice else [new, odd], [granted, echo], left_out=[LeftOut()] if twice else [])
    assert len(wrong) == 1
    assert "is used whole by default/odd and in shares here (S10)" in wrong[0]


@pytest.mark.parametrize("documents", [["text", POOL, [1], None], [None, POOL, [1], "text"]], ids=["first", "second"])
def test_a_document_other_than_an_object_is_named_by_its_beginning(documents: list[Any]) -> None:
    """Not by its number: the same documents in another order get the same answer (D5)."""
    for problems in (
        solve_manifests(documents)["problems"],
        Fleet.from_manifests(documents).allocate_all([wants(1)])["problems"],
    ):
        kinds = [p["message"].partition("not ")[2] for p in problems if "must be an object" in p["message"]]
        assert kinds == ["a list ([1])", "a string ('text')", "null"]


def _placed(name: str, value: Any) -> Manifest:
    content = wants(1, "odd")
    if name in ("name", "namespace"):
        content["metadata"][name] = value
    elif name == "kind":
        content["kind"] = value
    elif name == "requests":
        content["spec"]["claims"][0]["requests"] = {value: 1}
    elif name == "constraints":
        content["spec"]["claims"][0]["constraints"] = f"device.x == '{value}'"
    else:
        content["metadata"]["annotations"] = {f"devalloc.io/{name}": value}
    return content


@pytest.mark.parametrize("where", ["name", "namespace", "kind", "requests", "constraints", "group", "node"])
def test_half_a_surrogate_pair_is_a_problem_of_its_object_alone(where: str) -> None:
    odd = _placed(where, HALF)
    answer = solve_manifests([POOL, odd, wants(1)])
    json.dumps(answer, ensure_ascii=False).encode()  # every message can be written
    assert any(where in p["path"] and p["severity"] == "error" for p in answer["problems"])
    assert next(c for c in answer["claims"] if c["name"] == "new")["allocated"]
    fleet = Fleet.from_manifests([POOL])
    if where != "kind":
        json.dumps(fleet.allocate(odd), ensure_ascii=False).encode()
        fleet.update(odd)
        fleet.delete(odd)
    assert fleet.allocate(wants(1))["allocated"]


@pytest.mark.parametrize("matching", [False, True], ids=["alone", "with a pending member of its group"])
def test_a_claim_of_many_devices_costs_in_proportion_to_them(matching: bool) -> None:
    """Each entry was looked for among all devices of its pool: 64 times as much for eight times as many."""
    seconds = []
    for count in (500, 4000):
        devices = [device(f"d{number}", attributes={"rack": "r"}) for number in range(count)]
        both = [claim("big", {"requests": {"count": count}}), claim("small", {"requests": {"count": 1}})]
        if matching:
            for each in both:
                each["metadata"]["annotations"] = {GROUP: "g", GROUP_MATCH: "rack"}
        held = allocated(both[0], [entry("p", one["name"]) for one in devices])
        documents = [pool("p", "n1", devices=devices), held, *both[1:]]
        costs = []
        for _ in range(2):
            began = time.process_time()
            solve_manifests(documents)
            costs.append(time.process_time() - began)
        seconds.append(min(costs))
    assert seconds[1] < 20 * seconds[0]
