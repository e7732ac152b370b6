"""The pool of a node's capacity for machines: CPUs, memory, bandwidth and disk. Names that all users of it share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from devalloc.api.meta import DEVMGMT

DRIVER: Final = "host.devalloc.io"
"""Driver of such pools."""
CLASS: Final = "host.devalloc.io"
"""The only class whose claims may have its devices. It exists only if an admin creates it; machines name none."""
SUFFIX: Final = "host"
"""Suffix of the pool's name, after the node's name."""

CPU: Final = "cpu"
"""CPUs."""
MEMORY: Final = "memory"
"""Bytes of ordinary pages."""
HUGE_PAGES: Final[Mapping[str, str]] = {"2Mi": "hugepages-2Mi", "1Gi": "hugepages-1Gi"}
"""Bytes in huge pages, by the size of a page. They are what Kubernetes calls these resources of a node."""
MEMORY_RESOURCES: Final = (MEMORY, *HUGE_PAGES.values())
"""The resources that a machine's memory can come from. Each machine has one of them."""
NETWORK: Final = "network"
"""Bytes per second."""
DISK: Final = "disk"
"""Bytes."""
DISK_IO: Final = "diskIO"
"""Bytes per second."""
COMPUTE: Final = (CPU, *MEMORY_RESOURCES)
"""Resources that belong to NUMA nodes; the others belong to the node as a whole."""

KIND: Final = "host"
"""Attribute ``kind`` of its devices."""
FUNCTION_COMPUTE: Final = "compute"
"""Attribute ``function`` of the devices with CPUs and memory."""
FUNCTION_IO: Final = "io"
"""Attribute ``function`` of the device with bandwidth and disk."""

SHARED_STORAGE: Final = "sharedStorage"
"""Attribute of its devices: folders whose files are the same on all nodes that name them, as the admin says; joined by
``SHARED_STORAGE_SEPARATOR``. Absent without any."""
SHARED_STORAGE_SEPARATOR: Final = ":"
LIVE_MIGRATION: Final = "liveMigration"
"""Attribute of its devices: ``LIVE_MIGRATION_ON`` if the node receives machines that move to it while they run.
Absent otherwise."""
LIVE_MIGRATION_ON: Final = "true"
FOR_OTHERS: Final[Mapping[str, str]] = {CPU: "cpuForOthers", MEMORY: "memoryForOthers"}
"""Attributes of its devices, by resource: how much of it placement leaves to machines of others. It is not in the
device's capacity, and permits may give it. Absent for nothing."""


def node_of_host_pool(pool: Mapping[str, Any]) -> str | None:
    """The node whose host pool a manifest is; None for any other."""
    spec = pool.get("spec")
    if pool.get("kind") != "DevicePool" or pool.get("apiVersion") != DEVMGMT or not isinstance(spec, Mapping):
        return None
    node = spec.get("nodeName")
    return node if spec.get("driver") == DRIVER and isinstance(node, str) and node else None
