"""kill -9 of `devalloc up` at random moments while another process creates and deletes claims.

Whatever the moment: the store is sound, no device has two owners, groups are whole, and after a restart every claim
gets its answer.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from devalloc.api.decode import decode
from devalloc.api.quantity import Quantity
from devalloc.controller.reconcile.device_claims import DeviceClaimAllocator
from devalloc.store.sqlite import SQLiteStore
from devalloc_solver import solve_manifests
from tests.support.fleet_manifests import gpu_claim, gpu_class, gpu_pool
from tests.support.repository import REPO

SEED = 20260701
KILLS = 10
"""At least: the users go on until `up` has been killed so often, and has allocated something before a kill."""
NODES = 3
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join((str(REPO), str(REPO / "solver")))}

USERS = """
import itertools, random, sys, time
from pathlib import Path
from devalloc.store import Change, Conflict, Key
from devalloc.store.sqlite import SQLiteStore
from tests.support.fleet_manifests import gpu_claim

store, choice, end = SQLiteStore(Path(sys.argv[1])), random.Random(int(sys.argv[2])), Path(sys.argv[3])
living = []

def ask_together(names):
    '''All of a group at one moment: else one could be given its device before the other is there.'''
    while True:
        found = [store.get("DeviceClaim", "default", name) for name in names]
        unpinned = {"devalloc.io/node": None}
        try:
            return store.commit([
                Change(Key.of(claim), claim["metadata"]["resourceVersion"], claim.get("status"), unpinned)
                for claim in found
            ])
        except Conflict:
            continue

for number in itertools.count():
    if end.exists():
        store.create(gpu_claim("last"))
        break
    kind = choice.random()
    if kind < 0.3:
        new = [gpu_claim(f"c{number:03}", count=choice.choice([1, 1, 2]), priority=str(choice.randrange(3)))]
    elif kind < 0.6:
        new = [gpu_claim(f"c{number:03}-{member}", group=f"g{number:03}", node="nowhere") for member in "ab"]
    else:
        new = [gpu_claim(f"c{number:03}")]
        new[0]["spec"] = {"claims": [{"deviceClass": "gpu", "requests": {"memory": choice.choice(["1Gi", "3Gi"])}}]}
    for claim in new:
        store.create(claim)
    if len(new) > 1:
        ask_together([claim["metadata"]["name"] for claim in new])
    living.append([claim["metadata"]["name"] for claim in new])
    time.sleep(choice.uniform(0, 0.1))
    while len(living) > 12 or (living and choice.random() < 0.3):
        for name in living.pop(choice.randrange(len(living))):
            store.delete("DeviceClaim", "default", name)
        time.sleep(choice.uniform(0, 0.02))
