"""The warm Fleet as a caller sees it."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

import pytest

from devalloc_solver import AnswerRefused, Fleet, solve_manifests, testing
from devalloc_solver.dialects.device_claims import fleet as fleet_module
from devalloc_solver.dialects.device_claims.fleet import DeviceClaimFleet
from devalloc_solver.dialects.device_claims.fleet_state import DeviceFleetState
from devalloc_solver.fleet import node_index as index_nodes
from devalloc_solver.fleet import place_finder
from devalloc_solver.fleet.placed import PlacedClaim
from devalloc_solver.problem.snapshot import take_snapshot
from tests.support import dra_builders
from tests.support.manifests import (
    Manifest,
    allocated,
    claim,
    config,
    config_reference,
    device,
    device_class,
    entry,
    pool,
)


def gpus(name: str, node: str | None, count: int = 4, **attributes: Any) -> Manifest:
    devices = [device(f"g{n}", attributes={"numa": n // 2, "uuid": f"{name}-{n}", **attributes}) for n in range(count)]
    return pool(name, node, "gpu", devices=devices)


def fleet_of(nodes: int = 3) -> list[Manifest]:
    return [*(gpus(f"p{n}", f"n{n}") for n in range(nodes)), device_class("gpu", driver="gpu")]


def wants(
    name: str, count: int = 1, *, match: str | None = None, constraints: str | None = None, **more: Any
) -> Manifest:
    detail: dict[str, Any] = {"deviceClass": "gpu", "requests": {"count": count}}
    if match:
        detail["matchAttributes"] = [match]
    if constraints:
        detail["constraints"] = constraints
    return claim(name, detail, **more)


def devices_of(answer: dict[str, Any]) -> list[str]:
    return [f"{e['devicePoolName']}/{e['deviceName']}" for e in answer["allocations"]]


def state_of(fleet: Fleet) -> DeviceFleetState:
    warm = fleet._backend({"kind": "DeviceClaim"})
    assert isinstance(warm, DeviceClaimFleet)
    return warm._state


def group(name: str) -> dict[str, str]:
    return {"devalloc.io/group": name}


# -- one claim -------------------------------------------------------------------------------------------------------


def test_an_answer_is_the_one_of_solve_manifests() -> None:
    documents = [*fleet_of(), config("tuned"), device_class("set", configs=[config_reference("tuned", "default")])]
    pending = claim("a", {"deviceClass": "set", "requests": {"count": 2}, "configs": [config_reference("tuned")]})
    (expected,) = solve_manifests([*documents, pending])["claims"]
    assert Fleet.from_manifests(documents).allocate(pending) == expected


def with_memory(name: str, node: str | None, *devices: Manifest) -> Manifest:
    return pool(name, node, "g", devices=[*devices])


LARGE, NEAR = (device(f"g{n}", resources={"memory": "8Gi"}, attributes={"numa": 0} if n else {}) for n in range(2))
FIRST, SECOND = (device(f"g{n}", resources={"memory": "6Gi"}) for n in range(2))


@pytest.mark.parametrize(
    ("pools", "details"),
    [
        pytest.param(
            [with_memory("p1", "n1", device("x")), with_memory("p2", "n2", FIRST, SECOND, device("x"))],
            [{"requests": {"memory": "9Gi"}, "limits": {"count": 2}}, {}, {"requests": {"memory": "2Gi"}}],
            id="beside a whole device",
        ),
        pytest.param(
            [
                with_memory("p1", "n1", LARGE),
                with_memory("net", None, LARGE, NEAR),
                with_memory("p2", "n2", LARGE, NEAR),
            ],
            [
                {"requests": {"memory": "9Gi"}, "matchAttributes": ["numa"]},
                {"requests": {"memory": "9Gi"}},
                {"requests": {"memory": "3Gi"}},
            ],
            id="of the network",
        ),
    ],
)
def test_shares_of_several_devices_are_the_same_wherever_they_were_searched(
    pools: list[Manifest], details: list[Manifest]
) -> None:
    """The search of one claim leaves it to the exact model how such shares meet."""
    pending = claim("a", *details)
    (expected,) = solve_manifests([*pools, pending])["claims"]
    assert expected["allocated"]
    assert Fleet.from_manifests(pools).allocate(pending) == expected
    other, _ = solve_manifests([*pools, pending, claim("b", {"requests": {"count": 5}})])["claims"]
    assert other == expected, "as if the second one, which fits nowhere, had not been asked for"


def test_shares_are_written_as_the_claim_wrote_its_request() -> None:
    documents = [
        pool("p", "n", "gpu", devices=[device("d", resources={"memory": "8Gi/1Gi"})]),
        device_class("gpu", driver="gpu"),
    ]
    fleet = Fleet.from_manifests(documents)
    for number, amount in enumerate(("2Gi", "2147483648", "1500Mi")):
        pending = claim(f"c{number}", {"deviceClass": "gpu", "requests": {"memory": amount}})
        (expected,) = solve_manifests([*documents, pending])["claims"]
        assert fleet.allocate(pending) == expected


def test_what_was_given_is_in_use_until_released() -> None:
    fleet = Fleet.from_manifests(fleet_of(1))
    first = fleet.allocate(wants("a", 3))
    second = fleet.allocate(wants("b", 1))
    assert devices_of(first) == ["p0/g0", "p0/g1", "p0/g2"]
    assert devices_of(second) == ["p0/g3"]
    refused = fleet.allocate(wants("c", 2))
    assert (refused["allocated"], refused["reason"]) == (False, "DevicesInUse")
    fleet.release("default", "a")
    assert devices_of(fleet.allocate(wants("c", 2))) == ["p0/g0", "p0/g1"]


def test_a_released_claim_is_kept_and_can_be_asked_for_by_name() -> None:
    fleet = Fleet.from_manifests(fleet_of(1))
    first = fleet.allocate(wants("a", 3))
    fleet.release("default", "a")
    named = {"kind": "DeviceClaim", "metadata": {"namespace": "default", "name": "a"}}
    assert fleet.allocate(named) == first


def test_pending_claims_are_kept_and_not_solved() -> None:
    fleet = Fleet.from_manifests([*fleet_of(1), wants("a", 4)])
    assert fleet.allocate(wants("b", 4))["allocated"]
    named = {"kind": "DeviceClaim", "metadata": {"namespace": "default", "name": "a"}}
    assert fleet.allocate(named)["reason"] == "DevicesInUse"


def test_an_allocated_claim_is_echoed_and_never_moves() -> None:
    fleet = Fleet.from_manifests(fleet_of(2))
    first = fleet.allocate(wants("a", 1))
    again = fleet.allocate(wants("a", 4))
    assert (again["allocated"], devices_of(again)) == (True, devices_of(first))


def test_a_claim_that_comes_with_a_status_holds_what_it_says() -> None:
    fleet = Fleet.from_manifests(fleet_of(1))
    held = {**wants("a", 2), "status": {"allocations": [entry("p0", "g0"), entry("p0", "g1")]}}
    assert fleet.allocate(held)["allocated"]
    assert devices_of(fleet.allocate(wants("b", 2))) == ["p0/g2", "p0/g3"]


def test_the_policy_decides_between_nodes() -> None:
    packed, spread = (Fleet.from_manifests(fleet_of(), placement=p) for p in ("pack", "spread"))
    for fleet, nodes in ((packed, ["n0", "n0", "n0"]), (spread, ["n0", "n1", "n2"])):
        assert [fleet.allocate(wants(f"c{n}"))["node"] for n in range(3)] == nodes


def test_a_pin_is_kept() -> None:
    fleet = Fleet.from_manifests(fleet_of())
    for name, node, fits in (("a", "n2", True), ("b", "n2", True), ("c", "elsewhere", False)):
        answer = fleet.allocate(wants(name, 2, annotations={"devalloc.io/node": node}))
        assert (answer["allocated"], answer["node"]) == (fits, node if fits else None)


def test_equality_with_a_literal_finds_the_one_device() -> None:
    documents = [*(gpus(f"p{n}", f"n{n}", 2) for n in range(40)), device_class("gpu", driver="gpu")]
    fleet = Fleet.from_manifests(documents)
    assert "uuid" in state_of(fleet).index.kinds.varied
    for number, (text, expected) in enumerate(
        [
            ("device.uuid == 'p17-1'", ["p17/g1"]),
            ("'p3-0' == device['uuid'] && device.numa == 0", ["p3/g0"]),
            ("device.uuid in ['p30-0', 'p30-1'] && device.uuid != 'p30-0'", ["p30/g1"]),
            ("device.uuid == 'p3-0' && device.numa == 1", []),
            ("device.uuid == 'nowhere'", []),
            ("device.uuid.startsWith('p39')", ["p39/g0"]),
        ]
    ):
        assert devices_of(fleet.allocate(wants(f"c{number}", constraints=text))) == expected


def test_versions_and_amounts_are_found_by_what_they_mean() -> None:
    """Texts that differ and compare equal: the inverted index must not lose them."""
    devices = [
        device(f"d{n}", attributes={"fw": {"semVerValue": f"1.0.{n}+build"}, "size": {"quantityValue": f"{n + 1}Ki"}})
        for n in range(40)
    ]
    fleet = Fleet.from_manifests([pool("p", "n", "gpu", devices=devices), device_class("gpu", driver="gpu")])
    assert state_of(fleet).index.kinds.varied == {"fw", "size"}
    assert devices_of(fleet.allocate(wants("a", constraints="device.fw == '1.0.7'"))) == ["p/d7"]
    assert devices_of(fleet.allocate(wants("b", constraints="device.size == '5120'"))) == ["p/d4"]


def test_match_attributes_of_values_that_differ_from_node_to_node() -> None:
    pools = []
    for n in range(40):
        roots = [f"n{n}-r{position // 2}" for position in range(4)]
        devices = [device(f"d{p}", attributes={"root": root, "serial": f"{n}-{p}"}) for p, root in enumerate(roots)]
        pools.append(pool(f"p{n}", f"n{n}", "gpu", devices=devices))
    fleet = Fleet.from_manifests([*pools, device_class("gpu", driver="gpu")])
    assert state_of(fleet).index.kinds.varied == {"root", "serial"}
    assert len({id(record.member_of) for record in state_of(fleet).index.records.values()}) == 1
    assert devices_of(fleet.allocate(wants("a", 1))) == ["p0/d0"]
    assert devices_of(fleet.allocate(wants("b", 2, match="root"))) == ["p0/d2", "p0/d3"]
    assert fleet.allocate(wants("c", 3, match="root"))["reason"] == "MatchAttributesConflict"
    assert fleet.allocate(wants("d", 2, match="serial"))["reason"] == "MatchAttributesConflict"
    assert devices_of(fleet.allocate(wants("e", 1, match="serial"))) == ["p0/d1"]


def test_of_values_that_match_the_one_with_the_first_devices_is_taken() -> None:
    """Also where another value is on a pool that comes first, which has too few of it."""
    numa = {"p00": [0], "p01": [1, 0, 1, 0]}
    pools = [
        pool(name, "n0", "gpu", devices=[device(f"g{n}", attributes={"numa": value}) for n, value in enumerate(values)])
        for name, values in numa.items()
    ]
    documents, wanted = [*pools, device_class("gpu", driver="gpu")], wants("c", 2, match="numa")
    (cold,) = solve_manifests([*documents, wanted])["claims"]
    assert devices_of(cold) == devices_of(Fleet.from_manifests(documents).allocate(wanted)) == ["p01/g0", "p01/g2"]


@pytest.mark.parametrize("count", [3, 16, 40])
def test_a_value_of_fewer_pools_is_found_behind_many_that_are_equally_good(count: int) -> None:
    """Each of these has a device in both of the first pools, and comes before the others in one of them."""
    values = {"p0": range(count), "p1": range(count - 1, -1, -1), "p2": [count] * 2}
    pools = [
        pool(name, "n0", "gpu", devices=[device(f"g{n:02}", attributes={"numa": numa}) for n, numa in enumerate(own)])
        for name, own in values.items()
    ]
    documents, wanted = [*pools, device_class("gpu", driver="gpu")], wants("c", 2, match="numa")
    (cold,) = solve_manifests([*documents, wanted])["claims"]
    assert devices_of(cold) == devices_of(Fleet.from_manifests(documents).allocate(wanted)) == ["p2/g00", "p2/g01"]


@pytest.mark.parametrize("count", [10, 20, 60])
def test_of_many_values_that_match_the_one_with_the_first_devices_is_taken(count: int) -> None:
    """They come in another order on a pool that has too few of each."""
    values = {"p0": [*range(count)], "p1": [count - 1 - n // 2 for n in range(2 * count)]}
    pools = [
        pool(name, "n0", "gpu", devices=[device(f"g{n:03}", attributes={"numa": numa}) for n, numa in enumerate(own)])
        for name, own in values.items()
    ]
    documents, wanted = [*pools, device_class("gpu", driver="gpu")], wants("c", 2, match="numa")
    (cold,) = solve_manifests([*documents, wanted])["claims"]
    assert devices_of(cold) == devices_of(Fleet.from_manifests(documents).allocate(wanted)) == ["p1/g000", "p1/g001"]


@pytest.mark.parametrize("placement", ["pack", "spread"])
@pytest.mark.parametrize("seed", range(40))
def test_the_value_that_devices_match_in_is_the_same_as_in_a_cold_solve(seed: int, placement: str) -> None:
    """By goals 5 and 6: of pools in use before others, then of the first pools, then the first devices."""
    random = Random(seed)
    documents = [device_class("gpu", driver="gpu")]
    for number in range(random.randint(2, 6)):
        devices = [device(f"g{n}", attributes={"numa": random.randint(0, 2)}) for n in range(random.randint(1, 5))]
        documents.append(pool(f"p{number}", f"n{number // 3}", "gpu", devices=devices))
        for held in devices:
            if random.random() < 0.2:
                given = [entry(f"p{number}", held["name"])]
                documents.append(allocated(wants(f"h{number}-{held['name']}"), given, node=f"n{number // 3}"))
    wanted = wants("c", random.randint(2, 3), match="numa")
    if seed % 2:
        more = {"deviceClass": "gpu", "requests": {"count": random.randint(1, 2)}}
        wanted["spec"] = {"matchAttributes": ["numa"], "claims": [wants("c", 2)["spec"]["claims"][0], more][: seed % 4]}
    answers = solve_manifests(copy.deepcopy([*documents, wanted]), placement=placement)["claims"]
    cold = next(each for each in answers if each["name"] == "c")
    warm = Fleet.from_manifests(documents, placement=placement).allocate(wanted)
    assert (warm["node"], warm["allocations"]) == (cold["node"], cold["allocations"])


def test_a_match_between_a_node_and_the_network_compares_values() -> None:
    pools = [pool(f"p{n}", f"n{n}", "gpu", devices=[device("d", attributes={"switch": f"s{n}"})]) for n in range(40)]
    network = pool("fabric", None, "nic", devices=[device("port", attributes={"switch": "s33"})])
    classes = [device_class("gpu", driver="gpu"), device_class("nic", driver="nic")]
    fleet = Fleet.from_manifests([*pools, network, *classes])
    answer = fleet.allocate(claim("a", {"deviceClass": "gpu"}, {"deviceClass": "nic"}, match=["switch"]))
    assert (answer["node"], devices_of(answer)) == ("n33", ["p33/d", "fabric/port"])


def test_network_devices_have_no_node() -> None:
    network = pool("fabric", None, "gpu", devices=[device("a"), device("b")])
    for documents in ([network], [network, pool("other", "n0", "disk", devices=[device("d")])]):
        fleet = Fleet.from_manifests([*documents, device_class("gpu", driver="gpu")])
        answers = [fleet.allocate(wants(f"c{n}")) for n in range(3)]
        assert [a["node"] for a in answers] == [None, None, None]
        assert [a["allocated"] for a in answers] == [True, True, False]


# -- groups and batches ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("devices", [(1,), (1, 1), (0, 1), (1, 0)], ids=str)
@pytest.mark.parametrize("pin", [None, "n0"])
@pytest.mark.parametrize("wanted", [{}, {"limits": {"memory": "8Gi"}}], ids=["one device", "a limit"])
def test_devices_of_the_network_bring_no_node_into_use(
    wanted: Manifest, devices: tuple[int, ...], pin: str | None
) -> None:
    """That weighs more than a large partition that is lost (S17, goal 5)."""
    parts = [{"name": "whole", "requests": {"slices": 4}}, {"name": "half", "requests": {"slices": 2}}]
    network = pool("net", None, "part", devices=parts)
    network["spec"]["resources"] = [{"name": "slices", "capacity": "4"}]
    own = [pool(f"p{n}", f"n{n}", "g", devices=[device("g0")] * count) for n, count in enumerate(devices)]
    documents = [*own, network]
    pending = claim("a", wanted)
    pending["metadata"]["annotations"] = {} if pin is None else {"devalloc.io/node": pin}
    (cold,) = solve_manifests([*documents, pending])["claims"]
    assert devices_of(cold) == devices_of(Fleet.from_manifests(documents).allocate(pending)) == ["net/half"]


@pytest.mark.parametrize("placement", ["pack", "spread"])
def test_a_request_takes_as_many_devices_of_each_pool_as_in_a_cold_solve(placement: str) -> None:
    documents = [
        pool(f"p{n}", "n0", "g", devices=[device(f"g{k}") for k in range(size)]) for n, size in enumerate((2, 3))
    ]
    pending = claim("a", {"requests": {"count": 4}})
    (cold,) = solve_manifests([*documents, pending], placement=placement)["claims"]
    warm = Fleet.from_manifests(documents, placement=placement).allocate(pending)
    assert devices_of(cold) == devices_of(warm) == ["p0/g0", "p0/g1", "p1/g0", "p1/g1"]


def test_a_device_of_the_network_is_taken_where_it_is_reached() -> None:
    """No node comes into use by it, so the first node is not the best one."""
    nodes = [dra_builders.node(f"n{number}") for number in range(3)]
    one = dra_builders.device("d", {})
    own = [dra_builders.slice_(f"own-{n}", [one], driver="g.io", pool=f"own-{n}", nodeName=f"n{n}") for n in range(3)]
    reached = [one | {"nodeName": "n2"}]
    network = dra_builders.slice_("net", reached, driver="net.io", pool="net", perDeviceNodeSelection=True)
    documents = [*nodes, *own, network, dra_builders.device_class("any")]
    pending = dra_builders.claim({"name": "r", "exactly": dra_builders.ask(1, class_name="any")})
    (cold,) = solve_manifests([*documents, pending])["claims"]
    warm = Fleet.from_manifests(documents).allocate(pending)
    for answer in (cold, warm):
        assert answer["node"] == "n2"
        assert [one["pool"] for one in answer["allocations"]["devices"]["results"]] == ["net"]


def test_a_member_of_a_group_is_answered_with_its_group_only() -> None:
    fleet = Fleet.from_manifests(fleet_of(1))
    members = [wants(name, 2, annotations=group("vm")) for name in ("a", "b")]
    alone = fleet.allocate(members[0])
    assert (alone["allocated"], alone["reason"]) == (False, "GroupUnsatisfiable")
    assert "allocate_all" in alone["message"]
    answer = fleet.allocate_all(members)
    assert [a["allocated"] for a in answer["claims"]] == [True, True]
    assert answer["optimal"]


def test_members_that_are_kept_join_their_group() -> None:
    members = [wants(name, 2, annotations=group("vm")) for name in ("a", "b")]
    fleet = Fleet.from_manifests([*fleet_of(1), members[0], wants("bystander")])
    answer = fleet.allocate_all([members[1]])
    assert [(a["name"], a["allocated"]) for a in answer["claims"]] == [("a", True), ("b", True)]
    assert fleet.allocate(wants("late"))["reason"] == "DevicesInUse"


def test_a_quick_answer_names_the_claims_that_it_leaves_also_if_there_are_none() -> None:
    fleet = Fleet.from_manifests(fleet_of())

    assert fleet.allocate_all([wants("a")], is_quick=True)["unproven"] == []


def test_a_batch_is_solved_jointly_and_kept() -> None:
    documents = fleet_of(1)
    claims = [wants(f"c{n}", count, annotations={"devalloc.io/priority": str(n)}) for n, count in enumerate((2, 3, 1))]
    fleet = Fleet.from_manifests(documents)
    answer, expected = fleet.allocate_all(claims), solve_manifests([*documents, *claims])
    assert {**answer, "seconds": 0} == {**expected, "seconds": 0}
    assert fleet.allocate(wants("late", 1))["reason"] == "DevicesInUse"
    for name in ("c1", "c2"):
        fleet.release("default", name)
    assert fleet.allocate(wants("late", 4))["allocated"]


# -- changes ---------------------------------------------------------------------------------------------------------


def test_a_device_that_is_gone_is_lost_and_holds_nothing_up() -> None:
    fleet = Fleet.from_manifests(fleet_of(1))
    fleet.allocate(wants("a", 4))
    fleet.update(gpus("p0", "n0", 2))
    echo = fleet.allocate(wants("a", 4))
    assert [lost["deviceName"] for lost in echo["lost"]] == ["g2", "g3"]
    assert fleet.allocate(wants("b"))["reason"] == "DevicesInUse"
    fleet.update(gpus("p0", "n0", 5))
    assert devices_of(fleet.allocate(wants("b"))) == ["p0/g4"]


def test_a_pool_that_moves_to_another_node_leaves_the_first() -> None:
    fleet = Fleet.from_manifests(fleet_of(1))
    fleet.update(gpus("p0", "n9"))
    assert fleet.allocate(wants("a"))["node"] == "n9"


def test_a_class_that_changes_counts_for_the_next_claim() -> None:
    fleet = Fleet.from_manifests(fleet_of(1))
    assert fleet.allocate(wants("a"))["allocated"]
    fleet.update(device_class("gpu", driver="gpu", constraints="device.numa == 1"))
    assert devices_of(fleet.allocate(wants("b"))) == ["p0/g2"]
    fleet.delete({"kind": "DeviceClass", "metadata": {"name": "gpu"}})
    assert fleet.allocate(wants("c"))["reason"] == "ClassNotFound"


def test_an_admin_class_frees_what_its_claims_only_looked_at() -> None:
    fleet = Fleet.from_manifests(fleet_of(1))
    fleet.allocate(wants("a", 4))
    fleet.update(device_class("gpu", driver="gpu", adminAccess=True))
    fleet.update(device_class("own", driver="gpu"))
    assert fleet.allocate(claim("b", {"deviceClass": "own"}))["allocated"]


def test_more_values_than_before_do_not_disturb() -> None:
    """An attribute becomes varied while claims hold devices."""
    fleet = Fleet.from_manifests(fleet_of(2))
    fleet.allocate(wants("a", 3))
    for n in range(2, 40):
        fleet.update(gpus(f"p{n}", f"n{n}"))
    assert "uuid" in state_of(fleet).index.kinds.varied
    assert devices_of(fleet.allocate(wants("b"))) == ["p0/g3"]
    fleet.release("default", "a")
    assert devices_of(fleet.allocate(wants("c", 3))) == ["p0/g0", "p0/g1", "p0/g2"]


def test_cached_facts_of_a_node_end_with_its_pools() -> None:
    """The same shape is asked for again after a pool of equal form took the place of the old one, with other values."""
    documents = [*(gpus(f"p{n}", f"n{n}", 2) for n in range(40)), device_class("gpu", driver="gpu")]
    fleet = Fleet.from_manifests(documents)
    wanted = "device.uuid == 'p5-0'"
    assert devices_of(fleet.allocate(wants("a", constraints=wanted))) == ["p5/g0"]
    fleet.release("default", "a")
    renamed = gpus("p5", "n5", 2)
    for each, uuid in zip(renamed["spec"]["devices"], ("p5-1", "p5-0"), strict=True):
        each["attributes"][1]["stringValue"] = uuid
    fleet.update(renamed)
    assert devices_of(fleet.allocate(wants("a", constraints=wanted))) == ["p5/g1"]
    pinned = {"annotations": {"devalloc.io/node": "n99"}}
    starts = "device.uuid.startsWith('p')"
    assert not fleet.allocate(wants("b", constraints=starts, **pinned))["allocated"]
    fleet.update(gpus("p99", "n99", 2))
    assert devices_of(fleet.allocate(wants("b", constraints=starts, **pinned))) == ["p99/g0"]


def test_nodes_that_come_later_stand_in_natural_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when there is no room left between the ranks of their neighbours."""
    monkeypatch.setattr(index_nodes, "STEP", 2)
    fleet = Fleet.from_manifests([gpus("p1", "n1", 1), gpus("p20", "n20", 1), device_class("gpu", driver="gpu")])
    assert fleet.allocate(wants("first"))["node"] == "n1"
    for n in (10, 5, 3, 2, 4, 30, 0):
        fleet.update(gpus(f"p{n}", f"n{n}", 1))
    given = [fleet.allocate(wants(f"c{n}"))["node"] for n in range(8)]
    assert given == ["n0", "n2", "n3", "n4", "n5", "n10", "n20", "n30"]


