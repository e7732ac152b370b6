"""Which nodes have a plugin that runs on an embedded store: all processes of a store are on one host, and the kernel
knows which of them live, by the locks that they hold."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Literal

from devalloc.file_lock import FileLock


def is_answered(store: Path) -> bool:
    """Whether a process runs the controller's loops on a store. True if that cannot be told."""
    try:
        with FileLock.existing(store.with_name(f"{store.name}.lock")) as lock:
            return lock.is_locked_elsewhere()
    except FileNotFoundError:
        return False
    except OSError:
        return True


def node_lock_path(store: Path, node_name: str, role: Literal["first", "publish"]) -> Path:
    """A lock file of a node: the plugin holds ``first`` as long as it runs, and a publisher ``publish``."""
    name = hashlib.sha256(node_name.encode()).hexdigest()[:12]
    return store.with_name(f"{store.name}.{name}.{role}.lock")


def serving_process(store: Path, node_name: str) -> str:
    """The process that runs the plugin of a node, for people; empty if none does, or if that cannot be told."""
    with suppress(OSError), FileLock.existing(node_lock_path(store, node_name, "first")) as lock:
        return lock.holder() if lock.is_locked_elsewhere() else ""
    return ""


def lacks_plugin(store: Path, node_name: str) -> bool:
    """Whether no plugin of this node runs on the store now, nor perhaps ever did. False if that cannot be told."""
    return not node_lock_path(store, node_name, "first").exists() or has_lost_plugin(store, node_name)


def has_lost_plugin(store: Path, node_name: str) -> bool:
    """Whether a plugin of this node has run on the store, and none does now. False if that cannot be told."""
    with suppress(OSError), FileLock.existing(node_lock_path(store, node_name, "first")) as lock:
        return not lock.is_locked_elsewhere()
    return False
