"""A complete node plugin whose QEMUs are forked stand-ins: real processes, made in milliseconds."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import grpc

from devalloc.inventory.capacity import CapacityConfig, HostCapacity
from devalloc.programs.node_parts import store_machines, store_source
from devalloc.store.sqlite import SQLiteStore
from devalloc_machines.part import MachineSettings
from devalloc_machines.qemu import adoption, confinement, launch
from devalloc_machines.qemu.records import MACHINES
from devalloc_machines.qemu.settings import AllowedFolder, MachineConfig
from devalloc_node.binding.binding import BindingConfig
from devalloc_node.daemon import run_daemon
from devalloc_node.node import Node, open_node
from devalloc_node.pb.node_pb2_grpc import NodeStub
from tests.support.fake_host import FakeHost, LocalHost
from tests.support.fake_tree import memory_folder
from tests.support.forked_qemu import QemuForkServer, described_by_monitor

NODE = "node-a"
FULL = "max 100000"


class NodeWithForkedQemu:
    """A host without devices, a store, and instances of the plugin between them."""

    def __init__(self, folder: Path, forge: QemuForkServer) -> None:
        self.folder, self._forge = folder, forge
        self.settings = MachineSettings(
            NODE,
            BindingConfig(NODE),
            root=folder / "host",
            state=folder / "state",
            limits=CapacityConfig(oversub_cpu=Fraction(1)),
            machines=MachineConfig(
                state=folder / "state" / "machines",
                run=folder / "run",
                binary="/bin/true",  # see `forked_qemu`
                folders=(AllowedFolder(folder / "images", "any"),),
                accel="tcg",
                cgroups=folder / "cgroup",
                visible=(folder,),  # with the devices of its host
                systemd=False,
            ),
            socket=folder / "node.sock",
            cdi=folder / "cdi",
            resync=0.5,
        )
        for each in (folder, folder / "images"):
            each.mkdir(exist_ok=True)
            each.chmod(0o711)  # machines run as users of their own
        self.kernel = folder / "images/kernel"
        self.kernel.touch()
        self._groups = folder / "cgroup" / confinement.OURS
        self._groups.mkdir(parents=True)
        for each in (self._groups, self._groups.parent):
            (each / "cgroup.controllers").write_text("cpu\n")
            (each / "cgroup.subtree_control").write_text("cpu\n")
        self.host = FakeHost(folder / "host", folders=self.settings.written)
        self.host.proc("sys/kernel/random/boot_id", "boot-1\n")
        self.store = SQLiteStore(folder / "devalloc.db")

    @contextmanager
    def running(
        self, capacity: HostCapacity | None = None, *, of_store: bool = False
    ) -> Iterator[tuple[Node, NodeStub]]:
        """An instance. ``capacity``: what it enforces. ``of_store``: it runs the machines of the store."""
        settings = replace(self.settings, capacity=capacity)
        with ExitStack() as stack:
            for where, name, what in self._seams():
                stack.enter_context(patch.object(where, name, what))
            node = stack.enter_context(open_node(settings, LocalHost(self.host), store_source(self.store, NODE)))
            serving = threading.Event()
            loops: Sequence[Any] = store_machines(self.store, node) if of_store else ()
            failed: list[BaseException] = []

            def live() -> None:
                try:
                    run_daemon(node, None, lambda text: serving.set(), extra_loops=loops)
                except BaseException as error:
                    failed.append(error)
                    serving.set()

            thread = threading.Thread(target=live)
            thread.start()
            try:
                assert serving.wait(120)
                with grpc.insecure_channel(f"unix:{settings.socket}") as channel:
                    yield node, NodeStub(channel)
            finally:
                node.stop()
                thread.join(300)
                assert not thread.is_alive()
        if failed:
            raise failed[0]

    def remains(self) -> list[str]:
        """What there is of machines: files, cgroups, processes, records. Nothing where none is left."""
        places = [self.settings.machines.state, self.settings.machines.run, self._groups]
        paths = [str(path.relative_to(self.folder)) for place in places for path in place.rglob("*")]
        groups = ("cgroup.controllers", "cgroup.subtree_control")
        left = [name for name in paths if not name.endswith((".lock", *groups))]
        return sorted(left) + [f"process {pid}" for pid in self.processes]

    @property
    def processes(self) -> list[int]:
        """Of machines that live."""
        return self._forge.children()

    def machine_answers(self) -> list[Any]:
        """What each machine that answers says of itself: see `forked_qemu`."""
        answers = []
        for path in sorted(self.settings.machines.run.glob("*/qmp")):
            with suppress(OSError, ValueError):  # it begins, or ends
                answers.append(described_by_monitor(path))
        return answers

    def records(self, node: Node) -> list[str]:
        return sorted(node.journal.records(MACHINES))

    def _seams(self) -> list[tuple[Any, str, Any]]:
        """Where machines touch this host: their program, and cgroups, which are plain files here."""

        def spawned(words: list[str], **options: Any) -> Any:
            status, stderr = self._forge.run(words[3])
            return SimpleNamespace(returncode=status, stderr=stderr)

        def make(cgroups: Path, name: str, real: Any = confinement.make_group) -> Any:
            made = real(cgroups, name)
            for file, text in (("cgroup.procs", ""), ("cpu.max", FULL)):  # the kernel's
                if not (made.folder / file).exists():
                    (made.folder / file).write_text(text)
            return made

        def remove(made: confinement.CpuGroup) -> None:
            for file in made.folder.iterdir():
                file.unlink()
            made.folder.rmdir()

        def group_of(cgroups: Path, pid: int) -> confinement.CpuGroup | None:
            for each in self._groups.iterdir():
                try:
                    if each.is_dir() and (each / "cgroup.procs").read_text().split() == [str(pid)]:
                        return confinement.CpuGroup(2, each)
                except FileNotFoundError:  # it is being removed
                    continue
            return None

        stand_in = SimpleNamespace(run=spawned, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired)
        return [
            (launch, "subprocess", stand_in),
            (confinement, "make_group", make),
            (confinement, "remove", remove),
            (confinement, "group_of", group_of),
            # The limit of locked memory is this host's, which only some may raise.
            (adoption, "check_memlock", lambda *arguments: None),
        ]


@contextmanager
def node_with_forked_qemu() -> Iterator[NodeWithForkedQemu]:
    """It, and after that nothing of it."""
    with memory_folder() as name:
        folder = Path(name).resolve()
        with closing(QemuForkServer(folder / "host")) as forge:
            made = NodeWithForkedQemu(folder, forge)
            with closing(made.store):
                yield made