def test_forgetting_what_no_node_is_like_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = []
    for spare in (10_000, -20):
        monkeypatch.setattr(index_nodes, "SPARE_CLASSES", spare)
        monkeypatch.setattr(place_finder, "MAX_SHAPES", 2 if spare < 0 else 100)
        fleet = Fleet.from_manifests(fleet_of(5))
        answers = []
        for n in range(40):
            answers.append(fleet.allocate(wants(f"c{n}", 1 + n % 3, match="numa" if n % 4 == 1 else None)))
            if n % 2 and answers[n - 1]["allocated"]:
                fleet.release("default", f"c{n - 1}")
        rounds.append(answers)
    assert rounds[0] == rounds[1]


def test_invalid_objects_are_problems_and_left_out() -> None:
    fleet = Fleet.from_manifests(fleet_of(1))
    (problem,) = fleet.update(pool("broken", "n0", "gpu", devices=[device("a"), device("a")]))
    assert problem["kind"] == "DevicePool"
    assert fleet.allocate(wants("a", 5))["reason"] == "NotEnoughDevices"
    answer = fleet.allocate(claim("b", {"deviceClass": "gpu", "requests": {"count": 0}}))
    assert (answer["allocated"], answer["reason"]) == (False, "ClaimInvalid")


# -- arguments -------------------------------------------------------------------------------------------------------


