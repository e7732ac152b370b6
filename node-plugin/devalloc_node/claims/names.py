"""Devices as they are written."""

from __future__ import annotations

from devalloc_node.grant import Grant, GrantedDevice
from devalloc_node.prepared import PreparedDevice


def device_name(device: GrantedDevice | PreparedDevice) -> str:
    """``pool/device``."""
    return f"{device.pool}/{device.device}"


def identities(grant: Grant) -> list[str]:
    """Which devices it is about, and how they are held."""
    return sorted(
        f"{device_name(device)}{'/' + device.share if device.share else ''}{' (admin)' if device.admin else ''}"
        for device in grant.devices
    )
