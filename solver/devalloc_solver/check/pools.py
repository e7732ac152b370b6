"""The devices that exist, and which node reaches them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from devalloc.api import meta
from devalloc.api.device_records import DeviceRecord
from devalloc.api.pool import Attribute, AttributeValue, Device, DevicePool, ResourceCapacity
from devalloc.api.quantity import ceil_blocks, floor_blocks

PoolKey = tuple[str, str]
"""(node, pool name); the node is "" for a pool that every node reaches."""

FUNCTION, WHOLE_FUNCTIONS, PART_FUNCTIONS = "function", ("whole", "pf"), ("vf", "mdev")
"""The attribute that tells whole devices from parts, and its values."""
PROFILE = "profile"
"""An attribute that only partitions have."""
INDEX_ABOVE = 32
"""Devices of a pool among which one is soon found without an index of their names."""


class CheckedDevice:
    """A device with the pool that it is in. Two are equal only when they are the same."""

    __slots__ = (
        "_resources",
        "accepted_by",
        "attributes",
        "compatibility_group",
        "device",
        "draws",
        "is_part",
        "is_published",
        "node",
        "pool",
        "pool_key",
        "record",
        "undefined_resources",
    )

    def __init__(self, pool: DevicePool, device: Device, *, is_published: bool = True) -> None:
        self.pool = pool
        self.device = device
        self.is_published = is_published
        """False for one that a claim has, and the pool does not"""
        self.node = pool.spec.node_name
        self.pool_key = pool_key(pool)
        self.attributes: Mapping[str, AttributeValue] = {
            attribute.name: attribute.value for listed in (pool.spec, device) for attribute in listed.attributes
        }
        """the effective ones: the pool's, overridden by the device's own (S3)"""
        function = self.attributes.get(FUNCTION)
        self.is_part = function in PART_FUNCTIONS or (function is None and PROFILE in self.attributes)
        """whether it is a part of a card (S6b)"""
        group = self.attributes.get(meta.COMPATIBILITY_GROUP)
        self.compatibility_group = group if isinstance(group, str) else None
        """the value of the attribute; only a text is one (S12a)"""
        self.record: DeviceRecord | None = None
        """what is right to record of it (``check.device_records``), once that was asked for"""
        self.accepted_by = 0
        """the number of the last rule that did (``DetailRule``)"""
        self.draws: Sequence[tuple[str, int, int]] = ()
        """(resource of the pool, blocks of it that the device consumes when it is allocated, all there are) (S12)"""
        self.undefined_resources: Sequence[str] = ()
        """what it requests although its pool does not define it: it can never be allocated (S12)"""
        if device.requests:
            defined = pool.spec.resources
            self.draws = [
                (resource.name, blocks, floor_blocks(resource.capacity, resource.block))
                for resource in defined
                if (blocks := self.drawn_blocks(resource))
            ]
            self.undefined_resources = sorted(device.requests.keys() - {resource.name for resource in defined})
        self._resources: Mapping[str, ResourceCapacity] | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """(node, pool name, device name): unique among the devices that exist."""
        return (*self.pool_key, self.device.name)

    def __str__(self) -> str:
        return "/".join(part for part in self.key if part)

    @property
    def resources(self) -> Mapping[str, ResourceCapacity]:
        if self._resources is None:
            self._resources = {resource.name: resource for resource in self.device.resources}
        return self._resources

    def usable(self, resource: str) -> int:
        """Capacity in nano units, rounded down to whole blocks (S11); 0 of what the device does not have."""
        amount = self.resources.get(resource)
        return 0 if amount is None else floor_blocks(amount.capacity, amount.block) * amount.block.nano

    def drawn_blocks(self, resource: ResourceCapacity) -> int:
        """Blocks of a resource of the pool that the device consumes when it is allocated (S12)."""
        request = self.device.requests.get(resource.name)
        return 0 if request is None else ceil_blocks(request, resource.block)


class KnownPools:
    """All pools that exist: of those that one node reaches and that share a name, none does (S2)."""

    def __init__(self, pools: Iterable[DevicePool]) -> None:
        self._pools: dict[PoolKey, DevicePool] = {}
        self._by_name: dict[str, list[PoolKey]] = {}
        self._on_nodes: Counter[str] = Counter()
        self._devices: dict[PoolKey, dict[str, CheckedDevice]] = {}
        """those that were asked for"""
        self._missing: dict[PoolKey, dict[str, CheckedDevice]] = {}
        """of those that were asked for, the ones that pools do not have"""
        self._listed: dict[PoolKey, dict[str, Device]] = {}
        """of large pools"""
        self._nodes_of: dict[str, list[str]] = {}
        self._wholes: dict[str, dict[PoolKey, list[CheckedDevice]]] | None = None
        """driver -> pool -> the devices that are offered whole (S6b), once they were asked for"""
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
            self._missing.pop(key, None)
            self._listed.pop(key, None)
            for of_driver in (self._wholes or {}).values():
                of_driver.pop(key, None)
        for node in self._nodes_of.pop(name, ()):
            self._on_nodes[node] -= 1
            if not self._on_nodes[node]:
                del self._on_nodes[node]
        keys = Counter(map(pool_key, pools))
        for pool in pools:
            rivals = len(pools) if pool.spec.node_name is None else keys[pool_key(pool)] + keys["", name]
            if rivals == 1:
                self._pools[pool_key(pool)] = pool
                self._by_name.setdefault(name, []).append(pool_key(pool))
                if self._wholes is not None:
                    self._note_wholes(pool, self._wholes)
        if pools:
            self._nodes_of[name] = [pool.spec.node_name for pool in pools if pool.spec.node_name is not None]
            self._on_nodes.update(self._nodes_of[name])

    def whole_devices(self, driver: str, pin: str | None) -> Iterator[CheckedDevice]:
        """The devices of a driver that are offered whole to claims that are bound to node ``pin``, or to none."""
        if self._wholes is None:
            self._wholes = {}
            for pool in self._pools.values():
                self._note_wholes(pool, self._wholes)
        for key, wholes in self._wholes.get(driver, {}).items():
            if pin is None or key[0] in ("", pin):
                yield from wholes

    def _note_wholes(self, pool: DevicePool, wholes: dict[str, dict[PoolKey, list[CheckedDevice]]]) -> None:
        common = _function_in(pool.spec.attributes, None)
        offered = [
            checked
            for device in pool.spec.devices
            if _function_in(device.attributes, common) in WHOLE_FUNCTIONS
            and (checked := self._find(pool_key(pool), device.name)) is not None
            and meta.UNAVAILABLE not in checked.attributes
            and not checked.undefined_resources
        ]
        if offered:
            wholes.setdefault(pool.spec.driver, {})[pool_key(pool)] = offered

    @property
    def nodes(self) -> set[str]:
        """The nodes that any pool names, valid or not."""
        return {*self._on_nodes}

    def find(self, node: str | None, pool_name: str, device_name: str) -> CheckedDevice | None:
        """The device of that name which the node reaches; None as node reaches the network only (S7)."""
        key = (node or "", pool_name)
        cached = self._devices.get(key)
        if cached is not None and device_name in cached:
            return cached[device_name]
        for reached in (key, ("", pool_name)):
            if reached in self._pools:
                return self._find(reached, device_name)
        return None

    def find_held(self, node: str | None, pool_name: str, device_name: str) -> list[CheckedDevice]:
        """The device that an entry of a status means (S2); nothing when it is lost.

        Without a node the pool's name has to be unique. Where it is not, every device that may be meant counts: to hold
        too much is safe, to give a device twice is not (S13).
        """
        if node is not None:
            there = self.find(node, pool_name, device_name)
            return [] if there is None else [there]
        candidates = [self._find(key, device_name) for key in self._by_name.get(pool_name, ())]
        return [pooled for pooled in candidates if pooled is not None]

    def find_missing(self, node: str | None, pool_name: str, device_name: str) -> list[CheckedDevice]:
        """A device that ``find_held`` does not find, in every pool that an entry of a status may mean."""
        if node is None:
            keys = self._by_name.get(pool_name, ())
        else:
            keys = [key for key in ((node, pool_name), ("", pool_name)) if key in self._pools][:1]
        missing = []
        for key in keys:
            cache = self._missing.setdefault(key, {})
            if device_name not in cache:
                cache[device_name] = CheckedDevice(self._pools[key], Device(name=device_name), is_published=False)
            missing.append(cache[device_name])
        return missing

    def reached(self, node: str | None) -> Iterator[CheckedDevice]:
        """Every device that the node reaches (S7)."""
        for key, pool in self._pools.items():
            if key[0] in ("", node):
                for device in pool.spec.devices:
                    pooled = self._find(key, device.name)
                    assert pooled is not None
                    yield pooled

    def _find(self, key: PoolKey, device_name: str) -> CheckedDevice | None:
        """A device of a pool; made when it is first asked for, because most never are."""
        cache = self._devices.setdefault(key, {})
        pooled = cache.get(device_name)
        if pooled is None:
            pool = self._pools[key]
            device = self._listed_as(key, device_name, pool.spec.devices)
            if device is not None:
                pooled = cache[device_name] = CheckedDevice(pool, device)
        return pooled

    def _listed_as(self, key: PoolKey, name: str, devices: Sequence[Device]) -> Device | None:
        if len(devices) <= INDEX_ABOVE:
            for device in devices:
                if device.name == name:
                    return device
            return None
        listed = self._listed.get(key)
        if listed is None:
            listed = self._listed[key] = {device.name: device for device in devices}
        return listed.get(name)


def _function_in(attributes: Iterable[Attribute], default: AttributeValue | None) -> AttributeValue | None:
    return next((attribute.value for attribute in attributes if attribute.name == FUNCTION), default)


def pool_key(pool: DevicePool) -> PoolKey:
    return pool.spec.node_name or "", pool.metadata.name
