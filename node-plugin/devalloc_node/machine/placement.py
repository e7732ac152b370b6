"""Whether a guest can reach a device that was plugged in: each of its BARs has an address, given by firmware or kernel.

QEMU takes a device whatever room the windows of its port have. Only the guest gives addresses, and only they tell
whether it has the device.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, NodeError
from devalloc_node.machine.monitor import Monitor, Refused, readable
from devalloc_node.machine.spec import memory_text
from devalloc_node.machine.windows import FIRMWARE_WINDOW, window_for

SETTLE_SECONDS = 2.0
"""A guest gives a device all of its addresses within milliseconds: one that has given some, and after this time not
all, has no room for the others."""
ANSWER_SECONDS = 5.0
_LOOK_SECONDS = 0.1
_CLAIM_AT_START = "start the machine with the claim in spec.claims, so that its firmware makes windows for the device"
_ROM = 6
"""The number that QEMU gives a device's ROM. Guests leave it without an address until they read it."""
_HOST_BRIDGE = "/machine/q35"
_WORD = re.compile(r"0x([0-9a-f]{8})\b")
_MOST_ADDRESS = 1 << 52


@dataclass(frozen=True, slots=True)
class Window:
    """Addresses that a port hands on to what is behind it, both included; none where ``last`` is before ``first``."""

    first: int = 0
    last: int = -1

    @property
    def size(self) -> int:
        return max(0, self.last - self.first + 1)

    def fits(self, size: int) -> bool:
        """Whether a BAR of that size finds room if nothing else is in it: it lies at a multiple of its size."""
        return -(-self.first // size) * size + size - 1 <= self.last

    def holds(self, address: int, size: int) -> bool:
        return self.first <= address and address + size - 1 <= self.last


@dataclass(frozen=True, slots=True)
class Bar:
    number: int
    size: int
    prefetchable: bool
    """And of 64 bits, so that it lies in the window of that kind."""
    address: int | None

    def __str__(self) -> str:
        kind = "64-bit prefetchable" if self.prefetchable else "below 4 GiB"
        return f"BAR {self.number} ({memory_text(self.size)}, {kind})"


@dataclass(frozen=True, slots=True)
class Function:
    """A function of a device as the guest has set it up so far."""

    id: str
    bars: tuple[Bar, ...]
    prefetchable: Window = Window()
    memory: Window = Window()
    is_shown: bool = True
    """False: QEMU does not show it, as long as no firmware has numbered the bus that it is on."""

    @property
    def missing(self) -> tuple[Bar, ...]:
        return tuple(bar for bar in self.bars if bar.address is None)

    @property
    def is_placed(self) -> bool:
        return self.is_shown and not self.missing

    @property
    def is_enumerated(self) -> bool:
        """Whether the guest has given it any address."""
        return len(self.missing) < len(self.bars)

    def window(self, bar: Bar) -> Window:
        return self.prefetchable if bar.prefetchable else self.memory


def check_runs(monitor: Monitor, machine: str, deadline: Deadline) -> None:
    """Raises Denied (``GuestNotReady``, retryable) where no guest runs that could give a device addresses."""
    status = monitor.execute("query-status", deadline=deadline)["status"]
    if status != "running":
        raise Denied(
            "GuestNotReady",
            f"the CPUs of machine {machine} do not run (QEMU says {status!r:.50}), so that its guest cannot take a "
            "device; let them run, then attach",
            retryable=True,
        )


def await_addresses(
    monitor: Monitor, machine: str, devices: Mapping[str, str], deadline: Deadline, at_start: str = _CLAIM_AT_START
) -> None:
    """Wait until each BAR of functions has an address. ``devices``: what people call each of them, by QEMU's id;
    ``at_start``: for people, how the machine has such a device when it starts, where its firmware makes windows for it.

    Raises Denied: ``NoPciWindow`` where the guest has no room for one; ``GuestNotReady`` (retryable) where it has given
    none until the deadline, as one does that still boots, or that knows no PCI hot-plug.
    """
    if not devices:
        return
    began, since = time.monotonic(), None
    reach = _reach(monitor, deadline)
    while True:
        # At the deadline it is still to be told how far the guest came.
        all_functions = functions(monitor, machine, list(devices), Deadline.after(ANSWER_SECONDS), reach)
        lacking = [function for function in all_functions if not function.is_placed]
        if not lacking:
            return
        now = time.monotonic()
        is_partial = any(function.is_enumerated for function in all_functions)
        since = (since or now) if is_partial else None
        if (since is not None and now - since > SETTLE_SECONDS) or deadline.passed:
            raise _problem(machine, lacking, devices, is_partial, now - began, at_start)
        time.sleep(min(_LOOK_SECONDS, max(0.0, deadline.seconds)))


def have_addresses(monitor: Monitor, machine: str, ids: Sequence[str], deadline: Deadline) -> bool:
    """Whether each BAR of functions, by QEMU's ids, has an address now. Raises NodeError."""
    return not ids or all(
        function.is_placed for function in functions(monitor, machine, ids, deadline, _reach(monitor, deadline))
    )


def _problem(
    machine: str,
    lacking: Sequence[Function],
    devices: Mapping[str, str],
    is_partial: bool,
    seconds: float,
    at_start: str,
) -> NodeError:
    short = [(function, bar) for function in lacking for bar in function.missing]
    if not is_partial:
        short = [(function, bar) for function, bar in short if not function.window(bar).fits(bar.size)]
    if not short:
        names = ", ".join(sorted({devices[function.id] for function in lacking}))
        return Denied(
            "GuestNotReady",
            f"machine {machine}: nothing in it has given {names} addresses within {seconds:.0f} s: its firmware or its "
            "system is not that far, or it has no PCI hot-plug; try again when its system is up",
            retryable=True,
        )
    first = short[0][0]
    bars = ", ".join(str(bar) for function, bar in short if function is first)
    windows = " and ".join(
        dict.fromkeys(memory_text(first.window(bar).size) for function, bar in short if function is first)
    )
    anew = at_start
    if any(bar.prefetchable for _, bar in short):
        needed = window_for(sum(bar.size for function in lacking for bar in function.bars if bar.prefetchable))
        anew = f"set spec.start.pciWindow to {memory_text(needed or FIRMWARE_WINDOW)} or more and restart it, or {anew}"
    return Denied(
        "NoPciWindow",
        f"machine {machine}: its guest has no addresses for {bars} of {devices[first.id]}: the PCI slot has a window "
        f"of {windows}; {anew}",
    )


def _reach(monitor: Monitor, deadline: Deadline) -> int:
    """The first address that the machine's CPUs cannot reach. Firmware does not mind; the kernel takes it for none."""
    try:
        cpu = monitor.execute("query-cpus-fast", deadline=deadline)[0]["qom-path"]
        bits = monitor.execute("qom-get", {"path": cpu, "property": "phys-bits"}, deadline=deadline)
        return min(_MOST_ADDRESS, 1 << int(bits)) if bits else _MOST_ADDRESS
    except (Refused, LookupError, TypeError, ValueError):
        return _MOST_ADDRESS


def functions(
    monitor: Monitor, machine: str, ids: Sequence[str], deadline: Deadline, reach: int = _MOST_ADDRESS
) -> list[Function]:
    """How far the guest is with them; addresses from ``reach`` on are none. Raises NodeError."""
    wanted = set(ids)
    with readable(machine):
        shown = [
            (device, bridge)
            for bus in monitor.execute("query-pci", deadline=deadline)
            for device, bridge in _devices(bus["devices"], None)
            if device.get("qdev_id") in wanted
        ]
        ecam: int | None = None
        result = []
        for device, bridge in shown:
            function = _function(device, bridge, reach)
            if function.missing and device["bus"]:
                # QEMU tells addresses only of what is switched on, and a kernel without a driver may leave it off.
                ecam = _ecam(monitor, deadline) if ecam is None else ecam
                function = _with_registers(monitor, function, device, ecam, deadline, reach)
            result.append(function)
        there = {function.id for function in result}
        return result + [Function(name, (), is_shown=False) for name in ids if name not in there]


def _devices(
    devices: Sequence[Mapping[str, Any]], bridge: Mapping[str, Any] | None
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any] | None]]:
    """All of them, each with what query-pci says of the bridge that it is behind."""
    for device in devices:
        yield device, bridge
        behind = device.get("pci_bridge") or {}
        yield from _devices(behind.get("devices") or (), behind.get("bus"))


