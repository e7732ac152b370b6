"""Reading an instance for the oracle: what claim-semantics S1-S14 and S18 say about each document, and nothing clever.

Written from the text of the rules alone; it shares the API models (quantities, versions, validation) and the CEL
evaluator with the solver, and no other code.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from devalloc.api.claim import COUNT, DeviceClaim, DeviceClaimDetail
from devalloc.api.device_class import DeviceClass
from devalloc.api.meta import COMPATIBILITY_GROUP, DEVMGMT, GROUP, ONLY_CLASS, UNAVAILABLE, parse_time
from devalloc.api.pool import AttributeValue, DevicePool, ResourceCapacity
from devalloc.api.quantity import Quantity, ceil_blocks, floor_blocks
from devalloc.api.semver import SemVer
from devalloc_solver.cel import device_claims as cel

Key = tuple[str, str]
Value = tuple[str, object]

WHOLE, SHARE, ADMIN = "whole", "share", "admin"
NEVER = datetime.max.replace(tzinfo=UTC)
"""The creation time of claims that have none: they sort last (S17)."""


@dataclass
class Pool:
    """A valid pool; ``free`` are the blocks of pool resources that held devices leave (S12)."""

    name: str
    node: str | None
    driver: str
    free: dict[str, int]
    compatibility: set[Value] = field(default_factory=set)
    """The groups of held devices (S12a)."""
    blocks: dict[str, int] = field(default_factory=dict)
    """Pool resource: all blocks (S12)."""


@dataclass
class Device:
    """One device, with what held claims leave of it."""

    pool: int
    key: tuple[str | None, str, str, str]
    """(node, driver, pool, device), S2."""
    attributes: dict[str, AttributeValue]
    capacity: dict[str, tuple[int, int]]
    """Resource: (usable blocks, nano units per block), S11."""
    draws: dict[str, int]
    """Pool resource: blocks (S12)."""
    never: bool
    """Draws on a resource that its pool does not define."""
    held_whole: bool = False
    held: dict[str, int] = field(default_factory=dict)
    """Resource: blocks that held shares take."""
    in_use: bool = False
    """Held by a claim, whole or in part: its draws are in the pool's ``free`` already."""

    @property
    def compatibility(self) -> Value | None:
        return self.value(COMPATIBILITY_GROUP)

    @property
    def unavailable(self) -> bool:
        return UNAVAILABLE in self.attributes

    def value(self, name: str) -> Value | None:
        """A value that equals another's exactly when S3 says so."""
        match self.attributes.get(name):
            case None:
                return None
            case str(text):
                return "string", text
            case int(number):
                return "int", number
            case Quantity() as amount:
                return "quantity", amount.nano
            case SemVer() as version:
                return "semver", version.text

    def free(self, resource: str) -> int:
        """Blocks left for shares."""
        return max(0, self.capacity.get(resource, (0, 1))[0] - self.held.get(resource, 0))

    def full(self, resource: str) -> int:
        """Usable capacity in nano units (S10)."""
        blocks, block = self.capacity.get(resource, (0, 1))
        return blocks * block


@dataclass(frozen=True)
class Detail:
    """One alternative of a spec entry, in numbers."""

    mode: str
    candidates: tuple[int, ...]
    least: int
    """Devices at least."""
    most: int | None
    """Devices at most; None for no cap. For admin details: of all that match."""
    every: bool
    """Admin without a count: all matching devices (S14)."""
    requests: Mapping[str, int]
    limits: Mapping[str, int]
    match: tuple[str, ...]


@dataclass(frozen=True)
class Claim:
    """A pending claim that can be solved."""

    key: Key
    priority: int
    created: datetime
    match: tuple[str, ...]
    entries: tuple[tuple[Detail, ...], ...]
    """Per entry of spec.claims its alternatives."""
    is_one_of: tuple[bool, ...]
    in_group: bool
    shared: tuple[str, ...] = ()
    """Attributes with one value on the devices of all members of its group that name them."""

    @property
    def order(self) -> tuple[Any, ...]:
        return self.created, *self.key


