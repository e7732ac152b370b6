"""Every example does what its README says, and prints what its README shows."""

from __future__ import annotations

import gzip
import re
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

from devalloc.api.decode import decode
from devalloc.api.manifests import load
from devalloc.api.views import claim_state
from devalloc.inventory.pci_ids import DeviceModel
from devalloc.machines.schedule.what_if import solve_with_machines
from tests.support import console_blocks, kube_node
from tests.support.cli_shell import Shell, devalloc
from tests.support.repository import REPO
from tools import dev_cluster

__all__ = ["devalloc"]
FOLDERS = sorted(path for path in (REPO / "examples").iterdir() if path.is_dir())
EXAMPLES = [path for path in FOLDERS if path.name not in ("dra", "pods")]
"""Those of our own API; those of resource.k8s.io have their tests with that dialect and on a cluster."""
DOCUMENTS = [REPO / "README.md", *sorted((REPO / "docs").glob("*.md")), *(path / "README.md" for path in FOLDERS)]
BLOCKS = [block for document in DOCUMENTS if document.exists() for block in console_blocks.blocks(document)]
_EXPECT = re.compile(r"^```yaml expect\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_no_example_is_a_node_that_a_user_may_have() -> None:
    """Who deletes an example that was applied deletes the Node of its name."""
    nodes = {
        document.content["metadata"]["name"]
        for document in load([REPO / "examples"]).documents
        if document.content.get("kind") == "Node"
    }
    assert nodes == {"example-a", "example-b"}
    assert not nodes & {dev_cluster.NODE, kube_node.NODE}


_POOLS = re.compile(r"""name: model, stringValue: "?([^"}\n]+?)"?\}""")
_EQUAL = re.compile(r"""\bdevice\.model\s*==\s*['"]([^'"\n]+)['"]""")
_PART = re.compile(r"""\bdevice\.model\.(?:contains|startsWith|endsWith)\(['"]([^'"\n]+)['"]""")
_SPELLINGS = {"a"}
"""Literals of the guide to CEL that stand for any text."""


def test_models_are_written_as_discovery_publishes_them() -> None:
    """In examples, guides and the demo: who copies them gets a device."""
    database = gzip.decompress((resources.files("devalloc.inventory") / "data" / "pci.ids.gz").read_bytes()).decode()
    names, vendor = set(), 0
    for line in database.splitlines():
        if line.startswith("\t"):
            names.add(DeviceModel.of(vendor, line[7:].strip()).name)
        elif line[:1] not in ("", "#"):
            vendor = int(line[:4], 16)
    names |= {"A2", "A16"}  # which share an ID; their subsystem tells them apart
    demo = REPO / "devalloc" / "cli" / "data"
    texts = {path: path.read_text() for path in [*DOCUMENTS, *REPO.glob("examples/*/*.yaml"), *demo.glob("*.yaml")]}

    exact = {
        (literal, path.name) for path, text in texts.items() for literal in _POOLS.findall(text) + _EQUAL.findall(text)
    }
    parts = {(literal, path.name) for path, text in texts.items() for literal in _PART.findall(text)}

    assert len(exact) > 20
    assert {each for each in exact if each[0] not in names | _SPELLINGS} == set()
    assert {each for each in parts if not any(each[0] in name for name in names)} == set()


def contents(example: Path) -> list[dict[str, Any]]:
    manifests = load([example])
    assert manifests.problems == []
    return [document.content for document in manifests.documents]


def expectation(example: Path) -> dict[str, Any]:
    match = _EXPECT.search((example / "README.md").read_text())
    assert match is not None, "the README has no ```yaml expect block"
    expected: dict[str, Any] = yaml.safe_load(match[1])
    unknown = expected.keys() - {"satisfied", "unsatisfied", "oneOf", "nodes", "machines"}
    assert not unknown
    return expected


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_every_document_is_valid_without_a_warning(example: Path) -> None:
    for content in contents(example):
        assert decode(content).problems == []


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_the_answer_is_the_expected_one(example: Path) -> None:
    expected = expectation(example)

    answer = solve_with_machines(contents(example))

    placed = {f"{one['namespace']}/{one['name']}": one["node"] or one["reason"] for one in answer.get("machines", [])}
    assert placed == expected.get("machines", {})
    claims = {f"{claim['namespace']}/{claim['name']}": claim for claim in answer["claims"]}
    assert sorted(name for name, claim in claims.items() if claim["allocated"]) == sorted(expected["satisfied"])
    reasons = {name: claim["reason"] for name, claim in claims.items() if not claim["allocated"]}
    assert reasons == expected.get("unsatisfied", {})
    for name, node in expected.get("nodes", {}).items():
        assert claims[name]["node"] == node, name
    for name, chosen in expected.get("oneOf", {}).items():
        assert claims[name]["oneOf"] == chosen, name
    assert answer["optimal"]
    assert answer["problems"] == []


def test_examples_do_not_collide(devalloc: Shell) -> None:
    """All of them fit into one store: applying one changes nothing of another, and takes nothing from it."""
    for example in FOLDERS:
        applied = devalloc("apply", "-f", example)
        assert applied.code == 0, applied.err
        assert {line.rpartition(" ")[2] for line in applied.out.splitlines()} <= {"created", "unchanged"}, example.name
        devalloc.allocate()
    expected = [expectation(example) for example in EXAMPLES]
    claims = {claim["metadata"]["name"]: claim for claim in devalloc("get", "claims", "-A", "-o", "json").json["items"]}
    satisfied = {name.partition("/")[2] for one in expected for name in one["satisfied"]}
    states = {name: claim_state(claims[name]) for name in satisfied}
    assert states == dict.fromkeys(satisfied, "Allocated"), "one that gets devices alone waits beside the others"
    overview = devalloc("top", "-o", "json").json
    assert overview["alarms"] == []
    assert overview["lost"] == 0
    nodes = {f"{one['namespace']}/{one['name']}": one["node"] for one in overview["machines"]}
    placed = [name for one in expected for name, where in one.get("machines", {}).items() if "-" in where]
    assert [name for name in placed if not nodes[name]] == []


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_commands_print_what_the_documents_show(block: console_blocks.Block) -> None:
    if console_blocks.UPDATE:
        console_blocks.update(block.file)
    else:
        assert console_blocks.run(block.command) == block.output
