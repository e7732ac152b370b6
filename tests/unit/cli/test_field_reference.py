"""`devalloc explain KIND.FIELD` shows what the reference says; `devalloc crds --json-schema` prints the schema."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from devalloc.api.api_kind import ApiKind
from devalloc.api.kinds import API_KINDS
from devalloc.api.reference import FILE, kind_fields, manifest_schema
from devalloc.cli.field_reference import parse_field_path
from tests.support.cli_shell import Shell, claim, device_class, pool, text


@pytest.mark.parametrize("kind", API_KINDS.values(), ids=lambda kind: kind.kind)
def test_every_field_of_every_kind_can_be_explained(devalloc: Shell, kind: ApiKind) -> None:
    for field in kind_fields(kind):
        if field.path:
            parsed = parse_field_path(f"{kind.singular}.{field.path}")
            assert parsed == (kind, field.path.replace("[]", ""))
    last = kind_fields(kind)[-1]
    shown = devalloc("explain", f"{kind.singular}.{last.path}").out
    assert last.path in shown
    assert re.sub(r" \([ST]\d.*?\)", "", last.description) in shown


def test_no_number_of_a_rule_is_printed(devalloc: Shell) -> None:
    """They are of the specification, which users do not read."""
    for kind in API_KINDS.values():
        for field in kind_fields(kind):
            if re.search(r"\([ST]\d", field.description):
                shown = devalloc("explain", f"{kind.singular}.{field.path}").out
                assert not re.search(r"\([ST]\d", shown.partition("FIELD")[0]), shown


def test_a_field_needs_no_store(devalloc: Shell) -> None:
    shown = devalloc("explain", "claim.spec.claims.limits")
    assert shown.code == 0
    assert shown.out.splitlines() == [
        "Kind:      DeviceClaim (devmgmtproto.k8s.io/v1alpha1)",
        "Field:     spec.claims[].limits",
        "Type:      map of amounts",
        "Required:  no",
        "Valid:     at most 32 entries",
        "Meaning:   Maximum totals over all devices.",
    ]


def test_a_field_that_contains_fields_lists_them(devalloc: Shell) -> None:
    shown = devalloc("explain", "vm.spec.memory").out
    assert "FIELD" in shown
    assert "The minimum, a multiple of 2Mi." in shown
    assert "bytes   required" in shown


@pytest.mark.parametrize(
    "word",
    [
        "dclaim.spec.claims",
        "deviceclaims.spec.claims",
        "claim.spec.claims[0]",
        "claim.spec.claims[]",
        "Claim.spec.claims.",
    ],
)
def test_ways_to_write_a_path(devalloc: Shell, word: str) -> None:
    assert devalloc("explain", word).out == devalloc("explain", "claim.spec.claims").out


def test_a_field_as_json(devalloc: Shell) -> None:
    content = json.loads(devalloc("explain", "vm.spec.cpu", "-o", "json").out)
    assert (content["kind"], content["path"], content["required"]) == ("VirtualMachine", "spec.cpu", True)
    assert [field["path"] for field in content["fields"]] == ["spec.cpu.min", "spec.cpu.max", "spec.cpu.use"]
    assert content["fields"][0]["unit"] == "CPUs"


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("claim.spec.claim", "DeviceClaim has no field spec.claim; did you mean spec.claims?"),
        ("claim.spec.claims.requestz.count", "no field spec.claims.requestz; did you mean spec.claims.requests?"),
        ("claim.limits", "did you mean spec.claims[].limits or spec.claims[].oneOf[].limits?"),
        ("pool.zzz", "DevicePool has no field zzz; its fields are: apiVersion, kind, metadata, spec, status"),
        ("vm.spec.cpu.min.x", "no field spec.cpu.min.x: spec.cpu.min contains no fields"),
    ],
)
def test_an_unknown_field_names_the_nearest(devalloc: Shell, word: str, message: str) -> None:
    shown = devalloc("explain", word)
    assert shown.code == 2
    assert message in shown.err


def test_a_claim_of_that_name_comes_first(devalloc: Shell) -> None:
    devalloc("apply", "-f", "-", stdin=text(pool(), device_class(), claim("claim.spec"), claim("gpu.one")))
    assert "Meaning:" in devalloc("explain", "claim.spec.claims").out
    assert "default/claim.spec is" in devalloc("explain", "claim.spec").out
    assert "Meaning:" in devalloc("explain", "claim.spec", "-n", "other").out
    assert "default/gpu.one is" in devalloc("explain", "gpu.one").out
    assert "there is no claim default/gpu.two; did you mean gpu.one?" in devalloc("explain", "gpu.two").err


def test_with_files_a_word_is_always_a_claim(devalloc: Shell, tmp_path: Path) -> None:
    file = tmp_path / "claims.yaml"
    file.write_text(text(pool(), device_class(), claim("claim.spec")))
    assert "default/claim.spec is" in devalloc("explain", "claim.spec", "-f", str(file)).out
    assert "there is no claim default/claim.status" in devalloc("explain", "claim.status", "-f", str(file)).err


@pytest.mark.parametrize("word", ["train", "node-a.local", "claim/train", "dclaim.devmgmtproto.k8s.io", "quota.spec"])
def test_other_words_are_no_fields(word: str) -> None:
    assert parse_field_path(word) is None


def test_a_kind_alone_says_how_to_see_its_fields(devalloc: Shell) -> None:
    devalloc("apply", "-f", "-", stdin=text(pool(), device_class(), claim("a")))
    assert "devalloc explain claim.spec" in devalloc("explain", "claim").err


def test_the_schema_is_printed_or_written(devalloc: Shell, tmp_path: Path) -> None:
    assert json.loads(devalloc("crds", "--json-schema").out) == manifest_schema()
    assert devalloc("crds", "--json-schema", "-d", str(tmp_path)).out.strip() == str(tmp_path / FILE)
    assert json.loads((tmp_path / FILE).read_text()) == manifest_schema()
    assert "CustomResourceDefinition" in devalloc("crds").out
