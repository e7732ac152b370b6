"""A machine that is scaled: its identity, its bounds and the address of its guest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from devalloc.scaling.bounds import ScalingBounds
from devalloc.scaling.config import ScalingConfig


@dataclass(frozen=True, slots=True)
class ScaledMachine:
    """A machine that is scaled."""

    key: str
    """``namespace/name``"""
    uid: str
    """Of its object; empty where it has none."""
    run: str
    """Which run of it: the next one is scaled from the start."""
    bounds: ScalingBounds
    config: ScalingConfig
    address: str
    """Of its guest."""
    monitor_port: int
    metrics_port: int
    lfc_port: int = 9499
    protocol: Literal["monitor", "informant"] = "monitor"
    """What is spoken at the monitor's port."""
    since: str = ""
    """When its object was made, as API servers write it: the oldest one has an address that several name."""

    @property
    def identity(self) -> str:
        """What cannot change while it is scaled: its run, and where its guest is."""
        ports = f"{self.monitor_port} {self.metrics_port} {self.lfc_port}"
        return f"{self.uid} {self.run} {self.address} {self.protocol} {ports}"
