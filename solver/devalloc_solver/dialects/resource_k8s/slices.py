"""What there is, of ``resource.k8s.io/v1``: slices with their devices, nodes, and node selectors.

``decode`` has pydantic read the objects from manifests; ``fields`` says how strictly. Each has the fields that an
allocation reads, and those that it may ignore.

Node selectors have labels and fields, all operators, and the rules of Kubernetes: terms are alternatives, the
requirements of a term hold together, an empty term selects nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, Field, PlainValidator, WrapValidator

from devalloc.api.content_cache import ContentCache
from devalloc.api.fields import raise_faults
from devalloc.api.json_content import INVALID_UNICODE, is_valid_unicode
from devalloc.api.meta import is_label_value
from devalloc.api.quantity import type_name
from devalloc.api.semver import SemVer, SemVerError
from devalloc_solver.dialects.resource_k8s.fields import (
    MAX_INT64,
    Amount,
    AmountField,
    Flag,
    Given,
    Ignored,
    Items,
    Needed,
    Number,
    Strict,
    Text,
    Texts,
    Tolerant,
    short_text,
)


@dataclass(frozen=True, slots=True)
class NodeSelectorRequirement(Strict):
    """One line of a node selector: a label or field, an operator, values."""

    key: Text = ""
    operator: Text = ""
    values: Texts = ()

    @property
    def identity(self) -> tuple[str, str, frozenset[str]]:
        """Equal for requirements that say the same."""
        return self.key, self.operator, frozenset(self.values)

    def to_manifest(self) -> dict[str, Any]:
        shown: dict[str, Any] = {"key": self.key, "operator": self.operator}
        return shown | {"values": list(self.values)} if self.values else shown


_LABEL_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", re.ASCII)
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_VALUES = {"In": "some", "NotIn": "some", "Exists": "none", "DoesNotExist": "none", "Gt": "integer", "Lt": "integer"}


def label_integer(text: str) -> int | None:
    """A number as a label has it, or None where it is none of 64 bits."""
    value = int(text) if _INTEGER.fullmatch(text) and len(text) <= 20 else None
    return value if value is not None and -MAX_INT64 - 1 <= value <= MAX_INT64 else None


def _check_expression(rule: NodeSelectorRequirement) -> NodeSelectorRequirement:
    """Raises a validation error for an operator or a value that Kubernetes does not take."""
    prefix, slash, name = rule.key.rpartition("/")
    if not is_label_value(name) or (slash and not _LABEL_PREFIX.fullmatch(prefix)):
        raise_faults([(("key",), f"is not a label name: {rule.key!r}")])
    wanted = _VALUES.get(rule.operator)
    if wanted is None:
        raise_faults([(("operator",), f"{rule.operator!r} is not supported; use one of {', '.join(_VALUES)}")])
    if wanted == "some" and not rule.values:
        raise_faults([(("values",), f"must not be empty with the operator {rule.operator}")])
    if wanted == "none" and rule.values:
        raise_faults([(("values",), f"must be empty with the operator {rule.operator}")])
    if wanted == "integer" and (len(rule.values) != 1 or label_integer(rule.values[0]) is None):
        raise_faults([(("values",), f"must be one integer with the operator {rule.operator}")])
    for value in rule.values:
        if value and not is_label_value(value):
            raise_faults([(("values",), f"has {value!r}, which is not a valid label value")])
    return rule


def _check_field(rule: NodeSelectorRequirement) -> NodeSelectorRequirement:
    if rule.operator not in ("In", "NotIn"):
        raise_faults([(("operator",), f"{rule.operator!r} is not supported for fields; use In or NotIn")])
    if len(rule.values) != 1:
        raise_faults([(("values",), "must be one value for a field")])
    return rule


@dataclass(frozen=True, slots=True)
class NodeSelectorTerm(Strict):
    """Requirements that hold together."""

    expressions: Annotated[
        Items[Annotated[NodeSelectorRequirement, AfterValidator(_check_expression)]], Field(alias="matchExpressions")
    ] = ()
    fields: Annotated[
        Items[Annotated[NodeSelectorRequirement, AfterValidator(_check_field)]], Field(alias="matchFields")
    ] = ()


@dataclass(frozen=True, slots=True)
class NodeSelector(Strict):
    """Terms of which one holds."""

    terms: Annotated[Items[NodeSelectorTerm], Field(alias="nodeSelectorTerms")] = ()


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class NodeAccess:
    """Which nodes reach a slice or a device: at most one of the three says so.

    Equal only to itself, as are the slices and devices that inherit from it.
    """

    node_name: Annotated[Text | None, AfterValidator(lambda name: name or None), Field(alias="nodeName")] = None
    all_nodes: Annotated[Flag, Field(alias="allNodes")] = False
    node_selector: Annotated[NodeSelector | None, Field(alias="nodeSelector")] = None

    def __post_init__(self) -> None:
        if (self.node_name is not None) + self.all_nodes + (self.node_selector is not None) > 1:
            raise ValueError("sets more than one of nodeName, nodeSelector, allNodes; keep one")

    @property
    def is_specified(self) -> bool:
        return self.node_name is not None or self.all_nodes or self.node_selector is not None

    @property
    def selected_names(self) -> frozenset[str]:
        """The nodes that its selector selects by nothing but their names."""
        terms = () if self.node_selector is None else self.node_selector.terms
        return frozenset(
            value
            for term in terms
            if not term.expressions
            for one in term.fields
            if (one.key, one.operator) == ("metadata.name", "In")
            for value in one.values
        )


REACH = frozenset(part.name for part in fields(NodeAccess))


@dataclass(frozen=True, slots=True)
class ClusterNode(Tolerant):
    """A node of the cluster, as node selectors see it."""

    name: Needed
    labels: dict[Text, Annotated[str, PlainValidator(short_text)]] = field(default_factory=dict)


UNNAMED_NODE = ClusterNode("")
"""Stands for every node if none is known."""


def is_reachable(node: ClusterNode, reach: NodeAccess) -> bool:
    """Whether a node reaches what is there; False where nothing says where that is."""
    if reach.node_name is not None:
        return reach.node_name == node.name
    if reach.all_nodes:
        return True
    if not node.name:  # what its labels would be is not known
        return False
    # The API wants one term: an allocation has one, too, and cannot say "the nodes of this one or of that one".
    selector = reach.node_selector
    return selector is not None and len(selector.terms) == 1 and selects(selector, node)


def selects(selector: NodeSelector, node: ClusterNode) -> bool:
    return any(
        (term.expressions or term.fields)
        and all(_holds(r, node.labels.get(r.key)) for r in term.expressions)
        and all(_field_holds(r, node) for r in term.fields)
        for term in selector.terms
    )


def _holds(requirement: NodeSelectorRequirement, label: str | None) -> bool:
    match requirement.operator:
        case "In":
            return label in requirement.values
        case "NotIn":
            return label not in requirement.values
        case "Exists":
            return label is not None
        case "DoesNotExist":
            return label is None
    have, bound = label_integer(label or ""), label_integer(requirement.values[0])
    if have is None or bound is None:
        return False
    return have > bound if requirement.operator == "Gt" else have < bound


def _field_holds(requirement: NodeSelectorRequirement, node: ClusterNode) -> bool:
    """``metadata.name`` is the only field that nodes are selected by; any other is empty."""
    value = node.name if requirement.key == "metadata.name" else ""
    return (value == requirement.values[0]) == (requirement.operator == "In")


def single_node_selector(name: str) -> dict[str, Any]:
    """A selector of one node by its name."""
    return {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}]}


def merge_selectors(selectors: Iterable[NodeSelector]) -> dict[str, Any] | None:
    """One term that holds where all of these do, each requirement once; None where that is everywhere."""
    expressions: dict[object, NodeSelectorRequirement] = {}
    names: dict[object, NodeSelectorRequirement] = {}
    for selector in selectors:
        for term in selector.terms:
            for requirement in term.expressions:
                expressions.setdefault(requirement.identity, requirement)
            for requirement in term.fields:
                names.setdefault(requirement.identity, requirement)
    return _selector([*expressions.values()], [*names.values()]) if expressions or names else None


def _selector(expressions: list[NodeSelectorRequirement], names: list[NodeSelectorRequirement]) -> dict[str, Any]:
    term: dict[str, Any] = {}
    if expressions:
        term["matchExpressions"] = [requirement.to_manifest() for requirement in expressions]
    if names:
        term["matchFields"] = [requirement.to_manifest() for requirement in names]
    return {"nodeSelectorTerms": [term]}


TypedValue = tuple[str, Any]
"""One of ``int bool string version``, and the value as relations compare it."""


class UnusualAttribute(NamedTuple):
    """A list, or a value that no selector can read."""

    typed: TypedValue
    """of a list, all members"""
    is_list: bool
    fault: str | None
    """why a selector cannot read it, or None"""

    @property
    def kind(self) -> str:
        return self.typed[0]

    @property
    def values(self) -> tuple[int | bool | str, ...]:
        """Several, or none, of a list."""
        return self.typed[1] if self.is_list else self.typed[1:]


DeviceAttribute = TypedValue | UnusualAttribute
"""Devices share most of their attributes."""


_SCALARS: dict[object, type] = {"int": int, "bool": bool, "string": str, "version": str}
_LISTS = {"ints": "int", "bools": "bool", "strings": "string", "versions": "version"}


def read_attribute(content: object) -> DeviceAttribute:
    """An attribute. Its content may be unreadable; the reader of the attribute reports that."""
    content = {} if content is None else content
    if not isinstance(content, Mapping):
        raise ValueError(f"must be a map, not {type_name(content)}")
    named = [name for name in content if content[name] is not None]
    if len(named) != 1 or (named[0] not in _SCALARS and named[0] not in _LISTS):
        kinds = f" ({', '.join(sorted(map(short_text, named)))})" if named else ""
        return UnusualAttribute(("none", ()), is_list=True, fault=f"unsupported attribute value{kinds}")
    name = named[0]
    kind = _LISTS.get(name, name)
    given = content[name]
    values = tuple(given) if name in _LISTS and isinstance(given, list) else (given,)
    for value in values:
        if not isinstance(value, _SCALARS[kind]) or (kind == "int" and isinstance(value, bool)):
            raise_faults([((name,), f"must be of type {name}, not {type_name(value)}")])
        if isinstance(value, str) and not is_valid_unicode(value):
            raise_faults([((name,), INVALID_UNICODE)])
    fault = _attribute_fault(kind, values)
    if name in _LISTS:
        return UnusualAttribute((kind, values), is_list=True, fault=fault)
    return (kind, given) if fault is None else UnusualAttribute((kind, given), is_list=False, fault=fault)


def _attribute_fault(kind: str, values: tuple[Any, ...]) -> str | None:
    if kind == "int" and any(not -MAX_INT64 - 1 <= value <= MAX_INT64 for value in values):
        return "unsupported attribute value: beyond 64 bits"
    if kind == "version":
        try:
            for value in values:
                _check_numbers(SemVer.parse(value))
        except SemVerError as error:
            return f"parse semantic version: {error}"
    return None


def _check_numbers(version: SemVer) -> None:
    """Raises SemVerError for a number that selectors cannot compare: one beyond 64 bits."""
    numbers = version.text.partition("+")[0].replace("-", ".", 1).split(".")
    if any(part.isdigit() and int(part) >= 2**64 for part in numbers):
        raise SemVerError(f"has a number beyond 64 bits: {version.text[:60]!r}")


_attributes: dict[TypedValue, DeviceAttribute] = {}
MAX_CACHED = 4_096
"""How many attributes are cached; when the cache is full, it is cleared."""


def share_attributes(content: Any, read: Callable[[Any], dict[str, DeviceAttribute]]) -> dict[str, DeviceAttribute]:
    """What ``read`` makes of attributes; attributes of the usual form share objects, and are read quickly."""
    if type(content) is not dict or not _are_ascii(tuple(content)):
        return read(content)
    attributes: dict[str, DeviceAttribute] = {}
    for name, value in content.items():
        if type(value) is not dict or len(value) != 1:
            return read(content)
        (typed,) = value.items()
        kind, given = typed
        if _SCALARS.get(kind) is not type(given):
            return read(content)
        attribute = _attributes.get(typed)
        if attribute is None:
            if type(given) is str and not given.isascii():
                return read(content)
            if len(_attributes) >= MAX_CACHED:
                _attributes.clear()
            fault = None if kind == "string" else _attribute_fault(kind, (given,))
            attribute = typed if fault is None else UnusualAttribute(typed, is_list=False, fault=fault)
            _attributes[typed] = attribute
        attributes[name] = attribute
    return attributes


@lru_cache(maxsize=1024)
def _are_ascii(names: tuple[object, ...]) -> bool:
    return all(type(name) is str and name.isascii() for name in names)


Attributes = Annotated[
    dict[Text, Annotated[DeviceAttribute, PlainValidator(read_attribute)]], WrapValidator(share_attributes)
]


def _require_positive(step: Amount) -> Amount:
    if step.nano <= 0:
        raise ValueError(f"must be greater than zero, not {step}")
    return step


@dataclass(frozen=True, slots=True)
class CapacityRange(Strict):
    """Amounts from ``least`` on in steps."""

    least: Annotated[AmountField, Field(alias="min")]
    most: Annotated[AmountField | None, Field(alias="max")] = None
    step: Annotated[AmountField, AfterValidator(_require_positive)] | None = None


@dataclass(frozen=True, slots=True)
class CapacityRequestPolicy(Strict):
    """How requests of a capacity are rounded."""

    default: AmountField | None = None
    values: Annotated[Items[AmountField], Field(alias="validValues")] = ()
    range: Annotated[CapacityRange | None, Field(alias="validRange")] = None


@dataclass(frozen=True, slots=True)
class DeviceCapacity(Strict):
    """How much a device has of something; ``policy`` where it is shared out in portions."""

    value: AmountField
    policy: Annotated[CapacityRequestPolicy | None, Field(alias="requestPolicy")] = None


@dataclass(frozen=True, slots=True)
class DeviceTaint(Strict):
    """Keeps off claims that do not tolerate it. ``effect``: ``None``, ``NoSchedule`` or ``NoExecute``."""

    key: Text = ""
    value: Text = ""
    effect: Text = ""
    time_added: Annotated[Ignored, Field(alias="timeAdded")] = None


@dataclass(frozen=True, slots=True)
class Counter(Tolerant):
    """An amount of a counter set, or what a device draws of it."""

    value: AmountField


@dataclass(frozen=True, slots=True, eq=False)
class CounterConsumption(Strict):
    """What a device draws from one counter set of its pool."""

    counter_set: Annotated[Needed, Field(alias="counterSet")]
    counters: dict[Text, Counter] = field(default_factory=dict)
    groups: Annotated[Texts, Field(alias="compatibilityGroups")] = ()
    """compatibility groups (alpha)"""


@dataclass(frozen=True, slots=True)
class CounterSet(Strict):
    """Counters that the devices of a pool draw from."""

    name: Needed
    counters: dict[Text, Counter] = field(default_factory=dict)


_capacities = ContentCache[dict[str, DeviceCapacity]]()
_counter_sets = ContentCache[tuple[CounterSet, ...]]()
_consumption = ContentCache[tuple[CounterConsumption, ...]]()


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SliceDevice(Strict, NodeAccess):
    """A device of a slice; names of attributes and capacities are as written, with or without a domain."""

    name: Needed
    attributes: Attributes = field(default_factory=dict)
    capacity: Annotated[dict[Text, DeviceCapacity], WrapValidator(_capacities.get)] = field(default_factory=dict)
    consumes: Annotated[
        Items[CounterConsumption], WrapValidator(_consumption.get), Field(alias="consumesCounters")
    ] = ()
    taints: Items[DeviceTaint] = ()
    binds_to_node: Annotated[Flag, Field(alias="bindsToNode")] = False
    binding_conditions: Annotated[Texts, Field(alias="bindingConditions")] = ()
    binding_failure_conditions: Annotated[Texts, Field(alias="bindingFailureConditions")] = ()
    allow_multiple: Annotated[Flag, Field(alias="allowMultipleAllocations")] = False
    uses_allocatable: Annotated[Given, Field(alias="nodeAllocatableResources")] = False
    """it has nodeAllocatableResources (alpha)"""

    @property
    def has_fault(self) -> bool:
        """Whether it has an attribute that no selector can read."""
        for one in self.attributes.values():
            if type(one) is not tuple and isinstance(one, UnusualAttribute) and one.fault is not None:
                return True
        return False


@dataclass(frozen=True, slots=True)
class SlicePool(Strict):
    """The pool that a slice is part of."""

    name: Needed
    generation: Number = 0
    slice_count: Annotated[Number, Field(alias="resourceSliceCount")] = 0


OPTIONAL_NODE_OPERATIONS = ("NodePrepareResources", "NodeUnprepareResources", "*")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ResourceSliceSpec(Strict, NodeAccess):
    """The spec of a ResourceSlice."""

    driver: Needed
    pool: Annotated[SlicePool, Field(default_factory=dict, validate_default=True)]
    per_device: Annotated[Flag | None, Field(alias="perDeviceNodeSelection")] = None
    counter_sets: Annotated[Items[CounterSet], WrapValidator(_counter_sets.get), Field(alias="sharedCounters")] = ()
    devices: Items[SliceDevice] = ()
    skip_node_operations: Annotated[Texts, Field(alias="skipNodeOperations")] = ()
    partition_type: Annotated[Ignored, Field(alias="partitionTypeAttribute")] = None
    """labels partitions for reports"""

    def __post_init__(self) -> None:
        NodeAccess.__post_init__(self)
        if self.counter_sets and self.devices:
            raise ValueError("has devices and sharedCounters: counter sets need a slice of their own")
        if self.per_device and self.is_specified:
            raise ValueError(
                "selects nodes and sets perDeviceNodeSelection, which leaves that to its devices; keep one"
            )
        for index, operation in enumerate(self.skip_node_operations):
            if operation not in OPTIONAL_NODE_OPERATIONS:
                raise_faults([(("skipNodeOperations", index), f"{operation!r} is not supported")])


@dataclass(frozen=True, slots=True)
class ObjectName(Tolerant):
    """Metadata of which only the name counts."""

    name: Text = ""


@dataclass(frozen=True, slots=True, eq=False)
class ResourceSlice(Tolerant):
    """A ResourceSlice."""

    spec: Annotated[ResourceSliceSpec, Field(default_factory=dict, validate_default=True)]
    metadata: ObjectName = ObjectName()

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def devices(self) -> tuple[SliceDevice, ...]:
        return self.spec.devices

    @property
    def order(self) -> tuple[bool, str]:
        """In which order slices of a pool come: those with binding conditions last, as upstream's allocator has it."""
        return any(device.binding_conditions for device in self.devices), self.name

    @property
    def pool_id(self) -> tuple[str, str]:
        """(driver, pool): drivers may share the name of a pool."""
        return self.spec.driver, self.spec.pool.name

    @property
    def uses_groups(self) -> bool:
        """Whether a device consumes counters with compatibility groups (alpha)."""
        return any(use.groups for device in self.spec.devices if device.consumes for use in device.consumes)
