"""The downtime of a machine's guest when it moves to another node, and how long the whole move takes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest.mock import patch

from benchmarks.harness import Row, benchmark
from devalloc_machines.qemu import migration
from devalloc_machines.qemu.lifecycle import MachineLifecycle
from devalloc_machines.qemu.migration import Progress
from devalloc_machines.qemu.spec import machine_id
from tests.support import micro_image
from tests.support.guest import Guest
from tests.support.images import Image
from tests.support.machines import config, ended, open_folder, short_folder, virtual_machine
from tests.support.migration_kills import MovingNode, TwoPlugins
from tests.support.qemu import MICRO_APPEND
from tests.support.vm_rounds import full_round
from tests.support.waiting import until

KEY = "default/m"
MEMORY = "256Mi"
LOADS = {
    "idle": "",
    "writes 3 MiB/s of memory, and its disk": (
        "i=0; while :; do i=$((i+1)); dd if=/dev/urandom of=/tmp/noise bs=64k count=16; "
        "echo $i | dd of=/dev/vda bs=512 count=1 conv=notrunc,fsync; sleep 0.3; done"
    ),
}
_PATIENCE = 600.0


@benchmark(
    "migration",
    "Moving a machine that runs",
    method=f"A guest with Linux and {MEMORY} of memory moves between two plugins of one host, by TLS over loopback, "
    "with one SQLite store on disk; QEMU emulates its CPU (TCG). `downtime`: from when QEMU stops the CPUs on the "
    "source until they run on the target: QEMU's own figure, and what the store's word and the target take after it. "
    "`whole move`: from its reservation until it is Succeeded, with the start of QEMU on the target.",
    packages=("cryptography",),
)
def moving(runs: int) -> Iterator[Row]:
    version = micro_image.image().versions["qemu-system-x86"]
    for load, command in LOADS.items():
        moves = _moves(command, runs)
        sent = sorted(move.by_qemu for move in moves)[len(moves) // 2]
        for what, seconds in (("downtime", [m.downtime for m in moves]), ("whole move", [m.whole for m in moves])):
            qemu = f"{sent * 1000:.0f}" if what == "downtime" else ""
            yield Row({"guest": load, "QEMU": version, "what": what, "of it QEMU, ms": qemu}, tuple(seconds))


def _moves(command: str, runs: int) -> list[_Timed]:
    """There and back again and again; the first move is not counted."""
    with ExitStack() as stack:
        plugins = stack.enter_context(_two_plugins())
        first, second = (stack.enter_context(plugins.node(name)) for name in ("a", "b"))
        stack.enter_context(_running(first, second))
        until(lambda: _is_up(plugins, first), "it runs", _PATIENCE)
        guest = Guest(first.machines.config.folder(machine_id(KEY)) / "agent", seconds=_PATIENCE)
        if command:
            guest.check(f"({command}) >/dev/null 2>&1 </dev/null &")
        guest.close()
        return [_move(plugins, number) for number in range(runs + 1)][1:]


@dataclass
class _Timed:
    by_qemu: float = 0.0
    downtime: float = 0.0
    whole: float = 0.0
    arrived: list[float] = field(default_factory=list)


def _move(plugins: TwoPlugins, number: int) -> _Timed:
    source = plugins.owner()
    target = "b" if source == "a" else "a"
    timed, all_sent, over = _Timed(), migration.await_sent, migration.take_over

    def await_sent(*args: object, **more: object) -> Progress:
        sent = all_sent(*args, **more)  # type: ignore[arg-type]
        timed.by_qemu = sent.downtime_seconds or 0.0
        timed.arrived.append(time.perf_counter())
        return sent

    def take_over(machines: MachineLifecycle, *args: object) -> bool:
        lives = over(machines, *args)  # type: ignore[arg-type]
        timed.arrived.append(time.perf_counter())
        return lives

    with patch.object(migration, "await_sent", await_sent), patch.object(migration, "take_over", take_over):
        began = time.perf_counter()
        plugins.book(f"move-{number}", source, target)

        def phase() -> str:
            seen = plugins.migration(f"move-{number}")
            return "" if seen is None or not seen.is_over else seen.phase

        assert until(phase, "it has moved", _PATIENCE) == "Succeeded"
        timed.whole = time.perf_counter() - began
    begin, end = timed.arrived
    timed.downtime = timed.by_qemu + end - begin
    until(lambda: not _is_left(plugins, source), "nothing is left on its source", _PATIENCE)
    return timed


def _is_left(plugins: TwoPlugins, node: str) -> bool:
    return bool(plugins.run_states()[node])


def _is_up(plugins: TwoPlugins, node: MovingNode) -> bool:
    full_round(node.objects)
    return bool(plugins.machine()["status"].get("phase") == "Running")


@contextmanager
def _running(*nodes: MovingNode) -> Iterator[None]:
    """Inside, the loops of their migrations run by themselves."""
    stop = threading.Event()
    threads = [threading.Thread(target=node.migrations.run, args=(stop,)) for node in nodes]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@contextmanager
def _two_plugins() -> Iterator[TwoPlugins]:
    image: Image = micro_image.image()
    with short_folder() as folder, ExitStack() as stack:
        disk = folder / "images" / "disk"
        disk.parent.mkdir(mode=0o755)
        disk.write_bytes(bytes(1 << 20))
        folders: dict[str, tuple[Path, object]] = {}
        for name in ("a", "b"):
            (folder / name).mkdir(mode=0o711)
            settings = config(image, folder / name)
            settings = replace(settings, folders=(*settings.folders, open_folder(disk.parent)))
            stack.enter_context(ended(settings))
            folders[name] = (folder / name, settings)
        start = {"kernel": str(image.kernel), "initrd": str(image.initrd), "append": MICRO_APPEND}
        disks = [{"path": str(disk), "format": "raw"}]
        memory, cpu = {"min": MEMORY, "max": MEMORY}, {"min": "1", "max": "1"}
        vm = virtual_machine("m", start={**start, "disks": disks}, memory=memory, cpu=cpu).to_manifest()
        plugins = TwoPlugins(folder / "store.db", folders)  # type: ignore[arg-type]
        plugins.begin({**vm, "spec": {**vm["spec"], "nodeName": None}}, "a")
        yield plugins
