"""Check that the write-ahead log of a journal is complete. SQLite silently drops everything after a corrupt frame.

SQLite reads a log up to the first frame whose checksum is wrong and drops the rest without a word: that is how it
forgets a transaction that a power cut tore. Damage to an older frame looks the same to it, and would make what was
prepared unknown. This module reads the formats (sqlite.org/fileformat2.html#walformat, walformat.html) and tells them
apart. The transactions of our journal are synced one by one (synchronous=FULL), so only the last one can be torn:

* A header that is wrong, with frames behind it, is damage: SQLite syncs the header before it writes a frame.
* Frames with another salt are left from before the last checkpoint, and say nothing.
* Behind the last good commit, a commit frame that is not the last frame of this log ends an older transaction: damage.
* The index of the log (``-shm``), where it outlived the process, counts the frames that were committed. It is written
  after the sync, so a log that does not reach as far is damaged, its last transaction included.

Where the index is gone as well, a last transaction that was damaged later cannot be told from a torn one, nor two if
the mark of the commit between them was wiped out, and a log that was cut off or removed not from one that was shorter.
Against that there is only that logs are kept short: each open of a journal begins an empty one.
"""

from __future__ import annotations

import struct
import sys
from dataclasses import dataclass
from pathlib import Path

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
    """What is wrong with the log of the database at ``path``; None where nothing that was committed is missing.

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
    """None where the header is wrong."""
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
    """How many frames of the log with this salt were committed, as the index has it; 0 where it does not know.

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
