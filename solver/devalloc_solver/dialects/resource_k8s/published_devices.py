"""The devices that nodes see, numbered, their form in the snapshot of the solver, and which of them are in use.

Order of devices: pools, slices and devices as upstream goes through them; it is the last word on which device is taken.

Driver, pool and name identify a device in the whole cluster. A driver that names its pools alike on every node
publishes one device several times; each node sees its own, and a claim that takes one has taken all. The solver
treats such twins as devices of one pool that draw on a resource with a capacity of one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, TypeVar

from devalloc.api.device_records import DeviceRecord, PoolDevice, counters_digest, read_records
from devalloc.api.meta import DEVICE_RECORDS
from devalloc.api.problems import Problem
from devalloc_solver.dialects.resource_k8s import feature_gates as gate
from devalloc_solver.dialects.resource_k8s.claims import (
    AllocationEntries,
    DeviceName,
    DeviceResult,
    DevicesInUseSpec,
    ResourceClaim,
)
from devalloc_solver.dialects.resource_k8s.decode import read
from devalloc_solver.dialects.resource_k8s.fields import Amount, FieldError
from devalloc_solver.dialects.resource_k8s.pools import PoolId, PoolStatus, PoolView, ResourcePool, SliceBook
from devalloc_solver.dialects.resource_k8s.slices import (
    REACH,
    UNNAMED_NODE,
    CounterConsumption,
    DeviceAttribute,
    NodeAccess,
    ResourceSlice,
    SliceDevice,
    UnusualAttribute,
    is_reachable,
)
from devalloc_solver.problem import snapshot as core
from devalloc_solver.problem.allocations import AllocatedDevice, LostDevice
from devalloc_solver.problem.ghosts import Drawn, drawn_in_use, has_draws

DeviceId = tuple[str, str, str]
"""driver, pool, device"""
_NO_NAME = frozenset((UNNAMED_NODE.name,))
NO_RECORDS: Mapping[PoolDevice, DeviceRecord] = {}


@dataclass(slots=True)
class DeviceUsage:
    """Devices that are taken, and what shares take of the others."""

    whole: set[DeviceId] = field(default_factory=set)
    shared: dict[DeviceId, dict[str, int]] = field(default_factory=dict)
    """capacity -> nano units; empty where shares take none"""
    share_ids: dict[DeviceId, set[str]] = field(default_factory=lambda: defaultdict(set))
    records: dict[DeviceId, list[DeviceRecord | None]] = field(default_factory=lambda: defaultdict(list))
    """of each claim that has the device, what it recorded of it"""

    def is_used(self, device: DeviceId) -> bool:
        return device in self.whole or device in self.shared

    def add_share(self, device: DeviceId, share: str | None, consumed: Mapping[str, int]) -> None:
        amounts = self.shared.setdefault(device, {})
        for name, nano in consumed.items():
            amounts[name] = amounts.get(name, 0) + nano
        if share:
            self.share_ids[device].add(share)


def read_usage(allocated: Mapping[str, Any] | None, claims: Iterable[ResourceClaim]) -> DeviceUsage:
    """Read ``{"devices": [...], "shares": [...], "consumedCapacity": [...]}``, and what claims with a status hold.

    Devices of admin access hold nothing; nor does a listed device that no slice has, as upstream. Raises FieldError.
    """
    usage = DeviceUsage()
    listed = read(DevicesInUseSpec, allocated, "allocated")
    usage.whole.update(device.id for device in listed.devices)
    for share in listed.shares:
        usage.add_share(share.id, share.share, {})
    for use in listed.consumed:
        usage.add_share(use.id, None, _nano(use.consumed))
    for claim in claims:
        if claim.allocation is not None:
            path = f"claim {claim.title}: status.allocation"
            add_allocation(usage, claim.allocation, path, records_of_claim(claim.annotations))
    return usage


def records_of_claim(annotations: Mapping[str, str]) -> Mapping[PoolDevice, DeviceRecord]:
    """What a claim recorded of its devices."""
    return read_records(annotations.get(DEVICE_RECORDS))


def add_allocation(
    usage: DeviceUsage,
    allocation: Mapping[str, Any],
    path: str,
    records: Mapping[PoolDevice, DeviceRecord] = NO_RECORDS,
) -> None:
    """Add what a claim's ``status.allocation`` holds. Raises FieldError; all that names a device is added before.

    A device whose held amount is unknown counts as held whole: unreadable content releases nothing.
    """
    faults = []
    for entry, at in _results(allocation, path):
        try:
            _add_result(usage, entry, at, records)
        except FieldError as error:
            faults.append(error)
    if faults:
        raise faults[0]


def _results(allocation: Mapping[str, Any], path: str) -> Iterator[tuple[Any, str]]:
    """The entries of an allocation, readable or not, each with its path."""
    read(AllocationEntries, allocation, path)
    entries = (allocation.get("devices") or {}).get("results") or ()
    where = f"{path}.devices.results" if path else "devices.results"
    return ((entry, f"{where}[{number}]") for number, entry in enumerate(entries))


def _add_result(
    usage: DeviceUsage, entry: object, path: str, records: Mapping[PoolDevice, DeviceRecord] = NO_RECORDS
) -> None:
    try:
        result = read(DeviceResult, entry, path)
    except FieldError:
        device = read(DeviceName, entry, path).id
        if not isinstance(entry, Mapping) or entry.get("adminAccess") is not True:
            usage.whole.add(device)
            usage.records[device].append(None)
        raise
    if result.admin:
        return
    driver, pool, name = result.id
    usage.records[result.id].append(records.get((f"{driver}/{pool}", name)))
    if result.share:
        usage.add_share(result.id, result.share, _nano(result.consumed))
    else:
        usage.whole.add(result.id)


def lost_devices(allocation: Mapping[str, Any], absent: Callable[[PoolId, set[str]], set[str]]) -> list[LostDevice]:
    """The devices of an allocation that no longer exist, each once. ``absent``: those of some names that a pool does
    not have."""
    named: dict[DeviceId, None] = {}
    with suppress(FieldError):
        for entry, at in _results(allocation, ""):
            with suppress(FieldError):
                named[read(DeviceName, entry, at).id] = None
    of_pools: dict[PoolId, set[str]] = defaultdict(set)
    for driver, pool, name in named:
        of_pools[driver, pool].add(name)
    gone = {pool: absent(pool, names) for pool, names in of_pools.items()}
    names = ("driver", "pool", "device")
    return [dict(zip(names, one, strict=True)) for one in named if one[2] in gone[one[:2]]]


def readable_allocation(allocation: Mapping[str, Any]) -> dict[str, Any]:
    """What ``add_allocation`` adds of an allocation, as an allocation that can be read."""
    results: list[Any] = []
    try:
        for entry, at in _results(allocation, ""):
            own = DeviceUsage()
            try:
                _add_result(own, entry, at)
                results.append(entry)
            except FieldError:
                results += [dict(zip(("driver", "pool", "device"), device, strict=True)) for device in own.whole]
    except FieldError:
        pass
    return {"devices": {"results": results}}


def _nano(amounts: Mapping[str, Amount]) -> dict[str, int]:
    return {name: amount.nano for name, amount in amounts.items()}


Draws = tuple[tuple[str, int], ...]
"""(counter, nano units)"""


@core.immutable_record
class PublishedDevice:
    """A device in its pool and slice; ``index`` is its number in the snapshot."""

    index: int
    pool: ResourcePool
    slice: ResourceSlice
    device: SliceDevice
    is_shareable: bool
    nodes: frozenset[str]
    """the nodes of the call that reach it; a device without any counts as far as it draws counters"""
    drawn: Drawn | None = None
    """what it draws as long as it is in use, if that is more than its slice says"""
    is_ghost: bool = False
    """whether its pool does not publish it, and some claim has it all the same"""
    lost: Draws = ()
    """what it draws of counters that claims recorded and its pool lacks now: who drew on them is unknown"""

    @property
    def id(self) -> DeviceId:
        return self.pool.driver, self.pool.name, self.device.name

    @property
    def title(self) -> str:
        return "/".join(self.id)

    @property
    def binds(self) -> bool:
        """Whether a claim that gets it is bound to a node that the device does not name."""
        return self.device.binds_to_node or (len(self.nodes) > 1 and self.reach.node_name is not None)

    @property
    def reach(self) -> NodeAccess:
        """Which nodes reach it: said by the device or by its slice."""
        return self.device if self.slice.spec.per_device else self.slice.spec


def published_device(device: core.Device) -> PublishedDevice:
    """What a device of a snapshot was made of."""
    offer: PublishedDevice = device.source
    return offer


@dataclass(frozen=True, slots=True)
class RecordedUse:
    """What claims have of pools beyond what these publish: of the devices, what is recorded, and which are gone."""

    records: Mapping[DeviceId, Sequence[DeviceRecord | None]] = field(default_factory=dict)
    gone: Mapping[PoolId, Sequence[str]] = field(default_factory=dict)


def recorded_use(usage: DeviceUsage, book: SliceBook, pools: Iterable[ResourcePool]) -> RecordedUse:
    """What is in use of pools that have counters, or had some."""
    if not usage.records:
        return NOTHING_RECORDED
    drawn = {one[:2] for one, records in usage.records.items() if any(map(has_draws, records))}
    counted = [pool for pool in pools if pool.counters or pool.id in drawn]
    held: dict[PoolId, set[str]] = {pool.id: set() for pool in counted}
    for driver, name, device in usage.records if held else ():
        if (driver, name) in held:
            held[driver, name].add(device)
    for pool in counted:
        if held[pool.id]:
            held[pool.id].difference_update(device.name for _, device in _devices(pool))
    gone = {
        pool: sorted(absent) for pool, names in held.items() if names and (absent := book.absent_devices(pool, names))
    }
    records = {one: records for one, records in usage.records.items() if one[:2] in held and any(records)}
    for pool_id, names in gone.items():
        records |= {(*pool_id, name): usage.records[*pool_id, name] for name in names}
    return RecordedUse(records, gone)


NOTHING_RECORDED = RecordedUse()


def list_published_devices(
    views: Sequence[PoolView],
    usage: DeviceUsage | None,
    gates: frozenset[str],
    recorded: RecordedUse = NOTHING_RECORDED,
) -> list[PublishedDevice]:
    """All devices that some node reaches, and of the others those that may hold counters: the ones in use.

    ``usage`` None: what is in use is not known yet. ``recorded``: what counts besides; devices that are gone become
    ghosts, which no node reaches.
    """
    offers: list[PublishedDevice] = []
    first_index: dict[DeviceId, int] = {}
    sharing = gate.CONSUMABLE_CAPACITY in gates
    for view in views:
        pool = view.pool
        counters = _counters_of(pool, gates) if recorded.records else {}
        is_read = bool(recorded.records) and (bool(counters) or _may_have_counters(pool, gates))
        lost, start = set[str](), len(offers)
        reach, nodes = None, frozenset[str]()
        for resource_slice, device in _devices(pool):
            own_reach = device if resource_slice.spec.per_device else resource_slice.spec
            if own_reach is not reach:  # devices of one slice are mostly reached alike
                reach, nodes = own_reach, frozenset(node.name for node in view.nodes if is_reachable(node, own_reach))
            if device.binds_to_node and nodes == _NO_NAME:
                continue  # the allocation must name its node
            device_id = pool.driver, pool.name, device.name
            used = usage is None or usage.is_used(device_id)
            if nodes or (device.consumes and used):
                offer = PublishedDevice(
                    len(offers), pool, resource_slice, device, sharing and device.allow_multiple, nodes
                )
                if is_read and device_id in recorded.records:
                    offer = _with_recorded(offer, counters, recorded.records[device_id])
                    lost.update(dict(offer.drawn.lost) if offer.drawn is not None else ())
                first = first_index.setdefault(device_id, offer.index)
                merged = None if first == offer.index else merge_duplicate(offers[first], offer)
                if merged is None:
                    offers.append(offer)
                else:
                    offers[first] = merged
        for name in recorded.gone.get(pool.id, ()) if is_read else ():
            drawn = drawn_in_use(counters, None, recorded.records[*pool.id, name])
            lost.update(dict(drawn.lost))
            owner = (*pool.slices, *pool.hidden)[0] if pool.slices or pool.hidden else None
            if owner is not None:
                ghost = SliceDevice(name=name)
                offers.append(
                    PublishedDevice(len(offers), pool, owner, ghost, False, frozenset(), drawn, is_ghost=True)
                )
        if lost:
            offers[start:] = [_with_lost(offer, sorted(lost), len(offers) - start) for offer in offers[start:]]
    return offers


def _with_lost(offer: PublishedDevice, lost: Sequence[str], total: int) -> PublishedDevice:
    """A device of a pool without counters that claims recorded: each draws on them, and who recorded them all."""
    own = dict(offer.drawn.lost) if offer.drawn is not None else {}
    return replace(offer, lost=tuple((name, total if name in own else 1) for name in lost))


def counters_with_lost(pool: ResourcePool, members: Sequence[PublishedDevice]) -> dict[str, core.Resource]:
    """The counters of a pool, also those that it lost, by their names in the snapshot."""
    resources = {"/".join(key): core.Resource.shared(1, max(0, nano)) for key, nano in pool.counters.items()}
    lost = {name: len(members) for offer in members[:1] for name, _ in offer.lost}
    return resources | {name: core.Resource.shared(1, total) for name, total in lost.items()} if lost else resources


def _may_have_counters(pool: ResourcePool, gates: frozenset[str]) -> bool:
    return pool.state is PoolStatus.COMPLETE and gate.PARTITIONABLE_DEVICES in gates


def _counters_of(pool: ResourcePool, gates: frozenset[str]) -> Mapping[str, int]:
    """Nano units of the counters of a pool, as far as devices of it are to be had."""
    if not _may_have_counters(pool, gates):
        return {}
    return {"/".join(key): max(0, nano) for key, nano in pool.counters.items()}


def _with_recorded(
    offer: PublishedDevice, counters: Mapping[str, int], records: Sequence[DeviceRecord | None]
) -> PublishedDevice:
    """A device in use that draws what claims recorded, if that is more than its slice says."""
    published = dict(_draws(offer.device.consumes))
    drawn = drawn_in_use(counters, published, records)
    return offer if drawn.amounts == published and not drawn.lost else replace(offer, drawn=drawn)


def _devices(pool: ResourcePool) -> Iterator[tuple[ResourceSlice, SliceDevice]]:
    return ((owner, device) for owner in (*pool.slices, *pool.hidden) for device in owner.devices)


T = TypeVar("T")


def find_qualified(offer: PublishedDevice, named: Mapping[str, T], name: str) -> T | None:
    """What a device has under a full name; a name without domain is under the driver's."""
    value = named.get(name)
    if value is None:
        domain, slash, short = name.partition("/")
        if slash and domain == offer.pool.driver:
            value = named.get(short)
    return value


