"""A log of the journal that was damaged is noticed at each of its bytes; one that a power cut tore is not called so."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from devalloc.store.errors import Damaged
from devalloc_node.journal import open_journal
from devalloc_node.journal.sqlite import FILE, QUARANTINED, backup
from devalloc_node.journal.state_folder import wal_damage
from devalloc_node.model.grant import ClaimRef
from tests.support.examples import IS_FUZZ
from tests.support.fake_tree import memory_folder

GRANT = {"kind": "DeviceClaim", "devices": []}
UIDS = ["u1", "u2", "u3"]
PAGE = 512
FRAME = 24 + PAGE
NOISE = bytes(range(1, 41))


@pytest.fixture
def folder() -> Iterator[Path]:
    with memory_folder() as path:
        yield Path(path) / "node"


@dataclass
class Crashed:
    """What a plugin left that was killed after it wrote three claims, one transaction each."""

    folder: Path
    ends: list[int]
    """Size of the log after each."""

    @property
    def path(self) -> Path:
        return self.folder / FILE

    @property
    def log(self) -> Path:
        return self.folder / f"{FILE}-wal"

    @property
    def index(self) -> Path:
        return self.folder / f"{FILE}-shm"

    def read(self) -> list[str]:
        """The claims that SQLite sees, asked in a copy, for it changes what it reads."""
        copy = self.folder / "copy"
        for file in (self.path, self.log):
            shutil.copy(file, copy.with_name(file.name.replace(FILE, "copy")))
        with closing(sqlite3.connect(copy)) as opened:
            return [uid for (uid,) in opened.execute("SELECT uid FROM claims ORDER BY uid")]


def crash(folder: Path, *, small: bool = True) -> Crashed:
    folder.mkdir(mode=0o700)
    if small:
        with closing(sqlite3.connect(folder / FILE)) as made:
            made.execute(f"PRAGMA page_size = {PAGE}")
            made.execute("VACUUM")
        open_journal(folder).close()
    reader, says = os.pipe()
    child = os.fork()
    if child == 0:
        journal = open_journal(folder)
        for uid in UIDS:
            journal.begin(ClaimRef("default", uid, uid), "DeviceClaim", GRANT, {f"pci/{uid}": "p/d"})
            os.write(says, struct.pack("I", (folder / f"{FILE}-wal").stat().st_size))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(says)
    with open(reader, "rb") as sizes:
        return Crashed(folder, [size for (size,) in struct.iter_unpack("I", sizes.read())])


def test_the_log_is_whole_after_a_crash(folder: Path) -> None:
    crashed = crash(folder)
    assert wal_damage(crashed.path) is None
    crashed.index.unlink()
    assert wal_damage(crashed.path) is None
    with closing(open_journal(folder)) as journal:
        assert [record.ref.uid for record in journal.claims()] == UIDS
        assert journal.setting(QUARANTINED) is None
        assert crashed.log.stat().st_size == 0, "what was there does not depend on the log any more"


@pytest.mark.parametrize(("index", "apart"), [("kept", 5), ("lost", 1 if IS_FUZZ else 5)])
def test_a_byte_that_changed_anywhere_loses_nothing_in_silence(folder: Path, index: str, apart: int) -> None:
    crashed = crash(folder)
    if index == "lost":
        crashed.index.unlink()
    good = crashed.log.read_bytes()
    assert len(good) == crashed.ends[-1]
    assert crashed.ends == sorted(set(crashed.ends))
    torn = 0
    for offset in range(0, len(good), apart):
        crashed.log.write_bytes(good[:offset] + bytes([good[offset] ^ 0xFF]) + good[offset + 1 :])
        if wal_damage(crashed.path) is not None:
            continue
        assert offset >= crashed.ends[-2], f"byte {offset} is of an older transaction"
        assert index == "lost", f"byte {offset} of the last transaction, which the index has as committed"
        torn += 1
        # As it is after a power cut; asked of SQLite where it is cheap.
        assert offset % 50 or crashed.read() == UIDS[:-1]
    assert bool(torn) is (index == "lost"), "without the index, the last one cannot be told from a torn one"


@pytest.mark.parametrize("index", ["kept", "lost"])
def test_a_log_that_ends_too_early_is_damaged_if_the_index_shows_it(folder: Path, index: str) -> None:
    crashed = crash(folder)
    if index == "lost":
        crashed.index.unlink()
    good = crashed.log.read_bytes()
    for size in range(0, len(good), 7):
        crashed.log.write_bytes(good[:size])
        # What has no header names no log, and the index may be of one before it.
        assert (wal_damage(crashed.path) is not None) is (index == "kept" and size >= 32)


def test_a_torn_last_transaction_is_forgotten_as_sqlite_forgets_it(folder: Path) -> None:
    crashed = crash(folder)
    crashed.index.unlink()
    good = crashed.log.read_bytes()
    for start in range(crashed.ends[-2], crashed.ends[-1], FRAME):
        # Frames are written in any order: any one may be missing, its successors there.
        crashed.log.write_bytes(good[:start] + bytes(FRAME) + good[start + FRAME :])
        assert wal_damage(crashed.path) is None
        assert crashed.read() == UIDS[:-1]


def test_frames_from_before_the_last_checkpoint_are_nothing(folder: Path) -> None:
    crashed = crash(folder)
    with closing(sqlite3.connect(crashed.path)) as opened:
        opened.execute("PRAGMA wal_checkpoint(RESTART)")
        opened.execute("UPDATE claims SET changed = 'later' WHERE uid = 'u1'")
        opened.commit()
        for kind in ("-wal", "-shm", ""):
            shutil.copy(folder / f"{FILE}{kind}", folder / f"old{kind}")
    content = (folder / "old-wal").read_bytes()
    salts = {content[start + 8 : start + 16] for start in range(32, len(content), FRAME)}
    assert len(salts) == 2, "old frames lie behind the new ones"
    assert wal_damage(folder / "old") is None
    (folder / "old-shm").unlink()
    assert wal_damage(folder / "old") is None
    (folder / "old-wal").write_bytes(content[:-FRAME] + bytes(FRAME))
    assert wal_damage(folder / "old") is None


@pytest.mark.parametrize("index", ["kept", "lost"])
@pytest.mark.parametrize("offset", [0, 40, 3000, 9000])
def test_a_damaged_log_is_moved_aside_with_its_journal(folder: Path, offset: int, index: str) -> None:
    crashed = crash(folder, small=False)
    if index == "lost":
        crashed.index.unlink()
    good = crashed.log.read_bytes()
    bad = good[:offset] + NOISE + good[offset + len(NOISE) :]
    crashed.log.write_bytes(bad)
    with pytest.raises(Damaged, match="is damaged"):
        backup(folder, folder / "copy.db")
    assert crashed.log.read_bytes() == bad, "it was not read with SQLite"
    with closing(open_journal(folder)) as journal:
        aside = Path(journal.setting(QUARANTINED) or "")
        assert journal.claims() == []
    assert aside.with_name(f"{aside.name}-wal").read_bytes() == bad


def test_a_journal_without_tables_beside_a_bad_log_was_not_always_empty(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    path = folder / "made"
    with closing(sqlite3.connect(path)) as made:
        made.execute("PRAGMA journal_mode = WAL")
        made.execute("CREATE TABLE claims (uid)")
        for kind in ("-wal", ""):
            shutil.copy(folder / f"made{kind}", folder / f"{FILE}{kind}")
    log = folder / f"{FILE}-wal"
    good = log.read_bytes()
    assert wal_damage(folder / FILE) is None
    log.write_bytes(good[:500] + NOISE + good[540:])
    assert "has no tables" in (wal_damage(folder / FILE) or "")
    log.write_bytes(good[: 32 + 24 + 4096])
    assert wal_damage(folder / FILE) is None, "killed while the very first one was written"


def test_an_index_of_an_earlier_log_says_nothing(folder: Path) -> None:
    crashed = crash(folder)
    index = crashed.index.read_bytes()
    with closing(sqlite3.connect(crashed.path)) as opened:
        opened.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        shutil.copy(crashed.path, folder / "cut")
        (folder / "cut-shm").write_bytes(index)
        (folder / "cut-wal").write_bytes(b"")
        assert wal_damage(folder / "cut") is None
        opened.execute("UPDATE claims SET changed = 'later' WHERE uid = 'u1'")
        opened.commit()
        shutil.copy(crashed.log, folder / "cut-wal")
        assert wal_damage(folder / "cut") is None


def test_a_second_process_opens_a_journal_in_use_without_a_check(folder: Path) -> None:
    with closing(open_journal(folder)) as first:
        first.begin(ClaimRef("default", "u1", "u1"), "DeviceClaim", GRANT, {})
        with closing(open_journal(folder)) as second:
            assert [record.ref.uid for record in second.claims()] == ["u1"]
            second.begin(ClaimRef("default", "u2", "u2"), "DeviceClaim", GRANT, {})
        assert [record.ref.uid for record in first.claims()] == ["u1", "u2"]


def test_the_log_stays_short(folder: Path) -> None:
    with closing(open_journal(folder)) as journal:
        for number in range(300):
            journal.put("machines", "vm", {"number": number})
        assert (folder / f"{FILE}-wal").stat().st_size < 150 * (24 + 4096)
