"""Claims that belong together: one node, all or nothing (S7)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set

from devalloc.api.claim import DeviceClaim
from devalloc_solver.check.answer import Answer, recorded_grants
from devalloc_solver.check.detail import mismatched_attributes
from devalloc_solver.check.pools import CheckedDevice, KnownPools
from devalloc_solver.check.prior_allocations import allocated_node

GroupKey = tuple[str, str]
"""(namespace, value of the group annotation)"""


def group_violations(
    claims: Iterable[DeviceClaim],
    allocated: Mapping[tuple[str, str], Answer],
    fleet: KnownPools,
    failed: Set[GroupKey],
) -> Iterator[str]:
    """What the new allocations (`allocated`, by claim) break of their groups."""
    groups: dict[GroupKey, list[DeviceClaim]] = defaultdict(list)
    for claim in claims:
        # A pending claim that is being deleted is not solved (S18), and no member waits for it.
        if claim.group is not None and (claim.is_allocated or not claim.is_deleting):
            groups[claim.namespace, claim.group].append(claim)
    for key, members in groups.items():
        new = [claim for claim in members if claim.key in allocated]
        if not new:
            continue
        name = f"group {key[0]}/{key[1]}"
        missing = [claim.metadata.name for claim in members if not claim.is_allocated and claim.key not in allocated]
        if missing:
            yield f"{name}: {new[0].metadata.name} is allocated without {', '.join(missing)} (S7)"
        if key in failed:
            yield f"{name}: {new[0].metadata.name} is allocated although a member is invalid (S7)"
        yield from _node_violations(name, members, new, allocated, fleet)
        yield from _agreement_violations(name, members, allocated, fleet)


def _node_violations(
    name: str,
    members: Iterable[DeviceClaim],
    new: Iterable[DeviceClaim],
    allocated: Mapping[tuple[str, str], Answer],
    fleet: KnownPools,
) -> Iterator[str]:
    nodes = {claim.metadata.name: allocated[claim.key].node for claim in new}
    held = {claim.metadata.name: allocated_node(claim, fleet) for claim in members if claim.is_allocated}
    fixed = {claim: node for claim, node in held.items() if node is not None}
    if len({*nodes.values(), *fixed.values()}) > 1:
        listed = ", ".join(f"{claim} on {node}" for claim, node in {**nodes, **fixed}.items())
        yield f"{name}: the members are not on one node: {listed} (S7)"
    pins = {claim.pinned_node for claim in members}
    for claim, node in nodes.items():
        if node is not None and node not in fleet.nodes | pins | set(fixed.values()):
            yield f"{name}: {claim} is on node {node}, which does not exist (S7)"


def _agreement_violations(
    name: str, members: Iterable[DeviceClaim], allocated: Mapping[tuple[str, str], Answer], fleet: KnownPools
) -> Iterator[str]:
    """An attribute that members name has one value on all devices of these members (S15 across claims)."""
    bound: dict[str, list[CheckedDevice]] = defaultdict(list)
    attributes = {attribute for claim in members if claim.key in allocated for attribute in claim.group_match}
    for claim in members:
        for attribute in claim.group_match:
            if attribute not in attributes:
                continue  # nothing new was to agree: what is held stays
            if claim.key in allocated:
                answer = allocated[claim.key]
                pooled = (fleet.find(answer.node, grant.pool, grant.device) for grant in answer.grants)
                bound[attribute] += [device for device in pooled if device is not None]
            else:
                node = allocated_node(claim, fleet)
                for grant in recorded_grants(claim.status):
                    bound[attribute] += fleet.find_held(node, grant.pool, grant.device)
    for attribute, devices in bound.items():
        for sentence in mismatched_attributes([attribute], devices):
            yield f"{name}: {sentence}"
