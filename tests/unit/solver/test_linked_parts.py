"""Parts of a set that hang together."""

from __future__ import annotations

from devalloc_solver.problem.linked_parts import LinkedParts


def test_members_with_a_link_in_common_or_joined_are_one_part_in_the_order_of_the_first() -> None:
    linked = LinkedParts("abcdefg")
    for member, links in {"a": "x", "c": "y", "e": "xz", "f": "zw", "g": "y"}.items():
        linked.link(member, links)
    assert linked.parts() == [["a", "e", "f"], ["b"], ["c", "g"], ["d"]]
    linked.join("")
    linked.join("fcd")
    assert linked.parts() == [["a", "c", "d", "e", "f", "g"], ["b"]]
