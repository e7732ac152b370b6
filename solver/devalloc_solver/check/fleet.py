"""The devices that exist, and which node reaches them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from devalloc.api import meta
from devalloc.api.pool import AttributeValue, Device, DevicePool, ResourceCapacity
from devalloc.api.quantity import ceil_blocks, floor_blocks

PoolKey = tuple[str, str]
"""(node, pool name); the node is "" for a pool that every node reaches."""


@dataclass(frozen=True, eq=False)
class PooledDevice:
    """A device with the pool that it is in."""

    pool: DevicePool
    device: Device

    @cached_property
    def pool_key(self) -> PoolKey:
        return pool_key(self.pool)

    @cached_property
    def key(self) -> tuple[str, str, str]:
        """(node, pool name, device name): unique among the devices that exist."""
        return (*self.pool_key, self.device.name)

    @cached_property
    def node(self) -> str | None:
        return self.pool.spec.node_name

    def __str__(self) -> str:
        return "/".join(part for part in self.key if part)

    @cached_property
    def attributes(self) -> Mapping[str, AttributeValue]:
        """The effective attributes: the pool's, overridden by the device's own (S3)."""
        listed = [*self.pool.spec.attributes, *self.device.attributes]
        return {attribute.name: attribute.value for attribute in listed}

    @cached_property
    def compatibility_group(self) -> str | None:
        """The value of the attribute; only a text is one (S12a)."""
        value = self.attributes.get(meta.COMPATIBILITY_GROUP)
        return value if isinstance(value, str) else None

    @cached_property
    def refusals(self) -> dict[tuple[object, ...], str | None]:
        """What is known of requests that the device was held against; see ``Catalogue.refusal``."""
        return {}

    @cached_property
    def resources(self) -> Mapping[str, ResourceCapacity]:
        return {resource.name: resource for resource in self.device.resources}

    def usable(self, resource: str) -> int:
        """Capacity in nano units, rounded down to whole blocks (S11); 0 of what the device does not have."""
        found = self.resources.get(resource)
        return 0 if found is None else floor_blocks(found.capacity, found.block) * found.block.nano

    @property
    def undefined_resources(self) -> list[str]:
        """What it requests although its pool does not define it: it can never be allocated (S12)."""
        defined = {resource.name for resource in self.pool.spec.resources}
        return sorted(self.device.requests.keys() - defined)

    def drawn_blocks(self, resource: ResourceCapacity) -> int:
        """Blocks of a resource of the pool that the device consumes when it is allocated (S12)."""
        request = self.device.requests.get(resource.name)
        return 0 if request is None else ceil_blocks(request, resource.block)


class Fleet:
    """All pools that exist: of those that one node reaches and that share a name, none does (S2)."""

    def __init__(self, pools: Iterable[DevicePool]) -> None:
        self._pools: dict[PoolKey, DevicePool] = {}
        self._by_name: dict[str, list[PoolKey]] = {}
        self._on_nodes: Counter[str] = Counter()
        self._devices: dict[PoolKey, dict[str, PooledDevice]] = {}
        self._nodes_of: dict[str, list[str]] = {}
        by_name: dict[str, list[DevicePool]] = defaultdict(list)
        for pool in pools:
            by_name[pool.metadata.name].append(pool)
        for name, same in by_name.items():
            self.set_pools(name, same)

    def set_pools(self, name: str, pools: Sequence[DevicePool]) -> None:
        """These are all pools of that name."""
        for key in self._by_name.pop(name, ()):
            del self._pools[key]
            self._devices.pop(key, None)
        self._on_nodes.subtract(self._nodes_of.pop(name, ()))
        keys = Counter(map(pool_key, pools))
        for pool in pools:
            rivals = len(pools) if pool.spec.node_name is None else keys[pool_key(pool)] + keys["", name]
            if rivals == 1:
                self._pools[pool_key(pool)] = pool
                self._by_name.setdefault(name, []).append(pool_key(pool))
        if pools:
            self._nodes_of[name] = [pool.spec.node_name for pool in pools if pool.spec.node_name is not None]
            self._on_nodes.update(self._nodes_of[name])

    @property
    def nodes(self) -> set[str]:
        """The nodes that any pool names, valid or not."""
        return {node for node, count in self._on_nodes.items() if count}

    def find(self, node: str | None, pool_name: str, device_name: str) -> PooledDevice | None:
        """The device of that name which the node reaches; None as node reaches the network only (S7)."""
        key = (node or "", pool_name)
        devices = self._devices.get(key)
        if devices is not None:
            return devices.get(device_name)
        for reached in (key, ("", pool_name)):
            if reached in self._pools:
                return self._devices_of(reached).get(device_name)
        return None

    def find_held(self, node: str | None, pool_name: str, device_name: str) -> list[PooledDevice]:
        """The device that an entry of a status means (S2); nothing when it is lost.

        Without a node the pool's name has to be unique. Where it is not, every device that may be meant counts: to hold
        too much is safe, to give a device twice is not (S13).
        """
        if node is not None:
            found = [self.find(node, pool_name, device_name)]
        else:
            found = [self._devices_of(key).get(device_name) for key in self._by_name.get(pool_name, ())]
        return [pooled for pooled in found if pooled is not None]

    def reached(self, node: str | None) -> Iterator[PooledDevice]:
        """Every device that the node reaches (S7)."""
        for key in self._pools:
            if key[0] in ("", node):
                yield from self._devices_of(key).values()

    def _devices_of(self, key: PoolKey) -> dict[str, PooledDevice]:
        if key not in self._devices:
            pool = self._pools[key]
            self._devices[key] = {device.name: PooledDevice(pool, device) for device in pool.spec.devices}
        return self._devices[key]


def pool_key(pool: DevicePool) -> PoolKey:
    return pool.spec.node_name or "", pool.metadata.name
