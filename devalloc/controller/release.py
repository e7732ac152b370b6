"""Taking an allocated claim's devices back while the claim stays."""

from __future__ import annotations

from devalloc.controller.claims import OF_ALLOCATION, allocations
from devalloc.store import Change, Conflict, Key, Object, Store, StoreError


class InUse(StoreError):
    """Somebody still uses the claim's devices."""


def release(store: Store, namespace: str, name: str, *, force: bool = False) -> bool:
    """Clear the claim's status and what the allocator noted on it, so that it is allocated anew.

    False when it held nothing. Raises NotFound, and InUse (unless ``force``) while status.podNames says who uses it.
    """
    while True:
        claim = store.get("DeviceClaim", namespace, name)
        if not allocations(claim):
            return False
        if (users := claim["status"].get("podNames")) and not force:
            raise InUse(f"{Key.of(claim)} is in use by {', '.join(map(str, users))}; stop that first")
        try:
            store.commit([_released(claim)])
        except Conflict:
            continue  # it changed since we read it; what we want is still the same
        return True


def _released(claim: Object) -> Change:
    return Change(Key.of(claim), claim["metadata"]["resourceVersion"], None, dict.fromkeys(OF_ALLOCATION))