def test_wrong_arguments_raise() -> None:
    fleet = Fleet.from_manifests(fleet_of(1))
    with pytest.raises(ValueError, match="placement must be one of pack, spread"):
        Fleet.from_manifests([], placement="tight")
    with pytest.raises(ValueError, match="put it into a list"):
        Fleet.from_manifests(fleet_of(1)[0])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must be the manifest of a DeviceClaim"):
        fleet.allocate(fleet_of(1)[0])
    with pytest.raises(ValueError, match="use allocate"):
        fleet.allocate_all(wants("a"))  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="default/a is in the fleet"):
        fleet.allocate({"kind": "DeviceClaim", "metadata": {"name": "a"}})
    with pytest.raises(KeyError, match="default/a holds devices"):
        fleet.release("default", "a")
    with pytest.raises(ValueError, match=r"kind(, its| and) metadata\.name"):
        fleet.update({"kind": "DevicePool"})
    with pytest.raises(ValueError, match=r"kind(, its| and) metadata\.name"):
        fleet.delete({"metadata": {"name": "a"}})
    with pytest.raises(KeyError, match="no DevicePool px"):
        fleet.delete({"kind": "DevicePool", "metadata": {"name": "px"}})
    with pytest.raises(KeyError, match="no DeviceClaim default/a"):
        fleet.delete({"kind": "DeviceClaim", "metadata": {"name": "a"}})