@dataclass
class Group:
    """Claims that share a node and are satisfied all or none."""

    claims: list[Claim] = field(default_factory=list)
    nodes: set[str] = field(default_factory=set)
    """Nodes that pins and allocated members demand; more than one cannot be met."""
    failed: bool = False
    agreed: dict[str, Value] = field(default_factory=dict)
    """What devices that members hold have of the attributes that these members name."""


@dataclass
class Instance:
    """Everything the search needs."""

    pools: list[Pool]
    devices: list[Device]
    groups: list[Group]
    reasons: dict[Key, set[str]]
    """Claims that cannot be solved as they stand: the reason codes that would be true."""
    allocated: set[Key]
    nodes: list[str]
    """Where a claim without a pin may be; on no node when there are none."""
    nowhere: bool = False
    """Whether claims without group and pin may be on no node even so."""


def read(documents: Iterable[Mapping[str, Any]]) -> Instance:
    """The instance that these manifests describe."""
    by_kind: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    configs = set()
    for document in documents:
        meta = document["metadata"]
        if document["apiVersion"] == DEVMGMT:
            by_kind[document["kind"]].append(document)
        else:
            configs.add((document["apiVersion"], document["kind"], meta.get("namespace", "default"), meta["name"]))
    pools, devices = _fleet(by_kind["DevicePool"])
    reader = _ClaimReader(devices, _classes(by_kind["DeviceClass"]), configs)
    names = Counter(_key(claim) for claim in by_kind["DeviceClaim"])
    nodes = sorted({pool.node for pool in pools if pool.node is not None})
    instance = Instance(pools, devices, [], {}, set(), nodes)
    groups: dict[tuple[str, ...], Group] = defaultdict(Group)
    for document in by_kind["DeviceClaim"]:
        key = _key(document)
        label = document["metadata"].get("annotations", {}).get(GROUP)
        group = groups[("group", key[0], label) if label else ("claim", *key)]
        parsed = _parse(DeviceClaim, document) if names[key] == 1 else None
        if parsed is None:
            instance.reasons[key] = {"ClaimInvalid"}
            group.failed = True
        elif parsed.is_allocated:
            instance.allocated.add(key)
            node = _hold(parsed, reader, pools, devices)
            if node is not None:
                group.nodes.add(node)
            for name in parsed.group_match:
                for device in _held_by(parsed, pools, devices):
                    values = {device.value(name), group.agreed.get(name, device.value(name))}
                    group.agreed[name] = values.pop() or _NONE if len(values) == 1 else _NONE
        else:
            problems = {"Deleting"} if parsed.is_deleting else set()
            claim = reader.read(parsed, problems)
            if problems:
                instance.reasons[key] = problems
                group.failed = True
            else:
                group.claims.append(claim)
            if parsed.pinned_node is not None:
                group.nodes.add(parsed.pinned_node)
    instance.groups = [group for group in groups.values() if group.claims]
    return instance


_NONE: Value = ("none", None)
"""What no device has."""


def _held_by(claim: DeviceClaim, pools: Sequence[Pool], devices: Sequence[Device]) -> Iterable[Device]:
    node = claim.allocated_node or claim.pinned_node
    for entry in claim.status.allocations if claim.status is not None else ():
        for device in devices:
            pool = pools[device.pool]
            if (pool.name, device.key[3]) == (entry.device_pool_name, entry.device_name) and pool.node in (node, None):
                yield device


def _parse(model: type[Any], document: Mapping[str, Any]) -> Any:
    try:
        return model.model_validate(document)
    except ValidationError:
        return None


def _key(claim: Mapping[str, Any]) -> Key:
    return claim["metadata"].get("namespace", "default"), claim["metadata"]["name"]


def _nano(amounts: Mapping[str, Quantity]) -> dict[str, int]:
    return {name: amount.nano for name, amount in amounts.items() if name != COUNT}


# -- pools -----------------------------------------------------------------------------------------------------------


