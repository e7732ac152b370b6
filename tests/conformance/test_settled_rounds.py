"""Claims that hold devices rest, and the store comes to be what an allocator makes of it that has just started.

Random histories: claims come, go, are edited, taken by nodes, released; pools lose and regain devices, are cordoned and
fenced; classes, quotas and machines come, change and go. Before each step the store is copied, and a new allocator
settles the copy.
"""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from devalloc.controller.reconcile import round_solver
from devalloc.controller.reconcile.decision import IN_CONDITIONS
from devalloc.controller.reconcile.device_claims import DeviceClaimAllocator
from devalloc.controller.reconcile.loop import AllocatorSettings
from devalloc.store import Key
from devalloc.store.sqlite import SQLiteStore
from devalloc_solver import testing
from tests.support.allocator_rounds import settle
from tests.support.examples import examples
from tests.support.host_pools import host, machine
from tests.support.machine_allocator import machine_allocator

Object = dict[str, Any]
STEPS = 25
NOW = datetime(2026, 1, 1, tzinfo=UTC)
SETTINGS = AllocatorSettings(deadline=None, labels_nodes=True, form=IN_CONDITIONS)
FENCED = "devalloc.io/fenced-node"
OWN = ("resourceVersion", "managedFields")


class History:
    """A store with a loop that goes on for ever, and what happens in it."""

    def __init__(self, path: Path, seed: int) -> None:
        self.random, self.path = random.Random(seed), path
        self.store = SQLiteStore(path / "store.db")
        self.allocator = self.allocator_of(self.store)
        self.number = self.rested = 0
        for driver in "ab":
            self.store.create(testing.device_class(driver, driver=f"{driver}.io"))
            for node in range(3):
                self.store.create(self.pool(driver, node))

    @staticmethod
    def allocator_of(store: SQLiteStore) -> DeviceClaimAllocator:
        return machine_allocator(store, settings=SETTINGS, now=lambda: NOW, clock=lambda: 0.0)

    def pool(self, driver: str, node: int) -> Object:
        devices = [testing.device(f"d{number}") for number in range(self.random.randint(2, 5))]
        attributes = {"model": self.random.choice("xy")}
        return testing.pool(f"{driver}{node}", f"n{node}", f"{driver}.io", attributes=attributes, devices=devices)

    def claim(self) -> Object:
        self.number += 1
        notes = {"devalloc.io/priority": self.random.choice(["0", "0", "5"])}
        if self.random.random() < 0.1:
            notes["devalloc.io/group"] = "g"
        metadata = {"name": f"c{self.number:03}", "namespace": self.random.choice("st"), "annotations": notes}
        kind = {"apiVersion": "devmgmtproto.k8s.io/v1alpha1", "kind": "DeviceClaim"}
        return {**kind, "metadata": metadata, "spec": self.spec()}

    def spec(self) -> Object:
        wanted: Object = {"deviceClass": self.random.choice("aab"), "requests": {"count": self.random.choice("1112")}}
        if self.random.random() < 0.3:
            wanted["constraints"] = f"device.model == '{self.random.choice('xy')}'"
        return {"claims": [wanted]}

    def of(self, kind: str) -> list[Object]:
        return [*self.store.list(kind).objects]

    def put(self, obj: Object) -> None:
        there = {Key.of(each): each for each in self.of(Key.of(obj).kind)}.get(Key.of(obj))
        if there is None and obj["kind"] == "DevicePool" and self.fenced(obj["spec"]["nodeName"]):
            obj["metadata"]["annotations"] = {FENCED: "an admin"}
        self.store.create(obj) if there is None else self.store.replace({**there, "spec": obj["spec"]})

    def fenced(self, node: str) -> list[Object]:
        """The pools of a node that say that it is off."""
        pools = [pool for pool in self.of("DevicePool") if pool["spec"]["nodeName"] == node]
        return [pool for pool in pools if FENCED in (pool["metadata"].get("annotations") or {})]

    def drop(self, obj: Object) -> None:
        self.store.delete(Key.of(obj).kind, obj["metadata"].get("namespace"), obj["metadata"]["name"])

    def note(self, obj: Object, **notes: str | None) -> None:
        annotations = {**(obj["metadata"].get("annotations") or {})}
        annotations |= {f"devalloc.io/{name.replace('_', '-')}": text for name, text in notes.items()}
        annotations = {name: text for name, text in annotations.items() if text is not None}
        self.store.replace({**obj, "metadata": {**obj["metadata"], "annotations": annotations}})

    def hold(self, claim: Object) -> None:
        """What the node does that prepares a claim, or gives it back."""
        finalizers = claim["metadata"].get("finalizers") or []
        is_held = "devalloc.io/node" in finalizers
        finalizers = [] if is_held else ["devalloc.io/node"]
        self.store.replace({**claim, "metadata": {**claim["metadata"], "finalizers": finalizers}})

    def report(self, claim: Object) -> None:
        entry = claim["status"]["allocations"][0]
        device = {name: entry[name] for name in ("devicePoolName", "deviceName")}
        statuses = [{**device, "deviceIP": f"10.0.0.{self.random.randint(1, 9)}"}]
        self.store.replace_status({**claim, "status": {**claim["status"], "deviceStatuses": statuses}})

    def happen(self) -> None:
        chance, choice = self.random.random, self.random.choice
        for _ in range(choice([0, 1, 1, 2])):
            self.store.create(self.claim())
        claims = self.of("DeviceClaim")
        if claims and chance() < 0.7:
            claim = choice(claims)
            is_allocated = bool((claim.get("status") or {}).get("allocations"))
            what = choice(["drop", "drop", "edit", "hold", "hold", "release", "report"])
            if what == "drop":
                self.drop(claim)
            elif what == "edit":
                self.store.replace({**claim, "spec": self.spec()})
            elif what == "release":
                self.note(claim, release="asked")
            elif is_allocated:
                self.hold(claim) if what == "hold" else self.report(claim)
        if chance() < 0.4:
            self.change_others()

    def change_others(self) -> None:
        chance, choice = self.random.random, self.random.choice
        pools = [pool for pool in self.of("DevicePool") if pool["spec"]["driver"] in ("a.io", "b.io")]
        is_rare = any(map(self.fenced, ("n0", "n1", "n2"))) or self.of("VirtualMachine") or self.of("ResourceQuota")
        rare = ["fence", "quota", "machine"]  # while there is one of these no claim rests
        usual = ["pool", "pool", "gone", "cordon", "cordon", "class"]
        what = choice(rare if is_rare else [*usual, *rare])
        if what == "pool":
            self.put(self.pool(choice("ab"), self.random.randrange(3)))
        elif what == "gone" and pools:
            self.drop(choice(pools))
        elif what == "cordon" and pools:
            self.note(choice(pools), cordoned=choice([None, json.dumps({choice(["*", "d0"]): "repair"})]))
        elif what == "fence" and (pools := self.of("DevicePool")):
            node = choice(pools)["spec"]["nodeName"]
            why = None if self.fenced(node) else "an admin"
            for pool in pools:
                if pool["spec"]["nodeName"] == node:
                    self.note(pool, fenced_node=why)
        elif what == "class":
            more: Object = choice([{}, {}, {"constraints": "device.model == 'x'"}, {"adminAccess": True}])
            self.put(testing.device_class("b", **{"driver": "b.io", **more}))
        elif what == "quota" and (quotas := self.of("ResourceQuota")) and chance() < 0.7:
            self.drop(quotas[0])
        elif what == "quota":
            hard = {"a.deviceclass.devmgmtproto.k8s.io/devices": str(self.random.randint(1, 5))}
            metadata = {"name": "q", "namespace": "t"}
            self.put({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": hard}})
        elif what == "machine" and (machines := self.of("VirtualMachine")):
            self.drop(choice(machines))
        elif what == "machine":
            self.put(host("n0"))
            self.store.create(machine("m"))

    def become_quiet(self) -> None:
        """Nothing is left beside which no claim rests, and claims have come that can."""
        for pool in [pool for node in ("n0", "n1", "n2") for pool in self.fenced(node)]:
            self.note(pool, fenced_node=None)
        for obj in (*self.of("ResourceQuota"), *self.of("VirtualMachine")):
            self.drop(obj)
        for _ in range(3):
            self.store.create(self.claim())

    def check_step(self, happens: Callable[[], None]) -> None:
        happens()
        copy = self.path / "copy.db"
        copy.unlink(missing_ok=True)
        with closing(sqlite3.connect(self.path / "store.db")) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
        fresh = SQLiteStore(copy)
        settle(self.allocator_of(fresh))
        expected = _state(fresh)
        fresh.close()
        settle(self.allocator)
        assert _state(self.store) == expected
        assert self.allocator._resting is not None
        self.rested += len(self.allocator._resting.settled)


def _state(store: SQLiteStore) -> dict[Key, Any]:
    """All objects, without versions; of claims that wait not why, which is found anew from time to time only."""
    state = {}
    for obj in store.list().objects:
        metadata = {name: value for name, value in obj["metadata"].items() if name not in OWN}
        if obj["kind"] == "DeviceClaim" and not (obj.get("status") or {}).get("allocations"):
            notes = metadata.get("annotations") or {}
            metadata["annotations"] = {
                name: text for name, text in notes.items() if name not in ("devalloc.io/reason", "devalloc.io/message")
            }
            obj = {name: part for name, part in obj.items() if name != "status"}
        state[Key.of(obj)] = {**obj, "metadata": metadata}
    return state


@pytest.fixture(autouse=True)
def without_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a round does not look at for want of time is not compared."""
    monkeypatch.setattr(round_solver, "WAKE_SECONDS", None)


@pytest.mark.parametrize("seed", range(examples(1, 0.1)))
def test_the_store_is_as_a_new_allocator_would_leave_it(tmp_path: Path, seed: int) -> None:
    history = History(tmp_path, seed)
    for _ in range(STEPS):
        history.check_step(history.happen)
    history.check_step(history.become_quiet)
    history.check_step(lambda: None)
    history.store.close()
    assert history.rested
