"""Which hardware a device is: what contradicts what was recorded, and whose data a drive keeps."""

from __future__ import annotations

import pytest

from devalloc.api.device_identity import difference, drive_of, identity_of, unseen
from devalloc.device_kinds import STORAGE

DRIVE = {"kind": STORAGE.name, "vendorID": "0x144d", "deviceID": "0xa80a", "serial": "S1", "uuid": "U1"}
CARD = {"kind": "gpu", "vendorID": "0x10de", "deviceID": "0x27b8", "subsystemID": "0x16ee", "uuid": "GPU-1"}


def test_only_texts_identify() -> None:
    assert identity_of({"vendorID": "0x1", "serial": 7, "numa": "0"}) == {"vendorID": "0x1"}


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (CARD, CARD, None),
        (CARD, {**CARD, "deviceID": "0x1eb8"}, "device 0x1eb8, not 0x27b8"),
        (CARD, {**CARD, "subsystemID": "0x1"}, "subsystem 0x1, not 0x16ee"),
        (DRIVE, {**DRIVE, "serial": "S2"}, "serial S2, not S1"),
        ({}, CARD, None),
        (CARD, {}, None),
    ],
)
def test_two_looks_contradict_each_other_by_what_both_show(
    before: dict[str, str], now: dict[str, str], expected: str | None
) -> None:
    assert difference(before, now) == expected


def test_a_tenant_can_give_a_drive_another_uuid_but_no_other_serial_number() -> None:
    assert difference(DRIVE, {**DRIVE, "uuid": "U2"}) is None
    without = {name: value for name, value in DRIVE.items() if name != "serial"}
    assert difference(without, {**DRIVE, "uuid": "U2"}) == "uuid U2, not U1"
    assert difference(DRIVE, {**without, "uuid": "U2"}) == "uuid U2, not U1"


def test_the_uuid_of_a_gpu_counts_beside_its_serial_number() -> None:
    assert difference({**CARD, "serial": "S"}, {**CARD, "serial": "S", "uuid": "GPU-2"}) == "uuid GPU-2, not GPU-1"


@pytest.mark.parametrize(
    ("identity", "expected"),
    [
        (DRIVE, "0x144d/0xa80a/S1"),
        ({**DRIVE, "subsystemNQN": "nqn.1"}, "0x144d/0xa80a/S1/nqn.1"),
        ({**DRIVE, "kind": "gpu"}, None),
        ({**DRIVE, "serial": None}, None),
        ({"kind": STORAGE.name, "serial": "S1"}, None),
    ],
)
def test_a_drive_is_known_by_its_serial_number_and_model(identity: dict[str, object], expected: str | None) -> None:
    assert drive_of(identity) == expected


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (DRIVE, DRIVE, None),
        (DRIVE, {"kind": STORAGE.name}, "serial number"),
        ({"uuid": "U1"}, {"kind": STORAGE.name}, "UUID"),
        (DRIVE, {"kind": STORAGE.name, "uuid": "U1"}, None),  # one of both is enough
        (DRIVE, {"kind": STORAGE.name, "serial": "S2"}, "UUID"),
        (DRIVE, {"kind": STORAGE.name, "serial": "S2", "uuid": "U2"}, None),  # which is a difference, and says more
        ({"vendorID": "0x144d"}, {"kind": STORAGE.name}, None),
        ({**DRIVE, "kind": "gpu"}, {"kind": "gpu"}, None),  # keeps nothing of its owner
    ],
)
def test_a_drive_that_shows_no_more_which_one_it_is(
    before: dict[str, str], now: dict[str, str], expected: str | None
) -> None:
    assert unseen(before, now) == expected
