"""The disk of a host: the file system of the folder where machines' disks lie."""

from __future__ import annotations

import os
from pathlib import Path


def file_system_size(folder: Path) -> int:
    """Bytes of the file system that a folder is on, or will be on once it is made: all of them, not the free ones.

    Raises OSError with the folder's name.
    """
    place = folder.absolute()
    while True:
        try:
            status = os.statvfs(place)
        except (FileNotFoundError, NotADirectoryError):
            if place == place.parent:
                raise
            place = place.parent
        else:
            return status.f_blocks * status.f_frsize
