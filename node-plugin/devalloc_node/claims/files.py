"""Steps of kind ``file``: a file of the plugin's own, such as a CDI spec. A value is its text; None means no file."""

from __future__ import annotations

import os
from dataclasses import dataclass

from devalloc_node.deadline import Deadline
from devalloc_node.errors import Failed
from devalloc_node.host.boundary import Host
from devalloc_node.step import Value

MAX_BYTES = 2**20
"""Far more than any of them has."""


@dataclass(frozen=True, slots=True)
class FileKind:
    """Writes and removes files below the folders that the host's boundary allows."""

    host: Host

    def read(self, target: str) -> Value:
        try:
            descriptor = os.open(target, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
            with os.fdopen(descriptor, "rb") as file:
                content = file.read(MAX_BYTES + 1)
            return content.decode()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise Failed("FileUnreadable", f"{target} cannot be read: {error}") from error

    def apply(self, target: str, value: Value, deadline: Deadline) -> None:
        if value is None:
            self.host.remove_file(target)
        else:
            self.host.put_file(target, value.encode())
        if self.read(target) != value:
            raise Failed("FileUnreadable", f"{target} does not hold what was just written to it")
