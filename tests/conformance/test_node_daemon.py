"""The node plugin as a process, alone and inside ``devalloc up``: what it says, where it serves, how it ends."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import grpc
import pytest

from devalloc.store.sqlite import SQLiteStore
from devalloc_node.journal import open_journal
from devalloc_node.model.grant import ClaimRef
from devalloc_node.pb import node_pb2 as pb
from devalloc_node.pb.node_pb2_grpc import NodeStub
from tests.support import pci_cards
from tests.support.cli_shell import Shell, devalloc, node_folder
from tests.support.cli_shell import node_arguments as arguments
from tests.support.fake_sysfs import FakeSysfs

__all__ = ["devalloc"]


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return node_folder(tmp_path_factory.mktemp("n"))


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


def lines_until(process: subprocess.Popen[str], *wanted: str) -> list[str]:
    """Read until it has said all of these, in any order: its parts begin beside each other."""
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if all(any(text in each for each in lines) for text in wanted):
            return lines
    pytest.fail(f"it ended without saying {wanted!r}: {''.join(lines)}")


def test_it_serves_until_it_gets_a_signal(folder: Path, devalloc: Shell) -> None:
    with running(folder, "--dry-run") as process:
        serving = f"serving devalloc.node.v1.Node on {folder}/node.sock"
        output = "".join(lines_until(process, "pools: created node-a-0000-01-00", serving))
        assert f"node node-a, claims of store {folder}/store.db; Ctrl-C stops" in output
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
        assert rest.endswith("stopped; prepared claims stay prepared, and machines run on\n")
    assert not (folder / "node.sock").exists()


def test_it_stops_though_the_kernel_gives_the_signal_to_another_thread(folder: Path) -> None:
    """As it may after SIGSTOP and SIGCONT: Python runs the handler in the main thread, once that wakes."""
    with running(folder, "--dry-run", "--resync", "1h") as process:
        lines_until(process, "pools: created node-a-0000-01-00")
        others = {int(entry.name) for entry in Path(f"/proc/{process.pid}/task").iterdir()} - {process.pid}
        os.kill(min(others), signal.SIGTERM)  # the first one lasts
        process.communicate(timeout=30)
        assert process.returncode == 0


HANGING = """
import threading, time
from devalloc.program import abandon_hung_threads
with abandon_hung_threads(print):
    threading.Thread(target=time.sleep, args=(1000,)).start()
    threading.Thread(target=time.sleep, args=(0.1,)).start()
print("not reached")
"""


def test_what_hangs_does_not_keep_the_process(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", HANGING], capture_output=True, text=True, env=env, timeout=60)
    assert (ended.returncode, ended.stdout) == (
        0,
        "stopped before everything was finished; the next start finishes it\n",
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    host = FakeSysfs(tmp_path / "host")
    host.add(pci_cards.gpu())
    host.add(pci_cards.plain_nic())
    host.proc("sys/kernel/random/boot_id", "boot-1\n")
    return host.root


def test_all_of_it_runs_in_one_process_and_ends_together(devalloc: Shell, root: Path, tmp_path: Path) -> None:
    with closing(open_journal(tmp_path / "node")) as journal:  # of a plugin that ran before
        grant = {"kind": "DeviceClaim", "devices": []}
        journal.begin(ClaimRef("default", "old", "uid-1"), "DeviceClaim", grant, {})
    arguments = ["up", "--node", "--sysfs-root", str(root), "--node-name", "node-a", "--cdi-dir", f"{tmp_path}/cdi"]
    env = {**os.environ, "DEVALLOC_STORE": str(devalloc.store), "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-m", "devalloc.cli", *arguments],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        lines_until(process, "serving devalloc.node.v1", "pools: created node-a-0000-01-00, node-a-0000-05-00")
        with grpc.insecure_channel(f"unix:{tmp_path}/node/node.sock") as channel:
            node = NodeStub(channel)
            assert node.GetNode(pb.GetNodeRequest(), timeout=30).node_name == "node-a"
            assert node.Rescan(pb.RescanRequest(), timeout=30).result.outcome == pb.Result.DONE
            gpu, nic = node.ListDevices(pb.ListDevicesRequest(), timeout=30).devices
            assert gpu.device == "0000-01-00-0"
            assert "nic is not allowed on this node" in nic.unavailable
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, rest
    assert rest.splitlines()[-1].endswith("stopped; prepared claims stay prepared, and machines run on")
    assert not (tmp_path / "node" / "node.sock").exists()
    with closing(SQLiteStore(devalloc.store)) as store:
        pool = store.get("DevicePool", None, "node-a-0000-05-00")
    assert pool["metadata"]["generation"] == 1, "what is not allowed was never offered, not even while the plugin began"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("up", "--node", "--metrics=bogus"), "--metrics: invalid address for metrics: 'bogus'"),
        (("up", "--node", "--resync=0s"), "more than 0"),
        (("node", "--metrics=0.0.0.0:80"), "is reachable from other hosts"),
    ],
)
def test_wrong_options_end_it_before_it_serves(
    devalloc: Shell, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    command = [sys.executable, "-m", "devalloc.cli", *words, "--sysfs-root", str(tmp_path)]
    env = {**os.environ, "DEVALLOC_STORE": str(devalloc.store), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "serving" not in done.stdout + done.stderr
