"""Names of claims and devices: checked, and as they are written."""

from __future__ import annotations

import re

from devalloc_node.errors import Denied
from devalloc_node.grant import ClaimRef, Grant, GrantedDevice
from devalloc_node.prepared import PreparedDevice

_UID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def check_ref(ref: ClaimRef) -> None:
    """The names are for people only, but they end up in messages and, for some kinds of claims, in paths.

    Raises Denied (``ClaimInvalid``).
    """
    if _UID.fullmatch(ref.uid) is None:
        raise Denied(
            "ClaimInvalid", f"a claim's uid is 1 to 128 letters, digits or any of ._:- but not {ref.uid!r:.60}"
        )
    for what, name in (("namespace", ref.namespace), ("name", ref.name)):
        if not name or len(name) > 253 or name in (".", "..") or not name.isprintable() or set(name) & set("/%\\ "):
            raise Denied("ClaimInvalid", f"a claim's {what} is 1 to 253 characters without slashes, not {name!r:.60}")


def device_name(device: GrantedDevice | PreparedDevice) -> str:
    """``pool/device``."""
    return f"{device.pool}/{device.device}"


def identities(grant: Grant) -> list[str]:
    """Which devices it is about, and how they are held."""
    return sorted(
        f"{device_name(device)}{'/' + device.share if device.share else ''}{' (admin)' if device.admin else ''}"
        for device in grant.devices
    )
