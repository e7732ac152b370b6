"""The journal in one SQLite file (WAL, synchronous=FULL), which two plugin processes may share.

A journal says what was done to the host, so an old copy is worse than the present one: it is put back only if that
is lost. What was prepared after the copy was made is then unknown, and left as it is.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

from devalloc.file_lock import FileLock
from devalloc.store import database
from devalloc.store.database import (
    no_space_message,
    open_database,
    store_error_for,
    transaction,
    translate_errors,
    truncate_wal,
)
from devalloc.store.database_copies import copy_database, flush_replaced, restore_database
from devalloc.store.errors import Damaged, NoSpace, StoreError, StoreLocked, Unavailable, Unusable
from devalloc.store.paths import file_identity, wal_path
from devalloc_node.errors import Failed
from devalloc_node.journal.protocol import (
    REFUSED_VFS,
    USE,
    WITHHELD,
    ClaimRecord,
    ClaimState,
    HeldByOther,
    HeldKey,
    StepRecord,
    StepState,
    WithheldDevice,
    frozen,
)
from devalloc_node.journal.schema import CLAIM, SCHEMA, STEP, inconsistencies
from devalloc_node.journal.state_folder import damaged_journals, make_private, missing_wal, move_aside, open_lock
from devalloc_node.model.grant import ClaimRef
from devalloc_node.model.step import Step, Value

FILE = "journal.db"
QUARANTINED = "quarantined"
"""A setting: where the journal before this one was moved to, because it could not be read."""
BOOT = "boot"
"""A setting: the boot id of the host as of the last start."""
NODE_NAME = "node-name"
"""A setting: the name under which the node was last served."""

_STEP_STATES: Mapping[str, StepState] = {state: state for state in get_args(StepState)}
_LOG_PAGES = 100
"""After how many pages the log is written to the database."""
_HELD = "SELECT key, uid, device FROM holdings UNION ALL SELECT key, '', device FROM withheld"


def open_journal(folder: Path) -> SQLiteJournal:
    """The journal in the state folder (made, 0700, if missing).

    A damaged one is moved aside with all that SQLite keeps beside it, and a new one begun, whose setting
    ``quarantined`` says where the old one is. Raises Unusable for what a newer plugin, another program or another user
    wrote, or what is damaged while another process has it open; Unavailable if the disk does not let us.
    """
    make_private(folder)
    path = folder / FILE
    lock = open_lock(folder)
    try:
        # Before SQLite sees it: it would shorten a damaged log for good.
        if missing_wal(path, lock) is not None:
            move_aside(path, datetime.now(UTC))
        lock.lock(shared=True)
        try:
            return _record_quarantine(SQLiteJournal(path, lock))
        except Damaged as error:
            if not lock.try_lock():
                raise Unusable(f"{error} Another process uses {path}: stop it, then restart this one") from error
        # Another process may have begun a new one while we waited.
        try:
            SQLiteJournal(path, None).close()
        except Damaged:
            move_aside(path, datetime.now(UTC))
        # Nothing is open meanwhile: the lock is free for a moment, and its next holder reads the files (`missing_wal`).
        lock.lock(shared=True)
        return _record_quarantine(SQLiteJournal(path, lock))
    except BaseException:
        lock.close()
        raise


def _record_quarantine(journal: SQLiteJournal) -> SQLiteJournal:
    """Record which damaged journal is beside it: also if the process that moved it aside ended then, or if an admin
    removed only the last of several."""
    named = journal.setting(QUARANTINED)
    if (named is None or not Path(named).exists()) and (aside := damaged_journals(journal.path)):
        journal.set(QUARANTINED, str(aside[-1]))
    return journal


Method = TypeVar("Method", bound=Callable[..., Any])


def _needs_reserve(method: Method) -> Method:
    """Writes down something that is to be undone one day: refused unless there is space in reserve for undoing it."""

    @wraps(method)
    def added(self: SQLiteJournal, *arguments: Any, **named: Any) -> Any:
        try:
            if not database.refill(self.path):
                raise NoSpace(no_space_message(self.path, SCHEMA))
            return method(self, *arguments, **named)
        except StoreError as error:
            raise self.failed(error) from error

    return cast(Method, added)


def _uses_reserve(method: Method) -> Method:
    """Writes down that something is undone, or how far it is: with the space in reserve if the disk is full."""

    @wraps(method)
    def undone(self: SQLiteJournal, *arguments: Any, **named: Any) -> Any:
        try:
            return database.run_with_reserve(self.path, lambda: method(self, *arguments, **named), self.shorten_log)
        except StoreError as error:
            raise self.failed(error) from error

    return cast(Method, undone)


class SQLiteJournal:
    """``Journal`` in a file. Safe for threads, not across a fork."""

    def __init__(self, path: Path, lock: FileLock | None) -> None:
        """Use ``open_journal``. ``lock`` is closed with the journal. Raises Damaged and others."""
        self.path = path
        self._mutex = threading.RLock()
        self._parsed: dict[str, dict[str, tuple[str, Mapping[str, Value]]]] = {}
        """By room and name, what was read last and what it says: all of a room is asked for again and again.
        Read-only, because all who ask get the same."""
        self._connection = open_database(path, SCHEMA)
        try:
            with translate_errors(path, SCHEMA):
                self._check()
                # What is in the database itself does not depend on the log. If others read, theirs goes on.
                self._connection.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            self._file, self._log = file_identity(path), file_identity(wal_path(path))
        except BaseException:
            self._connection.close()
            raise
        self._lock = lock

    def close(self) -> None:
        with self._mutex:
            self._connection.close()
            if self._lock is not None:
                self._lock.close()

    # Reading.

    def claim(self, uid: str) -> ClaimRecord | None:
        rows = self._rows(f"SELECT {CLAIM} FROM claims WHERE uid = ?", uid)
        return _claim(rows[0]) if rows else None

    def claims(self) -> Sequence[ClaimRecord]:
        return [_claim(row) for row in self._rows(f"SELECT {CLAIM} FROM claims ORDER BY created, uid")]

    def held(self) -> Mapping[str, HeldKey]:
        return {row[0]: HeldKey(*row) for row in self._rows(f"{_HELD} ORDER BY key")}

    def steps(self, owner: str) -> Sequence[StepRecord]:
        return [_step(row) for row in self._rows(f"SELECT {STEP} FROM steps WHERE owner = ? ORDER BY id", owner)]

    def owners(self, kind: str, targets: str) -> Sequence[str]:
        query = "SELECT owner FROM steps WHERE kind = ? AND target >= ? AND target < ? GROUP BY owner ORDER BY min(id)"
        end = targets.removesuffix("/") + chr(ord("/") + 1)  # so that the index on targets finds them
        return [owner for (owner,) in self._rows(query, kind, targets, end)]

    def shared(self) -> Sequence[str]:
        rows = self._rows("SELECT DISTINCT owner FROM steps WHERE owner LIKE '%/%' ORDER BY owner")
        return [name for (name,) in rows if not name.startswith(WITHHELD)]

    def users(self, name: str) -> Sequence[StepRecord]:
        rows = self._rows(f"SELECT {STEP} FROM steps WHERE target = ? AND kind = ? ORDER BY id", name, USE)
        return [_step(row) for row in rows]

    def withheld(self) -> Sequence[WithheldDevice]:
        rows = self._rows("SELECT device, key, reason, since FROM withheld ORDER BY device, key")
        by_device: dict[str, WithheldDevice] = {}
        for device, key, reason, since in rows:
            by_device[device] = WithheldDevice(
                device, (*(by_device[device].keys if device in by_device else ()), key), reason, since
            )
        return list(by_device.values())

    def record(self, room: str, name: str) -> Mapping[str, Value] | None:
        rows = self._rows("SELECT content FROM records WHERE room = ? AND name = ?", room, name)
        return _value(rows[0][0]) if rows else None

    def records(self, room: str) -> Mapping[str, Mapping[str, Value]]:
        before, now = self._parsed.get(room, {}), {}
        for name, content in self._rows("SELECT name, content FROM records WHERE room = ? ORDER BY name", room):
            parsed = before.get(name)
            now[name] = parsed if parsed is not None and parsed[0] == content else (content, frozen(_value(content)))
        self._parsed[room] = now
        return {name: value for name, (_, value) in now.items()}

    def setting(self, name: str) -> str | None:
        rows = self._rows("SELECT value FROM settings WHERE name = ?", name)
        return str(rows[0][0]) if rows else None

    # Writing.

    @_needs_reserve
    def begin(self, ref: ClaimRef, kind: str, grant: Mapping[str, Value], holdings: Mapping[str, str]) -> None:
        with self._transaction() as sql:
            for key in holdings:
                if (row := sql.execute(f"SELECT * FROM ({_HELD}) WHERE key = ?", (key,)).fetchone()) is not None:
                    raise HeldByOther(HeldKey(*row))
            now = self._now()
            sql.execute(
                "INSERT INTO claims VALUES (?, ?, ?, ?, ?, ?, NULL, ?, ?)",
                (ref.uid, ref.namespace, ref.name, kind, ClaimState.PREPARING, _text(grant), now, now),
            )
            sql.executemany(
                "INSERT INTO holdings VALUES (?, ?, ?)", [(key, ref.uid, device) for key, device in holdings.items()]
            )

    @_needs_reserve
    def intend(self, begun: Sequence[tuple[str, str, Step]], done: Collection[int] = ()) -> Sequence[int]:
        with self._transaction() as sql:
            _mark_done(sql, done)
            return [_begin(sql, owner, device, step) for owner, device, step in begun]

    @_uses_reserve
    def done(self, steps: Collection[int]) -> None:
        with self._transaction() as sql:
            _mark_done(sql, steps)

    @_needs_reserve
    def finish(
        self,
        uid: str,
        prepared: Mapping[str, Value],
        done: Collection[int] = (),
        begun: Sequence[tuple[str, str, Step]] = (),
    ) -> None:
        with self._transaction() as sql:
            _mark_done(sql, done)
            for owner, device, step in begun:
                _begin(sql, owner, device, step)
            sql.execute("UPDATE steps SET state = 'done' WHERE owner = ? AND state = 'intent'", (uid,))
            sql.execute(
                "UPDATE claims SET state = ?, prepared = ?, changed = ? WHERE uid = ?",
                (ClaimState.PREPARED, _text(prepared), self._now(), uid),
            )

    @_uses_reserve
    def release(self, uid: str) -> None:
        with self._transaction() as sql:
            sql.execute(
                "UPDATE claims SET state = ?, changed = ? WHERE uid = ?", (ClaimState.UNPREPARING, self._now(), uid)
            )

    @_uses_reserve
    def undone(self, step: int) -> None:
        with self._transaction() as sql:
            sql.execute("DELETE FROM steps WHERE id = ?", (step,))

    @_uses_reserve
    def stuck(self, step: int, problem: str) -> None:
        with self._transaction() as sql:
            sql.execute("UPDATE steps SET state = 'stuck', problem = ? WHERE id = ?", (problem, step))

    @_uses_reserve
    def forget(self, uid: str) -> None:
        with self._transaction() as sql:
            _refuse_steps(sql, uid)
            sql.execute("DELETE FROM holdings WHERE uid = ?", (uid,))
            sql.execute("DELETE FROM claims WHERE uid = ?", (uid,))

    @_uses_reserve
    def withhold(self, step: int, reason: str) -> None:
        with self._transaction() as sql:
            row = sql.execute("SELECT owner, device FROM steps WHERE id = ?", (step,)).fetchone()
            if row is None:
                raise Failed("JournalDisagrees", f"cannot withhold a device for step {step}: no such step")
            owner, device = row
            sql.execute(
                "INSERT OR REPLACE INTO withheld SELECT key, device, ?, ? FROM holdings WHERE uid = ? AND device = ?",
                (reason, self._now(), owner, device),
            )
            sql.execute("DELETE FROM holdings WHERE uid = ? AND device = ?", (owner, device))
            sql.execute("UPDATE steps SET owner = ? WHERE owner = ? AND device = ?", (WITHHELD + device, owner, device))

    @_uses_reserve
    def unwithhold(self, device: str) -> None:
        with self._transaction() as sql:
            _refuse_steps(sql, WITHHELD + device)
            sql.execute("DELETE FROM withheld WHERE device = ?", (device,))

    @_uses_reserve
    def boot(self, boot: str, persistent: Collection[str]) -> Sequence[ClaimRecord]:
        with self._transaction() as sql:
            row = sql.execute("SELECT value FROM settings WHERE name = ?", (BOOT,)).fetchone()
            if row is not None and row[0] == boot:
                return []
            sql.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (BOOT, boot))
            if row is None:
                return []
            marks = ", ".join("?" * len(persistent))
            sql.execute(f"DELETE FROM steps WHERE owner LIKE '%/%' OR kind NOT IN ({marks})", tuple(sorted(persistent)))
            sql.execute("DELETE FROM holdings")
            sql.execute("DELETE FROM records WHERE room = ?", (REFUSED_VFS,))
            sql.execute("UPDATE claims SET state = ?, changed = ?", (ClaimState.UNPREPARING, self._now()))
            rows = sql.execute(f"SELECT {CLAIM} FROM claims ORDER BY created, uid").fetchall()
        return [_claim(row) for row in rows]

    def put(self, room: str, name: str, content: Mapping[str, Value]) -> None:
        # A record that is there may be written again to say that its machine is being stopped.
        (self._add if self.record(room, name) is None else self._rewrite)(room, name, _text(content))

    @_needs_reserve
    def _add(self, room: str, name: str, text: str) -> None:
        self._write(room, name, text)

    @_uses_reserve
    def _rewrite(self, room: str, name: str, text: str) -> None:
        self._write(room, name, text)

    def _write(self, room: str, name: str, text: str) -> None:
        with self._transaction() as sql:
            sql.execute("INSERT OR REPLACE INTO records VALUES (?, ?, ?)", (room, name, text))

    @_uses_reserve
    def drop(self, room: str, name: str) -> None:
        with self._transaction() as sql:
            sql.execute("DELETE FROM records WHERE room = ? AND name = ?", (room, name))

    @_needs_reserve
    def set(self, name: str, value: str) -> None:
        with self._transaction() as sql:
            sql.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (name, value))

    def _rows(self, query: str, *parameters: str) -> list[Any]:
        """What one statement reads, which sees one moment by itself."""
        with self._mutex:
            try:
                return self._connection.execute(query, parameters).fetchall()
            except sqlite3.Error as error:
                raise self.failed(store_error_for(self.path, SCHEMA, error)) from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Of a method that ``_needs_reserve`` or ``_uses_reserve``. Raises StoreError, which these translate."""
        with self._mutex, translate_errors(self.path, SCHEMA), transaction(self._connection, write=True):
            self.refuse_lost()
            yield self._connection

    def failed(self, why: StoreError) -> Failed:
        """An error of the file in the plugin's words."""
        code = "JournalDamaged" if isinstance(why, Damaged) else "JournalUnavailable"
        return Failed(code, str(why))

    def shorten_log(self) -> None:
        with self._mutex:
            truncate_wal(self._connection)

    def refuse_lost(self) -> None:
        """Raises Failed (``JournalGone``) if the file has no name any more: what is written to it is gone with this
        process, unnoticed."""
        try:
            now, log_now = file_identity(self.path), file_identity(wal_path(self.path))
        except Unavailable as error:
            raise Failed("JournalUnavailable", str(error)) from error
        if (now, log_now) == (self._file, self._log):
            return
        if now not in (None, self._file) and log_now == self._log:
            with self._mutex, suppress(OSError):
                flush_replaced(self._connection, self.path)  # the next start would mix the two
        lost = self.path if now != self._file else wal_path(self.path)
        raise Failed(
            "JournalGone",
            f"{lost} was removed or replaced while the node plugin ran. Nothing can be recorded, so nothing is "
            "changed; restore it if you can, and restart the plugin",
        )

    def _now(self) -> str:
        return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")

    def _check(self) -> None:
        """Raises Damaged if the file or a row is not what it should be."""
        errors = [text for (text,) in self._connection.execute("PRAGMA quick_check") if text != "ok"]
        errors = errors or inconsistencies(self._connection)
        if errors:
            raise Damaged(f"the journal {self.path} is damaged ({errors[0]}).")


