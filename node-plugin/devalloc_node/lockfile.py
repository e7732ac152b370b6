"""Files that are only there to be locked, and go with their last holder."""

from __future__ import annotations

import os
from pathlib import Path


def is_at(descriptor: int, path: Path) -> bool:
    """Whether a file that was just locked is still the one of that name: its last holder removed it while it was
    locked, and then the lock is worth nothing. Whoever sees that opens the name anew."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    mine = os.fstat(descriptor)
    return (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino)
