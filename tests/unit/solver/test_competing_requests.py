"""Many requests that compete for single devices: they get them in as few pools as there can be, in time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import combinations
from operator import ge
from random import Random
from typing import Any

import pytest

from devalloc_solver import Fleet, solve_manifests
from devalloc_solver.dialects.device_claims.manifest_records import read_documents
from devalloc_solver.dialects.device_claims.problem import prepare
from devalloc_solver.fleet import unique_attribute_search
from devalloc_solver.fleet.node_class_plan import place_exactly
from devalloc_solver.fleet.pool_states import NodeRecord
from devalloc_solver.place import (
    DEFAULT_STEPS,
    SearchDeadline,
    SearchTimeout,
    StepBudget,
    UnitPlacement,
    place,
)
from devalloc_solver.place.step_budget import GRACE_WORK
from devalloc_solver.problem.allocations import Usage
from devalloc_solver.testing import claim, device, device_class, pool, request

ENTRIES = 64
ORDER = Random(3).sample(range(ENTRIES), ENTRIES)


def documents(values: Iterable[int], wanted: Sequence[int], *, pools: int = 1, count: int = 1) -> list[dict[str, Any]]:
    """Devices with these values of ``i``, in so many pools, and a claim whose entries each want at least a value."""
    devices = [device(f"d{number}", attributes={"i": value}) for number, value in enumerate(values)]
    size = len(devices) // pools
    return [
        device_class("any", driver="example.com"),
        *(
            pool(f"p{n}", node="n1", driver="example.com", devices=devices[n * size : (n + 1) * size])
            for n in range(pools)
        ),
        claim("c", *(request("any", count, constraints=f"device.i >= {least}") for least in wanted)),
    ]


def on_node(one: dict[str, Any], node: str) -> dict[str, Any]:
    """A pool as another node has it."""
    metadata = {**one["metadata"], "name": f"{one['metadata']['name']}-{node}"}
    return {**one, "metadata": metadata, "spec": {**one["spec"], "nodeName": node}}


def placed(docs: list[dict[str, Any]]) -> UnitPlacement | None:
    problem = prepare(read_documents(docs))
    return place(problem.snapshot, Usage(problem.snapshot), problem.units[0])


COMPETING = {
    "in order": documents(range(ENTRIES), range(ENTRIES)),
    "the last device first": documents(reversed(range(ENTRIES)), range(ENTRIES)),
    "in any order": documents(ORDER, ORDER[::-1]),
    "two devices of each value": documents([v for v in ORDER for _ in range(2)], ORDER),
    "two devices for each entry": documents([v for v in ORDER for _ in range(2)], ORDER, count=2),
    "in eight pools": documents(ORDER, range(ENTRIES), pools=8),
    "half of the devices of five pools": documents([v for v in ORDER for _ in range(2)], ORDER, pools=5),
    "half of the devices of ten pools": documents([v for v in ORDER for _ in range(2)], ORDER, pools=10),
    "two devices for each entry of ten pools": documents(
        [v for v in ORDER for _ in range(2)], ORDER[: ENTRIES // 2], pools=10, count=2
    ),
}


@pytest.mark.parametrize("docs", COMPETING.values(), ids=COMPETING)
def test_chained_entries_get_devices_of_as_few_pools_as_there_can_be(docs: list[dict[str, Any]]) -> None:
    """The independent check says that each entry has the devices that it asks for, and no two the same."""
    solution = solve_manifests(docs)

    assert solution["claims"][0]["allocated"]
    assert all(level["value"] == level["bound"] for level in solution["objective"]["levels"])


def test_a_chain_whose_only_assignment_is_forced_gets_it() -> None:
    docs = documents(range(ENTRIES), range(ENTRIES))
    expected = [f"d{number}" for number in range(ENTRIES)]

    for answer in (solve_manifests(docs)["claims"][0], Fleet.from_manifests(docs[:-1]).allocate(docs[-1], deadline=60)):
        assert [entry["deviceName"] for entry in answer["allocations"]] == expected


@pytest.mark.parametrize("seed", range(30))
def test_no_fewer_pools_would_do(seed: int) -> None:
    rng = Random(seed)
    pools = rng.choice((3, 5, 6))
    values = [rng.randrange(9) for _ in range(pools * 4)]
    wanted = [rng.randrange(9) for _ in range(rng.randrange(5, 11))]
    outcome = placed(documents(values, wanted, pools=pools))

    assert (outcome and outcome.score.pools) == fewest_pools([values[n * 4 : n * 4 + 4] for n in range(pools)], wanted)


def fewest_pools(pools: Sequence[Sequence[int]], wanted: Sequence[int]) -> int | None:
    """Of pools with these values, which serve entries that each want at least a value: the largest for the largest."""
    for count in range(1, len(pools) + 1):
        for some in combinations(pools, count):
            best = sorted((value for pool in some for value in pool), reverse=True)
            if len(best) >= len(wanted) and all(map(ge, best, sorted(wanted, reverse=True))):
                return count
    return None


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps of all searches."""
    spend, counted = StepBudget.spend, list[int]()

    def count_and_spend(steps: StepBudget, count: int = 1) -> None:
        counted.append(count)
        spend(steps, count)

    monkeypatch.setattr(StepBudget, "spend", count_and_spend)
    return counted


