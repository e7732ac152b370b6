"""How many more ResourceClaims, or claims of a template, fit: as many as a joint solve allocates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from devalloc_solver import capacity
from devalloc_solver.dra import solve_manifests
from tests.support.dra_builders import ANY, Manifest, claim, counter_slice, device, devices, held, request, slice_

V1 = "resource.k8s.io/v1"


def objects(*slices: Manifest) -> list[Manifest]:
    return [ANY, *slices]


def template(of: Manifest, version: str = V1) -> Manifest:
    metadata = {"name": "t", "namespace": "default"}
    return {"apiVersion": version, "kind": "ResourceClaimTemplate", "metadata": metadata, "spec": {"spec": of["spec"]}}


def jointly(documents: Sequence[Mapping[str, Any]], one: Manifest) -> int:
    """How many of 12 copies a joint solve allocates."""
    copies = [{**one, "metadata": {"name": f"c{n}", "namespace": "default"}} for n in range(12)]
    return sum(each["allocated"] for each in solve_manifests([*documents, *copies])["claims"][:12])


TWO_NODES = objects(
    slice_("s", devices("a", "b", "c", "d", "e", root=1)),
    slice_("t", [device(f"x{n}", {"root": n // 2}) for n in range(4)], nodeName="n2", pool="q"),
)
HALVES = objects(
    counter_slice("c", {"s": {"m": "4"}}, count=2),
    slice_("s", [device(f"h{n}", counters={"s": {"m": "2"}}) for n in range(4)], count=2),
)
SHARED = objects(slice_("s", [device(f"g{n}", capacity={"m": "10"}, shared=True) for n in range(2)]))


@pytest.mark.parametrize(
    ("documents", "one", "count"),
    [
        (TWO_NODES, claim(request("r", 1)), 9),
        (TWO_NODES, claim(request("r", 2)), 4),
        (TWO_NODES, claim(request("r", 2), match="gpu.io/root"), 4),
        (TWO_NODES, claim(request("r", 3), match="gpu.io/root"), 1),
        (TWO_NODES, claim(request("r", 2), distinct="gpu.io/root"), 2),
        (TWO_NODES, claim(request("r", None)), 2),
        (TWO_NODES, claim(request("r", 9)), 0),
        (HALVES, claim(request("r", 1)), 2),
        (SHARED, claim(request("r", 1, amounts={"m": "3"})), 6),
        (objects(slice_("s", devices("a", "b"), allNodes=True)), claim(request("r", 1)), 2),
    ],
)
def test_as_many_fit_as_a_joint_solve_allocates(documents: list[Manifest], one: Manifest, count: int) -> None:
    counted = capacity(documents, one)

    assert (counted.count, counted.proven) == (count, True)
    assert jointly(documents, one) == count
    assert sum(counted.by_node.values()) == count


def test_what_others_hold_is_not_counted_and_who_waits_is_left_aside() -> None:
    waiting = claim(request("r", 5), name="waits")

    counted = capacity([*TWO_NODES, held(claim(request(), name="held"), "a", "b"), waiting], claim(request("r", 1)))

    assert counted.by_node == {"n1": 3, "n2": 4}


def test_equal_nodes_count_alike_and_other_attributes_apart() -> None:
    nodes = [
        slice_(f"s{n}", [device(f"d{n}-{k}", {"root": k // width}) for k in range(4)], nodeName=f"n{n}", pool=f"p{n}")
        for n, width in enumerate((1, 2, 2, 4))
    ]

    assert capacity(objects(*nodes), claim(request("r", 2), match="gpu.io/root")).by_node == {
        "n1": 2,
        "n2": 2,
        "n3": 2,
    }


@pytest.mark.parametrize("version", [V1, "resource.k8s.io/v1beta2"])
def test_claims_of_a_template_are_counted(version: str) -> None:
    one = template(claim(request("r", 2)), version)

    assert capacity([*TWO_NODES, one], one).count == 4


def test_taint_rules_and_classes_count() -> None:
    rule = {
        "metadata": {"name": "r"},
        "spec": {"deviceSelector": {"pool": "p"}, "taint": {"key": "k", "effect": "NoExecute"}},
    }
    tainted = [*TWO_NODES, {"apiVersion": V1, "kind": "DeviceTaintRule", **rule}]

    assert capacity(tainted, claim(request("r", 1))).by_node == {"n2": 4}
    unknown = capacity(TWO_NODES, claim(request("r", 1, class_name="other")))
    assert (unknown.count, unknown.reason) == (0, "ClassNotFound")


def test_a_template_without_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match="a DeviceClaim, ResourceClaim or ResourceClaimTemplate"):
        capacity(TWO_NODES, {"apiVersion": V1, "kind": "ResourceClaimTemplate", "spec": {}})
