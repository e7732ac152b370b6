"""Whether a guest can reach a device that was plugged in: each of its BARs has an address, given by firmware or kernel.

QEMU takes a device whatever room the windows of its port have. Only the guest gives addresses, and only they tell
whether it has the device.

Hot-plug PCI devices into a running machine, unplug them, and wait until the guest can reach their BARs.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from devalloc.inventory.pci import NO_BARS, BarSizes
from devalloc_machines.qemu.pci import (
    FIRMWARE_WINDOW,
    PERIPHERAL,
    PciDevice,
    QemuBackend,
    RootPort,
    bus_of,
    function_id,
    list_root_ports,
    present_devices,
    window_for,
)
from devalloc_machines.qemu.qmp import ANSWER_SECONDS, Monitor, QmpRefused, malformed_as_failed, qom_get, run_state
from devalloc_machines.qemu.spec import MIB, MachineSpec, memory_text
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, NodeError, Unknown

LOG = logging.getLogger(__name__)
_LOOK_SECONDS = 0.25
"""Between looks whether a device is gone: its event may have come while the line was broken."""


@dataclass(frozen=True, slots=True)
class SlotNeeds:
    """What a device needs of the slot that it goes into."""

    size: BarSizes | None = NO_BARS
    """Its own memory; None: unknown."""
    node: int | None = None
    """The guest's NUMA node that it is near; None: none, or unknown."""
    is_cold: bool = False
    """The machine's firmware has not run yet, and will make windows for it."""
    spares_plain: bool = False
    """If the machine has not started: a card with prefetchable memory of 32 bits may still come, which needs a slot
    without a window of 64 bits. The last one is not for other devices."""
    port: str = ""
    """The root port that it must go into; empty: any."""


def plug_device(
    monitor: Monitor, machine: str, device: PciDevice, deadline: Deadline, needs: SlotNeeds = SlotNeeds()
) -> str:
    """Plug a device in; the root port that it is on then. Does nothing if it is plugged in already.

    Raises Denied: ``NoFreePciSlot``, ``NoPciWindow``, ``QemuRefused`` (nothing is left of it then). Failed if QEMU
    says yes and does not show it. Unknown if QEMU does not answer: it may be there.
    """
    there = present_devices(monitor, deadline)
    ids = [device.function_id(number) for number in range(len(device.functions))]
    if ids[0] in there:  # function 0 comes last: all of it is there
        return _verified(monitor, machine, device, deadline)
    for leftover in [name for name in ids if name in there]:
        _discard(monitor, leftover, deadline)
    port = _free(monitor, machine, device, needs, deadline)
    _add_backends(monitor, device, deadline)
    added: list[str] = []
    try:
        for number in reversed(range(len(device.functions))):
            many = {"multifunction": True} if number == 0 and len(ids) > 1 else {}
            where = {"id": ids[number], "bus": port.bus, "addr": f"0x0.{number}" if number else "0x0"}
            monitor.execute("device_add", {**device.functions[number], **where, **many}, deadline=deadline)
            added.append(ids[number])
        return _verified(monitor, machine, device, deadline)
    except Unknown:
        raise
    except NodeError:
        for name in reversed(added):
            _discard(monitor, name, deadline)
        remove_backends(monitor, device.backends, deadline)
        raise


