"""CDI: how container runtimes learn what a prepared device is inside a container. Pure: no file is written here.

A spec file for each claim, with the claim's UID in its name and in the names of its devices: runtimes load a file again
only when they miss a name, so one that was used must never mean anything else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from devalloc_node.errors import Denied
from devalloc_node.model.grant import ClaimRef
from devalloc_node.model.names import check_ref, is_label, shown
from devalloc_node.model.prepared import PreparedDevice

CLASS = "device"
_NODE = re.compile(r"/dev(/[A-Za-z0-9_][A-Za-z0-9_.:-]*)+")
_NOT_IN_ENV = re.compile(r"[^A-Z0-9_]")


@dataclass(frozen=True, slots=True)
class Rendered:
    """Files to write for a claim, and what the devices are called in them."""

    files: Mapping[str, bytes]
    """Content by full path."""
    ids: Mapping[str, tuple[str, ...]]
    """Full CDI names by the device's key (``Prepared.cdi_ids``)."""


def claim_spec(ref: ClaimRef, devices: Sequence[PreparedDevice], *, driver: str, folder: str) -> Rendered:
    """The spec file of a claim: ``<folder>/<driver>_claim_<uid>.json``, kind ``<driver>/device``.

    Each device brings its nodes and an environment variable: ``DEVALLOC_PCI_<DEVICE>`` (addresses, the main one first)
    or ``DEVALLOC_MDEV_<DEVICE>`` (UUID). Raises Denied ``ClaimNameInvalid`` or ``DeviceNameInvalid``.
    """
    check_ref(ref)
    entries: list[dict[str, Any]] = []
    ids: dict[str, tuple[str, ...]] = {}
    for index, device in enumerate(devices):
        if not is_label(device.device):
            raise Denied(
                "DeviceNameInvalid", f"the device {shown(device.device)} of {ref} has no valid name (a DNS label)"
            )
        # Numbered: one claim may have a device twice, as two shares or as owner and as admin.
        name = f"{ref.uid}-{index}-{device.device}"
        entries.append({"name": name, "containerEdits": _edits(device)})
        ids[device.key] = (*ids.get(device.key, ()), f"{driver}/{CLASS}={name}")
    if not entries:
        return Rendered({}, {})
    path = f"{folder}/{driver}_claim_{ref.uid}.json"
    return Rendered({path: spec(f"{driver}/{CLASS}", entries)}, ids)


def spec(kind: str, devices: Sequence[Mapping[str, Any]]) -> bytes:
    """A CDI spec of the lowest version that knows what is in it."""
    digit_first = any(device["name"][:1].isdigit() for device in devices)
    content = {"cdiVersion": "0.5.0" if digit_first else "0.3.0", "kind": kind, "devices": list(devices)}
    return json.dumps(content).encode() + b"\n"


def _edits(device: PreparedDevice) -> dict[str, Any]:
    suffix = _NOT_IN_ENV.sub("_", device.device.upper())
    if device.mdev_uuid is not None:
        env = f"DEVALLOC_MDEV_{suffix}={device.mdev_uuid}"
    else:
        env = f"DEVALLOC_PCI_{suffix}={','.join(device.functions)}"
    edits: dict[str, Any] = {"env": [env]}
    if nodes := _nodes(device.nodes):
        edits["deviceNodes"] = [{"path": node, "permissions": "rw"} for node in nodes]
    return edits


def _nodes(nodes: Sequence[str]) -> list[str]:
    """The device's nodes, and the one by which VFIO is opened at all."""
    all_nodes: dict[str, None] = {}
    for node in nodes:
        if not _NODE.fullmatch(node):
            raise Denied("DeviceNameInvalid", f"{shown(node)} is not a device node below /dev")
        if node.startswith("/dev/vfio/devices/"):
            all_nodes["/dev/iommu"] = None
        elif node.startswith("/dev/vfio/"):
            all_nodes["/dev/vfio/vfio"] = None
        all_nodes[node] = None
    return list(all_nodes)
