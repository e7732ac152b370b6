"""Where objects live: the ``Store`` protocol, the embedded store, and the Kubernetes API behind the same protocol.

- ``protocol``: what every store offers, and where stores differ; ``metadata_rules``: the rules of metadata;
  ``nodes``: what a store says about one node
- ``fencing``: a write that makes every earlier write of others fail
- ``sqlite``, over ``database`` and ``sql_statements``: the embedded store; also space for changes that give something
  back on a full disk
- ``paths``: private files, and the lock that lets one process run the loops
- ``database_copies``: backups
- ``kubernetes``: a cluster as a store
"""

from devalloc.store.errors import (
    OBJECT_FAILURES,
    REFUSALS,
    AlreadyExists,
    Conflict,
    Expired,
    FenceBroken,
    Forbidden,
    Invalid,
    Key,
    KindNotServed,
    NoSpace,
    NotFound,
    NotLeader,
    Object,
    SkippedForSpace,
    StoreError,
    StoreLocked,
    Unavailable,
    UnknownOutcome,
    Unusable,
    WriteRejected,
)
from devalloc.store.protocol import (
    Change,
    CommitOutcomes,
    CommitResult,
    Event,
    EventType,
    Fence,
    Listing,
    ObjectStore,
    Store,
)

__all__ = [
    "OBJECT_FAILURES",
    "REFUSALS",
    "AlreadyExists",
    "Change",
    "CommitOutcomes",
    "CommitResult",
    "Conflict",
    "Event",
    "EventType",
    "Expired",
    "Fence",
    "FenceBroken",
    "Forbidden",
    "Invalid",
    "Key",
    "KindNotServed",
    "Listing",
    "NoSpace",
    "NotFound",
    "NotLeader",
    "Object",
    "ObjectStore",
    "SkippedForSpace",
    "Store",
    "StoreError",
    "StoreLocked",
    "Unavailable",
    "UnknownOutcome",
    "Unusable",
    "WriteRejected",
]
