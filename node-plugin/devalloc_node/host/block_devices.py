"""Whether the host itself uses a disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def is_used_by_host(node: Path) -> bool:
    """Whether the kernel keeps a block device or a part of it for itself, also where no list of mounts tells it: for a
    file system, swap, LVM, md, ZFS. Raises OSError where it cannot be told."""
    try:
        # Nothing is read: exclusive opening is how the kernel answers who has it.
        os.close(os.open(node, os.O_RDONLY | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC))
    except OSError as error:
        if error.errno == errno.EBUSY:
            return True
        raise
    return False
