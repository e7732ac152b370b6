"""A claim that a warm Fleet refuses hears what solve_manifests would say of the state: reason, numbers and remedies.

The Fleet counts by kinds of devices and looks at a few nodes only; solve_manifests goes through all there is.
"""

from __future__ import annotations

import copy
from random import Random
from typing import Any

import pytest

from devalloc.api.meta import ALLOCATED_NODE, GROUP, NODE
from devalloc_solver import Fleet, solve_manifests
from devalloc_solver.index import refusal
from tests.support.manifests import Manifest
from tests.support.random_fleets import documents
from tests.support.remedies import remedied

SEEDS = range(45, 57)
PARTS = 4
"""Random fleets, or copies of one, of which a large one is put together: up to 12 nodes."""


def large_fleet(random: Random) -> tuple[list[Manifest], list[Manifest]]:
    """(pools, classes and claims that hold devices, pending claims) of several random fleets with the same classes."""
    kept: list[Manifest] = []
    pending: list[Manifest] = []
    one = documents(random)
    alike = random.random() < 0.7
    for part in range(PARTS):
        for document in copy.deepcopy(one) if alike or not part else documents(random):
            if document["kind"] not in ("DevicePool", "DeviceClaim"):
                kept += [document] if not part else []
            elif GROUP not in document["metadata"].get("annotations", {}):
                _rename(document, f"-{part}")
                if document["kind"] == "DevicePool":
                    kept.append(document)
                elif "status" not in document:
                    pending.append(document)
                elif not alike or random.random() < 0.6:
                    kept.append(document)
    return kept, pending


def _rename(document: Manifest, suffix: str) -> None:
    """The same in another part of the fleet."""
    document["metadata"]["name"] += suffix
    if "nodeName" in document["spec"]:
        document["spec"]["nodeName"] += suffix
    annotations = document["metadata"].get("annotations", {})
    for name in (NODE, ALLOCATED_NODE):
        if name in annotations:
            annotations[name] += suffix
    for entry in document.get("status", {}).get("allocations", ()):
        entry["devicePoolName"] += suffix


def with_answer(manifest: Manifest, answer: dict[str, Any]) -> Manifest:
    written = copy.deepcopy(manifest)
    written["metadata"].setdefault("annotations", {}).update(answer["annotations"])
    written["status"] = {"allocations": answer["allocations"]}
    return written


def said(answer: dict[str, Any]) -> dict[str, Any]:
    """All but what may be told in another way: of several smallest sets, any."""
    return {name: value for name, value in answer.items() if name not in ("blockers", "message")}


def sizes(answer: dict[str, Any]) -> dict[str, int]:
    kinds = [blocker["kind"] for blocker in answer.get("blockers", ())]
    return {kind: kinds.count(kind) for kind in kinds}


@pytest.mark.parametrize("few", [1, 16])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_refused_claim_hears_what_solve_manifests_says(seed: int, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check(seed, few, monkeypatch)


def check(seed: int, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """``few`` nodes are looked at beside one of each kind."""
    monkeypatch.setattr(refusal, "FEW", few)
    random = Random(f"refusals {seed}")
    kept, pending = large_fleet(random)
    fleet = Fleet.from_manifests(kept)
    for number, asked in enumerate(pending * 2):
        claim = copy.deepcopy(asked)
        claim["metadata"]["name"] += f"-{number}"
        key = claim["metadata"].get("namespace", "default"), claim["metadata"]["name"]
        answer = fleet.allocate(claim)
        if answer["allocated"]:
            kept.append(with_answer(claim, answer))
            continue
        solved = _answer_to(key, [*kept, claim])
        assert said(answer) == said(solved)
        assert sizes(answer) == sizes(solved), (answer, solved)
        assert answer["message"].partition("; ")[0] == solved["message"].partition("; ")[0]
        if answer.get("blockers") and answer["blockers"] != solved.get("blockers"):
            assert _answer_to(key, remedied([*kept, claim], key, answer["blockers"]))["allocated"], answer


def _answer_to(key: tuple[str, str], documents: list[Manifest]) -> dict[str, Any]:
    claims = solve_manifests(documents)["claims"]
    return next(answer for answer in claims if (answer["namespace"], answer["name"]) == key)
