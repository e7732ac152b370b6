"""`explain`, `capacity` and `get` of ResourceClaims and their templates: in files, in a store, and of a cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from devalloc.api.adopted_pools import ADOPTED_AT, rule_manifest
from devalloc.api.dedicated_pools import TAINT
from devalloc.cli import target
from devalloc.cli.render.columns import header_and_rows
from tests.support.cli_shell import Shell, claim, device_class, pool, text
from tests.support.dra_builders import ANY, devices, held, request, slice_
from tests.support.dra_builders import claim as resource_claim
from tests.support.dra_builders import device_class as device_class_of
from tests.support.fake_kube import FakeClient, FakeKube

Object = dict[str, Any]
V1 = "resource.k8s.io/v1"


def of(kind: str, content: Object) -> Object:
    return {"apiVersion": V1, "kind": kind, **content}


def template(name: str, count: int) -> Object:
    metadata = {"name": name, "namespace": "default"}
    return of(
        "ResourceClaimTemplate", {"metadata": metadata, "spec": {"spec": resource_claim(request("r", count))["spec"]}}
    )


SLICE = slice_("s", devices("a", "b", "c"))
PAIR = resource_claim(request("r", 2), name="pair")
OBJECTS = (ANY, SLICE, PAIR, template("one", 1), template("many", 9))


def test_capacity_of_files_counts_with_claims_and_templates(devalloc: Shell) -> None:
    def capacity(*words: str) -> str:
        return devalloc("capacity", *words, "-f", "-", stdin=text(*OBJECTS)).out

    assert capacity() == "1 more like default/pair: 1 on n1\n"
    assert capacity("one") == "3 more like default/one: 3 on n1\n"
    assert capacity("resourceclaimtemplate/many") == "0 more like default/many\n"
    assert capacity("resourceclaims.resource.k8s.io/pair") == "1 more like default/pair: 1 on n1\n"


def test_explain_of_files_explains_claims_and_templates(devalloc: Shell) -> None:
    def explain(*words: str) -> tuple[int, str]:
        shown = devalloc("explain", *words, "-f", "-", stdin=text(*OBJECTS))
        return shown.code, shown.out

    assert explain("pair") == explain("resourceclaim/pair")
    assert explain("resourceclaim/pair")[0] == 0
    code, out = explain("resourceclaimtemplate/many")
    assert code == 3
    assert "default/many is not allocated: NotEnoughDevices" in out
    assert explain("many")[1] == out
    code, out = explain("resourceclaimtemplate", "one")
    assert code == 0
    assert out.startswith("default/one is not allocated yet, but would be on node n1: gpu.io/p/a\n")
    assert "What to do: name the template in a pod" in out
    missing = devalloc("explain", "resourceclaimtemplate/on", "-f", "-", stdin=text(*OBJECTS))
    assert missing.err.endswith("there is no template default/on; did you mean one?\n")


def test_explain_of_a_store_says_what_allocates_there(devalloc: Shell) -> None:
    devalloc("apply", "-f", "-", stdin=text(*OBJECTS))
    shown = devalloc("explain", "resourceclaim/pair")
    assert "What to do: `devalloc up` allocates it." in shown.out
    of_template = devalloc("explain", "resourceclaimtemplate/many")
    assert "devalloc up" not in of_template.out


def test_a_store_answers_as_devalloc_up_would_whatever_allocator_a_label_names(devalloc: Shell) -> None:
    labels = {"devalloc.io/allocator": "devalloc"}
    labelled = {**PAIR, "metadata": {**PAIR["metadata"], "labels": labels}}
    devalloc("apply", "-f", "-", stdin=text(ANY, SLICE, labelled))

    shown = devalloc("explain", "resourceclaim/pair")
    assert (shown.code, "would be on node n1: gpu.io/p/a" in shown.out) == (0, True)
    assert devalloc("capacity", "resourceclaim/pair").out == "1 more like default/pair: 1 on n1\n"


def test_the_advice_for_taints_in_the_way_is_to_tolerate_them(devalloc: Shell) -> None:
    """As in https://github.com/kubernetes/website/pull/49822: all devices, of which one has a taint."""
    taint = {"key": "dra.example.com/bad", "effect": "NoSchedule"}
    tainted = [{**one, "taints": [taint]} if number else one for number, one in enumerate(devices("a", "b"))]
    every = resource_claim(request("r", None), name="every")
    given = text(ANY, slice_("s", tainted), every)

    shown = devalloc("explain", "every", "-f", "-", stdin=given).out

    assert "What to do: Tolerate the taint in the request (`tolerations`), or have" in shown


