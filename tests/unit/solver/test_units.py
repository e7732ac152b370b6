"""Claims of both dialects become units by the same rules, and the rejected ones have the same words (S7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from devalloc_solver import dra, solve_manifests
from tests.support import dra_builders, manifests

Wants = Callable[..., dict[str, Any]]


def device_claim(name: str, class_name: str = "any", **marks: str) -> dict[str, Any]:
    annotations = {f"devalloc.io/{key}": value for key, value in marks.items()}
    return manifests.claim(name, {"deviceClass": class_name, "requests": {"count": 1}}, annotations=annotations)


def resource_claim(name: str, class_name: str = "any", **marks: str) -> dict[str, Any]:
    return dra_builders.claim(dra_builders.request("r", 1, class_name=class_name), name=name, marks=marks)


def answers_of(wants: Wants, *claims: dict[str, Any]) -> dict[str, Any]:
    """On two nodes of two devices each."""
    if wants is device_claim:
        fleet = [manifests.device_class("any", driver="gpu")]
        fleet += [
            manifests.pool(f"p{n}", node=n, driver="gpu", devices=[manifests.device(d) for d in "ab"])
            for n in ("n1", "n2")
        ]
        answer = solve_manifests([*fleet, *claims])
    else:
        slices = [dra_builders.slice_(f"s-{n}", dra_builders.devices(*"ab"), pool=n, nodeName=n) for n in ("n1", "n2")]
        answer = dra.solve_manifests([dra_builders.ANY, *slices, *claims])
    return {one["name"]: one for one in answer["claims"]}


both = pytest.mark.parametrize("wants", [device_claim, resource_claim])


@both
def test_a_group_bound_to_two_nodes_is_rejected(wants: Wants) -> None:
    claims = [wants("x", group="g", node="n2"), wants("y", group="g", node="n1"), wants("z", group="g")]

    answers = answers_of(wants, *claims)

    apart = "members of group g are bound to different nodes: n1 (y), n2 (x)"
    message = f"{apart}; give all the same devalloc.io/node"
    assert {(one["reason"], one["message"]) for one in answers.values()} == {("GroupUnsatisfiable", message)}


@both
def test_a_member_that_is_rejected_rejects_its_group_and_no_other(wants: Wants) -> None:
    claims = [wants("x", "gone", group="g"), wants("y", group="g"), wants("other", group="h"), wants("alone")]

    answers = answers_of(wants, *claims)

    assert [answers[name]["reason"] for name in "xy"] == ["ClassNotFound", "GroupUnsatisfiable"]
    prefix = "claim default/x of group g fails: "
    assert answers["y"]["message"].startswith(prefix)
    assert answers["y"]["causes"][0]["cause"] == answers["x"]["causes"][0]
    assert answers["other"]["allocated"]
    assert answers["alone"]["allocated"]


@both
def test_one_pinned_member_takes_its_group_along(wants: Wants) -> None:
    answers = answers_of(wants, wants("x", group="g", node="n2"), wants("y", group="g"))

    assert [answers[name]["node"] for name in "xy"] == ["n2", "n2"]


@both
def test_groups_of_one_name_in_two_namespaces_are_two_groups(wants: Wants) -> None:
    claims = [wants(name, group="g", node=node) for name, node in (("x", "n1"), ("y", "n2"))]
    claims[1]["metadata"]["namespace"] = "elsewhere"

    answers = answers_of(wants, *claims)

    assert [answers[name]["node"] for name in "xy"] == ["n1", "n2"]


@both
def test_an_invalid_member_that_holds_devices_fixes_the_node(wants: Wants) -> None:
    """It keeps what it has (S13), and a member that waits goes where it is."""
    done = wants("x", group="g", node="n2")
    first = answers_of(wants, done)["x"]
    del done["metadata"]["annotations"]["devalloc.io/node"]
    if wants is device_claim:
        done = manifests.allocated(done, first["allocations"], node="n2")
        done["spec"]["claims"][0]["requests"]["count"] = -1
    else:
        done["status"] = {"allocation": first["allocations"]}
        done["spec"]["devices"]["requests"][0]["exactly"]["count"] = "one"

    answers = answers_of(wants, done, wants("y", group="g"))

    assert [(answers[name]["allocated"], answers[name]["node"]) for name in "xy"] == [(True, "n2"), (True, "n2")]
