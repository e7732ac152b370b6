"""A few claims of a large fleet are solved on the nodes that matter, and get what they get from all of it."""

from __future__ import annotations

import json
from collections import Counter
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from devalloc.api.meta import GROUP, NODE, PRIORITY
from devalloc_solver import Fleet
from devalloc_solver.cel.budget import SEARCH_CUT_SHORT, SearchCutShort
from devalloc_solver.dialects.device_claims.fleet_explainer import DeviceClaimsExplainer
from devalloc_solver.dialects.device_claims.fleet_state import DeviceFleetState
from devalloc_solver.eligibility.judge import ExpressionError, ExpressionRefusal
from devalloc_solver.fleet import backend
from devalloc_solver.fleet.backend import FleetBackend
from devalloc_solver.testing import device, device_class, pool
from tests.support import dra_builders as dra
from tests.support.examples import examples
from tests.support.manifests import claim

Manifest = dict[str, Any]


def fleet(placement: str = "pack", *, nodes: int = 12) -> Fleet:
    documents: list[Manifest] = [device_class("gpu", driver="g"), device_class("nic", driver="n")]
    for node in range(nodes):
        gpus = [device(f"d{number}", attributes={"numa": number // 2, "model": "ab"[node % 2]}) for number in range(4)]
        documents.append(pool(f"g{node}", f"node-{node}", "g", devices=gpus))
        documents.append(pool(f"n{node}", f"node-{node}", "n", devices=[device("d0", attributes={"numa": node % 2})]))
    warm = Fleet.from_manifests(documents, placement=placement)
    warm.allocate_all([])
    return warm


def wants(name: str, count: int = 1, *more: Manifest, match: list[str] | None = None, **notes: str) -> Manifest:
    gpus = {"deviceClass": "gpu", "requests": {"count": count}, **({"matchAttributes": match} if match else {})}
    wanted = claim(name, gpus, *more)
    wanted["metadata"]["annotations"] = {f"devalloc.io/{key}": value for key, value in notes.items()}
    return wanted


NIC = {"deviceClass": "nic", "requests": {"count": 1}}
ONE_OF = {"oneOf": [{"deviceClass": "gpu", "requests": {"count": 3}}, NIC]}


def drawn(random: Random, name: str) -> Manifest:
    count = random.choice([1, 1, 2, 3])
    kind = random.randrange(5)
    if kind == 0:
        return wants(name, count, NIC)
    if kind == 1:
        return wants(name, 2, match=["numa"])
    if kind == 2:
        return wants(name, count, priority=str(random.randrange(3)))
    if kind == 3:
        return wants(name, 1, ONE_OF)
    return wants(name, count, node=f"node-{random.randrange(12)}")


def whole(warm: Fleet, claims: list[Manifest]) -> Any:
    with patch.object(FleetBackend, "_allocate_in_part", return_value=None):
        return warm.allocate_all(claims)


def shown(answer: Any) -> str:
    return json.dumps({**answer, "seconds": 0})


@pytest.mark.parametrize("placement", ["pack", "spread"])
def test_the_answers_are_those_of_the_whole_fleet(placement: str) -> None:
    random, one, other = Random(3), fleet(placement), fleet(placement)
    live: list[str] = []
    in_part = 0
    for turn in range(40):
        claims = [drawn(random, f"c{turn}-{number}") for number in range(random.choice([1, 2, 2, 3]))]
        with patch.object(
            DeviceFleetState, "everything", autospec=True, side_effect=DeviceFleetState.everything
        ) as all_of:
            answer = one.allocate_all(claims)
        in_part += not all_of.called
        assert shown(answer) == shown(whole(other, claims))
        live += [each["name"] for each in answer["claims"] if each["allocated"] and each["name"] not in live]
        while len(live) > 14:
            gone = live.pop(random.randrange(len(live)))
            for warm in (one, other):
                warm.release("default", gone)
                warm.delete(wants(gone))
    assert in_part > 20


def test_the_only_claim_of_several_that_fits_gets_the_devices_that_it_gets_of_the_whole_fleet() -> None:
    devices = [device("d0"), {"name": "d1", "requests": {"slots": 1}}, device("d2")]
    drawn_on = pool("p2", "n2", "nic", devices=devices)
    drawn_on["spec"]["resources"] = [{"name": "slots", "capacity": "2"}]
    documents = [pool("p1", "n1", "gpu", devices=[device("d")]), drawn_on]
    claims = [claim("a", {}, {"requests": {"count": 2}}), claim("b", {"requests": {"count": 2, "memory": "1Gi"}})]
    one, other = (Fleet.from_manifests(documents, placement="spread") for _ in range(2))
    one.allocate_all([])
    assert shown(one.allocate_all(claims)) == shown(whole(other, claims))


def cluster() -> Fleet:
    """The same of resource.k8s.io, with devices that nodes share."""
    documents: list[Manifest] = [
        dra.device_class("gpu", "device.driver == 'g'"),
        dra.device_class("nic", "device.driver == 'n'"),
        dra.slice_("all", dra.devices("x", "y"), driver="fabric", pool="all", allNodes=True),
    ]
    for node in range(8):
        gpus = [
            dra.device(f"d{n}", attributes={"numa": {"int": n // 2}, "id": {"string": f"{node}-{n}"}}) for n in range(4)
        ]
        documents.append(dra.slice_(f"g{node}", gpus, driver="g", pool=f"g{node}", nodeName=f"node-{node}"))
        documents.append(
            dra.slice_(f"n{node}", dra.devices("d0"), driver="n", pool=f"n{node}", nodeName=f"node-{node}")
        )
    warm = Fleet.from_manifests(documents)
    warm.allocate_all([])
    return warm


def drawn_resource_claim(random: Random, name: str) -> Manifest:
    count = random.choice([1, 1, 2, 3, 5])
    kind = random.randrange(6)
    requests = [dra.request("r", count, class_name="gpu")]
    constraints: list[Manifest] = []
    if kind == 0:
        requests.append(dra.request("x", 1, class_name="nic"))
    if kind == 1:
        constraints = [{"requests": ["r"], "matchAttribute": "g/numa"}]
    if kind == 2:
        requests = [dra.request("r", 1, f"device.attributes['g'].id == '{random.randrange(9)}-1'", class_name="gpu")]
    if kind == 3 and random.random() < 0.3:
        requests = [dra.request("r", 1, "device.driver == 'fabric'", class_name=random.choice(["nic", "missing"]))]
    wanted = dra.claim(*requests, name=name, constraints=constraints)
    if random.random() < 0.3:
        wanted["metadata"].setdefault("annotations", {})["devalloc.io/priority"] = str(random.randrange(3))
    return wanted


@pytest.mark.parametrize("seed", range(examples(6, 0.05)))
@pytest.mark.parametrize("is_cluster", [False, True], ids=["DeviceClaims", "ResourceClaims"])
def test_refusals_of_a_crowded_fleet_are_those_of_the_whole_fleet(is_cluster: bool, seed: int) -> None:
    random = Random(seed)
    placement = random.choice(["pack", "spread"])
    one, other = (cluster(), cluster()) if is_cluster else (fleet(placement, nodes=6), fleet(placement, nodes=6))
    make, kind = (drawn_resource_claim, "ResourceClaim") if is_cluster else (drawn, "DeviceClaim")
    live: list[str] = []
    refused = turns = 0
    for turn in range(25):
        claims = [make(random, f"c{turn}-{number}") for number in range(random.choice([1, 2, 3, 5]))]
        answer, expected = one.allocate_all(claims), whole(other, claims)
        assert goals(answer) == goals(expected)
        if devices(answer) != devices(expected):
            break  # of nodes that are equal, another one was taken: from now on they are two fleets
        assert shown(answer) == shown(expected)
        turns += 1
        refused += sum(not each["allocated"] for each in answer["claims"])
        live += [each["name"] for each in answer["claims"] if each["allocated"] and each["name"] not in live]
        while live and random.random() < 0.6:
            gone = live.pop(random.randrange(len(live)))
            for warm in (one, other):
                warm.release("default", gone)
                warm.delete({"kind": kind, "metadata": {"namespace": "default", "name": gone}})
    assert refused
    assert turns > 15


def goals(answer: Any) -> object:
    """What goals 1 to 4 of S17 say of an answer."""
    answers = [(each["name"], each["allocated"], each["oneOf"], each["reason"]) for each in answer["claims"]]
    return answer["objective"], answer["optimal"], answer["problems"], answers


def devices(answer: Any) -> object:
    return [each["allocations"] for each in answer["claims"]]


@pytest.mark.parametrize(
    "change",
    [
        device_class("other", driver="other", constraints="device.("),
        pool("g0", "node-0", "g", devices=[device("other")]),
        {**wants("broken"), "spec": {"claims": []}},
        {**wants("held"), "status": {"allocations": [{"devicePoolName": "g0", "deviceName": "gone"}]}},
    ],
    ids=["a class", "a pool", "an invalid claim", "a claim with a device that is gone"],
)
def test_what_is_wrong_since_is_listed(change: Manifest) -> None:
    one, other = fleet(), fleet()
    for warm in (one, other):
        warm.allocate(wants("first", 2))
        warm.update(change)
    claims = [wants("a"), wants("b", 2)]
    assert shown(one.allocate_all(claims)) == shown(whole(other, claims))


def test_a_node_that_becomes_invalid_is_listed() -> None:
    warm = cluster()
    warm.update({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-0", "labels": 7}})
    assert [(problem["kind"], problem["name"]) for problem in warm.problems] == [("Node", "node-0")]


@pytest.mark.parametrize("given", [[], ["x"], ["x", "y"]], ids=len)
def test_claims_that_fit_nowhere_are_refused_without_a_look_at_all(given: list[str]) -> None:
    """And as beside the others: of the claims that may make room, those that were just given devices come first."""
    one, other = fleet(nodes=1), fleet(nodes=1)
    for warm in (one, other):
        for name in ("old-0", "old-1"):
            warm.allocate(wants(name))
    claims = [*map(wants, given), wants("three", 3), wants("many", 5)]
    with patch.object(DeviceFleetState, "everything", side_effect=AssertionError):
        answer = one.allocate_all(claims)
    refused = {
        each["name"]: [blocker.get("name") for blocker in each["blockers"]]
        for each in answer["claims"]
        if not each["allocated"]
    }
    assert refused.keys() == {"three", "many"}
    assert {*refused["three"]} >= {*given}
    assert shown(answer) == shown(whole(other, claims))


@pytest.mark.parametrize("fitting", [[], ["a"], ["a", "c"]])
def test_only_claims_that_fit_by_themselves_are_searched_for_together(fitting: list[str]) -> None:
    claims = [wants(name, 1 if name in fitting else 9, priority=str(number)) for number, name in enumerate("abc")]
    with patch.object(backend, "search_parts", wraps=backend.search_parts) as search:
        answer: Any = fleet().allocate_all(claims)
    searched = [unit.demands[0].key[1] for call in search.call_args_list for unit in call.args[2]]
    assert sorted(searched) == fitting
    with patch.object(FleetBackend, "_allocate_in_part", return_value=None):
        whole: Any = fleet().allocate_all(claims)
    assert {**answer, "seconds": 0} == {**whole, "seconds": 0}


def test_all_is_looked_at_if_an_expression_costs_too_much_only_for_a_reason() -> None:
    one, other = fleet(), fleet()
    claims = [wants("a", 2), wants("many", 5)]
    with patch.object(DeviceClaimsExplainer, "explain", side_effect=ExpressionError(ExpressionRefusal("costly"))):
        assert shown(one.allocate_all(claims)) == shown(whole(other, claims))


def test_a_claim_without_time_for_a_reason_says_so_and_the_others_keep_what_they_got() -> None:
    warm = fleet()
    with patch.object(DeviceClaimsExplainer, "explain", side_effect=SearchCutShort(SEARCH_CUT_SHORT)):
        answer = warm.allocate_all([wants("a", 2), wants("many", 5)])
    assert [(each["name"], each["reason"]) for each in answer["claims"]] == [("a", None), ("many", "SearchLimit")]


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("is_cluster", [False, True], ids=["DeviceClaims", "ResourceClaims"])
def test_a_claim_whose_devices_are_taken_back_is_as_known_as_before(is_cluster: bool, is_known: bool) -> None:
    if is_cluster:
        warm, kind = cluster(), "ResourceClaim"
        claims = [dra.claim(dra.request(count=count, class_name="gpu"), name=f"c{count}") for count in (1, 30)]
    else:
        warm, kind = fleet(), "DeviceClaim"
        claims = [wants(f"c{count}", count) for count in (1, 30)]
    if is_known:
        warm.update(claims[0])
    warm.allocate_all([])
    backend = warm._backend({"kind": kind})
    kinds = Counter(backend.kinds())
    error = backend._errors[0]
    unclear = error.__new__(error)
    solve = patch.object(type(backend), "_solve", side_effect=InterruptedError)
    with solve, patch.object(FleetBackend, "_refuse", side_effect=unclear), pytest.raises(InterruptedError):
        warm.allocate_all(claims)
    assert Counter(backend.kinds()) == kinds
    assert not warm.holds("default", "c1", kind)


def test_what_the_caller_writes_on_an_answer_is_in_no_other() -> None:
    one, other = fleet(), fleet()
    for turn, warm in enumerate([one, one, one, other, other, other]):
        answer = warm.allocate_all([wants(f"a{turn % 3}"), wants(f"b{turn % 3}")])
        if warm is one:
            for each in answer["claims"]:
                each["allocations"][0]["deviceName"] = "other"
                each["oneOf"].append(7)
    for warm in (one, other):
        warm.update(wants("pending"))
    claims = [wants("c"), wants("d")]
    assert shown(one.allocate_all(claims)) == shown(whole(other, claims))


def test_a_claim_that_comes_back_as_it_was_written_changes_nothing() -> None:
    warm = fleet()
    given = warm.allocate(wants("a", 2))
    written = {**wants("a", 2), "status": {"allocations": given["allocations"]}}
    written["metadata"]["annotations"] = given["annotations"]
    warm.update(written)
    with patch.object(DeviceFleetState, "everything", side_effect=AssertionError):
        answer = warm.allocate_all([wants("b"), wants("c")])
    assert [each["name"] for each in answer["claims"] if each["allocated"]] == ["a", "b", "c"]


@pytest.mark.parametrize("notes", [{GROUP: "g"}, {NODE: "none"}, {PRIORITY: "high"}], ids=str)
def test_of_other_claims_all_is_looked_at(notes: dict[str, str]) -> None:
    one, other = fleet(), fleet()
    special = wants("a")
    special["metadata"]["annotations"] = notes
    claims = [special, wants("b")]
    assert shown(one.allocate_all(claims)) == shown(whole(other, claims))
