"""Claims on this node: prepared, unprepared, recovered after a crash, and reconciled with the store and the host.

- ``engine``: prepare and unprepare, whole or not at all, and what a claim holds exclusively
- ``steps``: perform and undo steps, each recorded in the journal before and after
- ``cleanup``: what crashes left, and claims that are gone
- ``finalizers``, ``store_grants``: DeviceClaims of the store
- ``claim_files``: the files that go with a prepared claim
- ``journal_content``: the journal's content as JSON and for discovery, and devices on the host that no claim holds
"""

from devalloc_node.claims.engine import ChangeGuard, Claims, DeviceHost
from devalloc_node.claims.locks import ClaimLocks
from devalloc_node.claims.steps import PrepareOptions

__all__ = ["ChangeGuard", "ClaimLocks", "Claims", "DeviceHost", "PrepareOptions"]
