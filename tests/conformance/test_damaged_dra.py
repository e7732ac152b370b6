"""Manifests of resource.k8s.io, two of them broken somewhere: every entry answers in words, nothing falls over."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner

from devalloc.api.manifests import load
from devalloc.cli.main import cli
from devalloc_solver.dialects.resource_k8s.fleet import ResourceClaimFleet
from devalloc_solver.dialects.resource_k8s.manifests import with_defaults
from devalloc_solver.dra import AllocationError, allocate, solve_manifests
from tests.support.examples import examples
from tests.support.manifest_mutations import mutated
from tests.support.repository import REPO

DOCUMENTS = [document.content for document in load([REPO / "examples" / "dra"]).documents]
ROUNDS = examples(10, 0.0625)


def damaged(seed: int) -> list[Any]:
    random, documents = Random(seed), list(DOCUMENTS)
    for i in random.sample(range(len(documents)), 2):
        documents[i] = mutated(documents[i], random)
    return documents


def of(kind: str, documents: list[Any]) -> list[Any]:
    return [one for one in documents if isinstance(one, dict) and one.get("kind") == kind]


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_claims_are_allocated_or_the_error_says_what_is_wrong(seed: int) -> None:
    documents = damaged(seed)
    claims = [with_defaults(one) for one in of("ResourceClaim", documents)]
    node = (of("Node", documents) or ["example-a"])[0]

    message = ""
    try:
        results = allocate(node, claims, of("DeviceClass", documents), of("ResourceSlice", documents))
    except AllocationError as error:
        results, message = None, str(error)

    assert results is None or len(results) == len(claims)
    assert not message or " " in message


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_every_claim_of_a_cluster_is_answered(seed: int) -> None:
    documents = damaged(seed)

    answer = solve_manifests(documents)

    assert all(one["allocated"] or one["reason"] for one in answer["claims"])
    assert len(answer["problems"]) + len(answer["claims"]) >= 3
    fleet = ResourceClaimFleet.from_manifests(documents)
    for claim in of("ResourceClaim", documents):
        if isinstance(claim.get("metadata"), dict):
            fleet.allocate(claim)


@pytest.mark.parametrize("seed", range(0, ROUNDS, 5))
def test_the_command_ends_as_commands_do(seed: int) -> None:
    text = "---\n".join(json.dumps(one) + "\n" for one in damaged(seed))

    result = CliRunner().invoke(cli, ["dra", "allocate", "-f", "-", "--node", "example-a"], input=text)

    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert "bug in devalloc" not in result.output
    assert result.exit_code in (0, 2, 3)
