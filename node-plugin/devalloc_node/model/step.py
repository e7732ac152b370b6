"""Steps: reversible changes of the host, one property at a time.

A binding *yields* steps; the engine writes each to the journal (intent), performs it, notes that it is done, and only
then lets the binding go on. Undoing a claim is its steps backwards, each ``apply(before)``. So no binding has an undo
of its own, and what was there before (the original driver, the VF count) is in the journal before it is touched.

What undoing knows of the kinds of steps:

* A step that cannot be undone keeps its record, and the steps of that device before it are not touched: nothing is
  unbound under a machine that would not let go. It is tried again later.
* NodeError with code ``DeviceGone`` from undoing means that there is nothing left to put back: it counts as undone.
* A ``reset`` step (between owners, T7) does nothing when it is done and resets when it is undone. Where that fails
  (code ``ResetFailed``) the claim is rid of the device, which is withheld with the reason and stays as it is, with the
  driver it has, until undoing the step succeeds; then the rest is undone. The same holds for a ``vf-settings`` step
  (Failed): some drivers set no rate while there is no link.
* A ``ContestedKind`` reports if others changed the property meanwhile: that change stays
  as it is and counts as undone.
* ``file`` steps outlive a reboot; all others are undone by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from devalloc_node.model.grant import ClaimRef, NamedDevice

if TYPE_CHECKING:
    from devalloc_node.deadline import Deadline

Attribute = str | int


@dataclass(frozen=True, slots=True)
class PreparedDevice(NamedDevice):
    """One device, bound and ready."""

    requests: tuple[str, ...]
    pool: str
    device: str
    binding: str
    """``vfio``, ``vgpu``, ``mdev``, or ``none`` for admin access."""
    functions: tuple[str, ...] = ()
    """PCI addresses that are passed through together, the main one first: ``("0000:41:00.0", "0000:41:00.1")``."""
    mdev_uuid: str | None = None
    sysfsdev: str | None = None
    """Path below sys of what ``vfio-pci,sysfsdev=`` takes where a host address does not do (mdev, vendor VFIO)."""
    nodes: tuple[str, ...] = ()
    """Device nodes that its user opens: ``/dev/vfio/15``; of the container ``/dev/vfio/vfio`` nothing is said here."""
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    """What the metadata file tells, such as ``resource.kubernetes.io/pciBusID`` and ``mdevUUID``: texts and numbers."""
    admin: bool = False
    share: str | None = None
    identity: Mapping[str, str] = field(default_factory=dict)
    """What it was when it was prepared (``devalloc.api.device_identity``); empty in journals of 0.1.0."""
    rom_file: str | None = None
    """The option ROM that the main function gets in a machine, as its class names it."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A claim that is prepared."""

    ref: ClaimRef
    devices: tuple[PreparedDevice, ...]
    cdi_ids: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """CDI device ids by ``PreparedDevice.key``."""


ROOT_PORT = "rootPort"
"""The attribute of a prepared device that names the root port that it must go into, in a machine that moves."""
NUMA_NODE = "resource.kubernetes.io/numaNode"
"""The attribute with the NUMA node of the host that a device is near."""
MACHINE_ADDRESS = "networkAddress"
"""The attribute of a prepared device with the IP address of the machine that has it, in the network of warm setups."""
ATTACHMENT = "attachment"
"""Kind of the step by which a device of a claim is in a machine."""
Value = Any
"""A JSON value: None, bool, int, str, list or dict."""


@dataclass(frozen=True, slots=True)
class Step:
    """Make one property of the host ``after``, where it is ``before`` now."""

    kind: str
    """A key of the table of step kinds: ``driver``, ``vf-count``, ``vf-settings``, ``mdev``, ``vgpu``, ``file`` …"""
    target: str
    """What the property belongs to: a PCI address, a UUID, a path below an allowed folder."""
    before: Value
    after: Value
    shared: str | None = None
    """None: the step is the claim's own. Else the name of what several claims share (``pf/0000:41:00.0``): done once
    for the first of them, undone after the last. A binding yields it for every claim; who comes second finds it done
    (``before`` equals ``after``) and joins. Its true ``before`` is what the kind reads under the lock of the name."""
    more: bool = field(default=False, compare=False)
    """The next step is known whatever comes of this one, so that both are written down at once: one wait for the disk
    in place of two. A crash may leave either as intended that was never begun; undoing that must change nothing. Of
    steps that are recorded together, shared ones come first, of one name."""
    noted: bool = field(default=False, compare=False)
    """It is so already, and only undoing it changes anything: so it is not performed, and written down with whatever is
    written next, at the latest when the claim is prepared. Until then the device has no owner. Never of a shared
    step."""


@dataclass(frozen=True, slots=True)
class PluggedDevice:
    """A device of a claim in a machine, as a step of kind ATTACHMENT says."""

    machine: str
    """``namespace/name``"""
    ref: ClaimRef
    device: str
    """``pool/device``"""
    name: str
    """Its name in the machine."""
    host: str
    """What of the host it is: its first PCI address, or its path below /sys."""
    step: Step


def plugged_device(step: Step, device: str, ref: ClaimRef) -> PluggedDevice:
    """Read what an attachment step of a claim's device says."""
    key, _, name = step.target.rpartition("/")
    return PluggedDevice(key, ref, device, name, host_device_of(step.after or {}), step)


def host_device_of(value: Mapping[str, Any]) -> str:
    """What of the host an attachment plugs in: its first PCI address, or its path below /sys."""
    return str(next(iter(value.get("functions", ())), value.get("sysfsdev", "")))


class StepKind(Protocol):
    """How one kind of property is read and set. Stateless; safe for threads."""

    def read(self, target: str) -> Value:
        """What it is now. Raises errors.Failed where it cannot be told."""

    def apply(self, target: str, value: Value, deadline: Deadline) -> None:
        """Make it so from *whatever* it is now (a crash may have left it half-way), and read back that it is.

        Nothing is written where it is so already. Raises errors.NodeError; errors.Unknown when it did not end before
        the deadline.
        """


@runtime_checkable
class ContestedKind(StepKind, Protocol):
    """A kind of property that admins and other programs set as well, while a claim relies on it."""

    def taken_over(self, step: Step, *, finished: bool) -> str | None:
        """What others made of it, in words; None if it is as it was before or after the step, or half-way.

        ``finished``: the step is known to be done, so a state between before and after counts as taken over. Raises
        errors.NodeError.
        """


@runtime_checkable
class ForcibleKind(StepKind, Protocol):
    """A kind whose steps can be undone by force (T14)."""

    def force(self, target: str, value: Value, deadline: Deadline) -> None:
        """As ``apply``, whatever it takes: a machine that does not let go of a device is ended."""
