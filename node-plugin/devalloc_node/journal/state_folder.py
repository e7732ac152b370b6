"""The state folder, and whether its journal is whole. A damaged or unreadable one is put aside.

SQLite reads a log up to the first frame whose checksum is wrong and drops the rest without a word: that is how it
forgets a transaction that a power cut tore. Damage to an older frame looks the same to it, and would make what was
prepared unknown. This module reads the formats (sqlite.org/fileformat2.html#walformat, walformat.html) and tells them
apart. The transactions of our journal are synced one by one (synchronous=FULL), so only the last one can be torn:

* A header that is wrong, with frames behind it, is damage: SQLite syncs the header before it writes a frame.
* Frames with another salt are left from before the last checkpoint, and say nothing.
* Behind the last good commit, a commit frame that is not the last frame of this log ends an older transaction: damage.
* The index of the log (``-shm``), if it outlived the process, counts the frames that were committed. It is written
  after the sync, so a log that does not reach as far is damaged, its last transaction included.

If the index is gone as well, a last transaction that was damaged later cannot be told from a torn one, nor two if
the mark of the commit between them was wiped out, and a log that was cut off or removed not from one that was shorter.
Against that there is only that logs are kept short: each open of a journal begins an empty one.
"""

from __future__ import annotations

import os
import stat
import struct
import sys
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from devalloc.file_lock import FileLock
from devalloc.store.errors import Unavailable, Unusable
from devalloc.store.paths import FILES

_MAGIC = 0x377F0682
"""Of a log with checksums over little-endian words; one more: big-endian."""
_FORMAT = 3007000
_HEADER = 32
_FRAME = 24
_SMALLEST_PAGE = 512
_INDEX = 48
"""Bytes of a header of the index, of which there are two copies."""

Checksum = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Log:
    salt: bytes
    committed: int
    """Frames up to the last commit that SQLite believes."""
    beyond: tuple[int, ...]
    """Numbers (from 1) of commit frames behind ``committed``."""
    last: int
    """Number of the last frame with this salt."""


def wal_damage(path: Path) -> str | None:
    """What is wrong with the log of the database at ``path``; None if nothing that was committed is missing.

    Call it only while no process has the database open, this one included: closing the files that it reads drops the
    locks that SQLite has on them. Raises OSError.
    """
    name = f"{path.name}-wal"
    content = _read(path.with_name(name))
    index = _read(path.with_name(f"{path.name}-shm"))
    log = _log(content)
    if log is None:
        if len(content) < _HEADER + _FRAME + _SMALLEST_PAGE:
            return None
        return f"the header of {name} is wrong"
    where = f"frame {log.committed + 1} of {name}"
    if (committed := _committed(index, log.salt)) > log.committed:
        return f"{where} is wrong or missing, and {committed} were committed"
    if any(number < log.last for number in log.beyond):
        return f"{where} or one soon after it is wrong, and later transactions follow it"
    if log.beyond and not log.committed and not _has_tables(path):
        return f"{where} or one soon after it is wrong, and {path.name} has no tables without it"
    return None


def _log(content: bytes) -> _Log | None:
    """None if the header is wrong."""
    if len(content) < _HEADER:
        return None
    magic, version, page = struct.unpack_from(">III", content)
    if magic not in (_MAGIC, _MAGIC + 1) or version != _FORMAT or not _is_page(page):
        return None
    order = ">" if magic & 1 else "<"
    running = _checksum(content[: _HEADER - 8], (0, 0), order)
    if running != struct.unpack_from(">II", content, _HEADER - 8):
        return None
    salt = content[16:24]
    committed = last = 0
    beyond = []
    good = True
    for number, start in enumerate(range(_HEADER, len(content) - _FRAME - page + 1, _FRAME + page), 1):
        of_page, commit = struct.unpack_from(">II", content, start)
        ours = content[start + 8 : start + 16] == salt
        if good:
            running = _checksum(content[start : start + 8], running, order)
            running = _checksum(content[start + _FRAME : start + _FRAME + page], running, order)
            follows = running == struct.unpack_from(">II", content, start + 16)
            good = ours and follows and of_page != 0
            # The checksum goes on from the frame before: only the salt, which it does not cover, was damaged.
            ours = ours or follows
        if not ours:
            continue
        last = number
        if good and commit:
            committed = number
        elif commit:
            beyond.append(number)
    return _Log(salt, committed, tuple(beyond), last)