def test_the_advice_for_the_taint_of_an_unavailable_device_is_not_to_tolerate_it(devalloc: Shell) -> None:
    taint = {"key": "devalloc.io/unavailable", "value": "in-use", "effect": "NoSchedule"}
    given = text(ANY, slice_("s", [{**one, "taints": [taint]} for one in devices("a", "b")]), PAIR)

    shown = devalloc("explain", "pair", "-f", "-", stdin=given).out

    assert "What to do: Correct on its node what makes the device unavailable: the value of the taint" in shown
    assert "Tolerate" not in shown


def test_the_advice_for_a_slice_that_is_left_out_is_to_correct_it(devalloc: Shell) -> None:
    broken = slice_("s", [{"name": "a", "capacity": {"memory": {"value": "6 GiB"}}}])

    shown = devalloc("explain", "pair", "-f", "-", stdin=text(ANY, broken, PAIR)).out

    assert "no valid pool exists: ResourceSlice s is left out" in shown
    assert "What to do: Correct that pool" in shown


def test_a_claim_of_a_store_is_explained_and_counted(devalloc: Shell) -> None:
    devalloc("apply", "-f", "-", stdin=text(*OBJECTS, pool(), device_class(), claim()))

    shown = devalloc("explain", "resourceclaimtemplate/many")
    assert shown.err == ""
    assert "NotEnoughDevices" in shown.out
    assert devalloc("capacity", "resourceclaim/pair").out == "1 more like default/pair: 1 on n1\n"
    assert devalloc("capacity", "train").out.startswith("2 more like default/train")


def test_a_table_of_claims_shows_the_devices_or_why_there_are_none() -> None:
    name = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    result = {"request": "r", "driver": "gpu.io", "pool": "p", "device": "a", "consumedCapacity": {"memory": "1Gi"}}
    allocation = {
        "devices": {"results": [result]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [name]}]},
    }
    why = {"devalloc.io/reason": "DevicesInUse", "devalloc.io/message": "delete another"}
    waiting = {**PAIR, "metadata": {**PAIR["metadata"], "annotations": why}}

    header, rows = header_and_rows(
        "ResourceClaim", [{**PAIR, "status": {"allocation": allocation}}, waiting, PAIR], wide=True, namespaces=False
    )

    assert header == ["NAME", "NODE", "DEVICES, OR WHY NOT", "AGE", "MESSAGE"]
    assert rows == [
        ["pair", "n1", "gpu.io/p/a (memory 1Gi)", "", ""],
        ["pair", "", "DevicesInUse", "", "delete another"],
        ["pair", "", "", "", ""],
    ]


# -- of a cluster ------------------------------------------------------------------------------------------------------


