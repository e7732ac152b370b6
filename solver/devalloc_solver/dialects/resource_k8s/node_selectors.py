"""Node selectors: which nodes reach a slice or a device, and the selector that an allocation carries.

Labels and fields, all operators, with the rules of Kubernetes: terms are alternatives, the requirements of a term hold
together, an empty term selects nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from devalloc_solver.dialects.resource_k8s.fields import FieldError, Fields
from devalloc_solver.dialects.resource_k8s.objects import (
    ClusterNode,
    NodeAccess,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
)

_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)
_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", re.ASCII)
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_MAX_INT64 = 2**63 - 1
_VALUES = {"In": "some", "NotIn": "some", "Exists": "none", "DoesNotExist": "none", "Gt": "integer", "Lt": "integer"}


class SelectorError(FieldError):
    """A node selector that Kubernetes refuses: it is unknown which nodes it means."""


def read_selector(fields: Fields) -> NodeSelector:
    """Read a node selector. Raises SelectorError for an operator or a value that Kubernetes does not take."""
    try:
        return _terms(fields)
    except FieldError as error:
        raise SelectorError("", str(error)) from None


def _terms(fields: Fields) -> NodeSelector:
    terms = []
    for item, path in fields.items("nodeSelectorTerms"):
        term = Fields(item, path)
        expressions = tuple(_expression(*pair) for pair in term.items("matchExpressions"))
        names = tuple(_field(*pair) for pair in term.items("matchFields"))
        term.finish()
        terms.append(NodeSelectorTerm(expressions, names))
    fields.finish()
    return tuple(terms)


def _requirement(content: object, path: str) -> NodeSelectorRequirement:
    fields = Fields(content, path)
    requirement = NodeSelectorRequirement(fields.text("key"), fields.text("operator"), fields.texts("values"))
    fields.finish()
    return requirement


def _expression(content: object, path: str) -> NodeSelectorRequirement:
    rule = _requirement(content, path)
    prefix, slash, name = rule.key.rpartition("/")
    if not _NAME.fullmatch(name) or (slash and not _PREFIX.fullmatch(prefix)):
        raise FieldError(f"{path}.key", f"is not a label name: {rule.key!r}")
    wanted = _VALUES.get(rule.operator)
    if wanted is None:
        raise FieldError(f"{path}.operator", f"{rule.operator!r} is not supported; use one of {', '.join(_VALUES)}")
    if wanted == "some" and not rule.values:
        raise FieldError(f"{path}.values", f"must not be empty with the operator {rule.operator}")
    if wanted == "none" and rule.values:
        raise FieldError(f"{path}.values", f"must be empty with the operator {rule.operator}")
    if wanted == "integer" and (len(rule.values) != 1 or _integer(rule.values[0]) is None):
        raise FieldError(f"{path}.values", f"must be one integer with the operator {rule.operator}")
    for value in rule.values:
        if value and not _NAME.fullmatch(value):
            raise FieldError(f"{path}.values", f"has {value!r}, which is not a valid label value")
    return rule


def _field(content: object, path: str) -> NodeSelectorRequirement:
    rule = _requirement(content, path)
    if rule.operator not in ("In", "NotIn"):
        raise FieldError(f"{path}.operator", f"{rule.operator!r} is not supported for fields; use In or NotIn")
    if len(rule.values) != 1:
        raise FieldError(f"{path}.values", "must be one value for a field")
    return rule


def _integer(text: str) -> int | None:
    """A number as a label has it, or None where it is none of 64 bits."""
    value = int(text) if _INTEGER.fullmatch(text) and len(text) <= 20 else None
    return value if value is not None and -_MAX_INT64 - 1 <= value <= _MAX_INT64 else None


def is_reachable(node: ClusterNode, reach: NodeAccess) -> bool:
    """Whether a node reaches what is there; False where nothing says where that is."""
    if reach.node_name is not None:
        return reach.node_name == node.name
    if reach.all_nodes:
        return True
    return reach.selector is not None and selects(reach.selector, node)


def selects(selector: NodeSelector, node: ClusterNode) -> bool:
    return any(
        (term.expressions or term.fields)
        and all(_holds(r, node.labels.get(r.key)) for r in term.expressions)
        and all(_field_holds(r, node) for r in term.fields)
        for term in selector
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
    have, bound = _integer(label or ""), _integer(requirement.values[0])
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
        for term in selector:
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
