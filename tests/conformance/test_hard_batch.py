"""Claims that take long to answer, beside claims that do not, with ``devalloc up`` in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

from devalloc.api.meta import GROUP, GROUP_MATCH, PRIORITY, REASON
from devalloc.api.views import ClaimView, ObjectView
from devalloc.store.sqlite import SQLiteStore
from tests.support.manifests import claim, device, device_class, pool
from tests.support.repository import REPO
from tests.support.waiting import until

Manifest = dict[str, Any]
RUNNER = """
import sys, time
from pathlib import Path
from devalloc.controller.reconcile import loop as allocate
from devalloc.program import Control, run
from devalloc.programs.store_loops import StoreProgress, store_program

store, begin, go = map(Path, sys.argv[1:])
search_anew = allocate.search_with_new_fleet


def wait_for(file):
    while not file.exists():
        time.sleep(0.01)


def round_is_over(done):
    print("round", flush=True)
    wait_for(begin)


def search_held(*settings):
    search = search_anew(*settings)

    def search_once_let_go(*given):
        print("search", flush=True)
        wait_for(go)
        return search(*given)

    return search_once_let_go


allocate.search_with_new_fleet = search_held
control = Control()
with control.signals():
    run(store_program(store, None, progress=StoreProgress(round_is_over)), control)
"""


def hopeless() -> list[Manifest]:
    """64 claims of namespace ``hard`` in 8 groups that are to agree on three attributes, and 424 devices of which no
    set does; with them in their pools are 16 that no hard claim may have."""
    random = Random(1)
    fleet = [device_class("gpu", driver="gpu")]
    for node in ("n0", "n1"):
        values = [{"kind": random.randrange(8), **{name: random.randrange(6) for name in "abc"}} for _ in range(212)]
        devices = [device(f"gpu{number}", attributes=each) for number, each in enumerate(values)]
        devices += [device(f"port{number}", attributes={"kind": -1, "port": number}) for number in range(8)]
        fleet.append(pool(node, node, devices=devices))
    claims = [
        claim(
            f"g{group}-{member}",
            {"deviceClass": "gpu", "constraints": f"device.kind == {member}", "requests": {"count": 2}},
            namespace="hard",
            annotations={GROUP: f"g{group}", GROUP_MATCH: ",".join("abc".replace("abc"[member % 3], ""))},
        )
        for group in range(8)
        for member in range(8)
    ]
    return [*fleet, *claims]


def easy(name: str) -> Manifest:
    """A claim of another user, for which there is always room on another node."""
    return claim(name, {"deviceClass": "nic"}, namespace="easy", annotations={PRIORITY: "100"})


def same_pool(name: str) -> Manifest:
    """One for another device of a pool that the hard claims may use."""
    return claim(name, {"deviceClass": "gpu", "constraints": "'port' in device"}, namespace="easy")


def meets(name: str) -> Manifest:
    """One that may have a device that the hard claims may have as well."""
    return claim(name, {"deviceClass": "gpu"}, namespace="easy")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with closing(SQLiteStore(tmp_path / "devalloc.db")) as opened:
        opened.create(device_class("nic", driver="nic"))
        opened.create(pool("nics", "n9", "nic", devices=[device(f"nic{number}") for number in range(40)]))
        yield opened


@dataclass
class Runner:
    """``devalloc up`` on the store. After its first round it waits for ``begin``, so that all claims until then come in
    one batch. Its searches begin, and wait until they are let go: a claim that waits for one of them gets nothing."""

    log: Path
    started: Path
    go: Path
    process: subprocess.Popen[bytes]

    def times(self, what: str) -> int:
        """How many rounds were held (``round``), or searches begun (``search``)."""
        assert self.process.poll() is None, self.log.read_text()
        return self.log.read_text().splitlines().count(what)

    def begin(self) -> None:
        self.started.touch()

    def let_go(self) -> None:
        self.go.touch()

    def settled(self) -> int:
        """How many rounds there were, once no more come; 0 while they do."""
        before = self.times("round")
        time.sleep(0.5)
        return before if self.times("round") == before else 0


@pytest.fixture
def runner(store: SQLiteStore, tmp_path: Path) -> Iterator[Runner]:
    env = {**os.environ, "PYTHONPATH": f"{REPO}:{REPO / 'solver'}"}
    log, started, go = (tmp_path / name for name in ("log", "begin", "go"))
    with log.open("w") as out:
        command = [sys.executable, "-c", RUNNER, store.path, started, go]
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=env)
        try:
            begun = Runner(log, started, go, process)
            until(lambda: begun.times("round"), "the first round")
            yield begun
        finally:
            process.kill()
            process.wait()


def is_given(store: SQLiteStore, wanted: Manifest) -> bool:
    metadata = wanted["metadata"]
    return bool(ClaimView(store.get("DeviceClaim", metadata["namespace"], metadata["name"])).entries)


def give(store: SQLiteStore, runner: Runner, *wanted: Manifest) -> None:
    """Create the claims, and wait until they have their devices."""
    for each in wanted:
        store.create(each)
    runner.begin()
    what = f"{wanted[0]['metadata']['name']} is allocated"
    until(lambda: all(is_given(store, each) for each in wanted), what, context=runner.log.read_text)


def hard_claims(store: SQLiteStore) -> list[Manifest]:
    return [each for each in store.list("DeviceClaim").objects if each["metadata"]["namespace"] == "hard"]


def are_answered(store: SQLiteStore) -> bool:
    return all(ObjectView(each).annotation(REASON) for each in hard_claims(store))


def touch(store: SQLiteStore) -> None:
    wanted = store.get("DeviceClaim", "hard", "g0-0")
    annotations = {**wanted["metadata"]["annotations"], "example.com/touched": str(time.monotonic())}
    store.replace({**wanted, "metadata": {**wanted["metadata"], "annotations": annotations}})


@pytest.mark.parametrize("wanted", [easy, same_pool], ids=["another-node", "same-pools"])
def test_an_easy_claim_never_waits_for_hard_ones(
    store: SQLiteStore, runner: Runner, wanted: Callable[[str], Manifest]
) -> None:
    """Its devices are written before the first search for the hard claims is over: that one is held until then."""
    for each in hopeless():
        store.create(each)
    give(store, runner, wanted("while-they-come"))
    until(lambda: runner.times("search"), "a search begins", context=runner.log.read_text)
    give(store, runner, wanted("while-they-are-searched-for"), wanted("and-another"))
    assert not [each for each in hard_claims(store) if ObjectView(each).annotation(REASON)], "the search goes on"

    runner.let_go()
    until(lambda: are_answered(store), "the hard claims are answered", context=runner.log.read_text)
    until(runner.settled, "all is answered")
    searches = runner.times("search")
    for number in range(3):
        touch(store)
        give(store, runner, wanted(f"touched-{number}"))

    # A quiet store costs nothing: nothing is searched again, and no round is held.
    assert until(runner.settled, "all is answered") < 100
    assert runner.times("search") == searches, "the hard claims are not searched for again"
    assert not any(ClaimView(each).entries for each in hard_claims(store))


def test_a_claim_that_competes_with_hard_ones_goes_first_once_these_were_searched_for(
    store: SQLiteStore, runner: Runner
) -> None:
    runner.let_go()
    for each in hopeless():
        store.create(each)
    runner.begin()
    until(lambda: are_answered(store), "the hard claims are answered", context=runner.log.read_text)
    runner.go.unlink()  # searches for the hard claims without what the others have are held
    for number in range(3):
        give(store, runner, meets(f"meets-{number}"))
