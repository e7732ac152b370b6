"""What a guest has, beside what its machine was given."""

from __future__ import annotations

import pytest

from devalloc.scaling.metrics import GuestReport

MIB, GIB = 2**20, 2**30


@pytest.mark.parametrize(
    ("cpus", "memory", "behind"),
    [
        # What kernels keep from boot: the table of pages, and themselves.
        (2, 2 * GIB - 64 * MIB, False), (2, None, False), (None, 2 * GIB, False), (3, 3 * GIB, False),
        (1, 2 * GIB, True), (1, None, True), (None, GIB, True), (2, 2 * GIB - 256 * MIB, True),
    ],
)  # fmt: skip
def test_a_guest_is_behind_that_has_less_online_than_its_machine_and_its_kernel_account_for(
    cpus: int | None, memory: int | None, behind: bool
) -> None:
    assert GuestReport(cpus, memory).is_behind(2, 2 * GIB) is behind


def test_what_a_kernel_keeps_of_more_memory_is_more() -> None:
    assert not GuestReport(1, 62 * GIB).is_behind(1, 64 * GIB)
    assert GuestReport(1, 480 * MIB).is_behind(1, 512 * MIB) is False
    assert GuestReport(1, 384 * MIB).is_behind(1, 512 * MIB)
