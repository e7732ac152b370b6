"""What an answer repeats of its claim is there in each answer, however the claim fares, warm and cold."""

from __future__ import annotations

from typing import Any

import pytest

from devalloc.api.meta import GROUP, PRIORITY, RELEASE
from devalloc_solver import Fleet, solve_manifests
from devalloc_solver.testing import allocated, claim, device, device_class, entry, pool, request
from tests.support.manifests import Manifest

FLEET = [device_class("gpu", driver="gpu"), pool("cards", "n1", driver="gpu", devices=[device("g0"), device("g1")])]
SLIP = {"devalloc.io/prioritty": "1"}
WARNING = "'devalloc.io/prioritty' is unknown and has no effect; did you mean devalloc.io/priority?"

WAITING = {
    "placed": claim("c", request("gpu"), annotations=SLIP),
    "refused by the search": claim("c", request("gpu", 3), annotations=SLIP),
    "refused for its class": claim("c", request("missing"), annotations=SLIP),
    "refused for its expression": claim("c", request("gpu", constraints="device.("), annotations=SLIP),
    "leaving": {
        **(one := claim("c", request("gpu"), annotations=SLIP)),
        "metadata": {**one["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"},
    },
}
HELD = allocated(claim("c", request("gpu"), annotations=SLIP), [entry("cards", "g0")], node="n1")


def cold(*documents: Manifest) -> dict[str, Any]:
    return next(dict(one) for one in solve_manifests(documents)["claims"] if one["name"] == "c")


@pytest.mark.parametrize("fate", WAITING)
def test_a_claim_that_waits(fate: str) -> None:
    waiting = WAITING[fate]
    answer = cold(*FLEET, waiting)
    assert answer["allocated"] == (fate == "placed")
    assert answer["warnings"] == [WARNING]
    assert Fleet.from_manifests(FLEET).allocate(waiting) == answer
    (joint,) = Fleet.from_manifests(FLEET).allocate_all([waiting])["claims"]
    assert joint == answer
    fleet = Fleet.from_manifests(FLEET)
    fleet.allocate_all([])  # now it knows that nothing is wrong, and looks at the nodes that matter only
    (joint,) = fleet.allocate_all([waiting])["claims"]
    assert joint == answer


def test_a_claim_that_has_devices() -> None:
    answer = cold(*FLEET, HELD)
    assert answer["allocated"]
    assert answer["warnings"] == [WARNING]
    fleet = Fleet.from_manifests([*FLEET, HELD])
    assert fleet.allocate(HELD) == answer
    for _ in range(2):  # made, and copied
        assert fleet.allocate_all([])["claims"] == [answer]


def test_a_member_of_a_group_that_is_asked_for_alone() -> None:
    member = claim("c", request("gpu"), annotations={**SLIP, GROUP: "g"})
    assert Fleet.from_manifests(FLEET).allocate(member)["warnings"] == [WARNING]


def test_a_claim_for_which_there_is_no_time() -> None:
    late = claim("c", request("gpu", constraints="device.model == 'a'"), annotations=SLIP)
    answer = Fleet.from_manifests(FLEET).allocate(late, deadline=0)
    assert answer["warnings"] == [WARNING]


def test_before_what_became_of_its_devices() -> None:
    lost = allocated(claim("c", request("gpu"), annotations=SLIP), [entry("cards", "gone")], node="n1")
    assert cold(*FLEET, lost)["warnings"] == [WARNING, "DeviceLost: device cards/gone no longer exists"]


def test_claims_of_which_other_things_are_repeated_do_not_share_an_answer() -> None:
    fleet = Fleet.from_manifests(FLEET)
    plain = claim("c", request("gpu", 3))
    assert fleet.waiting_key(plain) != fleet.waiting_key(WAITING["refused by the search"])
    assert fleet.waiting_key(plain) == fleet.waiting_key(claim("d", request("gpu", 3), annotations={RELEASE: "asked"}))
    assert fleet.waiting_key(plain) != fleet.waiting_key(claim("d", request("gpu", 3), annotations={PRIORITY: "1"}))
