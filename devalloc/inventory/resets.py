"""Whether the kernel can reset a PCI function between its owners, and how (T7).

A function has a reset of its own (function level, by its bus, by power management, …: the kernel lists the methods in
``reset_method``), or all functions of its card are reset together: GPUs without a function level reset cannot be reset
apart from their audio function. Since Linux 6.13 the bridge above does that, before it VFIO, which has to have all of
them (its *hot reset*).
"""

from __future__ import annotations

from dataclasses import dataclass

from devalloc.inventory.pci import Address, PciFunction, read_pci_function

NO_RESET = "no reset"
"""How the reason of a device begins that has none."""
_SLOT_RESET = "reset_subordinate"
_OF_THE_BUS = frozenset({"bus", "cxl_bus"})
"""Methods that reset all that is on the bus of a function."""


@dataclass(frozen=True, slots=True)
class SlotReset:
    """The bridge above a function that can reset all below it, and what that is."""

    bridge: Address
    below: tuple[Address, ...]

    @property
    def file(self) -> str:
        """The file below ``bus/pci/devices`` that does it."""
        return f"{self.bridge}/{_SLOT_RESET}"


def methods(function: PciFunction) -> tuple[str, ...]:
    """The kernel's methods for the function, in the order in which it tries them: ``("flr", "bus")``. Kernels before
    5.15 do not list them."""
    return tuple((function.folder.text("reset_method") or "").split()) if "reset_method" in function.entries else ()


def has_own_reset(function: PciFunction) -> bool:
    """Whether the function can be reset by itself. A recording does not have the file, which cannot be read.

    The kernel lists a reset of the bus for a function that it discovers first on its bus, and refuses it once there are
    others: so that one counts only where the function is alone.
    """
    if function.physfn is not None:  # never one of its bus, and there may be hundreds
        return not {"reset", "reset_method"}.isdisjoint(function.entries)
    listed = methods(function)
    if listed and all(method in _OF_THE_BUS for method in listed):
        return _is_alone(function)
    return bool(listed) or "reset" in function.entries


def _is_alone(function: PciFunction) -> bool:
    """Whether no other function is on its bus."""
    _, names = _above(function)
    return all(address in (None, function.address) for address in map(Address.parse, names))


def _above(function: PciFunction) -> tuple[Address | None, list[str]]:
    """The bridge above a function, and all names in its folder; no bridge where the function is on a root bus."""
    bridge = Address.parse(function.folder.path.rpartition("/")[0].rpartition("/")[2])
    system = function.folder.tree.sys
    folder = system.folder("bus", "pci", "devices", str(bridge)) if system is not None and bridge is not None else None
    return bridge, folder.names() if folder is not None else []


def slot_reset(function: PciFunction) -> SlotReset | None:
    """The reset of the slot; None where the kernel has none."""
    bridge, names = _above(function)
    if bridge is None or _SLOT_RESET not in names:
        return None
    addresses = (Address.parse(name) for name in names)
    return SlotReset(bridge, tuple(address for address in addresses if address is not None))


def hot_reset(function: PciFunction) -> tuple[Address, ...]:
    """The functions that VFIO can reset together with this one, itself included; none where it cannot.

    That is where nothing but its card is on its bus, and the kernel knows a reset of that bus: it lists it for the
    function that it discovers first, unless that is known not to survive it.
    """
    bridge, names = _above(function)
    if bridge is None or function.physfn is not None:
        return ()
    below = tuple(address for address in map(Address.parse, names) if address is not None)
    if not _is_one_device(function, below):
        return ()
    return below if any("bus" in _methods_of(function, address) for address in below) else ()


def _is_one_device(function: PciFunction, below: tuple[Address, ...]) -> bool:
    """Whether all functions below a bridge go with this one: not those of another slot, nor, beside the GPU of a
    processor, other parts of the processor."""
    system = function.folder.tree.sys
    for address in below:
        place = system.folder("bus", "pci", "devices", str(address)) if system is not None else None
        other = read_pci_function(address, place) if place is not None else None
        if address.card != function.address.card or (other is not None and not function.has_companion(other)):
            return False
    return True


def _methods_of(function: PciFunction, other: Address) -> list[str]:
    """Those of another function on its bus."""
    system = function.folder.tree.sys
    folder = system.folder("bus", "pci", "devices", str(other)) if system is not None else None
    return ((folder.text("reset_method") if folder is not None else None) or "").split()


def reset_problem(function: PciFunction) -> str | None:
    """Why a function cannot be reset, as a sentence; None where it can be, or the tree does not tell (a recording)."""
    if has_own_reset(function) or "remove" not in function.entries:
        return None
    slot = slot_reset(function)
    if slot is not None and _is_one_device(function, slot.below):
        return None
    if hot_reset(function):
        return None
    shared = "" if slot is None else f", and other devices share its bridge {slot.bridge}"
    only = f" but that of its bus ({', '.join(methods(function))}), which others are on" if methods(function) else ""
    return f"the kernel has no reset method for {function.address}{only}{shared}"
