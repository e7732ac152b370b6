"""Node selectors: every operator on labels and fields, and the selector of an allocation."""

from __future__ import annotations

from typing import Any

import pytest

from devalloc_solver.dialects.resource_k8s.decode import read_node_selector
from devalloc_solver.dialects.resource_k8s.fields import SelectorError
from devalloc_solver.dialects.resource_k8s.slices import ClusterNode, NodeAccess, is_reachable, merge_selectors, selects

NODE = ClusterNode("n1", {"zone": "a", "rack": "7", "example.com/gpu": ""})


def selector(*terms: dict[str, Any]) -> Any:
    return read_node_selector({"nodeSelectorTerms": list(terms)}, "spec.nodeSelector")


def label(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def field(operator: str, *values: str, key: str = "metadata.name") -> dict[str, Any]:
    return {"matchFields": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("term", "holds"),
    [
        (label("zone", "In", "a", "b"), True),
        (label("zone", "In", "b"), False),
        (label("other", "In", "a"), False),
        (label("zone", "NotIn", "a"), False),
        (label("zone", "NotIn", "b"), True),
        (label("other", "NotIn", "a"), True),
        (label("example.com/gpu", "Exists"), True),
        (label("other", "Exists"), False),
        (label("zone", "DoesNotExist"), False),
        (label("other", "DoesNotExist"), True),
        (label("rack", "Gt", "6"), True),
        (label("rack", "Gt", "7"), False),
        (label("rack", "Lt", "10"), True),
        (label("rack", "Lt", "7"), False),
        (label("zone", "Gt", "1"), False),
        (label("zone", "Lt", "1"), False),
        (field("In", "n1"), True),
        (field("In", "n2"), False),
        (field("NotIn", "n1"), False),
        (field("NotIn", "n2"), True),
        (field("In", "n1", key="metadata.uid"), False),
        ({}, False),
    ],
)
def test_a_term_holds_or_not(term: dict[str, Any], holds: bool) -> None:
    assert is_reachable(NODE, NodeAccess(node_selector=selector(term))) is holds


def test_requirements_of_a_term_hold_together_and_terms_are_alternatives() -> None:
    both = {**label("zone", "In", "a"), **field("In", "n2")}

    assert not selects(selector(both), NODE)
    assert selects(selector(both, label("rack", "Exists")), NODE)
    assert not selects(selector(), NODE)


def test_a_slice_or_device_with_a_selector_of_two_terms_reaches_no_node() -> None:
    """The API wants exactly one: the selector of an allocation has one term, which would be met by no node here."""
    a, b = label("zone", "In", "a"), label("zone", "In", "b")
    assert is_reachable(NODE, NodeAccess(node_selector=selector(a)))
    assert not is_reachable(NODE, NodeAccess(node_selector=selector(a, b)))


@pytest.mark.parametrize(
    "term",
    [
        label("zone", "Near", "a"),
        label("zone", "In"),
        label("zone", "Exists", "a"),
        label("zone", "Gt", "1", "2"),
        label("zone", "Gt", "one"),
        label("zone", "Gt", "99999999999999999999"),
        label("not a name", "Exists"),
        label("zone", "In", "not a value!"),
        field("Exists"),
        field("In", "n1", "n2"),
    ],
)
def test_what_kubernetes_does_not_take_is_refused_with_its_path(term: dict[str, Any]) -> None:
    with pytest.raises(SelectorError, match=r"spec\.nodeSelector\.nodeSelectorTerms\[0\]"):
        selector(term)


def test_a_node_name_reaches_its_node_only_and_an_empty_access_reaches_none() -> None:
    assert is_reachable(NODE, NodeAccess(node_name="n1"))
    assert not is_reachable(NODE, NodeAccess(node_name="n2"))
    assert is_reachable(NODE, NodeAccess(all_nodes=True))
    assert not is_reachable(NODE, NodeAccess())


def test_selectors_merge_into_one_term_with_each_requirement_once() -> None:
    first = selector({**label("zone", "In", "a", "b"), **field("In", "n1")})
    second = selector(label("zone", "In", "b", "a"))
    third = selector(label("rack", "Exists"))

    assert merge_selectors([first, second, third]) == {
        "nodeSelectorTerms": [
            {
                "matchExpressions": [
                    {"key": "zone", "operator": "In", "values": ["a", "b"]},
                    {"key": "rack", "operator": "Exists"},
                ],
                "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}],
            }
        ]
    }
    assert merge_selectors([]) is None
