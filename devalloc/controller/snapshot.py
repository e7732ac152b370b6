"""Everything a store holds, as documents for the solver, for explain, or for a file."""

from __future__ import annotations

from devalloc.api.cordon import with_cordons
from devalloc.controller.claims import as_allocated
from devalloc.store import Object, Store


def snapshot(store: Store) -> list[Object]:
    """All objects as of one moment, ordered by kind, namespace and name, as the allocator sees them.

    Allocated claims come with the spec that their allocation answers, and what is cordoned is unavailable.
    """
    return [with_cordons(doc) if doc["kind"] == "DevicePool" else doc for doc in as_allocated(store.list().objects)]
