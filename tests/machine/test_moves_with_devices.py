"""Must show: a machine with a device whose VFIO driver can be migrated moves, and the device's state with it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import kernel_modules, tiny_guest
from tests.support.guest import Guest
from tests.support.qemu import Machine

pytestmark = pytest.mark.timeout(900)
"""Seconds; a machine that others use as well is slow."""
SCRIPT = "/project/tests/machine/inside/moving.py"


@pytest.fixture
def guest(host: Machine, modules: Path) -> Iterator[Guest]:
    """The shell of a host with ``mtty``, where VFIO reports what devices have written."""
    image = base64.b64encode(tiny_guest.image()).decode()
    host.guest.check(f"mkdir -p /run/images && echo {image} | base64 -d > /run/images/tiny")
    with kernel_modules.loaded(host, modules, reports_writes=True):
        yield host.guest


def moved(guest: Guest) -> dict[str, Any]:
    output = guest.check(f"rm -rf /run/moving; cd /run && python3 {SCRIPT} 2>/run/moving.log || cat /run/moving.log",
                         seconds=600)  # fmt: skip
    assert output.startswith("{"), output
    seen: dict[str, Any] = json.loads(output.splitlines()[-1])
    return seen


def test_a_machine_moves_with_a_mediated_device_and_what_is_in_it(guest: Guest) -> None:
    seen = moved(guest)
    assert (seen["condition"]["status"], seen["condition"]["reason"]) == ("True", "Movable")
    assert seen["migration"] == {"phase": "Succeeded", "reason": None, "message": None}
    (device,) = seen["offered"]
    (function,) = device["functions"]
    assert function.endswith(" mtty-2"), "its driver, whose name depends on the kernel, and its type"
    assert seen["moved"], "the handover has made what was booked the claim's on the target"
    assert seen["mark"] is None, "the source has given its device back before the claim gets the other one"
    assert bytes(int(word, 16) for word in seen["read"]) == b"moved", "what the guest had sent is in the device there"
    after = seen["after"]
    assert (after["node"], after["phase"], after["reason"]) == ("b", "Running", "")
    assert (after["run"], after["address"]) == (seen["run"], seen["address"]), "the guest sees the device that it had"
    assert after["mark"] == "b"
    assert after["prepared"] == [[], ["serial"]]
    assert seen["left"] == []
    assert guest.check("cat /sys/class/mdev_bus/mtty/mdev_supported_types/mtty-2/available_instances") == "12"