def _refuse_steps(sql: sqlite3.Connection, owner: str) -> None:
    (left,) = sql.execute("SELECT count(*) FROM steps WHERE owner = ?", (owner,)).fetchone()
    if left:
        raise Failed("JournalDisagrees", f"{left} steps of {owner} are not undone, so its record stays")


def _begin(sql: sqlite3.Connection, owner: str, device: str, step: Step) -> int:
    cursor = sql.execute(
        "INSERT INTO steps (owner, device, kind, target, was, becomes, state) VALUES (?, ?, ?, ?, ?, ?, 'intent')",
        (owner, device, step.kind, step.target, _text(step.before), _text(step.after)),
    )
    return int(cursor.lastrowid or 0)


def _mark_done(sql: sqlite3.Connection, steps: Collection[int]) -> None:
    sql.executemany("UPDATE steps SET state = 'done', problem = '' WHERE id = ?", [(step,) for step in sorted(steps)])


def _claim(row: tuple[str, ...]) -> ClaimRecord:
    uid, namespace, name, kind, state, granted, prepared, created, changed = row
    answer = None if prepared is None else _value(prepared)
    return ClaimRecord(
        ClaimRef(namespace, name, uid), kind, ClaimState(state), _value(granted), answer, created, changed
    )


def _step(row: tuple[int, str, str, str, str, str, str, str, str]) -> StepRecord:
    number, owner, device, kind, target, was, becomes, state, problem = row
    shared = owner if "/" in owner and not owner.startswith(WITHHELD) else None
    step = Step(kind, target, _value(was), _value(becomes), shared)
    if state not in _STEP_STATES:
        raise Failed("JournalDamaged", f"step {number} is in the state {state!r}")
    return StepRecord(number, owner, device, step, _STEP_STATES[state], problem)


