"""What a guest has, beside what its machine was given."""

from __future__ import annotations

from devalloc.scaling.observed import similar

MIB = 2**20


def test_memory_is_alike_within_an_eighth_and_within_a_block() -> None:
    for one, other, alike in (
        (64, 72, False), (64, 71, True), (2**40, 2**40 + 128 * MIB, False), (2**40, 2**40 + 128 * MIB - 1, True),
        (0, 0, False), (1, 1, True), (900 * MIB, 1000 * MIB, True), (700 * MIB, 800 * MIB, False),
    ):  # fmt: skip
        assert similar(one, other) == similar(other, one) == alike, (one, other)