def find_attribute(offer: PublishedDevice, name: str) -> DeviceAttribute | None:
    """An attribute by its full name."""
    return find_qualified(offer, offer.device.attributes, name)


def qualified_attributes(offer: PublishedDevice) -> dict[str, DeviceAttribute]:
    """All attributes by their full names; where a device has a short name besides, the full one counts."""
    attributes = offer.device.attributes
    qualified = dict(zip(full_names(tuple(attributes), offer.pool.driver), attributes.values(), strict=True))
    if len(qualified) < len(attributes):
        qualified |= {name: attribute for name, attribute in attributes.items() if "/" in name}
    return qualified


@lru_cache(maxsize=1024)
def full_names(names: tuple[str, ...], driver: str) -> tuple[str, ...]:
    """Names of attributes with the driver's domain where they have none; many devices have the same."""
    return tuple(name if "/" in name else f"{driver}/{name}" for name in names)


def constraint_value(attribute: DeviceAttribute | None, gates: frozenset[str]) -> object | None:
    """The value of an attribute as relations compare it: with its type; a frozenset for a list; None without one.

    While lists are switched off, a list is no value.
    """
    if not isinstance(attribute, UnusualAttribute):
        return attribute
    if not attribute.is_list:
        return attribute.typed
    if not attribute.values or gate.LIST_ATTRIBUTES not in gates:
        return None
    return frozenset((attribute.kind, value) for value in attribute.values)