_text = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def _value(text: str) -> Value:
    return json.loads(text)


def backup(folder: Path, path: Path) -> bool:
    """Copy the journal in a state folder to ``path`` (0600); False if there is none.

    Raises Damaged if part of its log is lost, which is then left as it is, and other StoreErrors.
    """
    if not (folder / FILE).exists():
        return False
    with open_lock(folder) as lock:
        lost = missing_wal(folder / FILE, lock)
    if lost is not None:
        raise Damaged(f"the journal {folder / FILE} is damaged ({lost}). {SCHEMA.damaged}")
    copy_database(folder / FILE, path, SCHEMA, _checked)
    return True


def restore(copy: Path, folder: Path) -> Path | None:
    """Put a copy in the place of the journal; where what was there is now, None if nothing was.

    Raises StoreLocked while a node plugin has the journal open, and StoreError.
    """
    make_private(folder)
    with open_lock(folder) as lock:
        if not lock.try_lock():
            raise StoreLocked(f"a node plugin uses the journal in {folder}; stop it first", None)
        return restore_database(copy, folder / FILE, SCHEMA, _checked, lambda connection: None)


def _checked(connection: sqlite3.Connection) -> list[str]:
    errors = [text for (text,) in connection.execute("PRAGMA integrity_check") if text != "ok"]
    return errors or inconsistencies(connection)
