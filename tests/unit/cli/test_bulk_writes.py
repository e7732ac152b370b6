"""``devalloc apply`` and ``delete`` of many objects."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from devalloc.cli.render.output import show_spinner
from devalloc.cli.verbs import apply as verbs
from devalloc.store import Conflict, Key, Unavailable
from devalloc.store.sqlite import SQLiteStore
from tests.support.cli_shell import Shell, claim, devalloc, device_class, text
from tests.support.waiting import until

__all__ = ["devalloc"]
NUMBER = 2 * verbs.TOGETHER + 5


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """A word for each transaction that writes."""
    transactions: list[bool] = []
    from devalloc.store import sqlite

    begin = sqlite.transaction

    @contextmanager
    def counted(connection: Any, *, write: bool) -> Iterator[None]:
        transactions.extend([True] * write)
        with begin(connection, write=write):
            yield

    monkeypatch.setattr(sqlite, "transaction", counted)
    return transactions


def test_many_are_written_in_few_transactions(devalloc: Shell, written: list[bool]) -> None:
    """Each transaction waits for the disk."""
    manifests = text(device_class(), *(claim(f"c{number:04}") for number in range(NUMBER)))
    applied = devalloc("apply", "-f", "-", stdin=manifests)
    assert applied.code == 0
    assert len(applied.out.splitlines()) == NUMBER + 1
    assert len(written) < 10
    written.clear()
    deleted = devalloc("delete", "claims", "--all")
    assert deleted.out.splitlines() == [f"deviceclaim/c{number:04} deleted" for number in range(NUMBER)]
    assert len(written) < 10


def test_one_by_one_where_they_cannot_be_written_together(
    devalloc: Shell, monkeypatch: pytest.MonkeyPatch, written: list[bool]
) -> None:
    """As on a full disk: what needs no space is written all the same, and what can be, too."""

    @contextmanager
    def full(self: SQLiteStore) -> Iterator[None]:
        raise Unavailable("the disk is full")
        yield

    monkeypatch.setattr(SQLiteStore, "together", full)
    assert devalloc("apply", "-f", "-", stdin=text(claim("a"), claim("b"))).code == 0
    assert devalloc("delete", "claims", "--all").out.splitlines() == ["deviceclaim/a deleted", "deviceclaim/b deleted"]


def test_what_is_not_there_does_not_keep_the_others(devalloc: Shell) -> None:
    devalloc("apply", "-f", "-", stdin=text(claim("a"), claim("b")))
    deleted = devalloc("delete", "claim", "a", "none", "b")
    assert deleted.out.splitlines() == ["deviceclaim/a deleted", "deviceclaim/b deleted"]
    assert "DeviceClaim default/none does not exist" in deleted.err


@pytest.mark.parametrize(("others", "code"), [(verbs.ATTEMPTS - 1, 0), (verbs.ATTEMPTS, 1)])
def test_an_object_that_others_write_at_the_same_time_is_tried_again(
    devalloc: Shell, monkeypatch: pytest.MonkeyPatch, others: int, code: int
) -> None:
    devalloc("apply", "-f", "-", stdin=text(device_class("gpu")))
    replace, conflicts = SQLiteStore.replace, iter(range(others))

    def contended(self: SQLiteStore, obj: dict[str, Any]) -> dict[str, Any]:
        if next(conflicts, None) is not None:
            raise Conflict({Key.of(obj): "it was changed"})
        return replace(self, obj)

    monkeypatch.setattr(SQLiteStore, "replace", contended)
    applied = devalloc("apply", "-f", "-", stdin=text(device_class("gpu", driver="nic.devalloc.io")))
    assert (applied.code, applied.out) == (code, "deviceclass/gpu configured\n" if code == 0 else "")
    assert ("it was changed" in applied.err) == (code != 0)


def test_a_spinner_says_how_many_are_done_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    with show_spinner("deleting", 2000) as done:
        until(lambda: "deleting (0 of 2,000, 1 s)" in terminal.getvalue())
        done(1500)
        until(lambda: "deleting (1,500 of 2,000, " in terminal.getvalue())
    assert terminal.getvalue().endswith("\r\x1b[K")
