"""Rules by which a claim keeps off nodes: a row says where users write one, what it bars, and the reason that it is.

The controller has such rules for pods, too, which no user writes, and gives them beside the claim.

The rest follows from the rows: validation, the search of a cold and a warm solver, relaxations, words, and what a claim
that moves takes along. Only the independent check has its own table (``check/claim.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

from devalloc.api import meta
from devalloc.api.fields import name_fault, raise_faults
from devalloc.api.reasons import Reason


@dataclass(frozen=True, slots=True, eq=False)
class NodeRule:
    """A rule that names nodes."""

    annotation: str
    """in which users write it, separated by commas; empty if no user does"""
    is_only: bool
    """whether a claim may be on the nodes that it names, and on no others; if not, on the others only"""
    reason: Reason
    """of a claim that would fit without it"""
    why: tuple[Mapping[str, Any], ...] = ()
    """causes that such a reason has if no user wrote the rule, who could drop it"""


NODE_RULES: Final[tuple[NodeRule, ...]] = (NodeRule(meta.EXCLUDED_NODES, False, Reason.NODE_UNAVAILABLE),)
"""Those that users write on a DeviceClaim: nodes on which it must not be."""
MAX_CACHED = 4096
"""Characters of an annotation whose names are cached."""
FIELD: Final = "restrictions"
"""The field of a claim's manifest with the ``Restrictions`` that callers of the solver give it."""


class NodeRestriction(NamedTuple):
    """A rule as a claim has it."""

    rule: NodeRule
    named: frozenset[str]

    @property
    def path(self) -> str:
        """Its field in the claim."""
        return f"metadata.annotations[{self.rule.annotation}]"


class ValueRestriction(NamedTuple):
    """That a request gets only devices that have one of some values of an attribute."""

    request: int
    """its index in spec.claims"""
    attribute: str
    values: frozenset[str | int]


class Restrictions(NamedTuple):
    """What callers of the solver ask of a claim that they made or changed, beside what a user wrote."""

    nodes: tuple[NodeRestriction, ...] = ()
    values: tuple[ValueRestriction, ...] = ()
    """of the devices of a DeviceClaim"""
    driver: str | None = None
    """of all devices of a DeviceClaim, which then may be for one class only, too"""


def node_restrictions(annotations: Mapping[str, str]) -> tuple[NodeRestriction, ...]:
    """Read the rules that a claim has, in the order of the table."""
    if not annotations:
        return ()
    texts = ((rule, annotations.get(rule.annotation)) for rule in NODE_RULES)
    return tuple(NodeRestriction(rule, named) for rule, text in texts if text and (named := _names_in(text)))


def restrictions_of(manifest: Mapping[Any, Any]) -> Restrictions | None:
    """Read what a caller of the solver asks of a claim; None of a claim as its user wrote it: no file can have such a
    field."""
    given = manifest.get(FIELD)
    return given if type(given) is Restrictions else None


def node_restrictions_of(manifest: Mapping[Any, Any]) -> tuple[NodeRestriction, ...]:
    """Read the rules for nodes of that."""
    given = restrictions_of(manifest)
    return () if given is None else given.nodes


def is_barred(restrictions: Iterable[NodeRestriction], node: str | None) -> bool:
    """Whether a claim with these rules must not be on a node; None is the network's, which has no rule."""
    for rule, named in restrictions if node is not None else ():  # noqa: SIM110  it is asked for each node
        if (node in named) is not rule.is_only:
            return True
    return False


def barred_nodes(restrictions: Iterable[NodeRestriction], nodes: Iterable[str | None]) -> frozenset[str]:
    """Those of some nodes on which a claim with these rules must not be."""
    return frozenset(node for node in nodes if node is not None and is_barred(restrictions, node))


def check_node_rules(annotations: Mapping[str, str]) -> None:
    """Raises ValidationError for a name that no node can have."""
    for rule, named in node_restrictions(annotations):
        for node in named:
            check_node_name(rule.annotation, node)


@lru_cache(maxsize=1024)
def check_node_name(annotation: str, text: str) -> None:
    """Raises ValidationError for a name that an annotation must not have."""
    if fault := name_fault(text):
        raise_faults([(("metadata", "annotations", annotation), fault)])


def _names_in(text: str) -> frozenset[str]:
    """Read names that are separated by commas."""
    # Cached, long texts of a tenant could fill the memory.
    return _node_names(text) if len(text) <= MAX_CACHED else _node_names.__wrapped__(text)


@lru_cache(maxsize=1024)
def _node_names(text: str) -> frozenset[str]:
    return frozenset(name for part in text.split(",") if (name := part.strip()))
