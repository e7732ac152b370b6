"""Where of its host a machine lives that is to have a place of its own, and who gives such places."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from devalloc_node.errors import Denied
from devalloc_node.machine.spec import MachineSpec

TAP = "tap0"
"""What the TAP interface of a home is called. It is the only one in its namespace, so that each home has one of this
name."""


@dataclass(frozen=True, slots=True)
class Home:
    """What a machine finds there."""

    namespace: Path | None = None
    """The file of the network namespace that QEMU lives in and that has the interfaces of its warm cards; None: the
    host's."""
    cpus: tuple[int, ...] = ()
    """CPUs of the host, the only ones that QEMU may run on; none: any."""


HOST = Home()
"""Of machines that have no place of their own."""


class Homes(Protocol):
    """Safe for threads, of which one at a time asks for a machine."""

    def give(self, spec: MachineSpec, run: str) -> Home:
        """A home for one run of a machine; the same again for the same run, and those of its earlier runs are given
        back. Raises Denied (``TryAgain``, retryable), Failed."""

    def take_back(self, key: str) -> None:
        """Take back all that a machine has: it has ended. What cannot be taken back now is later."""

    def check_lent(self, spec: MachineSpec) -> None:
        """Whether a machine that is to be adopted is nobody's who waits for it. Raises Denied (``SetupNotTaken``)."""


class NoHomes:
    """Of a node that has none to give."""

    def give(self, spec: MachineSpec, run: str) -> Home:
        raise Denied(
            "PoolMissing",
            f"machine {spec.key} is to live in a warm setup (backend warm), and this node keeps none; start its plugin "
            "with --warm, or name another node",
        )

    def take_back(self, key: str) -> None:
        pass

    def check_lent(self, spec: MachineSpec) -> None:
        pass