def unplug_device(monitor: Monitor, machine: str, name: str, deadline: Deadline) -> None:
    """Ask the guest to let a device go, and wait until QEMU has let it go too. Nothing to do if it is not there.

    Raises Denied (``GuestRefused``, retryable): the guest says no, or nothing, until the deadline. Unknown if QEMU
    does not answer.
    """
    ids = tuple(function_id(name, number) for number in range(8))
    with monitor.expect("DEVICE_DELETED", "DEVICE_UNPLUG_GUEST_ERROR") as events:
        began = time.monotonic()
        left = [i for i in ids if i in present_devices(monitor, deadline)]
        if not left:
            return
        is_requested = False
        while left:
            event = None
            if not is_requested:
                is_requested = _is_unplug_requested(monitor, left[0], deadline)
            with suppress(Unknown):  # the line broke, perhaps under another's question: it is looked at anew
                event = events.next(deadline.capped(_LOOK_SECONDS))
            # Of several functions, and of a card's own children, the events come in any order and some without an id.
            who = None if event is None else event.get("data", {}).get("device")
            if event is not None and event["event"] == "DEVICE_UNPLUG_GUEST_ERROR" and who in ids:
                raise Denied("GuestRefused", f"machine {machine}: the guest refuses to release {name}")
            # A guest can cause events as fast as they are read: those of others do not put the deadline off.
            if event is None or who in left or deadline.passed:
                if deadline.passed:
                    seconds = time.monotonic() - began
                    raise Denied("GuestRefused", _why_kept(monitor, machine, name, seconds))
                there = present_devices(monitor, Deadline.after(ANSWER_SECONDS))
                left = [i for i in left if i in there and i != who]


def _why_kept(monitor: Monitor, machine: str, name: str, seconds: float) -> str:
    """What to say of a guest that neither released a device nor refused to."""
    status = None
    with suppress(NodeError):
        answer = monitor.execute("query-status", deadline=Deadline.after(ANSWER_SECONDS))
        status = answer.get("status") if isinstance(answer, dict) else None
    if status in (None, "running"):
        advice = "" if status is None else "its CPUs run; "
        return (
            f"machine {machine}: the guest did not release {name} within {seconds:.0f} s; {advice}"
            "has it booted, and has it stopped using the device?"
        )
    return (
        f"machine {machine}: the guest cannot release {name}, because its CPUs do not run (QEMU reports "
        f"{status!r:.50}); let them run, or stop the machine"
    )


def request_unplug(monitor: Monitor, name: str, deadline: Deadline) -> None:
    """device_del; it is fine if it is under way (native hot-plug refuses then, ACPI does not) or done."""
    try:
        monitor.execute("device_del", {"id": name}, deadline=deadline)
    except QmpRefused as error:
        if error.kind != "DeviceNotFound" and "in the process of unplug" not in error.reason:
            raise


def _is_unplug_requested(monitor: Monitor, name: str, deadline: Deadline) -> bool:
    """As ``request_unplug``; False if the guest is still busy with another request for the slot (native hot-plug)."""
    try:
        request_unplug(monitor, name, deadline)
    except QmpRefused as error:
        if "guest is busy" not in error.reason:
            raise
        return False
    return True


def remove_backends(monitor: Monitor, backends: Sequence[QemuBackend], deadline: Deadline) -> None:
    """Take away what a device stood on, the last first. What is gone already is fine."""
    for backend in reversed(backends):
        try:
            monitor.execute(*backend.remove, deadline=deadline)
        except QmpRefused as error:
            LOG.debug("%s", error)


def _free(monitor: Monitor, machine: str, device: PciDevice, needs: SlotNeeds, deadline: Deadline) -> RootPort:
    """A port with large enough windows: on the bus of the device's NUMA node, or else on the root bus, or else on any.
    Of several the one that reserves the least, so that large windows stay free for large devices.

    If none has, or if the need is unknown, the one that reserves the most; of several the one on the first of these
    buses.
    """
    root_ports = list_root_ports(monitor, deadline)
    free = [port for port in root_ports if not port.busy]
    if needs.port:
        if (port := next((each for each in free if each.name == needs.port), None)) is not None:
            return port
        raise Denied(
            "NoFreePciSlot", f"machine {machine} has no free root port {needs.port} for {device.id}", retryable=False
        )
    plain = [port for port in free if port.reserve.prefetchable <= FIRMWARE_WINDOW]
    if needs.is_cold and needs.spares_plain and len(plain) == 1 < len(free):
        is_for_it = needs.size is not None and needs.size.prefetchable_32
        free = free if is_for_it else [port for port in free if port not in plain]
    if free and needs.is_cold and needs.size is not None and needs.size.prefetchable_32:
        free = plain
        if not free:
            raise Denied(
                "NoPciWindow",
                f"machine {machine} cannot start with {device.id}: it has prefetchable memory of 32 bits, and each "
                "free PCI slot reserves a window of 64 bits, which firmware would put below 4 GiB with it; "
                f"set spec.start.pciWindow to {memory_text(MIB)}, or add the claim when the machine runs",
            )
    if free:
        port = _best_port(free, needs)
        if needs.node is not None and port.node != needs.node and any(each.node is not None for each in root_ports):
            LOG.warning(
                "machine %s: %s is on NUMA node %d of the guest, but goes into %s, which is on %s: no free slot of its "
                "node has large enough windows",
                machine,
                device.id,
                needs.node,
                port.name,
                "the root bus" if port.node is None else f"node {port.node}",
            )
        return port
    raise Denied(
        "NoFreePciSlot",
        f"machine {machine} has no free PCI slot for {device.id}: all of its {len(root_ports)} root ports are in use"
        if root_ports
        else f"machine {machine} has no root ports, so nothing can be plugged into it; start it with pciSlots",
        retryable=bool(root_ports),
    )


