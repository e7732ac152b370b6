"""No counter is in use twice, whatever pools say while claims have their devices (S12, S13, S18)."""

from __future__ import annotations

import pytest

from tests.support.republished_pools import run

EVENTS = 800


@pytest.mark.parametrize("is_warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("dialect", ["DeviceClaim", "ResourceClaim"])
def test_what_devices_drew_is_given_once(dialect: str, is_warm: bool) -> None:
    assert run(dialect, 1, EVENTS, is_warm=is_warm) == []
