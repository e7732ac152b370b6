"""A prepared claim as its user sees it: the answer of prepare, kept in the journal and identical every time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from devalloc_node.model.grant import ClaimRef

Attribute = str | int


@dataclass(frozen=True, slots=True)
class PreparedDevice:
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

    @property
    def name(self) -> str:
        """``pool/device``: what all shares of it have in common."""
        return f"{self.pool}/{self.device}"

    @property
    def key(self) -> str:
        """``pool/device`` or ``pool/device/share``: which of the claim's devices it is."""
        return self.name if self.share is None else f"{self.name}/{self.share}"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A claim that is prepared."""

    ref: ClaimRef
    devices: tuple[PreparedDevice, ...]
    cdi_ids: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """CDI device ids by ``PreparedDevice.key``."""
