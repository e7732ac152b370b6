"""What two versions that follow one another must agree on, read from their sources: kinds of objects, annotations, the
node's service, the journal and the store. Where this fails, either keep the old way beside the new one, or say in
docs/compatibility.md what is lost on the way back."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from devalloc.version import VERSION
from tests.support.crd_changes import losses
from tests.support.previous import FOLDER, FOLDERS, LEFT_OUT, PRESENT, Version, archive, previous
from tests.support.repository import REPO

GUIDE = REPO / "docs" / "compatibility.md"
KINDS = sorted(path.name for path in (REPO / "crds").glob("*.yaml") if path.name != "kustomization.yaml")
SCRIPT = """
import json, sys
import tests.support
from devalloc.api import meta
from devalloc.store.database import STORE_STEPS
from devalloc_node.binding.registry import step_kinds
from devalloc_node.journal.schema import SCHEMA
from devalloc_node.pb import node_pb2, warm_pb2

class Host:
    def __getattr__(self, name):
        return None

def fields(message):
    yield from ((f"{message.full_name}.{f.name}", [f.number, f.type, f.is_repeated]) for f in message.fields)
    for nested in message.nested_types:
        yield from fields(nested)

def wire(file):
    found = {}
    for message in file.message_types_by_name.values():
        found |= dict(fields(message))
    for service in file.services_by_name.values():
        found |= {
            f"{service.full_name}/{m.name}": [m.input_type.full_name, m.output_type.full_name, m.server_streaming]
            for m in service.methods
        }
    for message in file.message_types_by_name.values():
        for enum in message.enum_types:
            found |= {f"{enum.full_name}.{v.name}": v.number for v in enum.values}
    return found

