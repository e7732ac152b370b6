"""docs/reference and the schema for editors say the same as the models; every field is described."""

from __future__ import annotations

import os
import re
from functools import cache
from typing import Any

import jsonschema
import pytest

from devalloc.api.api_kind import ApiKind
from devalloc.api.decode import decode
from devalloc.api.fields import ApiModel
from devalloc.api.kinds import API_KINDS
from devalloc.api.manifests import load, load_text
from devalloc.api.reference import (
    DRAFT,
    FieldReference,
    annotation_docs,
    child_fields,
    docs_by_field,
    field_at,
    kind_fields,
    manifest_schema,
)
from devalloc.api.validation.schema import NodeForm, SchemaNode, field_schemas, model_schema
from tests.support import good_manifests
from tests.support.repository import REPO
from tools import reference


@cache
def validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(manifest_schema())


@cache
def good() -> list[Any]:
    """All examples, and one object of each kind with all fields."""
    documents = [*load([REPO / "examples"]).documents, *load_text(good_manifests.TEXT).documents]
    return [document.content for document in documents]


def paths_of(shape: SchemaNode, path: str = "") -> list[str]:
    """The paths of all fields of a model, read from its annotations."""
    paths: list[str] = []
    while shape.form is NodeForm.LIST and shape.item is not None:
        shape, path = shape.item, f"{path}[]"
    for name, field in field_schemas(shape.model).items() if shape.model is not None else ():
        here = f"{path}.{name}" if path else name
        paths += [here, *paths_of(field.shape, here)]
    return paths


def models_below(shape: SchemaNode) -> list[type[ApiModel]]:
    if shape.item is not None:
        return models_below(shape.item)
    if shape.model is None:
        return []
    return [shape.model, *(each for field in field_schemas(shape.model).values() for each in models_below(field.shape))]


def errors(content: Any) -> list[str]:
    return [error.message for error in validator().iter_errors(content)]


# -- the pages ---------------------------------------------------------------------------------------------------------


def test_the_pages_are_what_the_models_say() -> None:
    if os.environ.get("DEVALLOC_UPDATE_DOCS") == "1":
        reference.main()
    written = {path.name: path.read_text() for path in reference.FOLDER.iterdir()}
    assert written == reference.render(), "generate them with: python -m tools.reference"


@pytest.mark.parametrize("kind", API_KINDS.values(), ids=lambda kind: kind.kind)
def test_the_page_of_a_kind_lists_its_fields(kind: ApiKind) -> None:
    page = reference.render()[reference.page_name(kind)]
    listed = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert sorted(listed) == sorted(
        path for path in paths_of(model_schema(kind.model)) if not path.startswith("metadata.")
    )


@pytest.mark.parametrize("kind", API_KINDS.values(), ids=lambda kind: kind.kind)
def test_the_reference_has_every_field_once(kind: ApiKind) -> None:
    assert [field.path for field in kind_fields(kind)] == ["", *paths_of(model_schema(kind.model))]


@pytest.mark.parametrize("kind", API_KINDS.values(), ids=lambda kind: kind.kind)
def test_every_field_has_a_sentence_and_a_type(kind: ApiKind) -> None:
    for field in kind_fields(kind):
        assert field.description.endswith("."), field
        assert field.description[0].isupper() or field.description[0] == "`", field
        assert field.type, field


def test_every_field_of_a_model_has_its_own_text_or_that_of_its_model() -> None:
    models = {each for kind in API_KINDS.values() for each in models_below(model_schema(kind.model))}
    assert len(models) > 30
    for model in models:
        for name, field in field_schemas(model).items():
            assert name in docs_by_field(model) or field.shape.form is NodeForm.MODEL, f"{model.__name__}.{name}"


def test_what_a_field_of_each_form_looks_like() -> None:
    def field(kind: str, path: str) -> FieldReference:
        entry = field_at(API_KINDS[kind], path)
        assert entry is not None
        return entry

    limits = field("DeviceClaim", "spec.claims.limits")
    assert (limits.path, limits.type, limits.required) == ("spec.claims[].limits", "map of amounts", False)
    assert limits.description == "Maximum totals over all devices (S9)."
    memory = field("VirtualMachine", "spec.memory.use")
    assert (memory.type, memory.unit, memory.default, memory.required) == ("amount", "bytes", "", False)
    powerdown = field("VirtualMachine", "spec.powerdownSeconds")
    assert (powerdown.unit, powerdown.default, powerdown.limits) == ("seconds", "30", ("from 0 to 3600",))
    assert field("VirtualMachine", "spec.memory.method").type == "virtio-mem or dimm"
    assert field("VirtualMachine", "spec.memory.method").default == "virtio-mem"
    assert field("DeviceClaim", "status.classConfigAllocations").type == "list of lists of integers"
    assert field("DevicePool", "spec.driver").limits == ("no control characters", "at most 253 characters")
    assert field("DevicePool", "kind").required
    assert field_at(API_KINDS["DevicePool"], "spec.nodename") is None