@pytest.mark.parametrize("came", ["pending", "with its devices", "to be allocated"])
def test_a_claim_of_the_fleet_can_be_deleted_once(came: str) -> None:
    fleet = Fleet.from_manifests(fleet_of(1))
    if came == "to be allocated":
        fleet.allocate(wants("a"))
    else:
        held = allocated(wants("a"), [entry("p0", "g0")], node="n0")
        fleet.update(held if came == "with its devices" else wants("a"))
    fleet.delete(wants("a"))
    with pytest.raises(KeyError, match="no DeviceClaim default/a"):
        fleet.delete(wants("a"))
    assert fleet.allocate(wants("b", 4))["allocated"]


def slice_of(node: str) -> Manifest:
    return dra_builders.slice_(f"slice-{node}", dra_builders.devices("d0", "d1"), nodeName=node, pool=node)


def resource_claim(name: str) -> Manifest:
    return dra_builders.claim(dra_builders.request(class_name="gpu"), name=name)


KUBERNETES = [dra_builders.device_class("gpu")]


def test_a_fleet_reads_resource_claims() -> None:
    fleet = Fleet.from_manifests([slice_of("n0"), *KUBERNETES])
    assert [fleet.allocate(resource_claim(f"c{n}"))["allocated"] for n in range(3)] == [True, True, False]
    fleet.release("default", "c0")
    assert fleet.allocate_all([resource_claim("late")])["claims"][-1]["allocated"]


