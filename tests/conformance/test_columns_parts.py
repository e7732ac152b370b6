"""What batches by columns rest on: patterns, symmetries, the arcs between states, and the bound at any prices."""

from __future__ import annotations

import random
import time
from itertools import combinations, permutations, product

import numpy as np
import pytest

from benchmarks.fleets import scenario
from devalloc_solver.bounds.device_bound import GRID
from devalloc_solver.columns import neighbourhood, patterns
from devalloc_solver.columns import state_network as networks
from devalloc_solver.columns.bins import BinShape
from devalloc_solver.columns.claim_kinds import group_units
from devalloc_solver.columns.neighbourhood import OpenPacking, repair
from devalloc_solver.columns.node_geometry import DeviceCell, Geometry
from devalloc_solver.columns.packing import Packing
from devalloc_solver.columns.patterns import LocalChoice, LocalClaim, LocalRequest, find_patterns
from devalloc_solver.columns.pricing import PathPricer, Prices, StageGoal
from devalloc_solver.columns.priority_levels import LevelSolver
from devalloc_solver.columns.state_network import build_lattice
from devalloc_solver.columns.state_space import StateSpace, build_state_space
from devalloc_solver.columns.symmetry import canonical, find_symmetries
from devalloc_solver.dialects.device_claims.manifest_records import read_documents
from devalloc_solver.dialects.device_claims.problem import prepare
from devalloc_solver.place import SearchDeadline, SearchTimeout
from devalloc_solver.problem.allocations import Usage
from tests.support.examples import examples


def board_of(nodes: int, claims: int, seed: int) -> StateSpace:
    prepared = prepare(read_documents(scenario(nodes, claims, seed=seed, fill=0.4, partitioned=0.5)))
    kinds, others = group_units(prepared.snapshot, prepared.units)
    assert not others
    state_space, refused = build_state_space(
        prepared.snapshot, Usage.of(prepared.snapshot, prepared.allocations), kinds, {}
    )
    assert not refused
    return state_space


def wanted(state_space: StateSpace) -> list[int]:
    return [len(kind.units) for kind in state_space.kinds]


# -- patterns --------------------------------------------------------------------------------------------------------


def some_geometry(rng: random.Random) -> Geometry:
    cells = tuple(
        DeviceCell(rng.randrange(2), rng.choice([1, 1, 2]), (value(rng), value(rng)), (), None)
        for _ in range(rng.choice([2, 3, 4]))
    )
    return Geometry(cells, (), ((0,), (0,)))


def some_claim(rng: random.Random) -> LocalClaim:
    requests = tuple(
        LocalRequest(rng.choice([(0,), (1,), (0, 1)]), count, count, rng.choice([(), (0,), (0, 1)]), (), ())
        for count in rng.choice([(1,), (2,), (1, 1), (2, 1)])
    )
    relations = rng.choice([(), ((0, True, (0,)),), ((1, False, tuple(range(len(requests)))),)])
    return LocalClaim(requests, rng.choice([(), (1,)]), relations, None)


@pytest.mark.parametrize("seed", range(examples(12, 0.075)))
def test_patterns_are_all_smallest_sets_that_satisfy_a_way(seed: int) -> None:
    """Compared with all choices of single devices."""
    rng = random.Random(seed)
    geometry, claim = some_geometry(rng), some_claim(rng)
    patterns = find_patterns(geometry, LocalChoice((claim,)))
    assert patterns is not None
    assert {pattern.counts for pattern in patterns} == set(by_trial(geometry, claim))
    for pattern in patterns:
        assert [sum(count for _, count in take) for take in pattern.takes] == [
            request.least for request in claim.requests
        ]


@pytest.mark.parametrize("seed", range(examples(12, 0.075)))
def test_claims_of_a_group_take_their_devices_side_by_side(seed: int) -> None:
    """What the one must match is nothing to the other."""
    rng = random.Random(seed)
    geometry, claims = some_geometry(rng), (some_claim(rng), some_claim(rng))
    patterns = find_patterns(geometry, LocalChoice(claims))
    assert patterns is not None
    sizes = [cell.size for cell in geometry.cells]
    one, other = (set(by_trial(geometry, claim)) for claim in claims)
    sums = {tuple(map(sum, zip(a, b, strict=True))) for a in one for b in other}
    assert {pattern.counts for pattern in patterns} == {s for s in sums if all(map(int.__le__, s, sizes))}
    for pattern in patterns:
        taken = [[tuple(p) for p in take] for take in pattern.takes]
        assert [sum(n for _, n in take) for take in taken] == [s.least for claim in claims for s in claim.requests]


