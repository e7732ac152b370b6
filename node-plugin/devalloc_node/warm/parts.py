"""The parts of a setup, each made and removed alone. One call is one change of the host, or none."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from devalloc_node.warm import network
from devalloc_node.warm.paused_machine import MachinePart, check_template
from devalloc_node.warm.setup import Setup, WarmConfig


class SetupPart(Protocol):
    """Stateless, safe for threads."""

    @property
    def name(self) -> str:
        """Stable: it is in records."""

    def make(self, setup: Setup) -> Setup:
        """Make it; the setup with what is known of it now. Raises OSError, FileExistsError where something has its
        place already, which then has another owner; NodeError."""

    def remove(self, setup: Setup) -> None:
        """Remove it from whatever a crash left of it; do nothing if it is gone. Raises OSError, or ForeignNameError if
        something else is in its place."""

    def is_whole(self, setup: Setup) -> bool:
        """Whether it is there as it was made."""

    def lives(self, setup: Setup) -> bool:
        """The same, as far as can be told in microseconds."""


@dataclass(frozen=True, slots=True)
class FolderPart:
    name: str = "folder"

    def make(self, setup: Setup) -> Setup:
        setup.folder.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
        os.mkdir(setup.folder, 0o700)
        if setup.user is not None:
            os.chown(setup.folder, setup.user, setup.user, follow_symlinks=False)
        return setup

    def remove(self, setup: Setup) -> None:
        """With all that its owner has put there."""
        with suppress(FileNotFoundError):
            if not stat.S_ISDIR(os.lstat(setup.folder).st_mode):
                raise network.ForeignNameError(errno.EPERM, "is not a folder", str(setup.folder))
            shutil.rmtree(setup.folder)  # follows no link, also where its owner makes some meanwhile

    def is_whole(self, setup: Setup) -> bool:
        """A folder that is empty, because the setup had no owner yet."""
        try:
            return stat.S_IMODE(os.lstat(setup.folder).st_mode) == 0o700 and not os.listdir(setup.folder)
        except OSError:
            return False

    def lives(self, setup: Setup) -> bool:
        return setup.folder.is_dir()


@dataclass(frozen=True, slots=True)
class NamespacePart:
    name: str = "namespace"

    def make(self, setup: Setup) -> Setup:
        setup.namespace.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        return replace(setup, inode=network.make_namespace(setup.namespace))

    def remove(self, setup: Setup) -> None:
        network.remove_namespace(setup.namespace, setup.inode)

    def is_whole(self, setup: Setup) -> bool:
        try:
            return network.namespace_inode(setup.namespace) == setup.inode
        except OSError:
            return False

    def lives(self, setup: Setup) -> bool:
        return self.is_whole(setup)


@dataclass(frozen=True, slots=True)
class TapPart:
    name: str = "tap"

    def make(self, setup: Setup) -> Setup:
        network.make_tap(setup.namespace, setup.tap, setup.user)
        return setup

    def remove(self, setup: Setup) -> None:
        """Before the namespace, which a process may hold: then it is gone all the same."""
        try:
            is_own = setup.inode is None or network.namespace_inode(setup.namespace) == setup.inode
        except OSError:  # there is no namespace, and so no TAP
            return
        if is_own:
            network.remove_tap(setup.namespace, setup.tap)

    def is_whole(self, setup: Setup) -> bool:
        try:
            return network.has_tap(setup.namespace, setup.tap)
        except OSError:
            return False

    def lives(self, setup: Setup) -> bool:
        return True  # who takes it away has entered the namespace


def parts_of(config: WarmConfig) -> tuple[SetupPart, ...]:
    """In the order in which they are made; they are removed in the other. Raises Denied ``WarmMachineInvalid``."""
    if config.machine is None:
        return FolderPart(), NamespacePart(), TapPart()
    check_template(config.machine)
    return known_parts(config)


def known_parts(config: WarmConfig) -> tuple[SetupPart, ...]:
    """All that a setup may have by any config, in this order."""
    return FolderPart(), NamespacePart(), TapPart(), MachinePart(config.paused, config.machine)
