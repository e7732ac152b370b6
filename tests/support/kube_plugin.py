"""`devalloc node` as a process of its own, with the kernel of a `FakeHost` that the tests' process plays; all else, the
command line, the sockets, the journal, the API server's client and the files, is real.

A process can be told to die between what it did and its reply (`die_before_reply`): it kills itself with SIGKILL. And
it can be told to give its machines, which are real, an emulated device where the host's one would be passed through
(`emulated`), for a card that is played is nothing that VFIO knows.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.fake_host import FakeHost, RemoteHost, serving
from tests.support.previous import PRESENT, Version

if TYPE_CHECKING:
    from devalloc_machines.qemu.pci import PciDevice
    from devalloc_node.model.step import PreparedDevice

DRIVER = "devalloc.io"
ALLOWED = ("accelerator", "gpu", "nic", "storage", "vf", "vgpu")
"""Written out: this module also starts plugins of 0.1.0, which has no table of kinds."""
BOOT = "8a5f3a7e-0000-4000-8000-00000000b007"


@dataclass
class Bed:
    """A host, and the folders in which its plugin works."""

    host: FakeHost
    address: str
    """Where the host's kernel answers."""
    node: str
    state: Path
    cdi: Path
    kubelet: Path
    kubeconfig: Path
    running: list[Plugin] = field(default_factory=list)

    def start(
        self,
        *options: str,
        die_before_reply: bool = False,
        emulated: bool = False,
        ready: str = "serving the kubelet",
        version: Version = PRESENT,
    ) -> Plugin:
        """Start an instance, and wait until it says that it is ready. ``options``: more for the command line."""
        command = [
            "node",
            f"--sysfs-root={self.host.root}",
            f"--node-name={self.node}",
            *(f"--allow={kind}" for kind in ALLOWED),
            f"--state={self.state}",
            f"--socket={self.state / 'node.sock'}",
            f"--cdi-dir={self.cdi}",
            f"--kubelet-dir={self.kubelet}",
            f"--kubeconfig={self.kubeconfig}",
            "--resync=2s",
            "--grace=1s",
            "--log-level=info",
            *options,
        ]
        played = {"die_before_reply": die_before_reply, "emulated": emulated}
        process = subprocess.Popen(
            version.python("-m", "tests.support.kube_plugin", self.address, json.dumps(played), *command),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=version.environment(),
        )
        plugin = Plugin(process)
        self.running.append(plugin)
        plugin.wait_for(ready)
        return plugin


class Plugin:
    """A running instance."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.output: list[str] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.output.append(line.rstrip())
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def wait_for(self, words: str, seconds: float = 60.0) -> None:
        """Wait until it says so."""

        def heard() -> bool:
            return any(words in line for line in self.output)

        with self._news:
            self._news.wait_for(lambda: heard() or self.process.poll() is not None, seconds)
        assert heard(), "\n".join(self.output)

    def stop(self) -> None:
        """As a service manager does."""
        self.process.terminate()
        assert self.process.wait(60) == 0, "\n".join(self.output)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def died(self, seconds: float = 60.0) -> bool:
        """Wait until it was killed."""
        return self.process.wait(seconds) == -signal.SIGKILL


@contextmanager
def plugin_bed(host: FakeHost, node: str, folder: Path, cdi: Path, kubelet: Path, kubeconfig: Path) -> Iterator[Bed]:
    """The bed, and no process of it left in the end."""
    host.proc("sys/kernel/random/boot_id", f"{BOOT}\n")
    with serving(host) as address:
        bed = Bed(host, address, node, folder / "state", cdi, kubelet, kubeconfig)
        try:
            yield bed
        finally:
            for plugin in bed.running:
                plugin.kill()


def _run(address: str, die_before_reply: bool, emulated: bool, command: list[str]) -> None:
    """The command, with another host than this machine."""
    from devalloc.cli import main
    from devalloc_node.deadline import Deadline
    from devalloc_node.model.grant import ClaimRef
    from devalloc_node.model.step import Prepared
    from devalloc_node.node import Node
    from devalloc_node.settings import NodeSettings

    def host_of(settings: NodeSettings, *, dry_run: bool, say: Callable[[str], None]) -> RemoteHost:
        return RemoteHost(settings.root, address)

    try:
        made_in: Any = import_module("devalloc.programs.node_parts")
    except ModuleNotFoundError:  # a version before there were programs
        made_in = import_module("devalloc.cli.node_wiring")
    made_in.make_host = host_of
    if die_before_reply:
        prepare = Node.prepare

        def killed(self: Node, ref: ClaimRef, deadline: Deadline) -> Prepared:
            prepare(self, ref, deadline)
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError("killed")

        Node.prepare = killed  # type: ignore[method-assign]
    if emulated:
        _emulate(Path(next(word for word in command if word.startswith("--sysfs-root=")).partition("=")[2]))
    main.main(command)


def _emulate(root: Path) -> None:
    """Machines get an emulated device for each function, which locks none of their memory; the nodes of VFIO are those
    of the played host."""
    from devalloc_machines.qemu import adoption, pci

    stat, passed_through = os.stat, pci.passthrough_device

    def instead(name: str, device: PreparedDevice) -> PciDevice:
        real = passed_through(name, device)
        return replace(real, functions=({"driver": "virtio-rng-pci"},) * len(real.functions))

    def stat_of(path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
        return stat(
            root / path[1:] if isinstance(path, str) and path.startswith("/dev/vfio/") else path, *args, **kwargs
        )

    pci.passthrough_device = instead
    adoption.check_memlock = lambda *_: None
    os.stat = stat_of  # type: ignore[assignment]


if __name__ == "__main__":
    _run(sys.argv[1], **json.loads(sys.argv[2]), command=sys.argv[3:])
