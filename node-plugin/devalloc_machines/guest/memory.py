"""The guest's memory: usage, hot-plugged blocks, and when to ask for more or to reject a decrease."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from devalloc.scaling.messages.monitor import DownscaleResult
from devalloc_machines.guest.system import GuestSystem

MIB = 2**20
APART = 100 * MIB
"""What the system itself needs, and what must stay between use and threshold for a downscale to be agreed to."""
_RESERVES = {"disk": 256 * MIB, "memory": 640 * MIB}


def usable(memory: int) -> int:
    """What of a machine's memory the workload can have."""
    return max(0, memory - APART)


def threshold(memory: int) -> int:
    """In a machine with so much memory, at which use more is wanted."""
    return usable(memory) * 85 // 100


def cache_size(memory: int, where: str) -> int:
    """Of a cache on ``disk`` or in ``memory``, whole mebibytes."""
    reserve = _RESERVES[where]
    if memory <= reserve:
        return 0
    return min((memory - reserve) * 10 // 11, memory * 3 // 4) // MIB * MIB


@dataclass(slots=True)
class MemorySamples:
    """Memory in use at the last few instants (milliseconds)."""

    most: int = 5
    _taken: deque[tuple[int, int]] = field(default_factory=deque)

    def add(self, now: int, used: int) -> None:
        self._taken.append((now, used))
        if len(self._taken) > self.most:
            self._taken.popleft()

    def __len__(self) -> int:
        return len(self._taken)

    @property
    def used(self) -> int:
        """On average; 0 where there is none."""
        return sum(used for _, used in self._taken) // max(1, len(self._taken))

    def age(self, now: int) -> int | None:
        """Milliseconds since the last; None where there is none."""
        return now - self._taken[-1][0] if self._taken else None


_SECONDS = 3.0  # the agent waits 5 s for a reply


@dataclass(frozen=True, slots=True)
class ProgramCache:
    """A program that is started with the new size in bytes as its only argument, and exits with 0 when it is done."""

    program: str
    where: str
    """``disk`` or ``memory``."""

    async def fit(self, memory: int) -> str:
        size = cache_size(memory, self.where)
        process = await asyncio.create_subprocess_exec(
            self.program, str(size), stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL
        )
        try:
            async with asyncio.timeout(_SECONDS):
                code = await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
            raise OSError(f"{self.program} did not set the cache to {size // MIB} MiB within {_SECONDS:g} s") from None
        if code != 0:
            raise OSError(f"{self.program} could not set the cache to {size // MIB} MiB: exit code {code}")
        return f"cache set to {size // MIB} MiB"


@dataclass(frozen=True, slots=True)
class GuestMemory:
    """Of the whole guest, in bytes."""

    total: int
    available: int
    cached: int
    anonymous: int
    """Memory of processes and of tmpfs, on either list: what cannot be dropped."""
    locked: int = 0
    """Memory of processes that is on neither list: mlocked, ramfs, secret memory."""
    huge_pages: int = 0
    """The pool of huge pages, used or not: nothing else can have it."""
    kernel: int = 0
    """The kernel's own that it cannot reclaim: slab, stacks, page tables."""
    obtainable: int = 0
    """Free memory and all caches, also those that `available` leaves out; never less than `available`."""

    @property
    def used(self) -> int:
        """Memory that cannot be taken away. What has no line of its own, such as memory that a driver pinned, is what
        neither is free nor can be reclaimed. In both sums `APART` of the kernel's own memory is left out: `usable` has
        it already."""
        listed = self.anonymous + self.locked + self.huge_pages + max(0, self.kernel - APART)
        return max(listed, self.total - self.obtainable - APART)


_KERNEL = ("SUnreclaim", "KernelStack", "PageTables", "SecPageTables", "Percpu")


def read_memory(system: GuestSystem) -> GuestMemory:
    """Raises OSError, and ValueError where a field is missing.

    Documentation/filesystems/proc.rst of Linux describes the fields. Memory in a balloon does not count as cache:
    unless the balloon deflates on OOM, MemTotal does not include it.
    """
    fields: dict[str, int] = {}
    for line in system.read("proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        amount = value.split()
        if amount and amount[0].isdecimal():
            fields[name] = int(amount[0]) * (1024 if amount[1:] == ["kB"] else 1)

    def total_of(*names: str) -> int:
        return sum(fields.get(name, 0) for name in names)

    # MemAvailable leaves out what the kernel holds back at this size, and gives up when memory is unplugged.
    reclaimable = fields.get("KReclaimable", total_of("SReclaimable")) + total_of("GPUReclaim")
    caches = total_of("MemFree", "Active(file)", "Inactive(file)") + reclaimable
    arc = _shrinkable_arc(system)
    try:
        return GuestMemory(
            total=fields["MemTotal"],
            available=fields["MemAvailable"],
            cached=fields["Cached"],
            anonymous=fields["Active(anon)"] + fields["Inactive(anon)"],
            locked=total_of("Unevictable"),
            huge_pages=max(total_of("Hugetlb"), total_of("HugePages_Total") * total_of("Hugepagesize")),
            kernel=max(0, total_of(*_KERNEL) - arc),  # parts of the ARC can be slabs
            obtainable=max(fields["MemAvailable"], caches) + arc,
        )
    except KeyError as missing:
        raise ValueError(f"{system.path('proc/meminfo')} has no {missing.args[0]}") from None


def _shrinkable_arc(system: GuestSystem) -> int:
    """Bytes that ZFS gives back under pressure: no line of /proc/meminfo counts its cache (ARC) as one."""
    try:
        lines = [line.split() for line in system.read("proc/spl/kstat/zfs/arcstats").splitlines()]
    except OSError:
        return 0  # no ZFS
    rows = {line[0]: int(line[2]) for line in lines if len(line) == 3 and line[2].isdecimal()}
    return max(0, rows.get("size", 0) - rows.get("c_min", 0))


def cgroup_file(system: GuestSystem, group: str) -> str:
    """Where a cgroup tells of its memory: version 2, or version 1, or both mounted side by side.

    Raises ValueError: no such name, no such cgroup, or one whose memory is not told.
    """
    parts = group.strip("/").split("/")
    if not all(part and part not in (".", "..") and part.isprintable() for part in parts):
        raise ValueError(f"invalid cgroup name {group!r}: give it relative to /sys/fs/cgroup, such as `workload.slice`")
    name = "/".join(parts)
    places = [f"sys/fs/cgroup/{root}{name}/memory.stat" for root in ("", "unified/", "memory/")]
    for place in places:
        if system.has(place):
            return place
    looked = ", ".join(system.path(place) for place in places)
    raise ValueError(f"no cgroup {name!r} with a memory controller; looked for {looked}")


_CGROUP_LISTS = ("active_anon", "inactive_anon")
_CGROUP_OTHERS = ("unevictable", "slab_unreclaimable", "kernel_stack", "pagetables", "sec_pagetables", "percpu", "sock")
"""What else cannot be reclaimed. Version 1 has the first only."""


def cgroup_used(system: GuestSystem, file: str) -> int:
    """Memory of a cgroup and those below it that cannot be taken away, in bytes. Raises OSError, ValueError."""
    fields = dict(line.split(" ", 1) for line in system.read(file).splitlines() if " " in line)
    for prefix in ("total_", ""):  # version 1 has the sum apart
        if all(f"{prefix}{name}" in fields for name in _CGROUP_LISTS):
            return sum(int(fields.get(f"{prefix}{name}", 0)) for name in (*_CGROUP_LISTS, *_CGROUP_OTHERS))
    raise ValueError(f"{system.path(file)} has no active_anon and inactive_anon")


MemoryMeasure = Callable[[], int]
"""Bytes in use now. Raises OSError, ValueError."""


def memory_measure(system: GuestSystem, what: str) -> MemoryMeasure | None:
    """How memory in use is measured: ``system``, ``cgroup:NAME`` or ``none``. Raises ValueError."""
    kind, _, group = what.partition(":")
    if what == "none":
        return None
    if what == "system":
        return lambda: read_memory(system).used
    if kind != "cgroup" or not group:
        raise ValueError(f"{what!r} is not `system`, `cgroup:NAME` or `none`")
    file = cgroup_file(system, group)
    return lambda: cgroup_used(system, file)


_STALE = 5_000  # milliseconds after which a sample says nothing of now
_AGAIN = 1_000  # milliseconds from one request for more to the next


class MemoryPolicy:
    """The state of it. Instants are milliseconds of any one clock."""

    def __init__(
        self,
        measure: MemoryMeasure | None,
        memory: int,
        cache: ProgramCache | None,
        whole_guest: MemoryMeasure | None = None,
    ) -> None:
        """``memory``: what the guest has now, in bytes. Without ``measure`` nothing is wanted, and nothing denied.

        ``whole_guest``: use of the whole guest, if ``measure`` is of a part: a decrease must leave room for all of it.
        """
        self._measure = measure
        self._whole_guest = whole_guest
        self._cache = cache
        self._samples = MemorySamples()
        self._requested_at: int | None = None
        self.has(memory)

    @property
    def threshold(self) -> int:
        """At which use more is wanted."""
        return self._threshold

    @property
    def used(self) -> int:
        """Memory in use, as it is judged by."""
        return self._samples.used

    def sample(self, now: int) -> None:
        """Measure. Raises OSError, ValueError."""
        if self._measure is not None:
            self._samples.add(now, self._measure())

    def wants_more(self, now: int) -> bool:
        """Whether to ask for more now; it is then taken as asked."""
        if self._measure is None or not len(self._samples) or self._samples.used < self._threshold:
            return False
        if self._requested_at is not None and now - self._requested_at < _AGAIN:
            return False
        self._requested_at = now
        return True

    def has(self, memory: int) -> None:
        """The guest has so much memory, as it sees itself: what an agent that is gone said of it is void."""
        self._threshold = threshold(memory)

    async def grew(self, memory: int) -> None:
        """The machine has so much memory now. Raises OSError where the cache does not follow."""
        self.has(memory)
        if self._cache is not None:
            await self._cache.fit(memory)

    async def shrink(self, memory: int, now: int) -> DownscaleResult:
        """Whether the machine may have so little. If it agrees, it prepares for that. Raises OSError or ValueError
        if the usage is unknown."""
        done = []
        if self._measure is not None:
            age = self._samples.age(now)
            if age is not None and age > _STALE:
                raise OSError(f"memory was last measured {age / 1000:g} s ago")
            if len(self._samples) <= 1:
                return DownscaleResult(False, "memory was not measured for long enough; ask again")
            needed = self._samples.used + APART
            if threshold(memory) < needed:
                used, then, least = (amount // MIB for amount in (self._samples.used, threshold(memory), needed))
                status = f"{used} MiB are in use: the threshold would be {then} MiB, and must be at least {least} MiB"
                return DownscaleResult(False, status)
            if self._whole_guest is not None and (all_used := self._whole_guest()) > usable(memory):
                all_used, then = all_used // MIB, usable(memory) // MIB
                return DownscaleResult(False, f"{all_used} MiB of the whole guest are in use: {then} MiB would be left")
        if self._cache is not None:
            done.append(await self._cache.fit(memory))
        if self._measure is not None:
            self._threshold = threshold(memory)
            done.append(f"the monitor requests more at {self._threshold // MIB} MiB in use")
        return DownscaleResult(True, "; ".join(done) or "memory is not measured, and there is no cache")


FOLDER = "sys/devices/system/memory"
_PARAMETERS = "sys/module/memory_hotplug/parameters"
_STATES = {"auto": "online", "movable": "online_movable", "kernel": "online_kernel"}


def set_policy(system: GuestSystem, policy: str, ratio: int) -> tuple[str, list[str]]:
    """Tell the kernel what to do with memory that is plugged from now on.

    ``ratio``: with `auto`, how many times the kernel's memory the movable may be. Returns the policy that is followed,
    and what did not work or is otherwise than asked for, in sentences.
    """
    problems = []
    if policy == "auto" and not system.has(f"{_PARAMETERS}/auto_movable_ratio"):
        problems.append("this kernel does not support a ratio of movable memory: all plugged memory becomes movable")
        policy = "movable"
    writes = [(f"{FOLDER}/auto_online_blocks", _STATES[policy])]
    if policy == "auto":
        # A percentage, and one more so that the ratio itself can be reached.
        writes = [
            (f"{_PARAMETERS}/auto_movable_ratio", str(ratio * 100 + 1)),
            (f"{_PARAMETERS}/online_policy", "auto-movable"),
            *writes,
        ]
    for name, value in writes:
        if not system.has(name):
            problems.append(f"{system.path(name)} does not exist: blocks are brought online one by one")
            continue
        try:
            system.write(name, value)
        except OSError as error:
            problems.append(f"cannot write {value}: {error}")
    return policy, problems


def bring_online(system: GuestSystem, policy: str) -> list[str]:
    """Bring all blocks online that are not. Returns what did not work, in sentences. Raises OSError."""
    failures = []
    for block in _blocks(system):
        state = f"{FOLDER}/{block}/state"
        try:
            if system.read(state).strip() == "offline":
                system.write(state, _STATES[policy])
        except OSError as error:
            if not system.has(state):
                continue  # unplugged meanwhile
            failures.append(f"memory block {block.removeprefix('memory')} cannot be brought online: {error}")
    return failures


def _blocks(system: GuestSystem) -> Iterator[str]:
    for name in system.names(FOLDER):
        if name.startswith("memory") and name[6:].isdecimal():
            yield name
