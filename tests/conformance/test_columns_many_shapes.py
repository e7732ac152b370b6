"""Batches where hardly two claims ask for the same: no fewer than a first fit, and bounds that count devices."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from devalloc_solver.bounds.device_bound import make_device_bound
from devalloc_solver.bounds.shared_amounts import make_shared_amount_bound
from devalloc_solver.columns import state_network
from devalloc_solver.dialects.device_claims.manifest_records import read_documents
from devalloc_solver.dialects.device_claims.problem import prepare
from devalloc_solver.exact import goals
from devalloc_solver.exact.model import build_model
from devalloc_solver.place.greedy import candidate_orders, place_greedily
from devalloc_solver.problem.allocations import Usage
from devalloc_solver.problem.demand import PlacementUnit
from devalloc_solver.problem.placement_policy import PACK
from tests.support.column_batches import Batch, by_columns, exact_counts
from tests.support.examples import examples
from tests.support.manifests import Manifest, claim, device, device_class, pool
from tests.support.random_fleets import documents

GPU = device_class("gpu", driver="gpu")
Ask = tuple[int, int, int, int]
"""(priority, devices, lowest number of a device, highest)"""


def fleet(nodes: int, devices: int) -> list[Manifest]:
    own = [device(f"d{i}", attributes={"i": i}) for i in range(devices)]
    return [GPU, *(pool(f"p{n}", f"n{n}", devices=own) for n in range(nodes))]


def manifest(number: int, ask: Ask) -> Manifest:
    priority, count, low, high = ask
    spec = {"deviceClass": "gpu", "constraints": f"device.i >= {low} && device.i <= {high}"}
    annotations = {"devalloc.io/priority": str(priority)}
    return claim(f"c{number:04}", {**spec, "requests": {"count": count}}, annotations=annotations)


def first_fit(nodes: int, devices: int, asks: list[Ask]) -> list[int]:
    """Claims of each priority, highest first: small ones first, the first devices of the first node that has them."""
    free = [set(range(devices)) for _ in range(nodes)]
    placed = dict.fromkeys(sorted({ask[0] for ask in asks}, reverse=True), 0)
    for priority, count, low, high in sorted(asks, key=lambda ask: (-ask[0], ask[1])):
        for own in free:
            chosen = [i for i in sorted(own) if low <= i <= high][:count]
            if len(chosen) == count:
                own.difference_update(chosen)
                placed[priority] += 1
                break
    return [*placed.values()]


@pytest.fixture
def few_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes of two dozen devices already have too many states to look at."""
    monkeypatch.setattr(state_network, "MAX_STATES", 1_000)


@pytest.mark.usefixtures("few_states")
@pytest.mark.parametrize("seed", [0, 1, 2, 3, 5, 6, 7][: examples(3, 0.02)])
def test_never_fewer_than_a_first_fit(seed: int) -> None:
    rng = random.Random(seed)
    nodes, devices = rng.choice([(1, 24), (2, 16), (4, 8)])
    asks = []
    for _ in range(rng.choice([40, 80])):
        low = rng.randrange(devices)
        high = rng.choice([devices, rng.randrange(low, devices)])
        asks.append((rng.choice([0, 0, 1]), rng.choice([1, 1, 2, 3, 5]), low, high))
    batch = by_columns([*fleet(nodes, devices), *(manifest(n, ask) for n, ask in enumerate(asks))])
    assert batch.violations() == []
    assert batch.satisfied >= first_fit(nodes, devices, asks)
    assert all(value <= bound <= nodes * devices for value, bound in zip(batch.satisfied, batch.bounds, strict=True))


