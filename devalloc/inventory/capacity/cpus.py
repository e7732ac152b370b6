"""The CPUs of a host: which there are, which of them machines can use, and on which NUMA nodes.

Machines inherit the affinity of the process that starts them, so CPUs that this process may not use are none for them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from devalloc.inventory.sysfs import Folder, Tree

MAX_CPUS = 1 << 16
"""Numbers of CPUs and NUMA nodes beyond this are nonsense."""
_KIB = 1024
_RANGE = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", re.ASCII)
_NODE = re.compile(r"node([0-9]{1,6})", re.ASCII)
_HUGE = re.compile(r"hugepages-([0-9]{1,9})kB", re.ASCII)
_MOST_PAGES = 1 << 40
"""A number of pages beyond this is nonsense."""
_MEM_TOTAL = re.compile(r"^Node [0-9]+ MemTotal:\s*([0-9]{1,16}) kB$", re.MULTILINE | re.ASCII)


@dataclass(frozen=True, slots=True)
class NumaNode:
    """One NUMA node as far as machines can use it."""

    id: int
    cpus: frozenset[int]
    """CPUs that are online and that machines may use; none on a node of memory alone."""
    memory: int
    """Bytes; 0 where machines may have none of it, or the host does not say."""
    forbidden: bool = False
    """Machines may have none of its memory, because this process may not."""
    huge_pages: Mapping[int, int] = field(default_factory=dict)
    """Bytes of its memory that are set aside in huge pages, by the size of a page in bytes."""

    @property
    def ordinary_memory(self) -> int:
        """Bytes that are not in huge pages."""
        return max(0, self.memory - sum(self.huge_pages.values()))


@dataclass(frozen=True, slots=True)
class CpuTopology:
    """What a host says of its CPUs."""

    count: int | None
    """CPUs for machines; None where nothing tells."""
    usable: frozenset[int]
    """Their numbers: online, and within this process's affinity. Empty where only their count is known."""
    offline: frozenset[int]
    nodes: tuple[NumaNode, ...]
    """In the order of their numbers; none on a host that tells of no NUMA nodes."""
    notes: tuple[str, ...] = field(default=())
    """What an admin should know of how they were counted."""


def read_cpus(tree: Tree) -> CpuTopology:
    """The CPUs below a tree's root."""
    system = tree.sys.folder("devices", "system") if tree.sys else None
    places = list(_nodes(system))
    place = system.folder("cpu") if system else None
    listed = _list_in(place, "online")
    if listed is None:
        lists = [cpus for _, node in places if (cpus := _list_in(node, "cpulist")) is not None]
        listed = frozenset[int]().union(*lists) or None
    info = tree.proc.text("cpuinfo") if tree.proc else None
    cpuinfo_count = count_cpus(info) if info is not None else None
    online = listed if listed is not None else listed_cpus(info or "")
    allowed, memories = _allowed_cpus(tree, "Cpus_allowed_list"), _allowed_cpus(tree, "Mems_allowed_list")
    usable = online if allowed is None else online & allowed
    # The kernel's own list of those offline also has places for CPUs that are not plugged in.
    offline = (_list_in(place, "present") or frozenset()) - online
    notes = []
    if usable != online:
        notes.append(f"this process, and so its machines, may use {len(usable)} of the {len(online)} CPUs online")
    if offline:
        notes.append(f"{len(offline)} CPUs are offline: {format_cpu_list(offline)}")
    if listed is not None and cpuinfo_count not in (None, len(listed)):
        notes.append(f"/proc/cpuinfo would make it {cpuinfo_count} CPUs, where {len(listed)} are online")
    count = cpuinfo_count if listed is None and usable == online else len(usable)
    nodes = tuple(_node(number, node, usable, memories) for number, node in places)
    return CpuTopology(count or None, usable, offline, nodes, tuple(notes))


def count_cpus(cpuinfo: str) -> int:
    """CPUs by the text of /proc/cpuinfo: those of the first socket times the sockets, else the processors; at least 1.

    It takes all sockets for equal; so it is asked only where sysfs does not tell which CPUs are online.
    """
    values = dict[str, list[str]]()
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        values.setdefault(key.strip(), []).append(value.strip())
    siblings, sockets = values.get("siblings", ()), {*values.get("physical id", ())}
    if siblings and sockets and siblings[0].isascii() and siblings[0].isdigit() and len(siblings[0]) < 7:
        return int(siblings[0]) * len(sockets) or 1
    return sum(line.startswith("processor") for line in cpuinfo.splitlines()) or 1


