"""The exact placement of one unit, as a specification: what is placed where, and what is proven not to fit."""

from __future__ import annotations

import time
from itertools import combinations
from operator import attrgetter
from typing import Any

import pytest

from benchmarks.bench_hard import Question, questions
from devalloc_solver import solve_manifests
from devalloc_solver.dialects.device_claims.manifest_records import read_documents
from devalloc_solver.dialects.device_claims.problem import DeviceClaimProblem, prepare
from devalloc_solver.place import (
    DEFAULT_STEPS,
    SearchDeadline,
    SearchTimeout,
    StepBudget,
    StepsExhausted,
    UnitPlacement,
    UnitReader,
    place,
    place_on,
)
from devalloc_solver.place.node_view import NodeView
from devalloc_solver.problem.allocations import Usage
from devalloc_solver.problem.placement_policy import PACK, POLICIES, SPREAD, PlacementPolicy
from tests.support.manifests import allocated, claim, device, device_class, entry, pool

GPU, NIC = device_class("gpu", driver="gpu"), device_class("nic", driver="nic")
WATCH = device_class("watch", driver="gpu", adminAccess=True)
HARD = [pytest.param(question, id=f"{question.family}: {question.name}") for question in questions()]


def prepared(*documents: dict[str, Any]) -> DeviceClaimProblem:
    ready = prepare(read_documents([GPU, NIC, WATCH, *documents]))
    assert not ready.refused
    return ready


def placed(*documents: dict[str, Any], policy: PlacementPolicy = PACK) -> UnitPlacement | None:
    """Where the only waiting unit goes."""
    ready = prepared(*documents)
    (unit,) = ready.units
    return place(ready.snapshot, Usage.of(ready.snapshot, ready.allocations), unit, policy=policy)


def devices(outcome: UnitPlacement | None) -> list[str]:
    """The devices of all claims, in the order of the entries."""
    assert outcome is not None
    return [entry.device.name for placement in outcome.placements for entry in placement.entries]


def pools(outcome: UnitPlacement | None, documents: DeviceClaimProblem) -> set[str]:
    assert outcome is not None
    return {documents.snapshot.pools[e.device.pool].name for p in outcome.placements for e in p.entries}


def gpus(name: str, count: int, node: str | None = "n1", **attributes: Any) -> dict[str, Any]:
    return pool(name, node, devices=[device(f"g{i}", attributes=attributes or {"k": i}) for i in range(count)])


def want(**detail: Any) -> dict[str, Any]:
    return {"deviceClass": "gpu", **detail}


# -- hard questions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("question", HARD)
def test_hard_questions_are_settled_within_a_tenth_of_the_budget(question: Question) -> None:
    ready = prepare(read_documents(question.documents))
    answer = place(ready.snapshot, Usage.of(ready.snapshot, ready.allocations), ready.units[0], steps=3_000)
    assert (answer is not None) is question.fits


def test_a_budget_that_is_spent_is_no_answer() -> None:
    (question,) = [
        q for q in questions() if q.name == "8 GPUs, one pool" and q.family.startswith("7 eighths a GPU and 2")
    ]
    ready = prepare(read_documents(question.documents))
    with pytest.raises(StepsExhausted):
        place(ready.snapshot, Usage.of(ready.snapshot, ready.allocations), ready.units[0], steps=20)


def test_after_its_deadline_a_search_does_its_grace_of_work_and_no_more() -> None:
    fleet = [gpus(f"p{n}", 2, f"n{n}") for n in range(5)]
    ready = prepared(*fleet, claim("c", want(requests={"count": 2}), match=["k"]))
    (unit,), usage = ready.units, Usage.of(ready.snapshot, ready.allocations)
    expired = time.monotonic() - 1

    def search(deadline: SearchDeadline) -> UnitPlacement | None:
        return place(ready.snapshot, usage, unit, steps=StepBudget(DEFAULT_STEPS, deadline))

    with pytest.raises(SearchTimeout):
        search(SearchDeadline(expired, grace=3))
    assert search(SearchDeadline(expired)) is None, "a small question is settled whatever the time is"
    assert search(SearchDeadline(time.monotonic() + 600, grace=0)) is None
    assert search(SearchDeadline(None, grace=0)) is None


