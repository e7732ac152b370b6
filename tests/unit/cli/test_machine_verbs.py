"""discover, demo, up and crds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from devalloc.api.crds import render
from devalloc.api.decode import decode
from devalloc.api.manifests import load
from devalloc.cli.verbs import demo
from tests.support import fast_yaml
from tests.support.cli_shell import Shell
from tests.support.fake_tree import one_nic


@pytest.fixture
def nic(tmp_path: Path) -> Path:
    """The root of a tree with one network card."""
    return one_nic(tmp_path / "host")


def test_discover_prints_pools_as_items(devalloc: Shell, nic: Path) -> None:
    output = devalloc("discover", "--sysfs-root", nic, "--node-name", "node-a", "-o", "json")

    assert output.code == 0
    assert list(output.json) == ["items"]
    (item,) = output.json["items"]
    assert (item["kind"], item["metadata"]["name"]) == ("DevicePool", "node-a-0000-00-03")
    assert decode(item).problems == []
    assert devalloc("discover", "--sysfs-root", nic / "sys", "--node-name", "node-a", "-o", "json").json == output.json


def test_discover_as_yaml_can_be_applied(devalloc: Shell, nic: Path) -> None:
    stream = devalloc("discover", "--sysfs-root", nic, "--node-name", "node-a", "-o", "yaml").out

    assert devalloc("apply", "-f", "-", stdin=stream).out == "devicepool/node-a-0000-00-03 created\n"


@pytest.mark.parametrize("output", ["table", "wide"])
def test_discover_for_people(devalloc: Shell, nic: Path, output: str) -> None:
    printed = devalloc("discover", "--sysfs-root", nic, "--node-name", "node-a", "-o", output).out

    assert "node-a-0000-00-03" in printed
    assert "82576" in printed


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--kind", "gpu"], "GPUs"),
        (["--kind", "gpu", "--kind", "storage", "--kind", "display"], "GPUs or NVMe devices"),
        (["--kind", "display"], "displays"),
    ],
)
def test_discover_that_finds_nothing_names_what_it_looked_for(
    devalloc: Shell, nic: Path, options: list[str], what: str
) -> None:
    assert devalloc("discover", "--sysfs-root", nic, *options).out == f"no {what} found\n"


def test_demo_shows_the_main_job(devalloc: Shell) -> None:
    output = devalloc("demo")

    assert output.code == 0
    rows = {line.split()[0]: line for line in output.out.splitlines() if line}
    assert "edge-a10/0000-17-00-0 (memory 3Gi)" in rows["embed"]
    assert "mig-1g.5gb" in rows["inference"]
    assert "dgx-0000-47-00/whole, dgx-0000-4b-00/" in rows["rdma-train"]
    assert "edge-a10/0000-17-00-0 (memory 4Gi)" in rows["desktop"]
    assert "default/router is not allocated: MatchAttributesConflict" in output.out
    assert "no node has 4 devices with the same `numa` (at most 3)" in output.out
    assert not devalloc.store.exists()


def test_every_manifest_of_the_demo_is_valid_and_says_where_it_comes_from() -> None:
    manifests = load([demo.DATA])

    assert manifests.problems == []
    for document in manifests.documents:
        assert decode(document.content).problems == []
    for file in demo.DATA.glob("fleet-*.yaml"):
        assert re.match(r"# (A recorded machine|Written by hand)", file.read_text())


def test_crds_are_printed_or_written(devalloc: Shell, tmp_path: Path) -> None:
    printed = fast_yaml.load_all(devalloc("crds").out)

    devalloc("crds", "-d", tmp_path / "crds")

    rendered = render()
    assert {file.name: file.read_text() for file in (tmp_path / "crds").iterdir()} == rendered
    assert printed == [fast_yaml.load(content) for content in rendered.values()]
