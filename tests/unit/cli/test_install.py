"""``devalloc install`` and ``uninstall`` where no cluster is asked."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from devalloc.api.manifests import load_text
from devalloc.install.manifests import Options, manifests
from tests.support.shell import Shell, devalloc

__all__ = ["devalloc"]


def test_a_dry_run_prints_all_of_it(devalloc: Shell) -> None:
    said = devalloc("install", "--dry-run", "--publish=pools", "--image-prefix=registry.example.com/")
    expected = manifests(Options("pools", "registry.example.com/"))
    assert list(yaml.safe_load_all(said.out)) == expected
    assert [document.content for document in load_text(said.out).documents] == expected


def test_a_part_is_printed_alone(devalloc: Shell) -> None:
    said = devalloc("install", "--dry-run", "--only=crds")
    assert {one["kind"] for one in yaml.safe_load_all(said.out)} == {"CustomResourceDefinition"}


def test_what_makes_no_sense_is_bad_input(devalloc: Shell) -> None:
    said = devalloc("install", "--dry-run", "--namespace=No")
    assert said.code == 2
    assert "namespace 'No' must be a name of lower-case letters" in said.err


@pytest.mark.parametrize("verb", ["install", "uninstall"])
def test_a_kubeconfig_that_is_not_there_is_named(devalloc: Shell, verb: str, tmp_path: Path) -> None:
    said = devalloc(verb, "--kubeconfig", str(tmp_path / "config"))
    assert said.code == 1
    assert f"there is no {tmp_path / 'config'}; name a kubeconfig" in said.err


def test_a_directory_is_told_as_one(devalloc: Shell, tmp_path: Path) -> None:
    said = devalloc("install", "--kubeconfig", str(tmp_path))
    assert said.code == 1
    assert f"{tmp_path} is a directory; name a kubeconfig in it" in said.err


@pytest.mark.parametrize(
    "text", ["root:x:0:0:root", "a: [", "[]", "\t", "{clusters: 3}", "{current-context: a, contexts: [b]}"]
)
def test_a_kubeconfig_that_is_none_is_told(devalloc: Shell, text: str, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(text)
    said = devalloc("install", "--kubeconfig", str(tmp_path / "config"))
    assert said.code == 1
    assert said.err.startswith("error: no way to the API server: ")
    assert str(tmp_path / "config") in said.err