def test_after_the_deadline_the_best_until_then_is_an_answer_that_is_not_proven() -> None:
    """The first node has room in two pools, the last one in one pool."""
    ready = prepared(
        *(gpus(f"p{n}{half}", 1, f"n{n}") for n in range(5) for half in "ab"),
        gpus("whole", 2, "n9"),
        claim("c", want(requests={"count": 2})),
    )
    (unit,), usage = ready.units, Usage.of(ready.snapshot, ready.allocations)
    proven = place(ready.snapshot, usage, unit)
    assert proven is not None
    assert proven.is_proven
    assert pools(proven, ready) == {"whole"}
    cut = place(
        ready.snapshot, usage, unit, steps=StepBudget(DEFAULT_STEPS, SearchDeadline(time.monotonic() - 1, grace=20))
    )
    assert cut is not None
    assert not cut.is_proven
    assert pools(cut, ready) == {"p0a", "p0b"}


def test_a_deadline_that_passed_before_the_search_does_not_refuse_a_claim_that_fits_at_once() -> None:
    fleet = [gpus(f"p{n}", 1, f"n{n}") for n in range(50)]
    (answer,) = solve_manifests([GPU, *fleet, claim("c", want(requests={"count": 1}))], deadline=0)["claims"]
    assert answer["allocated"]


# -- network devices -------------------------------------------------------------------------------------------------

NETWORK = pool("san", None, "nic", devices=[device(f"d{i}", attributes={"k": i % 3, "m": i}) for i in range(6)])
REACH_NETWORK = (
    NETWORK,
    gpus("a", 2, "n1", k=1),
    gpus("b", 3, "n2", k=2),
    gpus("c", 2, "n3", k=9),
    allocated(claim("held", {"deviceClass": "nic"}), [entry("san", "d1")], node="n1"),
    claim("c", want(requests={"count": 2}), {"deviceClass": "nic"}, match=["k"]),
)


def content_of(view: NodeView) -> tuple[object, ...]:
    groups = [
        (g.number, view.pools[g.pool].name, [d.name for d in g.devices], g.accepted, g.takers)
        for g in view.candidate_groups
    ]
    return [p.name for p in view.pools], groups, view.tie_values, view.distinct_values, view.peer


def test_nodes_share_their_view_of_network_devices_and_keep_their_own() -> None:
    ready = prepared(*REACH_NETWORK)
    (unit,), usage = ready.units, Usage.of(ready.snapshot, ready.allocations)
    reader = UnitReader()
    views = {node: reader.view(unit, ready.snapshot, usage, node) for node in ("n1", "n2", "n3")}
    assert len({id(view.network) for view in views.values()}) == 1
    for node, view in views.items():
        assert content_of(view) == content_of(UnitReader().view(unit, ready.snapshot, usage, node))
        assert len(view.candidate_groups) == len(view.network.candidate_groups) + 1


def test_a_reader_views_network_devices_again_when_their_use_has_changed() -> None:
    ready = prepared(*REACH_NETWORK)
    (unit,), reader = ready.units, UnitReader()
    in_use, unused = Usage.of(ready.snapshot, ready.allocations), Usage(ready.snapshot)
    before = reader.view(unit, ready.snapshot, in_use, "n1")
    after = reader.view(unit, ready.snapshot, unused, "n1")
    assert content_of(before) != content_of(after)
    assert content_of(after) == content_of(UnitReader().view(unit, ready.snapshot, unused, "n1"))


def test_a_value_of_network_devices_tells_nodes_apart() -> None:
    """n3 differs from n1 and n2 only in a value that no network device has; the one with the value of n1 is free."""
    outcome = placed(*REACH_NETWORK)
    assert outcome is not None
    assert outcome.placements[0].node in ("n1", "n2")
    assert placed(NETWORK, REACH_NETWORK[3], REACH_NETWORK[5]) is None


# -- goals -----------------------------------------------------------------------------------------------------------


def test_the_first_alternative_that_fits_is_chosen_even_if_it_needs_more_pools() -> None:
    one_of = {"oneOf": [want(requests={"count": 3}), want(requests={"count": 1})]}
    outcome = placed(gpus("a", 2), gpus("b", 2), claim("c", one_of))
    assert outcome is not None
    assert outcome.score.one_of == (0,)
    assert outcome.score.pools == 2


def test_alternatives_are_compared_from_the_first_detail_on() -> None:
    """(0, 1) comes before (1, 0), whatever pools and devices they cost."""
    small, big = want(constraints="device.k == 's'"), want(constraints="device.k == 'b'", requests={"count": 2})
    documents = [gpus("small", 1, k="s"), gpus("big", 2, k="b")]
    outcome = placed(*documents, claim("c", {"oneOf": [big, small]}, {"oneOf": [big, small]}))
    assert outcome is not None
    assert outcome.score.one_of == (0, 1)