def listed_cpus(cpuinfo: str) -> frozenset[int]:
    """The numbers of the CPUs that /proc/cpuinfo lists."""
    return frozenset(map(int, re.findall(r"^processor\s*:\s*([0-9]{1,6})\s*$", cpuinfo, re.MULTILINE | re.ASCII)))


def parse_cpu_list(text: str) -> frozenset[int] | None:
    """The numbers in ``0-7,16-23``; None for what is no such list."""
    ranges: list[range] = []
    for part in filter(None, text.strip().split(",")):
        match = _RANGE.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < MAX_CPUS:
            return None
        ranges.append(range(first, last + 1))
    return frozenset(chain.from_iterable(ranges)) if sum(map(len, ranges)) <= MAX_CPUS else None


def format_cpu_list(numbers: frozenset[int]) -> str:
    """Numbers as the kernel lists them: ``0-7,16-23``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _nodes(system: Folder | None) -> Iterator[tuple[int, Folder]]:
    place = system.folder("node") if system else None
    names = (match for name in (place.names() if place else ()) if (match := _NODE.fullmatch(name)))
    for match in sorted(names, key=lambda match: int(match[1])):
        node = place.folder(match[0]) if place else None
        if node is not None:
            yield int(match[1]), node


def _node(number: int, node: Folder, usable: frozenset[int], memories: frozenset[int] | None) -> NumaNode:
    total = _MEM_TOTAL.search(node.text("meminfo") or "")
    forbidden = memories is not None and number not in memories
    memory = int(total[1]) * _KIB if total and not forbidden else 0
    pages = {} if forbidden else read_huge_pages(node)
    return NumaNode(number, (_list_in(node, "cpulist") or frozenset()) & usable, memory, forbidden, pages)


def read_huge_pages(place: Folder, which: str = "nr_hugepages") -> dict[int, int]:
    """Bytes in huge pages, by the size of a page, of a NUMA node or, for ``/sys/kernel/mm``, of a host without any.

    ``which``: the file that counts them: all (``nr_hugepages``) or the free ones (``free_hugepages``). A size of
    which there are none is left out.
    """
    sizes = place.folder("hugepages")
    pages: dict[int, int] = {}
    for name in sizes.names() if sizes is not None else ():
        match = _HUGE.fullmatch(name)
        folder = sizes.folder(name) if sizes is not None and match is not None else None
        count = folder.number(which) if folder is not None else None
        if match is not None and count is not None and 0 < count < _MOST_PAGES:
            pages[int(match[1]) * _KIB] = count * int(match[1]) * _KIB
    return pages


def free_huge_pages(tree: Tree, size: int, node: int | None = None) -> int:
    """Bytes that are free in huge pages of so many bytes, on one NUMA node or (None) on the whole host."""
    if tree.sys is None:
        return 0
    names = ("kernel", "mm") if node is None else ("devices", "system", "node", f"node{node}")
    place = tree.sys.folder(*names)
    return 0 if place is None else read_huge_pages(place, "free_hugepages").get(size, 0)


def _list_in(folder: Folder | None, name: str) -> frozenset[int] | None:
    """The numbers that a file lists; None when it is not there, and a fault when it lists none."""
    text = folder.text(name) if folder is not None and folder.has(name) else None
    if folder is None or text is None:
        return None
    numbers = parse_cpu_list(text)
    if numbers is None:
        folder.tree.fault(f"{folder.path}/{name}", f"is not a list of CPUs: {text[:40]!r}")
    return numbers


def _allowed_cpus(tree: Tree, name: str) -> frozenset[int] | None:
    """What this process may use; None in a recording, which has nothing of it."""
    place = tree.proc.folder("self") if tree.proc else None
    match = re.search(rf"^{name}:\s*(\S+)$", (place and place.text("status")) or "", re.MULTILINE)
    return parse_cpu_list(match[1]) if match else None
