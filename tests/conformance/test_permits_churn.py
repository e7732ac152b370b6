"""Machines come, go, come again by the same name, move and change while agents ask: no grant takes what is not there,
and in the end the server has the ledger that one would have which begins with what is written."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devalloc.api.views import MachineView
from devalloc.machines.permits import Host, Settings
from devalloc.machines.permits.ledger import PermitLedgers
from devalloc.scaling.permits.ledger import MachineKey
from devalloc.store import Conflict, Fence, Object, StoreError
from devalloc.store.sqlite import SQLiteStore
from tests.support.examples import examples
from tests.support.fake_tree import memory_folder
from tests.support.permit_bench import KIND, PermitBench, amounts, machine, running, serving, write_status_part
from tests.support.permit_records import SOURCES
from tests.support.waiting import until

NAMES = [f"m{number}" for number in range(6)]
HOSTS = {"node-a": Host(amounts(20_000, 40))}
SETTINGS = Settings(port=0, dump_port=0)
CHANGES, REQUESTS = 150, 250
"""Of each who changes, and of each who asks."""


@pytest.fixture
def path() -> Iterator[Path]:
    with memory_folder() as name:
        yield Path(name) / "store.db"


class Judging(SQLiteStore):
    """Looks at each write: what else is there then is what was decided on, or the fence is broken."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.wrong: list[str] = []
        self.writes = 0

    def commit_each(self, units: Any, fence: Fence | None = None) -> Any:
        before = {MachineView(obj).key: obj for obj in self.list(KIND).objects}
        done = super().commit_each(units, fence)
        self.writes += 1
        after = before | {MachineView(obj).key: obj for unit in done if not isinstance(unit, Conflict) for obj in unit}
        had, has = (begun(objects.values()).nodes["node-a"] for objects in (before, after))
        if has.counted.exceeds(has.total.most(had.counted)):
            self.wrong.append(f"{has.counted} is taken of {has.total}, and was {had.counted}")
        return done


def begun(objects: Iterable[Object]) -> PermitLedgers:
    """What a server makes of these objects that has seen them come."""
    book = PermitLedgers(Settings(), SOURCES)
    book.begin(HOSTS)
    for obj in objects:
        book.put(obj)
    return book


def change(store: SQLiteStore, draw: random.Random) -> None:
    """One change of one machine, as its owner, its node or another user makes it."""
    name = draw.choice(NAMES)
    what = draw.choices(("delete", "make", "label", "run", "read back", "move", "pod"), (4, 6, 2, 2, 2, 1, 1))[0]
    if what == "delete":
        store.delete(KIND, "default", name)
    elif what == "make":
        running(store, machine(name, least=amounts(draw.choice([250, 1000]), 1)), amounts(500, 1))
    elif what in ("label", "move"):
        obj = store.get(KIND, "default", name)
        obj["metadata"]["labels"] = draw.choice([{}, {"autoscaling.neon.tech/enabled": "true"}])
        if what == "move":
            obj["spec"]["nodeName"] = draw.choice(["node-a", "node-b"])
        store.replace(obj)
    elif what == "run":
        write_status_part(store, name, machineID=f"run-{draw.getrandbits(64)}", permitted=None)
    elif what == "read back":
        write_status_part(store, name, observed={"cpus": f"{draw.randint(250, 2000)}m", "memory": "1Gi"})
    else:
        write_status_part(store, name, runnerPod=draw.choice(["p", "q", None]))


def changing(path: Path, seed: int) -> None:
    draw = random.Random(seed)
    with closing(SQLiteStore(path)) as store:
        for _ in range(CHANGES):
            with suppress(StoreError):  # it is not there, or there already
                change(store, draw)
            threading.Event().wait(draw.random() * 0.01)


def asking(bench: PermitBench, seed: int, answers: Counter[int]) -> None:
    draw = random.Random(seed)
    with closing(bench.client()) as client:
        for _ in range(REQUESTS):
            last = draw.choice([None, {"vCPUs": draw.randint(1, 8), "mem": "1Gi"}])
            name, memory = draw.choice([*NAMES, *NAMES, "p", "q"]), f"{draw.randint(1, 20)}Gi"
            message = client.message(name, draw.randint(1, 12), memory, last)
            answers[client.post(json.dumps(message).encode())[0]] += 1


def ledger(book: PermitLedgers) -> dict[MachineKey, Any]:
    """What counts of each machine, but for what is not written down."""
    by_key: dict[MachineKey, Any] = {}
    for key, record in book.records.items():
        machine = book.nodes[record.node].machines[key]
        by_key[key] = (record, replace(machine, load=None, pressure=amounts(0, 0)))
    return by_key


@pytest.mark.parametrize("seed", [1, 2][: examples(1, 0.005)])
def test_a_server_that_saw_all_changes_knows_what_one_that_begins_reads(path: Path, seed: int) -> None:
    answers: Counter[int] = Counter()
    with closing(Judging(path)) as store, serving(path, lambda: HOSTS, SETTINGS, store=store) as bench:
        threads = [threading.Thread(target=changing, args=(path, 10 * seed + number)) for number in range(2)]
        threads += [threading.Thread(target=asking, args=(bench, 10 * seed + n, answers)) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        book = bench.server.book
        until(lambda: ledger(book) == ledger(begun(bench.store.list(KIND).objects)), "it knows what there is")
        for name, node in book.nodes.items():
            assert sorted(node.machines) == sorted(key for key, record in book.records.items() if record.node == name)
        assert store.wrong == []
        assert store.writes > REQUESTS / 5
    assert set(answers) == {200, 404}
    assert min(answers.values()) > REQUESTS / 5, "both happened often"
