"""The objects of a cluster as they come and go, and what each change affects: one node, one claim, or the rules."""

from __future__ import annotations

import marshal
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from devalloc.api.device_records import DeviceRecord, PoolDevice
from devalloc.api.json_content import MAPPINGS
from devalloc_solver.dialects.resource_k8s import feature_gates as gate
from devalloc_solver.dialects.resource_k8s import taint_rules
from devalloc_solver.dialects.resource_k8s.cluster_check import ClusterChecker
from devalloc_solver.dialects.resource_k8s.decode import read_slice
from devalloc_solver.dialects.resource_k8s.fields import FieldError
from devalloc_solver.dialects.resource_k8s.manifests import (
    ClusterInput,
    Key,
    name_clash,
    priority_of,
    read_documents,
    record_left_out,
)
from devalloc_solver.dialects.resource_k8s.pools import PoolId, SliceBook, view_cluster
from devalloc_solver.dialects.resource_k8s.published_devices import (
    NO_RECORDS,
    NOTHING_RECORDED,
    DeviceId,
    DeviceUsage,
    add_allocation,
    list_published_devices,
    recorded_use,
    records_of_claim,
)
from devalloc_solver.dialects.resource_k8s.slices import ClusterNode, ResourceSlice
from devalloc_solver.fleet.backend import Manifest, Name
from devalloc_solver.fleet.node_index import HeldDevice, HeldDevices, HeldItem, Holders, NodeIndex
from devalloc_solver.fleet.place_finder import PlaceFinder
from devalloc_solver.fleet.resource_k8s.device_properties import MetProperties, local_snapshot, published_device
from devalloc_solver.fleet.resource_k8s.rules import ResourceClaimRules, SharedDevices
from devalloc_solver.problem.placement_policy import PlacementPolicy
from devalloc_solver.problem.snapshot import Snapshot


def usage_of(*claims: HeldDevices) -> DeviceUsage:
    """What claims hold, as a usage."""
    usage = DeviceUsage()
    for held in claims:
        for pool, name, amounts, record in held.entries:
            device = *pool, name
            if amounts is None:
                usage.whole.add(device)
            else:
                usage.add_share(device, None, dict(amounts))
            usage.records[device].append(record)
    return usage