@pytest.mark.parametrize("is_mixed", [True, False])
def test_a_fleet_holds_both_dialects(is_mixed: bool) -> None:
    """Each answers as if it were alone, whether it was there at first or came later."""
    kubernetes = [slice_of("k0"), *KUBERNETES]
    alone = Fleet.from_manifests(fleet_of(1)), Fleet.from_manifests(kubernetes)
    fleet = Fleet.from_manifests([*fleet_of(1), *kubernetes] if is_mixed else fleet_of(1))
    for document in () if is_mixed else kubernetes:
        assert fleet.update(document) == []
    for number in range(6):
        for own, pending in zip(alone, (wants(f"c{number}"), resource_claim(f"c{number}")), strict=True):
            assert fleet.allocate(pending) == own.allocate(pending)
    for own, pending in zip(alone, (wants("late", 9), resource_claim("late")), strict=True):
        answer, expected = fleet.allocate_all([pending]), own.allocate_all([pending])
        assert {**answer, "seconds": 0} == {**expected, "seconds": 0}
        assert [*map(repr, fleet.parts([pending]))] == [*map(repr, own.parts([pending]))]


def test_what_is_of_both_dialects_must_say_which_one_is_meant() -> None:
    fleet = Fleet.from_manifests([*fleet_of(1), slice_of("k0"), *KUBERNETES])
    for pending in (wants("c"), resource_claim("c")):
        assert fleet.allocate(pending)["allocated"]
    with pytest.raises(ValueError, match="give the kind"):
        fleet.release("default", "c")
    fleet.release("default", "c", "DeviceClaim")
    assert not fleet.holds("default", "c", "DeviceClaim")
    assert fleet.holds("default", "c", "ResourceClaim")
    fleet.release("default", "c")
    assert not fleet.holds("default", "c")
    with pytest.raises(KeyError, match="default/c"):
        fleet.release("default", "c")
    with pytest.raises(ValueError, match="a call for each"):
        fleet.allocate_all([wants("a"), resource_claim("b")])
    with pytest.raises(ValueError, match="give its apiVersion"):
        fleet.delete({"kind": "DeviceClass", "metadata": {"name": "gpu"}})
    fleet.delete(KUBERNETES[0])
    assert fleet.allocate(resource_claim("d"))["reason"] == "ClassNotFound"
    assert fleet.allocate(wants("d"))["allocated"]


