"""``devalloc node`` as a process: what it says, where it serves, how it ends."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from devalloc_node.pb import node_pb2 as pb
from devalloc_node.pb.node_pb2_grpc import NodeStub
from tests.support import cards
from tests.support.fakesysfs import FakeSysfs
from tests.unit.cli.conftest import Shell


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


@contextmanager
def running(folder: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "devalloc.cli", *arguments(folder, *more)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def lines_until(process: subprocess.Popen[str], wanted: str) -> list[str]:
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if wanted in line:
            return lines
    pytest.fail(f"it ended without saying {wanted!r}: {''.join(lines)}")


def test_it_serves_until_it_is_told_to_stop(folder: Path, devalloc: Shell) -> None:
    with running(folder, "--dry-run") as process:
        said = "".join(lines_until(process, "pools: created node-a-0000-01-00"))
        assert f"node node-a, claims of store {folder}/store.db; Ctrl-C stops" in said
        assert f"serving devalloc.node.v1.Node on {folder}/node.sock" in said
        assert stat.S_IMODE((folder / "node.sock").stat().st_mode) == 0o600
        assert stat.S_IMODE((folder / "state").stat().st_mode) == 0o700
        with grpc.insecure_channel(f"unix:{folder}/node.sock") as channel:
            assert NodeStub(channel).GetNode(pb.GetNodeRequest(), timeout=30).node_name == "node-a"

        second = devalloc(*arguments(folder))
        assert second.code == 1
        assert f"another process serves {folder}/node.sock" in second.err

        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert rest.endswith("stopped; what is prepared stays so\n")
    assert not (folder / "node.sock").exists()


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


HANGING = """
import threading, time
from devalloc.cli.nodesources import cutting_off
with cutting_off(print):
    threading.Thread(target=time.sleep, args=(1000,)).start()
    threading.Thread(target=time.sleep, args=(0.1,)).start()
print("not reached")
"""


def test_what_hangs_does_not_keep_the_process(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", HANGING], capture_output=True, text=True, env=env, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "cut off what was under way; the next start finishes it\n")
