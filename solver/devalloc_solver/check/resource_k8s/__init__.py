"""The independent judge of the ``resource.k8s.io`` dialect: AllocationResults against the objects they answer.

It runs on every answer of ``dra.allocate`` before that is returned, and shares no code with the stages that
computed it but the expression language. It reads manifests, not decoded objects, so that it also detects mistakes in
decoding. Its input is objects that the dialect accepts. If the rules leave a choice, it accepts every choice.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from devalloc_solver.check.resource_k8s.cel_results import SelectorResults
from devalloc_solver.check.resource_k8s.claim import (
    AnsweredClaim,
    config_violations,
    constraint_violations,
    is_allowed,
    node_selector_violations,
    read_claim,
    request_violations,
)
from devalloc_solver.check.resource_k8s.pools import PublishedPools
from devalloc_solver.check.resource_k8s.prior_allocations import PriorUsage
from devalloc_solver.check.resource_k8s.quick_check import PlainAnswers
from devalloc_solver.check.resource_k8s.usage import use_violations

__all__ = ["PlainAnswers", "PriorUsage", "PublishedPools", "SelectorResults", "check_answers", "check_results"]

Manifest = Mapping[str, Any]


def check_results(
    results: Sequence[Manifest],
    node: Manifest | str,
    claims: Iterable[Manifest],
    classes: Iterable[Manifest],
    slices: Iterable[Manifest],
    *,
    allocated: Manifest | None = None,
    features: Container[str],
) -> list[str]:
    """Everything that is wrong with `results`, one AllocationResult for each claim without an allocation, in order.

    `claims` are all claims; those with ``status.allocation`` are in use, together with what `allocated` tells
    (``devices``, ``shares``, ``consumedCapacity``). `features` are gates by their names in Kubernetes. The sentences
    are for a developer. Returns [] when all is right.
    """
    every = list(claims)
    pending = [claim for claim in every if not (claim.get("status") or {}).get("allocation")]
    if len(results) != len(pending):
        return [f"there are {len(results)} results for {len(pending)} claims"]
    whole_node = {"metadata": {"name": node}} if isinstance(node, str) else node
    offer = PublishedPools(whole_node, slices, features)
    held = PriorUsage(allocated or {}, every)
    by_name = {one["metadata"]["name"]: one for one in classes}
    verdicts = SelectorResults(features)
    if len(pending) == 1 and PlainAnswers(verdicts, features).is_right(pending[0], results[0], offer, held, by_name):
        return []
    return check_answers([*zip(pending, results, strict=True)], offer, held, by_name, verdicts, features)


def check_answers(
    answers: Sequence[tuple[Manifest, Manifest]],
    offer: PublishedPools,
    held: PriorUsage,
    classes: Mapping[str, Manifest],
    verdicts: SelectorResults,
    features: Container[str],
) -> list[str]:
    """The same for who keeps what the judgement rests on.

    Args:
        answers: (claim without an allocation, AllocationResult) each.
        offer: what the node reaches.
        held: what is in use of it besides.
        classes: DeviceClasses by name.
        verdicts: what expressions said before.
        features: as above.
    """
    violations: list[str] = []
    answered: list[AnsweredClaim] = []
    for number, (claim, result) in enumerate(answers):
        one, sentences = read_claim(number, claim, result, offer)
        answered.append(one)
        sentences += request_violations(one, offer, classes, verdicts, features)
        sentences += constraint_violations(one, features)
        sentences += config_violations(one, classes)
        sentences += node_selector_violations(one, offer)
        if one.taken and not is_allowed(claim, offer):
            sentences.append(f"must not be on node {offer.node['metadata']['name']}, and is answered there")
        violations += [f"{one.title}: {sentence}" for sentence in sentences]
    return violations + use_violations(answered, offer, held, features)
