"""The rules for one claim's answer: its form, its node, each of its details, what they have in common."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from devalloc.api import meta
from devalloc.api.claim import DeviceClaimSpec
from devalloc.api.node_rules import NodeRestriction
from devalloc_solver.cel.device_claims import BudgetExceeded
from devalloc_solver.check.answer import Answer, MalformedAnswer
from devalloc_solver.check.detail import detail_violations, mismatched_attributes
from devalloc_solver.check.device_records import record_violations
from devalloc_solver.check.pools import CheckedDevice, KnownPools
from devalloc_solver.check.specs import SpecCache
from devalloc_solver.check.usage import CheckedUse

BARS: Mapping[str, Callable[[str, Collection[str]], bool]] = {meta.EXCLUDED_NODES: lambda node, named: node in named}
"""Whether a rule bars a node: said here again, so that an error of the solver's own table is found."""


class PendingClaim(Protocol):
    """What the check reads of a claim that held nothing: a ``DeviceClaim`` is one."""

    @property
    def key(self) -> tuple[str, str]: ...
    @property
    def spec(self) -> DeviceClaimSpec: ...
    @property
    def group(self) -> str | None: ...
    @property
    def pinned_node(self) -> str | None: ...
    @property
    def restrictions(self) -> tuple[NodeRestriction, ...]: ...
    @property
    def is_allocated(self) -> bool: ...
    @property
    def is_deleting(self) -> bool: ...


def check_new_claim(
    claim: PendingClaim, answer: Answer, fleet: KnownPools, specs: SpecCache
) -> tuple[list[CheckedUse], list[str]]:
    """What a newly allocated claim takes from others, and what is wrong with it, as sentences without its name."""
    spec_terms = specs.terms_of(claim.spec)
    if spec_terms.flaw:
        return [], [f"cannot be allocated, {spec_terms.flaw}"]
    try:
        requests = spec_terms.answered(answer.one_of, answer.details())
    except MalformedAnswer as error:
        return [], [str(error)]
    wrong = [*requests.wrong]
    node, annotations = answer.node, answer.annotations
    noted = annotations.get(meta.ALLOCATED_NODE)
    if noted != node:
        wrong.append(f"the annotation {meta.ALLOCATED_NODE} says {noted}, and the node is {node} (S2)")
    uses: list[CheckedUse | None] = []
    key, name, pool = claim.key, "", None
    for grant, term in zip(answer.grants, requests.terms, strict=True):
        if grant.pool != name:
            name, pool = grant.pool, fleet.pool(node, grant.pool)
        pooled = None if pool is None else pool.find(grant.device)
        if pooled is None:
            reach = f"node {node}" if node else "the network alone"
            wrong.append(f"device {name}/{grant.device} does not exist or is not reached from {reach} (S7)")
        uses.append(None if pooled is None or term is None else CheckedUse(pooled, key, term.label, grant.amounts))
    taken = [use for use in uses if use is not None]
    devices = [use.pooled for use in taken]
    if requests.has_admin:
        marks = zip(uses, requests.terms, strict=True)
        taken = [use for use, term in marks if use is not None and term is not None and not term.is_admin]
    pin = claim.pinned_node
    wrong += _node_violations(claim, pin, answer, devices)
    if (recorded := annotations.get(meta.DEVICE_RECORDS)) is not None:
        wrong += record_violations(recorded, [use.pooled for use in taken])
    try:
        for term, positions in requests.positions:
            own = [use for number in positions if (use := uses[number]) is not None]
            for sentence in detail_violations(term, own, node, fleet, pin):
                wrong.append(f"{term.label}: {sentence}")
    except BudgetExceeded:
        wrong.append("cannot be allocated, its expressions are too costly (S6)")
    if claim.spec.match_attributes:
        wrong += mismatched_attributes(claim.spec.match_attributes, devices)
    return taken, wrong


def _node_violations(
    claim: PendingClaim, pin: str | None, answer: Answer, devices: Sequence[CheckedDevice]
) -> list[str]:
    if answer.node is not None:
        for rule, named in claim.restrictions:
            is_named = answer.node in named
            if BARS[rule.annotation](answer.node, named) if rule.annotation else is_named is not rule.is_only:
                return [f"must not be on node {answer.node}, and is answered there (S7)"]
    if pin is not None:
        return [] if answer.node == pin else [f"is pinned to node {pin}, and is answered on {answer.node} (S7)"]
    if answer.node is None or claim.group is not None or not devices:
        return []
    for pooled in devices:
        if pooled.node is not None:
            return []
    return [f"has network devices only, so that its node is null and not {answer.node} (S7)"]
