"""What is in use: told by the caller, and held by claims with an allocation."""

from __future__ import annotations

from typing import Any

import pytest

from devalloc_solver.dra import AllocationError
from devalloc_solver.dra.decode import read_claim
from devalloc_solver.dra.features import DEFAULT
from devalloc_solver.dra.usage import read_usage
from tests.support.dra import answer, claim, devices, request, slice_

D1, D2 = ("gpu.io", "p", "d1"), ("gpu.io", "p", "d2")


def entry(device: tuple[str, str, str], **fields: Any) -> dict[str, Any]:
    return dict(zip(("driver", "pool", "device"), device, strict=True)) | fields


def holder(*results: dict[str, Any]) -> Any:
    status = {"allocation": {"devices": {"results": [{"request": "r", **one} for one in results]}}}
    return read_claim(claim(request()) | {"status": status}, DEFAULT)


def test_devices_shares_and_amounts_are_told_apart() -> None:
    usage = read_usage(
        {
            "devices": [entry(D1)],
            "shares": [entry(D2, shareID="1")],
            "consumedCapacity": [entry(D2, consumedCapacity={"m": "2"}), entry(D2, consumedCapacity={"m": "500m"})],
        },
        [],
    )

    assert usage.whole == {D1}
    assert usage.shared == {D2: {"m": 2_500_000_000}}
    assert usage.share_ids == {D2: {"1"}}


def test_claims_add_what_they_hold_but_not_what_they_only_watch() -> None:
    watched = entry(("gpu.io", "p", "d3"), adminAccess=True)
    share = entry(D2, shareID="7", consumedCapacity={"m": "1"})

    usage = read_usage({"devices": []}, [holder(entry(D1), watched), holder(share), holder(share | {"shareID": "8"})])

    assert usage.whole == {D1}
    assert usage.shared == {D2: {"m": 2_000_000_000}}
    assert usage.share_ids == {D2: {"7", "8"}}


@pytest.mark.parametrize(
    ("told", "path"),
    [
        ({"devices": [{"driver": "gpu.io", "pool": "p"}]}, r"allocated\.devices\[0\]\.device is missing"),
        ({"devices": "d1"}, r"allocated\.devices must be a list"),
        ({"consumedCapacity": [entry(D1, consumedCapacity={"m": "x"})]}, r"consumedCapacity\['m'\] is no quantity"),
        ({"device": []}, r"allocated\.device is not a field"),
    ],
)
def test_what_cannot_be_read_is_an_error_with_its_path(told: Any, path: str) -> None:
    with pytest.raises(AllocationError, match=path):
        answer(claim(request()), slice_("s", devices("d")), allocated=told)


def test_devices_that_nobody_publishes_do_not_matter() -> None:
    told = {"devices": [entry(("gpu.io", "gone", "d")), entry(("other.io", "p", "d"))]}

    assert answer(claim(request()), slice_("s", devices("d")), allocated=told) is not None