"""


@contextmanager
def up(path: Path) -> Iterator[subprocess.Popen[str]]:
    """The real thing, killed at the end whatever happens."""
    command = [sys.executable, "-u", "-m", "devalloc.cli", "up", "--store", str(path), "--no-inventory"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENVIRONMENT, cwd=REPO
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for_lines(process: subprocess.Popen[str], lines: int) -> None:
    """How far it has come: it writes a line at its start, one for its first sight of the claims, and one per answer."""
    assert process.stdout is not None
    output = list(itertools.islice(process.stdout, lines))
    assert len(output) == lines, f"it ended: {''.join(output)}"


def fill(store: SQLiteStore) -> None:
    for number in range(NODES):
        pool = gpu_pool(f"pool-{number}", devices=4, node=f"node-{number}")
        for device in pool["spec"]["devices"]:
            device["resources"] = [{"name": "memory", "capacity": "4Gi", "blockSize": "1Gi"}]
        store.create(pool)
    store.create(gpu_class())


def assert_sound(store: SQLiteStore) -> None:
    """What must be true at any moment, also right after a kill."""
    assert store.check() == []
    claims = store.list("DeviceClaim").objects
    assert [p for obj in store.list().objects for p in decode(obj).problems if p.is_error] == []
    shares: defaultdict[str, int] = defaultdict(int)
    whole: Counter[str] = Counter()
    given: set[str] = set()
    waiting: set[str] = set()
    nodes: defaultdict[str, set[str]] = defaultdict(set)
    for claim in claims:
        marks = claim["metadata"].get("annotations", {})
        entries = claim.get("status", {}).get("allocations", [])
        assert bool(entries) == ("devalloc.io/allocated-node" in marks), claim
        assert not (entries and "devalloc.io/reason" in marks), claim
        if group := marks.get("devalloc.io/group"):
            (given if entries else waiting).add(group)
            nodes[group] |= {marks["devalloc.io/allocated-node"]} if entries else set()
        for entry in entries:
            device = f"{entry['devicePoolName']}/{entry['deviceName']}"
            assert entry["devicePoolName"] == marks["devalloc.io/allocated-node"].replace("node", "pool")
            if amounts := entry.get("allocations"):
                shares[device] += sum(Quantity.parse(amount["allocation"]).nano for amount in amounts)
            else:
                whole[device] += 1
    assert not whole or max(whole.values()) == 1, whole
    assert not whole.keys() & shares.keys()
    assert all(nano <= Quantity.parse("4Gi").nano for nano in shares.values()), shares
    assert all(len(places) <= 1 for places in nodes.values()), nodes
    assert not given & waiting, "half of them is allocated"


def is_answered(claim: dict[str, Any]) -> bool:
    return bool(claim.get("status", {}).get("allocations")) or "devalloc.io/reason" in claim["metadata"].get(
        "annotations", {}
    )


def test_killed_at_any_moment_it_goes_on_where_it_was(tmp_path: Path) -> None:
    choice = random.Random(SEED)
    path, end = tmp_path / "devalloc.db", tmp_path / "end"
    with closing(SQLiteStore(path)) as store:
        fill(store)
        users = subprocess.Popen([sys.executable, "-c", USERS, path, str(SEED), end], env=ENVIRONMENT, cwd=REPO)
        kills = allocated = 0
        try:
            while kills < KILLS or not allocated:
                assert users.poll() is None
                with up(path) as process:
                    if choice.random() < 0.7:
                        wait_for_lines(process, choice.randrange(2, 15))
                    time.sleep(choice.uniform(0, 0.5))
                    process.kill()
                    process.wait()
                    kills += 1
                assert_sound(store)
                allocated += sum("status" in claim for claim in store.list("DeviceClaim").objects)
            end.touch()
            assert users.wait() == 0
        finally:
            users.kill()

        with up(path) as process:
            while not all(map(is_answered, store.list("DeviceClaim").objects)):
                assert process.poll() is None, process.communicate()
                time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            output, _ = process.communicate()
            assert process.returncode == 0, output
        assert_sound(store)
        assert store.list("DeviceClaim").objects
        assert DeviceClaimAllocator(store).round().granted == []


def test_killed_at_every_statement_of_a_round_all_of_its_grants_or_none_are_there(tmp_path: Path) -> None:
    """A round gives twelve claims a device each. It is killed before its first statement, its second, and so on."""
    path = tmp_path / "devalloc.db"
    with closing(SQLiteStore(path)) as store:
        fill(store)
        for number in range(2 * NODES):
            for member in "ab":
                store.create(gpu_claim(f"c{number:03}-{member}", group=f"g{number:03}"))
        answer = solve_manifests(store.list().objects)
        assert [claim["allocated"] for claim in answer["claims"]] == [True] * 4 * NODES
    before = path.read_bytes()
    outcomes = []
    survived = False
    while not survived:
        path.write_bytes(before)
        survived = not killed_in_round(path, answer, len(outcomes))
        with closing(SQLiteStore(path)) as store:
            assert_sound(store)
            outcomes.append(sum("status" in claim for claim in store.list("DeviceClaim").objects))
    assert set(outcomes) == {0, 4 * NODES}
    assert outcomes == sorted(outcomes)
    assert len(outcomes) > 4 * NODES


def killed_in_round(path: Path, answer: dict[str, Any], statements: int) -> bool:
    """Run a round in a child that kills itself when it begins one statement more; whether it came to that."""
    child = os.fork()
    if child == 0:
        try:
            store = SQLiteStore(path)
            left = iter(range(statements))
            store._connection.set_trace_callback(
                lambda sql: None if next(left, None) is not None else os.kill(os.getpid(), signal.SIGKILL)
            )
            DeviceClaimAllocator(store, solve=lambda *arguments, **settings: answer).round()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL)
    return status != 0
