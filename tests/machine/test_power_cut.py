"""The power is cut while a claim is prepared: at a point that leaves the most. `make power-cuts` cuts at every one."""

from __future__ import annotations

from contextlib import suppress

import pytest

from tests.support.guest import GuestGone
from tests.support.power_cuts import VF, PowerCuts
from tests.support.qemu import Machine

pytestmark = pytest.mark.timeout(900)
"""Seconds; a machine that others use as well boots slowly."""


def test_after_a_power_cut_nothing_is_left_and_the_claim_can_be_prepared(host: Machine) -> None:
    cuts = PowerCuts(host)
    calls = cuts.calls["prepare"]
    assert sum("sriov_numvfs" in call for call in calls) == 1
    assert VF in str(cuts.prepared["files"])
    # VFs are made, both devices are with VFIO, a file is on the disk, and the journal has the claim as begun only.
    (written,) = (number for number, call in enumerate(calls, 1) if call.startswith("host.put_file"))
    assert written < len(calls)
    try:
        cuts.check("prepare", written)
    except BaseException:
        with suppress(OSError, GuestGone):  # the host itself may be what is gone
            cuts.plugin.kill()  # it may have stopped where it was told to
        raise
