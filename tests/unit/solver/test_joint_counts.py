"""Reasons that counts over all requests of a claim prove."""

from __future__ import annotations

from typing import Any

import pytest

from devalloc_solver import solve_manifests
from devalloc_solver.dra import solve_manifests as solve_resource_claims
from devalloc_solver.testing import claim, device, device_class, one_of, pool
from devalloc_solver.testing import request as wants
from tests.support.dra_builders import ANY, Manifest, ask, devices, first_of, request, slice_
from tests.support.dra_builders import claim as resource_claim
from tests.support.dra_builders import device as shared


def message(*documents: Manifest) -> str:
    return str(solve_manifests(documents)["claims"][0]["message"])


def resource_answer(of: Manifest, *slices: Manifest) -> Any:
    return solve_resource_claims([ANY, *slices, of])["claims"][0]


GPUS = [device(f"gpu-{number}", attributes={"number": number}) for number in range(15)]


def fleet(*details: Manifest, devices: list[Manifest] = GPUS) -> list[Manifest]:
    return [device_class("gpu"), pool("p", node="n1", devices=devices), claim("c", *details)]


def test_more_requests_than_devices_are_counted() -> None:
    assert "no node has 16 devices for 16 requests together (at most 15); remove spec.claims[" in (
        message(*fleet(*[wants("gpu", 1)] * 16))
    )


def test_requests_that_differ_are_counted_together() -> None:
    details = [wants("gpu", 1, constraints=f"device.number != {100 + number}") for number in range(18)]

    assert "no node has 18 devices for 18 requests together (at most 15)" in message(*fleet(*details))


def test_the_requests_that_compete_are_named() -> None:
    few = wants("gpu", 2, constraints="device.number < 3")

    assert "no node has 4 devices for spec.claims[0] and spec.claims[2] together (at most 3)" in (
        message(*fleet(few, wants("gpu", 5), few))
    )


def test_the_smallest_alternative_counts() -> None:
    answer = resource_answer(
        resource_claim(first_of("f", ask(2), ask(3)), first_of("g", ask(2), ask(3))),
        slice_("s", devices("a", "b", "c")),
    )

    assert "no node has 4 devices for requests f and g together (at most 3)" in answer["message"]


def test_a_node_that_suffices_alone_is_no_cause() -> None:
    """Both nodes have enough devices in all, and only the constraints are in the way."""
    pools = [pool(f"p{n}", node=f"n{n}", devices=GPUS) for n in range(2)]

    assert "want" not in message(device_class("gpu"), *pools, claim("c", *[wants("gpu", 1)] * 3, node="n9"))


@pytest.mark.parametrize("number", [33, 64])
@pytest.mark.parametrize("admin", [{}, {"adminAccess": True}])
def test_a_claim_that_would_get_too_many_devices_learns_the_limit(number: int, admin: Manifest) -> None:
    answer = resource_answer(
        resource_claim(request("r", None, **admin)), slice_("s", devices(*(f"d{n}" for n in range(number))))
    )

    assert answer["reason"] == "NotEnoughDevices"
    assert f"a claim can have 32 devices, and this one would get {number}; ask for a count" in answer["message"]


def test_the_limit_counts_all_requests_of_a_claim() -> None:
    even = 'device.attributes["gpu.io"].kind == 0'
    odd = 'device.attributes["gpu.io"].kind == 1'
    content = [*devices(*(f"e{n}" for n in range(20)), kind=0), *devices(*(f"o{n}" for n in range(20)), kind=1)]
    answer = resource_answer(resource_claim(request("r", None, even), request("q", 13, odd)), slice_("s", content))

    assert "a claim can have 32 devices, and this one would get 33" in answer["message"]


def test_slices_that_contradict_each_other_about_their_number_are_named() -> None:
    answer = resource_answer(
        resource_claim(request("r", None)), slice_("a", devices("d1"), count=1), slice_("b", devices("d2"), count=2)
    )

    assert "slices of generation 1 disagree about resourceSliceCount:" in answer["message"]


