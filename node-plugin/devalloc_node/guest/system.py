"""The one boundary to the guest's kernel: files of /proc and /sys below a root, which may be a recorded tree."""

from __future__ import annotations

import os

_MOST_BYTES = 1 << 20


class GuestSystem:
    """Paths are relative to the root and fixed by the code; what is put into them is a number or was checked."""

    def __init__(self, root: str = "/") -> None:
        self._root = root

    def path(self, name: str) -> str:
        """How messages for people call it."""
        return os.path.join(self._root, name)

    def read(self, name: str) -> str:
        """All of a file, at most a mebibyte. Raises OSError."""
        descriptor = os.open(self.path(name), os.O_RDONLY | os.O_CLOEXEC)
        try:
            parts = []
            size = 0
            while size < _MOST_BYTES and (part := os.read(descriptor, 1 << 16)):
                parts.append(part)
                size += len(part)
        finally:
            os.close(descriptor)
        return b"".join(parts).decode("utf-8", "replace")

    def write(self, name: str, value: str) -> None:
        """One write of a value to a file that is there. Raises OSError, with what the kernel says to it."""
        descriptor = os.open(self.path(name), os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, value.encode())
        finally:
            os.close(descriptor)

    def names(self, folder: str) -> list[str]:
        """What is in a folder. Raises OSError."""
        return os.listdir(self.path(folder))

    def has(self, name: str) -> bool:
        return os.path.exists(self.path(name))