def test_nodes_that_came_before_the_first_slice_count() -> None:
    """The back end of resource.k8s.io is made when it is first needed."""
    node, gone = dra_builders.node("n0", zone="a"), dra_builders.node("n1", zone="a")
    everywhere = slice_of("n0")
    del everywhere["spec"]["nodeName"]
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    everywhere["spec"]["nodeSelector"] = {"nodeSelectorTerms": [term]}
    fleet = Fleet.from_manifests([*fleet_of(1), gone, node])
    fleet.delete(gone)
    for document in (everywhere, *KUBERNETES):
        fleet.update(document)
    assert fleet.allocate(resource_claim("c"))["allocated"]


def test_the_caller_may_do_with_manifests_and_answers_what_it_likes() -> None:
    documents = fleet_of(1)
    fleet = Fleet.from_manifests(documents)
    pending = wants("a", 2)
    answer = fleet.allocate(pending)
    for content in (*documents, pending):
        content["spec"].clear()
    before = copy.deepcopy(answer)
    answer["allocations"].clear()
    assert fleet.allocate(wants("a"))["allocations"] == before["allocations"]
    assert devices_of(fleet.allocate(wants("b", 2))) == ["p0/g2", "p0/g3"]


def test_an_echo_looks_at_the_pools_of_its_claim_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """And says what the stages say, whether the claim was allocated here, came with a status, or is invalid."""
    seen: list[int] = []

    def taken(pools: list[Any]) -> Any:
        seen.append(len(pools))
        return take_snapshot(pools)

    monkeypatch.setattr(fleet_module, "take_snapshot", taken)
    documents = fleet_of(20)
    fleet = Fleet.from_manifests(documents)
    status = {"allocations": [entry("p7", "g1"), entry("p7", "gone"), entry("nowhere", "g0")]}
    came = {**wants("came", 3), "status": status}
    invalid = {**wants("invalid", 0), "status": {"allocations": [entry("p8", "g0")]}}
    given = fleet.allocate(wants("given", 2))
    annotations = given["annotations"]
    written = {**wants("given", 2, annotations=annotations), "status": {"allocations": given["allocations"]}}
    for pending, stored in ((came, came), (invalid, invalid), (wants("given", 4), written), (wants("none", 0), None)):
        expected = solve_manifests([*documents, pending if stored is None else stored])["claims"][0]
        assert [fleet.allocate(pending) for _ in range(2)] == [expected] * 2
    assert max(seen) == 1