def ghost_of(offer: PublishedDevice, gates: frozenset[str]) -> core.Ghost | None:
    """The same as the core has it; None of a device that its pool publishes."""
    if not offer.is_ghost or offer.drawn is None:
        return None
    return core.Ghost(draws_of(offer, gates), None, offer.drawn.is_certain)


def joined_pools(offers: Sequence[PublishedDevice], common: Collection[PoolId]) -> Iterable[list[PublishedDevice]]:
    """The devices of each pool; those of pools of these names are together."""
    pools: dict[object, list[PublishedDevice]] = {}
    for offer in offers:
        pools.setdefault(offer.pool.id if offer.pool.id in common else id(offer.pool), []).append(offer)
    return pools.values()


_NO_RESOURCES: Mapping[str, core.Resource] = {}


def resources_of(offer: PublishedDevice) -> Mapping[str, core.Resource]:
    """What shares take of a device; one that is taken whole needs none."""
    if not offer.is_shareable:
        return _NO_RESOURCES
    return {name: core.Resource(1, max(0, capacity.value.nano)) for name, capacity in offer.device.capacity.items()}


def draws_of(offer: PublishedDevice, gates: frozenset[str]) -> Draws:
    """What taking a device draws of the counters of its pool."""
    own = _own_draws(offer, gates)
    return tuple(sorted((*own, *offer.lost))) if offer.lost else own


