"""What a warm setup is, and what an administrator says of the pool.

What setups, and all that is named after them, may be called.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from devalloc_machines.qemu.cpu_pinning import CpuPinning
from devalloc_machines.qemu.spec import TAP
from devalloc_machines.warm.addresses import derived_mac
from devalloc_node.errors import Denied
from devalloc_node.model.grant import shown
from devalloc_node.model.network_address import NetworkAddress


class NotEnoughSetups(Denied):
    """There is not enough now, and there may be soon: the same request may succeed later. Nothing was changed."""

    def __init__(self, short: str, message: str) -> None:
        """``short``: what there is not enough of, such as ``setups`` or ``cpus``."""
        super().__init__("TryAgain", message)
        self.short = short


class SetupNotTaken(Denied):
    """A setup was to be given back that has no owner: it never existed, or was given back already."""

    def __init__(self, setup: str) -> None:
        super().__init__(
            "SetupNotTaken",
            f"setup {shown(setup)} is not taken: it was given back already, or this node has no setup with that id",
        )


MAX_IDENTIFIER = 76
"""Characters, as containerd has it: names of namespaces, folders and files follow from it, with room to spare."""
_FORM = re.compile(r"[A-Za-z0-9]+([._-][A-Za-z0-9]+)*")
_RANDOM_BYTES = 10


def is_identifier(text: str) -> bool:
    """Runs of letters and digits, joined by single dots, dashes or underscores: never a path, never two names."""
    return len(text) <= MAX_IDENTIFIER and _FORM.fullmatch(text) is not None


def check_identifier(what: str, text: str) -> None:
    """Raises Denied ``IdentifierInvalid``. ``what`` it is the name of, for the message."""
    if not is_identifier(text):
        raise Denied(
            "IdentifierInvalid",
            f"the {what} must be letters and digits, with single dots, dashes or underscores between them, at most "
            f"{MAX_IDENTIFIER} characters, not {shown(text)}",
        )


def new_identifier(prefix: str) -> str:
    """One that was never used and never will be: 80 random bits after the prefix."""
    return f"{prefix}-{secrets.token_hex(_RANDOM_BYTES)}"


Inode = tuple[int, int]
"""Of a file, whatever its name: device and number. It tells namespaces apart."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Where a machine can be put at once. Used once: who comes next gets another, with another id."""

    id: str
    namespace: Path
    """The file that keeps its network namespace, as ``ip netns`` has them: ``nsenter --net=FILE`` goes there."""
    folder: Path
    """Of its user alone (0700), empty: for sockets, logs and the like of the machine."""
    inode: Inode | None = None
    """Of the namespace; None until it is made."""
    user: int | None = None
    """Whose the folder, the TAP interface and the machine are, and no other setup's; None: the plugin's own."""
    qmp: Path | None = None
    """The socket of the monitor of the machine that waits there; None if none does."""
    network: NetworkAddress | None = None
    """Who its guest is in the network of setups; None: there is none, or the address is not chosen yet."""

    @property
    def tap(self) -> str:
        """The TAP interface inside the namespace: up, persistent, attached to the network of setups if there is one."""
        return TAP

    @property
    def mac(self) -> str:
        """The address of the guest's side of the TAP."""
        return self.own_mac if self.network is None else self.network.mac

    @property
    def own_mac(self) -> str:
        """One that no other setup of any host has: locally administered."""
        return derived_mac(self.id)


class SetupPart:
    """One part of setups, which is made and removed alone. Stateless, safe for threads."""

    __slots__ = ()
    name: str
    """Stable: it is in records."""

    def make(self, setup: Setup) -> Setup:
        """Make it; the setup with what is known of it now. Raises OSError, FileExistsError if something has its
        place already, which then has another owner; NodeError."""
        raise NotImplementedError

    def remove(self, setup: Setup) -> None:
        """Remove it from whatever a crash left of it; do nothing if it is gone. Raises OSError, which is the one of
        ``network`` for foreign names if something else is in its place."""
        raise NotImplementedError

    def is_whole(self, setup: Setup) -> bool:
        """Whether it is there as it was made."""
        return self.lives(setup)

    def lives(self, setup: Setup) -> bool:
        """The same, as far as can be told in microseconds."""
        return True  # who takes it away has entered the namespace


@dataclass(frozen=True, slots=True)
class TakenSetup:
    """Who has a setup."""

    setup: Setup
    owner: str
    since_ms: int
    """Since 1970 UTC."""
    request: str = ""
    """What he called the taking."""
    pin: CpuPinning | None = None
    """Where his vCPUs are to run; None if he has not said how many he has."""


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """How the pool is."""

    target: int
    most: int
    ready: int
    making: int
    removing: int
    taken: Sequence[TakenSetup]
    """Those taken longest first."""
    made: int
    """Since this plugin runs."""
    failures: int
    """Setups that could not be made or removed, since this plugin runs."""
    problem: str
    """The last of these, unless a setup was made since; else empty."""

    @property
    def total(self) -> int:
        return self.ready + self.making + self.removing + len(self.taken)
