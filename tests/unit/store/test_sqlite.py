"""What is particular to the embedded store: its file, its rights, its schema, and what happens when the disk fails."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from devalloc.store import Expired, Invalid, StoreError, StoreLocked, Unavailable, Unusable, database
from devalloc.store import sqlite as sqlite_store
from devalloc.store.paths import default_path, hold_store
from devalloc.store.sqlite import FileWatch, SQLiteStore, restore
from tests.support.minimal_manifests import claim
from tests.support.waiting import until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "made" / "here" / "devalloc.db"


@pytest.fixture
def store(path: Path) -> Iterator[SQLiteStore]:
    with closing(SQLiteStore(path)) as opened:
        yield opened


@pytest.fixture
def read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], Path]]:
    """Makes the folder of a file read-only; returns the file's path there. For root, whom rights do not stop, it is a
    mount beside the folder, which stays writable."""
    with ExitStack() as undo:

        def make(path: Path) -> Path:
            if os.geteuid() != 0:
                monkeypatch.setattr(database, "is_read_only", lambda _: True)
                path.parent.chmod(0o500)
                undo.callback(path.parent.chmod, 0o700)
                return path
            there = tmp_path / "read-only"
            there.mkdir()
            mounted = subprocess.run(["mount", "--bind", path.parent, there], capture_output=True, text=True)
            if mounted.returncode != 0:
                pytest.skip(f"root cannot mount here: {mounted.stderr}")
            # Lazily: SQLite keeps files open as long as another connection of this process holds locks on them.
            undo.callback(lambda: subprocess.run(["umount", "--lazy", there], check=True))
            subprocess.run(["mount", "-o", "remount,bind,ro", there], check=True)
            return there / path.name

        yield make


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


class Busy:
    """A connection to a file that others open at the same moment, for the first ``times``."""

    def __init__(self, times: int, mode: str = "wal") -> None:
        self.times, self.mode, self.statements = times, mode, list[str]()

    def execute(self, statement: str) -> Any:
        self.statements.append(statement)
        if len(self.statements) > self.times:
            return SimpleNamespace(fetchone=lambda: (self.mode,))
        error = sqlite3.OperationalError("database is locked")
        error.sqlite_errorcode = sqlite3.SQLITE_BUSY | 2 << 8
        raise error


class TestWriteAheadLog:
    def test_opening_waits_for_another_process_that_creates_the_file(self) -> None:
        busy: Any = Busy(3)
        database._use_wal(busy)
        assert busy.statements[:4] == ["PRAGMA journal_mode = WAL"] * 4

    def test_the_wait_ends(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(database, "BUSY_SECONDS", 0.05)
        busy: Any = Busy(10**6)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            database._use_wal(busy)
        assert len(busy.statements) > 1

    def test_a_file_system_without_it_is_refused(self) -> None:
        other: Any = Busy(0, "delete")
        with pytest.raises(sqlite3.OperationalError, match="does not support SQLite's write-ahead log"):
            database._use_wal(other)


class TestPlace:
    @pytest.mark.parametrize(
        ("environ", "uid", "expected"),
        [
            ({}, 0, "/var/lib/devalloc/devalloc.db"),
            ({"XDG_STATE_HOME": "/s"}, 0, "/var/lib/devalloc/devalloc.db"),
            ({"HOME": "/h"}, 7, "/h/.local/state/devalloc/devalloc.db"),
            ({"HOME": "/h", "XDG_STATE_HOME": "/s"}, 7, "/s/devalloc/devalloc.db"),
            ({"HOME": "/h", "XDG_STATE_HOME": "relative"}, 7, "/h/.local/state/devalloc/devalloc.db"),
            ({"HOME": "/h", "DEVALLOC_STORE": "/x/y.db"}, 7, "/x/y.db"),
            ({"DEVALLOC_STORE": "/x/y.db"}, 0, "/x/y.db"),
            ({"HOME": "/h", "DEVALLOC_STORE": ""}, 7, "/h/.local/state/devalloc/devalloc.db"),
        ],
    )
    def test_default(self, environ: dict[str, str], uid: int, expected: str) -> None:
        assert default_path(environ, uid) == Path(expected)

    def test_all_that_is_made_is_the_users_alone(self, path: Path) -> None:
        old = os.umask(0)
        try:
            with closing(SQLiteStore(path)) as store, hold_store(path):
                store.create(claim())
                assert {mode(file) for file in path.parent.iterdir()} == {0o600}
                assert {file.name.removeprefix(path.name) for file in path.parent.iterdir()} == {
                    *("", "-wal", "-shm", ".lock", ".reserve")
                }
        finally:
            os.umask(old)
        assert mode(path.parent) == mode(path.parent.parent) == 0o700

    def test_a_file_with_wider_rights_is_tightened(self, store: SQLiteStore, path: Path) -> None:
        store.close()
        path.chmod(0o644)
        SQLiteStore(path).close()
        assert mode(path) == 0o600

    @pytest.mark.parametrize("kind", ["text", "database"])
    def test_a_file_that_is_no_store_keeps_its_rights(self, tmp_path: Path, kind: str) -> None:
        """Its path may have been given by mistake."""
        path = tmp_path / "other"
        if kind == "text":
            path.write_text("precious" * 100)
        else:
            with closing(sqlite3.connect(path)) as other:
                other.execute("CREATE TABLE theirs (one)")
        path.chmod(0o644)
        with pytest.raises(Unusable, match=r"not a devalloc store|another program"):
            SQLiteStore(path)
        assert (mode(path), [*tmp_path.iterdir()]) == (0o644, [path])

    @pytest.mark.parametrize("suffix", ["", "-wal", "-shm", ".lock"])
    @pytest.mark.parametrize("target", ["there", "missing"])
    def test_a_link_is_refused(self, tmp_path: Path, suffix: str, target: str) -> None:
        (tmp_path / "there").write_text("precious")
        (tmp_path / f"x.db{suffix}").symlink_to(tmp_path / target)
        with pytest.raises(Unusable, match="symbolic link"):
            SQLiteStore(tmp_path / "x.db")
        assert (tmp_path / "there").read_text() == "precious"
        assert not (tmp_path / "missing").exists()

    def test_a_folder_or_fifo_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(Unusable, match="not a plain file"):
            SQLiteStore(tmp_path)
        os.mkfifo(tmp_path / "fifo")
        with pytest.raises(Unusable, match="not a plain file"):
            SQLiteStore(tmp_path / "fifo")

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
    def test_another_users_file_is_refused(self, store: SQLiteStore, path: Path) -> None:
        store.close()
        os.chown(path, 12345, 12345)
        with pytest.raises(Unusable, match="belongs to user 12345"):
            SQLiteStore(path)

    def test_a_place_where_nothing_can_be_made_is_an_error(self) -> None:
        with pytest.raises(Unavailable, match=r"cannot open the store /proc/nowhere/x\.db"):
            SQLiteStore(Path("/proc/nowhere/x.db"))


class TestSchema:
    def test_a_newer_schema_is_refused_and_left_alone(self, store: SQLiteStore, path: Path) -> None:
        store.create(claim())
        store.close()
        newer = len(database.STORE_STEPS) + 1
        with closing(sqlite3.connect(path)) as raw:
            raw.execute(f"PRAGMA user_version = {newer}")
        before = path.read_bytes()
        with pytest.raises(Unusable, match=f"newer devalloc.*schema {newer}"):
            SQLiteStore(path)
        assert path.read_bytes() == before

    def test_steps_run_in_order_once_each_and_keep_what_is_there(
        self, store: SQLiteStore, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = store.create(claim())
        store.close()
        more = (("CREATE TABLE t (x)", "INSERT INTO t VALUES (1)"), ("INSERT INTO t SELECT x + 1 FROM t",))
        schema = replace(database.STORE_SCHEMA, steps=database.STORE_STEPS + more)
        monkeypatch.setattr(database, "STORE_SCHEMA", schema)
        for _ in range(2):
            with closing(SQLiteStore(path)) as again:
                assert again.get("DeviceClaim", "default", "a") == made
        with closing(sqlite3.connect(path)) as raw:
            assert raw.execute("SELECT x FROM t ORDER BY x").fetchall() == [(1,), (2,)]
            assert raw.execute("PRAGMA user_version").fetchone() == (len(schema.steps),)

    def test_a_step_that_fails_leaves_the_schema_of_the_one_before(
        self, store: SQLiteStore, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store.close()
        good = database.STORE_STEPS
        broken = (("CREATE TABLE whole (x)",), ("CREATE TABLE half (x)", "CREATE TABLE half (x)"))
        monkeypatch.setattr(database, "STORE_SCHEMA", replace(database.STORE_SCHEMA, steps=good + broken))
        with pytest.raises(StoreError):
            SQLiteStore(path)
        with closing(sqlite3.connect(path)) as raw:
            tables = {name for (name,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            assert raw.execute("PRAGMA user_version").fetchone() == (len(good) + 1,)
        assert "whole" in tables
        assert "half" not in tables

    def test_another_programs_database_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "other.db"
        with closing(sqlite3.connect(path)) as raw:
            raw.execute("CREATE TABLE mine (x)")
        before = path.read_bytes()
        with pytest.raises(Unusable, match="another program"):
            SQLiteStore(path)
        assert path.read_bytes() == before

    def test_opened_by_many_at_once_it_is_made_once(self, path: Path) -> None:
        failures: list[BaseException] = []

        def open_it() -> None:
            try:
                SQLiteStore(path).close()
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=open_it) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        with closing(SQLiteStore(path)) as store:
            assert store.check() == []

    def test_another_may_take_the_next_steps_between_two(self, path: Path) -> None:
        path.parent.mkdir(parents=True, mode=0o700)

        class Overtaken(sqlite3.Connection):
            """After each commit another process brings the schema up to date, before this one goes on."""

            def execute(self, statement: str, *parameters: Any) -> sqlite3.Cursor:
                cursor = super().execute(statement, *parameters)
                if statement == "COMMIT":
                    with closing(sqlite3.connect(path, isolation_level=None)) as other:
                        database.migrate(other, database.STORE_SCHEMA)
                return cursor

        with closing(sqlite3.connect(path, isolation_level=None, factory=Overtaken)) as connection:
            database.migrate(connection, database.STORE_SCHEMA)
        with closing(SQLiteStore(path)) as store:
            assert store.check() == []


class TestDamage:
    @pytest.mark.parametrize(
        "content",
        [b"not a database at all, but long enough to look at" * 20, b"x", os.urandom(9000)],
        ids=["text", "byte", "random"],
    )
    def test_a_file_that_is_no_database(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "x.db"
        path.write_bytes(content)
        with pytest.raises(Unusable, match="not a devalloc store"):
            SQLiteStore(path)
        assert path.read_bytes() == content

    def test_an_empty_file_is_a_new_store(self, tmp_path: Path) -> None:
        (tmp_path / "x.db").touch()
        with closing(SQLiteStore(tmp_path / "x.db")) as store:
            assert store.list().objects == []

    def test_a_damaged_store_says_what_to_do(self, store: SQLiteStore, path: Path) -> None:
        for number in range(100):
            store.create(claim(f"n{number}"))
        store.close()
        pages = path.read_bytes()
        path.write_bytes(pages[:4096] + b"\xff" * (len(pages) - 4096))
        with pytest.raises(Unusable, match=r"damaged.*devalloc backup"), closing(SQLiteStore(path)) as broken:
            broken.list()

    def test_check_finds_an_object_that_is_not_what_its_row_says(self, store: SQLiteStore, path: Path) -> None:
        store.create(claim("a"))
        store.create(claim("b"))
        assert store.check() == []
        with closing(sqlite3.connect(path, isolation_level=None)) as raw:
            raw.execute("UPDATE objects SET content = '{' WHERE name = 'a'")
            raw.execute("UPDATE objects SET name = 'c' WHERE name = 'b'")
        assert [problem.split(":")[0] for problem in store.check()] == [
            "DeviceClaim default/a",
            "DeviceClaim default/c",
        ]


class TestDamagedRows:
    """A file that SQLite can read, in which bytes of an object were changed."""

    DAMAGE: ClassVar = {
        "cut off": "'{'",
        "no object": "'[1]'",
        "no name": """'{"metadata": {}}'""",
        "no text": "CAST(X'7b22ff22' AS TEXT)",
    }

    @pytest.fixture(params=DAMAGE)
    def damaged(self, request: pytest.FixtureRequest, store: SQLiteStore, path: Path) -> SQLiteStore:
        store.create(claim("a"))
        store.create(claim("b"))
        with closing(sqlite3.connect(path, isolation_level=None)) as raw:
            raw.execute(f"UPDATE objects SET content = {self.DAMAGE[request.param]} WHERE name = 'b'")
        return store

    @pytest.mark.parametrize(
        "use",
        [
            lambda store: store.get("DeviceClaim", "default", "b"),
            lambda store: store.list(),
            lambda store: store.delete("DeviceClaim", "default", "b"),
            lambda store: next(store.watch(since="0", timeout=1)),
        ],
        ids=["get", "list", "delete", "watch"],
    )
    def test_the_error_names_the_object_and_says_what_to_do(self, damaged: SQLiteStore, use: Any) -> None:
        words = r"is damaged \(DeviceClaim default/b: the row does not contain that object.*devalloc restore"
        with pytest.raises(Unusable, match=words):
            use(damaged)

    def test_others_can_be_read_and_the_check_finds_it(self, damaged: SQLiteStore) -> None:
        assert damaged.get("DeviceClaim", "default", "a")["metadata"]["name"] == "a"
        assert [problem.split(":")[0] for problem in damaged.check()] == ["DeviceClaim default/b"]


class TestFailingWrites:
    def test_a_full_disk_is_an_error_and_loses_nothing(self, store: SQLiteStore) -> None:
        store.create(claim("before"))
        pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
        store._connection.execute(f"PRAGMA max_page_count = {pages + 4}")
        names = ["before"]

        def fill() -> None:
            for number in range(1000):
                store.create(claim(f"n{number:03}", annotations={"text": "x" * 500}))
                names.append(f"n{number:03}")

        with pytest.raises(Unavailable, match="no space left"):
            fill()
        assert len(names) > 1
        assert [obj["metadata"]["name"] for obj in store.list().objects] == sorted(names)
        assert store.check() == []
        store._connection.execute("PRAGMA max_page_count = 100000")
        store.create(claim("after"))

    def test_a_file_that_cannot_grow_is_an_error_and_loses_nothing(self, store: SQLiteStore, path: Path) -> None:
        """The kernel refuses the write itself, in a process whose file size is limited."""
        store.create(claim("before"))
        script = """
