"""The journal: any sequence of writes does what a model says, two claims never have one key, damage is moved aside."""

from __future__ import annotations

import copy
import errno
import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from devalloc.store import Unavailable, Unusable
from devalloc_node.claims.journal_content import grant_content, grant_of, prepared_content, prepared_of
from devalloc_node.errors import Failed
from devalloc_node.journal import USE, ClaimState, HeldByOther, SQLiteJournal, open_journal
from devalloc_node.journal.protocol import HeldKey
from devalloc_node.journal.schema import SCHEMA
from devalloc_node.journal.sqlite import QUARANTINED
from devalloc_node.journal.state_folder import _has_tables, damaged_journals, move_aside
from devalloc_node.model.grant import ClaimRef, Grant, GrantedDevice
from devalloc_node.model.step import Prepared, PreparedDevice, Step
from tests.support.examples import examples
from tests.support.fake_tree import memory_folder
from tests.support.node_errors import raises

GRANT = {"kind": "DeviceClaim", "devices": []}
UIDS = ("u1", "u2", "u3")
KEYS = ("pci/1", "pci/2", "mdev/3")
DEVICES = ("p/d1", "p/d2")
SHARED = ("pf/1", "pf/2")


def ref(uid: str) -> ClaimRef:
    return ClaimRef("default", f"claim-{uid}", uid)


def step(target: str, kind: str = "driver") -> Step:
    return Step(kind, target, None, {"driver": "vfio-pci", "list": [1, None, "ü"]})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "node"


@pytest.fixture
def journal(folder: Path) -> Iterator[SQLiteJournal]:
    with closing(open_journal(folder)) as opened:
        yield opened


