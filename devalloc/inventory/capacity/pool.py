"""What a host has for machines as a DevicePool, so that the solver places machines as it places claims.

A device for each NUMA node has its part of the CPUs and of the memory; machines take shares of them. Where a machine
does not mind, its share may lie on several. What belongs to no NUMA node is one more device. The amounts are the
effective limits: oversubscription is in them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from devalloc.api.host_pool_names import (
    CLASS,
    CPU,
    DISK,
    DISK_IO,
    DRIVER,
    FUNCTION_COMPUTE,
    FUNCTION_IO,
    KIND,
    MEMORY,
    NETWORK,
    SUFFIX,
)
from devalloc.api.meta import ONLY_CLASS, ObjectMeta
from devalloc.api.pool import Attribute, Device, DevicePool, DevicePoolSpec, ResourceCapacity
from devalloc.api.quantity import NANO, Format, Quantity
from devalloc.inventory.capacity.host import HostCapacity
from devalloc.inventory.pools import node_scoped_name

_MILLI = NANO // 1000
_MEMORY_BLOCK = 2 << 20
"""Bytes in which machines have memory."""


def host_pool_name(node_name: str) -> str:
    """``<node>-host``."""
    return node_scoped_name(node_name, SUFFIX)


def host_pool(capacity: HostCapacity, node_name: str) -> DevicePool:
    """The pool of a node with this capacity."""
    common = [Attribute.of("kind", KIND), Attribute.of(ONLY_CLASS, CLASS)]
    devices = [*_compute(capacity), _io(capacity)]
    return DevicePool(
        metadata=ObjectMeta(name=host_pool_name(node_name)),
        spec=DevicePoolSpec(node_name=node_name, driver=DRIVER, attributes=common, devices=devices),
    )


def _compute(capacity: HostCapacity) -> Iterator[Device]:
    nodes = [node for node in capacity.nodes if node.cpus or node.memory]
    cpus, memories = [len(node.cpus) for node in nodes], [node.memory for node in nodes]
    limits = capacity.cpu.effective_limit, capacity.memory.effective_limit
    function = Attribute.of("function", FUNCTION_COMPUTE)
    if not sum(cpus) or not sum(memories):  # a host that tells of no NUMA nodes, or not what they have
        yield Device(name=FUNCTION_COMPUTE, attributes=[function], resources=_amounts(*limits))
        return
    for node, cpu, memory in zip(
        nodes, _split_by_weight(limits[0], cpus), _split_by_weight(limits[1], memories), strict=True
    ):
        attributes = [function, Attribute.of("numa", node.id)]
        yield Device(name=f"numa{node.id}", attributes=attributes, resources=_amounts(cpu, memory))


def _io(capacity: HostCapacity) -> Device:
    amounts = {NETWORK: capacity.network, DISK_IO: capacity.disk_io, DISK: capacity.disk}
    resources = [
        ResourceCapacity(name=name, capacity=Quantity(limit.effective_limit * NANO)) for name, limit in amounts.items()
    ]
    return Device(name=FUNCTION_IO, attributes=[Attribute.of("function", FUNCTION_IO)], resources=resources)


def _amounts(cpu: int, memory: int) -> list[ResourceCapacity]:
    """Thousandths of a CPU, and bytes."""
    return [
        ResourceCapacity(name=CPU, capacity=Quantity(cpu * _MILLI), block_size=Quantity(_MILLI)),
        ResourceCapacity(
            name=MEMORY,
            capacity=Quantity(memory * NANO, Format.BINARY_SI),
            block_size=Quantity(_MEMORY_BLOCK * NANO, Format.BINARY_SI),
        ),
    ]


def _split_by_weight(limit: int, weights: Sequence[int]) -> Iterator[int]:
    """The limit by weights; the parts sum up to it."""
    total, before, given = sum(weights), 0, 0
    for weight in weights:
        before += weight
        upto = limit * before // total
        yield upto - given
        given = upto
