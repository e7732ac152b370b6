"""Lines to the monitors of machines: one each, whoever uses it, and open no longer than that."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from devalloc_node.machine import adopt, users
from devalloc_node.machine.config import MachineConfig
from devalloc_node.machine.monitor import Connect, Monitor, readable
from devalloc_node.machine.records import MachineRecord


class Lines:
    """Safe for threads."""

    def __init__(self, config: MachineConfig, connect: Connect) -> None:
        self._config = config
        self._connect = connect
        self._mutex = threading.Lock()
        self._open: dict[str, tuple[Monitor, int]] = {}
        """By the machine's key, with how many use it."""

    @contextmanager
    def to(self, record: MachineRecord) -> Iterator[Monitor]:
        """The machine's monitor. Inside, answers of another shape than QEMU's are told as such."""
        key = record.spec.key
        with self._mutex:
            monitor, uses = self._open.get(key, (None, 0))
            if monitor is None:
                monitor = self._connect(
                    key,
                    record.spec.adopt or str(self._config.folder(record.spec.id) / "qmp"),
                    command_seconds=self._config.command_seconds,
                    check=adopt.owner_check(key, users.listener(record), record.process),
                )
            self._open[key] = (monitor, uses + 1)
        try:
            with readable(key):
                yield monitor
        finally:
            with self._mutex:
                monitor, uses = self._open.pop(key)
                if uses > 1:
                    self._open[key] = (monitor, uses - 1)
            if uses == 1:
                monitor.close()
