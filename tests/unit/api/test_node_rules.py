"""Rules that keep claims off nodes, as annotations say them."""

from __future__ import annotations

from devalloc.api import meta, node_rules
from devalloc.api.node_rules import node_restrictions


def test_names_are_read_without_spaces_and_empty_ones() -> None:
    (rule,) = node_restrictions({meta.EXCLUDED_NODES: " a, b,,a "})
    assert rule.named == {"a", "b"}
    assert node_restrictions({meta.EXCLUDED_NODES: " , "}) == ()


def test_names_of_a_long_annotation_are_not_cached() -> None:
    """A tenant could fill the memory with such ones."""
    text = ",".join(f"long-{number}" for number in range(1000))
    assert len(text) > node_rules.MAX_CACHED
    first, second = (node_restrictions({meta.EXCLUDED_NODES: text})[0].named for _ in range(2))
    assert first == second
    assert first is not second
