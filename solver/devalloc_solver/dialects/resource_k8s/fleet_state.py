"""The objects of a cluster as they come and go, and what each change affects: one node, one claim, or the rules."""

from __future__ import annotations

import marshal
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from typing import Any

from devalloc.api.device_records import DeviceRecord, PoolDevice
from devalloc.api.json_content import MAPPINGS
from devalloc_solver.dialects.resource_k8s import feature_gates as gate
from devalloc_solver.dialects.resource_k8s import taint_rules
from devalloc_solver.dialects.resource_k8s.cluster_check import ClusterChecker
from devalloc_solver.dialects.resource_k8s.decode import read_slice
from devalloc_solver.dialects.resource_k8s.device_properties import DeviceReader, MetProperties, make_snapshot
from devalloc_solver.dialects.resource_k8s.fields import FieldError
from devalloc_solver.dialects.resource_k8s.fleet_rules import ResourceClaimRules
from devalloc_solver.dialects.resource_k8s.manifests import (
    ClusterInput,
    Key,
    name_clash,
    priority_of,
    read_documents,
    record_left_out,
)
from devalloc_solver.dialects.resource_k8s.pools import (
    ClusterView,
    PoolId,
    PoolView,
    ResourcePool,
    SliceBook,
    faults_by_driver,
    view_cluster,
)
from devalloc_solver.dialects.resource_k8s.published_devices import (
    NO_RECORDS,
    DeviceId,
    DevicesInUse,
    DeviceUsage,
    add_allocation,
    list_published_devices,
    overdrawn_counters,
    published_device,
    recorded_use,
    records_of_claim,
)
from devalloc_solver.dialects.resource_k8s.slices import ClusterNode, ResourceSlice
from devalloc_solver.fleet.backend import Manifest
from devalloc_solver.fleet.node_index import HeldAmounts, HeldDevice, HeldDevices, HeldItem
from devalloc_solver.fleet.pool_states import NodeRecord
from devalloc_solver.fleet.state import NO_KEYS, FleetState, Name, Node
from devalloc_solver.problem.allocations import HELD_BEFORE, LEAVING, Leave
from devalloc_solver.problem.ordering import natural_key
from devalloc_solver.problem.placement_policy import PlacementPolicy
from devalloc_solver.problem.snapshot import Device, Snapshot


def usage_of(entries: Iterable[HeldDevice]) -> DeviceUsage:
    """What claims hold, as a usage."""
    usage = DeviceUsage()
    for pool, name, amounts, record in entries:
        device = *pool, name
        if amounts is None:
            usage.whole.add(device)
        else:
            usage.add_share(device, None, dict(amounts))
        usage.records[device].append(record)
    return usage


