"""What machines' sources write of permits."""

from __future__ import annotations

from collections.abc import Mapping
from unittest.mock import Mock

from devalloc.machines.permits.decide import ConditionValue, PermitRecord, PermitTransaction
from devalloc.machines.permits.ledger import PermitLedgers
from devalloc.machines.permits.sources import MachineSources
from devalloc.scaling.resources import DEFAULT_COMPUTE_UNIT, NO_RESOURCES, Resources
from devalloc.store import Change, Object
from devalloc_neon.machines import NeonMachines

SOURCES = MachineSources(NeonMachines(Mock()))
"""Of machines of devalloc and of NeonVM, to read objects."""


def permit_change(
    obj: Object,
    *,
    permit: Resources | None,
    previous: Resources = NO_RESOURCES,
    given_by: str,
    conditions: Mapping[str, ConditionValue],
    now: str,
) -> Change:
    """What is written on a machine's object."""
    key = SOURCES.key(obj)
    record = PermitRecord(key, permit, previous, conditions, DEFAULT_COMPUTE_UNIT, given_by, now)
    return SOURCES.of(key).change(obj, record)


def changes_of(draft: PermitTransaction, book: PermitLedgers) -> list[Change]:
    """What a draft wants written, on the objects as the book has them."""
    return [SOURCES.of(record.key).change(book.objects[record.key], record) for record in draft.records()]
