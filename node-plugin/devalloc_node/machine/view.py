"""Machines as other packages see them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from devalloc_node.machine.spec import CPU, EmulatedDevice, MachineSpec, Nic
from devalloc_node.model.grant import ClaimRef
from devalloc_node.model.step import Step


@dataclass(frozen=True, slots=True)
class MachineAmounts:
    """None: not known."""

    cpu_milli: int | None = None
    """Thousandths of a CPU whose time it may use: its vCPUs, or less."""
    vcpus: int | None = None
    memory_bytes: int | None = None

    @property
    def usable(self) -> MachineAmounts:
        """With no more CPU time than its vCPUs can use: a bound that is above that brings nothing."""
        if self.cpu_milli is None or self.vcpus is None:
            return self
        return replace(self, cpu_milli=min(self.cpu_milli, self.vcpus * CPU))


UNKNOWN_AMOUNTS = MachineAmounts()


@dataclass(frozen=True, slots=True)
class MachineView:
    """A machine in care, as it was last seen."""

    key: str
    """``namespace/name``"""
    uid: str
    """Of the VirtualMachine object in the store; empty: it was made through the service."""
    phase: str
    """As in VirtualMachine.status: ``Starting``, ``Running``, ``Stopping``, ``Stopped``, ``Failed``, ``Unknown``."""
    wanted: MachineAmounts = UNKNOWN_AMOUNTS
    permitted: MachineAmounts = UNKNOWN_AMOUNTS
    applied: MachineAmounts = UNKNOWN_AMOUNTS
    """What QEMU was last told."""
    observed: MachineAmounts = UNKNOWN_AMOUNTS
    """What QEMU says there is (T15)."""
    reason: str = ""
    message: str = ""
    pid: int = 0
    id: str = ""
    """Names this run of it."""
    qmp_socket: str = ""
    adopted: bool = False
    started: MachineSpec | None = None
    """What it was started as, where that can be read: amounts change while it runs, the rest with its next start."""
    is_paused: bool = False
    """Its start has not come to its end, as far as is known: its CPUs do not run yet, or, where the plugin was killed
    meanwhile, its guest may still be giving its devices addresses."""
    plain: tuple[EmulatedDevice, ...] = ()
    """What was plugged in beside the devices of claims, as QEMU shows it."""

    @property
    def taps(self) -> tuple[str, ...]:
        """The TAP interfaces that its network cards are on, in the network that it lives in."""
        nics = [*(() if self.started is None else self.started.nics)]
        nics += [each.what for each in self.plain if isinstance(each.what, Nic)]
        return tuple(nic.interface for nic in nics if nic.interface is not None)

    @property
    def runs(self) -> bool:
        """Whether its QEMU may hold devices."""
        return self.phase not in ("Pending", "Stopped", "Failed")


@dataclass(frozen=True, slots=True)
class PluggedDevice:
    """A device of a claim in a machine."""

    machine: str
    ref: ClaimRef
    device: str
    """``pool/device``"""
    id: str
    """QEMU's."""
    host: str
    """What of the host it is: its first PCI address, or its path below /sys."""
    step: Step
