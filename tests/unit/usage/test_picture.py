"""Pictures: racks of nodes, cards as bars of their parts, and refusals as what is in the way."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from devalloc.api import meta
from devalloc.api.manifests import load
from devalloc.controller.refusals import refusal_of
from devalloc.machines.schedule.what_if import solve_with_machines
from devalloc.usage.overview import build_overview, refusal_cache
from devalloc.usage.overview.model import CardSummary, shares_drawn
from devalloc.usage.overview.picture import MAX_PIECES, Piece, card_picture, rack_pictures, rack_text
from devalloc.usage.overview.refusal_cache import RefusalCache
from tests.support.fleet_manifests import gpu_claim, gpu_class, gpu_pool
from tests.support.resource_manifests import counters, device, resource_claim, slice_of

Object = dict[str, Any]


def only_card(*documents: Object) -> CardSummary:
    (node,) = build_overview(documents).nodes
    (card,) = node.cards
    return card


def partitioned(*claims: Object, slices_of_card: str = "8") -> CardSummary:
    """A GPU of 8 slices that can be cut in halves and quarters."""
    kinds = [("half", "4", f"half-{i}") for i in (0, 1)] + [("quarter", "2", f"quarter-{i}") for i in (0, 1)]
    parts = [device(name, draws={"slices": slices}, function="mdev", profile=kind) for kind, slices, name in kinds]
    return only_card(
        slice_of("card", "n", of=2, name="sets", sharedCounters=[counters(slices=slices_of_card)]),
        slice_of("card", "n", parts, of=2),
        *claims,
    )


def pieces(card: CardSummary) -> list[tuple[str, str, float]]:
    return [(each.name, each.state, round(each.width, 2)) for each in card_picture(card).pieces]


def test_a_part_is_as_wide_as_what_it_draws_and_the_rest_is_one_piece() -> None:
    card = partitioned(resource_claim("train", "card/half-0", node="n"))
    assert pieces(card) == [("half-0", "held", 0.5), ("free", "free", 0.5)]
    assert card_picture(card).pieces[0].holder == "resourceclaim default/train"
    assert card_picture(card).left == "mdev half or 2 x mdev quarter"
    assert "half-0 resourceclaim default/train; free free; left: mdev half" in card_picture(card).title


def test_what_is_left_and_too_small_is_not_free() -> None:
    held = resource_claim("a", "card/half-0", "card/quarter-0", node="n")
    assert pieces(partitioned(held))[-1] == ("free", "free", 0.25)
    assert pieces(partitioned(held, slices_of_card="7"))[-1] == ("left over", "excluded", 0.14)


def test_resources_that_differ_in_a_number_are_one() -> None:
    """As the memory slices of an A100: a partition has some of them, and each whole."""
    totals = {"slice-0": 1, "slice-1": 1, "slice-2": 1, "slice-3": 1, "memory": 40}
    drawn = shares_drawn({"a": {"slice-0": 1, "memory": 10}, "b": {"slice-2": 1, "slice-3": 1}, "c": {}}, totals)
    assert drawn == {"a": 0.25, "b": 0.5, "c": 0.0}


def test_devices_that_share_nothing_are_beside_each_other() -> None:
    card = only_card(gpu_pool("p", 4), gpu_class())
    assert card_picture(card).pieces[1] == Piece("d1", "free", "", 0.25, 0.25)


def test_a_card_of_many_devices_has_few_pieces() -> None:
    picture = card_picture(only_card(gpu_pool("p", 100)))
    assert len(picture.pieces) == MAX_PIECES
    assert (picture.pieces[-1].name, picture.pieces[-1].holder) == ("69 more", "69 free")
    assert picture.pieces[-1].start + picture.pieces[-1].width == pytest.approx(1)


def test_more_than_there_is_stays_within_the_bar() -> None:
    """Two halves and a quarter of one card, as an alarm says of it."""
    over = [resource_claim(f"c{i}", f"card/half-{i}", node="n") for i in (0, 1)]
    card = partitioned(*over, resource_claim("more", "card/quarter-0", node="n"))
    assert sum(each[2] for each in pieces(card)) == pytest.approx(1)
    assert len(pieces(card)) == 3


def in_rack(pool: Object, rack: str) -> Object:
    pool["spec"]["attributes"] = [*pool["spec"].get("attributes", []), {"name": "rack", "stringValue": rack}]
    return pool


def test_nodes_are_grouped_by_the_rack_of_their_devices() -> None:
    pools = [in_rack(gpu_pool("a", 2, "n1"), "r10"), in_rack(gpu_pool("b", 2, "n2"), "r2"), gpu_pool("c", 1, "n3")]
    pools.append(in_rack(gpu_pool("d", 1, "n4"), "r2"))
    racks = rack_pictures(build_overview(pools).nodes)
    assert [(rack.name, [node.name for node in rack.nodes]) for rack in racks] == [
        ("r2", ["n2", "n4"]), ("r10", ["n1"]), ("", ["n3"]),
    ]  # fmt: skip
    assert rack_text(racks[0]) == "rack r2: 2 nodes, 3 of 3 devices available"


def test_slices_name_racks_too() -> None:
    (node,) = build_overview([slice_of("p", "n", [device("d", rack="r1")])]).nodes
    assert node.rack == "r1"


# -- refusals --------------------------------------------------------------------------------------------------------


def unsatisfiable() -> list[Object]:
    return [document.content for document in load(["examples/unsatisfiable"]).documents]


def test_the_layers_of_a_refusal_are_what_each_rule_leaves() -> None:
    (answer,) = [one for one in solve_with_machines(unsatisfiable())["claims"] if one["name"] == "pair"]
    refusal = refusal_of(answer)
    (funnel,) = refusal.funnels
    everything, *out, match, free = funnel.layers
    assert (everything.kind, match.kind, free.kind) == ("all", "match", "free")
    assert {each.kind for each in out} == {"out"}
    assert out[0].start + out[0].count == everything.count
    for before, after in itertools.pairwise(out):
        assert after.start + after.count == before.start, "each begins where the one before left off"
    assert out[-1].start == match.count
    assert [one.kind for one in refusal.obstacles] == ["match attribute"]
    assert refusal.advice.startswith("Drop an attribute from matchAttributes")


def waiting() -> list[Object]:
    return [gpu_class(), gpu_pool("p", 1), gpu_claim("big", 2)]


def test_refusals_are_worked_out_once_for_what_there_is() -> None:
    cache = RefusalCache(lambda: 0.0)
    first = cache.latest("1", waiting(), with_nodes=False)
    assert first["default", "big"].reason == "NotEnoughDevices"
    assert cache.latest("1", waiting(), with_nodes=False) is first
    assert cache.latest("2", [], with_nodes=False) is first, "it is too early for another search"


def test_of_large_fleets_nothing_is_worked_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusal_cache, "MAX_OBJECTS", 2)
    assert RefusalCache().latest("1", waiting(), with_nodes=False) == {}


def test_one_search_runs_at_a_time() -> None:
    cache = RefusalCache()
    with cache._lock:
        assert cache.latest("1", waiting(), with_nodes=False) == {}


def test_content_that_breaks_the_search_costs_the_picture_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*documents: object, **options: object) -> None:
        raise RecursionError

    monkeypatch.setattr("devalloc.usage.overview.refusal_cache.solve_with_machines", fail)
    assert RefusalCache().latest("1", waiting(), with_nodes=False) == {}


def test_a_refusal_that_differs_from_what_its_claim_says_is_not_shown() -> None:
    from devalloc.usage.overview.cache import OverviewCache
    from tests.support.served_page import FixedStore

    for reason, shown in (("NotEnoughDevices", 1), ("NoMatchingDevices", 0)):
        claim = gpu_claim("big", 2, reason=reason, message="...")
        assert claim["metadata"]["annotations"][meta.REASON] == reason
        store = FixedStore([gpu_class(), gpu_pool("p", 1), claim])
        cache = OverviewCache(store, store)  # type: ignore[arg-type]  it only lists
        assert len(cache.refusals(cache.latest())) == shown
