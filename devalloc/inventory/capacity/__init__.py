"""What a host has for machines, what of it is promised, and whether more can be.

Names load when they are used: the help of a verb needs the settings, not the models of pools.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in map(import_module, (f"{__name__}.{each}" for each in ("config", "cpus", "host"))):
            if name in vars(module):
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
