"""Node selectors: which nodes reach a slice or a device, and the selector that an allocation carries.

Labels and fields, all operators, with the rules of Kubernetes: terms are alternatives, the requirements of a term hold
together, an empty term selects nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

from pydantic import AfterValidator, Field, PlainValidator

from devalloc.api.fields import raise_faults
from devalloc_solver.dialects.resource_k8s.fields import Flag, Items, Needed, Strict, Text, Texts, Tolerant, short_text
from devalloc_solver.dialects.resource_k8s.quantities import MAX_INT64


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


_LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)
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
    if not _LABEL_NAME.fullmatch(name) or (slash and not _LABEL_PREFIX.fullmatch(prefix)):
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
        if value and not _LABEL_NAME.fullmatch(value):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAccess:
    """Which nodes reach a slice or a device: at most one of the three says so."""

    node_name: Annotated[Text | None, AfterValidator(lambda name: name or None), Field(alias="nodeName")] = None
    all_nodes: Annotated[Flag, Field(alias="allNodes")] = False
    node_selector: Annotated[NodeSelector | None, Field(alias="nodeSelector")] = None

    def __post_init__(self) -> None:
        if (self.node_name is not None) + self.all_nodes + (self.node_selector is not None) > 1:
            raise ValueError("sets more than one of nodeName, nodeSelector, allNodes; keep one")

    @property
    def is_specified(self) -> bool:
        return self.node_name is not None or self.all_nodes or self.node_selector is not None


REACH = frozenset(part.name for part in fields(NodeAccess))


@dataclass(frozen=True, slots=True)
class ClusterNode(Tolerant):
    """A node of the cluster, as node selectors see it."""

    name: Needed
    labels: dict[Text, Annotated[str, PlainValidator(short_text)]] = field(default_factory=dict)


def is_reachable(node: ClusterNode, reach: NodeAccess) -> bool:
    """Whether a node reaches what is there; False where nothing says where that is."""
    if reach.node_name is not None:
        return reach.node_name == node.name
    if reach.all_nodes:
        return True
    return reach.node_selector is not None and selects(reach.node_selector, node)


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
    return _selector([], [NodeSelectorRequirement("metadata.name", "In", (name,))])


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