class ClusterState(FleetState):
    """Objects, and all that is kept up to date with them.

    A pool whose slices are all of one node is that node's own; those of all others are in the index as the network's.
    """

    claim_kind = "ResourceClaim"
    objects: dict[Name, list[Manifest]]

    def __init__(
        self, documents: Iterable[tuple[Name, Manifest]], gates: frozenset[str], policy: PlacementPolicy
    ) -> None:
        """Read everything at once."""
        super().__init__(documents, policy)
        self.gates = gates
        self.nodes: dict[str, ClusterNode] = {}
        """the Node objects"""
        self.slices: dict[Name, ResourceSlice] = {}
        """those that can be read"""
        self.checked: dict[ResourceSlice, FieldError | None] = {}
        """what the API server refuses of them, as far as that was asked"""
        self._left_out: dict[Name, FieldError] = {}
        """why others are left out"""
        self._broken: dict[Node, list[ResourcePool]] = {}
        """pools that are incomplete or invalid"""
        self._faults: dict[str, str] | None = None
        self.tainted: dict[Name, Manifest] = {}
        """slices with the taints of DeviceTaintRules, if any rule is for their devices"""
        self.taint_rules: tuple[Manifest, ...] = ()
        """the DeviceTaintRules"""
        self.classes = ClusterInput()
        self.share_ids: dict[DeviceId, dict[str, int]] = {}
        """ids of shares in use, and how many claims have them"""
        self._shares: dict[Key, list[tuple[DeviceId, str]]] = {}
        """the shares of claims that have any"""
        self.checker = ClusterChecker(gates)
        self.layout = 0
        """changes with slices and nodes"""
        self.seen: ClusterView | None = None
        """what nodes see of the pools that are not of one node; None without such pools"""
        self._rules: ResourceClaimRules | None = None
        self._is_network_stale = False
        """whether what the index has of these pools is from before slices or nodes changed"""
        self._properties: MetProperties = {}
        self._pools: dict[PoolId, dict[Name, None]] = {}
        self._places: dict[PoolId, Node] = {}
        """pool -> the node that it is of"""
        self._own: dict[Node, dict[PoolId, None]] = defaultdict(dict)
        """node -> its pools"""
        self._network_devices = DevicesInUse(())
        """says what claims have of the network"""
        self._load()

    def _load(self) -> None:
        self._read_rules()
        for name in self.objects:
            if name[0] == "ResourceSlice":
                self._read_slice(name)
            elif name[0] == "Node":
                self._read_node(name)
        for pool in self._pools:
            self._settle(pool)
        self.load_nodes([*self._own])
        self._read_classes()
        for name in self.objects:
            if name[0] == "ResourceClaim":
                self._read_claim(name)

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def _read_node_pools(self, node: Node, held: Sequence[HeldDevice], changed: Set[object]) -> Snapshot | None:
        self._note_broken(node, ())
        if node not in self._own:
            if node is None:
                self.seen, self._network_devices = None, DevicesInUse(())
            return None
        book, usage = self.book(self._own[node]), usage_of(held)
        if node is None:
            seen = self.seen = view_cluster(book, self.nodes, self.node_names())
            views, is_broken = seen.views, False
        else:
            here = ClusterNode(node)
            views = tuple(PoolView(pool, (here,)) for pool in book.pools(here))
            is_broken = not all(view.pool.is_complete for view in views)
        self._note_broken(node, [view.pool for view in views if not view.pool.is_complete])
        recorded = recorded_use(usage, book, [view.pool for view in views])
        offers = list_published_devices(views, usage if node is None else None, self.gates, recorded)
        if node is None:
            self._network_devices = DevicesInUse(offers)
        overdrawn = overdrawn_counters(offers, DeviceUsage())
        reader = DeviceReader(self.gates, True, self._properties, overdrawn, is_broken)
        return make_snapshot(offers, () if node is None else (node,), reader, node)

    def _note_broken(self, node: Node, pools: Sequence[ResourcePool]) -> None:
        if pools or node in self._broken:
            self._broken[node], self._faults = [*pools], None
        if not pools:
            self._broken.pop(node, None)

    def _is_only_in_use(self, device: Device) -> bool:
        offer = published_device(device)
        return offer.drawn is not None or not offer.nodes

    def _nodes_of(self, held: HeldDevices, entry: HeldDevice) -> Sequence[Node]:
        return (self._places[entry.pool],) if entry.pool in self._places else ()

    def _pool_name(self, entry: HeldDevice) -> str:
        return "/".join(entry.pool)

    def _find(self, node: Node, record: NodeRecord, entry: HeldDevice) -> Sequence[tuple[int, HeldAmounts | None]]:
        if node is None:
            return [(item.device, item.amounts) for item in self._network_devices.items(usage_of([entry]))]
        name = self._pool_name(entry)
        if (device := record.find(name, entry.device)) is not None:
            return [(device, entry.amounts if record.snapshot.devices[device].shareable else None)]
        ghost = record.find(name, entry.device, ghost=True)
        return [] if ghost is None else [(ghost, None)]

    def _renew(self, nodes: Set[Node], keys: Set[Key] = NO_KEYS) -> None:
        """The network, which takes longer, follows when it is next asked for."""
        self._is_network_stale |= None in nodes
        if local := nodes - {None}:
            self._put_again(local, keys)

    # -- changes -------------------------------------------------------------------------------------------------------

    def replace(self, name: Name, documents: list[Manifest]) -> bool:
        """These are the objects of a name now, if any. Returns whether that changes more than what one claim holds."""
        old = self.objects.pop(name, [])
        if documents:
            self.objects[name] = documents
        key = name[1], name[2]
        held = self.allocations.get(key) if name[0] == "ResourceClaim" else None
        is_more = self._replaced(name, old, documents)
        if name[0] == "ResourceClaim":
            may_be_wrong = self._may_be_wrong(old, documents, held, self.allocations.get(key))
        else:
            may_be_wrong = is_more or name[0] not in ("ResourceSlice", "DeviceClass", "Node")
        self.edition += may_be_wrong
        return is_more

    def remove(self, name: Name) -> bool:
        is_there = name in self.objects
        if is_there:
            self.replace(name, [])
        return is_there

    def _may_be_wrong(
        self, old: list[Manifest], new: list[Manifest], before: HeldDevices | None, now: HeldDevices | None
    ) -> bool:
        """Whether something may be wrong with a claim or with what it holds, now that it replaced another state."""
        if len(new) > 1:
            return True
        if not new or not is_allocated(new[0]):
            return bool(new) and len(old) > 1
        return now is None or now != before or len(old) != 1 or old[0].get("spec") != new[0].get("spec")

    def _replaced(self, name: Name, old: list[Manifest], documents: list[Manifest]) -> bool:
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
        self._renew(places, self.holders.of_pools(pools))
        self.layout += 1
        self._is_network_stale |= None in self._own and names != self.node_names()

    def effective(self, name: Name, documents: Sequence[Manifest]) -> Sequence[Manifest]:
        """The objects of a name as they count: slices with the taints of rules, which are then no objects."""
        if name[0] == taint_rules.KIND:
            return [] if name[2] in {str(rule["metadata"]["name"]) for rule in self.taint_rules} else documents
        return [self.tainted[name]] if name in self.tainted else documents

    def _read_rules(self) -> None:
        self.taint_rules = tuple(read_documents(self.of_kind(taint_rules.KIND), self.gates).rules)

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
        self._is_network_stale |= None in self._own
        return True

    def _read_node(self, name: Name) -> None:
        self.nodes.pop(name[2], None)
        node_input = read_documents(self.objects.get(name, ()), self.gates)
        self.nodes |= node_input.nodes
        self.edition += bool(node_input.problems)
        node = self.nodes.get(name[2])
        self.checker.set_node(name[2], {} if node is None else node.labels)

    def _read_classes(self) -> None:
        self.classes = read_documents(self.of_kind("DeviceClass"), self.gates)
        self.checker.classes = self.classes.class_manifests
        self._rules = None

    # -- slices --------------------------------------------------------------------------------------------------------

    def _read_slice(self, name: Name) -> None:
        """Take note of a slice, or that it is gone, as ``documents`` reads it."""
        old = self.slices.pop(name, None)
        self.tainted.pop(name, None)
        self._left_out.pop(name, None)
        self._faults = None
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
    def faults(self) -> Mapping[str, str]:
        """See ``faults_by_driver``."""
        if self._faults is None:
            left_out: dict[str, str] = {}
            for name, error in self._left_out.items():
                for content in self.objects[name]:
                    record_left_out(left_out, content, error)
            self._faults = faults_by_driver(left_out, (pool for own in self._broken.values() for pool in own))
        return self._faults

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

    def all_nodes(self) -> Sequence[str]:
        """All nodes, also those that only name devices of the network, in natural order."""
        return sorted(self.node_names(), key=natural_key) if self.seen is None else [*self.seen.nodes]

    def node_names(self) -> set[str]:
        """Of nodes that have pools of their own, or are known as objects."""
        return {*self.nodes, *(node for node in self._own if node is not None)}

    # -- rules ---------------------------------------------------------------------------------------------------------

    @property
    def rules(self) -> ResourceClaimRules:
        if self._is_network_stale:
            self._is_network_stale = False
            self._put_again({None}, self.holders.of_pools(self._own.get(None, ())))
        broken = frozenset() if self.seen is None else frozenset(self.seen.broken)
        if self._rules is None or self._rules.broken != broken:
            self._rules = ResourceClaimRules(self.gates, self.index, self.classes, broken)
            self.index.forget()
        return self._rules

    # -- claims --------------------------------------------------------------------------------------------------------

    def _read_claim(self, name: Name) -> None:
        """Take note of what a claim came in with, valid or not."""
        if not any(is_allocated(one) for one in self.objects.get(name, ())):
            return
        problem_input = read_documents(self.objects[name], self.gates)
        for claim in problem_input.claims:
            if claim.allocation is not None:
                leave = LEAVING if claim.metadata.is_deleting else HELD_BEFORE
                self.hold(claim.key, priority_of(claim), claim.allocation, records_of_claim(claim.annotations), leave)
        for refused in problem_input.refused:
            if refused.allocation is not None:
                self.hold(refused.key, 0, refused.allocation)

    def hold(
        self,
        key: Key,
        priority: int,
        allocation: Manifest,
        records: Mapping[PoolDevice, DeviceRecord] = NO_RECORDS,
        leave: Leave = HELD_BEFORE,
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
        held = HeldDevices(priority, None, entries, leave)
        self.free(key)
        self._hold(key, held)
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
        if self._let_go(key) is None:
            return
        for device, share in self._shares.pop(key, ()):
            counts = self.share_ids[device]
            counts[share] -= 1
            if not counts[share]:
                del counts[share]
            if not counts:
                del self.share_ids[device]
        self.checker.free(key)


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
