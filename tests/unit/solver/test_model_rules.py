"""What the exact model does with portions, all devices, relations and equal claims, one rule at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from devalloc_solver.exact.device_naming import name_devices
from devalloc_solver.exact.goals import optimize_goals
from devalloc_solver.exact.model import build_model
from devalloc_solver.problem.allocations import AllocatedDevice, Holding
from devalloc_solver.problem.demand import AllocationMode, Constraint, Demand, PlacementUnit, Request
from devalloc_solver.problem.placement import GoalLevel, Placement
from devalloc_solver.problem.placement_policy import PACK
from devalloc_solver.problem.snapshot import Device, Pool, Resource, Snapshot
from tests.support.normal_instances import a_claim, a_slot, candidates


def fleet(
    *devices: Mapping[str, object], shareable: int = 0, counter: int | None = None, reach: frozenset[str] | None = None
) -> Snapshot:
    """One pool of devices with these attributes; ``shareable``: the capacity of each; ``counter``: each draws one."""
    resources = {"m": Resource(1, shareable)} if shareable else {}
    draws = (("c", 1),) if counter is not None else ()
    members = tuple(
        Device(i, 0, f"d{i}", attributes, resources, draws, None, bool(shareable), reach)
        for i, attributes in enumerate(devices)
    )
    node = None if reach else "n1"
    pool = Pool(0, node, "p", "driver", {"c": Resource(1, counter)} if counter is not None else {}, members)
    return Snapshot((pool,), members, tuple(sorted(reach or {"n1"})), {node: (pool,)}, {"p": (pool,)})


def want(
    snapshot: Snapshot, count: int = 1, *, mode: AllocationMode = AllocationMode.WHOLE, portion: int = 0, **fields: Any
) -> Request:
    """A request that any device will do for."""
    portions = {d.index: (("m", portion),) for d in snapshot.devices if d.shareable}
    every = mode in (AllocationMode.EVERY, AllocationMode.ADMIN_ALL)
    most = None if every else count
    request = a_slot(
        candidates(d.index for d in snapshot.devices), mode=mode, min_count=count, max_count=most, portions=portions
    )
    return replace(request, **fields)


def claim(name: str, *requests: Request, **fields: Any) -> PlacementUnit:
    details = tuple((replace(request, detail=number),) for number, request in enumerate(requests))
    return PlacementUnit((replace(Demand(a_claim(name), details, ()), **fields),), None, None)


def solved(
    snapshot: Snapshot, *units: PlacementUnit, held: Sequence[Holding] = ()
) -> tuple[dict[str, Placement], dict[str, GoalLevel]]:
    search, levels = optimize_goals(build_model(snapshot, held, units), policy=PACK, ends=None)
    assert all(level.is_proven for level in levels)
    return {p.demand.key[1]: p for p in name_devices(search)}, {level.goal: level for level in levels}


def devices(placement: Placement) -> list[int]:
    return [entry.device.index for entry in placement.entries]


# -- portions --------------------------------------------------------------------------------------------------------


def test_several_claims_take_portions_of_a_device_until_it_is_full() -> None:
    gpu = fleet({}, shareable=5)
    answers, levels = solved(gpu, *(claim(f"c{i}", want(gpu, portion=2)) for i in range(3)))
    assert sorted(answers) == ["c0", "c1"]
    assert levels["devices"].value == 1
    assert answers["c0"].entries[0].amounts == (("m", 2),)


def test_a_slot_takes_a_device_once_and_another_slot_may_take_it_again() -> None:
    gpu = fleet({}, shareable=8)
    answers, _ = solved(
        gpu, claim("twice", want(gpu, 2, portion=1)), claim("both", want(gpu, portion=1), want(gpu, portion=1))
    )
    assert sorted(answers) == ["both"]


def test_portions_of_different_size_are_packed_exactly() -> None:
    gpus = fleet({}, {}, shareable=5)
    units = [claim(f"c{size}-{i}", want(gpus, portion=size)) for i in range(2) for size in (2, 3)]
    assert len(solved(gpus, *units)[0]) == 4
    assert len(solved(gpus, *units, claim("one-more", want(gpus, portion=1)))[0]) == 4


def test_a_claim_for_two_portions_is_counted_with_two_devices() -> None:
    gpus = fleet({}, {}, {}, shareable=8, counter=2)
    _, levels = solved(gpus, claim("c", want(gpus, 2, portion=1)), claim("d", want(gpus, 2, portion=1)))
    assert (levels["satisfied"].value, levels["devices"].value) == (2, 2)


def test_a_device_draws_on_its_pool_once_however_many_portions_it_has() -> None:
    gpus = fleet({}, {}, shareable=2, counter=1)
    answers, levels = solved(gpus, *(claim(f"c{i}", want(gpus, portion=1)) for i in range(3)))
    assert (len(answers), levels["devices"].value) == (2, 1)


def test_a_device_in_use_draws_nothing_more() -> None:
    gpus = fleet({}, {}, shareable=4, counter=1)
    held = [Holding(("", "other"), 0, (AllocatedDevice(1, (("m", 1),)),))]
    answers, _ = solved(gpus, claim("c", want(gpus, portion=3)), claim("d", want(gpus, portion=3)), held=held)
    assert [devices(placement) for placement in answers.values()] == [[1]]


def test_amounts_beyond_64_bits_are_exact() -> None:
    gpu = fleet({}, shareable=3 * 10**30)
    assert len(solved(gpu, *(claim(f"c{i}", want(gpu, portion=10**30)) for i in range(4)))[0]) == 3
    assert len(solved(gpu, *(claim(f"c{i}", want(gpu, portion=10**30 + i)) for i in range(4)))[0]) == 2
    assert len(solved(gpu, *(claim(f"c{i}", want(gpu, portion=1)) for i in range(4)))[0]) == 4


def test_a_portion_without_amounts_holds_the_device_as_shared() -> None:
    gpu = fleet({}, shareable=1)
    request = replace(want(gpu), portions={0: ()})
    answers, _ = solved(gpu, claim("c", request))
    assert answers["c"].holding().items == (AllocatedDevice(0, ()),)
    assert sorted(solved(gpu, claim("d", request), held=[answers["c"].holding()])[0]) == ["d"]


# -- all devices -----------------------------------------------------------------------------------------------------


def test_all_takes_each_device_and_all_of_them_count() -> None:
    gpus = fleet({}, {}, {}, shareable=2, counter=3)
    answers, levels = solved(
        gpus, claim("all", want(gpus, mode=AllocationMode.EVERY, portion=1)), claim("c", want(gpus, portion=1))
    )
    assert devices(answers["all"]) == [0, 1, 2]
    assert (len(answers), levels["devices"].value) == (2, 3)


@pytest.mark.parametrize(("counter", "fits"), [(2, True), (1, False)])
def test_all_draws_for_each_device(counter: int, fits: bool) -> None:
    gpus = fleet({}, {}, counter=counter)
    assert bool(solved(gpus, claim("all", want(gpus, mode=AllocationMode.EVERY)))[0]) is fits


def test_all_is_impossible_while_one_of_them_is_in_use() -> None:
    gpus = fleet({}, {})
    held = [Holding(("", "other"), 0, (AllocatedDevice(1, None),))]
    every = claim("all", want(gpus, mode=AllocationMode.EVERY))
    assert solved(gpus, every, held=held)[0] == {}
    assert sorted(solved(gpus, claim("admin", want(gpus, mode=AllocationMode.ADMIN_ALL)), held=held)[0]) == ["admin"]


def test_all_counts_what_the_node_reaches() -> None:
    network = fleet({}, {}, reach=frozenset({"n1"}))
    unit = claim("all", want(network, mode=AllocationMode.EVERY))
    assert solved(network, replace(unit, pin="n2"))[0] == {}
    assert devices(solved(network, replace(unit, pin="n1"))[0]["all"]) == [0, 1]


# -- relations -------------------------------------------------------------------------------------------------------


def relation(attribute: str, *labels: str, distinct: bool = False) -> tuple[Constraint, ...]:
    return (Constraint(attribute, distinct, frozenset(labels)),)


def test_lists_match_when_one_value_is_on_all_of_them() -> None:
    """Pairwise overlap is not enough: this is C1 of upstream's defects."""
    lists = [{"k": frozenset(values)} for values in ("a", "b", "c", "d")]
    attributes = [{"k": frozenset({1, 2})}, {"k": frozenset({1})}, {"k": frozenset({2})}, {"k": frozenset({2})}]
    gpus = fleet(*attributes)
    answers, _ = solved(gpus, claim("c", want(gpus, 3), relations=relation("k", "0")))
    assert devices(answers["c"]) == [0, 2, 3]
    apart = fleet({"k": frozenset("ab")}, {"k": frozenset("bc")}, {"k": frozenset("ca")})
    assert solved(apart, claim("c", want(apart, 3), relations=relation("k", "0")))[0] == {}
    assert solved(fleet(*lists), claim("c", want(gpus, 2), relations=relation("k", "0")))[0] == {}


