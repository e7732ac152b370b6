"""What a host has for machines, what of it is promised, and whether more can be."""

from devalloc.inventory.capacity.config import (
    RESOURCES,
    Capacity,
    CapacityConfig,
    Resource,
    UnknownResource,
    parse_ratio,
)
from devalloc.inventory.capacity.cpus import NumaNode
from devalloc.inventory.capacity.host import CapacityError, HostCapacity, discover_capacity
from devalloc.inventory.capacity.pool import host_pool, host_pool_name
from devalloc.inventory.capacity.sizes import AmountError, parse_bandwidth, parse_size

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
]
