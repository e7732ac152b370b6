"""Everything a store holds, as documents for the solver, for explain, or for a file."""

from __future__ import annotations

from collections.abc import Iterable

from devalloc.api.cordon import with_cordons
from devalloc.controller.claims import as_allocated
from devalloc.controller.foreign import is_foreign
from devalloc.store import Object, Store


def snapshot(store: Store, kinds: Iterable[str] | None = None) -> list[Object]:
    """All objects of some kinds (None: all) as of one moment, ordered by kind, namespace and name, as the allocator
    sees them: without foreign ones.

    Allocated claims come with the spec that their allocation answers, and what is cordoned is unavailable.
    """
    return as_seen(store.list(kinds).objects)


def as_seen(objects: Iterable[Object]) -> list[Object]:
    """Objects of a store as the allocator sees them."""
    own = [obj for obj in objects if not is_foreign(obj)]
    return [with_cordons(doc) if doc["kind"] == "DevicePool" else doc for doc in as_allocated(own)]
