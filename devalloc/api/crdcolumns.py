"""What `kubectl get` shows of our kinds besides the name, and the fields it can select by.

A column is one value: of a list the API server shows the first entry, or all of it as JSON. So what claims hold, or why
they hold nothing, is shown from annotations that the allocator writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from devalloc.api import meta


@dataclass(frozen=True, slots=True)
class Column:
    """``path`` is a JSON path; a column that is ``wide`` is shown with ``-o wide`` only."""

    heading: str
    path: str
    type: str = "string"
    wide: bool = False

    def definition(self) -> dict[str, Any]:
        """As it stands in a CRD."""
        shown: dict[str, Any] = {"name": self.heading, "type": self.type, "jsonPath": self.path}
        return shown | ({"priority": 1} if self.wide else {})


def _annotation(name: str) -> str:
    """The path of an annotation; dots in its name are part of the name."""
    return ".metadata.annotations." + name.replace(".", r"\.")


_AGE = Column("Age", ".metadata.creationTimestamp", "date")
COLUMNS: dict[str, tuple[Column, ...]] = {
    "DevicePool": (
        Column("Node", ".spec.nodeName"),
        Column("Driver", ".spec.driver"),
        Column("Available", ".status.availableDevices", "integer"),
        _AGE,
        Column("Node cordoned", _annotation(meta.CORDONED_NODE), wide=True),
        Column("Cordoned", _annotation(meta.CORDONED), wide=True),
    ),
    "DeviceClass": (
        Column("Driver", ".spec.driver"),
        Column("Type", ".spec.deviceType"),
        Column("Admin", ".spec.adminAccess", "boolean"),
        _AGE,
        Column("Constraints", ".spec.constraints", wide=True),
    ),
    "DeviceClaim": (
        Column("Class", ".spec.claims[0].deviceClass"),
        Column("Node", _annotation(meta.ALLOCATED_NODE)),
        Column("Devices", _annotation(meta.ALLOCATED_DEVICES)),
        Column("Reason", _annotation(meta.REASON)),
        _AGE,
        Column("Group", _annotation(meta.GROUP), wide=True),
        Column("Priority", _annotation(meta.PRIORITY), wide=True),
        Column("Pinned to", _annotation(meta.NODE), wide=True),
        Column("Prepared on", _annotation(meta.PREPARED_ON), wide=True),
        Column("Message", _annotation(meta.MESSAGE), wide=True),
    ),
    "VirtualMachine": (
        Column("Node", ".status.nodeName"),
        Column("Phase", ".status.phase"),
        Column("CPUs", ".status.observed.cpus"),
        Column("Memory", ".status.observed.memory"),
        Column("Reason", ".status.reason"),
        _AGE,
        Column("Pinned to", ".spec.nodeName", wide=True),
        Column("Claims", ".spec.claims", wide=True),
        Column("Message", ".status.message", wide=True),
    ),
    "VfioConfig": (_AGE,),
    "VfConfig": (
        Column("MAC", ".spec.mac"),
        Column("VLAN", ".spec.vlan", "integer"),
        Column("Max Mbit/s", ".spec.maxTxRate", "integer"),
        _AGE,
    ),
    "VgpuConfig": (Column("Profile", ".spec.profile"), _AGE),
}
"""By kind."""

SELECTABLE: dict[str, tuple[str, ...]] = {
    "DevicePool": (".spec.nodeName", ".spec.driver"),
    "DeviceClass": (".spec.driver", ".spec.deviceType"),
    "VirtualMachine": (".spec.nodeName", ".status.nodeName", ".status.phase"),
}
"""For ``kubectl get --field-selector``. Fields in lists and annotations cannot be selected by, so claims have none."""
