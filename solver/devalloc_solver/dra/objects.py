"""The objects of ``resource.k8s.io/v1`` as far as an allocation reads them; ``decode`` makes them from manifests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from devalloc_solver.dra.amounts import Amount

# -- where something is --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Requirement:
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
class NodeTerm:
    """Requirements that hold together."""

    expressions: tuple[Requirement, ...]
    fields: tuple[Requirement, ...]


NodeSelector = tuple[NodeTerm, ...]
"""Terms of which one holds."""


@dataclass(frozen=True, slots=True)
class Reach:
    """Which nodes reach a slice or a device: at most one of the three says so."""

    node_name: str | None = None
    all_nodes: bool = False
    selector: NodeSelector | None = None

    @property
    def is_told(self) -> bool:
        return self.node_name is not None or self.all_nodes or self.selector is not None


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the cluster, as node selectors see it."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)


# -- what there is -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Attribute:
    """A value with its type, one of ``int bool string version``; a list has its members in ``values``."""

    kind: str
    values: tuple[int | bool | str, ...]
    is_list: bool = False
    fault: str | None = None
    """why the value cannot be read by a selector, or None"""


@dataclass(frozen=True, slots=True)
class Range:
    """Amounts from ``least`` on in steps; ``least`` None where a manifest lacks it."""

    least: Amount
    most: Amount | None
    step: Amount | None


@dataclass(frozen=True, slots=True)
class Policy:
    """How requests of a capacity are rounded."""

    default: Amount | None
    values: tuple[Amount, ...]
    range: Range | None


@dataclass(frozen=True, slots=True)
class Capacity:
    """How much a device has of something; ``policy`` where it is shared out in portions."""

    value: Amount
    policy: Policy | None


@dataclass(frozen=True, slots=True)
class Taint:
    """Keeps off whoever does not tolerate it. ``effect``: ``None``, ``NoSchedule`` or ``NoExecute``."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class Consumption:
    """What a device draws from one counter set of its pool."""

    counter_set: str
    counters: Mapping[str, Amount]


@dataclass(frozen=True, slots=True, eq=False)
class Device:
    """A device of a slice; names of attributes and capacities are as written, with or without a domain."""

    name: str
    attributes: Mapping[str, Attribute]
    capacity: Mapping[str, Capacity]
    consumes: tuple[Consumption, ...]
    reach: Reach
    taints: tuple[Taint, ...]
    binds_to_node: bool
    binding_conditions: tuple[str, ...]
    binding_failure_conditions: tuple[str, ...]
    allow_multiple: bool
    uses_groups: bool
    """it consumes counters with compatibility groups (alpha)"""
    uses_allocatable: bool
    """it has nodeAllocatableResources (alpha)"""


@dataclass(frozen=True, slots=True, eq=False)
class Slice:
    """A ResourceSlice."""

    name: str
    driver: str
    pool: str
    generation: int
    slice_count: int
    reach: Reach
    per_device: bool | None
    """perDeviceNodeSelection, None where it is not set"""
    counter_sets: tuple[tuple[str, Mapping[str, Amount]], ...]
    devices: tuple[Device, ...]
    skip_node_operations: tuple[str, ...]

    @property
    def pool_id(self) -> tuple[str, str]:
        """(driver, pool): drivers may share the name of a pool."""
        return self.driver, self.pool


# -- what is asked for ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Toleration:
    """Which taints a request puts up with; an empty ``key`` or ``effect`` stands for all of them."""

    key: str
    operator: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """A request that stands alone, or one subrequest of ``firstAvailable``."""

    name: str
    """as in results: ``request`` or ``request/subrequest``"""
    class_name: str
    selectors: tuple[str, ...]
    is_all: bool
    count: int
    admin: bool
    tolerations: tuple[Toleration, ...]
    told_tolerations: tuple[Mapping[str, Any], ...]
    """the tolerations as written, which the result repeats"""
    capacity: Mapping[str, Amount]
    path: str
    """of the field in the claim"""

    def to_key(self) -> tuple[object, ...]:
        """Equal for what asks for the same under the same name."""
        what = (self.name, self.class_name, self.selectors, self.is_all, self.count, self.admin, self.tolerations)
        return (*what, sorted((name, amount.nano) for name, amount in self.capacity.items()))


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A request with its alternatives: one that stands alone, or the subrequests in order of preference."""

    name: str
    asks: tuple[Ask, ...]
    is_list: bool


@dataclass(frozen=True, slots=True)
class Constraint:
    """matchAttribute or distinctAttribute over the requests it names; over all of them when it names none."""

    attribute: str
    distinct: bool
    requests: frozenset[str]

    def covers(self, request: Request, ask: Ask) -> bool:
        """Whether it is about the devices of this alternative of the request."""
        return not self.requests or request.name in self.requests or ask.name in self.requests


@dataclass(frozen=True, slots=True, eq=False)
class Claim:
    """A ResourceClaim."""

    namespace: str
    name: str
    uid: str
    requests: tuple[Request, ...]
    constraints: tuple[Constraint, ...]
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


def holder(namespace: str, name: str, allocation: Mapping[str, Any]) -> Claim:
    """A claim of which only what it holds matters."""
    return Claim(namespace, name, "", (), (), (), allocation, {}, None, False, {})


@dataclass(frozen=True, slots=True, eq=False)
class Class:
    """A DeviceClass."""

    name: str
    selectors: tuple[str, ...]
    config: tuple[Mapping[str, Any], ...]