def free_slots(ports: Sequence[RootPort], spec: MachineSpec) -> int:
    """How many devices a machine can still get: as many as it has PCI slots, wherever they are. It may have more ports,
    as each of its NUMA nodes has some of its own."""
    busy = sum(port.busy for port in ports)
    return min(len(ports), spec.pci_slots if spec.numa_cells else len(ports)) - busy


def _best_port(free: Sequence[RootPort], needs: SlotNeeds) -> RootPort:
    """As ``_free``."""

    def distance(port: RootPort) -> int:
        """0 for the best bus."""
        if port.node is None:
            return 0 if needs.node is None else 1
        return 0 if port.node == needs.node else 2

    if needs.size is not None:
        wide, low = window_for(needs.size.prefetchable), window_for(needs.size.other)
        if needs.is_cold and any(port.node is not None for port in free):
            low = 0  # there are never enough windows below 4 GiB for all slots, and firmware makes them
        enough = [port for port in free if port.reserve.prefetchable >= wide and port.reserve.memory >= low]
        if enough:
            return min(enough, key=lambda port: (distance(port), port.reserve))
    return max(free, key=lambda port: (port.reserve, -distance(port)))


def power_slots(monitor: Monitor, machine: str, deadline: Deadline) -> None:
    """Have the firmware of a machine whose CPUs never ran see the devices on expander buses.

    The slots there have native hot-plug, and a slot that was empty when QEMU began has no power; only a reset of the
    machine switches it on. Without it the firmware would make no windows for what is in it. Raises NodeError.
    """
    if not any(port.busy and port.node is not None for port in list_root_ports(monitor, deadline)):
        return
    with monitor.expect("RESET") as events:
        monitor.execute("system_reset", deadline=deadline)
        while events.next(deadline.capped(_LOOK_SECONDS)) is None:
            if deadline.passed:
                raise Unknown("MonitorSilent", f"QEMU of machine {machine} accepted a reset but does not report it")


def _add_backends(monitor: Monitor, device: PciDevice, deadline: Deadline) -> None:
    for number, backend in enumerate(device.backends):
        try:
            monitor.execute(*backend.add, deadline=deadline, fd=backend.fd)
        except QmpRefused:
            # One of that name may be there, and is not taken for ours: it may stand on another file.
            remove_backends(monitor, device.backends[:number], deadline)
            raise


def _verified(monitor: Monitor, machine: str, device: PciDevice, deadline: Deadline) -> str:
    where = [bus_of(monitor, device.function_id(number), deadline) for number in range(len(device.functions))]
    if where[0] is None or any(other != where[0] for other in where):
        raise Failed("DeviceNotThere", f"QEMU of machine {machine} accepted {device.id} but does not show it: {where}")
    path = f"{PERIPHERAL}/{device.function_id(0)}"
    if qom_get(monitor, path, "realized", deadline) is not True:
        raise Failed("DeviceNotThere", f"QEMU of machine {machine} shows {device.id} as not ready")
    return where[0].rpartition("/")[2]


def _discard(monitor: Monitor, name: str, deadline: Deadline) -> None:
    """Take back a function that the guest has not been told of: QEMU removes it at once, or says why not."""
    try:
        request_unplug(monitor, name, deadline)
    except QmpRefused as error:
        LOG.warning("left behind: %s", error)


