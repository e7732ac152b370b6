"""Claims that wait are asked for again only when a change could help them, and get what a solve of everything gives.

Random histories: claims come, go and are edited, with priorities and groups; devices are released; pools, classes and
quotas come, change and go. After each step the claims that have devices are those that ``solve_manifests`` of all
objects would give some, and in the end refusals read as those of a new solve.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from devalloc.api.meta import GROUP
from devalloc.controller.reconcile import round_solver
from devalloc.controller.reconcile.device_claims import DeviceClaimAllocator
from devalloc.controller.reconcile.loop import AllocatorSettings
from devalloc.controller.reconcile.round_solver import RESOURCE_CLAIMS, RoundSolver
from devalloc.controller.reconcile.stored_claims import by_unit
from devalloc.store import Key
from devalloc.store.sqlite import SQLiteStore
from devalloc_solver import solve_manifests, testing
from devalloc_solver.fleet.waiting import REFRESH_SECONDS
from tests.support.allocator_rounds import settle
from tests.support.dra_builders import device_class, devices, slice_
from tests.support.examples import examples

Object = dict[str, Any]
DRIVERS = ("a", "b")
STEPS = 12


class History:
    """A store, the loop that answers its claims, and what happens to them. Time passes only by hand."""

    def __init__(self, path: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.store = SQLiteStore(path / f"{seed}.db")
        self.seconds = 0.0
        self.allocator = DeviceClaimAllocator(
            self.store, settings=AllocatorSettings(deadline=None), clock=lambda: self.seconds
        )
        self.number = 0
        for driver in DRIVERS:
            self.store.create(testing.device_class(driver, driver=f"{driver}.io"))
        for node in range(self.random.randint(1, 3)):
            for driver in DRIVERS:
                self.store.create(self.pool(driver, node))

    def pool(self, driver: str, node: int) -> Object:
        devices = [testing.device(f"d{number}") for number in range(self.random.randint(1, 4))]
        attributes = {"model": self.random.choice("xy")}
        return testing.pool(f"{driver}{node}", f"n{node}", f"{driver}.io", attributes=attributes, devices=devices)

    def spec(self) -> Object:
        entries = []
        for _ in range(self.random.choice([1, 1, 1, 2])):
            entry: Object = {
                "deviceClass": self.random.choice(DRIVERS),
                "requests": {"count": str(self.random.randint(1, 3))},
            }
            if self.random.random() < 0.5:
                entry["constraints"] = f"device.model == '{self.random.choice('xyz')}'"
            entries.append(entry)
        return {"claims": entries}

    def claim(self) -> Object:
        self.number += 1
        notes = {"devalloc.io/priority": self.random.choice(["0", "0", "5"])}
        if self.random.random() < 0.2:
            notes["devalloc.io/group"] = self.random.choice(["g", "h"])
        metadata = {"name": f"c{self.number:03}", "namespace": self.random.choice("st"), "annotations": notes}
        kind = {"apiVersion": "devmgmtproto.k8s.io/v1alpha1", "kind": "DeviceClaim"}
        return {**kind, "metadata": metadata, "spec": self.spec()}

    def quota(self) -> Object:
        hard = {"a.deviceclass.devmgmtproto.k8s.io/devices": str(self.random.randint(0, 5))}
        metadata = {"name": "q", "namespace": "t"}
        return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": hard}}

    def claims(self, *, held: bool) -> list[Object]:
        listed = self.store.list("DeviceClaim").objects
        return [claim for claim in listed if bool((claim.get("status") or {}).get("allocations")) == held]

    def put(self, obj: Object) -> None:
        key = Key.of(obj)
        there = {Key.of(each): each for each in self.store.list(key.kind).objects}.get(key)
        if there is None:
            self.store.create(obj)
        else:
            self.store.replace({**there, "spec": obj["spec"]})

    def drop(self, obj: Object) -> None:
        self.store.delete(obj["kind"], obj["metadata"].get("namespace"), obj["metadata"]["name"])

    def happen(self) -> None:
        chance = self.random.random
        for _ in range(self.random.choice([0, 1, 1, 2, 5])):
            self.store.create(self.claim())
        if (held := self.claims(held=True)) and chance() < 0.5:
            self.drop(self.random.choice(held))
        if (waiting := self.claims(held=False)) and chance() < 0.4:
            claim = self.random.choice(waiting)
            self.store.replace({**claim, "spec": self.spec()}) if chance() < 0.5 else self.drop(claim)
        in_use = {
            entry["devicePoolName"] for claim in self.claims(held=True) for entry in claim["status"]["allocations"]
        }
        free = [pool for pool in self.store.list("DevicePool").objects if pool["metadata"]["name"] not in in_use]
        if chance() < 0.3:
            node = self.random.randrange(4)
            driver = self.random.choice(DRIVERS)
            if f"{driver}{node}" not in in_use:
                self.put(self.pool(driver, node))
        elif free and chance() < 0.2:
            self.drop(self.random.choice(free))
        if chance() < 0.2:
            quotas = self.store.list("ResourceQuota").objects
            self.drop(quotas[0]) if quotas and chance() < 0.4 else self.put(self.quota())
        if chance() < 0.1:
            spec = {"driver": "b.io"} | ({"constraints": "device.model == 'x'"} if chance() < 0.5 else {})
            self.put(testing.device_class("b", **spec))

    def documents(self) -> list[Object]:
        return [*self.store.list().objects]

    def settle(self) -> None:
        settle(self.allocator)

    def allocated(self) -> set[str]:
        return {claim["metadata"]["name"] for claim in self.claims(held=True)}

    def check_step(self) -> None:
        self.happen()
        answers = solve_manifests(self.documents())["claims"]
        self.settle()
        assert self.allocated() == {each["name"] for each in answers if each["allocated"]}

    def check_end(self) -> None:
        for _ in range(6):
            self.seconds += REFRESH_SECONDS + 1
            self.settle()
        with_all = _reasons(self.documents())
        for claim in self.claims(held=False):
            name, notes = claim["metadata"]["name"], claim["metadata"]["annotations"]
            written = notes.get("devalloc.io/reason"), notes.get("devalloc.io/message")
            # Of a claim that is over a quota and fits nowhere, both are true: the others decide which is written.
            alone = _reasons(doc for doc in self.documents() if not _competes(claim, doc))
            assert written in (with_all[name], alone[name]), name


def _reasons(documents: Iterable[Object]) -> dict[str, tuple[str | None, str | None]]:
    return {each["name"]: (each["reason"], each["message"]) for each in solve_manifests([*documents])["claims"]}


def _competes(claim: Object, other: Object) -> bool:
    """Whether it is another claim that waits, and not in the same group."""
    if other["kind"] != "DeviceClaim" or (other.get("status") or {}).get("allocations"):
        return False
    places = [(one["metadata"]["namespace"], one["metadata"]["annotations"].get(GROUP)) for one in (claim, other)]
    is_member = places[0] == places[1] and places[0][1] is not None
    return claim["metadata"]["name"] != other["metadata"]["name"] and not is_member


@pytest.fixture(autouse=True)
def without_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a round does not look at for want of time is not compared."""
    monkeypatch.setattr(round_solver, "WAKE_SECONDS", None)


