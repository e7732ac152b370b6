"""Lists of objects, as ``kubectl get -o yaml``, ``kubectl get --raw`` and client libraries give them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from devalloc.api.manifests import load
from devalloc.api.object_lists import flatten_lists
from devalloc_solver import Fleet, capacity, dra, solve_manifests
from devalloc_solver.testing import claim, device, device_class, pool, request
from tests.support import dra_builders as kubernetes
from tests.support.manifests import Manifest

OURS = [device_class("gpu"), pool("card", node="a", devices=[device("gpu-0")]), claim("c", request("gpu", 1))]
THEIRS = [
    kubernetes.ANY,
    kubernetes.slice_("s", kubernetes.devices("gpu-0")),
    kubernetes.claim(kubernetes.request(count=1)),
]
DIALECTS: dict[str, tuple[list[Manifest], Any]] = {
    "DeviceClaim": (OURS, solve_manifests),
    "ResourceClaim": (THEIRS, dra.solve_manifests),
}


def plain_list(objects: list[Manifest]) -> list[Manifest]:
    return [{"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": objects}]


def typed_lists(objects: list[Manifest]) -> list[Manifest]:
    return [{"apiVersion": one["apiVersion"], "kind": f"{one['kind']}List", "items": [one]} for one in objects]


def raw_lists(objects: list[Manifest]) -> list[Manifest]:
    """Items without kind and version."""
    bare = [{key: value for key, value in one.items() if key not in ("kind", "apiVersion")} for one in objects]
    return [
        {"apiVersion": one["apiVersion"], "kind": f"{one['kind']}List", "items": [item]}
        for one, item in zip(objects, bare, strict=True)
    ]


def list_of_lists(objects: list[Manifest]) -> list[Manifest]:
    return plain_list(raw_lists(objects))


FORMS = [plain_list, typed_lists, raw_lists, list_of_lists]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_library_takes_lists(dialect: str, form: Any) -> None:
    objects, solve = DIALECTS[dialect]

    answer = solve(form(objects))

    assert [one["allocated"] for one in answer["claims"]] == [True]
    assert answer["problems"] == []
    assert Fleet.from_manifests(form(objects[:2])).allocate(objects[2])["allocated"]
    assert Fleet.from_manifests(form(objects[:2])).allocate_all(form(objects[2:]))["claims"][0]["allocated"]
    assert capacity(form(objects[:2]), objects[2]).count == 1


@pytest.mark.parametrize("form", FORMS[:3])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_files_may_have_lists(tmp_path: Path, dialect: str, form: Any) -> None:
    objects, _ = DIALECTS[dialect]
    file = tmp_path / "all.yaml"
    file.write_text(yaml.safe_dump_all(form(objects)))

    loaded = load([file])

    assert not loaded.problems
    assert [document.content["kind"] for document in loaded.documents] == [one["kind"] for one in objects]


def test_an_item_keeps_what_it_says_itself() -> None:
    given = {"apiVersion": "v1", "kind": "NodeList", "items": [{"kind": "Node", "metadata": {}}, 5, {"kind": "Pod"}]}

    assert [*flatten_lists(given)] == [
        {"apiVersion": "v1", "kind": "Node", "metadata": {}},
        5,
        {"apiVersion": "v1", "kind": "Pod"},
    ]


def test_a_list_in_a_list_may_be_as_deep_as_it_likes() -> None:
    deep: Any = {"kind": "Node"}
    for _ in range(20_000):
        deep = {"kind": "List", "items": [deep]}

    assert [*flatten_lists(deep)] == [{"kind": "Node"}]


@pytest.mark.parametrize("content", [5, None, [], {"kind": "Node"}, {"kind": "Nodes", "items": [1]}, {"items": {}}])
def test_anything_else_stays(content: Any) -> None:
    assert [*flatten_lists(content)] == [content]


def list_that_contains_itself() -> Manifest:
    within: Manifest = {"apiVersion": "v1", "kind": "List"}
    within["items"] = [within]
    return within


def list_without_version_that_contains_itself() -> Manifest:
    """Each time it is met, it gets the kind and the version of the list around it."""
    within: Manifest = {"items": []}
    within["items"].append(within)
    return {"apiVersion": "devmgmtproto.k8s.io/v1alpha1", "kind": "DevicePoolListList", "items": within["items"]}


@pytest.mark.parametrize("make", [list_that_contains_itself, list_without_version_that_contains_itself])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_list_without_an_end_is_refused(dialect: str, make: Any) -> None:
    with pytest.raises(ValueError, match="contains itself"):
        DIALECTS[dialect][1]([make()])


def test_a_list_may_stand_twice_beside_itself() -> None:
    within = plain_list([{"kind": "Node"}])
    assert [*flatten_lists(plain_list([*within, *within])[0])] == [{"kind": "Node"}] * 2