def test_fewest_pools_come_before_fewest_devices() -> None:
    """Four devices of one pool, rather than one of each of two pools."""
    many = pool("many", devices=[device(f"m{i}", resources={"memory": 4}) for i in range(4)])
    big = [pool(f"big{i}", devices=[device("b", resources={"memory": 8})]) for i in range(2)]
    outcome = placed(many, *big, claim("c", want(requests={"count": 1, "memory": 16}, limits={"count": 4})))
    assert outcome is not None
    assert (outcome.score.pools, outcome.score.devices) == (1, 4)


def parts(*sizes: int) -> dict[str, Any]:
    """A card of 8, and its parts by their size, each with as much memory."""
    one = [
        device(f"part-{i}-of-{size}", attributes={"size": size}, requests={"card": size}, resources={"memory": size})
        for i, size in enumerate(sizes)
    ]
    return pool("card", resources={"card": 8}, devices=one)


@pytest.mark.parametrize("policy", POLICIES, ids=attrgetter("name"))
@pytest.mark.parametrize(
    ("sizes", "memory", "taken"),
    [
        ((1, 4), 3, ["part-1-of-4"]),
        ((4, 1), 3, ["part-0-of-4"]),
        ((2, 1, 1, 4), 4, ["part-3-of-4"]),
        ((1, 2, 1, 2, 4), 6, ["part-1-of-2", "part-4-of-4"]),
    ],
)
def test_of_one_card_as_few_parts_are_taken_as_are_enough(
    sizes: tuple[int, ...], memory: int, taken: list[str], policy: PlacementPolicy
) -> None:
    wanted = want(requests={"count": 1, "memory": memory}, limits={"count": 8})
    assert devices(placed(parts(*sizes), claim("c", wanted), policy=policy)) == taken


@pytest.mark.parametrize("count", [1, 2, 3])
def test_of_those_packing_takes_the_ones_that_leave_the_largest_part(count: int) -> None:
    """As an exhaustive search finds."""
    sizes = (4, 2, 1, 4, 1, 2)
    wanted = want(requests={"count": count, "memory": count + 1}, limits={"count": count})
    enough = [some for some in combinations(sizes, count) if count < sum(some) <= 8]
    left = max(max((size for size in sizes if size <= 8 - sum(some)), default=0) for some in enough)
    names = devices(placed(parts(*sizes), claim("c", wanted)))
    taken = [int(name.rpartition("-")[2]) for name in names]
    assert max(size for size in sizes if size <= 8 - sum(taken)) == left


def test_an_admin_looks_at_devices_that_the_claim_has_anyway() -> None:
    outcome = placed(
        gpus("a", 4), claim("c", want(requests={"count": 2}), {"deviceClass": "watch", "requests": {"count": 2}})
    )
    assert devices(outcome) == ["g0", "g1", "g0", "g1"]


def test_an_admin_looks_at_devices_that_must_not_be_taken_beside_those_of_the_claim() -> None:
    sizes = [device(f"v{size}", attributes={"devalloc.io/compatibilityGroup": size}) for size in ("4G", "8G")]
    wanted = claim("c", {"deviceClass": "watch", "requests": {"count": 2}}, want())
    assert devices(placed(pool("card", devices=sizes), wanted)) == ["v4G", "v8G", "v4G"]


def test_of_pools_that_can_do_the_same_the_policy_takes_those_it_likes() -> None:
    held = allocated(claim("h", want(requests={"count": 3})), [entry("b", f"g{n}") for n in range(3)], node="n1")
    documents = [gpus("a", 1), gpus("b", 4), gpus("c", 2), held, claim("c", want(requests={"count": 3}))]
    for policy, taken in ((PACK, {"b", "c"}), (SPREAD, {"a", "c"})):
        assert pools(placed(*documents, policy=policy), prepared(*documents)) == taken


def test_claims_of_a_group_share_a_node_and_no_device() -> None:
    group = {"annotations": {"devalloc.io/group": "vm"}}
    one, other = claim("c1", want(requests={"count": 2}), **group), claim("c2", want(), **group)
    outcome = placed(gpus("a", 2, "n1"), gpus("b", 3, "n2"), one, other)
    assert outcome is not None
    assert [p.node for p in outcome.placements] == ["n2", "n2"]
    assert sorted(devices(outcome)) == ["g0", "g1", "g2"]
    assert placed(gpus("a", 2, "n1"), gpus("b", 2, "n2"), one, other) is None


