"""Several processes on one store: nothing acknowledged is lost, nothing is half done, whichever is killed whenever."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

from devalloc.store import Event, EventType
from devalloc.store.sqlite import SQLiteStore

WRITER = """
import random, sys
from pathlib import Path
from devalloc.store import Change, Conflict, Key, NotFound
from devalloc.store.sqlite import SQLiteStore
from tests.support.minimal_manifests import claim

path, me, rounds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
store, choice = SQLiteStore(path), random.Random(me)
for number in range(rounds):
    name = f"w{me}-{number:05}"
    store.create(claim(name))
    print(name, flush=True)                  # acknowledged: from here on it may not be lost
    while True:                              # both or none
        pair = [store.get("Counter", None, "left"), store.get("Counter", None, "right")]
        value = str(int(pair[0]["metadata"]["annotations"]["n"]) + 1)
        try:
            store.commit([Change(Key.of(c), c["metadata"]["resourceVersion"], None, {"n": value}) for c in pair])
            break
        except Conflict:
            continue
    if number % 3 == 0:
        store.delete("DeviceClaim", "default", name)
        print("-" + name, flush=True)
"""


def start(path: Path, me: int, rounds: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, path, str(me), str(rounds)], stdout=subprocess.PIPE, text=True
    )


def with_counters(path: Path) -> SQLiteStore:
    store = SQLiteStore(path)
    for name in ("left", "right"):
        store.create({"apiVersion": "t/v1", "kind": "Counter", "metadata": {"name": name, "annotations": {"n": "0"}}})
    return store


def counters(store: SQLiteStore) -> list[int]:
    return [int(obj["metadata"]["annotations"]["n"]) for obj in store.list("Counter").objects]


def names(store: SQLiteStore) -> set[str]:
    return {obj["metadata"]["name"] for obj in store.list("DeviceClaim").objects}


def test_every_write_of_every_process_counts_and_a_watch_sees_them(tmp_path: Path) -> None:
    with closing(with_counters(tmp_path / "db")) as store:
        writers = [start(store.path, me, 40) for me in range(3)]
        state: set[str] = set()
        position = "0"
        while any(writer.poll() is None for writer in writers):
            position = follow(state, store, position)
        follow(state, store, position)
        assert [writer.wait() for writer in writers] == [0, 0, 0]
        assert counters(store) == [120, 120]
        expected = {f"w{me}-{number:05}" for me in range(3) for number in range(40) if number % 3}
        assert names(store) == expected
        assert state == expected
        versions = [int(obj["metadata"]["resourceVersion"]) for obj in store.list().objects]
        assert len(set(versions)) == len(versions)
        assert store.check() == []


def follow(state: set[str], store: SQLiteStore, position: str) -> str:
    event: Event | None = None
    for event in store.watch("DeviceClaim", position, timeout=0.05):
        (state.discard if event.type is EventType.DELETED else state.add)(event.object["metadata"]["name"])
    return position if event is None else event.resource_version


def test_killed_in_the_middle_of_writes(tmp_path: Path) -> None:
    """kill -9 at random moments: what was acknowledged is there, pairs are whole, the file is sound."""
    choice = random.Random(1)
    with_counters(tmp_path / "db").close()
    acknowledged: set[str] = set()
    deleted: set[str] = set()
    for me in range(6):
        writer = start(tmp_path / "db", me, 100_000)
        assert writer.stdout is not None
        lines = [writer.stdout.readline()]
        time.sleep(choice.uniform(0, 0.15))
        writer.kill()
        lines += writer.stdout.readlines()
        whole = {line.strip() for line in lines if line.endswith("\n")}
        deleted |= {line[1:] for line in whole if line.startswith("-")}
        acknowledged |= {line for line in whole if not line.startswith("-")}
        with closing(SQLiteStore(tmp_path / "db")) as store:
            assert store.check() == []
            left, right = counters(store)
            assert left == right
            there = names(store)
        assert not there & deleted
        # The claim that was acknowledged last may be deleted without that having been said.
        missing = acknowledged - deleted - there
        assert len(missing) <= me + 1
        assert all(int(name.split("-")[1]) % 3 == 0 for name in missing)
    assert len(acknowledged) > 20
