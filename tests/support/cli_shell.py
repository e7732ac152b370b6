"""The command run in this process, on a store of its own."""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from devalloc.api.cordon import NODE_KIND
from devalloc.cli.main import cli
from devalloc.controller.reconcile.resource_claims.stored import StoredClaimAllocator
from devalloc.store.sqlite import SQLiteStore
from devalloc_solver import testing
from tests.support import fast_yaml, pci_cards
from tests.support.fake_sysfs import FakeSysfs
from tests.support.machine_allocator import machine_allocator

GROUP = "devmgmtproto.k8s.io/v1alpha1"
INTERRUPTED = (130, -signal.SIGINT)
"""How a command ends after Ctrl-C. Python kills itself with the signal if it arrives inside exec(), as when an import
defines a dataclass; a shell shows both as 130."""
Object = dict[str, Any]


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass(frozen=True)
class Shell:
    """Runs commands with DEVALLOC_STORE set to ``store``."""

    store: Path

    def __call__(self, *args: str | Path, stdin: str | None = None) -> Result:
        runner = CliRunner(env={"DEVALLOC_STORE": str(self.store)})
        result = runner.invoke(cli, [str(arg) for arg in args], input=stdin, prog_name="devalloc")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Result(result.exit_code, result.stdout, result.stderr)

    def allocate(self) -> None:
        """One round of the allocator, as `devalloc up` does it."""
        store = SQLiteStore(self.store)
        try:
            allocator = machine_allocator(store)
            allocator.loop.ignore_kind(NODE_KIND)
            allocator.round()
            StoredClaimAllocator(store).round()
        finally:
            store.close()


@pytest.fixture
def devalloc(tmp_path: Path) -> Shell:
    return Shell(tmp_path / "store.db")


def pool(name: str = "gpus", *, node: str = "node-a", devices: int = 2, model: str = "L4") -> Object:
    members = [testing.device(f"gpu-{number}") for number in range(devices)]
    return testing.pool(name, node, "gpu.devalloc.io", attributes={"model": model}, devices=members)


def device_class(name: str = "gpu", **spec: Any) -> Object:
    return testing.device_class(name, **(spec or {"driver": "gpu.devalloc.io"}))


def claim(name: str = "train", *, count: int = 1, namespace: str | None = None, **detail: Any) -> Object:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    entry = {"deviceClass": "gpu", "requests": {"count": count}, **detail}
    return {"apiVersion": GROUP, "kind": "DeviceClaim", "metadata": metadata, "spec": {"claims": [entry]}}


def text(*objects: Object) -> str:
    """Manifests as a YAML stream."""
    return fast_yaml.dump_all(objects)


def node_folder(folder: Path) -> Path:
    """A folder for ``node_arguments``, with a host that has a GPU."""
    host = FakeSysfs(folder / "host")
    host.add(pci_cards.gpu())
    host.proc("sys/kernel/random/boot_id", "boot-1\n")
    return folder


def node_arguments(folder: Path, *more: str) -> list[str]:
    return [
        "node", "--store", f"{folder}/store.db", "--sysfs-root", f"{folder}/host", "--node-name", "node-a",
        "--state", f"{folder}/state", "--socket", f"{folder}/node.sock", "--cdi-dir", f"{folder}/cdi", *more,
    ]  # fmt: skip
