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

__all__ = ["Verdicts", "check_results"]

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
    verdicts: Verdicts | None = None,
) -> list[str]:
    """Everything that is wrong with `results`, one AllocationResult for each claim without an allocation, in order.

    `claims` are all claims; those with ``status.allocation`` are in use, together with what `allocated` tells
    (``devices``, ``shares``, ``consumedCapacity``). `features` are gates by their names in Kubernetes. `verdicts` keeps
    what expressions said from one call to the next. The sentences are for a developer. Returns [] when all is right.
    """
    every = list(claims)
    pending = [claim for claim in every if not (claim.get("status") or {}).get("allocation")]
    if len(results) != len(pending):
        return [f"there are {len(results)} results for {len(pending)} claims"]
    whole_node = {"metadata": {"name": node}} if isinstance(node, str) else node
    offer = Offer(whole_node, slices, features)
    held = Held(allocated or {}, every)
    by_name = {one["metadata"]["name"]: one for one in classes}
    verdicts = Verdicts(features) if verdicts is None else verdicts
    violations: list[str] = []
    answered: list[Answered] = []
    for number, (claim, result) in enumerate(zip(pending, results, strict=True)):
        one, found = read_claim(number, claim, result, offer)
        answered.append(one)
        found += request_violations(one, offer, by_name, verdicts, features)
        found += relation_violations(one, features)
        found += config_violations(one, by_name)
        found += node_selector_violations(one, offer)
        violations += [f"{one.title}: {sentence}" for sentence in found]
    return violations + use_violations(answered, offer, held, features)
