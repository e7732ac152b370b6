"""The objects of ``resource.k8s.io/v1`` as far as an allocation reads them; ``decode`` makes them from manifests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from devalloc_solver.dialects.resource_k8s.quantities import Amount

# -- where something is ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeSelectorRequirement:
    """One line of a node selector: a label or field, an operator, values."""

    key: str
    operator: str
    values: tuple[str, ...]

    @property
    def identity(self) -> tuple[str, str, frozenset[str]]:
        """Equal for requirements that say the same."""
        return self.key, self.operator, frozenset(self.values)

    def to_manifest(self) -> dict[str, Any]:
        shown: dict[str, Any] = {"key": self.key, "operator": self.operator}
        return shown | {"values": list(self.values)} if self.values else shown


@dataclass(frozen=True, slots=True)
class NodeSelectorTerm:
    """Requirements that hold together."""

    expressions: tuple[NodeSelectorRequirement, ...]
    fields: tuple[NodeSelectorRequirement, ...]


NodeSelector = tuple[NodeSelectorTerm, ...]
"""Terms of which one holds."""


@dataclass(frozen=True, slots=True)
class NodeAccess:
    """Which nodes reach a slice or a device: at most one of the three says so."""

    node_name: str | None = None
    all_nodes: bool = False
    selector: NodeSelector | None = None

    @property
    def is_specified(self) -> bool:
        return self.node_name is not None or self.all_nodes or self.selector is not None


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A node of the cluster, as node selectors see it."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)


# -- what there is -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeviceAttribute:
    """A value with its type, one of ``int bool string version``; a list has its members in ``values``."""

    kind: str
    values: tuple[int | bool | str, ...]
    is_list: bool = False
    fault: str | None = None
    """why the value cannot be read by a selector, or None"""


@dataclass(frozen=True, slots=True)
class CapacityRange:
    """Amounts from ``least`` on in steps; ``least`` None where a manifest lacks it."""

    least: Amount
    most: Amount | None
    step: Amount | None


@dataclass(frozen=True, slots=True)
class CapacityRequestPolicy:
    """How requests of a capacity are rounded."""

    default: Amount | None
    values: tuple[Amount, ...]
    range: CapacityRange | None


@dataclass(frozen=True, slots=True)
class DeviceCapacity:
    """How much a device has of something; ``policy`` where it is shared out in portions."""

    value: Amount
    policy: CapacityRequestPolicy | None


@dataclass(frozen=True, slots=True)
class DeviceTaint:
    """Keeps off claims that do not tolerate it. ``effect``: ``None``, ``NoSchedule`` or ``NoExecute``."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True, eq=False)
class CounterConsumption:
    """What a device draws from one counter set of its pool."""

    counter_set: str
    counters: Mapping[str, Amount]


@dataclass(frozen=True, slots=True, eq=False)
class SliceDevice:
    """A device of a slice; names of attributes and capacities are as written, with or without a domain."""

    name: str
    attributes: Mapping[str, DeviceAttribute]
    capacity: Mapping[str, DeviceCapacity]
    consumes: tuple[CounterConsumption, ...]
    reach: NodeAccess
    taints: tuple[DeviceTaint, ...]
    binds_to_node: bool
    binding_conditions: tuple[str, ...]
    binding_failure_conditions: tuple[str, ...]
    allow_multiple: bool
    uses_groups: bool
    """it consumes counters with compatibility groups (alpha)"""
    uses_allocatable: bool
    """it has nodeAllocatableResources (alpha)"""


@dataclass(frozen=True, slots=True, eq=False)
class ResourceSlice:
    """A ResourceSlice."""

    name: str
    driver: str
    pool: str
    generation: int
    slice_count: int
    reach: NodeAccess
    per_device: bool | None
    """perDeviceNodeSelection, None where it is not set"""
    counter_sets: tuple[tuple[str, Mapping[str, Amount]], ...]
    devices: tuple[SliceDevice, ...]
    skip_node_operations: tuple[str, ...]

    @property
    def pool_id(self) -> tuple[str, str]:
        """(driver, pool): drivers may share the name of a pool."""
        return self.driver, self.pool


# -- what is asked for -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeviceToleration:
    """Which taints a request puts up with; an empty ``key`` or ``effect`` stands for all of them."""

    key: str
    operator: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True, eq=False)
class SubRequest:
    """A request that stands alone, or one subrequest of ``firstAvailable``."""

    name: str
    """as in results: ``request`` or ``request/subrequest``"""
    class_name: str
    selectors: tuple[str, ...]
    is_all: bool
    count: int
    admin: bool
    tolerations: tuple[DeviceToleration, ...]
    toleration_manifests: tuple[Mapping[str, Any], ...]
    """the tolerations as written, which the result repeats"""
    capacity: Mapping[str, Amount]
    path: str
    """of the field in the claim"""

    def to_key(self) -> tuple[object, ...]:
        """Equal for what asks for the same under the same name."""
        what = (self.name, self.class_name, self.selectors, self.is_all, self.count, self.admin, self.tolerations)
        return (*what, sorted((name, amount.nano) for name, amount in self.capacity.items()))


@dataclass(frozen=True, slots=True, eq=False)
class DeviceRequest:
    """A request with its alternatives: one that stands alone, or the subrequests in order of preference."""

    name: str
    asks: tuple[SubRequest, ...]
    is_list: bool


@dataclass(frozen=True, slots=True)
class DeviceConstraint:
    """matchAttribute or distinctAttribute over the requests it names; over all of them when it names none."""

    attribute: str
    distinct: bool
    requests: frozenset[str]

    def covers(self, request: DeviceRequest, ask: SubRequest) -> bool:
        """Whether it is about the devices of this alternative of the request."""
        return not self.requests or request.name in self.requests or ask.name in self.requests


@dataclass(frozen=True, slots=True, eq=False)
class ResourceClaim:
    """A ResourceClaim."""

    namespace: str
    name: str
    uid: str
    requests: tuple[DeviceRequest, ...]
    constraints: tuple[DeviceConstraint, ...]
    config: tuple[Mapping[str, Any], ...]
    allocation: Mapping[str, Any] | None
    """status.allocation"""
    annotations: Mapping[str, str]
    created: str | None
    is_deleting: bool
    spec: Mapping[str, Any]
    """as written"""

    @property
    def title(self) -> str:
        """The claim in messages, such as "default/c"."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


def claim_with_allocation(namespace: str, name: str, allocation: Mapping[str, Any]) -> ResourceClaim:
    """A claim of which only what it holds matters."""
    return ResourceClaim(namespace, name, "", (), (), (), allocation, {}, None, False, {})


@dataclass(frozen=True, slots=True, eq=False)
class ResourceDeviceClass:
    """A DeviceClass."""

    name: str
    selectors: tuple[str, ...]
    config: tuple[Mapping[str, Any], ...]
