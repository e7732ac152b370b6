"""The journal is copied while the plugin runs, and put back only while it does not."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from devalloc.store import StoreError, StoreLocked
from devalloc.store.sqlite import SQLiteStore
from devalloc_node.errors import Failed
from devalloc_node.journal import open_journal
from devalloc_node.journal.sqlite import backup, restore
from devalloc_node.model.grant import ClaimRef

REF = ClaimRef("default", "train", "uid-1")
LATER = ClaimRef("default", "later", "uid-2")


def claims(folder: Path) -> list[str]:
    with closing(open_journal(folder)) as journal:
        return [record.ref.name for record in journal.claims()]


def test_a_copy_is_made_of_a_journal_in_use_and_put_back_when_it_is_not(tmp_path: Path) -> None:
    folder, copy = tmp_path / "node", tmp_path / "copy.node"
    with closing(open_journal(folder)) as journal:
        journal.begin(REF, "DeviceClaim", {"kind": "DeviceClaim", "devices": []}, {"pci/0000:41:00.0": "p/d"})
        assert backup(folder, copy)
        journal.begin(LATER, "DeviceClaim", {"kind": "DeviceClaim", "devices": []}, {})
        with pytest.raises(StoreLocked, match="a node plugin uses"):
            restore(copy, folder)
    assert claims(folder) == ["train", "later"]
    aside = restore(copy, folder)
    assert claims(folder) == ["train"]
    assert aside is not None
    assert aside.parent == folder
    assert folder.stat().st_mode & 0o777 == 0o700


def test_there_may_be_none(tmp_path: Path) -> None:
    assert not backup(tmp_path / "nobody", tmp_path / "copy.node")
    assert not (tmp_path / "copy.node").exists()


def test_a_store_is_no_journal(tmp_path: Path) -> None:
    with closing(SQLiteStore(tmp_path / "store.db")) as store:
        store.backup(tmp_path / "copy.db")
    with pytest.raises(StoreError, match="not a backup of a devalloc journal"):
        restore(tmp_path / "copy.db", tmp_path / "node")


def test_a_file_moved_over_a_journal_in_use_gets_nothing_of_what_was_there(tmp_path: Path) -> None:
    """At the next start SQLite would write the log that still lies there into it."""
    folder, copy, away = tmp_path / "node", tmp_path / "copy.node", tmp_path / "away" / "journal.db"
    away.parent.mkdir(mode=0o700)
    grant = {"kind": "DeviceClaim", "devices": []}
    with closing(open_journal(folder)) as journal:
        journal.begin(REF, "DeviceClaim", grant, {})
        assert backup(folder, copy)
        journal.begin(LATER, "DeviceClaim", grant, {})
        (folder / "journal.db").rename(away)
        copy.rename(folder / "journal.db")
        for _ in range(2):
            with pytest.raises(Failed, match=r"journal.db was removed or replaced"):
                journal.begin(ClaimRef("default", "last", "uid-3"), "DeviceClaim", grant, {})
    assert claims(folder) == ["train"]
    assert claims(away.parent) == ["train", "later"], "the former one is whole where it is now"
