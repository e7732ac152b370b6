"""Batches solved by columns: right always, never above the exact optimum, and never with a bound below it."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from operator import attrgetter

import pytest

from benchmarks.fleets import scenario
from devalloc_solver.columns import allocate
from devalloc_solver.columns.priority_levels import LevelSolver
from devalloc_solver.problem.placement_policy import POLICIES, PlacementPolicy
from tests.support.column_batches import Batch, by_columns, exact_counts, exact_levels
from tests.support.examples import examples
from tests.support.manifests import Manifest, claim, device, device_class, pool
from tests.support.random_fleets import documents

GPU = device_class("gpu", driver="gpu")


def judge(batch: Batch) -> None:
    """What holds of every answer to a small batch."""
    assert batch.violations() == []
    exact = exact_counts(batch.prepared)
    if exact is None:
        return
    assert batch.satisfied <= exact, "more than there can be"
    for value, bound, best in zip(batch.satisfied, batch.bounds, exact, strict=True):
        assert value <= bound
        assert best <= bound, "the bound is wrong"
        if value < best:
            return  # what follows is bound by less than the optimum is
    best_levels = exact_levels(batch.prepared)
    if [level.value for level in best_levels if level.goal == "satisfied"] != batch.satisfied:
        return  # the exact model preferred earlier claims, at the cost of lower levels
    reached = {level.goal: level.value for level in best_levels}
    for level in batch.levels:
        assert level.bound <= reached.get(level.goal, 0) or level.goal == "satisfied", "the bound is wrong"


@pytest.mark.parametrize("seed", range(examples(6, 0.04)))
def test_a_small_fleet_at_work_is_answered_rightly(seed: int) -> None:
    rng = random.Random(seed)
    nodes, claims = rng.choice([1, 2, 3]), rng.choice([3, 5, 8])
    fill, partitioned = rng.choice([0.0, 0.2, 0.5]), rng.choice([0.0, 0.5, 1.0])
    judge(by_columns(scenario(nodes, claims, seed=seed, fill=fill, partitioned=partitioned)))


@pytest.mark.parametrize("seed", range(examples(10, 0.0625)))
def test_every_rule_holds_and_every_bound_too(seed: int) -> None:
    """Shares, groups, network pools, admin details and the like are placed one by one between the columns."""
    batch = by_columns(documents(random.Random(seed)))
    if batch.prepared.units:
        judge(batch)


@pytest.mark.parametrize("policy", POLICIES, ids=attrgetter("name"))
def test_a_contended_fleet_is_proven_or_close(policy: PlacementPolicy) -> None:
    batch = by_columns(scenario(40, 120, seed=7, fill=0.6), policy=policy)
    assert batch.violations() == []
    assert all(bound - 1 <= value <= bound for value, bound in zip(batch.satisfied, batch.bounds, strict=True))
    assert sum(batch.satisfied) < 120, "there is something to decide"


def in_groups(manifests: list[Manifest], every: int) -> list[Manifest]:
    """The same, with two in so many of the waiting claims in one group."""
    grouped = [*manifests]
    waiting = [
        n for n, m in enumerate(grouped) if m["kind"] == "DeviceClaim" and not m.get("status", {}).get("allocations")
    ]
    for first, second in zip(waiting[::every], waiting[1::every], strict=False):
        for number in (first, second):
            metadata = grouped[number]["metadata"]
            annotations = {**metadata.get("annotations", {}), "devalloc.io/group": f"g{first}"}
            grouped[number] = {**grouped[number], "metadata": {**metadata, "annotations": annotations}}
    return grouped


@pytest.mark.parametrize("seed", range(examples(5, 0.03)))
def test_groups_in_a_small_fleet_are_answered_rightly(seed: int) -> None:
    rng = random.Random(seed)
    nodes, claims = rng.choice([1, 2, 3]), rng.choice([4, 6, 8])
    manifests = scenario(nodes, claims, seed=seed, fill=rng.choice([0.0, 0.3]), partitioned=rng.choice([0.0, 0.5, 1.0]))
    judge(by_columns(in_groups(manifests, rng.choice([2, 3]))))


@pytest.mark.parametrize("seed", [7, 8][: examples(1, 0.005)])
def test_a_contended_fleet_with_groups_is_proven_or_close(seed: int) -> None:
    """A group takes part in every level that one of its claims is of."""
    batch = by_columns(in_groups(scenario(40, 120, seed=seed, fill=0.6), 4))
    groups = [unit for unit in batch.prepared.units if len(unit.demands) > 1]
    assert len({d.claim.priority for d in groups[0].demands} | {d.claim.priority for d in groups[1].demands}) > 1
    assert batch.violations() == []
    assert all(bound - 1 <= value <= bound for value, bound in zip(batch.satisfied, batch.bounds, strict=True))
    assert any(unit.demands[0].key[1] in batch.placed for unit in groups)
    assert sum(batch.satisfied) < 120, "there is something to decide"


def test_the_answer_does_not_depend_on_the_order_of_the_input() -> None:
    manifests = scenario(30, 80, seed=3, fill=0.7)
    first = comparable(by_columns(manifests))
    assert comparable(by_columns(manifests)) == first
    random.Random(1).shuffle(manifests)
    assert comparable(by_columns(manifests)) == first


def comparable(batch: Batch) -> object:
    names = [
        (p.demand.key, p.node, [(e.request.label, e.device.pool, e.device.name) for e in p.entries])
        for p in batch.placements
    ]
    return sorted(names), batch.levels


def test_a_deadline_that_is_over_leaves_a_right_answer_with_honest_bounds() -> None:
    batch = by_columns(scenario(20, 60, seed=5, fill=0.7), ends=time.monotonic() - 1)
    assert batch.violations() == []
    assert sum(batch.satisfied) > 0
    assert all(value <= bound for value, bound in zip(batch.satisfied, batch.bounds, strict=True))


def test_of_equal_claims_the_earlier_ones_are_satisfied() -> None:
    devices = [device(f"g{i}") for i in range(3)]
    wait = [
        claim(f"c{i}", {"deviceClass": "gpu"}, creationTimestamp=f"2026-01-01T00:00:{59 - i:02}Z") for i in range(9)
    ]
    assert by_columns([GPU, pool("p", devices=devices), *wait]).placed == {"c6", "c7", "c8"}


def test_a_higher_priority_is_worth_more_than_any_number_of_lower_ones() -> None:
    devices = [device(f"g{i}") for i in range(8)]
    small = [claim(f"s{i}", {"deviceClass": "gpu"}) for i in range(8)]
    large = claim("large", {"deviceClass": "gpu", "requests": {"count": 8}}, annotations={"devalloc.io/priority": "1"})
    batch = by_columns([GPU, pool("p", devices=devices), *small, large])
    assert batch.placed == {"large"}
    assert (batch.satisfied, batch.bounds) == ([1, 0], [1, 0])


def test_a_card_is_given_whole_or_in_partitions() -> None:
    """Two cards, four halves: one of the cards goes whole, so two halves are left for three claims."""
    parts = [card(f"k{i}") for i in range(2)]
    resources = {name: 2 for name, _ in parts}
    devices = [d for _, own in parts for d in own]
    classes = [
        device_class("whole", driver="gpu", constraints="device.kind == 'whole'"),
        device_class("half", driver="gpu", constraints="device.kind == 'half'"),
    ]
    halves = [claim(f"h{i}", {"deviceClass": "half"}) for i in range(3)]
    whole = claim("w", {"deviceClass": "whole"}, annotations={"devalloc.io/priority": "5"})
    batch = by_columns([*classes, pool("p", resources=resources, devices=devices), *halves, whole])
    assert batch.violations() == []
    assert batch.placed == {"w", "h0", "h1"}
    assert batch.bounds == [1, 2]


def card(name: str) -> tuple[str, list[Manifest]]:
    whole = device(f"{name}-whole", attributes={"kind": "whole"}, requests={name: 2})
    return name, [whole, *(device(f"{name}-{i}", attributes={"kind": "half"}, requests={name: 1}) for i in range(2))]


def test_a_claim_pinned_to_a_node_is_counted_there_only() -> None:
    pools = [pool(f"p{n}", f"n{n}", devices=[device("g0")]) for n in range(3)]
    pinned = [claim(f"c{i}", {"deviceClass": "gpu"}, annotations={"devalloc.io/node": "n1"}) for i in range(2)]
    batch = by_columns([GPU, *pools, *pinned])
    assert [(p.demand.key[1], p.node) for p in batch.placements] == [("c0", "n1")]
    assert (batch.satisfied, batch.bounds) == ([1], [1])


def test_the_better_alternative_goes_to_the_earlier_claim() -> None:
    alternatives = {
        "oneOf": [
            {"deviceClass": "gpu", "constraints": "device.model == 'new'"},
            {"deviceClass": "gpu", "constraints": "device.model == 'old'"},
        ]
    }
    devices = [device("g0", attributes={"model": "old"}), device("g1", attributes={"model": "new"})]
    batch = by_columns([GPU, pool("p", devices=devices), *(claim(f"c{i}", alternatives) for i in range(2))])
    chosen = {p.demand.key[1]: [e.device.name for e in p.entries] for p in batch.placements}
    assert chosen == {"c0": ["g1"], "c1": ["g0"]}
    assert [level.value for level in batch.levels if level.goal == "oneOf"] == [1]


def test_nothing_to_give_is_an_answer_too() -> None:
    batch = by_columns(
        [GPU, pool("p", devices=[device("g0")]), claim("c", {"deviceClass": "gpu", "requests": {"count": 2}})]
    )
    assert (batch.placements, batch.satisfied, batch.bounds) == ([], [0], [0])


class BlindToTheHighest(LevelSolver):
    """Finds nothing for claims of the highest priority, and proves what others prove."""

    def __post_init__(self) -> None:
        highest, wanted = max(kind.priority for kind in self.state_space.kinds), self.wanted
        kinds = zip(self.state_space.kinds, wanted, strict=True)
        self.wanted = [0 if kind.priority == highest else count for kind, count in kinds]
        super().__post_init__()
        self.wanted = wanted

    def _improve(self, priority: int, floors: Mapping[int, int]) -> None:
        program = self._program(self._counting(priority), floors)
        program.solve(enough=self.best.satisfied()[priority], ends=self.ends)
        self._take_bound(priority, program)

    def _draw_together(self) -> None:
        pass


def test_where_a_first_fit_does_better_the_bounds_are_those_of_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left for the lowest level depends on what those above it have, and with a first fit that is less."""
    monkeypatch.setattr(allocate, "LevelSolver", BlindToTheHighest)
    names = [f"{side}{n}" for side in "xy" for n in range(4)]
    own = [device(name, attributes={"side": name[0]}) for name in names]

    def ask(name: str, priority: int, *counts: tuple[str, int]) -> Manifest:
        details = [
            {"deviceClass": "gpu", "constraints": f"device.side == '{side}'", "requests": {"count": count}}
            for side, count in counts
        ]
        return claim(name, *details, annotations={"devalloc.io/priority": str(priority)})

    pairs = [ask(f"pair{n}", 1, ("x", 1), ("y", 1)) for n in range(4)]
    singles = [ask(f"single{n}", 0, ("y", 1)) for n in range(4)]
    batch = by_columns([GPU, pool("p", "n", devices=own), ask("all", 2, ("x", 4)), *pairs, *singles])
    judge(batch)
    assert batch.satisfied == batch.bounds == [1, 0, 4]
