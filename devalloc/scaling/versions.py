"""Versions of the protocols: ranges of them, their names, and what each version has."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Generic, TypeVar


class ProtocolEra(Enum):
    """Which releases of the agents in use are followed where releases differ. The value is how it is written."""

    V0_31 = "v0.31"
    NEWEST = "newest"


class Version(int):
    """A version as it stands on the wire. 0 is none; one beyond the latest has a name too, and is not understood."""

    names: ClassVar[tuple[str, ...]]
    """From version 1 on."""

    def __str__(self) -> str:
        if self == 0:
            return "<invalid: zero>"
        beyond = self - len(self.names)
        return f"<unknown = {self.names[-1]} + {beyond}>" if beyond > 0 else self.names[self - 1]

    @property
    def is_valid(self) -> bool:
        """A peer that names no version sends 0."""
        return self != 0


class PluginVersion(Version):
    """Of the protocol between an agent and the server of permits."""

    names = ("v1.0", "v1.1", "v2.0", "v2.1", "v3.0", "v4.0", "v5.0")

    @property
    def allows_no_metrics(self) -> bool:
        return self >= 2

    @property
    def has_fractional_cpu(self) -> bool:
        return self >= 3

    @property
    def server_sends_unit(self) -> bool:
        """The reply has the compute unit, which the agent is to keep to."""
        return self < 5

    @property
    def agent_sends_unit(self) -> bool:
        """The request has the compute unit."""
        return self >= 6

    @property
    def memory_is_bytes(self) -> bool:
        """Memory is counted in bytes; before, in slots of the machine."""
        return self >= 6

    @property
    def has_extended_metrics(self) -> bool:
        """Metrics have the load of 5 minutes and the memory in use."""
        return self < 7


class MonitorVersion(Version):
    """Of the protocol between an agent and the monitor inside a machine."""

    names = ("v1.0",)


V = TypeVar("V", bound=Version)


@dataclass(frozen=True, slots=True)
class VersionRange(Generic[V]):
    """All versions from ``min`` to ``max``, both included. One that is upside down holds none."""

    min: V
    max: V

    def latest_shared(self, other: VersionRange[V]) -> V | None:
        """The latest that is in both; None where there is none."""
        if self.min > self.max or other.min > other.max:
            return None
        latest = min(self.max, other.max)
        return latest if latest >= max(self.min, other.min) else None

    def __contains__(self, version: int) -> bool:
        return self.min <= version <= self.max

    def __str__(self) -> str:
        return str(self.min) if self.min == self.max else f"{self.min} to {self.max}"


PLUGIN_VERSIONS = VersionRange(PluginVersion(1), PluginVersion(7))
MONITOR_VERSIONS = VersionRange(MonitorVersion(1), MonitorVersion(1))
