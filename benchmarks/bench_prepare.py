"""What preparing and unpreparing a claim costs: wall, CPU and waiting apart, alone and 64 at once."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import Row, benchmark
from benchmarks.prepare_setup import PrepareSubject, Source, TimedJournal, descriptors_held, open_bench
from devalloc.inventory.device_users import visibility_problem
from devalloc.inventory.sysfs import Tree
from devalloc_node.claims import Claims
from devalloc_node.deadline import Deadline
from devalloc_node.errors import NodeError
from devalloc_node.model.grant import ClaimRef, GrantedDevice
from devalloc_node.model.step import Step
from tests.support import pci_cards
from tests.support.fake_host import FakeHost

CALLS = 20
"""Claims prepared and unprepared, one after the other, in a run."""
AT_ONCE = 64
DESCRIPTORS = 4000
"""Held open by other processes where a busy host is measured."""


@dataclass(frozen=True)
class Cost:
    """Of one call, in seconds."""

    wall: float
    cpu: float
    """Of the thread that asked, in user mode and in the kernel."""
    journal: float
    """Waiting for the journal: for the disk, and for its lock."""
    kernel: float
    """Waiting for answers of the kernel, which another process plays."""
    writes: int
    """Transactions of the journal."""


@benchmark(
    "prepare",
    "Preparing and unpreparing a claim",
    method="The engine with the real bindings, journal (WAL, synchronous=FULL) and locks, over a fake kernel in "
    "another process. Devices: a VF (sriov) of a PF that has seven; one that has to be created with six others; a GPU "
    "with its audio function (vfio); a vGPU of an A2 (mdev) and of an L40S (vgpu). `whole`: the claim is in a store, "
    "where it is marked, and its CDI spec is written, as `devalloc node` does. Median, min and max are wall "
    "time: what a caller waits. CPU is that of the calling thread, in user mode and the kernel, median and 99th of a "
    "hundred. I/O wait is apart for the journal (disk; at 64 at once its lock too) and the (fake) kernel's answers. "
    "With the journal in memory (tmpfs) it waits for nothing. `writes` are the journal's transactions. `descriptors`: "
    "how many are open on the machine whose processes are searched for users of the device; 1 where those are played. "
    "`least` is what the host itself costs: the same writes to the kernel and as many commits to a database like the "
    "journal's, with no check at all. "
    f"{AT_ONCE} at once: as many threads, each with a claim of one or two of 16 VFs, so that most are refused; their "
    "wall and wait have the others' CPU in them, for they share Python's lock. "
    f"A run is {CALLS} calls, one after the other, or {AT_ONCE} at once; its figure is their median.",
)
def prepare(runs: int) -> Iterator[Row]:
    with descriptors_held(DESCRIPTORS):
        for where, folder in (("disk", None), ("memory", "/dev/shm")):
            for name, subject in SUBJECTS.items():
                if (reason := _unmeasurable(subject)) is not None:
                    print(f"({name}: left out, {reason})")
                    continue
                with open_bench(subject, folder) as (claims, source):
                    shown: dict[str, str | int] = {
                        "journal": where,
                        "device": name,
                        "at once": 1,
                        "descriptors": _descriptors(subject),
                    }
                    alone = [cost for _ in range(runs + 1) for cost in _alone(claims, source, subject.device)]
                    least = [cost for _ in range(runs + 1) for cost in _least(claims, source, subject.device)]
                named = {"prepare": [a for a, _ in alone], "unprepare": [b for _, b in alone], "least": least}
                for call, costs in named.items():
                    yield _row(shown | {"call": call}, [costs[i : i + CALLS] for i in range(0, len(costs), CALLS)][1:])
            with open_bench(SUBJECTS["VF"], folder, _many_vfs) as (claims, source):
                rounds = [_at_once(claims, source) for _ in range(runs + 1)][1:]
            shown = {"journal": where, "device": "1 or 2 of 16 VFs", "at once": AT_ONCE, "descriptors": 1}
            for call in ("prepare", "refused", "unprepare"):
                yield _row(shown | {"call": call}, [costs[call] for costs in rounds])


def _row(what: dict[str, str | int], rounds: Sequence[Sequence[Cost]]) -> Row:
    costs = [cost for each in rounds for cost in each]
    parts = {
        "writes": statistics.median(cost.writes for cost in costs),
        "CPU": statistics.median(cost.cpu for cost in costs) * 1000,
        "CPU p99": _p99([cost.cpu for cost in costs]) * 1000,
        "I/O wait: journal": statistics.median(cost.journal for cost in costs) * 1000,
        "I/O wait: kernel": statistics.median(cost.kernel for cost in costs) * 1000,
        "wall p99": _p99([cost.wall for cost in costs]) * 1000,
    }
    shown = {name: f"{max(value, 0):.{int(name != 'writes')}f}" for name, value in parts.items()}
    return Row({**what, **shown}, tuple(statistics.median(cost.wall for cost in each) for each in rounds))


def _p99(values: list[float]) -> float:
    return sorted(values)[(len(values) * 99 - 1) // 100]


def _gpu(host: FakeHost) -> None:
    host.add(pci_cards.gpu(iommu_group=7))
    host.add(pci_cards.gpu_audio(iommu_group=7))


def _nic(host: FakeHost) -> None:
    host.add(pci_cards.nic())


def _nic_with_vfs(host: FakeHost) -> None:
    host.add(pci_cards.nic(vfs=7))


def _a2(host: FakeHost) -> None:
    host.add(pci_cards.a2_vgpu_card(vfs=4))


def _l40s(host: FakeHost) -> None:
    host.add(pci_cards.l40s_vgpu_card(vfs=4))


def _many_vfs(host: FakeHost) -> None:
    host.add(pci_cards.connectx(vfs=16))


_VF = GrantedDevice(("0",), "n-0000-41-00", "0000-41-10-0")
_GPU = GrantedDevice(("0",), "n-0000-01-00", "0000-01-00-0")
SUBJECTS = {
    "VF": PrepareSubject(_nic_with_vfs, _VF),
    "VF, whole": PrepareSubject(_nic_with_vfs, _VF, whole=True),
    "VF to be created": PrepareSubject(_nic, _VF),
    "GPU": PrepareSubject(_gpu, _GPU),
    "GPU, busy host": PrepareSubject(_gpu, _GPU, busy=True),
    "vGPU, mdev": PrepareSubject(_a2, GrantedDevice(("0",), "n-0000-08-00", "0000-08-00-4-nvidia-746")),
    "vGPU, VFIO": PrepareSubject(_l40s, GrantedDevice(("0",), "n-0000-26-00", "0000-26-00-4-nvidia-1148")),
}


def _unmeasurable(subject: PrepareSubject) -> str | None:
    """Why a busy host cannot be measured here."""
    return visibility_problem(Tree(Path("/"))) if subject.busy else None


def _descriptors(subject: PrepareSubject) -> int:
    """How many are open where users are looked for."""
    if not subject.busy:
        return 1
    count = 0
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                count += len(os.listdir(process / "fd"))
            except OSError:  # it has ended
                continue
    return count


def _alone(claims: Claims, source: Source, device: GrantedDevice) -> Iterator[tuple[Cost, Cost]]:
    for number in range(CALLS):
        ref = source.add(f"u{number}", device)
        yield _cost(claims, partial(claims.prepare, ref)), _cost(claims, partial(claims.unprepare, ref))


def _timed(claims: Claims) -> TimedJournal:
    journal: object = claims.journal
    assert isinstance(journal, TimedJournal)
    return journal


def _cost(claims: Claims, act: Callable[[], object]) -> Cost:
    waits = _timed(claims).waits
    waits.take()
    wall, cpu = time.perf_counter(), time.thread_time()
    act()
    return Cost(time.perf_counter() - wall, time.thread_time() - cpu, *waits.take())


def _least(claims: Claims, source: Source, device: GrantedDevice) -> Iterator[Cost]:
    """The changes of a prepare and its commits, bare."""
    host, journal = _timed(claims).host, _timed(claims).inner
    ref = source.add("least", device)
    host.changes.clear()
    writes = _cost(claims, lambda: claims.prepare(ref)).writes
    forth = tuple(host.changes)
    host.changes.clear()
    claims.unprepare(ref)
    back = tuple(host.changes)
    step = Step("bare", "0000:41:10.0", None, {"driver": "vfio-pci", "override": "vfio-pci"})

    def replay(changes: Sequence[tuple[str, tuple[Any, ...]]]) -> None:
        for method, arguments in changes:
            again = (Deadline.after(5) if isinstance(each, Deadline) else each for each in arguments)
            host.call(method, *again)

    def act() -> None:
        for _ in range(writes):
            journal.intend([("bare", "", step)])
        replay(forth)

    for _ in range(CALLS):
        cost = _cost(claims, act)
        yield Cost(cost.wall, cost.cpu, cost.wall - cost.cpu - cost.kernel, cost.kernel, writes)
        replay(back)
        for each in journal.steps("bare"):
            journal.undone(each.id)


def _at_once(claims: Claims, source: Source) -> dict[str, list[Cost]]:
    refs: list[ClaimRef] = []
    for number in range(AT_ONCE):
        vfs = {number % 16, number * 7 % 16} if number % 3 == 0 else {number % 16}
        names = [f"0000-61-{2 + vf >> 3:02x}-{2 + vf & 7}" for vf in sorted(vfs)]
        refs.append(source.add(f"u{number}", *(GrantedDevice(("0",), "n-0000-61-00", name) for name in names)))
    costs: dict[str, list[Cost]] = {"prepare": [], "refused": [], "unprepare": []}

    def use(ref: ClaimRef) -> None:
        refused = False

        def act() -> None:
            nonlocal refused
            try:
                claims.prepare(ref)
            except NodeError:
                refused = True

        cost = _cost(claims, act)
        costs["refused" if refused else "prepare"].append(cost)
        if not refused:
            costs["unprepare"].append(_cost(claims, lambda: claims.unprepare(ref)))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(use, refs))
    return costs
