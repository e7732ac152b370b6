"""Reasons are true (S19): what is named is all that stands in the way, and no part of it alone does.

DEVALLOC_FUZZ_EXAMPLES sets how many random fleets; `make fuzz` looks at more.

For every claim that gets nothing, what its blockers name is done to the manifests, beside what the others were given;
the claim must be satisfied then. With any proper part of it, it must not be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from random import Random
from typing import Any

import pytest

from devalloc.api.cordon import apply_all_cordons, pool_node
from devalloc.api.meta import CORDONED_NODE, GROUP
from devalloc_solver import solve_manifests
from tests.conformance import case as cases
from tests.support import oracle, random_fleets
from tests.support.answer_verifier import after
from tests.support.apply_blockers import Key, key_of, with_blockers_applied
from tests.support.examples import IS_FUZZ, examples
from tests.support.manifests import Manifest
from tests.support.reference_data import claim_cases
from tests.support.reference_data import documents as documents_of

EXAMPLES = examples(20)
BATCH = 40
WAITING = {"ClaimInvalid", "ClassNotFound", "ClassInvalid", "ConfigNotFound", "Deleting"}
"""Reasons of claims that are not solved at all."""


def _corpus() -> Iterator[Any]:
    for case in claim_cases()[:: 1 if IS_FUZZ else 2]:
        yield pytest.param(documents_of(case), id=case["name"])
    for name, case in cases.load().items():
        yield pytest.param(cases.documents(case), id=name)


@pytest.mark.parametrize("documents", [*_corpus()])
def test_corpora(documents: list[Manifest]) -> None:
    _judge(documents)


@pytest.mark.parametrize("start", range(0, EXAMPLES, BATCH))
def test_random_fleets(start: int) -> None:
    for seed in range(start, min(start + BATCH, EXAMPLES)):
        _judge(random_fleets.documents(Random(f"reasons {seed}")))


@pytest.mark.parametrize("start", range(0, EXAMPLES, BATCH))
def test_random_fleets_with_cordoned_nodes(start: int) -> None:
    for seed in range(start, min(start + BATCH, EXAMPLES)):
        _judge(_with_cordoned_nodes(seed))


def test_what_is_not_known_to_suffice_says_so() -> None:
    """Each member of a group needs a node uncordoned; what all of them need together is too hard to find."""
    documents = _with_cordoned_nodes(2051)
    answer = solve_manifests(documents)
    answers = {(one["namespace"], one["name"]): one for one in answer["claims"]}
    for key in (("default", f"c{number}") for number in range(2)):
        assert answers[key]["caveats"] == ["notEnough"]
        assert answers[key]["message"].endswith("; more may be needed")
        written = [d for d in after(documents, answers) if d["kind"] != "DeviceClaim" or _stays(d, documents, key)]
        assert not _satisfied(with_blockers_applied(written, key, answers[key]["blockers"]), key)


def _with_cordoned_nodes(seed: int) -> list[Manifest]:
    random = Random(f"cordons {seed}")
    documents = random_fleets.documents(random)
    nodes = sorted({node for doc in documents if doc["kind"] == "DevicePool" and (node := pool_node(doc))})
    cordoned = random.sample(nodes, min(len(nodes), random.choice([1, 2, len(nodes)])))
    for doc in documents:
        if doc["kind"] == "DevicePool" and pool_node(doc) in cordoned:
            doc["metadata"].setdefault("annotations", {})[CORDONED_NODE] = "by root, 2026-11-28: fan; disk"
    return apply_all_cordons(documents)


def _judge(documents: Sequence[Manifest]) -> None:
    answer = solve_manifests(documents)
    answers = {(one["namespace"], one["name"]): one for one in answer["claims"]}
    for key, one in answers.items():
        if one["allocated"] or one["reason"] in WAITING or _waits_for_a_member(one):
            continue
        blockers = one["blockers"]
        assert blockers, (key, one["reason"], one["message"])
        # The others that wait would take what comes free; who got something has it.
        written = [d for d in after(documents, answers) if d["kind"] != "DeviceClaim" or _stays(d, documents, key)]
        fixed = with_blockers_applied(written, key, blockers)
        if _asks_for_nothing(fixed, key):
            continue
        if "notEnough" in one.get("caveats", ()):
            continue  # the search was cut short, and says so
        assert _satisfied(fixed, key), (key, one["message"], blockers)
        if "notSmallest" in one.get("caveats", ()):
            continue  # all that is named is in the way, and less of it may be
        for size in range(len(blockers)):
            for part in combinations(blockers, size):
                if size in (0, len(blockers) - 1) or len(blockers) <= 4:
                    context = (key, one["message"], blockers, "and this is enough:", part)
                    assert not _satisfied(with_blockers_applied(written, key, part), key), context


def _waits_for_a_member(answer: dict[str, Any]) -> bool:
    """The group has a member that is not solved at all; the message names it."""
    return answer["reason"] == "GroupUnsatisfiable" and not answer.get("funnel")


def _stays(document: Manifest, documents: Sequence[Manifest], key: Key) -> bool:
    """Claims that hold something, the claim itself, and the members of its group."""
    if document.get("status", {}).get("allocations") or key_of(document) == key:
        return True
    (own,) = [d for d in documents if d["kind"] == "DeviceClaim" and key_of(d) == key]
    group = own["metadata"].get("annotations", {}).get(GROUP)
    marks = document["metadata"].get("annotations", {})
    return group is not None and (key_of(document)[0], marks.get(GROUP)) == (key[0], group)


def _asks_for_nothing(documents: Sequence[Manifest], key: Key) -> bool:
    """All of its requests are named: the fleet has nothing for any of them."""
    return any(d["kind"] == "DeviceClaim" and key_of(d) == key and not d["spec"]["claims"] for d in documents)


def _satisfied(documents: Sequence[Manifest], key: Key) -> bool:
    """By the solver and by the oracle, which agree."""
    (answer,) = [one for one in solve_manifests(documents)["claims"] if (one["namespace"], one["name"]) == key]
    assert answer["allocated"] == oracle.satisfiable(documents, key)
    return bool(answer["allocated"])
