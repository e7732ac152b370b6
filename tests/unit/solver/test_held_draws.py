"""What a claim's devices drew stays in use, whatever their pool publishes now (S12, S13, S18)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from devalloc.api.device_records import (
    DeviceRecord,
    counters_digest,
    read_records,
    records_of_manifest,
    write_records,
)
from devalloc.api.meta import DEVICE_RECORDS
from devalloc_solver import Fleet, dra, solve_manifests
from devalloc_solver.check import check
from devalloc_solver.dialects.device_claims.manifest_records import read_documents
from devalloc_solver.dialects.resource_k8s.cluster_check import ClusterChecker
from devalloc_solver.dialects.resource_k8s.feature_gates import read_gates
from devalloc_solver.dialects.resource_k8s.manifests import with_defaults
from devalloc_solver.problem.ghosts import Drawn, drawn_in_use
from devalloc_solver.testing import allocated, claim, device, device_class, entry, pool, request
from tests.support import dra_builders
from tests.support.dra_builders import counter_slice, slice_

Object = dict[str, Any]
WHOLE = device("whole", requests={"slices": 4})
HALVES = [device(name, requests={"slices": 2}) for name in ("h1", "h2")]
HELD = allocated(claim("held", request("any")), [entry("card", "whole")], node="n1", details=["0"])
WAITER = claim("waiter", request("any", 2))


def card(*devices: Object, counters: tuple[str, ...] = ("slices",)) -> Object:
    return pool("card", "n1", devices=devices, resources=dict.fromkeys(counters, 4))


def cold(published: Object, held: Object, new: Object = WAITER) -> Object:
    solution = solve_manifests([device_class("any"), published, held, new])
    return next(dict(each) for each in solution["claims"] if each["name"] == new["metadata"]["name"])


def warm(published: Object, held: Object, new: Object = WAITER) -> Object:
    return dict(Fleet.from_manifests([device_class("any"), published, held]).allocate(new))


def joint(published: Object, held: Object, new: Object = WAITER) -> Object:
    fleet = Fleet.from_manifests([device_class("any"), published, held])
    return dict(fleet.allocate_all([new])["claims"][-1])


OF_A, OF_B = (DeviceRecord((), counters_digest(frozenset()), group) for group in "AB")
OF_FOUR = DeviceRecord((("slices", 4 * 10**9),), counters_digest(frozenset({"slices"})))
WAYS = pytest.mark.parametrize("solve", [cold, warm, joint])


def recorded(held: Object, *devices: Object, counters: tuple[str, ...] = ("slices",)) -> Object:
    """The claim as this version writes it: it got its devices when the card had these."""
    new = {**held, "status": None, "metadata": {"namespace": "default", "name": held["metadata"]["name"]}}
    answer = Fleet.from_manifests([device_class("any"), card(*devices, counters=counters)]).allocate(new)
    assert answer["allocated"], answer
    metadata = {**new["metadata"], "annotations": answer["annotations"]}
    return {**new, "metadata": metadata, "status": {"allocations": answer["allocations"]}}


def names(answer: Object) -> list[str]:
    return [each["deviceName"] for each in answer["allocations"]]


# -- DeviceClaims ------------------------------------------------------------------------------------------------------


@WAYS
def test_nothing_overlaps_a_device_that_is_published_no_longer(solve: Any) -> None:
    answer = solve(card(*HALVES), HELD)
    assert (answer["allocated"], answer["reason"]) == (False, "DevicesInUse")
    assert "default/held holds device card/whole, which no longer exists" in answer["message"]
    assert answer["blockers"] == [{"kind": "claim", "namespace": "default", "name": "held", "priority": 0}]


@WAYS
def test_of_several_devices_that_are_published_no_longer_the_first_by_name_is_named(solve: Any) -> None:
    entries = [entry("card", name) for name in ("g10", "g2", "g3")]
    held = allocated(claim("held", request("any", 3)), entries, node="n1", details=["0", "0", "0"])
    answer = solve(card(*HALVES), held)
    assert "device card/g2, which no longer exists (and 2 more such)" in answer["message"]


@WAYS
def test_what_is_recorded_counts_and_no_more(solve: Any) -> None:
    half = recorded(HELD, HALVES[0])
    assert names(solve(card(HALVES[1]), half, claim("waiter", request("any")))) == ["h2"]
    assert not solve(card(*HALVES), recorded(HELD, WHOLE))["allocated"]


@WAYS
def test_a_device_that_draws_less_now_counts_as_recorded(solve: Any) -> None:
    answer = solve(card(device("whole"), *HALVES), recorded(HELD, WHOLE))
    assert not answer["allocated"]
    assert "default/held holds more of device card/whole than it has now" in answer["message"]


@WAYS
def test_a_device_that_draws_more_now_counts_as_published(solve: Any) -> None:
    grown = device("h1", requests={"slices": 3})
    assert not solve(card(grown, HALVES[1]), recorded(HELD, HALVES[0]), claim("w", request("any")))["allocated"]


@WAYS
@pytest.mark.parametrize("is_there", [False, True])
def test_a_device_with_other_counter_names_draws_all(solve: Any, is_there: bool) -> None:
    parts = [device(name, requests={"parts": 2}) for name in ("h1", "h2")]
    there = [device("whole", requests={"parts": 4})] if is_there else []
    published = card(*there, *parts, counters=("parts",))
    assert not solve(published, recorded(HELD, WHOLE), claim("w", request("any")))["allocated"]


NOW_WITHOUT = [device(name) for name in ("whole", "h1", "h2")]
"""The devices of a card that says no more what they draw."""


@WAYS
@pytest.mark.parametrize("is_there", [True, False], ids=["published", "missing"])
@pytest.mark.parametrize("counters", [(), ("memory",)], ids=["no counters", "another counter"])
def test_a_card_that_lost_a_counter_gives_nothing_beside_what_drew_on_it(
    solve: Any, is_there: bool, counters: tuple[str, ...]
) -> None:
    held = recorded(HELD, WHOLE)
    published = card(*NOW_WITHOUT[0 if is_there else 1 :], counters=counters)
    answer = solve(published, held, claim("waiter", request("any")))
    assert (answer["allocated"], answer["reason"]) == (False, "DevicesInUse")
    how = "more of device card/whole than it has now" if is_there else "device card/whole, which no longer exists"
    assert f"default/held holds {how}" in answer["message"]
    assert solve(published, claim("other", request("any")), claim("waiter", request("any")))["allocated"]


def test_a_fleet_gives_again_when_the_counter_is_back_or_the_holder_is_gone() -> None:
    fleet = Fleet.from_manifests([device_class("any"), card(WHOLE, *HALVES)])
    held = recorded(HELD, WHOLE)
    fleet.update(held)
    fleet.update(card(*NOW_WITHOUT, counters=()))
    assert not fleet.allocate(claim("w1", request("any")))["allocated"]
    fleet.update(card(WHOLE, *HALVES))
    assert not fleet.allocate(claim("w2", request("any")))["allocated"]
    fleet.update(card(*NOW_WITHOUT, counters=()))
    fleet.delete(held)
    answer = fleet.allocate(claim("w3", request("any")))
    assert answer["allocated"]
    assert "annotations" not in answer or not read_records(answer["annotations"].get(DEVICE_RECORDS))


@pytest.mark.parametrize("is_warm", [False, True], ids=["cold", "warm"])
def test_a_share_of_a_card_that_lost_a_counter_also_records_what_the_first_one_drew_of_it(is_warm: bool) -> None:
    shared = device("whole", requests={"slices": 4}, resources={"memory": 8})
    share = claim("held", request("any", requests={"memory": 2}))
    first = recorded({**share, "status": None}, shared)
    second = claim("second", request("any", requests={"memory": 2}))
    now = card(device("whole", resources={"memory": 8}), NOW_WITHOUT[1], counters=("other",))
    answer = warm(now, first, second) if is_warm else cold(now, first, second)
    assert names(answer) == ["whole"]
    (record,) = read_records(answer["annotations"][DEVICE_RECORDS]).values()
    draws = dict(record.draws or ())
    assert draws.keys() == {"other", "slices"}
    assert draws["slices"] == 4 * 10**9
    assert record.counters == counters_digest(frozenset({"other", "slices"}))


@WAYS
@pytest.mark.parametrize("counters", [(), ("slices",)], ids=["still lost", "back"])
def test_what_the_first_user_of_a_card_drew_of_a_lost_counter_counts_when_only_the_second_is_left(
    solve: Any, counters: tuple[str, ...]
) -> None:
    shared = device("whole", requests={"slices": 4}, resources={"memory": 8})
    share = claim("held", request("any", requests={"memory": 2}))
    first = recorded({**share, "status": None}, shared)
    second = claim("second", request("any", requests={"memory": 2}))
    answer = warm(card(device("whole", resources={"memory": 8}), *NOW_WITHOUT[1:], counters=()), first, second)
    held = {**second, "metadata": {**second["metadata"], "annotations": answer["annotations"]}}
    held["status"] = {"allocations": answer["allocations"]}
    published = card(*(HALVES if counters else NOW_WITHOUT[1:]), counters=counters)
    assert not solve(published, held, claim("w", request("any")))["allocated"]


def test_the_check_refuses_what_is_given_of_a_card_that_lost_a_counter() -> None:
    without, held = [device_class("any"), card(*NOW_WITHOUT, counters=())], recorded(HELD, WHOLE)
    waiter = claim("waiter", request("any"))
    documents = read_documents([*without, held, waiter])
    answers = solve_manifests([*without, waiter])["claims"]
    echo = solve_manifests([*without, held])["claims"]
    wrong = check(documents.pools, documents.classes.values(), documents.claims, [*answers, *echo])
    assert any("its pool lacks what claims recorded (S18)" in sentence for sentence in wrong), wrong


@WAYS
def test_a_counter_that_came_later_is_not_given_beside_a_missing_device(solve: Any) -> None:
    later = card(device("new", requests={"later": 1}), counters=("slices", "later"))
    assert not solve(later, recorded(HELD, HALVES[0]), claim("w", request("any")))["allocated"]


@WAYS
def test_what_draws_nothing_is_given_all_the_same(solve: Any) -> None:
    answer = solve(card(*HALVES, device("plain")), HELD, claim("w", request("any")))
    assert names(answer) == ["plain"]


@WAYS
def test_a_pool_without_counters_loses_nothing_else(solve: Any) -> None:
    published = pool("card", "n1", devices=[device("a"), device("b")])
    assert names(solve(published, HELD)) == ["a", "b"]


@WAYS
def test_a_type_that_is_published_no_longer_keeps_the_other_types_off(solve: Any) -> None:
    of_type = [device(t.lower(), attributes={"devalloc.io/compatibilityGroup": t}) for t in "AB"]
    held = allocated(claim("held", request("any")), [entry("card", "a")], node="n1", details=["0"])
    one = claim("w", request("any"))
    only_b = pool("card", "n1", devices=of_type[1:])
    assert not solve(only_b, held, one)["allocated"]
    same = pool("card", "n1", devices=[device("a2", attributes={"devalloc.io/compatibilityGroup": "A"})])
    granted = Fleet.from_manifests([device_class("any"), pool("card", "n1", devices=of_type[:1])]).allocate(held)
    assert granted["allocated"]
    text = write_records({("card", "a"): DeviceRecord((), counters_digest(frozenset()), "A")})
    noted = {**held["metadata"], "annotations": {**held["metadata"]["annotations"], DEVICE_RECORDS: text}}
    assert names(solve(same, {**held, "metadata": noted}, one)) == ["a2"]
    assert not solve(only_b, {**held, "metadata": noted}, one)["allocated"]


def test_what_a_device_drew_is_noted_in_one_order() -> None:
    """Whichever of its claims is read first, and in each process."""
    counters = [*"fbdace"]
    few = device("s", requests=dict.fromkeys(counters[:3], 1), resources={"m": 8})
    much = device("s", requests=dict.fromkeys(counters, 4), resources={"m": 8})
    fleet = Fleet.from_manifests([device_class("any"), card(much, counters=tuple(counters))])
    share = request("any", requests={"m": 2})
    assert fleet.allocate(claim("first", share))["allocated"]
    fleet.update(card(few, counters=tuple(counters)))
    noted = fleet.allocate(claim("second", share))["annotations"][DEVICE_RECORDS]
    assert [*json.loads(noted)["card"]["s"]["draws"].items()] == [(name, "4") for name in sorted(counters)]


def shares_of(*records: DeviceRecord | None) -> list[Object]:
    """Claims with a share of device a each, and what each recorded of it."""
    shares = []
    for number, record in enumerate(records):
        wanted, given = request("any", requests={"m": 1}), [entry("card", "a", m=1)]
        share = allocated(claim(f"share-{number}", wanted), given, node="n1", details=["0"])
        if record is not None:
            share["metadata"]["annotations"][DEVICE_RECORDS] = write_records({("card", "a"): record})
        shares.append(share)
    return shares


def fits(published: Object, *held: Object) -> bool:
    (*_, answer) = solve_manifests([device_class("any"), published, *held, claim("w", request("any"))])["claims"]
    return bool(answer["allocated"])


@pytest.mark.parametrize(
    ("records", "is_free"),
    [((OF_A, OF_A), True), ((OF_A, None), False), ((None, OF_A), False), ((OF_A, OF_B), False), ((OF_B, OF_A), False)],
)
def test_a_missing_device_is_of_one_type_if_all_its_claims_recorded_that(
    records: tuple[DeviceRecord | None, ...], is_free: bool
) -> None:
    published = pool("card", "n1", devices=[device("a2", attributes={"devalloc.io/compatibilityGroup": "A"})])
    assert fits(published, *shares_of(*records)) is is_free


@pytest.mark.parametrize("records", [(OF_FOUR, None), (None, OF_FOUR)])
def test_one_claim_that_recorded_more_than_is_published_is_enough(records: tuple[DeviceRecord | None, ...]) -> None:
    shared = device("a", requests={"slices": 1}, resources={"m": 2})
    assert fits(card(shared, HALVES[0]), *shares_of(None, None))
    assert not fits(card(shared, HALVES[0]), *shares_of(*records))


def test_what_a_pool_has_no_more_is_listed_in_one_order() -> None:
    """Of claims that recorded it in any order, and with the most of each."""
    records = [DeviceRecord((("z", 3),)), DeviceRecord((("a", 1), ("z", 2)))]
    for some in (records, records[::-1]):
        assert drawn_in_use({"slices": 4}, None, some) == Drawn({"slices": 4}, False, (("a", 1), ("z", 3)))


@WAYS
def test_a_share_of_a_missing_device_counts_once(solve: Any) -> None:
    shared = device("s", requests={"slices": 2}, resources={"memory": 8})
    shares = recorded(claim("held", request("any", requests={"memory": 2})), shared)
    assert names(solve(card(HALVES[0]), shares, claim("w", request("any")))) == ["h1"]


@pytest.mark.parametrize("now", [1, 2])
def test_a_later_share_records_what_the_first_one_drew(now: int) -> None:
    """The device draws less than when it came into use, and the claim that recorded more gives its share back."""
    fleet = Fleet.from_manifests([device_class("any"), card(device("s", requests={"slices": 4}, resources={"m": 8}))])
    share = request("any", requests={"m": 2})
    assert fleet.allocate(claim("first", share))["allocated"]
    fleet.update(card(device("s", requests={"slices": now}, resources={"m": 8}), *HALVES))
    assert names(dict(fleet.allocate(claim("second", share)))) == ["s"]
    fleet.release("default", "first")
    assert not fleet.allocate(claim("w", request("any")))["allocated"]


@WAYS
def test_admin_access_holds_nothing_of_a_missing_device(solve: Any) -> None:
    admin = allocated(claim("held", request("boss")), [entry("card", "whole")], node="n1", details=["0"])
    documents = [device_class("any"), device_class("boss", adminAccess=True), card(*HALVES), admin]
    if solve is cold:
        assert solve_manifests([*documents, WAITER])["claims"][-1]["allocated"]
    else:
        assert Fleet.from_manifests(documents).allocate(WAITER)["allocated"]


@WAYS
def test_a_network_pool_counts_for_every_node(solve: Any) -> None:
    network = {**card(*HALVES), "spec": {**card(*HALVES)["spec"]}}
    del network["spec"]["nodeName"]
    held = allocated(claim("held", request("any")), [entry("card", "whole")], details=["0"])
    assert not solve(network, held)["allocated"]


def test_a_fleet_remembers_over_every_change_of_the_pool() -> None:
    fleet = Fleet.from_manifests([device_class("any"), card(WHOLE)])
    assert fleet.allocate(claim("held", request("any")))["allocated"]
    for published in (card(*HALVES), card(WHOLE, *HALVES), card(device("whole"), *HALVES), card(*HALVES)):
        fleet.update(published)
        assert not fleet.allocate(WAITER)["allocated"]
    fleet.delete(card())
    fleet.update(card(*HALVES))
    assert not fleet.allocate(WAITER)["allocated"]
    fleet.release("default", "held")
    assert fleet.allocate(WAITER)["allocated"]


def test_the_check_refuses_what_overlaps_by_its_own_account() -> None:
    documents = read_documents([device_class("any"), card(*HALVES), HELD, WAITER])
    answers = solve_manifests([device_class("any"), card(*HALVES), WAITER])["claims"]
    echo = solve_manifests([device_class("any"), card(*HALVES), HELD])["claims"]
    wrong = check(documents.pools, documents.classes.values(), documents.claims, [*answers, *echo])
    assert any("(S12)" in sentence for sentence in wrong), wrong


def test_the_check_refuses_a_record_that_says_less() -> None:
    documents = read_documents([device_class("any"), card(*HALVES), WAITER])
    (answer,) = solve_manifests([device_class("any"), card(*HALVES), WAITER])["claims"]
    less = answer["annotations"][DEVICE_RECORDS].replace('"2"', '"1"', 1)
    damaged = {**answer, "annotations": {**answer["annotations"], DEVICE_RECORDS: less}}
    wrong = check(documents.pools, documents.classes.values(), documents.claims, [damaged])
    assert any("recorded with other draws" in sentence for sentence in wrong), wrong


# -- ResourceClaims ----------------------------------------------------------------------------------------------------


def dra_device(name: str, draws: int | None) -> Object:
    return dra_builders.device(name, counters=None if draws is None else {"c": {"x": str(draws)}})


def slices(*devices: Object, counter: str = "x", generation: int = 1) -> list[Object]:
    where: Object = {"generation": generation, "count": 2}
    return [counter_slice("s0", {"c": {counter: "4"}}, **where), slice_("s1", devices, **where)]


def resource_claim(name: str, count: int = 1, device_name: str | None = None) -> Object:
    new = dra_builders.claim(dra_builders.request("r", count), name=name)
    return new if device_name is None else dra_builders.held(new, device_name)


DRA_HALVES = [dra_device("h1", 2), dra_device("h2", 2)]


def dra_cold(published: list[Object], *held: Object) -> Object:
    solution = dra.solve_manifests([dra_builders.ANY, *published, *held, resource_claim("waiter", 2)])
    return next(dict(each) for each in solution["claims"] if each["name"] == "waiter")


def dra_warm(published: list[Object], *held: Object) -> Object:
    return dict(Fleet.from_manifests([dra_builders.ANY, *published, *held]).allocate(resource_claim("waiter", 2)))


HELD_OF_SLICES = resource_claim("held", device_name="whole")
DRA_WAYS = pytest.mark.parametrize("solve", [dra_cold, dra_warm])


def dra_recorded(*devices: Object) -> Object:
    answer: Any = Fleet.from_manifests([dra_builders.ANY, *slices(*devices)]).allocate(resource_claim("held"))
    new = resource_claim("held")
    metadata = {**new["metadata"], "annotations": answer["annotations"]}
    return {**new, "metadata": metadata, "status": {"allocation": answer["allocations"]}}


@DRA_WAYS
def test_nothing_overlaps_a_device_that_no_slice_has(solve: Any) -> None:
    answer = solve(slices(*DRA_HALVES), HELD_OF_SLICES)
    assert (answer["allocated"], answer["reason"]) == (False, "DevicesInUse")
    assert "default/held holds device gpu.io/p/whole, which no longer exists" in answer["message"]


@DRA_WAYS
def test_what_a_resource_claim_recorded_counts(solve: Any) -> None:
    assert not solve(slices(dra_device("whole", None), *DRA_HALVES), dra_recorded(dra_device("whole", 4)))["allocated"]
    assert solve(slices(*DRA_HALVES, dra_device("h3", 2)), dra_recorded(dra_device("gone", 0)))["allocated"]


@DRA_WAYS
@pytest.mark.parametrize("is_there", [True, False], ids=["published", "missing"])
def test_slices_that_lost_a_counter_give_nothing_beside_what_drew_on_it(solve: Any, is_there: bool) -> None:
    held = dra_recorded(dra_device("whole", 4))
    without = [dra_device(name, None) for name in ("whole", "h1", "h2")[0 if is_there else 1 :]]
    published = [slice_("s1", without, generation=2, count=1)]
    answer = solve(published, held)
    assert not answer["allocated"]
    assert "default/held" in answer["message"]
    assert solve(published)["allocated"]


@DRA_WAYS
@pytest.mark.parametrize("is_back", [False, True], ids=["still lost", "back"])
def test_what_the_first_user_of_slices_drew_of_a_lost_counter_counts_when_only_the_second_is_left(
    solve: Any, is_back: bool
) -> None:
    def shared(draws: int | None) -> Object:
        return {**dra_device("whole", draws), "allowMultipleAllocations": True, "capacity": {"m": {"value": "8"}}}

    def share(name: str) -> Object:
        return dra_builders.claim(dra_builders.request("r", capacity={"requests": {"m": "2"}}), name=name)

    def written(new: Object, answer: Any) -> Object:
        metadata = {**new["metadata"], "annotations": answer["annotations"]}
        return {**new, "metadata": metadata, "status": {"allocation": answer["allocations"]}}

    def without_counters(*devices: Object) -> list[Object]:
        return [slice_("s1", devices, generation=2, count=1)]

    first = written(share("held"), Fleet.from_manifests([dra_builders.ANY, *slices(shared(4))]).allocate(share("held")))
    now = without_counters(shared(None), dra_device("h1", None))
    second = written(share("second"), Fleet.from_manifests([dra_builders.ANY, *now, first]).allocate(share("second")))
    later = slices(*DRA_HALVES, generation=3) if is_back else without_counters(*(dra_device(n, None) for n in "ab"))
    assert not solve(later, second)["allocated"]


def test_the_check_refuses_what_is_given_of_slices_that_lost_a_counter() -> None:
    without = [dra_device("h1", None), dra_device("h2", None)]
    published = [slice_("s1", without, generation=2, count=1)]
    answer, held = dra_cold(published), dra_recorded(dra_device("whole", 4))
    checker = ClusterChecker(read_gates(None))
    checker.classes = {"any": dra_builders.ANY}
    checker.set_pool((dra_builders.DRIVER, "p"), published)
    given = ("default", "waiter"), with_defaults(resource_claim("waiter", 2)), answer["allocations"]
    assert checker.wrong(answer["node"], [given]) == []
    checker.hold(("default", "held"), held["status"]["allocation"], records_of_manifest(held))
    (wrong,) = checker.wrong(answer["node"], [given])
    assert "the pool lacks counters that claims recorded" in wrong


@DRA_WAYS
def test_while_slices_are_missing_no_device_is_gone(solve: Any) -> None:
    (_, newer) = slices(*DRA_HALVES, generation=2)
    answer = solve([*slices(dra_device("whole", 4)), {**newer, "metadata": {"name": "s2"}}], HELD_OF_SLICES)
    assert (answer["allocated"], "published no longer" in answer["message"]) == (False, False)


def test_allocate_knows_what_claims_of_the_call_have() -> None:
    new = resource_claim("waiter", 2)
    assert dra.allocate("n1", [HELD_OF_SLICES, new], [dra_builders.ANY], slices(*DRA_HALVES)) is None
    assert dra.allocate("n1", [new], [dra_builders.ANY], slices(*DRA_HALVES)) is not None


def test_a_lost_device_of_a_resource_claim_is_reported_like_that_of_a_device_claim() -> None:
    held = HELD_OF_SLICES
    solution = dra.solve_manifests([dra_builders.ANY, *slices(*DRA_HALVES), held])
    lost = [{"driver": "gpu.io", "pool": "p", "device": "whole"}]
    warning = "DeviceLost: device gpu.io/p/whole no longer exists"
    assert solution["claims"][0]["lost"] == lost
    assert solution["claims"][0]["warnings"] == [warning]
    assert [(each["kind"], each["name"], each["message"]) for each in solution["problems"]] == [
        ("ResourceClaim", "held", warning)
    ]
    answer: Any = Fleet.from_manifests([dra_builders.ANY, *slices(*DRA_HALVES), held]).allocate(held)
    assert (answer["lost"], answer["warnings"]) == (lost, [warning])


# -- the annotation ----------------------------------------------------------------------------------------------------


def test_the_record_is_readable_json() -> None:
    answer = warm(card(WHOLE), claim("other", request("any", constraints="false")), claim("held", request("any")))
    record = {"draws": {"slices": "4"}, "counters": counters_digest(frozenset({"slices"}))}
    assert json.loads(answer["annotations"][DEVICE_RECORDS]) == {"card": {"whole": record}}


def test_without_a_shared_resource_nothing_is_recorded() -> None:
    answer = warm(pool("p", "n1", devices=[device("a")]), HELD, claim("w", request("any")))
    assert DEVICE_RECORDS not in answer["annotations"]


@pytest.mark.parametrize(
    "text",
    ["", "[", "[]", "1", '{"card": []}', '{"card": {"whole": 1}}', '{"card": {"whole": {"draws": {"x": "4"}}}}',
     '{"card": {"whole": {"draws": {"x": "-1"}, "counters": ""}}}', '{"card": {"whole": {"draws": 1, "counters": ""}}}',
     '{"card": {"whole": {"draws": {}, "counters": "", "compatibilityGroup": 1}}}', "[" * 100_000, "x" * 300_000],
)  # fmt: skip
def test_what_cannot_be_read_is_not_recorded(text: str) -> None:
    record = read_records(text).get(("card", "whole"))
    assert record is None or record.draws is None


def test_what_is_written_is_what_is_read() -> None:
    record = DeviceRecord((("slices", 4 * 10**9),), "digest", "A")
    assert read_records(write_records({("card", "whole"): record})) == {("card", "whole"): record}


def test_the_explanation_of_a_call_names_the_claim() -> None:
    explained = dra.explain(
        "n1", [HELD_OF_SLICES, resource_claim("waiter", 2)], [dra_builders.ANY], slices(*DRA_HALVES)
    )
    assert "default/held holds device gpu.io/p/whole, which no longer exists" in str(explained["message"])