@pytest.mark.usefixtures("few_states")
@pytest.mark.parametrize(("nodes", "claims", "most"), [(1, 150, 32), (4, 300, 114)])
def test_thresholds_of_every_sort_are_proven(nodes: int, claims: int, most: int) -> None:
    """One device at a time, from the highest threshold down; then pairs."""
    asks = [(0, 1 + n % 3, n % 32, 32) for n in range(claims)]
    batch = by_columns([*fleet(nodes, 32), *(manifest(n, ask) for n, ask in enumerate(asks))])
    assert batch.violations() == []
    assert (batch.satisfied, batch.bounds) == ([most], [most])


@pytest.mark.parametrize("seed", range(examples(16, 0.1)))
def test_counting_never_says_less_than_there_can_be(seed: int) -> None:
    """Shares, groups, pins, network pools, admin details, alternatives: whatever there is."""
    prepared = prepare(read_documents(documents(random.Random(seed))))
    exact = exact_counts(prepared) if prepared.units else None
    if exact is None:
        return
    usage = Usage.of(prepared.snapshot, prepared.allocations)
    counting = make_device_bound(prepared.snapshot, usage, prepared.units)
    sharing = make_shared_amount_bound(prepared.snapshot, usage, prepared.units)
    higher: dict[int, int] = {}
    priorities = sorted({d.claim.priority for unit in prepared.units for d in unit.demands}, reverse=True)
    for priority, best in zip(priorities, exact, strict=True):
        assert counting.bound(priority, higher) >= best
        assert sharing.bound(priority, higher) >= best
        higher[priority] = best


def test_counting_knows_where_there_are_too_few() -> None:
    """Three nodes with three devices each: nine devices, but no claim for four of them."""
    asks = [(0, 4, 0, 9), (0, 2, 0, 9), (0, 3, 0, 9)] * 4
    prepared = prepare(read_documents([*fleet(3, 3), *(manifest(n, ask) for n, ask in enumerate(asks))]))
    counting = make_device_bound(prepared.snapshot, Usage.of(prepared.snapshot, prepared.allocations), prepared.units)
    assert counting.bound(0, {}) == 4, "no more than nine halves"


@pytest.mark.parametrize("seed", range(examples(8, 0.05)))
def test_what_amounts_allow_is_never_less_than_there_can_be(seed: int) -> None:
    """Shares of two amounts, some pinned, some of a higher priority, some in groups; part of it is in use."""
    rng = random.Random(seed)
    own = [device(f"d{i}", resources={"a": str(rng.randint(2, 9)), "b": str(rng.randint(2, 9))}) for i in range(2)]
    content = [GPU, *(pool(f"p{n}", f"n{n}", devices=own) for n in range(2))]
    for number in range(9):
        amounts = {"a": str(rng.randint(1, 6)), "b": str(rng.randint(1, 6))}
        spec: Manifest = {
            "deviceClass": "gpu",
            "requests": {name: amounts[name] for name in rng.choice(["a", "b", "ab"])},
        }
        notes = {"devalloc.io/priority": str(rng.choice([0, 0, 1]))}
        notes |= {"devalloc.io/group": "g"} if rng.random() < 0.2 else {}
        notes |= {"devalloc.io/node": "n1"} if rng.random() < 0.2 else {}
        content.append(claim(f"c{number}", spec, annotations=notes))
    prepared = prepare(read_documents(content))
    exact = exact_counts(prepared)
    assert exact is not None
    sharing = make_shared_amount_bound(
        prepared.snapshot, Usage.of(prepared.snapshot, prepared.allocations), prepared.units
    )
    higher: dict[int, int] = {}
    priorities = sorted({d.claim.priority for unit in prepared.units for d in unit.demands}, reverse=True)
    for priority, best in zip(priorities, exact, strict=True):
        assert sharing.bound(priority, higher) >= best
        higher[priority] = best