def test_the_children_of_a_field() -> None:
    kind = API_KINDS["DeviceClaim"]
    assert [field.name for field in child_fields(kind, "")] == ["apiVersion", "kind", "metadata", "spec", "status"]
    assert [field.name for field in child_fields(kind, "spec")] == ["matchAttributes", "claims"]
    assert "limits" in [field.name for field in child_fields(kind, "spec.claims[]")]
    assert child_fields(kind, "spec.claims") == child_fields(kind, "spec.claims[]")
    assert child_fields(kind, "spec.claims[].limits") == ()


def test_units_are_in_the_descriptions_of_the_crds() -> None:
    assert "Unit: bytes/s." in (REPO / "crds/virtualmachines.yaml").read_text()


def test_every_annotation_that_is_named_in_the_rules_is_described() -> None:
    text = "".join(path.read_text() for path in (REPO / "docs/development/spec").glob("*.md"))
    named = set(re.findall(r"`(devalloc\.io/[\w-]+)`", text)) - {"devalloc.io/v1alpha1"}
    assert len(named) > 10
    assert named - annotation_docs().keys() == set()


# -- the schema for editors --------------------------------------------------------------------------------------------


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(manifest_schema())
    assert manifest_schema()["$schema"] == DRAFT


def test_the_schema_accepts_every_example() -> None:
    assert {content["kind"] for content in good()} >= API_KINDS.keys()
    for content in good():
        assert errors(content) == [], content


def test_the_schema_refuses_a_misspelt_field_anywhere() -> None:
    """At each place of each kind, once beside the same other fields."""
    tried = set()
    for content in good():
        kind = content["kind"]
        if (
            kind not in API_KINDS
            or decode(content).object is None
            or content["apiVersion"] != API_KINDS[kind].api_version
        ):
            continue
        for place, misspelt in _misspelt(content, model_schema(API_KINDS[kind].model)):
            if (kind, place) not in tried:
                tried.add((kind, place))
                assert not validator().is_valid(misspelt), misspelt
    assert len(tried) > 500


def _misspelt(value: Any, shape: SchemaNode) -> list[tuple[tuple[Any, ...], Any]]:
    """Copies of the value, each with one name of a field changed, and where: the names that lead there, and those
    beside it."""
    copies: list[tuple[tuple[Any, ...], Any]] = []
    if shape.form is NodeForm.MODEL and isinstance(value, dict):
        assert shape.model is not None
        fields = field_schemas(shape.model)
        for name in value:
            rest = {key: each for key, each in value.items() if key != name}
            copies.append(((name, frozenset(rest)), {**rest, f"{name}x": value[name]}))
            below = _misspelt(value[name], fields[name].shape)
            copies += [((name, *place), {**value, name: each}) for place, each in below]
    if shape.form is NodeForm.LIST and isinstance(value, list) and shape.item is not None:
        for i, entry in enumerate(value):
            below = _misspelt(entry, shape.item)
            copies += [(("[]", *place), [*value[:i], each, *value[i + 1 :]]) for place, each in below]
    return copies


CLAIM: dict[str, Any] = {
    "apiVersion": "devmgmtproto.k8s.io/v1alpha1",
    "kind": "DeviceClaim",
    "metadata": {"name": "a"},
    "spec": {"claims": [{"deviceClass": "gpu"}]},
}


@pytest.mark.parametrize(
    "wrong",
    [
        {"apiVersion": "devmgmtproto.k8s.io/v1"},
        {"kind": "DeviceClam"},
        {"kind": "VirtualMachine"},
        {"metadata": {"name": "Not_A_Name"}},
        {"metadata": {}},
        {"spec": {"claims": []}},
        {"spec": {"claims": [{"requests": {"count": "two"}}]}},
        {"spec": {"claims": [{"requests": {"count": 0}}]}},
        {"spec": {"claims": [{"limits": {"memory": -1}}]}},
        {"spec": {"claims": [{"deviceClass": 3}]}},
    ],
    ids=str,
)
def test_the_schema_refuses_what_the_models_refuse(wrong: dict[str, Any]) -> None:
    assert decode(CLAIM | wrong).object is None
    assert errors(CLAIM) == []
    assert errors(CLAIM | wrong)


@pytest.mark.parametrize("amount", [2, 0.5, "500m", "1.5G", "10Gi", "1e3"])
def test_the_schema_accepts_amounts_as_the_models_do(amount: object) -> None:
    content = CLAIM | {"spec": {"claims": [{"requests": {"memory": amount}}]}}
    assert decode(content).object is not None
    assert errors(content) == []


def test_manifests_of_other_apis_are_valid() -> None:
    assert errors({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}) == []
    assert (
        errors({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "n"}, "spec": {}}) == []
    )
    assert errors({"kind": "DeviceClaim"}) != []
