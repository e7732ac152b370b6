"""Where objects live: one protocol, and an embedded store behind it."""

from devalloc.store.errors import (
    AlreadyExists,
    Conflict,
    Expired,
    FenceBroken,
    Held,
    Invalid,
    NotFound,
    StoreError,
    Unavailable,
    Unusable,
)
from devalloc.store.key import Key, Object
from devalloc.store.protocol import Change, Event, EventType, Fence, Listing, Store, Written

__all__ = [
    "AlreadyExists",
    "Change",
    "Conflict",
    "Event",
    "EventType",
    "Expired",
    "Fence",
    "FenceBroken",
    "Held",
    "Invalid",
    "Key",
    "Listing",
    "NotFound",
    "Object",
    "Store",
    "StoreError",
    "Unavailable",
    "Unusable",
    "Written",
]