def test_more_slices_than_they_say_are_named() -> None:
    answer = resource_answer(resource_claim(request("r", None)), slice_("a", devices("d1"), count=0))

    assert "resourceSliceCount says 0, but there are 1 of generation 1" in answer["message"]


def test_portions_that_come_to_more_than_a_node_has_are_added_up() -> None:
    """16 requests of 30 to 45 on 8 devices of 74: no search is needed to see that 600 are not there."""
    content = [shared(f"g{number}", capacity={"m": "74"}, shared=True) for number in range(8)]
    requests = [request(f"r{number}", amounts={"m": str(30 + number)}) for number in range(16)]

    answer = resource_answer(resource_claim(*requests), slice_("s", content))

    assert answer["reason"] == "InsufficientCapacity"
    assert "no node has 600 of m for 16 requests together (at most 592)" in answer["message"]


@pytest.mark.parametrize(
    "details",
    [
        [wants("gpu", requests={"m": str(30 + number)}) for number in range(16)],
        [wants("gpu", requests={"m": str(30 + number)}, limits={"count": 1}) for number in range(16)],
        [wants("gpu", 4, requests={"m": "290"}), wants("gpu", requests={"m": "310"})],
        [wants("gpu", requests={"m": "300"}), one_of(*(wants("gpu", requests={"m": m}) for m in ("320", "300")))],
    ],
    ids=["shares", "one device each", "whole devices and a share", "alternatives"],
)
def test_so_are_the_amounts_of_a_device_claim(details: list[Manifest]) -> None:
    cards = [device(f"g{number}", resources={"m": "74"}) for number in range(8)]

    text = message(*fleet(*details, devices=cards))

    assert f"no node has 600 of m for {len(details)} requests together (at most 592); remove spec.claims[" in text


def test_a_whole_device_may_come_in_place_of_a_portion() -> None:
    """Of the device that is not shared, the requests need no more than that it has enough."""
    content = [shared("s", capacity={"m": "4"}, shared=True), shared("w", capacity={"m": "9"})]
    requests = [request(name, amounts={"m": "4"}) for name in ("a", "b")]

    assert resource_answer(resource_claim(*requests), slice_("s", content))["allocated"]


def test_the_code_is_that_of_the_sentence() -> None:
    """The amounts are short as well, but the message says that one device matches where two are wanted."""
    there = [shared("large", capacity={"m": "4"}, shared=True), shared("none", shared=True)]
    of = resource_claim(*(request(name, 2, amounts={"m": "2"}) for name in ("r0", "r1")))

    answer = resource_answer(of, slice_("s", there))

    assert "no node has 2 devices for request r0 (at most 1)" in answer["message"]
    assert answer["reason"] == "NotEnoughDevices"


# -- one edit that suffices --------------------------------------------------------------------------------------------


def test_a_sum_beyond_64_bits_is_an_answer_and_no_error() -> None:
    """Each amount is one that the API accepts; any tenant can send them."""
    most = str(2**63 - 1)
    there = [shared(f"d{number}", capacity={"m": most}, shared=True) for number in range(2)]
    of = resource_claim(*(request(f"r{number}", amounts={"m": most}) for number in range(3)))
    answer = resource_answer(of, slice_("s", there))
    assert answer["allocated"] is False
    assert "no node has 27670116110564327421 of m for 3 requests together" in answer["message"]
    pools = [pool("p", node="n1", devices=[device("d", resources={"m": most})])]
    claims = claim("c", *(wants("gpu", requests={"m": most}) for _ in range(3)))
    assert "no node has 27670116110564327421 of m for 3 requests together" in message(
        device_class("gpu"), *pools, claims
    )