json.dump({
    "words": {name: value for name, value in vars(meta).items() if name.isupper() and isinstance(value, str)},
    "store": STORE_STEPS,
    "journal": SCHEMA.steps,
    "steps": sorted(step_kinds(Host())),
    "wire": wire(node_pb2.DESCRIPTOR) | wire(warm_pb2.DESCRIPTOR),
}, sys.stdout)
"""


def described(version: Version) -> dict[str, Any]:
    """What the version's own code says of itself."""
    done = subprocess.run(version.python("-c", SCRIPT), env=version.environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers


@pytest.fixture(scope="module")
def before() -> dict[str, Any]:
    return described(previous())


@pytest.fixture(scope="module")
def now() -> dict[str, Any]:
    return described(PRESENT)


def definition(version: Version, name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((version.tree / "crds" / name).read_text())
    return content


# -- what is kept of the release before --------------------------------------------------------------------------------


def test_the_sources_that_are_kept_are_those_of_the_release_before() -> None:
    assert (
        FOLDER / "SHA256SUMS"
    ).read_text() == f"{hashlib.sha256(archive().read_bytes()).hexdigest()}  {archive().name}\n"
    released = re.findall(r"^## (\S+) \(\d{4}-\d\d-\d\d\)$", (REPO / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert previous().name == next(each for each in released if each != VERSION), "make previous TAG=v…"


def unlike(tree: Path, listing: str) -> list[str]:
    """The paths of ``git ls-tree`` whose content in the folder is another, or is missing and was not left out."""
    wrong = []
    for line in listing.splitlines():
        description, _, path = line.partition("\t")
        if (file := tree / path).exists():
            content = file.read_bytes()
            if hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest() != description.split()[2]:
                wrong.append(path)
        elif not path.startswith(LEFT_OUT):
            wrong.append(path)
    return wrong


def test_where_the_tag_is_known_the_sources_are_those_of_the_tag() -> None:
    tag = f"v{previous().name}"
    command = ["git", "ls-tree", "-r", tag, "--", *FOLDERS]
    listed = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip(f"this clone does not have the tag {tag}: {listed.stderr.strip()}")
    assert listed.stdout
    assert unlike(previous().tree, listed.stdout) == []


def test_sources_that_are_not_those_of_a_tag_are_seen(tmp_path: Path) -> None:
    (tmp_path / "devalloc").mkdir()
    for name in ("same", "changed"):
        (tmp_path / "devalloc" / name).write_bytes(b"hello\n")
    same, other = "ce013625030ba8dba906f756967f9e9ca394464a", "0" * 40
    listing = f"100644 blob {same}\tdevalloc/same\n100644 blob {other}\tdevalloc/changed\n"
    listing += f"100644 blob {same}\tdevalloc/missing\n100644 blob {same}\tdeploy/helm/Chart.yaml\n"
    assert unlike(tmp_path, listing) == ["devalloc/changed", "devalloc/missing"]


# -- kinds of objects --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_nothing_that_the_release_before_wrote_is_refused_or_dropped(name: str) -> None:
    if (previous().tree / "crds" / name).exists():
        assert losses(definition(previous(), name), definition(PRESENT, name)) == []


@pytest.mark.parametrize("name", KINDS)
def test_the_guide_names_what_the_release_before_would_refuse_or_drop(name: str) -> None:
    guide = GUIDE.read_text()
    if not (previous().tree / "crds" / name).exists():
        assert f"`{definition(PRESENT, name)['spec']['names']['kind']}`" in guide
        return
    lost = losses(definition(PRESENT, name), definition(previous(), name))
    assert [one for one in lost if f"`{one.partition(':')[0]}`" not in guide] == []


def _one_of_rules(spec: dict[str, Any]) -> list[dict[str, str]]:
    rules: list[dict[str, str]] = spec["properties"]["claims"]["items"]["x-kubernetes-validations"]
    return rules


NARROWER = {
    "a field is gone": lambda spec: spec["properties"].pop("claims"),
    "a field is required": lambda spec: spec.setdefault("required", []).append("limits"),
    "fewer items": lambda spec: spec["properties"]["claims"].update(maxItems=1),
    "another type": lambda spec: spec["properties"]["claims"].update(type="string"),
    "a pattern": lambda spec: spec["properties"]["claims"]["items"]["properties"]["deviceClass"].update(pattern="^a$"),
    "one of few": lambda spec: spec["properties"]["claims"]["items"]["properties"]["deviceClass"].update(enum=["a"]),
    "a rule": lambda spec: spec.setdefault("x-kubernetes-validations", []).append({"rule": "false"}),
    "a rule about a field that was there": lambda spec: spec.setdefault("x-kubernetes-validations", []).append(
        {"rule": "!has(self.claims) || false"}
    ),
    "a rule that is not only about a new field": lambda spec: spec.setdefault("x-kubernetes-validations", []).append(
        {"rule": "!has(self.new) || true ? false : true"}
    ),
    "a rule with fewer alternatives": lambda spec: _one_of_rules(spec).append({"rule": "!has(self.deviceClass)"}),
    "a rule that asks more beside one": lambda spec: _one_of_rules(spec).append(
        {"rule": "!has(self.oneOf) || (!has(self.new) && size(self.deviceClass) > 3)"}
    ),
    "what is not known": lambda spec: spec.update({"x-kubernetes-new": True}),
}


@pytest.mark.parametrize("how", NARROWER)
def test_a_narrower_kind_is_found(how: str) -> None:
    wide = definition(PRESENT, "deviceclaims.yaml")
    narrow = deepcopy(wide)
    NARROWER[how](narrow["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"])  # type: ignore[no-untyped-call]
    assert len(losses(wide, narrow)) == 1
    assert losses(wide, wide) == []


def test_a_rule_about_a_field_that_is_new_refuses_nothing_that_was_there() -> None:
    wide = definition(PRESENT, "virtualmachines.yaml")
    more = deepcopy(wide)
    spec = more["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    for rule in ("!has(self.brandNew) || self.brandNew > 1", "!has(self.memory.brandNew) || has(self.start)"):
        spec["x-kubernetes-validations"].append({"rule": rule})
    assert losses(wide, more) == []
    spec["x-kubernetes-validations"].append({"rule": "has(self.brandNew) || false"})
    assert len(losses(wide, more)) == 1


def test_a_rule_may_be_taken_apart_and_put_together() -> None:
    whole = definition(PRESENT, "deviceclaims.yaml")
    parts, fewer = deepcopy(whole), deepcopy(whole)
    for one, *rules in (
        (whole, "has(self.a) || (has(self.b) && self.c.matches(r'^[(] || .'))"),
        (parts, "has(self.b) || has(self.a)", "has(self.a) || self.c.matches(r'^[(] || .')"),
        (fewer, "has(self.b)", "has(self.a) || self.c.matches(r'^[(] || .')"),
    ):
        spec = one["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
        spec["x-kubernetes-validations"] = [{"rule": rule} for rule in rules]
    assert losses(whole, parts) == losses(parts, whole) == losses(fewer, whole) == []
    assert len(losses(whole, fewer)) == 1


# -- words, wire and files ---------------------------------------------------------------------------------------------


def test_annotations_labels_and_finalizers_keep_their_names(before: dict[str, Any], now: dict[str, Any]) -> None:
    assert {name: now["words"].get(name) for name in before["words"]} == before["words"]


def test_the_nodes_service_keeps_its_fields_and_methods(before: dict[str, Any], now: dict[str, Any]) -> None:
    assert {name: now["wire"].get(name) for name in before["wire"]} == before["wire"]


def test_a_new_field_takes_no_number_of_an_old_one(before: dict[str, Any], now: dict[str, Any]) -> None:
    taken = {(name.rpartition(".")[0], what[0]) for name, what in before["wire"].items() if isinstance(what, list)}
    new = {name: what for name, what in now["wire"].items() if name not in before["wire"] and isinstance(what, list)}
    assert not [name for name, what in new.items() if (name.rpartition(".")[0], what[0]) in taken]


@pytest.mark.parametrize("file", ["store", "journal"])
def test_the_files_have_the_tables_of_the_release_before(
    file: str, before: dict[str, Any], now: dict[str, Any]
) -> None:
    """A new step is a file that the release before refuses: it needs a way back, and a row in the guide."""
    assert now[file][: len(before[file])] == before[file], "a step that was released is never edited"
    assert len(now[file]) == len(before[file]) or f"schema {len(now[file])} of the {file}" in GUIDE.read_text()


def test_the_release_before_can_undo_every_step(before: dict[str, Any], now: dict[str, Any]) -> None:
    assert set(before["steps"]) <= set(now["steps"]), "what the release before did is undone"
    guide = GUIDE.read_text()
    assert [kind for kind in set(now["steps"]) - set(before["steps"]) if f"`{kind}`" not in guide] == []