@pytest.fixture
def cluster(devalloc: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run a verb on a cluster that has these objects."""

    def run(*words: str, objects: tuple[Object, ...] = OBJECTS) -> Any:
        kube = FakeKube()
        for one in objects:
            group = "/api/v1" if one["apiVersion"] == "v1" else f"/apis/{one['apiVersion']}"
            space = one["metadata"].get("namespace")
            where = f"{group}/namespaces/{space}" if space else group
            plural = f"{one['kind'].lower()}{'es' if one['kind'].endswith('s') else 's'}"
            created = kube.create(f"{where}/{plural}", one)
            if "status" in one:
                path = f"{where}/{plural}/{one['metadata']['name']}/status"
                kube.replace(path, {**created, "status": one["status"]})
        monkeypatch.setattr(target, "connect_cluster", lambda _: FakeClient(kube))
        config = tmp_path / "config"
        config.write_text("{}")
        return devalloc(*words, "--kubeconfig", str(config))

    return run


def test_claims_and_templates_of_a_cluster_are_counted_and_explained(cluster: Callable[..., Any]) -> None:
    assert cluster("capacity", "resourceclaim/pair", "-n", "default").out == "1 more like default/pair: 1 on n1\n"
    many = cluster("explain", "resourceclaimtemplate/many", "-n", "default")
    assert (many.code, many.err) == (3, "")
    assert "no node has 9 devices for request r (at most 3)" in many.out
    pair = cluster("explain", "resourceclaim/pair", "-n", "default")
    assert pair.out.startswith("default/pair is not allocated yet, but would be: gpu.io/p/a") or (
        pair.out.startswith("default/pair is not allocated yet, but would be on node n1")
    )
    missing = cluster("explain", "resourceclaim/pear", "-n", "default")
    assert missing.err.endswith("there is no ResourceClaim default/pear; did you mean pair?\n")


def test_taint_rules_of_a_cluster_count(cluster: Callable[..., Any]) -> None:
    rule = {"metadata": {"name": "r"}, "spec": {"deviceSelector": {}, "taint": {"key": "k", "effect": "NoSchedule"}}}

    tainted = cluster(
        "capacity", "resourceclaim/pair", "-n", "default", objects=(*OBJECTS, of("DeviceTaintRule", rule))
    )

    assert tainted.out == "0 more like default/pair\n"


def test_a_claim_for_devalloc_gets_what_is_set_aside(cluster: Callable[..., Any]) -> None:
    labelled = {**PAIR, "metadata": {**PAIR["metadata"], "labels": {"devalloc.io/allocator": "devalloc"}}}
    aside = slice_("t", devices("x", "y"), pool="p.devalloc")

    nothing = cluster("explain", "resourceclaim/pair", "-n", "default", objects=(ANY, SLICE, labelled))
    assert nothing.code == 3
    assert nothing.out.splitlines() == [
        "default/pair is not allocated: NotAdopted",
        "3 devices match, none is adopted (gpu.io); devalloc adopt driver/gpu.io, or remove the claim's label "
        "devalloc.io/allocator",
    ]
    counted = cluster("capacity", "resourceclaim/pair", "-n", "default", objects=(ANY, SLICE, labelled)).out
    assert counted.startswith("0 more like default/pair\nNotAdopted: 3 devices match, none is adopted (gpu.io)")
    something = cluster("explain", "resourceclaim/pair", "-n", "default", objects=(ANY, SLICE, aside, labelled))
    assert (something.code, something.err) == (0, "")
    assert "p.devalloc/x" in something.out


# -- of adopted drivers ------------------------------------------------------------------------------------------------

LABEL = {"devalloc.io/allocator": "devalloc"}
ADOPTED = rule_manifest("gpu.io")
ADOPTED["metadata"]["annotations"] = {ADOPTED_AT: "2026-11-29T12:00:00Z"}


def test_a_claim_of_kube_scheduler_for_an_adopted_driver_needs_the_label(cluster: Callable[..., Any]) -> None:
    shown = cluster("explain", "resourceclaim/pair", "-n", "default", objects=(*OBJECTS, ADOPTED))

    assert shown.code == 3
    assert "all 3 devices are only for claims with the label devalloc.io/allocator=devalloc" in shown.out
    assert shown.out.endswith(
        "What to do: Label the claim devalloc.io/allocator=devalloc, or its namespace: driver gpu.io is adopted.\n"
    )
    labelled = {**PAIR, "metadata": {**PAIR["metadata"], "labels": LABEL}}
    assert cluster("explain", "resourceclaim/pair", "-n", "default", objects=(ANY, SLICE, labelled, ADOPTED)).code == 0


def test_a_class_in_the_way_has_no_path_before_its_name(devalloc: Shell) -> None:
    nothing = device_class_of("any", "device.allowMultipleAllocations")

    shown = devalloc("explain", "pair", "-f", "-", stdin=text(nothing, SLICE, PAIR)).out

    assert ["class", "any"] in [line.split() for line in shown.splitlines()]


def test_a_claim_of_kube_scheduler_for_nodes_that_are_set_aside_needs_the_label(devalloc: Shell) -> None:
    aside = slice_("t", [{**one, "taints": [dict(TAINT)]} for one in devices("x", "y")], pool="p.devalloc")

    shown = devalloc("explain", "pair", "-f", "-", stdin=text(ANY, aside, PAIR)).out

    assert shown.endswith(
        "What to do: Label the claim devalloc.io/allocator=devalloc, or its namespace: their nodes are set aside.\n"
    )


def test_a_labelled_claim_with_devices_of_any_driver_has_lost_none_of_them(cluster: Callable[..., Any]) -> None:
    """kube-scheduler allocated it before it had the label, of a driver that is not adopted."""
    labelled = {**PAIR, "metadata": {**PAIR["metadata"], "labels": LABEL}}

    shown = cluster("explain", "resourceclaim/pair", "-n", "default", objects=(ANY, SLICE, held(labelled, "a", "b")))

    assert (shown.code, shown.out.splitlines()[0]) == (0, "default/pair is allocated: gpu.io/p/a, b")
    assert "DeviceLost" not in shown.out + shown.err
    gone = cluster("explain", "resourceclaim/pair", "-n", "default", objects=(ANY, SLICE, held(labelled, "a", "z")))
    assert "DeviceLost: device gpu.io/p/z no longer exists" in gone.out


# -- for a controller that does not answer ResourceClaims --------------------------------------------------------------

LABELLED = {**PAIR, "metadata": {**PAIR["metadata"], "labels": LABEL}}
RBAC = "rbac.authorization.k8s.io/v1"
CONTROLLER, ALLOCATOR = (
    {"apiVersion": RBAC, "kind": "ClusterRoleBinding", "metadata": {"name": name}}
    for name in ("devalloc-controller", "devalloc-controller-resourceclaims")
)
OFF = "devalloc's controller allocates no ResourceClaims: devalloc install --resource-claims, or remove the label"


def test_a_labelled_claim_is_promised_nothing_without_the_option_of_the_controller(cluster: Callable[..., Any]) -> None:
    def messages(*objects: Object) -> tuple[bool, bool]:
        explained = cluster("explain", "resourceclaim/pair", "-n", "default", objects=objects).out
        top = cluster("top", "--once", "-n", "default", "-o", "json", objects=objects).out
        return f"warning: {OFF}" in explained, json.loads(top)["claims"][0]["message"] == OFF

    assert messages(ANY, SLICE, LABELLED, CONTROLLER) == (True, True)
    assert messages(ANY, SLICE, LABELLED, CONTROLLER, ALLOCATOR) == (False, False)
    assert messages(ANY, SLICE, PAIR, CONTROLLER) == (False, False)
    assert messages(ANY, SLICE, LABELLED) == (False, False), "a controller that was not installed may have it"


def test_devices_that_are_not_adopted_are_not_called_absent(cluster: Callable[..., Any]) -> None:
    nothing = device_class_of("any", "device.allowMultipleAllocations")

    shown = cluster("explain", "resourceclaim/pair", "-n", "default", objects=(nothing, SLICE, LABELLED))

    assert shown.code == 3
    assert "no devices are published" not in shown.out
    assert "all 3 devices" in shown.out
    assert "Publish devices" not in shown.out
    empty = cluster("explain", "resourceclaim/pair", "-n", "default", objects=(ANY, LABELLED))
    assert "no devices are published" in empty.out


# -- names -------------------------------------------------------------------------------------------------------------


def test_other_objects_of_the_name_of_a_claim_count(devalloc: Shell) -> None:
    same = resource_claim(request("r", 1), name=ANY["metadata"]["name"])
    sliced = {**slice_("s", devices("a")), "metadata": {"name": ANY["metadata"]["name"]}}
    devalloc("apply", "-f", "-", stdin=text(ANY, sliced, same))

    assert devalloc("explain", f"resourceclaim/{ANY['metadata']['name']}").code == 0
    assert devalloc("capacity", f"resourceclaim/{ANY['metadata']['name']}").out.startswith("1 more like")


def test_an_allocated_claim_of_the_name_of_a_template_has_its_devices(devalloc: Shell) -> None:
    held = [{"request": "r", "driver": SLICE["spec"]["driver"], "pool": SLICE["spec"]["pool"]["name"], "device": "a"}]
    owner = {**resource_claim(request("r", 1), name="three")}
    owner["status"] = {"allocation": {"devices": {"results": held}}}
    objects = text(ANY, SLICE, owner, template("three", 3))

    shown = devalloc("explain", "resourceclaimtemplate/three", "-f", "-", stdin=objects)
    assert shown.code == 3
    assert "; delete claim default/resourceclaim/three, or wait for it\n" in shown.out


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_capacity_says_in_data_why_a_claim_is_invalid(devalloc: Shell, form: str) -> None:
    unknown = resource_claim(request("r", 1, class_name="nope"), name="c")

    for objects in ((ANY, SLICE, unknown), (pool(), claim())):
        shown = devalloc("capacity", "-f", "-", "-o", form, stdin=text(*objects))
        assert "ClassNotFound" in shown.out, shown.err


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (5, "spec: must be a map (spec, metadata), not a number"),
        ("text", "spec: must be a map (spec, metadata), not a string"),
        ({}, "spec.spec: is missing"),
        ({"spec": []}, "spec.spec: must be a map, not a list"),
        ({"devices": {}}, "spec.devices: is not a known field of resource.k8s.io/v1 there: move it below spec.spec"),
        ({"spek": {}}, "spec.spek: is not a known field of resource.k8s.io/v1: did you mean spec?"),
        ({"spec": {"devices": {"requests": [{"name": "r"}]}}}, "spec.spec.devices.requests[0].exactly.deviceClassName"),
        ({"spec": {"devices": {"requests": [{"name": "r", "exactli": {}}]}}}, "did you mean exactly?"),
        ({"spec": {"devices": {"requests": [request("r", 1, "nothing(")]}}}, "selectors[0]"),
    ],
)
@pytest.mark.parametrize("verb", ["apply", "validate", "solve", "explain", "capacity"])
def test_a_template_of_the_wrong_form_is_an_error_in_its_line(
    devalloc: Shell, verb: str, spec: Any, message: str
) -> None:
    wrong = of("ResourceClaimTemplate", {"metadata": {"name": "t", "namespace": "default"}, "spec": spec})
    shown = devalloc(verb, "-f", "-", stdin=text(ANY, SLICE, wrong))
    assert shown.code == 2
    assert re.match(r"error: stdin, document 3, line \d+: ResourceClaimTemplate default/t: spec", shown.err)
    assert message in shown.err
    assert "yes" not in shown.out