@dataclass(slots=True, eq=False)
class ClusterState:
    """Objects, and all that is kept up to date with them.

    A pool whose slices are all of one node is that node's own, and in the index; devices of all others are *commons*.
    """

    gates: frozenset[str]
    policy: PlacementPolicy
    objects: dict[Name, list[Manifest]] = field(default_factory=dict)
    nodes: dict[str, ClusterNode] = field(default_factory=dict)
    """the Node objects"""
    slices: dict[Name, ResourceSlice] = field(default_factory=dict)
    """those that can be read"""
    checked: dict[ResourceSlice, FieldError | None] = field(default_factory=dict)
    """what the API server refuses of them, as far as that was asked"""
    _left_out: dict[Name, FieldError] = field(default_factory=dict)
    """why others are left out"""
    _left_out_by_driver: dict[str, str] | None = None
    tainted: dict[Name, Manifest] = field(default_factory=dict)
    """slices with the taints of DeviceTaintRules, if any rule is for their devices"""
    taint_rules: tuple[Manifest, ...] = ()
    """the DeviceTaintRules"""
    classes: ClusterInput = field(default_factory=ClusterInput)
    share_ids: dict[DeviceId, dict[str, int]] = field(default_factory=dict)
    """ids of shares in use, and how many claims have them"""
    _shares: dict[Key, list[tuple[DeviceId, str]]] = field(default_factory=dict)
    """the shares of claims that have any"""
    index: NodeIndex = field(init=False)
    places: PlaceFinder = field(init=False)
    holders: Holders = field(init=False)
    checker: ClusterChecker = field(init=False)
    layout: int = 0
    """changes with slices and nodes"""
    _rules: ResourceClaimRules | None = None
    _commons: SharedDevices | None = None
    _properties: MetProperties = field(default_factory=dict)
    _pools: dict[PoolId, dict[Name, None]] = field(default_factory=dict)
    _places: dict[PoolId, str | None] = field(default_factory=dict)
    """pool -> the node that it is of; None for one of the commons"""
    _own: dict[str | None, dict[PoolId, None]] = field(default_factory=lambda: defaultdict(dict))
    """node (None: the commons) -> its pools"""
    _with_recorded: set[str] = field(default_factory=set)
    """nodes of which devices in use draw more than is published"""

    def __post_init__(self) -> None:
        self.index = NodeIndex(self.policy)
        self.holders, self.places = Holders(self.index), PlaceFinder(self.index)
        self.checker = ClusterChecker(self.gates)

    @classmethod
    def load(
        cls, documents: Iterable[tuple[Name, Manifest]], gates: frozenset[str], policy: PlacementPolicy
    ) -> ClusterState:
        """Read everything at once."""
        state = cls(gates, policy)
        for name, document in documents:
            state.objects.setdefault(name, []).append(document)
        state._read_rules()
        for name in state.objects:
            if name[0] == "ResourceSlice":
                state._read_slice(name)
            elif name[0] == "Node":
                state._read_node(name)
        for pool in state._pools:
            state._settle(pool)
        snapshots = {node: state._snapshot(node) for node in state._own if node is not None}
        state.index.load({node: snapshot for node, snapshot in snapshots.items() if snapshot.pools})
        state._read_classes()
        for name in state.objects:
            if name[0] == "ResourceClaim":
                state._read_claim(name)
        return state

    @property
    def allocations(self) -> Mapping[Key, HeldDevices]:
        """What claims hold."""
        return self.holders.by_claim

    # -- changes -------------------------------------------------------------------------------------------------------

    def replace(self, name: Name, documents: list[Manifest]) -> bool:
        """These are the objects of a name now, if any. Returns whether that changes more than what one claim holds."""
        old = self.objects.pop(name, [])
        if documents:
            self.objects[name] = documents
        match name[0]:
            case "ResourceClaim" if not any(map(is_allocated, documents)):
                self.free((name[1], name[2]))
                return False
            case "ResourceClaim":
                with self.holders.no_gain_if_unchanged((name[1], name[2])):
                    self.free((name[1], name[2]))
                    self._read_claim(name)
                return False
            case "ResourceSlice" | "DeviceClass" if _is_unchanged(old, documents):
                self.objects[name] = old  # it is known by this
                return False
            case "ResourceSlice":
                self._slice_changed(name)
            case "DeviceTaintRule":
                return self._rules_of_taints_changed()
            case "DeviceClass":
                self._read_classes()
            case "Node":
                return self._node_changed(name)
        return True

    def _slice_changed(self, name: Name) -> None:
        old = self.slices.get(name)
        self._read_slice(name)
        new = self.slices.get(name)
        pools = dict.fromkeys(resource_slice.pool_id for resource_slice in (old, new) if resource_slice is not None)
        before = {self._places[pool] for pool in pools if pool in self._places}
        names = self.node_names() if None in self._own else set()
        for pool in pools:
            self._settle(pool)
        places = before | {self._places[pool] for pool in pools if pool in self._places}
        self._put_again(places, self.holders.of_pools(pools))
        self.layout += 1
        if None in places or (None in self._own and names != self.node_names()):
            self._commons = self._rules = None

    def _put_again(self, places: Iterable[str | None], keys: Set[Key] = frozenset()) -> None:
        """Enter nodes as they are now, and what claims hold of them: these claims, and those that the index knows."""
        places = {*places}
        keys = keys | self.holders.on_nodes(places)
        for key in keys:
            self.holders.lift(key)
        usage = usage_of(*[self.allocations[key] for key in keys])
        for node in sorted(place for place in places if place is not None):
            if node in self._own:
                self.index.put(node, self._snapshot(node, usage))
            else:
                self.index.drop(node)
                self._with_recorded.discard(node)
        for key in sorted(keys):
            self.holders.put(key, [*self._items(self.allocations[key])])

    def effective(self, name: Name, documents: Sequence[Manifest]) -> Sequence[Manifest]:
        """The objects of a name as they count: slices with the taints of rules, which are then no objects."""
        if name[0] == taint_rules.KIND:
            return [] if name[2] in {str(rule["metadata"]["name"]) for rule in self.taint_rules} else documents
        return [self.tainted[name]] if name in self.tainted else documents

    def _read_rules(self) -> None:
        manifests = [one for name, same in self.objects.items() if name[0] == taint_rules.KIND for one in same]
        self.taint_rules = tuple(read_documents(manifests, self.gates).rules)

    def _rules_of_taints_changed(self) -> bool:
        """Read the slices again whose devices have other taints now; returns whether there are any."""
        self._read_rules()
        changed = False
        for name in [name for name in self.objects if name[0] == "ResourceSlice"]:
            documents = self.objects[name]
            if len(documents) == 1 and taint_rules.with_rule_taints(documents[0], self.taint_rules) != self._content(
                name
            ):
                self._slice_changed(name)
                changed = True
        return changed

    def _content(self, name: Name) -> Manifest:
        """A slice that is alone of its name, as it counts."""
        return self.tainted.get(name) or self.objects[name][0]

    def _node_changed(self, name: Name) -> bool:
        before = self.nodes.get(name[2])
        self._read_node(name)
        if self.nodes.get(name[2]) == before:
            return False
        self.layout += 1
        if None in self._own:
            self._commons = self._rules = None
        return True

    def _read_node(self, name: Name) -> None:
        self.nodes.pop(name[2], None)
        self.nodes |= read_documents(self.objects.get(name, ()), self.gates).nodes
        node = self.nodes.get(name[2])
        self.checker.set_node(name[2], {} if node is None else node.labels)

    def _read_classes(self) -> None:
        manifests = [one for name, same in self.objects.items() if name[0] == "DeviceClass" for one in same]
        self.classes = read_documents(manifests, self.gates)
        self.checker.classes = self.classes.class_manifests
        self._rules = None

    # -- slices --------------------------------------------------------------------------------------------------------

    def _read_slice(self, name: Name) -> None:
        """Take note of a slice, or that it is gone, as ``documents`` reads it."""
        old = self.slices.pop(name, None)
        self.tainted.pop(name, None)
        self._left_out.pop(name, None)
        self._left_out_by_driver = None
        if old is not None:
            self.checked.pop(old, None)
            del self._pools[old.pool_id][name]
        documents = self.objects.get(name, ())
        if len(documents) != 1:
            if documents:
                self._left_out[name] = name_clash(name[0])
            return
        content = taint_rules.with_rule_taints(documents[0], self.taint_rules) if self.taint_rules else documents[0]
        if content is not documents[0]:
            self.tainted[name] = content
        try:
            resource_slice = read_slice(content)
        except FieldError as error:
            self._left_out[name] = error
            return
        if gate.COMPATIBILITY_GROUPS in self.gates and resource_slice.uses_groups:
            return
        self.slices[name] = resource_slice
        self._pools.setdefault(resource_slice.pool_id, {})[name] = None

    @property
    def left_out(self) -> Mapping[str, str]:
        """See ``ClusterInput``."""
        if self._left_out_by_driver is None:
            self._left_out_by_driver = {}
            for name, error in self._left_out.items():
                for content in self.objects[name]:
                    record_left_out(self._left_out_by_driver, content, error)
        return self._left_out_by_driver

    def _settle(self, pool: PoolId) -> None:
        """Say whose a pool is, now that its slices have changed."""
        if pool in self._places:
            place = self._places.pop(pool)
            del self._own[place][pool]
            if not self._own[place]:
                del self._own[place]
        names = self._pools.get(pool)
        self.checker.set_pool(pool, [self._content(name) for name in names or ()])
        if not names:
            self._pools.pop(pool, None)
            return
        nodes = {self.slices[name].spec.node_name for name in names}
        place = self._places[pool] = nodes.pop() if len(nodes) == 1 else None
        self._own[place][pool] = None

    def read_slices(self) -> dict[int, ResourceSlice]:
        """All that can be read, by the id of the manifest."""
        return {id(self._content(name)): resource_slice for name, resource_slice in self.slices.items()}

    def book(self, pools: Iterable[PoolId]) -> SliceBook:
        """The slices of some pools."""
        names = [name for pool in pools for name in self._pools[pool]]
        contents = [self._content(name) for name in names]
        read = {id(content): self.slices[name] for name, content in zip(names, contents, strict=True)}
        return SliceBook(contents, self.gates, read)

    def absent_devices(self, pool: PoolId, names: set[str]) -> set[str]:
        """See ``SliceBook.absent_devices``."""
        return self.book([pool]).absent_devices(pool, names) if pool in self._pools else names

    def all_slices(self) -> SliceBook:
        return self.book(self._pools)

    def _snapshot(self, node: str, usage: DeviceUsage | None = None) -> Snapshot:
        """The pools of a node, with what claims have of them beyond what is published."""
        book = self.book(self._own[node])
        pools = book.pools(ClusterNode(node))
        recorded = NOTHING_RECORDED if usage is None else recorded_use(usage, book, pools)
        snapshot = local_snapshot(node, pools, self.gates, self._properties, recorded)
        if recorded.records and any(published_device(one).drawn is not None for one in snapshot.devices):
            self._with_recorded.add(node)
        else:
            self._with_recorded.discard(node)
        return snapshot

    @property
    def common_holders(self) -> set[Key]:
        """Claims that hold devices which are not of one node alone."""
        return self.holders.of_pools(self._own.get(None, ()))

    def node_names(self) -> set[str]:
        """Of nodes that have pools of their own, or are known as objects."""
        return {*self.nodes, *(node for node in self._own if node is not None)}

    # -- rules ---------------------------------------------------------------------------------------------------------

    @property
    def rules(self) -> ResourceClaimRules:
        if self._rules is None:
            if self._commons is None:
                self._commons = self._find_commons()
            self._rules = ResourceClaimRules(self.gates, self.index, self.classes, self._commons)
            self.index.forget()
        return self._rules

    def _find_commons(self) -> SharedDevices:
        pools = self._own.get(None)
        if not pools:
            return SharedDevices()
        seen = view_cluster(self.book(pools), self.nodes, self.node_names())
        offers = tuple(offer for offer in list_published_devices(seen.views, None, self.gates) if offer.nodes)
        return SharedDevices(offers, frozenset(seen.broken), seen.unreached)

    # -- claims --------------------------------------------------------------------------------------------------------

    def _read_claim(self, name: Name) -> None:
        """Take note of what a claim came in with, valid or not."""
        if not any(is_allocated(one) for one in self.objects.get(name, ())):
            return
        problem_input = read_documents(self.objects[name], self.gates)
        allocated = [
            (c.key, priority_of(c), c.allocation, records_of_claim(c.annotations)) for c in problem_input.claims
        ]
        allocated += [(refused.key, 0, refused.allocation, NO_RECORDS) for refused in problem_input.refused]
        for key, priority, allocation, records in allocated:
            if allocation is not None:
                self.hold(key, priority, allocation, records)

    def hold(
        self, key: Key, priority: int, allocation: Manifest, records: Mapping[PoolDevice, DeviceRecord] = NO_RECORDS
    ) -> None:
        """A claim has an allocation, in place of any it had. ``records``: what it recorded of its devices."""
        usage = DeviceUsage()
        with suppress(FieldError):  # all that names a device is added
            add_allocation(usage, allocation, "status.allocation", records)
        devices = sorted({*usage.whole, *usage.shared})
        entries = tuple(
            HeldDevice(
                one[:2],
                one[2],
                None if one in usage.whole else tuple(sorted(usage.shared[one].items())),
                next(iter(usage.records[one]), None),
            )
            for one in devices
        )
        held = HeldDevices(priority, None, entries)
        self.free(key)
        places = self._places_to_renew(held)
        self.holders.enter(key, held, () if places else [*self._items(held)])
        if places:
            self._put_again(places, {key})
        self._add_shares(key, [(device, share) for device, ids in usage.share_ids.items() for share in ids])
        self.checker.hold(key, allocation, records)

    def grant(
        self,
        key: Key,
        held: HeldDevices,
        items: Sequence[HeldItem],
        allocation: Manifest,
        records: Mapping[PoolDevice, DeviceRecord],
    ) -> None:
        """The same of an answer of the index."""
        self.free(key)
        self.holders.grant(key, held, items)
        if any(entry.amounts is not None for entry in held.entries):
            results = [one for one in allocation["devices"]["results"] if "shareID" in one and "adminAccess" not in one]
            self._add_shares(key, [((one["driver"], one["pool"], one["device"]), one["shareID"]) for one in results])
        self.checker.hold(key, allocation, records, is_own=True)

    def _add_shares(self, key: Key, shares: list[tuple[DeviceId, str]]) -> None:
        if shares:
            self._shares[key] = shares
        for device, share in shares:
            counts = self.share_ids.setdefault(device, {})
            counts[share] = counts.get(share, 0) + 1

    def free(self, key: Key) -> None:
        """A claim has nothing any more."""
        places = set()
        if self._with_recorded:
            items = self.index.held.get(key, ())
            places = {node for node, device, _ in items if node is not None and self._is_recorded(node, device)}
        if self.holders.leave(key) is None:
            return
        if places:
            self._put_again(places)
        for device, share in self._shares.pop(key, ()):
            counts = self.share_ids[device]
            counts[share] -= 1
            if not counts[share]:
                del counts[share]
            if not counts:
                del self.share_ids[device]
        self.checker.free(key)

    def _items(self, held: HeldDevices) -> Iterator[HeldItem]:
        """What of it is of nodes' own pools; the rest is of the commons, or not there."""
        for pool, device, amounts, _ in held.entries:
            node = self._places.get(pool)
            record = None if node is None else self.index.records.get(node)
            if record is None:
                continue
            name = "/".join(pool)
            if (number := record.find(name, device)) is not None:
                yield node, number, amounts if record.snapshot.devices[number].shareable else None
            elif (ghost := record.find(name, device, ghost=True)) is not None:
                yield node, ghost, None

    def _is_recorded(self, node: str, device: int) -> bool:
        """Whether a device draws more than is published."""
        return published_device(self.index.records[node].snapshot.devices[device]).drawn is not None

    def _places_to_renew(self, held: HeldDevices) -> set[str]:
        """Nodes where the index lacks what a claim has of their own pools, or may lack it."""
        places = set()
        for pool, device, _, recorded in held.entries:
            node = self._places.get(pool)
            record = None if node is None else self.index.records.get(node)
            if node is None or record is None:
                continue
            number = record.find("/".join(pool), device)
            draws = None if number is None else record.snapshot.devices[number].draws
            if draws is None or (recorded is not None and recorded.draws not in (None, draws)):
                places.add(node)
        return places


def _is_unchanged(old: list[Manifest], new: list[Manifest]) -> bool:
    """Whether objects are what they were, to the letter; one that was written on in place is not known to be."""
    if any(one is other for one in old for other in new):
        return False
    try:
        return marshal.dumps(old, 0) == marshal.dumps(new, 0)
    except ValueError:
        return False


def is_allocated(document: Manifest) -> bool:
    """Whether a document is a claim that has an allocation."""
    status: Any = document.get("status")
    is_readable = isinstance(status, MAPPINGS)
    return document.get("kind") == "ResourceClaim" and is_readable and bool(status.get("allocation"))
