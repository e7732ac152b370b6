"""What preparing and unpreparing a claim costs: wall, CPU and waiting for the disk apart, alone and 64 at once."""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import Row, benchmark
from devalloc_node.binding.config import BindingConfig
from devalloc_node.binding.table import Bindings, step_kinds
from devalloc_node.claims import Claims, Locks
from devalloc_node.errors import NodeError
from devalloc_node.grant import ClaimRef, GrantedDevice
from devalloc_node.journal import open_journal
from tests.support import cards
from tests.support.fakehost import FakeHost, RemoteHost, serving
from tests.support.faketree import memory_folder
from tests.support.toyhost import ToyGrants

CALLS = 20
"""Claims prepared and unprepared, one after the other, in a run."""
AT_ONCE = 64


@dataclass(frozen=True)
class Cost:
    """Of one call, in seconds."""

    wall: float
    cpu: float
    """Of the thread that asked, host and kernel not included: those are another process."""
    disk: float
    """Waiting until the journal is on disk."""


@benchmark(
    "prepare",
    "Preparing and unpreparing a claim",
    method="The engine with the real bindings, journal (WAL, synchronous=FULL) and locks, over a fake kernel in "
    "another process: a GPU with its audio function through vfio-pci, a VF whose PF has VFs, a VF that has to be "
    "created with six others, a vGPU of an A2 by mdev, of an L40S by the vendor's VFIO. Median, min and max are what a "
    "caller waits; CPU is that of the calling thread, its "
    "median and the 99th of a hundred; disk is what the journal waits for, beyond its CPU; the rest is "
    "waiting for the (fake) kernel. With the journal in memory it waits for nothing. "
    f"{AT_ONCE} at once: as many threads, each a claim of one or two of 16 VFs, so that most are refused; the time "
    f"until the last is done and all is undone again, by the number of calls. A run is the median of {CALLS} calls.",
)
def prepare(runs: int) -> Iterator[Row]:
    for where, folder in (("disk", None), ("memory", "/dev/shm")):
        for name, (build, device) in DEVICES.items():
            with bench(build, folder) as (claims, grants):
                costs = [cost for _ in range(runs + 1) for cost in _alone(claims, grants, device)]
            for act, found in (("prepare", [a for a, _ in costs]), ("unprepare", [b for _, b in costs])):
                yield _row({"journal": where, "device": name, "call": act}, found[CALLS:])
        with bench(_many_vfs, folder) as (claims, grants):
            seconds = [_at_once(claims, grants) for _ in range(runs + 1)][1:]
        what = {"journal": where, "device": f"{AT_ONCE} at once", "call": "both"}
        what |= dict.fromkeys(("CPU", "disk", "CPU p99", "wall p99"), "")
        yield Row({**what}, tuple(seconds))


def _row(what: dict[str, str | int], costs: list[Cost]) -> Row:
    walls = [cost.wall for cost in costs]
    shown = {"CPU": [cost.cpu for cost in costs], "disk": [cost.disk for cost in costs]}
    parts = {name: f"{statistics.median(values) * 1000:.1f}" for name, values in shown.items()}
    worst = {"CPU p99": shown["CPU"], "wall p99": walls}
    parts |= {name: f"{_p99(values) * 1000:.1f}" for name, values in worst.items()}
    medians = (statistics.median(walls[start : start + CALLS]) for start in range(0, len(walls), CALLS))
    return Row({**what, **parts}, tuple(medians))