def _committed(index: bytes, salt: bytes) -> int:
    """How many frames of the log with this salt were committed, as the index has it; 0 if it does not know.

    After a power cut the index may be an old one. It then says too few of the same log, or speaks of another one.
    """
    header = index[:_INDEX]
    order = "<" if sys.byteorder == "little" else ">"
    if len(header) < _INDEX or header != index[_INDEX : 2 * _INDEX] or not header[12] or header[32:40] != salt:
        return 0
    if _checksum(header[: _INDEX - 8], (0, 0), order) != struct.unpack_from("=II", header, _INDEX - 8):
        return 0
    (frames,) = struct.unpack_from("=I", header, 16)
    return int(frames)


def _checksum(content: bytes, before: Checksum, order: str) -> Checksum:
    first, second = before
    words = struct.unpack(f"{order}{len(content) // 4}I", content)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second


def _is_page(size: int) -> bool:
    return _SMALLEST_PAGE <= size <= 65536 and size & (size - 1) == 0


def _has_tables(path: Path) -> bool:
    """Whether the first page, which lists the tables, has a row. A page of pages has none of its own but children."""
    head = _read(path)[:105]
    return len(head) == 105 and (head[100] == 5 or head[103:105] != b"\0\0")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


_DAMAGED = ".damaged-"


def make_private(folder: Path) -> None:
    """Make a private folder (0700), or make an existing one private. Raises Unusable, Unavailable."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = folder.lstat()
        if not stat.S_ISDIR(info.st_mode):
            raise Unusable(f"{folder} is a link or not a folder; give the path of the state folder itself")
        if info.st_uid != os.geteuid():
            raise Unusable(f"the state folder {folder} belongs to user {info.st_uid}, not to you ({os.geteuid()})")
        if info.st_mode & 0o077:
            folder.chmod(0o700)
    except OSError as error:
        raise Unavailable(f"cannot create the state folder {folder}: {error.strerror}") from error


def open_lock(folder: Path) -> FileLock:
    """The lock that each process holds (shared) while it has the journal open. Raises OSError."""
    return FileLock(folder / "journal.lock")


def missing_wal(path: Path, lock: FileLock) -> str | None:
    """What is missing of the log of a journal that no process has open, for people; None for nothing.

    A process that has it open checked it before. Leaves the lock exclusive or shared. Raises
    Unavailable.
    """
    for _ in range(2):
        if not lock.try_lock():
            # Another process that has it alone may only be looking: wait, and look again.
            lock.lock(shared=True)
            continue
        try:
            return wal_damage(path)
        except OSError as error:
            raise Unavailable(f"cannot read the journal {path}: {error.strerror}") from error
    return None


def damaged_journals(path: Path) -> list[Path]:
    """The databases that ``move_aside`` has renamed and that are still there, the latest last."""
    ends = tuple(end for end in FILES if end)
    return sorted(file for file in path.parent.glob(f"{path.name}{_DAMAGED}*") if not file.name.endswith(ends))


def move_aside(path: Path, now: datetime) -> Path:
    """Rename a database and what SQLite keeps beside it; the new path of the database."""
    stamp = f"{now:%Y%m%dT%H%M%SZ}"
    number = 0
    while (aside := path.with_name(f"{path.name}{_DAMAGED}{stamp}" + (f"-{number}" if number else ""))).exists():
        number += 1
    # The database last: where this is cut off, the damaged file is still there to be found and moved.
    for suffix in reversed([end for end in FILES if end != ".lock"]):
        file = path.with_name(path.name + suffix)
        if file.exists():
            file.rename(aside.with_name(aside.name + suffix))
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return aside
