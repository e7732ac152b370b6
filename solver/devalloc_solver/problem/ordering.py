"""Sort orders: natural order of names, and the order in which claims are decided."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Protocol

from devalloc.api.meta import parse_time

_DIGITS = re.compile(r"(\d{1,1000})")
"""Longer numbers are read in parts: no text of more than 4300 digits becomes an int."""

NaturalKey = tuple[tuple[int, int, str], ...]
ClaimOrder = tuple[int, datetime, str, str]

_LAST = datetime.max.replace(tzinfo=UTC)


@lru_cache(maxsize=200_000)
def natural_key(name: str) -> tuple[NaturalKey, str]:
    """A key that sorts ``gpu-2`` before ``gpu-10``; the name itself breaks ties such as ``gpu-02``.

    Numbers are decimal: a name does not say that it has a PCI address in it, and all that matters of ``0000-1f-00``
    before ``0000-09-00`` is that it is so each time.
    """
    parts = tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in _DIGITS.split(name) if part)
    return parts, name


class HasCreationTime(Protocol):
    """What the order of claims reads of an object's metadata."""

    @property
    def creation_timestamp(self) -> str | None: ...


class OrderedClaim(Protocol):
    """What the order of claims reads of a claim, of either dialect."""

    @property
    def key(self) -> tuple[str, str]: ...

    @property
    def priority(self) -> int: ...

    @property
    def metadata(self) -> HasCreationTime: ...


def claim_order(claim: OrderedClaim) -> ClaimOrder:
    """The order of S17: priority (highest first), creation time (a missing one last), namespace, name."""
    created = claim.metadata.creation_timestamp
    return -claim.priority, parse_time(created) if created else _LAST, *claim.key