def _own_draws(offer: PublishedDevice, gates: frozenset[str]) -> Draws:
    if offer.drawn is not None:
        return tuple(sorted((name, nano) for name, nano in offer.drawn.amounts.items() if nano > 0))
    consumes = offer.device.consumes
    if not consumes or offer.pool.state is not PoolStatus.COMPLETE or gate.PARTITIONABLE_DEVICES not in gates:
        return ()
    return _draws(consumes)


def record_of_device(offer: PublishedDevice, gates: frozenset[str]) -> DeviceRecord | None:
    """What is to be recorded of a device that a claim gets, as long as it has it; None if its pool has no counters.

    A share records, too, what those before it drew of counters that the pool lacks now.
    """
    pool, lost = offer.pool, offer.drawn.lost if offer.drawn is not None else ()
    if not (pool.counters or lost) or not _may_have_counters(pool, gates):
        return None
    draws = _own_draws(offer, gates)
    return DeviceRecord.shared(
        tuple(sorted((*draws, *lost))) if lost else draws,
        _digest_of(tuple(pool.counters), tuple([name for name, _ in lost])),
        None,
    )


@lru_cache(maxsize=1024)
def _digest_of(counters: tuple[tuple[str, str], ...], lost: tuple[str, ...]) -> str:
    return counters_digest(frozenset((*map("/".join, counters), *lost)))


