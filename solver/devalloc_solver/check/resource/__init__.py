"""The independent judge of the ``resource.k8s.io`` dialect: AllocationResults against the objects they answer.

It runs on every answer of ``dra.allocate`` before that is returned, and shares no code with the stages that found it
but the expression language. It reads manifests, not decoded objects, so that a mistake in decoding is seen too. It is
given objects that the dialect takes; where the rules leave a choice, every choice is right here.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from devalloc_solver.check.resource.claim import Answered, read_claim, request_violations
from devalloc_solver.check.resource.config import config_violations
from devalloc_solver.check.resource.held import Held
from devalloc_solver.check.resource.offer import Offer
from devalloc_solver.check.resource.place import node_selector_violations
from devalloc_solver.check.resource.relations import relation_violations
from devalloc_solver.check.resource.selectors import Verdicts
from devalloc_solver.check.resource.use import use_violations

__all__ = ["Held", "Offer", "Verdicts", "check_answers", "check_results"]

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
    offer = Offer(whole_node, slices, features)
    held = Held(allocated or {}, every)
    by_name = {one["metadata"]["name"]: one for one in classes}
    return check_answers([*zip(pending, results, strict=True)], offer, held, by_name, Verdicts(features), features)


def check_answers(
    answers: Sequence[tuple[Manifest, Manifest]],
    offer: Offer,
    held: Held,
    classes: Mapping[str, Manifest],
    verdicts: Verdicts,
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
    answered: list[Answered] = []
    for number, (claim, result) in enumerate(answers):
        one, found = read_claim(number, claim, result, offer)
        answered.append(one)
        found += request_violations(one, offer, classes, verdicts, features)
        found += relation_violations(one, features)
        found += config_violations(one, classes)
        found += node_selector_violations(one, offer)
        violations += [f"{one.title}: {sentence}" for sentence in found]
    return violations + use_violations(answered, offer, held, features)
