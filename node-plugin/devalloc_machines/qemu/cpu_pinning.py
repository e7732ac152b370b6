"""CPUs of the host for the vCPUs of a machine: chosen so that machines share as few as can be, and the threads bound.

One choice for all that are pinned: machines that have CPUs for themselves, and setups of the warm pool.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from devalloc.inventory.capacity.cpus import CpuTopology, format_cpu_list
from devalloc_machines.qemu.process import Process
from devalloc_machines.qemu.qmp import Monitor, checked_number
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed

LOG = logging.getLogger(__name__)
_MOST_THREADS = 1 << 22
"""Of Linux."""


class NotEnoughCpus(Denied):
    """There are too few now, and there may be enough soon."""

    def __init__(self, message: str) -> None:
        super().__init__("CpusInUse", message)


@dataclass(frozen=True, slots=True)
class CpuPinning:
    """Where a machine runs."""

    cpus: tuple[int, ...]
    """Of the host, one for each vCPU, ascending."""
    nodes: tuple[int, ...]
    """The NUMA nodes of these, ascending; none if the host tells of no node that has them."""


@dataclass(frozen=True, slots=True)
class CpuHolder:
    """Who has a CPU of the host: a machine of this node, or another owner of a warm setup."""

    machine: str = ""
    """Its key; empty for another owner."""
    setup: str = ""
    """The id of the setup that the other owner must return; empty for a machine."""


@dataclass(frozen=True, slots=True)
class _Group:
    """CPUs of one NUMA node that a machine may have now."""

    node: int | None
    cpus: tuple[int, ...]
    """Least loaded first, then by number."""
    load: Fraction
    """vCPUs for each CPU of the node."""

    def score(self, vcpus: int, loads: Mapping[int, int]) -> tuple[int, Fraction, int]:
        """The lower the better a machine of so many vCPUs has it here."""
        own_load = sum(loads.get(cpu, 0) for cpu in self.cpus[:vcpus])
        return own_load, self.load, -1 if self.node is None else self.node


def choose_cpus(
    host: CpuTopology,
    loads: Mapping[int, int],
    vcpus: int,
    *,
    most: int | None = None,
    one_node: bool = False,
    only: int | None = None,
    exclusive: Collection[int] = (),
) -> CpuPinning:
    """The least loaded CPUs, on one NUMA node if any has enough of them, else on as few as will do.

    ``loads``: how many vCPUs each CPU has already. ``most``: how many it may have; None for any number. ``one_node``:
    several nodes will not do; ``only``: that node, and no other. ``exclusive``: CPUs that others have for themselves.
    No two vCPUs of a machine share a CPU. Raises Denied ``CpusTooFew`` if the host, or a node of it, could never
    hold the machine, and NotEnoughCpus if it cannot now.
    """
    nodes = {node.id: node.cpus for node in host.nodes if node.cpus}
    apart = host.usable - frozenset[int]().union(*nodes.values())
    whole: list[tuple[int | None, frozenset[int]]] = [*nodes.items(), *([(None, apart)] if apart else [])]
    if only is not None:
        whole, one_node = [(only, nodes.get(only, frozenset()))], True
    _check(vcpus, whole, one_node=one_node)
    taken = frozenset(exclusive)
    groups = [group for node, cpus in whole if (group := _group(node, cpus - taken, loads, most)).cpus]
    if alone := [group for group in groups if len(group.cpus) >= vcpus]:
        chosen = [min(alone, key=lambda group: group.score(vcpus, loads))]
    elif one_node or sum(len(group.cpus) for group in groups) < vcpus:
        free = ", ".join(f"{len(group.cpus)} on node {group.node}" for group in groups) or "none"
        which = "free CPUs" if most in (None, 1) else f"CPUs with fewer than {most} vCPUs"
        raise NotEnoughCpus(f"not enough {which} for {vcpus} {'vCPU' if vcpus == 1 else 'vCPUs'}; available: {free}")
    else:
        chosen = sorted(groups, key=lambda group: (-len(group.cpus), group.score(len(group.cpus), loads)))
    cpus: list[int] = []
    used: list[int] = []
    for group in chosen:
        here = group.cpus[: vcpus - len(cpus)]
        cpus += here
        if here and group.node is not None:
            used.append(group.node)
    return CpuPinning(tuple(sorted(cpus)), tuple(sorted(used)))


def _group(node: int | None, cpus: frozenset[int], loads: Mapping[int, int], most: int | None) -> _Group:
    free = (cpu for cpu in cpus if most is None or loads.get(cpu, 0) < most)
    ordered = tuple(sorted(free, key=lambda cpu: (loads.get(cpu, 0), cpu)))
    return _Group(node, ordered, Fraction(sum(loads.get(cpu, 0) for cpu in cpus), len(cpus) or 1))


def _check(vcpus: int, whole: Sequence[tuple[int | None, frozenset[int]]], *, one_node: bool) -> None:
    if vcpus < 1:
        raise Denied("CpusTooFew", f"the number of vCPUs to pin must be at least 1, got {vcpus}")
    sizes = [len(cpus) for _, cpus in whole]
    if vcpus > (max(sizes, default=0) if one_node else sum(sizes)):
        has = "; ".join(f"node {node}: {format_cpu_list(cpus) or 'none'}" for node, cpus in whole) or "none"
        where = "on one NUMA node" if one_node else "on this host"
        raise Denied("CpusTooFew", f"not enough CPUs for {vcpus} vCPUs {where}; machines may use {has}")


def pin_vcpus(
    monitor: Monitor,
    machine: str,
    process: Process,
    places: Mapping[tuple[int, int], Collection[int]],
    deadline: Deadline,
) -> None:
    """Bind the thread of each vCPU to CPUs of the host. ``places``: these by the vCPU's socket and core; a vCPU that
    has no place there stays where QEMU may run. Raises NodeError (``CpusNotPinned``).

    QEMU tells which threads these are, and may have been taken over: no thread of another process is touched.
    """
    if not places:
        return
    for entry in monitor.execute("query-cpus-fast", deadline=deadline):
        socket, core = (checked_number(entry["props"].get(name, 0), _MOST_THREADS) for name in ("socket-id", "core-id"))
        thread = checked_number(entry["thread-id"], _MOST_THREADS)
        if (cpus := places.get((socket, core))) is None:
            continue
        if not Path(f"/proc/{process.pid}/task/{thread}").exists():
            raise Failed(
                "CpusNotPinned",
                f"QEMU of machine {machine} reports thread {thread} for a vCPU, but its process {process.pid} has no "
                "such thread",
            )
        text = format_cpu_list(frozenset(cpus))
        try:
            with suppress(ProcessLookupError):  # it has just left
                os.sched_setaffinity(thread, cpus)
        except OSError as error:
            if error.errno == errno.EINVAL:  # offline: the thread stays on the machine's others
                LOG.warning("machine %s: CPUs %s are offline; its vCPU runs on the machine's others", machine, text)
                continue
            raise Failed(
                "CpusNotPinned", f"cannot bind a vCPU of machine {machine} to CPUs {text}: {error.strerror}"
            ) from error
