"""DeviceTaintRules in files and in a Fleet: as if the driver had published the taint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from devalloc_solver import Fleet
from devalloc_solver.dra import solve_manifests
from tests.support.dra_builders import ANY, Manifest, claim, device, devices, request, slice_

RULES = "resource.k8s.io/v1"


def manifest(kind: str, content: Manifest, version: str = RULES) -> Manifest:
    return {"apiVersion": version, "kind": kind, **content}


def rule(
    selector: Mapping[str, str] | None, effect: str = "NoSchedule", *, name: str = "r", version: str = RULES
) -> Manifest:
    spec: Manifest = {"taint": {"key": "broken", "value": "yes", "effect": effect}}
    fields = spec if selector is None else {**spec, "deviceSelector": dict(selector)}
    return manifest("DeviceTaintRule", {"metadata": {"name": name}, "spec": fields}, version)


FLEET = [ANY, slice_("s", devices("d1", "d2"))]
ALL = claim(request(count=None))
TWO = claim(request(count=2))
TOLERANT = claim(request(count=2, tolerations=[{"key": "broken", "operator": "Exists"}]))


def answers(*documents: Manifest, wanted: Manifest) -> list[Mapping[str, Any]]:
    """Solved once, and by a Fleet one by one and jointly."""
    once = solve_manifests([*documents, wanted])["claims"][0]
    alone = Fleet.from_manifests(documents).allocate(wanted)
    jointly = Fleet.from_manifests(documents).allocate_all([wanted])["claims"][0]
    return [once, alone, jointly]


@pytest.mark.parametrize(
    ("selector", "fits"),
    [
        (None, True),
        ({}, False),
        ({"driver": "gpu.io"}, False),
        ({"driver": "nic.io"}, True),
        ({"pool": "p"}, False),
        ({"pool": "q"}, True),
        ({"device": "d2"}, False),
        ({"device": "d3"}, True),
        ({"driver": "gpu.io", "pool": "p", "device": "d1"}, False),
        ({"driver": "gpu.io", "pool": "q", "device": "d1"}, True),
    ],
)
def test_a_rule_taints_what_it_selects(selector: Mapping[str, str] | None, fits: bool) -> None:
    for answer in answers(*FLEET, rule(selector), wanted=TWO):
        assert answer["allocated"] is fits, answer["message"]


@pytest.mark.parametrize(("effect", "fits"), [("NoSchedule", False), ("NoExecute", False), ("None", True)])
def test_effects_are_those_of_taints(effect: str, fits: bool) -> None:
    for answer in answers(*FLEET, rule({}, effect), wanted=TWO):
        assert answer["allocated"] is fits, answer["message"]


def test_a_claim_that_tolerates_the_taint_gets_the_devices() -> None:
    for answer in answers(*FLEET, rule({}), wanted=TOLERANT):
        assert answer["allocated"], answer["message"]


def test_the_reason_shows_the_taint() -> None:
    for answer in answers(*FLEET, rule({}), wanted=TWO):
        assert answer["reason"] == "NoMatchingDevices"
        assert "broken=yes:NoSchedule" in answer["message"]


def test_taints_of_rules_come_after_those_of_the_driver() -> None:
    own = {"key": "old", "effect": "NoSchedule"}
    tainted = [manifest("ResourceSlice", slice_("s", [device("d1", taints=[own])])), FLEET[0]]
    both = [{"key": key, "operator": "Exists"} for key in ("old", "broken")]

    def asks(tolerations: list[Manifest]) -> Manifest:
        return manifest("ResourceClaim", claim(request(tolerations=tolerations)))

    assert all(answer["allocated"] for answer in answers(*tainted, rule({}), wanted=asks(both)))
    for some in both:
        assert not any(answer["allocated"] for answer in answers(*tainted, rule({}), wanted=asks([some])))


def test_a_fleet_follows_rules_that_come_and_go() -> None:
    fleet = Fleet.from_manifests(FLEET)

    assert fleet.update(rule({"device": "d2"})) == []
    assert not fleet.allocate(TWO)["allocated"]
    assert not fleet.allocate_all([TWO])["claims"][0]["allocated"]
    fleet.update(rule({"device": "d9"}))
    assert fleet.allocate(TWO)["allocated"]
    fleet.update(rule({}))
    fleet.release("default", "c")
    assert not fleet.allocate(TWO)["allocated"]
    fleet.delete(rule({}))
    assert fleet.allocate(TWO)["allocated"]


def test_a_device_that_a_rule_taints_stays_held() -> None:
    fleet = Fleet.from_manifests(FLEET)
    assert fleet.allocate(manifest("ResourceClaim", claim(request(), name="first")))["allocated"]

    fleet.update(rule({}, "NoExecute"))
    fleet.delete(rule({}))

    assert not fleet.allocate(TWO)["allocated"]


@pytest.mark.parametrize("version", ["resource.k8s.io/v1alpha3", "resource.k8s.io/v1beta2"])
def test_rules_of_older_versions_count(version: str) -> None:
    for answer in answers(*FLEET, rule({}, version=version), wanted=TWO):
        assert not answer["allocated"]


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"deviceSelector": {}}, "spec.taint.key"),
        ({"deviceSelector": {}, "taint": {"key": "k", "effect": "Never"}}, "spec.taint.effect"),
        ({"deviceSelector": {"class": "x"}, "taint": {"key": "k", "effect": "None"}}, "spec.deviceSelector.class"),
        ({"deviceSelector": {}, "taint": "k"}, "spec.taint"),
    ],
)
def test_a_rule_that_cannot_be_read_is_reported_and_has_no_effect(spec: Manifest, problem: str) -> None:
    wrong = manifest("DeviceTaintRule", {"metadata": {"name": "r"}, "spec": spec})
    answer = solve_manifests([*FLEET, wrong, TWO])

    assert [one["path"] for one in answer["problems"]] == [problem]
    assert answer["claims"][0]["allocated"]
    fleet = Fleet.from_manifests(FLEET)
    assert [one["path"] for one in fleet.update(wrong)] == [problem]
    assert fleet.allocate(TWO)["allocated"]