def test_distinct_means_no_value_twice_and_no_device_twice() -> None:
    gpus = fleet({"k": "x"}, {"k": "y"}, {"k": "x"})
    assert solved(gpus, claim("c", want(gpus, 3), relations=relation("k", "0", distinct=True)))[0] == {}
    assert solved(gpus, claim("c", want(gpus, 2), relations=relation("k", "0", distinct=True)))[0] != {}
    one = fleet({"k": "x"}, shareable=4)
    both = claim("c", want(one, portion=1), want(one, portion=1), relations=relation("k", "0", "1", distinct=True))
    assert solved(one, both)[0] == {}


@pytest.mark.parametrize("distinct", [False, True])
def test_a_device_without_the_value_neither_matches_nor_differs(distinct: bool) -> None:
    gpus = fleet({"k": "x"}, {}, {"k": "y" if distinct else "x"})
    answers, _ = solved(gpus, claim("c", want(gpus, 2), relations=relation("k", "0", distinct=distinct)))
    assert devices(answers["c"]) == [0, 2]
    assert solved(gpus, claim("c", want(gpus, 3), relations=relation("k", "0", distinct=distinct)))[0] == {}


def test_a_relation_binds_the_slots_it_names_and_no_others() -> None:
    gpus = fleet({"k": "x"}, {})
    assert solved(gpus, claim("c", want(gpus), want(gpus), relations=relation("k", "0", "1")))[0] == {}
    answers, _ = solved(gpus, claim("c", want(gpus), want(gpus), relations=relation("k", "1")))
    assert [(entry.request.detail, entry.device.index) for entry in answers["c"].entries] == [(0, 1), (1, 0)]