class JournalMachine(RuleBasedStateMachine):
    """The model: claims by UID, keys to (uid, device), and steps in order. Every read is compared after every write,
    through the journal that wrote it or one opened after it was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = memory_folder()
        self.path = Path(self.folder.name) / "node"
        self.journal = open_journal(self.path)
        self.claims: dict[str, ClaimState] = {}
        self.held: dict[str, tuple[str, str]] = {}
        self.steps: list[list[object]] = []
        """[id, owner, device, kind, target, state]"""

    def teardown(self) -> None:
        self.journal.close()
        self.folder.cleanup()

    @rule(uid=st.sampled_from(UIDS), keys=st.dictionaries(st.sampled_from(KEYS), st.sampled_from(DEVICES)))
    def begin(self, uid: str, keys: dict[str, str]) -> None:
        try:
            self.journal.begin(ref(uid), "DeviceClaim", GRANT, keys)
        except HeldByOther as taken:
            refused = taken.holding
        except Failed:
            refused = None
        else:
            assert uid not in self.claims
            assert not keys.keys() & self.held.keys()
            self.claims[uid] = ClaimState.PREPARING
            self.held |= {key: (uid, device) for key, device in keys.items()}
            return
        if refused is None:
            assert uid in self.claims
        else:
            assert refused.key in keys
            assert self.held[refused.key] == (refused.uid, refused.device)

    @rule(
        uid=st.sampled_from(UIDS),
        device=st.sampled_from(DEVICES),
        place=st.sampled_from("xyz"),
        shared=st.sampled_from((None, *SHARED)),
    )
    def intend(self, uid: str, device: str, place: str, shared: str | None) -> None:
        if uid not in self.claims:
            return
        begun = [(uid, device, step(place))]
        if shared is not None:
            begun = [(uid, device, Step(USE, shared, None, None)), (shared, "", step(place))]
        pending = [each[0] for each in self.steps if each[1] == uid and each[5] == "intent"]
        for number, (owner, of, one) in zip(self.journal.intend(begun, pending), begun, strict=True):  # type: ignore[arg-type]
            assert all(number > each[0] for each in self.steps)  # type: ignore[operator]
            self.steps.append([number, owner, of, one.kind, one.target, "intent"])
        for each in self.steps:
            if each[0] in pending:
                each[5] = "done"

    @rule(data=st.data())
    def change_a_step(self, data: st.DataObject) -> None:
        if not self.steps:
            return
        each = data.draw(st.sampled_from(self.steps))
        match data.draw(st.sampled_from(("done", "stuck", "undone"))):
            case "done":
                self.journal.done([each[0]])  # type: ignore[list-item]
                each[5] = "done"
            case "stuck":
                self.journal.stuck(each[0], "it would not")  # type: ignore[arg-type]
                each[5] = "stuck"
            case _:
                self.journal.undone(each[0])  # type: ignore[arg-type]
                self.steps.remove(each)

    @rule(data=st.data())
    def withhold(self, data: st.DataObject) -> None:
        own = [each for each in self.steps if each[1] in self.claims]
        if not own:
            return
        _, uid, device, *_ = data.draw(st.sampled_from(own))
        number = next(each[0] for each in own if each[1:3] == [uid, device])
        self.journal.withhold(number, "no reset")  # type: ignore[arg-type]
        for each in self.steps:
            if each[1:3] == [uid, device]:
                each[1] = f"withheld/{device}"
        self.held = {k: ("", d) if (u, d) == (uid, device) else (u, d) for k, (u, d) in self.held.items()}

    @rule(device=st.sampled_from(DEVICES))
    def unwithhold(self, device: str) -> None:
        left = any(each[1] == f"withheld/{device}" for each in self.steps)
        try:
            self.journal.unwithhold(device)
        except Failed:
            assert left
            return
        assert not left
        self.held = {key: (uid, of) for key, (uid, of) in self.held.items() if (uid, of) != ("", device)}

    @rule(uid=st.sampled_from(UIDS))
    def finish(self, uid: str) -> None:
        if self.claims.get(uid) is not ClaimState.PREPARING:
            return
        self.journal.finish(uid, {"devices": []})
        self.claims[uid] = ClaimState.PREPARED
        for each in self.steps:
            if each[1] == uid and each[5] == "intent":
                each[5] = "done"

    @rule(uid=st.sampled_from(UIDS))
    def release(self, uid: str) -> None:
        self.journal.release(uid)
        if uid in self.claims:
            self.claims[uid] = ClaimState.UNPREPARING

    @rule(uid=st.sampled_from(UIDS))
    def forget(self, uid: str) -> None:
        if any(each[1] == uid for each in self.steps):
            with pytest.raises(Failed, match="are not undone"):
                self.journal.forget(uid)
            return
        self.journal.forget(uid)
        self.claims.pop(uid, None)
        self.held = {key: (owner, device) for key, (owner, device) in self.held.items() if owner != uid}

    @rule()
    def open_again(self) -> None:
        self.journal.close()
        self.journal = open_journal(self.path)
        assert self.journal.setting(QUARANTINED) is None

    @invariant()
    def says_what_was_written(self) -> None:
        assert {record.ref.uid: record.state for record in self.journal.claims()} == self.claims
        assert {key: (one.uid, one.device) for key, one in self.journal.held().items()} == self.held
        owners = {str(each[1]) for each in self.steps}
        assert set(self.journal.shared()) == {owner for owner in owners if owner in SHARED}
        for owner in owners | {*UIDS}:
            rows = [[s.id, s.owner, s.device, s.step.kind, s.step.target, s.state] for s in self.journal.steps(owner)]
            assert rows == [each for each in self.steps if each[1] == owner]
        for name in SHARED:
            users = [s.id for s in self.journal.users(name)]
            assert users == [each[0] for each in self.steps if each[3:5] == [USE, name]]
        withheld = {device for uid, device in self.held.values() if not uid}
        assert {one.device for one in self.journal.withheld()} == withheld


JournalMachine.TestCase.settings = settings(max_examples=examples(8, 0.0625), stateful_step_count=25, deadline=None)
TestJournalMachine = JournalMachine.TestCase


class TestFile:
    def test_only_its_own_user_can_read_folder_and_files(self, folder: Path, journal: SQLiteJournal) -> None:
        journal.begin(ref("u1"), "DeviceClaim", GRANT, {})
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}

    def test_a_folder_that_others_may_enter_is_closed(self, folder: Path) -> None:
        folder.mkdir(mode=0o755)
        folder.chmod(0o755)
        open_journal(folder).close()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700

    def test_a_link_in_place_of_the_folder_is_refused(self, folder: Path, tmp_path: Path) -> None:
        folder.symlink_to(tmp_path)
        with pytest.raises(Unusable, match="is a link or not a folder"):
            open_journal(folder)

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
    def test_another_users_folder_is_refused(self, folder: Path) -> None:
        folder.mkdir()
        os.chown(folder, 12345, 12345)
        with pytest.raises(Unusable, match="belongs to user 12345"):
            open_journal(folder)

    def test_each_write_is_on_disk_when_it_returns(self, journal: SQLiteJournal) -> None:
        (mode,) = journal._connection.execute("PRAGMA journal_mode").fetchone()
        (synchronous,) = journal._connection.execute("PRAGMA synchronous").fetchone()
        assert (mode, synchronous) == ("wal", 2)

    def test_a_newer_plugins_journal_is_left_alone(self, folder: Path, journal: SQLiteJournal) -> None:
        journal.close()
        path = folder / "journal.db"
        with closing(sqlite3.connect(path)) as raw:
            raw.execute(f"PRAGMA user_version = {len(SCHEMA.steps) + 1}")
        before = path.read_bytes()
        with pytest.raises(Unusable, match="written by a newer devalloc"):
            open_journal(folder)
        assert path.read_bytes() == before

    def test_a_store_is_no_journal(self, folder: Path) -> None:
        folder.mkdir(mode=0o700)
        with closing(sqlite3.connect(folder / "journal.db")) as raw:
            raw.execute("CREATE TABLE mine (x)")
        with pytest.raises(Unusable, match="another program"):
            open_journal(folder)


class TestDamage:
    def spoil(self, folder: Path, statement: str) -> None:
        with closing(sqlite3.connect(folder / "journal.db")) as raw:
            raw.execute("PRAGMA ignore_check_constraints = ON")
            raw.execute(statement)
            raw.commit()

    @pytest.mark.parametrize(
        "statement",
        [
            "UPDATE claims SET granted = '{'",
            "UPDATE claims SET granted = '[]'",
            "UPDATE claims SET prepared = NULL, state = 'prepared'",
            "UPDATE claims SET state = 'asleep'",
            "UPDATE steps SET was = 'nothing'",
            "UPDATE steps SET state = 'asleep'",
            "UPDATE steps SET owner = 'other'",
            "UPDATE holdings SET uid = 'other'",
            "UPDATE records SET content = '3'",
            "DELETE FROM claims",
            "DROP TABLE steps",
            "ALTER TABLE holdings DROP COLUMN device",
        ],
    )
    def test_rows_that_make_no_sense_are_moved_aside(self, folder: Path, statement: str) -> None:
        with closing(open_journal(folder)) as journal:
            journal.begin(ref("u1"), "DeviceClaim", GRANT, {"pci/1": "p/d"})
            journal.intend([("u1", "p/d", step("x"))])
            journal.put("machines", "vm", {"pid": 1})
        self.spoil(folder, statement)
        self.assert_moved(folder)

    @pytest.mark.parametrize(
        "spoil",
        [
            lambda path: path.write_bytes(b"no database at all" * 100),
            lambda path: path.write_bytes(b"x"),
            lambda path: os.truncate(path, 5000),
            lambda path: path.write_bytes(path.read_bytes()[:4096] + b"\xff" * (path.stat().st_size - 4096)),
        ],
    )
    def test_a_file_that_is_damaged_is_moved_aside(self, folder: Path, spoil: object) -> None:
        with closing(open_journal(folder)) as journal:
            journal.begin(ref("u1"), "DeviceClaim", GRANT, {"pci/1": "p/d"})
        spoil(folder / "journal.db")  # type: ignore[operator]
        self.assert_moved(folder)

    def assert_moved(self, folder: Path) -> None:
        with closing(open_journal(folder)) as journal:
            aside = journal.setting(QUARANTINED)
            assert aside is not None
            assert Path(aside).exists()
            assert (journal.claims(), journal.held(), journal.shared()) == ([], {}, [])
        # Once: the new one is good.
        with closing(open_journal(folder)) as journal:
            assert journal.setting(QUARANTINED) == aside
        assert len(list(folder.glob("journal.db.damaged-*Z"))) == 1

    def test_those_that_were_moved_aside_are_listed_the_latest_last(self, tmp_path: Path) -> None:
        days = [20, 3, 28, 11, 7, 16]
        for day in days:
            for end in ("", "-wal", "-shm"):
                (tmp_path / f"journal.db.damaged-202611{day:02}T000000Z{end}").touch()
        listed = [path.name for path in damaged_journals(tmp_path / "journal.db")]
        assert listed == [f"journal.db.damaged-202611{day:02}T000000Z" for day in sorted(days)]

    def test_of_several_that_were_moved_aside_the_latest_is_recorded(self, folder: Path) -> None:
        open_journal(folder).close()
        for day in (20, 3, 28, 11):
            (folder / f"journal.db.damaged-202611{day:02}T000000Z").touch()
        with closing(open_journal(folder)) as journal:
            assert journal.setting(QUARANTINED) == str(folder / "journal.db.damaged-20261128T000000Z")

    @pytest.mark.parametrize(
        ("kind", "rows", "expected"), [(13, 0, False), (13, 1, True), (13, 256, True), (5, 0, True), (5, 2, True)]
    )
    def test_a_database_has_tables_if_its_first_page_lists_some_or_has_further_pages(
        self, kind: int, rows: int, expected: bool, tmp_path: Path
    ) -> None:
        """A first page with children need not have a row of its own: the format of SQLite's files, 1.6."""
        page = b"\0" * 100 + bytes([kind, 0, 0]) + rows.to_bytes(2, "big") + b"\0" * 3991
        (tmp_path / "db").write_bytes(page)
        assert _has_tables(tmp_path / "db") is expected
        (tmp_path / "db").write_bytes(page[:104])
        assert not _has_tables(tmp_path / "db")
        assert not _has_tables(tmp_path / "none")

    def test_it_is_known_though_the_plugin_died_right_after_it_moved_it(self, folder: Path) -> None:
        open_journal(folder).close()
        move_aside(folder / "journal.db", datetime(2026, 11, 21, tzinfo=UTC))
        self.assert_moved(folder)

    def test_an_admin_who_removed_one_of_two_has_still_one_to_look_at(self, folder: Path) -> None:
        for day in (20, 21):
            open_journal(folder).close()
            move_aside(folder / "journal.db", datetime(2026, 11, day, tzinfo=UTC))
        with closing(open_journal(folder)) as journal:
            last = Path(journal.setting(QUARANTINED) or "")
        last.unlink()
        self.assert_moved(folder)

    def test_one_that_another_process_has_open_is_not_moved_under_it(self, folder: Path) -> None:
        with closing(open_journal(folder)) as journal:
            journal.begin(ref("u1"), "DeviceClaim", GRANT, {"pci/1": "p/d"})
            self.spoil(folder, "UPDATE claims SET granted = '{'")
            with pytest.raises(Unusable, match=r"Another process uses .*: stop it"):
                open_journal(folder)
        self.assert_moved(folder)

    @pytest.mark.parametrize("unreadable", ["journal.db-wal", "journal.db-shm"])
    def test_one_that_cannot_be_read_is_not_taken_for_a_good_one(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, unreadable: str
    ) -> None:
        """SQLite would open it without what the log says, and shorten the log for good."""
        with closing(open_journal(folder)) as journal:
            journal.begin(ref("u1"), "DeviceClaim", GRANT, {"pci/1": "p/d"})
        read_bytes = Path.read_bytes

        def fail(path: Path) -> bytes:
            if path.name == unreadable:
                raise OSError(errno.EIO, "Input/output error")
            return read_bytes(path)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_bytes", fail)
            with pytest.raises(Unavailable, match=r"cannot read the journal .*journal\.db: Input/output error"):
                open_journal(folder)
        with closing(open_journal(folder)) as journal:
            assert [record.ref.uid for record in journal.claims()] == ["u1"]
            assert journal.setting(QUARANTINED) is None, "it was left where it is"

    def test_damage_that_is_met_later_is_an_error_of_that_call(self, folder: Path, journal: SQLiteJournal) -> None:
        journal.begin(ref("u1"), "DeviceClaim", GRANT, {"pci/1": "p/d"})
        journal._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        size = (folder / "journal.db").stat().st_size
        with (folder / "journal.db").open("r+b") as file:
            file.seek(4096)
            file.write(b"\xff" * (size - 4096))
        with closing(open_elsewhere(folder)) as other, raises(Failed, "JournalDamaged") as failed:
            other.claims()
        assert not failed.value.retryable