def _fleet(documents: Sequence[Mapping[str, Any]]) -> tuple[list[Pool], list[Device]]:
    valid = [pool for pool in (_parse(DevicePool, document) for document in documents) if pool is not None]
    names = Counter(pool.metadata.name for pool in valid)
    on_node = Counter((pool.metadata.name, pool.spec.node_name) for pool in valid)
    pools: list[Pool] = []
    devices: list[Device] = []
    for pool in valid:
        name, node = pool.metadata.name, pool.spec.node_name
        # S2: no two pools that one node can reach share a name, and every node reaches network pools.
        network = on_node[name, None]
        if on_node[name, node] > 1 or (network and names[name] > network):
            continue
        resources = {r.name: r for r in pool.spec.resources}
        free = {r.name: floor_blocks(r.capacity, r.block) for r in pool.spec.resources}
        shared = {a.name: a.value for a in pool.spec.attributes}
        for device in pool.spec.devices:
            devices.append(
                Device(
                    pool=len(pools),
                    key=(node, pool.spec.driver, name, device.name),
                    attributes=shared | {a.name: a.value for a in device.attributes},
                    capacity={r.name: (floor_blocks(r.capacity, r.block), r.block.nano) for r in device.resources},
                    draws=_draws(device.requests, resources),
                    never=not device.requests.keys() <= resources.keys(),
                )
            )
        pools.append(Pool(name, node, pool.spec.driver, free, blocks=dict(free)))
    return pools, devices


def _draws(requests: Mapping[str, Quantity], resources: Mapping[str, ResourceCapacity]) -> dict[str, int]:
    return {name: ceil_blocks(amount, resources[name].block) for name, amount in requests.items() if name in resources}


# -- classes and claims ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Class:
    name: str
    driver: str
    device_type: str
    admin: bool
    program: cel.Program | None
    configs: frozenset[tuple[str, str, str, str]]


def _classes(documents: Sequence[Mapping[str, Any]]) -> dict[str, _Class | None]:
    """Classes by name; None for the invalid ones."""
    names = Counter(document["metadata"]["name"] for document in documents)
    classes: dict[str, _Class | None] = {}
    for document in documents:
        name = document["metadata"]["name"]
        parsed = _parse(DeviceClass, document) if names[name] == 1 else None
        classes[name] = None
        if parsed is None:
            continue
        try:
            program = cel.compile(parsed.spec.constraints) if parsed.spec.constraints else None
        except cel.CompileError:
            continue
        configs = frozenset((c.api_version, c.kind, c.namespace, c.name) for c in parsed.spec.configs)
        spec = parsed.spec
        classes[name] = _Class(name, spec.driver, spec.device_type, bool(spec.admin_access), program, configs)
    return classes


def _holds(program: cel.Program | None, device: Device) -> bool:
    if program is None:
        return True
    try:
        return program.evaluate(device.attributes, cel.Budget(10**9))
    except cel.EvaluationError:
        return False


class _ClaimReader:
    def __init__(
        self,
        devices: Sequence[Device],
        classes: Mapping[str, _Class | None],
        configs: set[tuple[str, str, str, str]],
    ) -> None:
        self.devices = devices
        self.classes = classes
        self.configs = configs

    def read(self, claim: DeviceClaim, problems: set[str]) -> Claim:
        """The claim in numbers; what keeps it from being solved is added to ``problems``."""
        created = claim.metadata.creation_timestamp
        return Claim(
            key=claim.key,
            priority=claim.priority,
            created=parse_time(created) if created else NEVER,
            match=tuple(claim.spec.match_attributes),
            entries=tuple(
                tuple(self._detail(detail, claim.namespace, problems) for detail in entry.alternatives)
                for entry in claim.spec.claims
            ),
            is_one_of=tuple(bool(entry.one_of) for entry in claim.spec.claims),
            in_group=claim.group is not None,
            shared=claim.group_match,
        )

    def is_admin(self, detail: DeviceClaimDetail) -> bool:
        named = self.classes.get(detail.device_class) if detail.device_class else None
        return named is not None and named.admin

    def _detail(self, detail: DeviceClaimDetail, namespace: str, problems: set[str]) -> Detail:
        classes = self._named(detail, problems)
        references = {(c.api_version, c.kind, namespace, c.name) for c in detail.configs}
        if detail.device_class:
            references |= {reference for c in classes or () for reference in c.configs}
        if not references <= self.configs:
            problems.add("ConfigNotFound")
        try:
            program = cel.compile(detail.constraints) if detail.constraints else None
        except cel.CompileError:
            problems.add("ClaimInvalid")
            program = None
        admin = self.is_admin(detail)
        candidates = [
            index
            for index, device in enumerate(self.devices)
            if not device.never
            and (admin or not device.unavailable)
            and (admin or device.attributes.get(ONLY_CLASS, detail.device_class) == detail.device_class)
            and (classes is None or any(_accepts(c, device) for c in classes))
            and _holds(program, device)
        ]
        count = _whole_number(detail.requests.get(COUNT))
        cap = _whole_number(detail.limits.get(COUNT))
        whole = count is not None or not detail.requests
        if cap is None and whole and not admin:
            cap = count or 1
        return Detail(
            mode=ADMIN if admin else WHOLE if whole else SHARE,
            candidates=tuple(candidates),
            least=count or 1,
            most=count if admin and count else cap,
            every=admin and count is None,
            requests={} if admin else _nano(detail.requests),
            limits={} if admin else _nano(detail.limits),
            match=tuple(detail.match_attributes),
        )

    def _named(self, detail: DeviceClaimDetail, problems: set[str]) -> list[_Class] | None:
        """The classes a detail draws on; None for any device at all (S5)."""
        if detail.device_class:
            if detail.device_class not in self.classes:
                problems.add("ClassNotFound")
                return []
            named = self.classes[detail.device_class]
            if named is None:
                problems.add("ClassInvalid")
                return []
            return [named] if not detail.device_type or named.device_type == detail.device_type else []
        if detail.device_type:
            valid = [c for c in self.classes.values() if c is not None and not c.admin]
            return [c for c in valid if c.device_type == detail.device_type]
        return None