def test_several_claims_of_one_name_are_a_warning() -> None:
    held = {**wants("a"), "status": {"allocations": [entry("p0", "g0")]}}
    fleet = Fleet.from_manifests([*fleet_of(1), wants("a"), held])
    answer = fleet.allocate(wants("a"))
    assert (answer["allocated"], devices_of(answer)) == (True, ["p0/g0"])
    assert "2 claims are named default/a" in answer["warnings"][0]


# -- trust -----------------------------------------------------------------------------------------------------------


def test_a_wrong_answer_is_never_returned_nor_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet.from_manifests(fleet_of(1))
    fleet.allocate(wants("a", 1))
    good = DeviceClaimFleet._placed

    def twice(*arguments: Any) -> PlacedClaim:
        placed = good(*arguments)
        placed.answer["allocations"][0]["deviceName"] = "g0"
        return placed

    with monkeypatch.context() as patch:
        patch.setattr(DeviceClaimFleet, "_placed", twice)
        with pytest.raises(AnswerRefused, match="p0/g0 is used whole by default/a"):
            fleet.allocate(wants("b", 1))
    assert devices_of(fleet.allocate(wants("b", 3))) == ["p0/g1", "p0/g2", "p0/g3"]


def test_churn_leaves_nothing_behind() -> None:
    """After many allocations and releases the index is that of the beginning."""
    random, fleet = Random(7), Fleet.from_manifests(fleet_of(5))
    first = json.dumps(fleet.allocate(wants("probe", 4)))
    fleet.release("default", "probe")
    live: list[str] = []
    for n in range(300):
        if live and random.random() < 0.5:
            fleet.release("default", live.pop(random.randrange(len(live))))
        elif fleet.allocate(wants(f"c{n}", random.choice([1, 2, 3])))["allocated"]:
            live.append(f"c{n}")
    for name in live:
        fleet.release("default", name)
    assert json.dumps(fleet.allocate(wants("probe", 4))) == first
    index = state_of(fleet).index
    assert sum(len(uses) for record in index.records.values() for uses in record.uses) == 4


