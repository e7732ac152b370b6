"""The real host."""

from __future__ import annotations

import errno
import logging
import os
import queue
import stat
import threading
from dataclasses import dataclass, field
from pathlib import Path

from devalloc.inventory.sysfs import Tree
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Failed, Unknown
from devalloc_node.host import netlink
from devalloc_node.host.boundary import VfSettings
from devalloc_node.host.files import Files, is_name

_MAX_WAITING = 64
"""Writes that the kernel may leave unanswered at a time; with more of them something is badly wrong."""
_DEVICES = "/dev/vfio"

log = logging.getLogger(__name__)


@dataclass(slots=True)
class LinuxHost:
    """This machine. Safe for threads."""

    files: Files
    """The folders of the plugin's own files."""
    root: Path = Path("/")
    """Where sys, proc and dev are: elsewhere in a container that has the host's mounted below a folder."""
    _waiting: set[tuple[str, str]] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _tree: Tree | None = None

    def tree(self) -> Tree:
        self._tree = Tree(self.root) if self._tree is None else self._tree.again()
        return self._tree

    def write(self, path: str, text: str, deadline: Deadline) -> None:
        """In a thread of its own: the kernel may block, as ``unbind`` does for as long as a process has the device."""
        place = self._below_sys(path)
        if deadline.passed:
            raise Failed("DeadlineExceeded", f"no time was left to write to /sys/{path}")
        job = (place, text)
        with self._lock:
            if job in self._waiting or len(self._waiting) >= _MAX_WAITING:
                raise Unknown("HostNotAnswering", f"the kernel has not completed an earlier write to /sys/{path} yet")
            self._waiting.add(job)
        answer: queue.SimpleQueue[OSError | None] = queue.SimpleQueue()
        try:
            threading.Thread(target=self._written, args=(job, answer), name=f"write {path}", daemon=True).start()
        except RuntimeError as refused:  # no thread can be had; nothing was written
            with self._lock:
                self._waiting.discard(job)
            raise Failed("HostBusy", f"cannot write to /sys/{path} now: {refused}") from refused
        try:
            error = answer.get(timeout=deadline.seconds)
        except queue.Empty:
            raise Unknown("HostNotAnswering", f"the kernel does not complete a write to /sys/{path}") from None
        if error is not None:
            raise error

    def unanswered(self, device: str) -> bool:
        with self._lock:
            return any(device == text.strip() or device in place.split("/") for place, text in self._waiting)

    def _written(self, job: tuple[str, str], answer: queue.SimpleQueue[OSError | None]) -> None:
        place, text = job
        outcome: OSError | None = None
        try:
            descriptor = os.open(place, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise OSError(errno.EINVAL, "is not a file", place)
                os.write(descriptor, text.encode())
            finally:
                os.close(descriptor)
        except OSError as error:
            outcome = OSError(error.errno, error.strerror, place)
        with self._lock:
            self._waiting.discard(job)
        answer.put(outcome)
        log.debug("wrote %r to %s: %s", text, place, outcome or "done")

    def _below_sys(self, path: str) -> str:
        """The file without links, proven to be below sys."""
        if not all(map(is_name, path.split("/"))):
            raise OSError(errno.EPERM, "is not a path below sys", path)
        sys = os.path.realpath(self.root / "sys")
        place = os.path.realpath(f"{sys}/{path}")
        if not place.startswith(f"{sys}/"):
            raise OSError(errno.EPERM, "leads out of sys", path)
        return place

    def vf_settings(self, interface: str, index: int) -> VfSettings:
        return netlink.vf_settings(interface, index)

    def set_vf(self, interface: str, index: int, settings: VfSettings) -> None:
        netlink.set_vf(interface, index, settings)

    def own(self, node: str, uid: int, gid: int) -> None:
        names = node.removeprefix(f"{_DEVICES}/").split("/")
        if not node.startswith(f"{_DEVICES}/") or len(names) > 2 or not all(map(is_name, names)):
            raise OSError(errno.EPERM, f"is not a device node below {_DEVICES}", node)
        folder = os.open(f"{self.root}{_DEVICES}", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if len(names) == 2:
                inner = os.open(names[0], os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
                os.close(folder)
                folder = inner
            if not stat.S_ISCHR(os.stat(names[-1], dir_fd=folder, follow_symlinks=False).st_mode):
                raise OSError(errno.EPERM, "is not a device node", node)
            os.chown(names[-1], uid, gid, dir_fd=folder, follow_symlinks=False)
        finally:
            os.close(folder)

    def put_file(self, path: str, content: bytes, mode: int = 0o644) -> None:
        self.files.put(path, content, mode)

    def remove_file(self, path: str) -> None:
        self.files.remove(path)