ONE_EACH = LocalRequest((0,), 1, 1, (0,), (), ())


@pytest.mark.parametrize(
    "way",
    [
        LocalChoice((LocalClaim((ONE_EACH,), (), (), None),) * 8),
        LocalChoice((LocalClaim((ONE_EACH,) * 8, (), (), None),)),
    ],
    ids=["claims", "details"],
)
def test_the_same_devices_in_another_order_are_not_looked_at_again(
    way: LocalChoice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight of eight devices that something tells apart: as many sets as there are, and not as many orders."""
    geometry = Geometry(tuple(DeviceCell(0, 1, (frozenset({n}),), (), None) for n in range(8)), (), ((),))
    monkeypatch.setattr(patterns, "MAX_TRIED", 8 * 2**8)
    distinct = find_patterns(geometry, way)
    assert distinct is not None
    assert [pattern.counts for pattern in distinct] == [(1,) * 8]


def test_what_has_too_many_sets_on_the_way_is_left_to_others() -> None:
    """Not even a pattern for every device is worth any number of choices; without enough devices there is none."""
    geometry = Geometry(tuple(DeviceCell(0, 1, (frozenset({n}),), (), None) for n in range(16)), (), ((),))
    way = LocalChoice((LocalClaim((ONE_EACH,), (), (), None),) * 16)
    assert find_patterns(geometry, way) is None
    assert find_patterns(Geometry(geometry.cells[1:], (), ((),)), way) == []


def test_choices_that_come_to_nothing_are_counted_too() -> None:
    """Any twelve of 64 devices with different amounts: hardly any has enough, and looking at all takes years."""
    geometry = Geometry(
        tuple(DeviceCell(n, 1, (), (), None) for n in range(64)), (), tuple((1000 + n,) for n in range(64))
    )
    request = LocalRequest(tuple(range(64)), 12, 12, (), ((0, 12_689),), ())
    way = LocalChoice((LocalClaim((request,), (), (), None),))
    assert find_patterns(geometry, way) is None


def test_the_time_ends_a_search_for_patterns() -> None:
    geometry = Geometry(tuple(DeviceCell(0, 1, (frozenset({n}),), (), None) for n in range(12)), (), ((),))
    way = LocalChoice((LocalClaim((ONE_EACH,), (), (), None),) * 6)
    assert find_patterns(geometry, way) is not None
    with pytest.raises(SearchTimeout):
        find_patterns(geometry, way, deadline=SearchDeadline(time.monotonic() - 1, grace=0))


def test_values_that_too_few_devices_have_are_counted_too() -> None:
    """Two devices that match in what tells all of them apart, after any one: there are none, at each of 3,000."""
    cells = tuple(DeviceCell(0, 1, (frozenset({n}),), (), None) for n in range(3000))
    requests = LocalRequest((0,), 1, 1, (), (), ()), LocalRequest((0,), 2, 2, (0,), (), ())
    began = time.process_time()
    assert (
        find_patterns(Geometry(cells, (), ((),)), LocalChoice((LocalClaim(requests, (), (), None),)), most_tried=1000)
        is None
    )
    assert time.process_time() - began < 10, "looking at all takes minutes"


def test_a_node_may_have_thousands_of_different_devices() -> None:
    cells = tuple(DeviceCell(0, 1, (frozenset({n}),), (), None) for n in range(3000))
    way = LocalChoice((LocalClaim((LocalRequest((0,), 2, 2, (), (), ()),), (), (), None),))
    assert find_patterns(Geometry(cells, (), ((),)), way) is None, "millions of pairs"


@pytest.mark.parametrize("seed", range(examples(60, 0.5)))
def test_all_ways_to_take_devices_of_cells_each_once(seed: int) -> None:
    rng = random.Random(seed)
    left = [rng.randrange(4) for _ in range(rng.randrange(6))]
    own = sorted(rng.sample(range(len(left)), rng.randint(0, len(left))))
    total = rng.randrange(8)
    takes = [*patterns._distributions(own, left, total)]
    counted = product(*(range(left[c] + 1) for c in own))
    assert len({*takes}) == len(takes)
    assert {*takes} == {
        tuple((c, n) for c, n in zip(own, counts, strict=True) if n) for counts in counted if sum(counts) == total
    }


def value(rng: random.Random) -> frozenset[int] | None:
    return rng.choice([None, frozenset({0}), frozenset({1}), frozenset({0})])


def by_trial(geometry: Geometry, way: LocalClaim) -> list[tuple[int, ...]]:
    devices = [c for c, cell in enumerate(geometry.cells) for _ in range(cell.size)]

    def values(number: int, attribute: int) -> frozenset[int] | None:
        return geometry.cells[devices[number]].values[attribute]

    def agree(numbers: list[int], attribute: int) -> bool:
        shared = [values(n, attribute) for n in numbers]
        return None not in shared and len(set(shared)) <= 1

    def differ(numbers: list[int], attribute: int) -> bool:
        shared = [values(n, attribute) for n in numbers]
        return None not in shared and len(set(shared)) == len(shared)

    def choose(left: list[int], number: int) -> list[list[list[int]]]:
        if number == len(way.requests):
            return [[]]
        return [
            [list(own), *rest]
            for own in combinations(
                [n for n in left if geometry.cells[devices[n]].color in way.requests[number].colors],
                way.requests[number].least,
            )
            if all(agree(list(own), attribute) for attribute in way.requests[number].match)
            for rest in choose([n for n in left if n not in own], number + 1)
        ]

    counts = []
    for chosen in choose([*range(len(devices))], 0):
        everything = [n for own in chosen for n in own]
        related = all(
            (differ if distinct else agree)([n for request in requests for n in chosen[request]], attribute)
            for attribute, distinct, requests in way.relations
        )
        if related and all(agree(everything, attribute) for attribute in way.match):
            counts.append(tuple(sum(devices[n] == c for n in everything) for c in range(len(geometry.cells))))
    return counts


# -- symmetries ------------------------------------------------------------------------------------------------------


def roots(*free: tuple[int, int]) -> list[int]:
    """GPUs and NICs that are free at each root, in columns."""
    return [count for pair in free for count in pair]


TREE = [
    DeviceCell(kind, 2, (frozenset({numa}), frozenset({10 + 2 * numa + root})), (), None)
    for numa in range(2)
    for root in range(2)
    for kind in range(2)
]
"""Two NUMA nodes with two roots each, and GPUs (color 0) and NICs (color 1) at each root."""


def test_roots_of_a_numa_node_and_numa_nodes_change_places_but_roots_do_not_move_between_them() -> None:
    symmetries = find_symmetries(TREE, 0)
    a, b, c, d = (2, 1), (1, 2), (0, 0), (2, 2)

    def form(*free: tuple[int, int]) -> tuple[int, ...]:
        return tuple(canonical(np.array([roots(*free)], dtype=np.int64), symmetries)[0].tolist())

    alike = {
        (0, 1, 2, 3),
        (1, 0, 2, 3),
        (0, 1, 3, 2),
        (1, 0, 3, 2),
        (2, 3, 0, 1),
        (3, 2, 0, 1),
        (2, 3, 1, 0),
        (3, 2, 1, 0),
    }
    reference = form(a, b, c, d)
    for order in permutations(range(4)):
        moved = form(*((a, b, c, d)[n] for n in order))
        assert (moved == reference) == (order in alike), order


def test_cells_of_different_colors_or_sizes_stay_apart() -> None:
    cells = [DeviceCell(0, 2, (), (), None), DeviceCell(0, 1, (), (), None), DeviceCell(1, 2, (), (), None)]
    assert find_symmetries(cells, 0) == []


# -- states ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_an_arc_takes_one_pattern_and_leaves_what_is_left(seed: int) -> None:
    """From each state, the targets are those of every pattern that fits: taken one by one, in plain Python."""
    state_space = board_of(6, 40, seed)
    for part in state_space.parts.values():
        lattice, shape = part.lattice, part.lattice.shape
        arcs = set(zip(lattice.source.tolist(), lattice.label.tolist(), lattice.target.tolist(), strict=True))
        for state in random.Random(seed).sample(range(len(lattice.rows)), min(20, len(lattice.rows))):
            row = lattice.rows[state]
            expected = set()
            for label, way in enumerate(lattice.ways):
                patterns = shape.patterns[way] if isinstance(way, LocalChoice) else shape.child_bins[way][1]
                for pattern in np.concatenate([patterns, patterns @ shape.draws], axis=1):
                    if all(a >= b for a, b in zip(row.tolist(), pattern.tolist(), strict=True)):
                        expected.add((state, label, int(lattice.find((row - pattern)[None])[0])))
            assert {arc for arc in arcs if arc[0] == state} == expected


def test_two_states_of_one_hash_are_never_taken_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn() -> set[tuple[tuple[int, ...], tuple[int, ...]]]:
        """All arcs, from row to row."""
        lattice = build_lattice(shape, np.array([[2, 2]], dtype=np.int64), 1000)
        rows = [tuple(row) for row in lattice.rows.tolist()]
        assert lattice.find(lattice.rows).tolist() == [*range(len(rows))]
        return {(rows[a], rows[b]) for a, b in zip(lattice.source.tolist(), lattice.target.tolist(), strict=True)}

    way = LocalChoice((LocalClaim((LocalRequest((0, 1), 1, 1, (), (), ()),), (), (), None),))
    cells = (DeviceCell(0, 2, (), (), None), DeviceCell(1, 2, (), (), None))
    shape = BinShape(cells, 0, (2, 2), {way: np.array([[1, 0], [0, 1]], dtype=np.int64)})
    expected = drawn()
    monkeypatch.setattr(networks, "MULTIPLIERS", np.ones(64, dtype=np.int64))

    assert drawn() == expected
    assert len(expected) == 12


# -- bounds ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(examples(4, 0.025)))
def test_no_prices_give_a_bound_below_what_was_found(seed: int) -> None:
    """The bound holds for any prices, not only for those of the linear program."""
    state_space = board_of(5, 40, seed)
    decider = LevelSolver(state_space, state_space.supply(), wanted(state_space))
    decider.decide()
    satisfied = decider.best.satisfied()
    lowest = state_space.priorities[-1]
    worth = {
        user: int(state_space.kinds[user[0]].priority == lowest)
        for users in state_space.network.users
        for user in users
    }
    floors = {priority: satisfied[priority] for priority in state_space.priorities if priority != lowest}
    appraiser = PathPricer(state_space, StageGoal(worth, floors))
    rng = random.Random(seed)
    for _ in range(10):
        prices = Prices(
            {kind: rng.choice([0, rng.randrange(2 * GRID)]) for kind in range(len(state_space.kinds))},
            {priority: rng.choice([0, rng.randrange(3 * GRID)]) for priority in floors},
        )
        bound = appraiser.bound(prices, appraiser.value(prices), state_space.supply(), wanted(state_space))
        assert bound >= satisfied[lowest]


@pytest.mark.parametrize("room", [0, 200, 2000])
def test_bounds_hold_where_not_all_states_were_looked_at(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = board_of(4, 40, 11)
    best = LevelSolver(whole, whole.supply(), wanted(whole))
    best.decide()
    monkeypatch.setattr("devalloc_solver.columns.state_space.MAX_PAIRS", room)
    part = board_of(4, 40, 11)
    less = LevelSolver(part, part.supply(), wanted(part))
    less.decide()
    assert len(part.network.unexpanded_states) > 0
    for priority in whole.priorities:
        assert best.best.satisfied()[priority] <= less.bounds[priority]
        if less.best.satisfied()[priority] < best.best.satisfied()[priority]:
            break


# -- packings --------------------------------------------------------------------------------------------------------


def test_a_packing_taken_apart_can_be_put_together_again() -> None:
    state_space = board_of(8, 60, 4)
    supply = state_space.supply()
    decider = LevelSolver(state_space, supply, wanted(state_space))
    packing = decider.best
    open_packing = OpenPacking.of(packing, supply, wanted(state_space))
    again = open_packing.pack(supply)
    assert isinstance(again, Packing)
    assert (again.free == packing.free).all()
    assert (again.gone == packing.gone).all()
    assert again.taken == packing.taken
    assert [a + b for a, b in zip(again.counts(), open_packing.left, strict=True)] == wanted(state_space)


@pytest.mark.parametrize("most", [0, 40, 10_000])
def test_a_repair_leaves_bins_with_too_many_patterns_and_loses_nothing(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbourhood, "REPAIR_PATTERNS", most)
    state_space = board_of(6, 40, 5)
    supply = state_space.supply()
    packing = LevelSolver(state_space, supply, wanted(state_space)).best
    open_packing = OpenPacking.of(packing, supply, wanted(state_space))
    before = list(open_packing.paths)
    chosen = range(min(8, len(before)))
    sizes = [neighbourhood.count_patterns(state_space, before[n][0], range(len(state_space.kinds))) for n in chosen]
    won = repair(open_packing, chosen, min(state_space.priorities))
    changed = [number for number in chosen if open_packing.paths[number] != before[number]]
    assert sum(sizes[number] for number in changed[1:]) <= most
    again = open_packing.pack(supply)
    assert won < 0 or sum(again.satisfied().values()) >= sum(packing.satisfied().values())
    assert [a + b for a, b in zip(again.counts(), open_packing.left, strict=True)] == wanted(state_space)
