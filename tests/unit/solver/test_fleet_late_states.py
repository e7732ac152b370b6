"""A state of a claim that is older than the one that counts frees no devices."""

from __future__ import annotations

from typing import Any

import pytest

from devalloc_solver import Fleet
from devalloc_solver.testing import claim, device, device_class, pool, request
from tests.support import dra_builders

Object = dict[str, Any]
A, B = "a", "b"


class DeviceClaims:
    documents = (device_class("any"), pool("p", "n1", devices=[device("d0")]))

    @staticmethod
    def pending(name: str, **metadata: Any) -> Object:
        return claim(name, request("any"), **metadata)

    @staticmethod
    def written(new: Object, answer: Any) -> Object:
        metadata = {**new["metadata"], "annotations": answer["annotations"]}
        return {**new, "metadata": metadata, "status": {"allocations": answer["allocations"]}}


class ResourceClaims:
    documents = (dra_builders.ANY, dra_builders.slice_("s", dra_builders.devices("d0")))

    @staticmethod
    def pending(name: str, **metadata: Any) -> Object:
        new = dra_builders.claim(dra_builders.request(), name=name)
        return {**new, "metadata": {**new["metadata"], **metadata}}

    @staticmethod
    def written(new: Object, answer: Any) -> Object:
        return {**new, "status": {"allocation": answer["allocations"]}}


DIALECTS = pytest.mark.parametrize("of", [DeviceClaims, ResourceClaims])


def version(document: Object, number: int) -> Object:
    return {**document, "metadata": {**document["metadata"], "resourceVersion": str(number)}}


@DIALECTS
@pytest.mark.parametrize("jointly", [False, True])
def test_a_change_from_before_the_status_was_written_frees_nothing(of: Any, jointly: bool) -> None:
    fleet = Fleet.from_manifests(of.documents)
    new = of.pending(A)
    answer = fleet.allocate_all([new])["claims"][0] if jointly else fleet.allocate(new)
    assert answer["allocated"]
    fleet.update(of.pending(A, labels={"team": "x"}))
    assert fleet.holds("default", A)
    assert not fleet.allocate(of.pending(B))["allocated"]


@DIALECTS
def test_once_the_status_has_come_in_one_without_devices_frees_them(of: Any) -> None:
    fleet = Fleet.from_manifests(of.documents)
    fleet.update(of.written(of.pending(A), fleet.allocate(of.pending(A))))
    fleet.update(of.pending(A))
    assert not fleet.holds("default", A)
    assert fleet.allocate(of.pending(B))["allocated"]


@DIALECTS
def test_a_lower_version_changes_nothing(of: Any) -> None:
    fleet = Fleet.from_manifests(of.documents)
    fleet.update(version(of.written(of.pending(A), fleet.allocate(of.pending(A))), 12))
    fleet.update(version(of.pending(A), 9))
    assert fleet.holds("default", A)
    fleet.update(version(of.pending(A), 13))
    assert not fleet.holds("default", A)


@DIALECTS
def test_a_state_that_is_said_to_count_counts_whatever_its_version(of: Any) -> None:
    """As after the restore of a backup, which makes versions smaller."""
    fleet = Fleet.from_manifests(of.documents)
    fleet.update(version(of.written(of.pending(A), fleet.allocate(of.pending(A))), 12))
    fleet.update(version(of.pending(A), 9), is_current=True)
    assert not fleet.holds("default", A)
    assert fleet.allocate(of.pending(B))["allocated"]
    fleet.update(version(of.pending(B), 9), is_current=True)
    assert not fleet.holds("default", B), "nor does it matter that this fleet gave the devices"


@DIALECTS
def test_another_claim_of_that_name_has_nothing(of: Any) -> None:
    fleet = Fleet.from_manifests(of.documents)
    assert fleet.allocate(of.pending(A, uid="1"))["allocated"]
    fleet.update(of.pending(A, uid="1"))
    assert fleet.holds("default", A)
    fleet.update(of.pending(A, uid="2"))
    assert not fleet.holds("default", A)


@DIALECTS
@pytest.mark.parametrize("how", ["release", "delete"])
def test_what_is_given_back_is_free(of: Any, how: str) -> None:
    fleet = Fleet.from_manifests(of.documents)
    assert fleet.allocate(of.pending(A))["allocated"]
    if how == "release":
        fleet.release("default", A)
    else:
        fleet.delete(of.pending(A))
    fleet.update(of.pending(A))
    assert fleet.allocate(of.pending(B))["allocated"]


def test_a_fleet_is_made_of_a_placement_that_there_is() -> None:
    with pytest.raises(ValueError, match="placement must be one of pack, spread, not 'spred'"):
        Fleet("spred")
    with pytest.raises(TypeError, match=r"Fleet\.from_manifests takes manifests"):
        Fleet([])  # type: ignore[arg-type]
