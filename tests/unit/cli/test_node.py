"""``devalloc node`` as a process: what it says, where it serves, how it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from devalloc.cli.nodesources import host_of
from devalloc_node.binding.config import BindingConfig
from devalloc_node.machine.config import MachineConfig
from devalloc_node.settings import NodeSettings
from tests.support import cards
from tests.support.fakesysfs import FakeSysfs
from tests.support.shell import Shell


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("n")
    host = FakeSysfs(folder / "host")
    host.add(cards.gpu())
    host.proc("sys/kernel/random/boot_id", "boot-1\n")
    return folder


def arguments(folder: Path, *more: str) -> list[str]:
    return [
        "node", "--store", f"{folder}/store.db", "--sysfs-root", f"{folder}/host", "--node-name", "node-a",
        "--state", f"{folder}/state", "--socket", f"{folder}/node.sock", "--cdi-dir", f"{folder}/cdi", *more,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--socket", "/tmp/" + "x" * 200], "has 205 bytes, and the kernel takes 107"),
        (["--metrics", "0.0.0.0:80"], "can be reached from elsewhere"),
        (["--resync", "0"], "--resync must be more than 0"),
    ],
)
def test_bad_options_are_told(folder: Path, devalloc: Shell, options: list[str], message: str) -> None:
    result = devalloc(*arguments(folder, *options))
    assert (result.code, message in result.err) == (2, True), result.err


def test_what_machines_need_and_is_not_there_is_told_at_the_start(folder: Path) -> None:
    def told(machines: MachineConfig) -> list[str]:
        said: list[str] = []
        settings = NodeSettings("node-a", BindingConfig("node-a"), root=folder / "host", machines=machines)
        host_of(settings, dry_run=True, say=said.append)
        return [line for line in said if line.startswith("there is no")]

    assert told(MachineConfig(binary="/bin/sh", folders=(folder,), socket_folders=(folder,))) == []
    missing = MachineConfig(binary="nothere", folders=(folder, folder / "images"), socket_folders=(folder / "qmp",))
    assert told(missing) == [
        "there is no program nothere (--qemu); machines are not started until there is",
        f"there is no folder {folder}/images (--image-folder)",
        f"there is no folder {folder}/qmp (--qmp-folder)",
    ]
