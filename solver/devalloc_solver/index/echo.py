"""What a claim is told that is not placed: what it holds already, or why it is invalid. Looks at that claim only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from devalloc.api.claim import DeviceClaim
from devalloc.api.deviceclass import DeviceClass
from devalloc.api.pool import DevicePool
from devalloc_solver.holdings import read_holdings
from devalloc_solver.index.documents import Document, Documents, full_name, pools_of, sort_out
from devalloc_solver.snapshot import take_snapshot
from devalloc_solver.solution import ClaimAnswer, answer_allocated
from devalloc_solver.stages import answer_refused


def echo(of_claim: Iterable[Document], documents: Documents, classes: Mapping[str, DeviceClass]) -> ClaimAnswer:
    """The answer of the stages to a claim that is allocated or invalid.

    Args:
        of_claim: the manifests of its name, at least one; several make each other invalid, and the first counts that
            holds anything.
        documents: where the pools are that it names.
        classes: the valid ones, by name.
    """
    intake = sort_out(of_claim)
    if intake.refused:
        return answer_refused(min(intake.refused, key=lambda refused: refused.status is None))
    (claim,) = intake.claims
    snapshot, _ = take_snapshot(_pools_named(claim, documents))
    _, lost, _ = read_holdings(snapshot, [claim], classes)
    return answer_allocated(claim, snapshot, lost, intake.warnings.get(claim.key, ()))


def _pools_named(claim: DeviceClaim, documents: Documents) -> list[DevicePool]:
    assert claim.status is not None
    names = dict.fromkeys(entry.device_pool_name for entry in claim.status.allocations)
    return [pool for name in names for pool in pools_of(documents.by_name.get(full_name("DevicePool", None, name), ()))]
