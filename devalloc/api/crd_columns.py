"""The columns that `kubectl get` shows for our kinds besides the name, and the fields for field selectors.

A column is one value: of a list the API server shows the first entry, or all of it as JSON. So the columns with the
devices of claims, or why they have none, come from annotations that the allocator writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from devalloc.api import meta


@dataclass(frozen=True, slots=True)
class CrdColumn:
    """``path`` is a JSON path; a ``wide`` column appears only with ``-o wide``."""

    heading: str
    path: str
    type: str = "string"
    wide: bool = False

    def definition(self) -> dict[str, Any]:
        """The column's definition in a CRD."""
        shown: dict[str, Any] = {"name": self.heading, "type": self.type, "jsonPath": self.path}
        return shown | ({"priority": 1} if self.wide else {})


def _annotation(name: str) -> str:
    """The path of an annotation; dots in its name are part of the name."""
    return ".metadata.annotations." + name.replace(".", r"\.")


_AGE = CrdColumn("Age", ".metadata.creationTimestamp", "date")
COLUMNS: dict[str, tuple[CrdColumn, ...]] = {
    "DevicePool": (
        CrdColumn("Node", ".spec.nodeName"),
        CrdColumn("Driver", ".spec.driver"),
        CrdColumn("Available", ".status.availableDevices", "integer"),
        _AGE,
        CrdColumn("Node cordoned", _annotation(meta.CORDONED_NODE), wide=True),
        CrdColumn("Cordoned", _annotation(meta.CORDONED), wide=True),
    ),
    "DeviceClass": (
        CrdColumn("Driver", ".spec.driver"),
        CrdColumn("Type", ".spec.deviceType"),
        CrdColumn("Admin", ".spec.adminAccess", "boolean"),
        _AGE,
        CrdColumn("Constraints", ".spec.constraints", wide=True),
    ),
    "DeviceClaim": (
        CrdColumn("Class", ".spec.claims[0].deviceClass"),
        CrdColumn("Node", _annotation(meta.ALLOCATED_NODE)),
        CrdColumn("Devices", _annotation(meta.ALLOCATED_DEVICES)),
        CrdColumn("Reason", _annotation(meta.REASON)),
        _AGE,
        CrdColumn("Group", _annotation(meta.GROUP), wide=True),
        CrdColumn("Priority", _annotation(meta.PRIORITY), wide=True),
        CrdColumn("Pinned to", _annotation(meta.NODE), wide=True),
        CrdColumn("Prepared on", _annotation(meta.PREPARED_ON), wide=True),
        CrdColumn("Message", _annotation(meta.MESSAGE), wide=True),
    ),
    "VirtualMachine": (
        CrdColumn("Node", ".status.nodeName"),
        CrdColumn("Phase", ".status.phase"),
        CrdColumn("CPUs", ".status.observed.cpus"),
        CrdColumn("Memory", ".status.observed.memory"),
        CrdColumn("Reason", ".status.reason"),
        _AGE,
        CrdColumn("Pinned to", ".spec.nodeName", wide=True),
        CrdColumn("Claims", ".spec.claims", wide=True),
        CrdColumn("Message", ".status.message", wide=True),
    ),
    "VfioConfig": (_AGE,),
    "VfConfig": (
        CrdColumn("MAC", ".spec.mac"),
        CrdColumn("VLAN", ".spec.vlan", "integer"),
        CrdColumn("Max Mbit/s", ".spec.maxTxRate", "integer"),
        _AGE,
    ),
    "VgpuConfig": (CrdColumn("Profile", ".spec.profile"), _AGE),
}
"""By kind."""

SELECTABLE: dict[str, tuple[str, ...]] = {
    "DevicePool": (".spec.nodeName", ".spec.driver"),
    "DeviceClass": (".spec.driver", ".spec.deviceType"),
    "VirtualMachine": (".spec.nodeName", ".status.nodeName", ".status.phase"),
}
"""For ``kubectl get --field-selector``. It cannot select by fields in lists or annotations, so claims have none."""
