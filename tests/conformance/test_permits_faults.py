"""Each call to the store fails once, before or after it did what it was to do: no answer says what is not written, no
node is overdrawn, and the server goes on by itself."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devalloc.machines.permits import Settings, server, writer
from devalloc.store import Unavailable
from devalloc.store.sqlite import SQLiteStore
from tests.support.fake_tree import memory_folder
from tests.support.permit_bench import (
    PermitBench,
    amounts,
    machine,
    node_of,
    permit_of,
    running,
    serving,
    write_status_part,
)
from tests.support.waiting import LONG, until

LIMIT = amounts(10_000, 20)
SETTINGS = replace(Settings(port=0, dump_port=0), resync=0.05)
CALLS = ("get", "list", "create", "replace", "commit_each")
BILLED = {"autoscaling.neon.tech/billing-endpoint-id": "ep"}


class Faulty(SQLiteStore):
    """Fails once, at the ``at``-th call that the server makes."""

    def __init__(self, path: Path, at: int | None = None, *, is_done: bool = False) -> None:
        super().__init__(path)
        self.calls: list[str] = []
        self._at, self._is_done = at, is_done
        self._counting = threading.Lock()

    def _call(self, name: str, *of: Any, **more: Any) -> Any:
        with self._counting:
            fails = len(self.calls) == self._at
            self.calls.append(name)
        if fails and not self._is_done:
            raise Unavailable(f"{name} fails")
        done = getattr(SQLiteStore, name)(self, *of, **more)
        if fails:
            raise Unavailable(f"it is unknown whether {name} was done")
        return done


for _name in CALLS:
    setattr(Faulty, _name, lambda self, *of, _name=_name, **more: self._call(_name, *of, **more))


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for module in (writer, server):
        monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)
    with memory_folder() as name:
        yield Path(name) / "store.db"


def course(path: Path, store: Faulty) -> None:
    """What two machines and their node do on a node that gets full, under a server that starts and ends."""
    with closing(SQLiteStore(path)) as own:
        for name in ("a", "b"):
            running(own, machine(name, annotations=BILLED))
    with serving(path, node_of(LIMIT), SETTINGS, store=store, lease_seconds=3.0) as bench:
        for name, cpu, memory in (("a", 1, 1), ("b", 1, 1), ("a", 8, 16), ("b", 9, 9), ("a", 2, 2), ("b", 8, 18)):
            answered = ask(bench, name, cpu, memory)
            written = permit_of(bench.store, name) or {}
            assert (written["cpus"], written["memory"]) == (str(answered["vCPUs"]), answered["mem"])
            write_status_part(bench.store, name, observed={"cpus": str(answered["vCPUs"]), "memory": answered["mem"]})
        obj = bench.store.get("VirtualMachine", "default", "a")
        bench.store.replace({**obj, "metadata": {**obj["metadata"], "labels": {}}})
        until(lambda: permit_of(bench.store, "a") is None, "it asks no more")


def ask(bench: PermitBench, name: str, cpu: int, memory: int) -> Any:
    """Asked until it is answered; what is not is 503, or no server listens for a moment."""
    deadline = time.monotonic() + LONG
    while time.monotonic() < deadline:
        try:
            with closing(bench.client()) as client:
                status, _, body = client.post(json.dumps(client.message(name, cpu, f"{memory}Gi")).encode())
        except OSError:
            status, body = 503, b""
        if status == 200:
            return json.loads(body)["permit"]
        assert status == 503, body
        threading.Event().wait(0.01)
    pytest.fail("it is never answered")


def sound(path: Path) -> None:
    """What is written down in the end."""
    with closing(SQLiteStore(path)) as store:
        permits = [permit_of(store, name) for name in ("a", "b")]
        assert permits[0] is None
        assert permits[1] is not None
        assert (permits[1]["cpus"], permits[1]["memory"]) == ("8", "18Gi")


def test_nothing_that_fails_once_overdraws_a_node_or_ends_the_server(path: Path) -> None:
    with closing(Faulty(path)) as store:
        course(path, store)
        count, names = len(store.calls), set(store.calls)
    sound(path)
    assert names == {*CALLS}
    with closing(SQLiteStore(path)) as own:
        assert "holderIdentity" not in own.get("Lease", "default", "devalloc-permits")["spec"], "it was given away"
    for at in range(min(count, 40)):
        for is_done in (False, True):
            folder = path.parent / f"{at}-{is_done}"
            folder.mkdir(mode=0o700)
            with closing(Faulty(folder / "store.db", at, is_done=is_done)) as store:
                course(folder / "store.db", store)
            sound(folder / "store.db")