@pytest.mark.parametrize("pairs", [12, 16])
def test_one_constraint_is_named_where_one_suffices(pairs: int) -> None:
    def root(kind: str, number: int) -> str:
        return f"r{99 if (kind, number) == ('n', pairs - 1) else number}"

    content = [
        device_
        for kind in "gn"
        for n in range(pairs)
        for device_ in devices(f"{kind}{n}", kind=kind, root=root(kind, n))
    ]
    requests = [
        request(f"{kind}{n}", 1, f'device.attributes["gpu.io"].kind == "{kind}"') for n in range(pairs) for kind in "gn"
    ]
    matches = [{"matchAttribute": "gpu.io/root", "requests": [f"g{n}", f"n{n}"]} for n in range(pairs)]

    answer = resource_answer(resource_claim(*requests, constraints=matches), slice_("s", content))

    assert answer["reason"] == "MatchAttributesConflict"
    assert [blocker["kind"] for blocker in answer["blockers"]] == ["constraint"]
    assert "notSmallest" not in answer.get("caveats", ())


@pytest.mark.parametrize("pairs", [12, 16])
def test_one_member_s_attribute_is_named_where_one_suffices(pairs: int) -> None:
    kinds = {"gpu": range(pairs), "nic": [*range(pairs - 1), 99]}
    pools = [
        pool(
            kind,
            node="n1",
            driver=f"{kind}.io",
            devices=[device(f"{kind}-{n}", attributes={"root": f"r{root}"}) for n, root in enumerate(roots)],
        )
        for kind, roots in kinds.items()
    ]
    classes = [device_class(kind, driver=f"{kind}.io") for kind in kinds]
    members = [claim(f"c{n}", wants("gpu", 1), wants("nic", 1), match=["root"], group="g") for n in range(pairs)]

    for answer in solve_manifests([*classes, *pools, *members])["claims"]:
        assert answer["reason"] == "GroupUnsatisfiable"
        assert [blocker["kind"] for blocker in answer["blockers"]] == ["matchAttribute"]
        assert "notSmallest" not in answer.get("caveats", ())


def test_one_request_is_named_where_one_suffices() -> None:
    """64 requests, each for another 62 of 63 devices."""
    gpus = [device(f"gpu-{n}", attributes={"number": n}) for n in range(63)]
    details = [wants("gpu", 1, constraints=f"device.number != {n}") for n in range(64)]
    (answer,) = solve_manifests(fleet(*details, devices=gpus))["claims"]

    assert [blocker["kind"] for blocker in answer["blockers"]] == ["request"]
    assert "notSmallest" not in answer.get("caveats", ())


@pytest.mark.parametrize("order", [1, -1])
def test_the_request_is_named_without_which_the_others_can_be_packed(order: int) -> None:
    """8 devices of 74, and 16 requests for 30 to 45: only without 45, the others fit, in pairs of exactly 74."""
    amounts = [*range(30, 46)][::order]
    shared = [{"name": f"g{n}", "capacity": {"m": {"value": "74"}}, "allowMultipleAllocations": True} for n in range(8)]
    requests = [request(f"r{m}", 1) for m in amounts]
    for one, amount in zip(requests, amounts, strict=True):
        one["exactly"]["capacity"] = {"requests": {"m": str(amount)}}
    details = [wants("gpu", requests={"m": m}, limits={"count": 1}) for m in amounts]
    pools = [device(f"g{n}", resources={"m": 74}) for n in range(8)]

    of_pools = solve_manifests(fleet(*details, devices=pools))["claims"][0]
    for answer in (resource_answer(resource_claim(*requests), slice_("s", shared)), of_pools):
        assert answer["reason"] == "InsufficientCapacity"
        assert "notSmallest" not in answer.get("caveats", ())
        (blocker,) = answer["blockers"]
        assert blocker["request"] in ("r45", str(amounts.index(45)))


@pytest.mark.parametrize(("pin", "where"), [(None, "no node has"), ("n9", "node n9 does not have")])
def test_devices_of_the_network_are_counted_where_no_node_has_pools(pin: str | None, where: str) -> None:
    network = [device_class("gpu"), pool("p", node=None, devices=GPUS[:2])]
    wanted = claim("c", wants("gpu", 2), wants("gpu", 2), node=pin)

    assert (
        f"{where} 4 devices for spec.claims[0] and spec.claims[1] together (at most 2); remove spec.claims"
        in message(*network, wanted)
    )
