"""A fleet that is given all objects again takes in what has changed, and says what that was."""

from __future__ import annotations

from typing import Any

import pytest

from devalloc_solver import Fleet, solve_manifests
from devalloc_solver.testing import claim, device, device_class, pool, request
from tests.support import dra_builders
from tests.unit.solver.test_fleet_late_states import DIALECTS, version

Object = dict[str, Any]

CLASS, POOL = device_class("any"), pool("p", "n", devices=[device("d0"), device("d1")])
API = CLASS["apiVersion"]


def held(device_name: str, resource_version: int = 1) -> Object:
    entries = [{"devicePoolName": "p", "deviceName": device_name}]
    return version({**claim("a", request("any")), "status": {"allocations": entries}}, resource_version)


def names(changed: Any) -> dict[str, bool]:
    """Of each object whether it is there."""
    return {name[3]: document is not None for name, document in changed.items()}


@DIALECTS
def test_the_first_call_loads_all_and_the_next_one_what_differs(of: Any) -> None:
    fleet = Fleet("pack")
    assert names(fleet.sync(of.documents)) == {each["metadata"]["name"]: True for each in of.documents}
    assert fleet.sync([{**each} for each in of.documents]) == {}
    assert fleet.allocate(of.pending("b"))["allocated"]
    supply = of.documents[1]["metadata"]["name"]
    assert names(fleet.sync(of.documents[:1])) == {supply: False}
    assert not fleet.allocate(of.pending("c"))["allocated"]


def test_an_object_has_its_name_with_the_version_of_its_kind() -> None:
    fleet = Fleet("pack")
    assert [*fleet.sync([CLASS, POOL])] == [(API, "DeviceClass", "default", "any"), (API, "DevicePool", "default", "p")]


@pytest.mark.parametrize("of_metadata", [{"resourceVersion": "7"}, {}])
def test_what_else_than_claims_report_changes_nothing(of_metadata: Object) -> None:
    fleet = Fleet("pack")
    fleet.sync([CLASS, POOL])
    reporting = {**POOL, "metadata": {**POOL["metadata"], **of_metadata}, "status": {"availableDevices": 2}}
    assert fleet.sync([CLASS, reporting]) == {}
    assert names(fleet.sync([CLASS, {**reporting, "spec": pool("p", "n", devices=[device("d0")])["spec"]}])) == {
        "p": True
    }


def test_a_claim_has_what_the_list_says_also_if_that_is_an_older_state() -> None:
    fleet = Fleet("pack")
    for number, device_name, other in ((12, "d1", "d0"), (9, "d0", "d1")):
        assert "a" in names(fleet.sync([CLASS, POOL, held(device_name, number)]))
        answer = fleet.allocate(claim("b", request("any")))
        assert [each["deviceName"] for each in answer["allocations"]] == [other]
        fleet.release("default", "b")
        fleet.delete(claim("b", request("any")))


def test_what_the_fleet_gave_since_is_given_until_the_claim_itself_changes() -> None:
    fleet, waiting = Fleet("pack"), claim("b", request("any"))
    fleet.sync([CLASS, POOL, waiting])
    assert fleet.allocate(waiting)["allocated"]
    fleet.sync([CLASS, POOL, waiting])
    assert fleet.holds("default", "b")
    fleet.sync([CLASS, POOL, {**waiting, "spec": claim("b", request("any", 2))["spec"]}])
    assert not fleet.holds("default", "b")


def test_what_remains_stays_although_it_is_not_listed_until_it_does_not_remain_either() -> None:
    fleet, holder = Fleet("pack"), held("d0")
    fleet.sync([CLASS, POOL, holder])
    remaining = {Fleet.object_name(holder)}
    assert fleet.sync([CLASS, POOL], remaining) == {}
    assert fleet.holds("default", "a")
    assert names(fleet.sync([CLASS], remaining)) == {"p": False}
    assert fleet.sync([CLASS, holder]) == {}
    fleet.sync([CLASS], remaining)
    assert names(fleet.sync([CLASS])) == {"a": False}
    assert not fleet.holds("default", "a")


def test_objects_that_came_in_by_other_calls_stay() -> None:
    fleet = Fleet("pack")
    fleet.sync([CLASS])
    fleet.update(POOL)
    assert fleet.sync([CLASS]) == {}
    assert fleet.allocate(claim("a", request("any")))["allocated"]


def test_both_dialects_have_a_class_of_one_name() -> None:
    documents = [CLASS, POOL, *ResourceClaimsBeside.documents]
    fleet = Fleet("pack")
    assert len(fleet.sync(documents)) == 4
    (gone,) = fleet.sync([CLASS, POOL, ResourceClaimsBeside.documents[1]])
    assert gone == (dra_builders.ANY["apiVersion"], "DeviceClass", "default", dra_builders.ANY["metadata"]["name"])
    assert fleet.allocate(claim("a", request("any")))["allocated"]


class ResourceClaimsBeside:
    documents = (dra_builders.device_class("any"), dra_builders.slice_("s", dra_builders.devices("d0")))


@pytest.mark.parametrize(
    "document", ["text", {}, {"kind": "DevicePool"}, {"metadata": {"name": "p"}}, {"kind": "A", "metadata": 3}]
)
def test_what_has_no_name_is_refused_and_nothing_is_taken_in(document: Any) -> None:
    fleet = Fleet("pack")
    fleet.sync([CLASS, POOL])
    with pytest.raises(ValueError, match=r"with its kind and its metadata\.name"):
        fleet.sync([CLASS, document])
    assert fleet.allocate(claim("a", request("any")))["allocated"]


def test_answers_are_those_of_a_solve_of_the_list() -> None:
    fleet = Fleet("pack")
    waiting = claim("b", request("any", 2))
    for documents in ([CLASS, POOL], [CLASS, POOL, held("d0")], [POOL], [CLASS, POOL, held("d1", 3)], [CLASS, POOL]):
        fleet.sync(documents)
        expected = solve_manifests([*documents, waiting])["claims"]
        answer = fleet.allocate(waiting)
        assert answer in expected
        fleet.delete(waiting) if answer["allocated"] else None
