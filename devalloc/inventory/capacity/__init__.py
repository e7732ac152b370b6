"""What a host has for machines, what of it is promised, and whether more can be."""

from devalloc.inventory.capacity.config import (
    RESOURCES,
    AmountError,
    Capacity,
    CapacityConfig,
    Resource,
    UnknownResource,
    parse_bandwidth,
    parse_ratio,
    parse_size,
)
from devalloc.inventory.capacity.cpus import NumaNode
from devalloc.inventory.capacity.host import (
    CapacityError,
    HostCapacity,
    discover_capacity,
    host_pool,
    host_pool_name,
    read_capacity,
)

__all__ = [
    "RESOURCES",
    "AmountError",
    "Capacity",
    "CapacityConfig",
    "CapacityError",
    "HostCapacity",
    "NumaNode",
    "Resource",
    "UnknownResource",
    "discover_capacity",
    "host_pool",
    "host_pool_name",
    "parse_bandwidth",
    "parse_ratio",
    "parse_size",
    "read_capacity",
]