def plugged_names(there: Sequence[str]) -> set[str]:
    """The devices of claims among the ids that QEMU has."""
    return {name.rpartition(".f")[0] for name in there if is_of_claim(name)}


def is_of_claim(name: str) -> bool:
    """Whether an id in QEMU is that of a function of a claim's device."""
    return name.startswith("claim-") and ".f" in name


SETTLE_SECONDS = 2.0
"""A guest gives a device all of its addresses within milliseconds: one that has given some, and after this time not
all, has no room for the others."""
ADDRESS_ANSWER_SECONDS = 5.0
"""The least that QEMU has for one answer."""
_ADDRESS_POLL_SECONDS = 0.1
_CLAIM_AT_START = (
    "start the machine with the claim in spec.claims, so that its firmware reserves windows for the device"
)
_ROM = 6
"""The number that QEMU gives a device's ROM. Guests leave it without an address until they read it."""
_HOST_BRIDGE = "/machine/q35"
_WORD = re.compile(r"0x([0-9a-f]{8})\b")
_MOST_ADDRESS = 1 << 52


@dataclass(frozen=True, slots=True)
class AddressWindow:
    """Addresses that a port hands on to what is behind it, both included; none if ``last`` is before ``first``."""

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
class GuestFunction:
    """A function of a device as the guest has set it up so far."""

    id: str
    bars: tuple[Bar, ...]
    prefetchable: AddressWindow = AddressWindow()
    memory: AddressWindow = AddressWindow()
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

    def window(self, bar: Bar) -> AddressWindow:
        return self.prefetchable if bar.prefetchable else self.memory


def check_runs(monitor: Monitor, machine: str, deadline: Deadline) -> None:
    """Raises Denied (``GuestNotReady``, retryable) if no guest runs that could give a device addresses."""
    if (status := run_state(monitor, deadline)) != "running":
        raise Denied(
            "GuestNotReady",
            f"the CPUs of machine {machine} do not run (QEMU reports {status!r:.50}), so its guest cannot accept a "
            "device; let them run, then attach",
        )


def await_addresses(
    monitor: Monitor, machine: str, devices: Mapping[str, str], deadline: Deadline, at_start: str = _CLAIM_AT_START
) -> None:
    """Wait until each BAR of functions has an address. ``devices``: what people call each of them, by QEMU's id;
    ``at_start``: for people, how the machine can have such a device from its start, so that its firmware makes windows
    for it.

    QEMU answers nothing while the host's kernel maps a BAR. For a large one that can take longer than one answer may:
    until the deadline it is asked again.

    Raises Denied: ``NoPciWindow`` if the guest has no room for one; ``GuestNotReady`` (retryable) if it has given none
    until the deadline, as a guest that still boots, or that does not support PCI hot-plug. Raises NodeError.
    """
    if not devices:
        return
    began, since, reach = time.monotonic(), None, None
    while True:
        look_began = time.monotonic()
        due = deadline.at_least(ADDRESS_ANSWER_SECONDS)  # at the deadline, QEMU is still asked how far the guest came
        try:
            reach = _first_unreachable_address(monitor, due) if reach is None else reach
            all_functions = guest_functions(monitor, machine, list(devices), due, reach)
        except Unknown as error:
            if error.code != "MonitorSilent" or deadline.passed:
                raise
            since = None
            time.sleep(_ADDRESS_POLL_SECONDS)
            continue
        lacking = [function for function in all_functions if not function.is_placed]
        if not lacking:
            return
        now = time.monotonic()
        is_partial = any(function.is_enumerated for function in all_functions)
        # A guest whose QEMU was silent could not go on meanwhile.
        since = (since or now) if is_partial and now - look_began < SETTLE_SECONDS else None
        if (since is not None and now - since > SETTLE_SECONDS) or deadline.passed:
            raise _problem(machine, lacking, devices, is_partial, now - began, at_start)
        time.sleep(min(_ADDRESS_POLL_SECONDS, max(0.0, deadline.seconds)))


