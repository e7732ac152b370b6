"""Claims that take long to answer, beside claims that do not, with ``devalloc up`` in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from devalloc.api.meta import GROUP, GROUP_MATCH, PRIORITY, REASON
from devalloc.controller.claims import allocations, annotation
from devalloc.store.sqlite import SQLiteStore
from tests.support.manifests import claim, device, device_class, pool
from tests.support.shared import REPO
from tests.support.waiting import until

Manifest = dict[str, Any]
RUNNER = """
import sys
from pathlib import Path
from devalloc.controller.up import Up, signals
up = Up(Path(sys.argv[1]), None, on_round=lambda done: print(f"round {done.seconds}", flush=True))
with signals(up):
    up.run()
"""
SOON = 9.0
"""Seconds, on a machine that others use as well: less than the deadline of a search for the hard claims."""


def hopeless() -> list[Manifest]:
    """64 claims of namespace ``hard`` in 8 groups that are to agree on three attributes, and 424 devices of which no
    set does."""
    random = Random(1)
    fleet = [device_class("gpu", driver="gpu")]
    for node in ("n0", "n1"):
        values = [{"kind": random.randrange(8), **{name: random.randrange(6) for name in "abc"}} for _ in range(212)]
        devices = [device(f"gpu{number}", attributes=each) for number, each in enumerate(values)]
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
    """A claim of somebody else, for which there is always room on another node."""
    return claim(name, {"deviceClass": "nic"}, namespace="easy", annotations={PRIORITY: "100"})


def meets(name: str) -> Manifest:
    """One that may have a device that the hard claims may have as well."""
    return claim(name, {"deviceClass": "gpu"}, namespace="easy")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with closing(SQLiteStore(tmp_path / "devalloc.db")) as opened:
        opened.create(device_class("nic", driver="nic"))
        opened.create(pool("nics", "n9", "nic", devices=[device(f"nic{number}") for number in range(40)]))
        yield opened


@pytest.fixture
def rounds(store: SQLiteStore, tmp_path: Path) -> Iterator[Path]:
    """The rounds of ``devalloc up`` on the store, a line each."""
    env = {**os.environ, "PYTHONPATH": f"{REPO}:{REPO / 'solver'}"}
    told = tmp_path / "rounds"
    with told.open("w") as out:
        runner = subprocess.Popen([sys.executable, "-c", RUNNER, store.path], stdout=out, env=env)
        try:
            until(lambda: told.read_text(), "the first round")
            yield told
        finally:
            runner.kill()
            runner.wait()


def seconds_of(store: SQLiteStore, wanted: Manifest) -> float:
    """How long a claim waits for its devices."""
    began = time.monotonic()
    metadata = store.create(wanted)["metadata"]
    until(lambda: allocations(store.get("DeviceClaim", metadata["namespace"], metadata["name"])), "it is allocated")
    return time.monotonic() - began


def hard_claims(store: SQLiteStore) -> list[Manifest]:
    return [each for each in store.list("DeviceClaim").objects if each["metadata"]["namespace"] == "hard"]


def are_answered(store: SQLiteStore) -> bool:
    return all(annotation(each, REASON) for each in hard_claims(store))


def touch(store: SQLiteStore) -> None:
    wanted = store.get("DeviceClaim", "hard", "g0-0")
    annotations = {**wanted["metadata"]["annotations"], "example.com/touched": str(time.monotonic())}
    store.replace({**wanted, "metadata": {**wanted["metadata"], "annotations": annotations}})


def test_an_easy_claim_never_waits_for_hard_ones(store: SQLiteStore, rounds: Path) -> None:
    for each in hopeless():
        store.create(each)
    waits = [seconds_of(store, easy("while-they-come"))]
    until(lambda: are_answered(store), "the hard claims are answered", told=rounds.read_text)

    waits += [seconds_of(store, easy(f"while-they-wait-{number}")) for number in range(3)]
    for number in range(3):
        touch(store)
        waits.append(seconds_of(store, easy(f"touched-{number}")))
    assert max(waits) < SOON, waits

    # A quiet store costs nothing: nothing is searched again, and no round is held.
    before = until(lambda: settled(rounds), "all is answered")
    store.create(easy("last"))
    until(lambda: allocations(store.get("DeviceClaim", "easy", "last")), "it is allocated")
    assert sum(settled_seconds(rounds)[before:]) < SOON / 5, "the hard claims are not searched for again"
    assert not any(allocations(each) for each in hard_claims(store))


def test_a_claim_that_competes_with_hard_ones_goes_first_once_these_were_searched_for(
    store: SQLiteStore, rounds: Path
) -> None:
    for each in hopeless():
        store.create(each)
    until(lambda: are_answered(store), "the hard claims are answered", told=rounds.read_text)
    waits = [seconds_of(store, meets(f"meets-{number}")) for number in range(3)]
    assert max(waits) < SOON, waits


def settled_seconds(rounds: Path) -> list[float]:
    return [float(line.split()[1]) for line in rounds.read_text().splitlines() if line.startswith("round ")]


def settled(rounds: Path) -> int:
    """How many rounds there were, once no more come."""
    before = len(settled_seconds(rounds))
    time.sleep(0.5)
    return before if len(settled_seconds(rounds)) == before else 0