def open_elsewhere(folder: Path) -> SQLiteJournal:
    """A second connection, which has nothing in its cache and did not check anything yet."""
    unchecked = type("Unchecked", (SQLiteJournal,), {"_check": lambda self: None})
    opened: SQLiteJournal = unchecked(folder / "journal.db", None)
    return opened


class TestRecords:
    def test_each_room_has_names_of_its_own(self, journal: SQLiteJournal) -> None:
        journal.put("machines", "vm-1", {"pid": 7})
        journal.put("machines", "vm-1", {"pid": 8})
        journal.put("other", "vm-1", {"x": [None]})
        assert journal.record("machines", "vm-1") == {"pid": 8}
        assert journal.records("machines") == {"vm-1": {"pid": 8}}
        journal.drop("machines", "vm-1")
        journal.drop("machines", "vm-1")
        assert journal.record("machines", "vm-1") is None
        assert journal.records("other") == {"vm-1": {"x": [None]}}

    def test_a_reader_cannot_change_what_the_next_one_reads(self, journal: SQLiteJournal) -> None:
        content = {"spec": {"disks": [{"path": "/a"}]}, "state": "running"}
        journal.put("machines", "vm-1", content)
        record: Any = journal.records("machines")["vm-1"]
        changes: list[Callable[[], object]] = [
            lambda: record.update(state="failed"),
            lambda: record.pop("state"),
            lambda: record["spec"].setdefault("memory", 1),
            lambda: record["spec"]["disks"].append({}),
            lambda: record["spec"]["disks"].sort(),
            lambda: record["spec"]["disks"][0].clear(),
        ]
        for change in changes:
            with pytest.raises(TypeError, match="shared"):
                change()
        with pytest.raises(TypeError, match="shared"):
            record["state"] = "failed"
        with pytest.raises(TypeError, match="shared"):
            del record["spec"]["disks"][0]["path"]
        own = copy.deepcopy(record)
        own["spec"]["disks"][0]["path"] = "/b"
        assert journal.records("machines") == {"vm-1": content}
        journal.put("machines", "vm-1", {**record, "spec": own["spec"]})
        assert journal.records("machines")["vm-1"]["spec"] == {"disks": [{"path": "/b"}]}

    def test_records_outlive_a_reboot(self, journal: SQLiteJournal) -> None:
        journal.boot("one", {"file"})
        journal.put("machines", "vm-1", {"pid": 7})
        journal.boot("two", {"file"})
        assert journal.records("machines") == {"vm-1": {"pid": 7}}


