"""What claims held before the answer, read from their status; an answer must repeat it unchanged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from devalloc.api import meta
from devalloc.api.claim import DeviceClaim, DeviceClaimDetail, DeviceClaimStatus
from devalloc.api.device_records import DeviceRecord, read_records
from devalloc_solver.check.answer import Answer, AnsweredDevice, DetailIndex, recorded_grants
from devalloc_solver.check.classes import ClassCatalogue
from devalloc_solver.check.device_records import NOTHING, counted_draws
from devalloc_solver.check.pools import KnownPools
from devalloc_solver.check.usage import CheckedUse, Key


class RejectedClaimView(Protocol):
    """A claim that was left out because it is invalid: it keeps what it holds (S13), or fails its group (S7)."""

    @property
    def key(self) -> tuple[str, str]: ...
    @property
    def group(self) -> str | None: ...
    @property
    def node(self) -> str | None: ...
    @property
    def status(self) -> DeviceClaimStatus | None: ...


def allocated_uses(claim: DeviceClaim, fleet: KnownPools, catalogue: ClassCatalogue) -> list[CheckedUse]:
    """What an allocated claim holds: no amounts mean the whole device, admin details hold nothing (S18)."""
    if catalogue.is_all_admin(claim):
        return []
    details = _details(claim)
    node = claim.allocated_node or claim.pinned_node
    uses: list[CheckedUse] = []
    records = read_records(claim.metadata.annotations.get(meta.DEVICE_RECORDS))
    for position, grant in enumerate(recorded_grants(claim.status)):
        detail = details[position] if details is not None else None
        if detail is None or not catalogue.is_admin(detail):
            uses += uses_of_grant(grant, node, fleet, claim.key, records.get((grant.pool, grant.device)))
    return uses


def uses_of_grant(
    grant: AnsweredDevice, node: str | None, fleet: KnownPools, key: Key, record: DeviceRecord | None
) -> Iterator[CheckedUse]:
    """What a claim holds by one entry; a device that its pool does not have counts as recorded (S18)."""
    there = fleet.find_held(node, grant.pool, grant.device)
    for pooled in there or fleet.find_missing(node, grant.pool, grant.device):
        counted = counted_draws(pooled, record)
        if pooled.is_published or counted != NOTHING:
            yield CheckedUse(pooled, key, "", _amounts_in_use(grant.amounts), held=True, counted=counted)


def rejected_claim_uses(claim: RejectedClaimView, fleet: KnownPools) -> list[CheckedUse]:
    """What an invalid claim holds: its details cannot be told apart, so every entry counts."""
    return [
        use
        for grant in recorded_grants(claim.status)
        for use in uses_of_grant(grant, claim.node, fleet, claim.key, None)
    ]


def _amounts_in_use(amounts: Mapping[str, int]) -> Mapping[str, int]:
    """What recorded amounts are in use: all of the device if one is negative, because no claim can hold less than
    nothing (S13)."""
    return {} if amounts and min(amounts.values()) < 0 else amounts


def allocated_node(claim: DeviceClaim, fleet: KnownPools) -> str | None:
    """The node of an allocated claim: as annotated, else the one that has its devices (S2); None when nothing tells."""
    node = claim.allocated_node or claim.pinned_node
    if node is not None:
        return node
    nodes = {
        pooled.node
        for grant in recorded_grants(claim.status)
        for pooled in fleet.find_held(None, grant.pool, grant.device)
        if pooled.node is not None
    }
    return nodes.pop() if len(nodes) == 1 else None


def unchanged_violations(claim: DeviceClaim, answer: Answer, fleet: KnownPools) -> Iterator[str]:
    """An allocated claim never moves: its answer repeats what it came in with (S18)."""
    if not answer.allocated:
        yield "came in allocated, and is answered as not allocated (S18)"
        return
    if answer.grants != recorded_grants(claim.status):
        yield "came in allocated, and its allocations have changed (S18)"
    node, is_noted = allocated_node(claim, fleet), claim.allocated_node or claim.pinned_node
    if answer.node != node and (is_noted or answer.node is not None):
        yield f"came in allocated on node {node}, and is answered on {answer.node} (S18)"


def _details(claim: DeviceClaim) -> list[DeviceClaimDetail | None] | None:
    """The detail of each status entry, None for an index that is not in the spec; None without the annotation (S18)."""
    indexes = claim.allocation_details()
    if indexes is None:
        return None
    by_index: dict[DetailIndex, DeviceClaimDetail] = {}
    for position, instance in enumerate(claim.spec.claims):
        if not instance.one_of:
            by_index[position, None] = instance
        for number, alternative in enumerate(instance.one_of):
            by_index[position, number] = alternative
    return [by_index.get(index) for index in indexes]