LONG = documents([v for v in ORDER for _ in range(2)], ORDER, pools=5)


def test_a_search_stops_at_its_deadline(work: list[int]) -> None:
    problem = prepare(read_documents(LONG))
    steps = StepBudget(DEFAULT_STEPS, SearchDeadline(time.monotonic()))

    with pytest.raises(SearchTimeout):
        place(problem.snapshot, Usage(problem.snapshot), problem.units[0], steps=steps)

    assert GRACE_WORK / 2 < sum(work) < GRACE_WORK * 1.1


def test_the_searches_of_a_warm_fleet_share_one_deadline(work: list[int]) -> None:
    """A claim that is sought on several nodes, each of which takes long."""
    classes, *pools, wanted = LONG
    fleet = Fleet.from_manifests([classes, *(on_node(one, node) for node in ("n1", "n2", "n3") for one in pools)])

    assert fleet.allocate(wanted, deadline=0)["reason"] == "SearchLimit"
    assert GRACE_WORK / 2 < sum(work) < GRACE_WORK * 1.1


@pytest.mark.parametrize("nodes", [("n1",), ("n1", "n2", "n3")], ids=len)
def test_a_node_whose_search_takes_too_many_steps_is_not_searched_again(work: list[int], nodes: Sequence[str]) -> None:
    """CP-SAT decides, and names the devices that a warm fleet names, which looks at one node only."""
    classes, *pools, wanted = LONG
    documents = [classes, *(on_node(one, node) for node in nodes for one in pools)]

    (cold,) = solve_manifests([*documents, wanted])["claims"]
    assert DEFAULT_STEPS < sum(work) < 1.2 * DEFAULT_STEPS
    assert cold["allocations"] == Fleet.from_manifests(documents).allocate(wanted, deadline=60)["allocations"]


def test_one_of_many_equal_nodes_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """No node can do with fewer pools than have as many devices as there are entries, so the first one is the best."""
    classes, *pools, wanted = documents(ORDER, ORDER, pools=8)
    searched: list[str | None] = []

    def search(record: NodeRecord, *others: Any) -> Any:
        searched.append(record.name)
        return place_exactly(record, *others)

    monkeypatch.setattr(unique_attribute_search, "place_exactly", search)
    fleet = Fleet.from_manifests([classes, *(on_node(one, node) for node in ("n1", "n2", "n3") for one in pools)])

    assert fleet.allocate(wanted)["node"] == "n1"
    assert searched == ["n1"]