def _function(device: Mapping[str, Any], bridge: Mapping[str, Any] | None, reach: int) -> Function:
    bars = []
    for region in device.get("regions", ()):
        if region["type"] != "memory" or region["bar"] == _ROM or int(region["size"]) <= 0:
            continue
        address, size = int(region["address"]), int(region["size"])
        wide = bool(region.get("prefetch")) and bool(region.get("mem_type_64"))
        is_there = address > 0 and address + size <= reach
        bars.append(Bar(int(region["bar"]), size, wide, address if is_there else None))
    prefetchable, memory = (_window((bridge or {}).get(name)) for name in ("prefetchable_range", "memory_range"))
    return Function(str(device["qdev_id"]), tuple(bars), prefetchable, memory)


def _window(range_: Mapping[str, Any] | None) -> Window:
    return Window() if range_ is None else Window(int(range_["base"]), int(range_["limit"]))


def _ecam(monitor: Monitor, deadline: Deadline) -> int:
    """Where configuration space lies in the machine's memory; 0 where it does not, or nobody tells."""
    try:
        where = int(monitor.execute("qom-get", {"path": _HOST_BRIDGE, "property": "MCFG"}, deadline=deadline))
    except Refused:  # a board of another kind
        return 0
    return where if 0 < where < _MOST_ADDRESS else 0


def _with_registers(
    monitor: Monitor, function: Function, device: Mapping[str, Any], ecam: int, deadline: Deadline, reach: int
) -> Function:
    """With the addresses that its registers hold, as far as they lie in the windows of its port: others are what a
    kernel writes to learn the size of a BAR."""
    if not ecam:
        return function
    place = ecam + (int(device["bus"]) << 20) + (int(device["slot"]) << 15) + (int(device["function"]) << 12) + 0x10
    try:
        answer = monitor.execute("human-monitor-command", {"command-line": f"xp /6wx {place:#x}"}, deadline=deadline)
    except Refused:
        return function
    words = [int(word, 16) for line in str(answer).splitlines() for word in _WORD.findall(line.partition(":")[2])]
    if len(words) != 6:
        return function
    bars = []
    for bar in function.bars:
        low = words[bar.number] if bar.number < len(words) else 0
        high = words[bar.number + 1] if low & 0x6 == 0x4 and bar.number < 5 else 0
        address = high << 32 | low & ~0xF
        windows = (function.prefetchable, function.memory)  # of the first kind a BAR may lie in either
        is_there = bar.address is None and any(window.holds(address, bar.size) for window in windows)
        is_there = is_there and address + bar.size <= reach
        bars.append(Bar(bar.number, bar.size, bar.prefetchable, address if is_there else bar.address))
    return Function(function.id, tuple(bars), function.prefetchable, function.memory)
