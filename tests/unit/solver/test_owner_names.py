"""What the solver places beside claims has a name that no object can have, and is called what it is for."""

from __future__ import annotations

from typing import Any

import pytest

from devalloc.api.node_rules import FIELD
from devalloc.api.owner_names import CLAIM, MACHINE, Owner, is_object, owner_name, owner_of
from devalloc_solver import Fleet, solve_manifests
from devalloc_solver.testing import allocated, claim, device, device_class, entry, pool, request
from tests.support.manifests import Manifest

GPU = device_class("gpu", driver="gpu")
POOL = pool("p", "n1", driver="gpu", devices=[device("g0"), device("g1")])


def of_machine(part: str = "", *, kind: str = MACHINE, held: str | None = None, **annotations: str) -> Manifest:
    one = claim("vm", request("gpu"), **annotations)
    if held is not None:
        one = allocated(one, [entry("p", held)], node="n1")
    return {**one, "metadata": {**one["metadata"], "name": owner_name(kind, "vm", part)}, FIELD: ()}


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


def test_no_object_has_such_a_name() -> None:
    forged = {name: value for name, value in of_machine().items() if name != FIELD}
    assert answer(owner_name(MACHINE, "vm"), GPU, POOL, forged)["reason"] == "ClaimInvalid"
    assert is_object(("ns", "vm.virtualmachine"))


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
