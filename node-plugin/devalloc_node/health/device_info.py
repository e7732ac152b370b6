"""What the claims of both dialects say about a prepared device: ``deviceInfo`` of DeviceClaims, and ``data`` and
``networkData`` of ResourceClaims."""

from __future__ import annotations

import re
from typing import Any

from devalloc_node.binding.vfio_handover import MAC, MDEV_TYPE, VGPU_TYPE, VLAN
from devalloc_node.model.step import MACHINE_ADDRESS, PreparedDevice

_GROUP_NODE = re.compile(r"/dev/vfio/(\d+)")
_NAMED = (VLAN, MDEV_TYPE, VGPU_TYPE, MACHINE_ADDRESS)
"""Attributes that have a member of their own."""


def device_data(device: PreparedDevice) -> dict[str, Any]:
    """What the device is on its host: how it is bound, its functions, its IOMMU group and nodes, its type."""
    data: dict[str, Any] = {"binding": device.binding}
    if device.functions:
        data["functions"] = list(device.functions)
    if device.nodes:
        data["nodes"] = list(device.nodes)
    groups = [int(match[1]) for match in map(_GROUP_NODE.fullmatch, device.nodes) if match is not None]
    if groups:
        data["iommuGroups"] = groups
    if device.mdev_uuid is not None:
        data["mdevUUID"] = device.mdev_uuid
    data |= {name: device.attributes[name] for name in _NAMED if name in device.attributes}
    others = {name: value for name, value in sorted(device.attributes.items()) if name not in (MAC, *_NAMED)}
    return data | ({"attributes": others} if others else {})


def network_data(device: PreparedDevice) -> dict[str, str]:
    """Its hardware address, if it has one. The plugin does not know the IP addresses of network cards: guests choose
    them, or their networks."""
    mac = device.attributes.get(MAC)
    return {"hardwareAddress": mac} if isinstance(mac, str) else {}


def device_info(device: PreparedDevice) -> dict[str, Any]:
    """Both as one object, with the share if it is one; empty for admin access, to which nothing is bound."""
    if device.admin:
        return {}
    share = {} if device.share is None else {"share": device.share}
    return {**share, **device_data(device), **network_data(device)}