class TestBoot:
    def test_the_first_and_the_same_boot_change_nothing(self, journal: SQLiteJournal) -> None:
        journal.begin(ref("u1"), "DeviceClaim", GRANT, {"pci/1": "p/d"})
        assert journal.boot("one", {"file"}) == []
        assert journal.boot("one", {"file"}) == []
        assert set(journal.held()) == {"pci/1"}

    def test_another_boot_voids_all_but_what_lasts(self, journal: SQLiteJournal) -> None:
        journal.boot("one", {"file"})
        journal.begin(ref("u1"), "DeviceClaim", GRANT, {"pci/1": "p/d"})
        journal.intend([("u1", "p/d", Step(USE, "pf/1", None, None)), ("pf/1", "", step("1"))])
        journal.intend([("u1", "p/d", step("x")), ("u1", "", step("/a/file", "file"))])
        journal.finish("u1", {"devices": []})
        (voided,) = journal.boot("two", {"file"})
        assert (voided.ref, voided.state) == (ref("u1"), ClaimState.UNPREPARING)
        assert [record.step.target for record in journal.steps("u1")] == ["/a/file"]
        assert (journal.held(), journal.shared(), journal.users("pf/1")) == ({}, [], [])


class TestContent:
    DEVICE = PreparedDevice(
        requests=("gpu",),
        pool="p",
        device="d",
        binding="vfio",
        functions=("0000:41:00.0", "0000:41:00.1"),
        nodes=("/dev/vfio/15",),
        attributes={"resource.kubernetes.io/pciBusID": "0000:41:00.0"},
    )

    def test_answers_and_grants_come_back_as_they_were(self) -> None:
        prepared = Prepared(ref("u"), (self.DEVICE, replace(self.DEVICE, admin=True, share="x")), {"p/d": ("a/b=c",)})
        assert prepared_of(ref("u"), prepared_content(prepared)) == prepared
        config = {"kind": "VfConfig", "spec": {"vlan": 7}}
        device = GrantedDevice(("0",), "p", "d", class_configs=(config,), claim_configs=(config, config))
        grant = Grant(ref("u"), "DeviceClaim", (device,), ("vm-1",), "name")
        assert grant_of(ref("u"), grant_content(grant, "store 1")) == grant

    def test_members_that_a_newer_release_added_are_ignored_and_missing_ones_have_defaults(self) -> None:
        content = {"devices": [{"pool": "p", "device": "d", "binding": "vfio", "colour": "blue"}], "later": 1}
        (device,) = prepared_of(ref("u"), content).devices
        assert device == PreparedDevice((), "p", "d", "vfio")

    @pytest.mark.parametrize("content", [{}, {"devices": 3}, {"devices": [{}]}, {"devices": ["d"]}])
    def test_what_is_no_answer_is_damage(self, content: dict[str, object]) -> None:
        with raises(Failed, "JournalDamaged"), suppress(ZeroDivisionError):
            prepared_of(ref("u"), content)