def _p99(values: list[float]) -> float:
    return sorted(values)[(len(values) * 99 - 1) // 100]


def _gpu(host: FakeHost) -> None:
    host.add(cards.gpu(iommu_group=7))
    host.add(cards.gpu_audio(iommu_group=7))


def _nic(host: FakeHost) -> None:
    host.add(cards.nic())


def _nic_with_vfs(host: FakeHost) -> None:
    host.add(cards.nic(vfs=7))


def _a2(host: FakeHost) -> None:
    host.add(cards.a2_vgpu_card(vfs=4))


def _l40s(host: FakeHost) -> None:
    host.add(cards.l40s_vgpu_card(vfs=4))


def _many_vfs(host: FakeHost) -> None:
    host.add(cards.connectx(vfs=16))


DEVICES: dict[str, tuple[Callable[[FakeHost], None], GrantedDevice]] = {
    "GPU": (_gpu, GrantedDevice(("0",), "n-0000-01-00", "0000-01-00-0")),
    "VF": (_nic_with_vfs, GrantedDevice(("0",), "n-0000-41-00", "0000-41-10-0")),
    "VF to be created": (_nic, GrantedDevice(("0",), "n-0000-41-00", "0000-41-10-0")),
    "vGPU, mdev": (_a2, GrantedDevice(("0",), "n-0000-08-00", "0000-08-00-4-nvidia-746")),
    "vGPU, VFIO": (_l40s, GrantedDevice(("0",), "n-0000-26-00", "0000-26-00-4-nvidia-1148")),
}


class TimedJournal:
    """A journal that adds up what its calls wait for, by thread."""

    def __init__(self, journal: object) -> None:
        self._journal = journal
        self.local = threading.local()

    def __getattr__(self, name: str) -> object:
        method = getattr(self._journal, name)

        def timed(*arguments: object) -> object:
            wall, cpu = time.perf_counter(), time.thread_time()
            try:
                return method(*arguments)
            finally:
                waited = (time.perf_counter() - wall) - (time.thread_time() - cpu)
                self.local.waited = getattr(self.local, "waited", 0.0) + waited

        return timed


@contextmanager
def bench(build: Callable[[FakeHost], None], folder: str | None) -> Iterator[tuple[Claims, ToyGrants]]:
    """An engine over a kernel that another process plays."""
    with (
        memory_folder() as root,
        tempfile.TemporaryDirectory(dir=folder) as state,
        _kernel(Path(root), build) as address,
        closing(open_journal(Path(state) / "node")) as journal,
    ):
        host = RemoteHost(Path(root), address)
        bindings = Bindings(host, BindingConfig("n", allowed=frozenset({"gpu", "vgpu", "vf"})))
        grants, timed = ToyGrants(), TimedJournal(journal)
        locks = Locks(Path(state) / "locks")
        claims = Claims(timed, locks, {"DeviceClaim": grants}, bindings.choose, step_kinds(host))  # type: ignore[arg-type]
        yield claims, grants


@contextmanager
def _kernel(root: Path, build: Callable[[FakeHost], None]) -> Iterator[str]:
    """A process that plays the kernel; the address it listens at."""
    said, says = os.pipe()
    asked, asks = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(asks)
            host = FakeHost(root)
            build(host)
            with serving(host) as address:
                os.write(says, address.encode())
                os.read(asked, 1)
        finally:
            os._exit(0)
    os.close(asked)
    try:
        yield os.read(said, 4096).decode()
    finally:
        os.close(asks)
        os.waitpid(child, 0)
        os.close(said)
        os.close(says)


def _alone(claims: Claims, grants: ToyGrants, device: GrantedDevice) -> Iterator[tuple[Cost, Cost]]:
    for number in range(CALLS):
        ref = grants.add(f"u{number}", device)
        yield _cost(claims, lambda ref=ref: claims.prepare(ref)), _cost(claims, lambda ref=ref: claims.unprepare(ref))  # type: ignore[misc]


def _cost(claims: Claims, act: Callable[[], object]) -> Cost:
    journal: TimedJournal = claims.journal  # type: ignore[assignment]
    journal.local.waited = 0.0
    wall, cpu = time.perf_counter(), time.thread_time()
    act()
    return Cost(time.perf_counter() - wall, time.thread_time() - cpu, journal.local.waited)


def _at_once(claims: Claims, grants: ToyGrants) -> float:
    refs: list[ClaimRef] = []
    for number in range(AT_ONCE):
        vfs = {number % 16, number * 7 % 16} if number % 3 == 0 else {number % 16}
        names = [f"0000-61-{2 + vf >> 3:02x}-{2 + vf & 7}" for vf in sorted(vfs)]
        refs.append(grants.add(f"u{number}", *(GrantedDevice(("0",), "n-0000-61-00", name) for name in names)))

    def use(ref: ClaimRef) -> int:
        try:
            claims.prepare(ref)
        except NodeError:
            return 1
        claims.unprepare(ref)
        return 2

    start = time.perf_counter()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        calls = sum(pool.map(use, refs))
    return (time.perf_counter() - start) / calls