import resource, signal, sys
from pathlib import Path
from typing import Any
from devalloc.store import StoreError
from devalloc.store.sqlite import SQLiteStore
from tests.support.minimal_manifests import claim
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = SQLiteStore(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
number = 0
try:
    while True:
        store.create(claim(f"n{number:04}", annotations={"text": "x" * 2000}))
        number += 1
except StoreError as error:
    print(number)
"""
        done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=True)
        acknowledged = int(done.stdout)
        assert acknowledged > 0
        names = {obj["metadata"]["name"] for obj in store.list().objects}
        assert {"before", *(f"n{number:04}" for number in range(acknowledged))} <= names
        assert store.check() == []
        store.create(claim("after"))

    def test_a_store_that_is_read_only_can_be_read(self, store: SQLiteStore) -> None:
        store.create(claim())
        store._connection.execute("PRAGMA query_only = ON")
        with pytest.raises(Unavailable, match="cannot be opened for writing"):
            store.create(claim("b"))
        assert len(store.list().objects) == 1

    def test_a_store_on_a_read_only_file_system_can_be_read_while_another_process_has_it_open(
        self, store: SQLiteStore, read_only: Callable[[Path], Path]
    ) -> None:
        store.create(claim())
        files = sorted(file.name for file in store.path.parent.iterdir())
        with closing(SQLiteStore(read_only(store.path))) as reader:
            watch = reader.watch()
            assert next(watch).object["metadata"]["name"] == "a"
            with pytest.raises(Unavailable, match="is on a read-only file system; nothing was written"):
                reader.create(claim("b"))
            store.create(claim("b"))
            assert next(watch).object["metadata"]["name"] == "b"
            assert len(reader.list().objects) == 2
            watch.close()
        assert sorted(file.name for file in store.path.parent.iterdir()) == files

    def test_a_backup_on_a_read_only_file_system_can_be_read(
        self, store: SQLiteStore, tmp_path: Path, read_only: Callable[[Path], Path]
    ) -> None:
        store.create(claim())
        (tmp_path / "backups").mkdir()
        store.backup(tmp_path / "backups" / "copy.db")
        with closing(SQLiteStore(read_only(tmp_path / "backups" / "copy.db"))) as reader:
            assert len(reader.list().objects) == 1
            assert len([*reader.watch(timeout=0.0)]) == 1
        assert [file.name for file in (tmp_path / "backups").iterdir()] == ["copy.db"]

    def test_a_reader_of_a_read_only_file_system_sees_the_writes_of_a_process_that_comes_later(
        self, store: SQLiteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It writes by another mount."""
        store.create(claim())
        store.backup(tmp_path / "copy.db")
        with ExitStack() as stack:
            with monkeypatch.context() as patched:
                patched.setattr(database, "is_read_only", lambda _: True)
                reader = stack.enter_context(closing(SQLiteStore(tmp_path / "copy.db")))
                watch = stack.enter_context(closing(reader.watch(timeout=10.0)))
                assert next(watch).object["metadata"]["name"] == "a"
            with closing(SQLiteStore(tmp_path / "copy.db")) as writer:
                writer.create(claim("b"))
                assert next(watch).object["metadata"]["name"] == "b"
                assert len(reader.list().objects) == 2

    def test_a_reader_of_a_read_only_file_system_reads_the_backup_that_replaces_its_file(
        self, store: SQLiteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for number in range(2):
            store.create(claim(f"n{number}"))
            store.backup(tmp_path / f"{number}.db")
        monkeypatch.setattr(database, "is_read_only", lambda _: True)
        with closing(SQLiteStore(tmp_path / "0.db")) as reader:
            assert len(reader.list().objects) == 1
            (tmp_path / "1.db").replace(tmp_path / "0.db")
            assert len(reader.list().objects) == 2

    @pytest.mark.parametrize("has_log", [False, True])
    def test_a_store_on_a_read_only_file_system_that_no_process_has_open_is_refused(
        self, store: SQLiteStore, tmp_path: Path, read_only: Callable[[Path], Path], has_log: bool
    ) -> None:
        """SQLite would have to create the log, or its index."""
        store.create(claim())
        copy = tmp_path / "copies" / "store.db"
        copy.parent.mkdir()
        if not has_log:
            store.close()
        for end in ("", "-wal") if has_log else ("",):
            shutil.copy2(f"{store.path}{end}", f"{copy}{end}")
        files = "store.db and store.db-wal" if has_log else "store.db"
        with pytest.raises(Unavailable) as refused:
            SQLiteStore(path := read_only(copy))
        assert str(refused.value) == (
            f"the store {path} cannot be read: its log needs a writable file system; "
            f"copy {files} there, and use the copy"
        )

    def test_a_store_of_an_older_version_on_a_read_only_file_system_is_refused(
        self, store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store._connection.execute("PRAGMA user_version = 1")
        monkeypatch.setattr(database, "is_read_only", lambda _: True)
        with pytest.raises(Unavailable, match="has the schema of an older version, and its file system is read-only"):
            SQLiteStore(store.path)

    def test_a_write_that_waits_for_another_process_says_so(
        self, store: SQLiteStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(database, "_NOTICE_SECONDS", 0.05)
        with closing(sqlite3.connect(store.path, isolation_level=None, check_same_thread=False)) as other:
            other.execute("BEGIN IMMEDIATE")
            ends = threading.Timer(0.5, lambda: other.execute("ROLLBACK"))
            ends.start()
            store.create(claim())
            ends.join()
        assert [record.message for record in caplog.records] == [
            f"waiting for {store.path}, which another process is writing to"
        ]
        store.create(claim("b"))
        assert len(caplog.records) == 1


class TestBackup:
    def test_is_a_whole_store_of_its_own(self, store: SQLiteStore, tmp_path: Path) -> None:
        for number in range(30):
            store.create(claim(f"n{number}"))
        listing = store.list()
        old = os.umask(0)
        try:
            store.backup(tmp_path / "copy.db")
        finally:
            os.umask(old)
        store.create(claim("later"))
        assert mode(tmp_path / "copy.db") == 0o600
        assert sorted(p.name for p in tmp_path.iterdir()) == ["copy.db", "made"]
        with closing(SQLiteStore(tmp_path / "copy.db")) as copy:
            assert copy.list() == listing
            assert copy.check() == []

    def test_is_whole_while_others_write(self, store: SQLiteStore, path: Path, tmp_path: Path) -> None:
        """Pairs are committed in two steps; a copy of one moment never has the second without the first."""
        stop = threading.Event()

        def write() -> None:
            with closing(SQLiteStore(path)) as other:
                number = 0
                while not stop.is_set():
                    other.create(claim(f"a{number}"))
                    other.create(claim(f"b{number}"))
                    number += 1

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for _ in range(5):
                store.backup(tmp_path / "copy.db")
                with closing(SQLiteStore(tmp_path / "copy.db")) as copy:
                    names = {obj["metadata"]["name"] for obj in copy.list().objects}
                    assert copy.check() == []
                assert {"a" + name[1:] for name in names if name[0] == "b"} <= names
        finally:
            stop.set()
            writer.join()

    def test_restoring_it_by_copying(self, store: SQLiteStore, path: Path, tmp_path: Path) -> None:
        store.create(claim("kept"))
        store.backup(tmp_path / "copy.db")
        store.create(claim("lost"))
        store.close()
        for file in path.parent.glob("devalloc.db*"):
            file.unlink()
        shutil.copy(tmp_path / "copy.db", path)
        with closing(SQLiteStore(path)) as restored:
            assert [obj["metadata"]["name"] for obj in restored.list().objects] == ["kept"]

    def test_what_was_there_stays_when_it_fails(self, store: SQLiteStore, tmp_path: Path) -> None:
        target = tmp_path / "copy.db"
        target.write_text("the last backup")
        store.close()
        with pytest.raises(Unavailable):
            store.backup(tmp_path / "nowhere" / "copy.db")
        store.path.unlink()
        with pytest.raises(StoreError):
            store.backup(target)
        assert target.read_text() == "the last backup"
        assert sorted(p.name for p in tmp_path.iterdir()) == ["copy.db", "made"]

    def test_never_over_the_store_itself(self, store: SQLiteStore, path: Path, tmp_path: Path) -> None:
        store.create(claim())
        (tmp_path / "link").symlink_to(path)
        with hold_store(path):
            for target in (path, tmp_path / "link", *(path.with_name(path.name + end) for end in ("-wal", ".lock"))):
                with pytest.raises(Invalid, match="the store itself"):
                    store.backup(target)

    def test_never_over_another_store_in_use(self, store: SQLiteStore, tmp_path: Path) -> None:
        with closing(SQLiteStore(tmp_path / "other.db")) as other:
            other.create(claim())
            with pytest.raises(Invalid, match="a store that is in use"):
                store.backup(tmp_path / "other.db")
            assert other.list().objects


class TestRestore:
    def names(self, path: Path) -> list[str]:
        with closing(SQLiteStore(path)) as opened:
            assert opened.check() == []
            return [obj["metadata"]["name"] for obj in opened.list().objects]

    def test_the_backup_takes_the_place_of_what_is_there_which_is_kept(
        self, store: SQLiteStore, path: Path, tmp_path: Path
    ) -> None:
        store.create(claim("kept"))
        store.backup(tmp_path / "copy.db")
        content = (tmp_path / "copy.db").read_bytes()
        store.create(claim("lost"))
        before = store.identity()
        aside = restore(tmp_path / "copy.db", path)
        store.close()
        assert self.names(path) == ["kept"]
        assert mode(path) == 0o600
        assert aside is not None
        assert self.names(aside) == ["kept", "lost"]
        assert (tmp_path / "copy.db").read_bytes() == content
        with closing(SQLiteStore(path)) as restored, closing(SQLiteStore(aside)) as old:
            assert restored.identity() != before == old.identity(), "who acted on the old one is to notice"

    def test_restore_creates_a_missing_file_and_replaces_a_damaged_one(
        self, store: SQLiteStore, tmp_path: Path
    ) -> None:
        store.create(claim("kept"))
        store.backup(tmp_path / "copy.db")
        assert restore(tmp_path / "copy.db", tmp_path / "new" / "devalloc.db") is None
        assert self.names(tmp_path / "new" / "devalloc.db") == ["kept"]
        (tmp_path / "new" / "devalloc.db").write_bytes(b"garbage" * 1000)
        aside = restore(tmp_path / "copy.db", tmp_path / "new" / "devalloc.db")
        assert aside is not None
        assert aside.read_bytes() == b"garbage" * 1000
        assert self.names(tmp_path / "new" / "devalloc.db") == ["kept"]

    def test_not_while_the_loops_run(self, store: SQLiteStore, path: Path, tmp_path: Path) -> None:
        store.create(claim("kept"))
        store.backup(tmp_path / "copy.db")
        store.create(claim("later"))
        with hold_store(path), pytest.raises(StoreLocked):
            restore(tmp_path / "copy.db", path)
        assert self.names(path) == ["kept", "later"]

    def test_a_process_with_the_former_file_open_goes_on_with_the_restored_one(
        self, store: SQLiteStore, path: Path, tmp_path: Path
    ) -> None:
        stored = store.create(claim("kept"))
        store.backup(tmp_path / "copy.db")
        store.create(claim("later"))
        identity, since = store.identity(), store.list().resource_version
        with closing(store.watch(since=since, timeout=60)) as events:
            store.create(claim("last"))
            assert next(events).object["metadata"]["name"] == "last"
            aside = restore(tmp_path / "copy.db", path)
            with pytest.raises(Expired):
                next(events)
        assert store.identity() != identity
        assert [each["metadata"]["name"] for each in store.list().objects] == ["kept"]
        store.replace({**stored, "spec": {"claims": [{"deviceClass": "other"}]}})
        with closing(SQLiteStore(path)) as another:
            assert another.get("DeviceClaim", "default", "kept")["spec"] == {"claims": [{"deviceClass": "other"}]}
        assert aside is not None
        with closing(SQLiteStore(aside)) as former:
            assert len(former.list().objects) == 3
            assert former.check() == []

    @pytest.mark.parametrize("kernel_reports", [True, False])
    def test_an_idle_watch_sees_the_next_write(
        self, store: SQLiteStore, path: Path, monkeypatch: pytest.MonkeyPatch, kernel_reports: bool
    ) -> None:
        """Also if the kernel tells of no write to the log, as beyond the user's number of watches."""
        monkeypatch.setattr(sqlite_store, "ACTIVE_SECONDS", 0.0)
        waited: list[float] = []
        wait = FileWatch.wait
        monkeypatch.setattr(FileWatch, "is_supported", property(lambda writes: kernel_reports))
        monkeypatch.setattr(
            FileWatch, "wait", lambda writes, seconds: (waited.append(seconds), wait(writes, seconds))[1]
        )
        since, seen = store.list().resource_version, threading.Event()

        def watch() -> None:
            with closing(store.watch(since=since, timeout=60)) as events:
                assert next(events).object["metadata"]["name"] == "last"
            seen.set()

        thread = threading.Thread(target=watch)
        thread.start()
        if kernel_reports:
            until(lambda: len(waited) > 2, "it waits for the kernel", 30)
        with closing(SQLiteStore(path)) as another:
            another.create(claim("last"))
        thread.join(60)
        assert seen.is_set()
        assert (not waited) == (not kernel_reports)

    def test_a_write_to_a_file_wakes_a_waiter_once(self, tmp_path: Path) -> None:
        file = tmp_path / "file"
        file.touch()
        with closing(FileWatch(file)) as writes, closing(FileWatch(tmp_path / "none")) as none:
            assert (writes.is_supported, none.is_supported) == (True, False)
            assert not writes.wait(0.0)
            file.write_text("a")
            assert (writes.wait(60.0), writes.wait(0.0)) == (True, False)

    def test_nothing_is_written_to_a_store_that_was_removed(self, store: SQLiteStore, path: Path) -> None:
        path.rename(path.with_name("away"))
        with pytest.raises(Unavailable, match="was removed"):
            store.create(claim())
        assert not path.exists(), "no empty one takes its place"
        path.with_name("away").rename(path)
        store.create(claim())

    def test_a_file_moved_over_the_store_gets_nothing_of_what_was_there(
        self, store: SQLiteStore, path: Path, tmp_path: Path
    ) -> None:
        """SQLite would write the log that still lies there into it."""
        store.create(claim("kept"))
        store.backup(tmp_path / "copy.db")
        since = store.create(claim("later"))["metadata"]["resourceVersion"]
        with closing(store.watch(since=since, timeout=60)) as events:
            store.create(claim("last"))
            assert next(events).object["metadata"]["name"] == "last"
            path.rename(tmp_path / "away.db")
            (tmp_path / "copy.db").rename(path)
            with pytest.raises(Expired):
                next(events)
        for use in (
            store.list,
            lambda: store.create(claim("lost")),
            lambda: next(store.watch(timeout=0)),
            lambda: store.backup(tmp_path / "another.db"),
        ):
            with pytest.raises(
                Unavailable, match=r"moved to .*devalloc.db while the store was in use.*devalloc restore"
            ):
                use()
        store.close()
        assert self.names(path) == ["kept"]
        assert self.names(tmp_path / "away.db") == ["kept", "last", "later"], "the former one is whole where it is now"

    def test_nothing_is_written_to_a_log_that_was_removed(self, store: SQLiteStore, path: Path) -> None:
        store.create(claim("kept"))
        path.with_name("devalloc.db-wal").unlink()
        with pytest.raises(Unavailable, match=r"devalloc.db-wal was removed"):
            store.create(claim("lost"))
        store.close()
        assert self.names(path) == ["kept"], "what was acknowledged is there"

    @pytest.mark.parametrize("what", ["garbage", "cut off", "other program", "newer", "damaged", "in use", "missing"])
    def test_what_is_no_good_backup_changes_nothing(
        self, store: SQLiteStore, path: Path, tmp_path: Path, what: str
    ) -> None:
        store.create(claim("there"))
        copy = tmp_path / "copy.db"
        store.backup(copy)
        if what == "garbage":
            copy.write_bytes(b"garbage" * 1000)
        elif what == "cut off":
            os.truncate(copy, copy.stat().st_size // 2)
        elif what == "missing":
            copy.unlink()
        elif what == "in use":
            copy.with_name("copy.db-wal").touch()
        else:
            statement = {
                "other program": "PRAGMA application_id = 1",
                "newer": "PRAGMA user_version = 99",
                "damaged": "UPDATE objects SET name = 'another'",
            }[what]
            with closing(sqlite3.connect(copy, isolation_level=None)) as connection:
                connection.execute(statement)
        with pytest.raises(StoreError, match=r"copy\.db") as refused:
            restore(copy, path)
        assert "devalloc restore" not in str(refused.value), "which is what was tried"
        assert self.names(path) == ["there"]
        assert not [file for file in path.parent.iterdir() if "before" in file.name or "part" in file.name]

    def test_a_backup_of_a_damaged_store_names_the_store(self, store: SQLiteStore, path: Path, tmp_path: Path) -> None:
        for number in range(300):
            store.create(claim(f"c{number}"))
        copy = tmp_path / "copy.db"
        store.backup(copy)
        content = bytearray(copy.read_bytes())
        content[8192:12288] = os.urandom(4096)
        store.close()
        for end in ("-wal", "-shm"):
            path.with_name(path.name + end).unlink(missing_ok=True)
        path.write_bytes(content)
        with (
            closing(SQLiteStore(path)) as broken,
            pytest.raises(StoreError, match=r"devalloc\.db.* damaged") as refused,
        ):
            broken.backup(tmp_path / "new.db")
        assert "new.db" not in str(refused.value)
        assert not (tmp_path / "new.db").exists()

    def test_a_backup_of_an_older_version_is_brought_up(self, store: SQLiteStore, path: Path, tmp_path: Path) -> None:
        store.create(claim("old"))
        copy = tmp_path / "copy.db"
        store.backup(copy)
        with closing(sqlite3.connect(copy, isolation_level=None)) as connection:
            connection.execute("DROP TABLE identity")
            connection.execute("PRAGMA user_version = 1")
        restore(copy, path)
        assert self.names(path) == ["old"]
        with closing(SQLiteStore(path)) as restored:
            assert restored.identity()


class TestLease:
    def test_a_second_holder_gets_the_name_of_the_first(self, path: Path, store: SQLiteStore) -> None:
        script = """
import sys, pathlib
from devalloc.store.paths import hold_store
with hold_store(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""
        other = subprocess.Popen(
            [sys.executable, "-c", script, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(StoreLocked, match=f"process {other.pid} ") as caught, hold_store(path):
            pytest.fail("two hold the lease")
        assert caught.value.pid == other.pid
        other.kill()
        other.wait()
        with hold_store(path):
            pass

    def test_it_is_free_again_after_an_error_inside(self, path: Path, store: SQLiteStore) -> None:
        with pytest.raises(RuntimeError), hold_store(path):
            raise RuntimeError
        with hold_store(path), pytest.raises(StoreLocked), hold_store(path):
            pytest.fail("two hold the lease")

    def test_it_does_not_stop_others_from_reading_and_writing(self, path: Path, store: SQLiteStore) -> None:
        with hold_store(path), closing(SQLiteStore(path)) as other:
            other.create(claim())
        assert len(store.list().objects) == 1


def test_a_user_without_a_home_folder_hears_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(Unusable, match="no home folder for the store: set HOME or DEVALLOC_STORE"):
        default_path({}, 12345)


def test_a_look_at_what_has_changed_watches_no_file(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    watched: list[Path] = []
    monkeypatch.setattr(sqlite_store, "_open_inotify", lambda path: (watched.append(path), -1)[1])
    store.create(claim("c"))
    assert [event.object["metadata"]["name"] for event in store.watch(timeout=0)] == ["c"]
    assert watched == []
    assert [*store.watch(since=store.list().resource_version, timeout=0.01)] == []
    assert watched, "it waits"
