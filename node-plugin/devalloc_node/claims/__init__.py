"""Claims on this node: prepared, unprepared, recovered after a crash, and reconciled with the store and the host.

- ``engine``: prepare and unprepare, whole or not at all; ``reserve``: what a claim holds exclusively
- ``steps``: perform and undo steps, each recorded in the journal before and after
- ``reconcile``, ``existence``: what crashes left, and claims that are gone
- ``finalizers``, ``store_grants``: DeviceClaims of the store
- ``files``, ``cdi``, ``container_metadata``: the files that go with a prepared claim
- ``orphans``: devices on the host that no claim holds
"""

from devalloc_node.claims.engine import Claims
from devalloc_node.claims.locks import ClaimLocks
from devalloc_node.claims.options import PrepareOptions

__all__ = ["ClaimLocks", "Claims", "PrepareOptions"]
