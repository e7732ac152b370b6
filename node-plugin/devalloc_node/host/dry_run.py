"""A host on which nothing is changed: every change is reported and refused (T17)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from devalloc.inventory.sysfs import Tree
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied
from devalloc_node.host.boundary import Host, VfSettings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DryRun:
    """Reads go to ``host``; changes go to ``tell``, one sentence each, and are then refused: Denied ``DryRun``."""

    host: Host
    tell: Callable[[str], None] = log.warning

    def tree(self) -> Tree:
        return self.host.tree()

    def write(self, path: str, text: str, deadline: Deadline) -> None:
        self._refuse(f"would write {text.strip()!r} to /sys/{path}")

    def unanswered(self, device: str) -> bool:
        return self.host.unanswered(device)

    def vf_settings(self, interface: str, index: int) -> VfSettings:
        return self.host.vf_settings(interface, index)

    def set_vf(self, interface: str, index: int, settings: VfSettings) -> None:
        wanted = ", ".join(f"{name}={value}" for name, value in sorted(settings.items()))
        self._refuse(f"would set {wanted} of VF {index} of {interface}")

    def own(self, node: str, uid: int, gid: int) -> None:
        self._refuse(f"would give {node} to user {uid}, group {gid}")

    def put_file(self, path: str, content: bytes, mode: int = 0o644) -> None:
        self._refuse(f"would write {len(content)} bytes to {path}")

    def remove_file(self, path: str) -> None:
        self._refuse(f"would remove {path}")

    def _refuse(self, what: str) -> NoReturn:
        self.tell(what)
        raise Denied("DryRun", f"dry run: nothing was changed: {what}")