@lru_cache(maxsize=4096)
def _draws(consumes: tuple[CounterConsumption, ...]) -> Draws:
    total: dict[str, int] = {}
    for use in consumes:
        for name, counter in use.counters.items():
            key = f"{use.counter_set}/{name}"
            total[key] = total.get(key, 0) + counter.value.nano
    return tuple((name, nano) for name, nano in sorted(total.items()) if nano > 0)


class DevicesInUse:
    """Says what is in use of some devices, in terms of the snapshot."""

    def __init__(self, offers: Iterable[PublishedDevice]) -> None:
        self._by_id: dict[DeviceId, list[PublishedDevice]] = {}
        for offer in offers:
            self._by_id.setdefault(offer.id, []).append(offer)

    def of(self, device: DeviceId) -> Sequence[PublishedDevice]:
        """All that have this name."""
        return self._by_id.get(device, ())

    def lacks_record(self, usage: DeviceUsage, pools: Container[PoolId]) -> bool:
        """Whether devices that a usage has of some pools are not there, or not with what is recorded of them."""
        for device in (one for one in (*usage.whole, *usage.shared) if one[:2] in pools):
            same, records = self._by_id.get(device), usage.records.get(device, ())
            if not same:
                return True
            for one in same if any(records) else ():
                published = _draws(one.device.consumes)
                if any(record is not None and record.draws not in (None, published) for record in records):
                    return True
        return False

    def items(self, usage: DeviceUsage) -> tuple[AllocatedDevice, ...]:
        """What of a usage is in use of them; the rest is of devices that are not there."""
        in_use: list[AllocatedDevice] = []
        for device in {**dict.fromkeys(usage.whole), **usage.shared}:
            same = self._by_id.get(device, ())
            # Of twins that draw counters one is enough: it draws what all of them would.
            for offer in same[:1] if any(one.device.consumes or one.drawn for one in same) else same:
                # Shares of a device that nodes see differently cannot be added up.
                in_use.append(AllocatedDevice(offer.index, amounts_in_use(offer, usage) if len(same) == 1 else None))
        return tuple(sorted(in_use, key=lambda held: held.device))


def amounts_in_use(offer: PublishedDevice, usage: DeviceUsage) -> tuple[tuple[str, int], ...] | None:
    """The nano units in use of a device that is in use; None when it is held whole."""
    if offer.id in usage.whole or not offer.is_shareable:
        return None
    return tuple(sorted(usage.shared[offer.id].items()))