def test_a_class_with_a_broken_expression_is_a_problem_when_it_comes() -> None:
    warm = Fleet.from_manifests([])
    broken = device_class("gpu", constraints="device.(")
    assert [problem["path"] for problem in warm.update(broken)] == ["spec.constraints"]


def test_an_echoed_answer_repeats_its_warnings() -> None:
    """Of a claim that was placed here: it names neither class nor type."""
    documents = [pool("p", devices=[device("x")])]
    fleet = Fleet.from_manifests(documents)
    pending = claim("c", {})
    answer = fleet.allocate(pending)
    assert answer["warnings"]
    assert fleet.allocate(pending)["warnings"] == answer["warnings"]
    refused = claim("d", {})
    echoes = fleet.allocate_all([pending, refused])["claims"]
    assert [each["warnings"] for each in echoes] == [answer["warnings"], answer["warnings"]]
    assert [*fleet.allocate(refused)] == [*echoes[1]], "the same form as of solve_manifests"


@pytest.mark.parametrize("annotations", [{"a": 1}, {"a": None}, {"a": ["b"]}, {"a": "b", "c": True}])
def test_a_claim_of_a_known_shape_is_checked_as_the_first_one_is(annotations: dict[str, Any]) -> None:
    """The second claim of a shape takes a shorter way."""
    fleet = Fleet.from_manifests(fleet_of())
    assert fleet.allocate(wants("first"))["allocated"]
    second = wants("second")
    second["metadata"]["annotations"] = annotations
    answer = fleet.allocate(copy.deepcopy(second))
    cold = solve_manifests([*fleet_of(), second])["claims"][0]
    assert [answer[name] for name in ("allocated", "reason", "message")] == [
        cold[name] for name in ("allocated", "reason", "message")
    ]
    assert answer["allocated"] is not isinstance(annotations["a"], list)


def test_what_is_left_out_of_a_fleet_is_not_swallowed() -> None:
    """A test author would believe in a fleet that is smaller than the one that he wrote."""
    wrong = {"apiVersion": "devmgmtproto.k8s.io/v1alpha1", "kind": "DevicePool", "metadata": {"name": "x"}, "spec": {}}
    fleet = Fleet.from_manifests([testing.pool("good"), wrong])
    assert [(one["name"], one["path"]) for one in fleet.problems] == [("x", "spec.driver")]
    assert fleet.problems == fleet.allocate_all([])["problems"]
    fleet.delete(wrong)
    assert fleet.problems == []


def test_a_fleet_shows_what_it_has() -> None:
    assert repr(Fleet.from_manifests([])) == "<Fleet: empty>"
    fleet = Fleet.from_manifests([testing.pool("a"), testing.pool("b"), testing.device_class("gpu")])
    assert repr(fleet) == "<Fleet: 1 DeviceClass, 2 DevicePool>"


def test_the_package_says_its_version_and_lists_its_names() -> None:
    import pydoc

    import devalloc_solver
    from devalloc.version import VERSION

    assert devalloc_solver.__version__ == VERSION
    shown = pydoc.plain(pydoc.render_doc(devalloc_solver))
    for name in ("class Fleet", "solve_manifests(", "capacity("):
        assert name in shown
