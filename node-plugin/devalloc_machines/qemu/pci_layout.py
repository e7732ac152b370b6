"""Where the PCI devices of a machine lie when it starts: places on the root bus, root ports, buses of NUMA nodes.

A guest with several NUMA nodes has an expander bus (``pxb-pcie``) for each, so that a passed-through device is near the
memory and CPUs that it is near on the host. Its root ports come in addition to those on the root bus of q35: which
node the next device belongs to is not known, and devices of no node, or of another one, go where they always went.

The layout follows from the spec and ``ports_per_node`` alone. That number is in the machine's record, because a
machine that an earlier version started has no such buses until it starts again; and of one that runs, QEMU shows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from devalloc_machines.qemu.spec import MachineSpec
from devalloc_node.errors import Denied

_FIRST_DEVICE, _LAST_DEVICE = 1, 30
"""Device numbers on the root bus that are free: 0 is the host bridge, 31 the chipset."""
_FUNCTIONS = 8
_DEVICES_BELOW = 32
"""Device numbers on the bus of a NUMA node."""
_BUSES = 256
"""Bus numbers of a machine. A root bus has one, and so has each port."""
_SPARE = 2
"""Bus numbers of each root bus that no port has: its own, and one that is left."""


def port_id(number: int) -> str:
    """The id of the root port ``number`` on the root bus, counted from 0; its bus has the same name."""
    return f"port{number}"


def expander_id(node: int) -> str:
    """The id of the expander bus of a guest node; the bus has the same name."""
    return f"node{node}"


@dataclass(frozen=True, slots=True)
class PortPlace:
    """A root port as a machine starts with it."""

    id: str
    node: int | None
    """The guest node on whose expander bus it is; None: on the root bus of q35."""
    number: int
    """Among the ports of that bus, from 0."""

    @property
    def bus(self) -> str:
        return "pcie.0" if self.node is None else expander_id(self.node)

    @property
    def window_order(self) -> tuple[int, bool, int]:
        """Which port gets a window before others, if not all can have one: those of all buses in turn, and ports of
        nodes first. The least is the first."""
        return self.number, self.node is None, self.node or 0


def ports_per_node(spec: MachineSpec) -> int:
    """How many root ports are on the expander bus of each guest node: as many as the machine has PCI slots, or as there
    are bus numbers for. 0: its guest has one node, or so many that none has room for a port, and no such buses."""
    nodes = len(spec.numa_cells)
    return max(0, min(spec.pci_slots, _bus_numbers(spec, nodes) - _SPARE)) if nodes else 0


def _bus_numbers(spec: MachineSpec, nodes: int) -> int:
    """For each expander bus and what is behind it."""
    return (_BUSES - spec.pci_slots - _SPARE) // nodes


def first_bus(spec: MachineSpec, node: int) -> int:
    """The number of the expander bus of a guest node."""
    return spec.pci_slots + _SPARE + node * _bus_numbers(spec, len(spec.numa_cells))


def port_places(spec: MachineSpec, node_ports: int) -> tuple[PortPlace, ...]:
    """All root ports: those on the root bus, then those of each guest node. ``node_ports``: ``ports_per_node`` by which
    it was, or is, started."""
    own = [PortPlace(port_id(number), None, number) for number in range(spec.pci_slots)]
    return (
        *own,
        *(
            PortPlace(f"{expander_id(node)}-port{number}", node, number)
            for node in range(len(spec.numa_cells) if node_ports else 0)
            for number in range(node_ports)
        ),
    )


def function_below(number: int, ports: int) -> dict[str, object]:
    """``addr`` and perhaps ``multifunction`` of a port on an expander bus of so many."""
    if ports <= _DEVICES_BELOW:
        return {"addr": f"{number:#04x}"}
    device, function = divmod(number, _FUNCTIONS)
    return _properties(f"{device:#04x}.{function}", function == 0 and number + 1 < ports)


class RootBus:
    """Places on the root bus, from the front: first single devices, then ports and expander buses, eight to a device.

    Single devices have a device number each, as guests name network cards by it. Only if there are not enough numbers
    do eight share one, as its functions.
    """

    def __init__(self, spec: MachineSpec, singles: int, node_ports: int) -> None:
        """``singles``: how many devices are no ports or expander buses. Raises Denied (``MachineInvalid``)."""
        nodes = len(spec.numa_cells) if node_ports else 0
        behind = _in_eights(spec.pci_slots) + _in_eights(nodes)
        room = _LAST_DEVICE - _FIRST_DEVICE + 1
        self._share = singles + behind > room
        if _in_eights(singles) + behind > room:
            raise Denied(
                "MachineInvalid",
                f"machine {spec.key} has {singles} disks, network cards and memory devices, {spec.pci_slots} PCI slots "
                f"and {nodes} NUMA nodes: that is {_in_eights(singles) + behind} devices of eight functions on its "
                f"root bus, which has room for {room}",
            )
        self._singles = _functions(_FIRST_DEVICE, singles) if self._share else self._devices(singles)
        first = _FIRST_DEVICE + (_in_eights(singles) if self._share else singles)
        self._ports = _functions(first, spec.pci_slots)
        self._expanders = _functions(first + _in_eights(spec.pci_slots), nodes)

    def single(self) -> dict[str, object]:
        """``addr`` and perhaps ``multifunction`` of the next single device."""
        return _properties(*next(self._singles))

    def port(self) -> dict[str, object]:
        """Of the next root port."""
        return _properties(*next(self._ports))

    def expander(self) -> dict[str, object]:
        """Of the next expander bus."""
        return _properties(*next(self._expanders))

    @staticmethod
    def _devices(count: int) -> Iterator[tuple[str, bool]]:
        return ((f"{_FIRST_DEVICE + number:#04x}", False) for number in range(count))


def _in_eights(count: int) -> int:
    return -(-count // _FUNCTIONS)


def _functions(first: int, count: int) -> Iterator[tuple[str, bool]]:
    """Functions of devices from the number ``first`` on, with whether each is the first of several."""
    for number in range(count):
        device, function = divmod(number, _FUNCTIONS)
        yield f"{first + device:#04x}.{function}", function == 0 and number + 1 < count


def _properties(addr: str, is_first_of_several: bool) -> dict[str, object]:
    return {"addr": addr, **({"multifunction": True} if is_first_of_several else {})}
