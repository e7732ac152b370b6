"""What an invalid claim holds all the same: giving its devices away would be worse than its error (S13)."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError

from devalloc.api.claim import DeviceAllocation, DeviceClaimStatus
from devalloc.api.content import ContentError, unfit

_DEVICE = ("devicePoolName", "deviceName")
_REST = DeviceClaimStatus.model_fields.keys() - {"allocations"}
"""Lists, all of them."""


def salvaged_status(content: object) -> DeviceClaimStatus | None:
    """The devices that the status of a claim names, whatever else is wrong with it; None when it names none.

    Each entry is read by itself. One with amounts that cannot be read holds the whole device: whatever it was meant to
    hold is within that. An entry that names no device holds nothing that could be told.
    """
    listed = content.get("allocations") if isinstance(content, Mapping) else None
    entries = [_entry(entry) for entry in listed] if isinstance(listed, list) else []
    held = [entry for entry in entries if entry is not None]
    if not held:
        return None
    # Each member is told: pydantic asks what a default is made by for its signature, which costs a tenth of a prepare.
    rest: dict[str, list[object]] = {name: [] for name in _REST}
    return DeviceClaimStatus.model_construct({"allocations"}, allocations=held, **rest)


def _entry(content: object) -> DeviceAllocation | None:
    if not isinstance(content, Mapping):
        return None
    device = {name: content.get(name) for name in _DEVICE}
    amounts = content.get("allocations")
    whole = _read(device)
    return whole if whole is None or not amounts else _read({**device, "allocations": amounts}) or whole


def _read(content: dict[str, object]) -> DeviceAllocation | None:
    try:
        return None if unfit(content) else DeviceAllocation.model_validate(content, by_alias=True, by_name=False)
    except (ContentError, ValidationError):
        return None