def have_addresses(monitor: Monitor, machine: str, ids: Sequence[str], deadline: Deadline) -> bool:
    """Whether each BAR of functions, by QEMU's ids, has an address now. Raises NodeError."""
    return not ids or all(
        function.is_placed
        for function in guest_functions(monitor, machine, ids, deadline, _first_unreachable_address(monitor, deadline))
    )


def _problem(
    machine: str,
    lacking: Sequence[GuestFunction],
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
            f"machine {machine}: {names} got no addresses within {seconds:.0f} s: its firmware or system is still "
            "starting, or does not support PCI hot-plug; try again when its system is up",
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


def _first_unreachable_address(monitor: Monitor, deadline: Deadline) -> int:
    """The first address that the machine's CPUs cannot reach. Firmware does not mind; the kernel takes it for none."""
    try:
        cpu = monitor.execute("query-cpus-fast", deadline=deadline)[0]["qom-path"]
        bits = qom_get(monitor, cpu, "phys-bits", deadline)
        return min(_MOST_ADDRESS, 1 << int(bits)) if bits else _MOST_ADDRESS
    except (QmpRefused, LookupError, TypeError, ValueError):
        return _MOST_ADDRESS


def guest_functions(
    monitor: Monitor, machine: str, ids: Sequence[str], deadline: Deadline, reach: int = _MOST_ADDRESS
) -> list[GuestFunction]:
    """How far the guest is with them; addresses from ``reach`` on are none. Raises NodeError."""
    wanted = set(ids)
    with malformed_as_failed(machine):
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
        return result + [GuestFunction(name, (), is_shown=False) for name in ids if name not in there]


def _devices(
    devices: Sequence[Mapping[str, Any]], bridge: Mapping[str, Any] | None
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any] | None]]:
    """All of them, each with what query-pci says of the bridge that it is behind."""
    for device in devices:
        yield device, bridge
        behind = device.get("pci_bridge") or {}
        yield from _devices(behind.get("devices") or (), behind.get("bus"))


def _function(device: Mapping[str, Any], bridge: Mapping[str, Any] | None, reach: int) -> GuestFunction:
    bars = []
    for region in device.get("regions", ()):
        if region["type"] != "memory" or region["bar"] == _ROM or int(region["size"]) <= 0:
            continue
        address, size = int(region["address"]), int(region["size"])
        wide = bool(region.get("prefetch")) and bool(region.get("mem_type_64"))
        is_there = address > 0 and address + size <= reach
        bars.append(Bar(int(region["bar"]), size, wide, address if is_there else None))
    prefetchable, memory = (_window((bridge or {}).get(name)) for name in ("prefetchable_range", "memory_range"))
    return GuestFunction(str(device["qdev_id"]), tuple(bars), prefetchable, memory)


def _window(range_: Mapping[str, Any] | None) -> AddressWindow:
    return AddressWindow() if range_ is None else AddressWindow(int(range_["base"]), int(range_["limit"]))


def _ecam(monitor: Monitor, deadline: Deadline) -> int:
    """Where configuration space lies in the machine's memory; 0 if it does not, or if that is unknown."""
    try:
        where = int(qom_get(monitor, _HOST_BRIDGE, "MCFG", deadline))
    except QmpRefused:  # a board of another kind
        return 0
    return where if 0 < where < _MOST_ADDRESS else 0


def _with_registers(
    monitor: Monitor, function: GuestFunction, device: Mapping[str, Any], ecam: int, deadline: Deadline, reach: int
) -> GuestFunction:
    """With the addresses that its registers hold, as far as they lie in the windows of its port: others are what a
    kernel writes to learn the size of a BAR."""
    if not ecam:
        return function
    place = ecam + (int(device["bus"]) << 20) + (int(device["slot"]) << 15) + (int(device["function"]) << 12) + 0x10
    try:
        answer = monitor.execute("human-monitor-command", {"command-line": f"xp /6wx {place:#x}"}, deadline=deadline)
    except QmpRefused:
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
    return GuestFunction(function.id, tuple(bars), function.prefetchable, function.memory)