@pytest.mark.parametrize("seed", range(examples(2, 0.1)))
def test_claims_get_what_a_solve_of_everything_gives(tmp_path: Path, seed: int) -> None:
    history = History(tmp_path, seed)
    for _ in range(STEPS):
        history.check_step()
    history.check_end()
    history.store.close()


# -- ResourceClaims ----------------------------------------------------------------------------------------------------

API = "resource.k8s.io/v1"


class ResourceHistory:
    """Slices, classes and claims of a cluster, and a solver that gets each change to them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.solver = RoundSolver(RESOURCE_CLAIMS)
        self.documents: dict[tuple[str, ...], Object] = {}
        """All but claims that wait."""
        self.waiting: dict[str, Object] = {}
        self.number = 0
        for driver in DRIVERS:
            self.put(_resource_class(driver))
            for node in range(self.random.randint(1, 3)):
                self.put(self.slice(driver, node))

    def put(self, obj: Object) -> None:
        metadata = obj["metadata"]
        self.documents[obj["kind"], metadata.get("namespace", ""), metadata["name"]] = obj

    def slice(self, driver: str, node: int) -> Object:
        model = self.random.choice("xy")
        names = [f"d{number}" for number in range(self.random.randint(1, 4))]
        where = {"nodeName": f"n{node}", "driver": f"{driver}.io", "pool": f"{driver}{node}"}
        return slice_(f"{driver}{node}", devices(*names, model=model), **where)

    def claim(self) -> Object:
        self.number += 1
        name, driver = f"c{self.number:03}", self.random.choice(DRIVERS)
        exactly: Object = {
            "deviceClassName": driver,
            "allocationMode": "ExactCount",
            "count": self.random.randint(1, 3),
        }
        if self.random.random() < 0.1:
            exactly = {"deviceClassName": driver, "allocationMode": "All"}
        if self.random.random() < 0.5:
            expression = f"device.attributes['{driver}.io'].model == '{self.random.choice('xyz')}'"
            exactly["selectors"] = [{"cel": {"expression": expression}}]
        notes = {"devalloc.io/priority": self.random.choice(["0", "0", "5"])}
        if self.random.random() < 0.15:
            notes["devalloc.io/group"] = "g"
        metadata = {"name": name, "namespace": "s", "uid": name, "annotations": notes}
        requests = [{"name": "r", "exactly": exactly}]
        return {
            "apiVersion": API,
            "kind": "ResourceClaim",
            "metadata": metadata,
            "spec": {"devices": {"requests": requests}},
        }

    def happen(self) -> None:
        chance = self.random.random
        for _ in range(self.random.choice([0, 1, 1, 2, 5])):
            claim = self.claim()
            self.waiting[claim["metadata"]["name"]] = claim
        held = [name for name in self.documents if name[0] == "ResourceClaim"]
        if held and chance() < 0.5:
            del self.documents[self.random.choice(held)]
        if self.waiting and chance() < 0.3:
            del self.waiting[self.random.choice(sorted(self.waiting))]
        claims = [each for name, each in self.documents.items() if name[0] == "ResourceClaim"]
        in_use = {result["pool"] for claim in claims for result in claim["status"]["allocation"]["devices"]["results"]}
        driver, node = self.random.choice(DRIVERS), self.random.randrange(4)
        if chance() < 0.3 and f"{driver}{node}" not in in_use:
            if chance() < 0.3:
                self.documents.pop(("ResourceSlice", "", f"{driver}{node}"), None)
            else:
                self.put(self.slice(driver, node))
        if chance() < 0.1:
            self.put(_resource_class("b", *(["device.attributes['b.io'].model == 'x'"] if chance() < 0.5 else [])))

    def check_step(self) -> None:
        self.happen()
        fresh = RoundSolver(RESOURCE_CLAIMS)
        given = []
        for solver in (self.solver, fresh):
            solver.update(self.documents.values())
            answers = solver.solve(by_unit(self.waiting.values()), None)["claims"] if self.waiting else []
            given.append({each["name"]: each for each in answers if each["allocated"]})
        assert given[0].keys() == given[1].keys()
        for name, answer in given[0].items():
            claim = self.waiting.pop(name)
            self.put({**claim, "status": {"allocation": answer["allocations"]}})


def _resource_class(driver: str, *expressions: str) -> Object:
    return device_class(driver, f"device.driver == '{driver}.io'", *expressions)


@pytest.mark.parametrize("seed", range(examples(2, 0.1)))
def test_resource_claims_get_what_a_solve_of_everything_gives(seed: int) -> None:
    history = ResourceHistory(seed)
    for _ in range(STEPS):
        history.check_step()
