"""``devalloc up`` with the node plugin in its process, and without it where that cannot be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import grpc
import pytest

from devalloc.cli import upnode
from devalloc.store.sqlite import SQLiteStore
from devalloc_node.grant import ClaimRef
from devalloc_node.journal import open_journal
from devalloc_node.pb import node_pb2 as pb
from devalloc_node.pb.node_pb2_grpc import NodeStub
from tests.support import cards
from tests.support.fakesysfs import FakeSysfs
from tests.unit.cli.conftest import Shell
from tests.unit.cli.test_node import lines_until


@pytest.fixture
def root(tmp_path: Path) -> Path:
    host = FakeSysfs(tmp_path / "host")
    host.add(cards.gpu())
    host.add(cards.plain_nic())
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
        said = "".join(lines_until(process, "serving devalloc.node.v1"))
        assert "pools: created node-a-0000-01-00, node-a-0000-05-00" in said
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
    assert rest.splitlines()[-1].endswith("stopped; what is prepared stays so")
    assert not (tmp_path / "node" / "node.sock").exists()
    with closing(SQLiteStore(devalloc.store)) as store:
        pool = store.get("DevicePool", None, "node-a-0000-05-00")
    assert pool["metadata"]["generation"] == 1, "what is not allowed was never offered, not even while the plugin began"


def test_it_says_why_it_cannot_run(monkeypatch: pytest.MonkeyPatch, devalloc: Shell) -> None:
    monkeypatch.setattr(upnode, "NEEDED", ("click", "no_such_package", "no.such"))
    refused = devalloc("up", "--node")
    assert refused.code == 1
    assert "cannot run here: there is no no_such_package, no.such; pip install 'devalloc[node]'" in refused.err


def test_it_needs_the_inventory(devalloc: Shell) -> None:
    assert devalloc("up", "--node", "--no-inventory").code == 2