def test_claims_that_take_little_of_a_scarce_resource_come_first_and_the_bound_counts_it() -> None:
    """As machines are: all different, and together more than there is."""
    rng = random.Random(5)
    own = [device("d", resources={"cpu": "16", "memory": "64"})]
    content = [GPU, *(pool(f"p{n}", f"n{n}", devices=own) for n in range(4))]
    sizes = [(rng.randint(1, 9), rng.randint(1, 12)) for _ in range(60)]
    for number, (cpu, memory) in enumerate(sizes):
        spec = {"deviceClass": "gpu", "requests": {"cpu": str(cpu), "memory": str(memory)}}
        content.append(claim(f"c{number:02}", spec))
    batch = by_columns(content)
    assert batch.violations() == []
    room, most = 64, 0
    for cpu, _ in sorted(sizes):
        room -= cpu
        most += room >= 0
    assert batch.bounds == [most]
    assert batch.satisfied[0] >= most - 2


@pytest.mark.parametrize("seed", range(examples(3, 0.015)))
def test_every_first_answer_is_right(seed: int) -> None:
    """In whatever order units come: what others hold by now is not given again, and high priorities go first."""
    prepared = prepare(read_documents(documents(random.Random(seed))))
    for units in candidate_orders(prepared.units):
        assert sorted(map(id, units)) == sorted(map(id, prepared.units))
        ranks = [unit.demands[0].claim.priority for unit in units]
        assert ranks == sorted(ranks, reverse=True)
        placements = place_greedily(prepared.snapshot, prepared.allocations, units, policy=PACK, ends=None)
        assert Batch(prepared, placements, []).violations() == []


def test_a_first_answer_leaves_out_only_what_has_no_room() -> None:
    asks = [(0, 3, 0, 9), (0, 2, 0, 9), (0, 2, 0, 9), (1, 1, 0, 9)]
    prepared = prepare(read_documents([*fleet(2, 4), *(manifest(n, ask) for n, ask in enumerate(asks))]))
    placed = [
        len(place_greedily(prepared.snapshot, prepared.allocations, units, policy=PACK, ends=None))
        for units in candidate_orders(prepared.units)
    ]
    assert placed[0] == 3, "small ones first: one and two here, two there, and nowhere is room for three"
    assert placed[-1] == 4, "as they come: one and three here, two and two there"


@pytest.mark.parametrize("seed", range(examples(4, 0.025)))
def test_deciding_together_says_the_same_as_one_by_one(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    asks = []
    for _ in range(25):
        low = rng.randrange(10)
        asks.append((rng.choice([0, 1]), rng.choice([1, 2, 3]), low, rng.randrange(low, 10)))
    prepared = prepare(read_documents([*fleet(2, 10), *(manifest(n, ask) for n, ask in enumerate(asks))]))

    def chosen() -> tuple[list[int], object]:
        model = build_model(prepared.snapshot, prepared.allocations, prepared.units)
        search, levels = goals.optimize_goals(model, policy=PACK, ends=None)
        return [search.value(literal) for literal in model.satisfied], levels[:2]

    together = chosen()
    monkeypatch.setattr(goals, "UNITS_PER_STEP", 1)
    assert chosen() == together
    assert 0 < sum(together[0]) < len(asks)


@pytest.mark.parametrize("seed", range(examples(3, 0.015)))
def test_a_first_answer_is_left_unfinished_only_if_it_cannot_win(seed: int) -> None:
    prepared = prepare(read_documents(documents(random.Random(seed))))
    priorities = sorted({unit.demands[0].claim.priority for unit in prepared.units}, reverse=True)

    def counts(units: list[PlacementUnit], rival: list[tuple[int, int]]) -> list[int]:
        placements = place_greedily(prepared.snapshot, prepared.allocations, units, policy=PACK, ends=None, rival=rival)
        satisfied = Counter(placed.demand.claim.priority for placed in placements)
        return [satisfied[priority] for priority in priorities]

    for units in candidate_orders(prepared.units):
        whole = counts(units, [])
        for change in (-1, 0, 1):
            other = [*(max(0, count + change) for count in whole[:1]), *whole[1:]]
            unfinished = counts(units, [*zip(priorities, other, strict=True)])
            assert unfinished == whole if whole > other else unfinished <= other
