"""Where objects live: one protocol, and an embedded store behind it."""

from devalloc.store.errors import (
    AlreadyExists,
    Conflict,
    Deposed,
    Expired,
    FenceBroken,
    Forbidden,
    Held,
    Invalid,
    NotFound,
    NotServed,
    Refused,
    StoreError,
    Unavailable,
    Unknown,
    Unusable,
)
from devalloc.store.key import Key, Object
from devalloc.store.protocol import Change, Event, EventType, Fence, Listing, Outcomes, Store, Written

__all__ = [
    "AlreadyExists",
    "Change",
    "Conflict",
    "Deposed",
    "Event",
    "EventType",
    "Expired",
    "Fence",
    "FenceBroken",
    "Forbidden",
    "Held",
    "Invalid",
    "Key",
    "Listing",
    "NotFound",
    "NotServed",
    "Object",
    "Outcomes",
    "Refused",
    "Store",
    "StoreError",
    "Unavailable",
    "Unknown",
    "Unusable",
    "Written",
]
