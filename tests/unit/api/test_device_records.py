"""What claims record of their devices, as tenants can write it."""

from __future__ import annotations

import json
import tracemalloc

import pytest

from devalloc.api.device_records import read_records

KIB = 1024


def annotation(number: int, devices: int) -> str:
    return json.dumps(
        {"pool": {f"d{number}-{n}": {"draws": {f"c{n}": "1"}, "counters": f"{number}"} for n in range(devices)}}
    )


def test_large_annotations_are_not_kept_in_memory() -> None:
    texts = [annotation(number, 1500) for number in range(8)]
    assert all(40 * KIB < len(text) < 128 * KIB for text in texts)
    tracemalloc.start()
    try:
        for text in texts:
            assert len(read_records(text)) == 1500
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < KIB * KIB


@pytest.mark.parametrize("devices", [1, 1500])
def test_what_is_recorded_does_not_depend_on_the_size(devices: int) -> None:
    records = read_records(annotation(7, devices))
    assert (len(records), records["pool", "d7-0"].draws) == (devices, (("c0", 10**9),))