def test_network_devices_alone_name_no_node_unless_pinned() -> None:
    alone = placed(gpus("net", 1, None), gpus("a", 1, "n1", k="x"), claim("c", want(constraints="device.k == 0")))
    assert alone is not None
    assert alone.placements[0].node is None
    pinned = claim("c", want(), annotations={"devalloc.io/node": "n7"})
    outcome = placed(gpus("net", 1, None), gpus("a", 1, "n1"), pinned)
    assert outcome is not None
    assert outcome.placements[0].node == "n7"


# -- policy ----------------------------------------------------------------------------------------------------------


def test_pack_takes_the_pool_in_use_and_spread_the_other() -> None:
    held = allocated(claim("held", want()), [entry("b", "g0")], node="n1")
    documents = [gpus("a", 2), gpus("b", 3), held, claim("c", want())]
    assert devices(placed(*documents)) == ["g1"]
    assert devices(placed(*documents, policy=SPREAD)) == ["g0"]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_pack_breaks_into_as_few_cards_as_it_must(count: int) -> None:
    """Two cards in one pool; a quarter of the second is gone, so its other quarters go first."""
    parts = []
    for card in ("one", "two"):
        parts.append(device(f"{card}-whole", attributes={"size": 4}, requests={card: 4}))
        parts += [device(f"{card}-{i}", attributes={"size": 1}, requests={card: 1}) for i in range(4)]
    cards = pool("cards", resources={"one": "4", "two": "4"}, devices=parts)
    held = allocated(claim("held", want()), [entry("cards", "two-0")], node="n1")
    wanted = want(constraints="device.size == 1", requests={"count": count})
    assert all(name.startswith("two") for name in devices(placed(cards, held, claim("c", wanted))))


def test_names_come_in_natural_order() -> None:
    documents = [pool("p", devices=[device(f"g{i}") for i in (10, 9, 2, 1)])]
    assert devices(placed(*documents, claim("c", want(requests={"count": 3})))) == ["g1", "g2", "g9"]


# -- shares ----------------------------------------------------------------------------------------------------------


def test_a_share_is_split_only_where_it_must_be_and_no_finer_than_blocks() -> None:
    parts = [device(f"d{i}", resources={"memory": "10/4"}) for i in range(3)]
    outcome = placed(pool("p", devices=parts), claim("c", want(requests={"memory": 10})))
    assert outcome is not None
    (placement,) = outcome.placements
    blocks = [(e.device.name, [(name, nano // 4 // 10**9) for name, nano in e.amounts]) for e in placement.entries]
    assert blocks == [("d0", [("memory", 2)]), ("d1", [("memory", 1)])]


def test_shares_of_several_claims_fill_up_a_device_before_another() -> None:
    group = {"annotations": {"devalloc.io/group": "vm"}}
    parts = [device(f"d{i}", resources={"memory": 8}) for i in range(3)]
    claims = [claim(f"c{i}", want(requests={"memory": 4}), **group) for i in range(4)]
    outcome = placed(pool("p", devices=parts), *claims)
    assert outcome is not None
    assert outcome.score.devices == 2


def test_a_share_that_just_fits_into_what_is_left_of_a_device_is_not_split() -> None:
    parts = [device("d0", resources={"memory": 4}), device("d1", resources={"memory": 3})]
    outcome = placed(pool("p", devices=parts), claim("c", *(want(requests={"memory": amount}) for amount in (3, 1, 3))))
    assert outcome is not None
    (placement,) = outcome.placements
    amounts = [(entry.device.name, nano // 10**9) for entry in placement.entries for _, nano in entry.amounts]
    assert amounts == [("d0", 3), ("d0", 1), ("d1", 3)]


def test_whole_takers_and_shares_never_meet() -> None:
    parts = [device(f"d{i}", resources={"memory": 8}) for i in range(2)]
    both = claim("c", want(), want(requests={"memory": 9}))
    assert placed(pool("p", devices=parts), both) is None
    assert placed(pool("p", devices=[*parts, device("d2", resources={"memory": 1})]), both) is not None


# -- one node --------------------------------------------------------------------------------------------------------


def test_a_single_node_is_placed_on_as_the_whole_fleet_would_be() -> None:
    documents = prepared(gpus("a", 1, "n1"), gpus("b", 2, "n2"), claim("c", want(requests={"count": 2})))
    usage = Usage.of(documents.snapshot, ())
    (unit,) = documents.units
    assert place_on(documents.snapshot, usage, unit, "n1") is None
    outcome = place_on(documents.snapshot, usage, unit, "n2")
    assert outcome == place(documents.snapshot, usage, unit)
    assert pools(outcome, documents) == {"b"}
