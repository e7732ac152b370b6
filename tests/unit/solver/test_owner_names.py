"""What the solver places beside claims has a name that no object can have, and is called what it is for."""

from __future__ import annotations

from typing import Any

import pytest

from devalloc.api import meta
from devalloc.api.node_rules import FIELD, Restrictions
from devalloc.api.owner_names import CLAIM, MACHINE, Owner, is_object, owner_name, owner_of, read_name
from devalloc_solver import Fleet, dra, solve_manifests
from devalloc_solver.testing import allocated, claim, device, device_class, entry, pool, request
from tests.support import dra_builders
from tests.support.manifests import Manifest

GPU = device_class("gpu", driver="gpu")
POOL = pool("p", "n1", driver="gpu", devices=[device("g0"), device("g1")])


def of_machine(part: str = "", *, kind: str = MACHINE, held: str | None = None, **annotations: str) -> Manifest:
    one = claim("vm", request("gpu"), **annotations)
    if held is not None:
        one = allocated(one, [entry("p", held)], node="n1")
    return {**one, "metadata": {**one["metadata"], "name": owner_name(kind, "vm", part)}, FIELD: Restrictions()}


def answer(name: str, *documents: Manifest) -> dict[str, Any]:
    one: dict[str, Any] = next(each for each in solve_manifests(documents)["claims"] if each["name"] == name)
    return one


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("vm", Owner(CLAIM, "ns", "vm")),
        (owner_name(MACHINE, "vm"), Owner(MACHINE, "ns", "vm")),
        (owner_name(MACHINE, "vm", "io"), Owner(MACHINE, "ns", "vm")),
        (owner_name(CLAIM, "c", "move"), Owner(CLAIM, "ns", "c")),
        ("Pod/vm", Owner(CLAIM, "ns", "Pod/vm")),
        ("VirtualMachine", Owner(CLAIM, "ns", "VirtualMachine")),
    ],
)
def test_a_name_says_whose_the_devices_are(name: str, owner: Owner) -> None:
    assert owner_of(("ns", name)) == owner


@pytest.mark.parametrize("kind", [MACHINE, CLAIM])
@pytest.mark.parametrize("part", ["", "io", "move"])
@pytest.mark.parametrize("has", [False, True])
def test_a_claim_that_a_file_calls_like_an_owner_is_another_one(*, kind: str, part: str, has: bool) -> None:
    forged = {one: value for one, value in of_machine(part, kind=kind).items() if one != FIELD}
    forged |= {"status": {"allocations": [entry("p", "g1")]}} if has else {}
    name = read_name(owner_name(kind, "vm", part))
    assert answer(owner_name(kind, "vm", part), GPU, POOL, forged, of_machine(part, kind=kind))["allocated"]
    other = answer(name, GPU, POOL, forged, of_machine(part, kind=kind))
    assert "ClaimInvalid" in (other["reason"], *(text.partition(":")[0] for text in other.get("warnings", ())))
    assert is_object(("ns", name))
    late = answer("late", GPU, POOL, forged, of_machine(part, kind=kind, held="g0"), claim("late", request("gpu", 2)))
    named = {(one["kind"], one["name"]) for one in late["blockers"]}
    assert named == {("machine" if kind == MACHINE else "claim", "vm")} | ({("claim", name)} if has else set())


def test_so_is_a_resource_claim() -> None:
    name = owner_name(MACHINE, "vm")
    forged = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}, "spec": {}}
    plain = {**forged, "metadata": {"name": "c"}}
    (refused, _) = dra.solve_manifests([forged, plain])["claims"]
    assert (refused["name"], refused["reason"]) == (read_name(name), "ClaimInvalid")
    fleet = Fleet.from_manifests([])
    assert [fleet.allocate(one)["reason"] for one in (plain, forged)] == [None, "ClaimInvalid"]


@pytest.mark.parametrize(
    ("group", "is_named"), [(owner_name(MACHINE, "vm"), [True, True]), ("", [None, None])], ids=repr
)
def test_so_is_a_group_of_resource_claims_and_an_empty_one_is_none(group: str, is_named: list[bool | None]) -> None:
    devices = [dra_builders.ANY, dra_builders.slice_("s", dra_builders.devices("g0"))]
    more = dra_builders.slice_("t", dra_builders.devices("h0"), pool="q", nodeName="n2")
    both = [dra_builders.claim(dra_builders.request(), name=name, marks={"group": group}) for name in "ab"]
    fleet = Fleet.from_manifests([*devices, more])
    for answers in (dra.solve_manifests([*devices, more, *both])["claims"], [*map(fleet.allocate, both)]):
        texts = [one["message"] for one in answers]
        assert [None if text is None else "group VirtualMachine" in text for text in texts] == is_named


