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
        "owner",
        "pool",
        "record",
        "undefined_resources",
    )

    def __init__(self, checked: CheckedPool, device: Device, *, is_published: bool = True) -> None:
        self.owner = checked
        self.pool = pool = checked.pool
        self.device = device
        self.is_published = is_published
        """False for one that a claim has, and the pool does not"""
        self.node = pool.spec.node_name
        self.attributes: Mapping[str, AttributeValue] = {**checked.attributes, **_values_of(device.attributes)}
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
            defined = checked.resources
            self.draws = [
                (name, blocks, there)
                for name, (resource, there) in defined.items()
                if name in device.requests and (blocks := self.drawn_blocks(resource))
            ]
            self.undefined_resources = sorted(device.requests.keys() - defined.keys())
        self._resources: Mapping[str, ResourceCapacity] | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """(node, pool name, device name): unique among the devices that exist."""
        return (*self.owner.key, self.device.name)

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


class CheckedPool:
    """A pool that exists, with those of its devices that were asked for: most never are."""

    __slots__ = ("_attributes", "_devices", "_listed", "_missing", "_resources", "key", "pool")

    def __init__(self, key: PoolKey, pool: DevicePool) -> None:
        self.key = key
        self.pool = pool
        self._attributes: Mapping[str, AttributeValue] | None = None
        self._resources: Mapping[str, tuple[ResourceCapacity, int]] | None = None
        self._listed: Mapping[str, Device] | None = None
        self._devices: dict[str, CheckedDevice] = {}
        self._missing: dict[str, CheckedDevice] | None = None

    @property
    def attributes(self) -> Mapping[str, AttributeValue]:
        """Its own: each of its devices has them, too."""
        if self._attributes is None:
            self._attributes = _values_of(self.pool.spec.attributes)
        return self._attributes

    @property
    def resources(self) -> Mapping[str, tuple[ResourceCapacity, int]]:
        """Those that its devices consume, with the blocks that there are of each."""
        if self._resources is None:
            self._resources = {
                resource.name: (resource, floor_blocks(resource.capacity, resource.block))
                for resource in self.pool.spec.resources
            }
        return self._resources

    def find(self, name: str) -> CheckedDevice | None:
        """Its device of that name."""
        checked = self._devices.get(name)
        if checked is None:
            if self._listed is None:
                self._listed = {device.name: device for device in self.pool.spec.devices}
            device = self._listed.get(name)
            if device is not None:
                checked = self._devices[name] = CheckedDevice(self, device)
        return checked

    def find_missing(self, name: str) -> CheckedDevice:
        """A device of that name which it does not have."""
        if self._missing is None:
            self._missing = {}
        if name not in self._missing:
            self._missing[name] = CheckedDevice(self, Device(name=name), is_published=False)
        return self._missing[name]

    @property
    def devices(self) -> Iterator[CheckedDevice]:
        """All of its devices."""
        for device in self.pool.spec.devices:
            checked = self.find(device.name)
            assert checked is not None
            yield checked


class KnownPools:
    """All pools that exist: of those that one node reaches and that share a name, none does (S2)."""

    def __init__(self, pools: Iterable[DevicePool]) -> None:
        self._pools: dict[PoolKey, CheckedPool] = {}
        self._by_name: dict[str, list[PoolKey]] = {}
        self._on_nodes: Counter[str] = Counter()
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
                key = pool_key(pool)
                self._pools[key] = checked = CheckedPool(key, pool)
                self._by_name.setdefault(name, []).append(key)
                if self._wholes is not None:
                    _note_wholes(checked, self._wholes)
        if pools:
            self._nodes_of[name] = [pool.spec.node_name for pool in pools if pool.spec.node_name is not None]
            self._on_nodes.update(self._nodes_of[name])

    def whole_devices(self, driver: str, pin: str | None) -> Iterator[CheckedDevice]:
        """The devices of a driver that are offered whole to claims that are bound to node ``pin``, or to none."""
        if self._wholes is None:
            self._wholes = {}
            for pool in self._pools.values():
                _note_wholes(pool, self._wholes)
        for key, wholes in self._wholes.get(driver, {}).items():
            if pin is None or key[0] in ("", pin):
                yield from wholes

    def read_all(self) -> None:
        """Read every device now rather than when it is first asked for."""
        for pool in self._pools.values():
            for _ in pool.devices:
                pass

    @property
    def nodes(self) -> set[str]:
        """The nodes that any pool names, valid or not."""
        return {*self._on_nodes}

    def find(self, node: str | None, pool_name: str, device_name: str) -> CheckedDevice | None:
        """The device of that name which the node reaches; None as node reaches the network only (S7)."""
        pool = self.pool(node, pool_name)
        return None if pool is None else pool.find(device_name)

    def pool(self, node: str | None, name: str) -> CheckedPool | None:
        """The pool of that name which the node reaches."""
        pools = self._pools
        return pools.get((node or "", name)) or pools.get(("", name))

    def named(self, name: str) -> list[CheckedPool]:
        """All pools of that name."""
        return [self._pools[key] for key in self._by_name.get(name, ())]

    def find_held(self, node: str | None, pool_name: str, device_name: str) -> list[CheckedDevice]:
        """The device that an entry of a status means (S2); nothing when it is lost.

        Without a node the pool's name has to be unique. Where it is not, every device that may be meant counts: to hold
        too much is safe, to give a device twice is not (S13).
        """
        if node is not None:
            there = self.find(node, pool_name, device_name)
            return [] if there is None else [there]
        candidates = [pool.find(device_name) for pool in self.named(pool_name)]
        return [pooled for pooled in candidates if pooled is not None]

    def find_missing(self, node: str | None, pool_name: str, device_name: str) -> list[CheckedDevice]:
        """A device that ``find_held`` does not find, in every pool that an entry of a status may mean."""
        if node is None:
            return [pool.find_missing(device_name) for pool in self.named(pool_name)]
        pool = self.pool(node, pool_name)
        return [] if pool is None else [pool.find_missing(device_name)]

    def reached(self, node: str | None) -> Iterator[CheckedDevice]:
        """Every device that the node reaches (S7)."""
        for key, pool in self._pools.items():
            if key[0] in ("", node):
                yield from pool.devices


def _note_wholes(checked: CheckedPool, wholes: dict[str, dict[PoolKey, list[CheckedDevice]]]) -> None:
    pool = checked.pool
    common = _function_in(pool.spec.attributes, None)
    offered = [
        device
        for each in pool.spec.devices
        if _function_in(each.attributes, common) in WHOLE_FUNCTIONS
        and (device := checked.find(each.name)) is not None
        and meta.UNAVAILABLE not in device.attributes
        and not device.undefined_resources
    ]
    if offered:
        wholes.setdefault(pool.spec.driver, {})[checked.key] = offered


def _values_of(attributes: Iterable[Attribute]) -> dict[str, AttributeValue]:
    return {attribute.name: attribute.value for attribute in attributes}


def _function_in(attributes: Iterable[Attribute], default: AttributeValue | None) -> AttributeValue | None:
    return next((attribute.value for attribute in attributes if attribute.name == FUNCTION), default)


def pool_key(pool: DevicePool) -> PoolKey:
    return pool.spec.node_name or "", pool.metadata.name