# -- limits of a claim -----------------------------------------------------------------------------------------------


def test_a_claim_has_at_most_so_many_entries() -> None:
    gpus = fleet({}, {}, {})
    pair = (want(gpus, 2), want(gpus, 1))
    assert solved(gpus, claim("c", *pair, most=3))[0] != {}
    assert solved(gpus, claim("c", *pair, most=2))[0] == {}
    assert solved(gpus, claim("c", want(gpus, mode=AllocationMode.EVERY), most=2))[0] == {}


@pytest.mark.parametrize(("once", "fits"), [(True, False), (False, True)])
def test_once_counts_admin_details_too(once: bool, fits: bool) -> None:
    gpus = fleet({}, {})
    unit = claim("c", want(gpus, 2), want(gpus, mode=AllocationMode.ADMIN_COUNT), once=once)
    assert bool(solved(gpus, unit)[0]) is fits


def test_once_gives_an_admin_detail_another_device_than_the_claim_has() -> None:
    gpus = fleet({}, {}, {})
    unit = claim(
        "c",
        want(gpus),
        want(gpus, mode=AllocationMode.ADMIN_COUNT),
        want(gpus, mode=AllocationMode.ADMIN_COUNT),
        once=True,
    )
    assert Counter(devices(solved(gpus, unit)[0]["c"])) == {0: 1, 1: 1, 2: 1}


# -- equal claims ----------------------------------------------------------------------------------------------------


def test_equal_claims_are_satisfied_in_their_order_whatever_stands_between() -> None:
    gpus = fleet(*({"k": i} for i in range(4)))
    pairs = [claim(f"pair-{i}", want(gpus, 2), shape="pair") for i in range(3)]
    singles = [claim(f"single-{i}", want(gpus), shape="single") for i in range(3)]
    answers, levels = solved(gpus, *pairs, *singles)
    assert sorted(answers) == ["pair-0", "single-0", "single-1"]
    assert levels["satisfied"].value == 3


def test_the_smaller_alternatives_go_to_the_earlier_of_equal_claims() -> None:
    gpus = fleet({}, {}, {}, {})
    detail = tuple(replace(want(gpus, count), alternative=number) for number, count in enumerate((2, 1)))
    units = [PlacementUnit((Demand(a_claim(f"c{i}"), (detail,), (), shape="either"),), None, None) for i in range(3)]
    answers, levels = solved(gpus, *units)
    assert [len(answers[f"c{i}"].entries) for i in range(3)] == [2, 1, 1]
    assert levels["oneOf"].value == 2


def test_what_equal_claims_get_agrees_claim_by_claim() -> None:
    gpus = fleet(*({"k": key} for key in "aaabbbb"))
    units = [claim(f"c{i}", want(gpus, 2), relations=relation("k", "0"), shape="match") for i in range(4)]
    answers, _ = solved(gpus, *units)
    pairs = [{entry.device.attributes["k"] for entry in placement.entries} for placement in answers.values()]
    assert sorted(map(sorted, pairs)) == [["a"], ["b"], ["b"]]


def test_a_device_without_the_value_goes_to_none_of_equal_claims() -> None:
    gpus = fleet({"k": "a"}, {}, {"k": "b"}, {"k": "b"})
    first, second = (want(gpus, candidates=candidates(indices)) for indices in ([0, 1], [2, 3]))
    units = [claim(f"c{i}", first, second, relations=relation("k", "0"), shape="s") for i in range(2)]
    assert [devices(placement) for placement in solved(gpus, *units)[0].values()] == [[0, 2]]
