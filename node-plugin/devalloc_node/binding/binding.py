"""What every binding is: a way to make a device ready, told as steps, and a way to look whether it still is."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from devalloc.api.decode import decode
from devalloc.api.device_class import VfConfig, VfioConfig
from devalloc.device_kinds import DEFAULT_ALLOWED, allowable, check_names
from devalloc.inventory.config import DevicePolicy
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied
from devalloc_node.model.grant import Configs, GrantedDevice
from devalloc_node.model.step import PreparedDevice, Step


@dataclass(frozen=True, slots=True)
class BindingConfig(DevicePolicy):
    """Settings of the bindings; the defaults touch nothing that the host might miss."""

    node_name: str
    """The name that this node's pools begin with."""
    allowed: frozenset[str] = frozenset(DEFAULT_ALLOWED)
    """What may be taken from the host, of ``allowable``; for anything else nothing is written (T4)."""

    def __post_init__(self) -> None:
        DevicePolicy.__post_init__(self)
        check_names(self.allowed, allowable(self.device_kinds))


@dataclass(frozen=True, slots=True)
class HealthState:
    """How a device is, as far as the host can tell."""

    state: Literal["healthy", "unhealthy", "unknown"]
    message: str = ""
    """Why, if it is not healthy."""
    code: str = ""
    """If it is unhealthy, the code with which preparing it again is refused."""


Config = TypeVar("Config", VfConfig, VfioConfig)
Steps = Generator[Step, None, PreparedDevice]
"""Yields each step before it is done and is resumed when it is; returns what the device is then. Reading the host
between steps sees their effect. Raises NodeError (by itself, or thrown in, if a step failed)."""


def configs_of(configs: Configs, kind: type[Config]) -> Iterator[Config]:
    """The configuration objects of a kind. Raises Denied ``ConfigInvalid`` at one that is not valid."""
    for content in configs:
        if content.get("kind") == kind.__name__:
            decoded = decode(dict(content))
            if not isinstance(decoded.object, kind):
                problems = "; ".join(f"{problem.path}: {problem.message}" for problem in decoded.problems[:3])
                raise Denied("ConfigInvalid", f"invalid {kind.__name__}: {problems}")
            yield decoded.object


class Binding(Protocol):
    """One way of making devices ready. Unpreparing is undoing the steps, so there is no method for it."""

    @property
    def name(self) -> str:
        """``vfio``, ``sriov``, ``mdev``, ``vgpu`` or ``none``."""

    @property
    def shares(self) -> bool:
        """Whether a share of a device (S10) can be prepared. If not, the engine refuses it: ``ShareUnsupported``."""

    def keys(self, granted: GrantedDevice, owner: str, held: Collection[str]) -> tuple[str, ...]:
        """What the device will hold to itself, so that no other claim can: ``pci/0000:41:00.0`` for each function that
        goes away with it (also of a VF that does not exist yet), ``mdev/<uuid>``; nothing for admin access.

        ``owner``: the UID of the claim; the same claim gets the same UUIDs again. ``held``: keys that other claims
        have; a device that may be backed by any of several things gets one that is not among them. Reads only.

        Raises Denied if the device cannot be had at all: ``DeviceUnknown``, ``DeviceGone``, ``DeviceExhausted`` (all
        that could back it are held).
        """

    def prepare(self, granted: GrantedDevice, keys: Collection[str], deadline: Deadline) -> Steps:
        """Make a device ready that no other claim holds. ``keys``: what ``keys`` answered, as the journal has it now.
        Refuses, before the first step, what must not be touched: reserved or busy functions, groups that cannot be
        taken whole, kinds that the admin does not allow (T4, T5)."""

    def observe(self, device: PreparedDevice) -> HealthState:
        """Whether a prepared device is still there, bound as it was left, and not faulty. Reads only."""