def overdrawn_counters(offers: Sequence[PublishedDevice], usage: DeviceUsage) -> dict[int, str]:
    """Pools (by id of the object) with a counter of which more is in use than there is, and which counter that is."""
    worst_counters: dict[int, str] = {}
    is_any_used = bool(usage.whole or usage.shared)
    for members in joined_pools([offer for offer in offers if offer.pool.counters], ()):
        pool = members[0].pool
        left = {"/".join(key): nano for key, nano in pool.counters.items()}
        for offer in members if is_any_used else ():
            if pool.state is PoolStatus.COMPLETE and usage.is_used(offer.id):
                for name, nano in _draws(offer.device.consumes) if offer.drawn is None else offer.drawn.amounts.items():
                    left[name] = left.get(name, nano) - nano
        worst = next((name for name in sorted(left) if left[name] < 0), None)
        if worst is not None:
            worst_counters[id(pool)] = worst
    return worst_counters


_MARK = "the name "
"""How the resources begin that twins draw; no counter has a space in its name."""
_VIEW = "\0"
"""What is before the number of a pool among those of one name that are one; no counter has it in its name."""
SHOWN = 3


def find_duplicates(offers: Iterable[PublishedDevice]) -> dict[DeviceId, list[PublishedDevice]]:
    """The devices that are in several pools, as nodes see these; one that a node sees twice makes its pool invalid."""
    first: dict[DeviceId, PublishedDevice] = {}
    twins: dict[DeviceId, list[PublishedDevice]] = {}
    for offer in offers:
        name = offer.id
        earlier = first.setdefault(name, offer)
        if earlier.pool is not offer.pool or earlier.nodes.isdisjoint(offer.nodes):
            twins.setdefault(name, [earlier]).append(offer)
    return twins


def marker_resource(name: str) -> str:
    """The resource that all devices of a name draw."""
    return f"{_MARK}{name}"


def is_counter(resource: str) -> bool:
    """Whether a resource of a pool is a counter that its slices have."""
    return not resource.startswith(_MARK)


def counter_in_view(counter: str, number: int) -> str:
    """A counter of the pool of that number among those of one name, which nodes see differently."""
    return f"{counter}{_VIEW}{number}" if number else counter


def counter_name(resource: str) -> str:
    """The counter that a resource of a pool stands for, as the slices call it."""
    return resource.partition(_VIEW)[0]


def merge_duplicate(one: PublishedDevice, other: PublishedDevice) -> PublishedDevice | None:
    """Two of a name as one device that the nodes of both reach; None where their nodes see different devices.

    Only what is taken in shares needs it: shares of one are shares of the other.
    """
    if not one.is_shareable or one.device.consumes or one.drawn or other.drawn or one.nodes & other.nodes:
        return None
    if None in (one.reach.node_name, other.reach.node_name) or one.slice.spec.skip_node_operations:
        return None
    if other.slice.spec.skip_node_operations or one.pool.state is not other.pool.state:
        return None
    same = all(
        getattr(one.device, field.name) == getattr(other.device, field.name)
        for field in fields(one.device)
        if field.name not in REACH
    )
    return replace(one, nodes=one.nodes | other.nodes) if same else None


def duplicate_problems(offers: Sequence[PublishedDevice]) -> Iterator[Problem]:
    """One warning for each pool with devices that are published more than once."""
    pools: dict[tuple[str, str], dict[str, set[str]]] = {}
    for (driver, pool, device), same in _published_by_several(offers).items():
        pools.setdefault((driver, pool), {})[device] = same
    for (driver, pool), devices in sorted(pools.items()):
        name = min(devices)
        nodes = sorted(devices[name])
        shown = ", ".join(nodes[:SHOWN]) + (f" and {len(nodes) - SHOWN} more" if len(nodes) > SHOWN else "")
        more = "" if len(devices) == 1 else f" and {len(devices) - 1} more of the pool"
        message = (
            f"device {driver}/{pool}/{name}{more} is published by the nodes {shown}: driver, pool and name "
            "identify a device, so only one claim at a time can have it; give each node's pool its own name"
        )
        yield Problem(message, kind="ResourceSlice", severity="warning")


def _published_by_several(offers: Iterable[PublishedDevice]) -> Mapping[DeviceId, set[str]]:
    """The devices that several nodes have for their own, and these nodes."""
    same = [(offer,) for offer in offers if len(offer.nodes) > 1] + [*map(tuple, find_duplicates(offers).values())]
    nodes_by_id: dict[DeviceId, set[str]] = {}
    for offer in (offer for some in same for offer in some):
        if offer.reach.node_name is not None and offer.pool.is_complete:
            nodes_by_id.setdefault(offer.id, set()).update(offer.nodes)
    return {name: nodes for name, nodes in nodes_by_id.items() if len(nodes) > 1}
