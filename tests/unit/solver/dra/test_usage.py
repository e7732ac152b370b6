"""What is in use: told by the caller, and held by claims with an allocation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devalloc.api.device_records import DeviceRecord
from devalloc.api.quantity import QuantityError
from devalloc_solver import Fleet
from devalloc_solver.check.resource_k8s import check_results
from devalloc_solver.check.resource_k8s.quantities import UncountableAmount, to_nano
from devalloc_solver.dialects.resource_k8s.decode import read_claim
from devalloc_solver.dialects.resource_k8s.feature_gates import DEFAULT_GATES
from devalloc_solver.dialects.resource_k8s.fields import Amount
from devalloc_solver.dialects.resource_k8s.published_devices import DevicesInUse, DeviceUsage, read_usage
from devalloc_solver.dra import AllocationError, solve_manifests
from tests.support.dra_builders import ANY, answer, claim, device, devices, request, slice_

D1, D2 = ("gpu.io", "p", "d1"), ("gpu.io", "p", "d2")


def entry(device: tuple[str, str, str], **fields: Any) -> dict[str, Any]:
    return dict(zip(("driver", "pool", "device"), device, strict=True)) | fields


def holder(*results: dict[str, Any]) -> Any:
    status = {"allocation": {"devices": {"results": [{"request": "r", **one} for one in results]}}}
    return read_claim(claim(request()) | {"status": status}, DEFAULT_GATES)


def test_devices_shares_and_amounts_are_read_apart() -> None:
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
    ("usage", "path"),
    [
        ({"devices": [{"driver": "gpu.io", "pool": "p"}]}, r"allocated\.devices\[0\]\.device is missing"),
        ({"devices": "d1"}, r"allocated\.devices must be a list"),
        ({"consumedCapacity": [entry(D1, consumedCapacity={"m": "x"})]}, r"consumedCapacity\['m'\] is not a quantity"),
        ({"device": []}, r"allocated\.device is not a known field"),
    ],
)
def test_what_cannot_be_read_is_an_error_with_its_path(usage: Any, path: str) -> None:
    with pytest.raises(AllocationError, match=path):
        answer(claim(request()), slice_("s", devices("d")), allocated=usage)


def test_devices_that_no_slice_publishes_do_not_matter() -> None:
    usage = {"devices": [entry(("gpu.io", "gone", "d")), entry(("other.io", "p", "d"))]}

    assert answer(claim(request()), slice_("s", devices("d")), allocated=usage) is not None


# -- what is held, and cannot be told ------------------------------------------------------------------------------

SHARED = slice_("s", [device("d", capacity={"m": "8"}, shared=True)])
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"consumedCapacity": {"m": "-5"}}, r"consumedCapacity['m'] is negative: -5"),
    ({"consumedCapacity": {"m": "-1n"}}, r"consumedCapacity['m'] is negative: -1n"),
    ({"consumedCapacity": {"m": "junk"}}, r"consumedCapacity['m'] is not a quantity"),
    ({"consumedCapacity": {"m": ""}}, r"consumedCapacity['m'] is not a quantity"),
    ({"consumedCapacity": {"m": "1e999999999"}}, r"consumedCapacity['m'] is not a quantity"),
    ({"consumedCapacity": {"m": float("inf")}}, r"consumedCapacity['m'] is not a quantity"),
    ({"consumedCapacity": {"m": None}}, r"consumedCapacity['m'] must be a quantity"),
    ({"consumedCapacity": {7: "1"}}, "consumedCapacity has the key 7"),
    ({"consumedCapacity": ["1"]}, "consumedCapacity must be a map"),
    ({"shareID": 7}, "shareID must be a string"),
    ({"adminAccess": "no"}, "adminAccess must be a boolean"),
]


def held(name: str, *results: Any) -> dict[str, Any]:
    return claim(request(), name=name) | {"status": {"allocation": {"devices": {"results": [*results]}}}}


def share(number: int, **fields: Any) -> dict[str, Any]:
    content = {
        "shareID": f"00000000-0000-4000-8000-00000000000{number}",
        "consumedCapacity": {"m": "1"},
        "request": "r",
    }
    return entry(("gpu.io", "p", "d"), **(content | fields))


@pytest.mark.parametrize(("wrong", "message"), WRONG)
@pytest.mark.parametrize("neighbours", [[], [share(1, consumedCapacity={"m": "8"})]], ids=["alone", "beside another"])
def test_a_share_of_unknown_size_frees_nothing(wrong: Any, message: str, neighbours: list[Any]) -> None:
    pending = claim(request("r", amounts={"m": "1"}), name="new")
    holders = [*(held("good", one) for one in neighbours), held("odd", share(2, **wrong))]

    joint = solve_manifests([ANY, SHARED, *holders, pending])
    fleet = Fleet.from_manifests([ANY, SHARED, *holders])
    with pytest.raises(AllocationError) as raised:
        answer([*holders, pending], SHARED)

    assert f"claim default/odd: status.allocation.devices.results[0].{message}" in str(raised.value)
    assert {one["name"]: one["allocated"] for one in joint["claims"]}["new"] is False
    owners = [one["name"] for one in joint["problems"] if "has several owners" in one["message"]]
    assert owners == (["good", "odd"] if neighbours else [])
    others = [one for one in joint["problems"] if "has several owners" not in one["message"]]
    assert [(one["name"], message in one["message"]) for one in others] == [("odd", True)]
    assert not fleet.allocate(pending)["allocated"]
    assert [(one["name"], message in one["message"]) for one in fleet.update(holders[-1])] == [("odd", True)]
    assert fleet.allocate_all([pending])["problems"] == joint["problems"]


def test_an_invalid_result_hides_no_other() -> None:
    pending = claim(request(), name="new")

    joint = solve_manifests([ANY, SHARED, held("odd", None, "d", entry(("gpu.io", "p", "d"))), pending])

    assert {one["name"]: one["allocated"] for one in joint["claims"]} == {"odd": True, "new": False}


def test_a_negative_amount_that_the_caller_tells_is_an_error() -> None:
    usage = {"consumedCapacity": [entry(D1, consumedCapacity={"m": "8"}), entry(D1, consumedCapacity={"m": "-5"})]}

    with pytest.raises(AllocationError, match=r"allocated\.consumedCapacity\[1\]\.consumedCapacity\['m'\] is negative"):
        answer(claim(request()), slice_("s", devices("d")), allocated=usage)


@pytest.mark.parametrize("wrong", [wrong for wrong, _ in WRONG])
def test_the_check_takes_such_a_share_for_the_whole_device_by_itself(wrong: Any) -> None:
    pending = claim(request("r", amounts={"m": "1"}), name="new")
    result = {"devices": {"results": [share(3)]}}

    def problems_of(*holders: Any) -> list[str]:
        return check_results([result], "n1", [*holders, pending], [ANY], [SHARED], features=DEFAULT_GATES)

    free, other = problems_of(), problems_of(held("good", share(1)))
    assert not any("in use" in violation for violation in (*free, *other))
    assert "gpu.io/p/d is in use" in problems_of(held("odd", share(2, **wrong)))


@given(st.from_regex(r"[+-]?[0-9]{0,3}\.?[0-9]{0,3}([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,3}|x)?", fullmatch=True))
def test_the_check_reads_amounts_as_the_dialect_does(text: str) -> None:
    try:
        expected = Amount.parse(text).nano
    except QuantityError:
        with pytest.raises(UncountableAmount):
            to_nano(text)
    else:
        assert to_nano(text) == expected


@pytest.mark.parametrize(
    ("device", "draws", "expected"),
    [
        ("d0", [None], False),  # nothing is recorded
        ("d0", [()], False),
        ("d0", [None, (("s/memory", 5),)], True),  # it drew what it does not draw now
        ("gone", [None], True),
    ],
)
@pytest.mark.parametrize("way", ["whole", "shared"])
def test_a_device_in_use_is_there_with_what_is_recorded_of_it(
    device: str, draws: list[tuple[tuple[str, int], ...] | None], expected: bool, way: str
) -> None:
    there: Any = SimpleNamespace(id=("gpu.io", "p", "d0"), device=SimpleNamespace(consumes=()))
    usage, name = DeviceUsage(), ("gpu.io", "p", device)
    usage.whole.update([name] if way == "whole" else [])
    usage.shared.update({name: {}} if way == "shared" else {})
    usage.records[name] = [None if each is None else DeviceRecord(draws=each) for each in draws]
    assert DevicesInUse([there]).lacks_record(usage, [("gpu.io", "p")]) is expected
    assert not DevicesInUse([there]).lacks_record(usage, [("gpu.io", "q")]), "of other pools nothing is asked"
