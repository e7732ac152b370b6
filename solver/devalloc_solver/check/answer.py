"""An answer of the solver, read from its JSON form without trusting it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from devalloc.api import meta
from devalloc.api.claim import DeviceClaimStatus
from devalloc.api.json_content import MAPPINGS
from devalloc.api.quantity import Quantity

DetailIndex = tuple[int, int | None]
"""(index into spec.claims, index of the alternative of a oneOf)"""


class MalformedAnswer(ValueError):
    """An answer that is not of the form that settled L2 gives it."""


_NO_AMOUNTS: Mapping[str, int] = {}


@dataclass(slots=True)  # not frozen, nor a tuple: either takes twice as long to make, here and below
class AnsweredDevice:
    """One entry of allocations: a device, and amounts in nano units when it is a share."""

    pool: str
    device: str
    amounts: Mapping[str, int]


@dataclass(slots=True, eq=False)
class Answer:
    """What the solver says of one claim."""

    key: tuple[str, str]
    """namespace and name"""
    allocated: bool
    node: str | None
    grants: list[AnsweredDevice]
    one_of: list[int | None] | None
    annotations: Mapping[str, str]

    def details(self) -> tuple[DetailIndex, ...]:
        """The detail that each grant belongs to, from the annotation (S18). Raises MalformedAnswer."""
        text = self.annotations.get(meta.ALLOCATION_DETAILS)
        if text is None:
            raise MalformedAnswer(f"the annotation {meta.ALLOCATION_DETAILS} is missing (S18)")
        indexes = _detail_indexes(text)
        if len(indexes) != len(self.grants):
            raise MalformedAnswer(
                f"the annotation {meta.ALLOCATION_DETAILS} does not have one index per allocation (S18)"
            )
        return indexes


def read_answer(content: object) -> Answer:
    """Read one element of ``claims``. Raises MalformedAnswer with a sentence."""
    if not isinstance(content, MAPPINGS):
        raise MalformedAnswer(f"an answer is a map, not {type(content).__name__}")
    namespace, name, node = content.get("namespace"), content.get("name"), content.get("node")
    if not isinstance(namespace, str) or not isinstance(name, str):
        raise MalformedAnswer("an answer has no namespace and name")
    allocated = content.get("allocated")
    if not isinstance(allocated, bool):
        raise MalformedAnswer(f"{namespace}/{name}: allocated is neither true nor false")
    if node is not None and (not isinstance(node, str) or not node):
        raise MalformedAnswer(f"{namespace}/{name}: node is neither a name nor null")
    grants = content.get("allocations")
    if not isinstance(grants, list):
        raise MalformedAnswer(f"{namespace}/{name}: allocations is not a list")
    annotations = content.get("annotations") or {}
    if not isinstance(annotations, MAPPINGS):
        raise MalformedAnswer(f"{namespace}/{name}: annotations is not a map of strings")
    for value in annotations.values():
        if not isinstance(value, str):
            raise MalformedAnswer(f"{namespace}/{name}: annotations is not a map of strings")
    where = f"{namespace}/{name}"
    read = [_grant(grant, where, index) for index, grant in enumerate(grants)]
    return Answer((namespace, name), allocated, node, read, _read_one_of(content.get("oneOf"), where), {**annotations})


def recorded_grants(status: DeviceClaimStatus | None) -> list[AnsweredDevice]:
    """The grants that a status records (S18)."""
    grants = []
    for entry in status.allocations if status is not None else []:
        amounts: dict[str, int] = {}
        for amount in entry.allocations:
            amounts[amount.name] = amounts.get(amount.name, 0) + amount.allocation.nano
        grants.append(AnsweredDevice(entry.device_pool_name, entry.device_name, amounts))
    return grants


def _grant(content: object, of: str, index: int) -> AnsweredDevice:
    if not isinstance(content, MAPPINGS):
        raise MalformedAnswer(f"{of}: allocations[{index}] is not a map")
    pool, device, listed = content.get("devicePoolName"), content.get("deviceName"), content.get("allocations")
    if not isinstance(pool, str) or not isinstance(device, str):
        raise MalformedAnswer(f"{of}: allocations[{index}] does not name a pool and a device (S18)")
    return AnsweredDevice(pool, device, _NO_AMOUNTS if listed is None else _amounts(listed, of, index))


def _amounts(listed: object, of: str, index: int) -> dict[str, int]:
    where = f"{of}: allocations[{index}]"
    if not isinstance(listed, list):
        raise MalformedAnswer(f"{where}.allocations is not a list")
    amounts: dict[str, int] = {}
    for amount in listed:
        name = amount.get("name") if isinstance(amount, Mapping) else None
        if not isinstance(name, str):
            raise MalformedAnswer(f"{where} has an amount without a name")
        if name in amounts:
            raise MalformedAnswer(f"{where} has two amounts of {name}")
        try:
            amounts[name] = Quantity.parse(amount.get("allocation")).nano
        except ValueError as error:
            raise MalformedAnswer(f"{where}: the amount of {name} {error}") from None
    return amounts


def _read_one_of(content: object, where: str) -> list[int | None] | None:
    if content is None:
        return None
    # Not isinstance: True would pass for the index 1.
    if not isinstance(content, list):
        raise MalformedAnswer(f"{where}: oneOf is not a list of indexes and nulls (S16)")
    for index in content:
        if index is not None and type(index) is not int:
            raise MalformedAnswer(f"{where}: oneOf is not a list of indexes and nulls (S16)")
    return [*content]


@lru_cache(maxsize=4096)
def _detail_indexes(text: str) -> tuple[DetailIndex, ...]:
    try:
        indexes = json.loads(text)
    except (ValueError, RecursionError):
        raise MalformedAnswer(f"the annotation {meta.ALLOCATION_DETAILS} is not JSON (S18)") from None
    if not isinstance(indexes, list):
        raise MalformedAnswer(f"the annotation {meta.ALLOCATION_DETAILS} does not have one index per allocation (S18)")
    return tuple(_detail_index(index) for index in indexes)


def _detail_index(text: object) -> DetailIndex:
    match = re.fullmatch(r"(\d{1,6})(?:\.(\d{1,6}))?", text, re.ASCII) if isinstance(text, str) else None
    if match is None:
        raise MalformedAnswer(f"the annotation {meta.ALLOCATION_DETAILS} has the index {text!r} (S18)")
    return int(match[1]), None if match[2] is None else int(match[2])
