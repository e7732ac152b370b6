"""Histories of pools that are published again while claims have devices of them, in both dialects.

A pool loses devices and regains them, gives them or its counters other names, lets them draw less, goes and comes back.
It also loses its counters, and then its devices draw nothing.
Whatever it says, what a claim's devices drew when it got them is in use until the claim gives them back. ``problems``
says where more of a counter is given than there is, or devices of two compatibility groups.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from devalloc_solver import Fleet, dra, solve_manifests
from devalloc_solver.testing import claim, device, device_class, pool, request
from tests.support import dra_builders

Object = dict[str, Any]

CAPACITY = 8
MEMORY = 8
"""What shares of a device take from."""
EVENTS = {
    "allocate": 8,
    "release": 4,
    "lose": 4,
    "regain": 4,
    "rename": 1,
    "shrink": 2,
    "restore": 2,
    "rename counters": 1,
    "lose counters": 1,
    "regain counters": 2,
    "drop pool": 1,
    "return pool": 2,
    "restart": 1,
}
"""How often each happens."""


@dataclass
class PublishedDevice:
    """A device, and what its pool says of it now."""

    name: str
    draws: dict[int, int]
    """counter -> amount, as the hardware is"""
    group: str | None
    is_shared: bool
    is_there: bool = True
    published: dict[int, int] | None = None
    """what the pool publishes that it draws, if that is less"""


@dataclass
class PublishedPool:
    """A pool, and how it is published now."""

    name: str
    devices: list[PublishedDevice]
    counters: list[str]
    """their names now"""
    is_there: bool = True
    has_counters: bool = True
    generation: int = 1

    def published_draws(self, one: PublishedDevice) -> dict[int, int]:
        """What it says now that a device draws."""
        if not self.has_counters:
            return {}
        return one.draws if one.published is None else one.published

    def draws(self, one: PublishedDevice) -> dict[str, str]:
        return {self.counters[number]: str(amount) for number, amount in self.published_draws(one).items()}


@dataclass
class Given:
    """A device that a claim has, and what it drew when the claim got it."""

    pool: str
    device: str
    draws: dict[int, int]
    group: str | None


@dataclass
class History:
    """One history, in one dialect, with a warm fleet or cold solves."""

    dialect: str
    """DeviceClaim or ResourceClaim"""
    is_warm: bool
    random: Random
    events: int = 0
    pools: list[PublishedPool] = field(default_factory=list)
    claims: dict[str, Object] = field(default_factory=dict)
    """those that have devices, as they are stored"""
    given: dict[str, list[Given]] = field(default_factory=dict)
    fleet: Fleet | None = None
    _names: int = 0

    def __post_init__(self) -> None:
        for number in range(self.random.randint(1, 2)):
            devices = [self._device(n) for n in range(self.random.randint(3, 6))]
            self.pools.append(PublishedPool(f"card-{number}", devices, ["slices", "memory"]))
        self._restart()

    @property
    def is_dra(self) -> bool:
        return self.dialect == "ResourceClaim"

    def _name(self, what: str) -> str:
        self._names += 1
        return f"{what}-{self._names}"

    def _device(self, number: int) -> PublishedDevice:
        draws = {n: self.random.choice((1, 2, 4, 8)) for n in (0, 1) if self.random.random() < (0.9, 0.3)[n]}
        group = self.random.choice(("A", "B")) if not self.is_dra and self.random.random() < 0.2 else None
        return PublishedDevice(f"d{number}", draws, group, is_shared=self.random.random() < 0.2)

    # -- what is published ---------------------------------------------------------------------------------------------

    def _documents_of(self, one: PublishedPool) -> list[Object]:
        if not one.is_there:
            return []
        there = [each for each in one.devices if each.is_there]
        return self._slices(one, there) if self.is_dra else [self._pool(one, there)]

    def _pool(self, one: PublishedPool, there: list[PublishedDevice]) -> Object:
        devices = [
            device(
                each.name,
                attributes=None if each.group is None else {"devalloc.io/compatibilityGroup": each.group},
                requests=one.draws(each),
                resources={"memory": MEMORY} if each.is_shared else None,
            )
            for each in there
        ]
        return pool(
            one.name, "n1", devices=devices, resources=dict.fromkeys(one.counters if one.has_counters else (), CAPACITY)
        )

    def _slices(self, one: PublishedPool, there: list[PublishedDevice]) -> list[Object]:
        where = {"pool": one.name, "generation": one.generation, "count": 2}
        sets = {"c": dict.fromkeys(one.counters, str(CAPACITY))} if one.has_counters else {}
        devices = [
            dra_builders.device(
                each.name,
                counters={"c": draws} if (draws := one.draws(each)) else None,
                capacity={"memory": str(MEMORY)} if each.is_shared else None,
                shared=each.is_shared,
            )
            for each in there
        ]
        return [
            dra_builders.counter_slice(f"{one.name}-0", sets, **where),
            dra_builders.slice_(f"{one.name}-1", devices, **where),
        ]

    def _publish(self, one: PublishedPool) -> None:
        one.generation += 1
        if self.fleet is not None:
            for document in self._documents_of(one):
                self.fleet.update(document)

    def documents(self) -> list[Object]:
        """All objects that are stored."""
        any_class = dra_builders.ANY if self.is_dra else device_class("any")
        return [any_class, *(each for one in self.pools for each in self._documents_of(one)), *self.claims.values()]

    # -- events --------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """One event, if it can happen."""
        (event,) = self.random.choices([*EVENTS], [*EVENTS.values()])
        self.events += 1
        getattr(self, "_" + event.replace(" ", "_"))()

    def _some(self, *, there: bool) -> tuple[PublishedPool, PublishedDevice] | None:
        pairs = [(one, each) for one in self.pools for each in one.devices if each.is_there == there]
        return self.random.choice(pairs) if pairs else None

    def _is_recorded(self, one: PublishedPool, each: PublishedDevice) -> bool:
        """Whether every claim that has the device recorded what it drew: else no one can know that it is less now."""
        holders = [name for name, given in self.given.items() if any(self._is_of(g, one, each) for g in given)]
        return all("devalloc.io/device-records" in self._notes(name) for name in holders)

    def _notes(self, name: str) -> dict[str, str]:
        notes: dict[str, str] = self.claims[name]["metadata"].get("annotations", {})
        return notes

    @staticmethod
    def _is_of(given: Given, one: PublishedPool, each: PublishedDevice) -> bool:
        return (given.pool, given.device) == (one.name, each.name)

    def _lose(self) -> None:
        if (chosen := self._some(there=True)) is not None:
            chosen[1].is_there = False
            self._publish(chosen[0])

    def _regain(self) -> None:
        if (chosen := self._some(there=False)) is not None:
            chosen[1].is_there = True
            self._publish(chosen[0])

    def _rename(self) -> None:
        if (chosen := self._some(there=True)) is not None:
            chosen[1].name = self._name("d")
            self._publish(chosen[0])

    def _shrink(self) -> None:
        chosen = self._some(there=True)
        if chosen is not None and self._is_recorded(*chosen):
            chosen[1].published = {
                n: amount // 2 for n, amount in chosen[1].draws.items() if self.random.random() < 0.5
            }
            self._publish(chosen[0])

    def _restore(self) -> None:
        if (chosen := self._some(there=True)) is not None:
            chosen[1].published = None
            self._publish(chosen[0])

    def _rename_counters(self) -> None:
        one = self.random.choice(self.pools)
        if all(self._is_recorded(one, each) or each.published is None for each in one.devices):
            one.counters[self.random.randrange(2)] = self._name("counter")
            self._publish(one)

    def _lose_counters(self) -> None:
        one = self.random.choice(self.pools)
        # A user of a device of it recorded that, under the name that it had: else no one can know of the counters.
        holders = [name for name, given in self.given.items() if any(each.pool == one.name for each in given)]
        if one.has_counters and all("devalloc.io/device-records" in self._notes(name) for name in holders):
            one.has_counters = False
            self._publish(one)

    def _regain_counters(self) -> None:
        for one in self.pools:
            if not one.has_counters:
                one.has_counters = True
                self._publish(one)

    def _drop_pool(self) -> None:
        one = self.random.choice(self.pools)
        if one.is_there:
            if self.fleet is not None:
                for document in self._documents_of(one):
                    self.fleet.delete(document)
            one.is_there = False

    def _return_pool(self) -> None:
        for one in self.pools:
            if not one.is_there:
                one.is_there = True
                self._publish(one)

    def _restart(self) -> None:
        if self.is_warm:
            self.fleet = Fleet.from_manifests(self.documents())

    def _release(self) -> None:
        if self.claims:
            name = self.random.choice(sorted(self.claims))
            document = self.claims.pop(name)
            del self.given[name]
            if self.fleet is not None:
                self.fleet.delete(document)

    def _allocate(self) -> None:
        name, count, share = self._name("claim"), self.random.randint(1, 2), self.random.random() < 0.3
        new = (
            self._resource_claim(name, count, share=share)
            if self.is_dra
            else self._device_claim(name, count, share=share)
        )
        answer: Any
        if self.fleet is not None:
            answer = self.fleet.allocate(new)
        else:
            solution: Any = (dra.solve_manifests if self.is_dra else solve_manifests)([*self.documents(), new])
            answer = next(each for each in solution["claims"] if each["name"] == name)
        if answer["allocated"]:
            self._store(new, answer)

    def _device_claim(self, name: str, count: int, *, share: bool) -> Object:
        return claim(name, request("any", requests={"memory": 2}) if share else request("any", count))

    def _resource_claim(self, name: str, count: int, *, share: bool) -> Object:
        fields = {"capacity": {"requests": {"memory": "2"}}} if share else {}
        return dra_builders.claim(dra_builders.request("r", 1 if share else count, **fields), name=name)

    def _store(self, new: Object, answer: Object) -> None:
        """The claim with its answer written on it; sometimes without its record, as others write it.

        Not for a share of a device that draws what it drew for its first user and is published with less by now: when
        that user is gone, it is unknown without a record."""
        name = new["metadata"]["name"]
        notes = dict(answer.get("annotations", {}))
        given = [self._given(*names) for names in self._devices_of(answer)]
        if self.random.random() < 0.2 and all(map(self._is_as_published, given)):
            notes.pop("devalloc.io/device-records", None)
        status = {"allocation" if self.is_dra else "allocations": answer["allocations"]}
        metadata = {**new["metadata"], "namespace": answer["namespace"], "annotations": notes}
        self.claims[name] = {**new, "metadata": metadata, "status": status}
        self.given[name] = given
        is_reported = self.random.random() < 0.7 or "devalloc.io/device-records" not in notes
        if self.fleet is not None and is_reported:
            self.fleet.update(self.claims[name])

    def _devices_of(self, answer: Object) -> list[tuple[str, str]]:
        if self.is_dra:
            return [(each["pool"], each["device"]) for each in answer["allocations"]["devices"]["results"]]
        return [(each["devicePoolName"], each["deviceName"]) for each in answer["allocations"]]

    def _given(self, pool_name: str, name: str) -> Given:
        one = next(one for one in self.pools if one.name == pool_name)
        each = next(each for each in one.devices if each.name == name and each.is_there)
        for other in (given for of in self.given.values() for given in of):
            if self._is_of(other, one, each):  # a share of a device in use draws nothing more
                return other
        # A pool without counters says of no device what it draws; beside one that drew something, the hardware counts.
        is_beside = any(
            other.pool == pool_name and any(other.draws.values()) for of in self.given.values() for other in of
        )
        draws = one.published_draws(each) if one.has_counters or not is_beside else each.draws
        return Given(pool_name, name, dict(draws), each.group)

    def _is_as_published(self, given: Given) -> bool:
        """Whether the pool says of the device what it draws."""
        one = next(one for one in self.pools if one.name == given.pool)
        each = next(each for each in one.devices if each.name == given.device and each.is_there)
        return given.draws == one.published_draws(each)

    # -- the oracle ----------------------------------------------------------------------------------------------------

    def problems(self) -> Iterator[str]:
        """What is in use twice. A device draws once, however many claims have shares of it."""
        for one in self.pools:
            drawn: dict[str, dict[int, int]] = defaultdict(dict)
            groups: dict[str, str] = {}
            for each in (each for given in self.given.values() for each in given if each.pool == one.name):
                for number, amount in each.draws.items():
                    drawn[each.device][number] = max(amount, drawn[each.device].get(number, 0))
                if each.group is not None:
                    groups[each.device] = each.group
            for number in (0, 1):
                total = sum(draws.get(number, 0) for draws in drawn.values())
                if total > CAPACITY:
                    yield f"{one.name}: {total} of {CAPACITY} of counter {number} are in use by {dict(drawn)}"
            if len({*groups.values()}) > 1:
                yield f"{one.name}: devices of several groups are in use: {groups}"


def run(dialect: str, seed: int, events: int, *, is_warm: bool) -> list[str]:
    """What is in use twice in histories of so many events together."""
    problems: list[str] = []
    done = number = 0
    while done < events and not problems:
        history = History(dialect, is_warm, Random(f"{seed}/{number}"))
        for _ in range(min(200, events - done)):
            history.step()
            if wrong := [*history.problems()]:
                problems += [f"seed {seed}, history {number}, event {history.events}: {each}" for each in wrong]
                break
        done += history.events
        number += 1
    return problems