@pytest.mark.parametrize("gone", ["journal.db", "journal.db-wal"])
def test_nothing_is_written_into_a_file_that_was_removed(journal: SQLiteJournal, folder: Path, gone: str) -> None:
    journal.begin(ref("u1"), "DeviceClaim", GRANT, {})
    (folder / gone).unlink()
    with raises(Failed, "JournalGone") as failed:
        journal.begin(ref("u2"), "DeviceClaim", GRANT, {})
    assert str(folder / gone) in failed.value.message
    assert [record.ref.uid for record in journal.claims()] == ["u1"], "what is known is still told"


@pytest.mark.parametrize("use", [SQLiteJournal.claims, lambda journal: journal.drop("room", "name")])
def test_work_that_outlives_the_plugin_hears_that_it_ends(
    journal: SQLiteJournal, use: Callable[[SQLiteJournal], object]
) -> None:
    """And not that the journal is broken: the next plugin goes on with it."""
    journal.close()
    with pytest.raises(Failed, match="is closed, because this process ends; nothing was written") as failed:
        use(journal)
    assert failed.value.code == "JournalUnavailable"


def test_a_disk_that_does_not_answer_is_an_error_of_the_plugins(
    journal: SQLiteJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("devalloc.store.paths.os.stat", refuse)
        with pytest.raises(Failed) as failed:
            journal.begin(ref("u1"), "DeviceClaim", GRANT, {})
    assert (failed.value.code, failed.value.retryable) == ("JournalUnavailable", True)
    assert not journal.claims()


@pytest.mark.parametrize(
    ("uid", "message"),
    [
        ("u1", "pci/x is held by claim u1 (device p/d); unprepare that claim first"),
        ("", "pci/x is held by no claim: it is withheld until it is reset (device p/d); see its entry in `withheld`"),
    ],
)
def test_who_holds_something_and_what_to_do_about_it(uid: str, message: str) -> None:
    assert HeldByOther(HeldKey("pci/x", uid, "p/d")).message == message
