"""Parts of a batch: solved apart they come to the same as all of it at once (S17)."""

from __future__ import annotations

import os
from copy import deepcopy
from random import Random
from typing import Any

import pytest

from devalloc_solver import Fleet, solve_manifests
from devalloc_solver import search as ways
from devalloc_solver.intake import read_documents
from devalloc_solver.parts import joined, split
from devalloc_solver.search import Outcome, search_parts
from devalloc_solver.stages import Prepared, prepare
from tests.support import random_fleets
from tests.support.manifests import claim, device, device_class, pool

Manifest = dict[str, Any]
EXAMPLES = int(os.environ.get("DEVALLOC_FUZZ_EXAMPLES", "150"))


def in_one(ready: Prepared, monkeypatch: pytest.MonkeyPatch) -> Outcome:
    """The answer of one model of all units."""
    with monkeypatch.context() as patch:
        patch.setattr(ways, "split", lambda snapshot, units: [joined(split(snapshot, units))])
        return search_parts(ready.snapshot, ready.holdings, ready.units, placement="pack", ends=None)


def told(outcome: Outcome) -> object:
    """Goals 1 to 4: who is satisfied, by which alternatives, and each level."""
    chosen = {
        placed.demand.key: sorted({(e.slot.detail, e.slot.alternative or 0) for e in placed.entries})
        for placed in outcome.placements
    }
    return chosen, [(level.goal, level.priority, level.value) for level in outcome.levels if level.goal != "oneOf"]


@pytest.mark.parametrize("first", range(0, EXAMPLES, 50))
def test_parts_come_to_the_same_as_all_at_once(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    several = 0
    for seed in range(first, first + 50):
        ready = prepare(read_documents(deepcopy(random_fleets.documents(Random(seed)))))
        if not ready.units:
            continue
        parts = split(ready.snapshot, ready.units)
        several += len(parts) > 1
        apart = search_parts(ready.snapshot, ready.holdings, ready.units, placement="pack", ends=None)
        assert told(apart) == told(in_one(ready, monkeypatch)), seed
        pools = [pool for part in parts for pool in part.pools]
        assert len(pools) == len({*pools}), f"{seed}: a pool is in two parts"
        assert sorted(key for part in parts for key in part.keys) == sorted(
            demand.key for unit in ready.units for demand in unit.demands
        )
    assert several > 5, "there is something to split"


def fleet() -> list[Manifest]:
    drivers = ("gpu", "nic")
    classes = [device_class(driver, driver=driver) for driver in drivers]
    return classes + [pool(driver, "n1", driver, devices=[device("d0"), device("d1")]) for driver in drivers]


def fingerprints(documents: list[Manifest], waiting: list[Manifest]) -> dict[str, str]:
    """By the first claim of each part."""
    parts = Fleet.from_manifests(documents).parts(waiting)
    return {part.units[0][0][1]: part.fingerprint for part in parts}


def test_a_part_is_the_same_as_long_as_what_it_depends_on_is() -> None:
    waiting = [claim("g", {"deviceClass": "gpu"}), claim("n", {"deviceClass": "nic"})]
    before = fingerprints(fleet(), waiting)
    assert before.keys() == {"g", "n"}
    touched = deepcopy(waiting)
    touched[0]["metadata"]["annotations"] = {"example.com/note": "again"}
    assert fingerprints(fleet(), touched) == before
    touched[0]["spec"]["claims"][0]["requests"] = {"count": 2}
    assert fingerprints(fleet(), touched)["g"] != before["g"]
    assert fingerprints(fleet(), touched)["n"] == before["n"]
    larger = fleet()
    larger[-1]["spec"]["devices"].append(device("d2"))
    assert fingerprints(larger, waiting)["n"] != before["n"]
    assert fingerprints(larger, waiting)["g"] == before["g"]
    given = Fleet.from_manifests(fleet())
    given.allocate(claim("other", {"deviceClass": "gpu"}))
    after = {part.units[0][0][1]: part.fingerprint for part in given.parts(waiting)}
    assert after["g"] != before["g"]
    assert after["n"] == before["n"]


def test_an_easy_claim_is_answered_in_the_time_that_a_hard_part_leaves() -> None:
    """The deadline is over at once: still every claim that nobody competes with has its place."""
    documents = [*fleet(), claim("g", {"deviceClass": "gpu"}), claim("n", {"deviceClass": "nic"})]
    assert all(each["allocated"] for each in solve_manifests(documents, deadline=0)["claims"])
