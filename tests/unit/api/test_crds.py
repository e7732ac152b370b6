"""The CRDs in crds/ are current, structural, and say the same as the models."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import ConfigDict, Field

from devalloc.api import crds
from devalloc.api.claim import DeviceClaim, DeviceClaimInstance, DeviceClaimSpec
from devalloc.api.conditions import DEFAULT_STATUS
from devalloc.api.fields import AmountField
from devalloc.api.kinds import API_KINDS
from devalloc.api.manifests import load_text
from devalloc.api.validation.schema import NodeForm, field_schemas, model_schema
from tests.support.crd_changes import losses

FOLDER = Path(__file__).parents[3] / "crds"


@cache
def definitions() -> dict[str, dict[str, Any]]:
    """By kind."""
    return {kind.kind: crds.definition(kind) for kind in API_KINDS.values()}


@cache
def rendered() -> dict[str, str]:
    return crds.render()


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every node of a schema."""
    yield path, schema
    for name, field in schema.get("properties", {}).items():
        yield from nodes(field, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from nodes(schema[key], f"{path}[]")


def schema_of(kind: str) -> dict[str, Any]:
    schema: dict[str, Any] = definitions()[kind]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


@cache
def all_nodes() -> list[tuple[str, str, dict[str, Any]]]:
    return [(kind, path, node) for kind in definitions() for path, node in nodes(schema_of(kind))]


def test_the_files_are_what_the_models_say() -> None:
    written = {path.name: path.read_text() for path in FOLDER.glob("*.yaml")}
    assert written == rendered(), "write them anew with: devalloc crds -d crds"


@pytest.mark.parametrize("name", [f"{kind.plural}.yaml" for kind in API_KINDS.values()])
def test_the_files_read_back_as_the_definitions(name: str) -> None:
    (document,) = load_text(rendered()[name]).documents
    assert document.content == definitions()[document.content["spec"]["names"]["kind"]]


def test_every_node_is_structural() -> None:
    allowed = {"type", "description", "properties", "required", "items", "additionalProperties", "enum", "format"}
    allowed |= {
        "pattern",
        "minimum",
        "maximum",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "maxProperties",
        "anyOf",
    }
    for kind, path, node in all_nodes():
        where = f"{kind}{path}"
        with_default = {"default"} if path == ".status" and kind in DEFAULT_STATUS else set()
        assert {key for key in node if not key.startswith("x-kubernetes-")} <= allowed | with_default, where
        assert ("type" in node) != ("x-kubernetes-int-or-string" in node), where
        if "anyOf" in node:
            assert node["x-kubernetes-int-or-string"], where
            assert node["anyOf"] == [{"type": "integer"}, {"type": "string"}], where
        assert not ("properties" in node and "additionalProperties" in node), where
        if node.get("type") == "array":
            assert "items" in node, where
        for key in node.get("x-kubernetes-list-map-keys", ()):
            assert key in node["items"]["required"], where


def test_texts_lists_and_maps_below_rules_are_bounded() -> None:
    for kind in definitions():
        for path, node in nodes(schema_of(kind)):
            if "x-kubernetes-validations" not in node or path == "":
                continue
            for below, inner in nodes(node, path):
                if inner.get("type") == "array":
                    assert "maxItems" in inner, f"{kind}{below}"
                if inner.get("type") == "string" and "enum" not in inner:
                    assert "maxLength" in inner, f"{kind}{below}"
                if "additionalProperties" in inner:
                    assert "maxProperties" in inner, f"{kind}{below}"


@pytest.mark.parametrize("kind", API_KINDS.values(), ids=lambda kind: kind.kind)
def test_every_field_of_a_model_is_in_its_schema_and_no_other(kind: Any) -> None:
    def compare(model: Any, schema: dict[str, Any], path: str) -> None:
        assert set(schema["properties"]) == set(field_schemas(model)), path
        for name, field in field_schemas(model).items():
            inner, node = field.shape, schema["properties"][name]
            while inner.form in (NodeForm.LIST, NodeForm.MAP):
                assert inner.item is not None
                inner, node = inner.item, node["items" if inner.form is NodeForm.LIST else "additionalProperties"]
            if inner.form is NodeForm.RAW:
                assert node.get("x-kubernetes-preserve-unknown-fields"), f"{path}.{name}"
            if inner.model is not None and name != "metadata":
                compare(inner.model, node, f"{path}.{name}")

    shape = model_schema(kind.model)
    compare(shape.model, schema_of(kind.kind), "")


def test_rules_and_list_keys_are_all_used() -> None:
    text = str(definitions())
    for rules in crds.RULES.values():
        for rule in rules:
            assert repr(rule.message) in text or rule.message in text
    keys = [
        tuple(node["x-kubernetes-list-map-keys"]) for _, _, node in all_nodes() if "x-kubernetes-list-map-keys" in node
    ]
    # In claims; in machines: what is reserved here and there, and devices that their claims get here and there.
    twice = [("DeviceAllocation", "allocations")] * 4
    twice += [("MachineStart", "disks")]  # in machines, and in sets of them
    assert sorted(keys) == sorted([*crds.LIST_KEYS.values(), *(crds.LIST_KEYS[each] for each in twice)])


class NewRequest(DeviceClaimInstance):
    """A request with fields that no request of ours has yet."""

    model_config = ConfigDict(title="DeviceClaimInstance")
    largest: int | None = None
    least: AmountField | None = None
    names: Annotated[list[str], Field(max_length=4)] = Field(default_factory=list)


class NewSpec(DeviceClaimSpec):
    model_config = ConfigDict(title="DeviceClaimSpec")
    claims: Annotated[list[NewRequest], Field(min_length=1, max_length=64)]  # type: ignore[assignment]


class NewClaim(DeviceClaim):
    model_config = ConfigDict(title="DeviceClaim")
    spec: NewSpec


def test_a_new_field_of_a_request_changes_no_rule_that_there_was() -> None:
    kind = API_KINDS["DeviceClaim"]
    now, new = definitions()["DeviceClaim"], crds.definition(replace(kind, model_path=f"{__name__}:NewClaim"))
    assert losses(now, new) == []


def test_the_rule_for_a_new_field_of_a_request_asks_for_a_size_only_where_there_is_one() -> None:
    """An API server refuses a CRD with a rule that asks for the size of a number."""
    schema = crds.definition(replace(API_KINDS["DeviceClaim"], model_path=f"{__name__}:NewClaim"))["spec"]["versions"][
        0
    ]["schema"]
    request = schema["openAPIV3Schema"]["properties"]["spec"]["properties"]["claims"]["items"]
    added = [
        one["rule"].partition(" || (!has(self.oneOf)")[0]
        for one in request["x-kubernetes-validations"]
        if re.search(r"\.(largest|least|names)\b", one["rule"])
    ]
    assert added == ["!has(self.largest)", "!has(self.least)", "(!has(self.names) || size(self.names) == 0)"]


def test_patterns_work_in_re2_too() -> None:
    for kind, path, node in all_nodes():
        pattern = node.get("pattern", "")
        re.compile(pattern)
        assert not re.search(r"\(\?[=!<P]|\\[1-9]|\\Z", pattern), f"{kind}{path}"


def test_names_are_those_of_the_kinds() -> None:
    for kind in API_KINDS.values():
        definition = definitions()[kind.kind]
        spec = definition["spec"]
        assert definition["metadata"]["name"] == f"{kind.plural}.{kind.group}"
        assert spec["scope"] == ("Namespaced" if kind.namespaced else "Cluster")
        assert spec["names"].get("shortNames", []) == list(kind.short_names)
        approved = definition["metadata"].get("annotations", {}).get("api-approved.kubernetes.io", "")
        assert approved.startswith("unapproved") == kind.group.endswith(".k8s.io")
        has_status = "status" in kind.model.model_fields
        assert ("subresources" in spec["versions"][0]) == has_status
