"""What is left of a batch before it is searched: units that may fit, on nodes that may serve one of them."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from devalloc_solver import Fleet, solve_manifests
from devalloc_solver.dialects.device_claims.manifest_records import read_documents
from devalloc_solver.dialects.device_claims.problem import prepare
from devalloc_solver.pipeline import narrowing
from devalloc_solver.pipeline.narrowing import narrowed
from devalloc_solver.problem.demand import PlacementUnit
from devalloc_solver.testing import claim, device, device_class, pool, request

Manifest = dict[str, Any]
BIG = "device.big == 1"


def unlike_nodes(rng: Random, count: int) -> list[Manifest]:
    """Nodes of three GPUs each, of which no two have as much memory; one GPU of a node is big."""

    def gpu(number: int) -> Manifest:
        attributes = {"numa": rng.randrange(2), "big": int(number == 0)}
        return device(f"g{number}", attributes=attributes, resources={"memory": f"{rng.randrange(20, 60)}Gi"})

    gpus = [[gpu(number) for number in range(3)] for _ in range(count)]
    return [
        device_class("gpu", driver="gpu"),
        *(pool(f"p{n:03}", f"n{n:03}", "gpu", devices=devices) for n, devices in enumerate(gpus)),
    ]


def two_big(number: int) -> Manifest:
    """Asks for two big GPUs of a node, which none has, in other words for each number."""
    return claim(
        f"bad{number}",
        request("gpu", 1, constraints=BIG),
        request("gpu", 1, constraints=BIG + " || false" * (number + 1)),
    )


def small(rng: Random, number: int) -> Manifest:
    details = [request("gpu", requests={"memory": f"{rng.randrange(5, 60)}Gi"}) for _ in range(rng.randrange(1, 4))]
    return claim(f"good{number}", *details, match=("numa",) if rng.random() < 0.5 else ())


def given(answer: Manifest) -> dict[str, list[tuple[str, str]]]:
    return {
        each["name"]: [(entry["devicePoolName"], entry["deviceName"]) for entry in each.get("allocations", ())]
        for each in answer["claims"]
    }


def narrow(documents: list[Manifest]) -> tuple[list[PlacementUnit], list[PlacementUnit]]:
    """(the units of a batch, what is left of them)"""
    prepared = prepare(read_documents(documents))
    return [*prepared.units], [*narrowed(prepared.snapshot, prepared.allocations, prepared.units, None)]


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The node of each question."""
    nodes: list[object] = []
    ask = narrowing.fits_on

    def counted(*arguments: Any, **options: Any) -> bool:
        nodes.append(arguments[3])
        return ask(*arguments, **options)

    monkeypatch.setattr(narrowing, "fits_on", counted)
    return nodes


def test_claims_that_fit_nowhere_do_not_change_what_the_others_get() -> None:
    """A warm fleet leaves them out; a cold solve of 100 unlike nodes once asked too much about them, and did not."""
    rng = Random(2)
    documents, refused = unlike_nodes(rng, 100), [two_big(number) for number in range(5)]
    claims = [*refused, *(small(rng, number) for number in range(4))]
    fleet = Fleet.from_manifests(documents)
    fleet.allocate_all([])
    assert given(fleet.allocate_all(claims)) == given(solve_manifests([*documents, *claims]))


def test_where_every_claim_fits_one_question_each_is_enough_and_nothing_changes(questions: list[object]) -> None:
    rng = Random(1)
    units, left = narrow([*unlike_nodes(rng, 50), *(small(rng, number) for number in range(6))])
    assert len(questions) < 50
    assert [unit is same for unit, same in zip(units, left, strict=True)] == [True] * len(units)


def test_questions_about_a_batch_end_and_the_claims_that_are_left_stay(questions: list[object]) -> None:
    rng = Random(1)
    documents, claims = unlike_nodes(rng, 50), [two_big(number) for number in range(60)]
    units, left = narrow([*documents, *claims, small(rng, 0)])
    assert len(questions) <= narrowing.DEFAULT_STEPS / narrowing.QUESTION_STEPS
    assert 1 < len(left) < len(units)
    assert left == units[-len(left) :], "with all their nodes"


def test_a_claim_that_is_hard_to_refuse_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = Random(1)
    documents = [*unlike_nodes(rng, 3), two_big(0), two_big(1), small(rng, 0)]
    assert len(narrow(documents)[1]) == 1
    monkeypatch.setattr(narrowing, "UNIT_STEPS", narrowing.QUESTION_STEPS)
    units, left = narrow(documents)
    assert left == units


def test_more_claims_than_a_warm_fleet_leaves_nodes_out_for_stay_as_they_are(questions: list[object]) -> None:
    rng = Random(1)
    claims = [*(small(rng, number) for number in range(narrowing.MAX_CLAIMS)), two_big(0)]
    units, left = narrow([*unlike_nodes(rng, 3), *claims])
    assert not questions
    assert left == units