def test_a_claim_that_names_the_group_of_a_machine_is_in_none() -> None:
    group = owner_name(MACHINE, "vm")
    own = {**claim("own", request("gpu"), group="g"), FIELD: Restrictions()}
    own["metadata"]["annotations"][meta.GROUP] = group
    others = claim("others", request("gpu", 9))
    others["metadata"]["annotations"] = {meta.GROUP: group}
    assert answer("own", GPU, POOL, own, others)["allocated"]
    assert answer("others", GPU, POOL, own, others)["reason"] == "ClaimInvalid"
    fleet = Fleet.from_manifests([GPU, POOL])
    assert [one["allocated"] for one in fleet.allocate_all([others, own])["claims"]] == [False, True]


def test_what_is_wrong_with_an_owner_is_said_of_its_object() -> None:
    held = {**of_machine(), "status": {"allocations": [{**entry("p", "g0"), "allocations": [{"name": "m"}]}]}}
    problems = solve_manifests([GPU, POOL, held])["problems"]
    assert {(one["kind"], one["name"], one["path"].partition("[")[0]) for one in problems} == {
        (MACHINE, "vm", "status.allocations")
    }


def test_what_an_owner_has_like_a_claim_is_the_problem_of_that_claim_only() -> None:
    held = allocated(claim("c", request("gone")), [entry("p", "g1")], node="n1")
    both = [POOL, held, {**of_machine("moved", held="g0"), "spec": held["spec"]}]
    assert [one["name"] for one in solve_manifests(both)["problems"]] == ["c"]


def test_a_machine_is_named_as_one_whatever_part_of_it_is_in_the_way() -> None:
    held = [GPU, POOL, of_machine("io", held="g0"), of_machine(held="g1")]
    late = claim("late", request("gpu"))
    refused = answer("late", *held, late)
    assert refused["message"].endswith("; stop machine default/vm, or wait for it")
    assert [(one["kind"], one["name"]) for one in refused["blockers"]] == [("machine", "vm")]
    assert refused["funnel"][0]["usedBy"][0] == {"namespace": "default", "name": "vm", "title": "machine", "count": 1}
    assert Fleet.from_manifests(held).allocate(late) == refused


def test_of_a_group_that_a_machine_holds_on_a_node_the_machine_is_to_stop() -> None:
    held = of_machine(held="g0", group="g")
    larger = pool("q", "n2", driver="gpu", devices=[device("h0"), device("h1"), device("h2")])
    refused = answer("late", GPU, POOL, larger, held, claim("late", request("gpu", 3), group="g"))
    assert "stop machine default/vm, which holds the group on node n1" in refused["message"]


def test_a_machine_and_a_claim_of_one_name_are_two() -> None:
    both = [GPU, POOL, of_machine(), claim("vm", request("gpu"))]
    assert all(one["allocated"] for one in solve_manifests(both)["claims"])


def test_devices_beside_those_of_a_claim_are_the_claims() -> None:
    held = [GPU, POOL, of_machine(kind=CLAIM, part="move", held="g0"), of_machine(held="g1")]
    blockers = answer("late", *held, claim("late", request("gpu", 2)))["blockers"]
    assert {(one["kind"], one["name"]) for one in blockers} == {("claim", "vm"), ("machine", "vm")}


def test_too_much_that_a_machine_holds_is_its_problem() -> None:
    problems = solve_manifests([GPU, POOL, of_machine("io", held="g0"), of_machine(held="g0")])["problems"]
    assert {(one["kind"], one["namespace"], one["name"]) for one in problems} == {(MACHINE, "default", "vm")}
    assert "machine default/vm" in problems[0]["message"]


def test_no_quota_counts_it() -> None:
    hard = {"gpu.deviceclass.devmgmtproto.k8s.io/devices": "0"}
    none = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": hard}}
    assert answer(owner_name(MACHINE, "vm"), GPU, none, POOL, of_machine())["allocated"]
    assert answer("c", GPU, none, POOL, claim("c", request("gpu")))["reason"] == "QuotaExceeded"
