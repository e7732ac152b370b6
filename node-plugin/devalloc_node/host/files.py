"""The plugin's own files (CDI specs, metadata): written whole or not at all, and only below listed folders."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_NAME = 255
_TRIES = 100
"""How often a file may lose its folder to a process that removes another file."""


@dataclass(frozen=True, slots=True)
class Files:
    """Files below ``folders`` (absolute paths). No component below a listed folder may be a link."""

    folders: tuple[str, ...]

    def put(self, path: str, content: bytes, mode: int = 0o644) -> None:
        """Write a file whole: beside it, synced, renamed over it. Folders between are made.

        A reader sees the old content or the new, and after a power cut too. Raises OSError; PermissionError for a path
        outside the listed folders.
        """
        listed, names = self._split(path)
        for left in reversed(range(_TRIES)):
            try:
                return _write_whole(listed, names, content, mode)
            except FileNotFoundError:  # `remove` took a folder that was empty just then
                if not left:
                    raise

    def remove(self, path: str) -> None:
        """Remove a file that ``put`` wrote or began to write, and the folders between that are empty then; it may be
        gone already."""
        listed, names = self._split(path)
        for depth in range(len(names), 0, -1):
            with suppress(FileNotFoundError):
                folder = _open_folder(listed, names[: depth - 1], make=False)
                try:
                    if depth == len(names):
                        with suppress(FileNotFoundError):  # what a writer that was killed left
                            os.unlink(_temporary_name(names[-1]), dir_fd=folder)
                        os.unlink(names[-1], dir_fd=folder)
                    else:
                        os.rmdir(names[depth - 1], dir_fd=folder)
                    os.fsync(folder)
                except OSError as error:
                    if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                        return
                    raise
                finally:
                    os.close(folder)

    def _split(self, path: str) -> tuple[str, list[str]]:
        """The listed folder that holds the path, and the names from there."""
        for listed in self.folders:
            start = listed.rstrip("/") + "/"
            names = path.removeprefix(start).split("/") if path.startswith(start) else []
            if names and all(map(is_name, names)):
                return listed, names
        raise PermissionError(errno.EPERM, "is not below a folder that the plugin may write to", path)


def _write_whole(listed: str, names: Sequence[str], content: bytes, mode: int) -> None:
    folder = _open_folder(listed, names[:-1], make=True)
    try:
        temporary = _temporary_name(names[-1])
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)
        try:
            _write_file(folder, temporary, content, mode)
            os.rename(temporary, names[-1], src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            raise
        os.fsync(folder)
    finally:
        os.close(folder)


def _temporary_name(name: str) -> str:
    """What a file is called while it is written; the same each time, for one writer has it at a time."""
    stem = os.fsencode(name)[: _MAX_NAME - len(".new.")]
    return f".{os.fsdecode(stem)}.new"


def is_name(name: str) -> bool:
    """True for the name of one file, which leads nowhere else."""
    return 0 < len(os.fsencode(name)) <= _MAX_NAME and name not in (".", "..") and "/" not in name and "\0" not in name


def _open_folder(listed: str, names: Sequence[str], *, make: bool) -> int:
    """A descriptor of a folder. The listed folder itself may be reached by links: the admin named it."""
    if make:
        os.makedirs(listed, mode=0o755, exist_ok=True)
    folder = os.open(listed, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in names:
        try:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=folder)
            inner = os.open(name, _FOLDER, dir_fd=folder)
        finally:
            os.close(folder)
        folder = inner
    return folder


def _write_file(folder: int, name: str, content: bytes, mode: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, 0o600, dir_fd=folder), "wb") as file:
        file.write(content)
        file.flush()
        os.fchmod(file.fileno(), stat.S_IMODE(mode))
        os.fsync(file.fileno())