def _accepts(named: _Class, device: Device) -> bool:
    return (not named.driver or named.driver == device.key[1]) and _holds(named.program, device)


def _whole_number(amount: Quantity | None) -> int | None:
    return None if amount is None else amount.as_integer()


# -- what allocated claims hold --------------------------------------------------------------------------------------


def _hold(claim: DeviceClaim, reader: _ClaimReader, pools: Sequence[Pool], devices: Sequence[Device]) -> str | None:
    """Take the claim's devices out of the fleet (S18); returns the node it is on, if it is on one (S2)."""
    assert claim.status is not None
    node = claim.allocated_node or claim.pinned_node
    details = claim.allocation_details()
    alternatives = [entry.alternatives for entry in claim.spec.claims]
    all_admin = all(reader.is_admin(detail) for entry in alternatives for detail in entry)
    by_name: dict[tuple[str, str], list[Device]] = defaultdict(list)
    for device in devices:
        if node is None or pools[device.pool].node in (None, node):
            by_name[device.key[2], device.key[3]].append(device)
    nodes = set()
    for position, entry in enumerate(claim.status.allocations):
        named = by_name.get((entry.device_pool_name, entry.device_name), [])
        if details is None:
            admin = all_admin
        else:
            index, alternative = details[position]
            admin = reader.is_admin(alternatives[index][alternative or 0])
        if not named and not admin:
            there = [
                n for n, p in enumerate(pools) if p.name == entry.device_pool_name and p.node in (None, node or p.node)
            ]
            if len(there) == 1:
                _take_missing(pools[there[0]], [device for device in devices if device.pool == there[0]])
        if len(named) != 1:
            continue
        device = named[0]
        nodes.add(device.key[0])
        if not admin:
            _take(device, pools[device.pool], {a.name: a.allocation for a in entry.allocations})
    nodes.discard(None)
    return node or (nodes.pop() if len(nodes) == 1 else None)


def _take_missing(pool: Pool, devices: Sequence[Device]) -> None:
    """A device that its pool does not publish, and of which no claim here records anything, counts for all that the
    pool has, and goes with no group (S18)."""
    pool.free = dict.fromkeys(pool.free, 0)
    if any(device.compatibility is not None for device in devices):
        pool.compatibility.add(_NONE)


def _take(device: Device, pool: Pool, amounts: Mapping[str, Quantity]) -> None:
    if not device.in_use:
        for resource, blocks in device.draws.items():
            pool.free[resource] -= blocks
        if device.compatibility is not None:
            pool.compatibility.add(device.compatibility)
    device.in_use = True
    if not amounts:
        device.held_whole = True
    for resource, amount in amounts.items():
        if resource in device.capacity:
            blocks = -(-amount.nano // device.capacity[resource][1])
            device.held[resource] = device.held.get(resource, 0) + blocks
