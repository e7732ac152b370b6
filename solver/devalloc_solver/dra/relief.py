"""What can be taken away from a unit of resource.k8s.io, as edits of the core's question (S19).

The entries have the kinds that ``dra.explain`` tells; there they come of changed manifests, here of the unit itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from devalloc_solver.assignment import Placement
from devalloc_solver.blockers.edits import Edit
from devalloc_solver.blockers.question import Finder, Question
from devalloc_solver.blockers.sparing import sparing
from devalloc_solver.demand import Demand, Mode, Slot, Unit
from devalloc_solver.dra.candidates import Choice, Judge
from devalloc_solver.dra.errors import AllocationError
from devalloc_solver.dra.objects import Ask, Class, Constraint
from devalloc_solver.dra.remedies import counter_entry
from devalloc_solver.dra.twins import counter_of, is_counter
from devalloc_solver.holdings import Key
from devalloc_solver.snapshot import Pool, Resource, Snapshot

ANY = Class("", (), ())
"""A class of all devices; no object can have its name."""


@dataclass(frozen=True, slots=True)
class Reliefs:
    """Makes the edits of one unit."""

    unit: Unit
    judge: Judge
    """judges what is asked for otherwise; it knows the class ANY"""

    def constraints(self) -> list[Edit]:
        """Constraints, one by one; the relations of a demand are in the order of its claim's constraints."""
        return [
            self._constraint(demand, index, constraint)
            for demand in self.unit.demands
            for index, constraint in enumerate(demand.claim.claim.constraints)
        ]

    def counts(self) -> list[Edit]:
        """Counts above one, narrowed to the most that fits."""
        return [
            self._count(demand, slot)
            for demand in self.unit.demands
            for slot in demand.slots
            if slot.mode in (Mode.WHOLE, Mode.ADMIN_COUNT) and slot.least > 1
        ]

    def requests(self) -> list[Edit]:
        """Whole requests."""
        return [
            self._request(demand, slots[0].detail)
            for demand in self.unit.demands
            for slots in demand.details
            if sum(len(demand.details) for demand in self.unit.demands) > 1
        ]

    def members(self, key: Key) -> list[Edit]:
        """The other claims of a group, as the claim ``key`` sees it."""
        return [self._member(demand) for demand in reversed(self.unit.demands) if demand.key != key]

    def pins(self) -> list[Edit]:
        """The node that the unit is bound to."""
        if self.unit.pin is None:
            return []
        entry = {"kind": "node", "node": self.unit.pin}
        words = f"if it were not bound to node {self.unit.pin}"
        return [Edit(entry, words, lambda question: question.pinned(None))]

    def selectors(self) -> list[Edit]:
        """The selectors of a request."""
        return [self._selectors(d, slot) for d, slot in self._slots() if slot.spec.ask.selectors]

    def classes(self) -> list[Edit]:
        """The selectors of a class, for all requests that name it."""
        names = dict.fromkeys(slot.spec.ask.class_name for _, slot in self._slots())
        return [self._class(name) for name in names]

    def capacities(self) -> list[Edit]:
        """Requested capacities, one by one."""
        return [self._capacity(d, slot, name) for d, slot in self._slots() for name in slot.spec.ask.capacity]

    def _slots(self) -> Iterator[tuple[Demand, Slot]]:
        return ((demand, slot) for demand in self.unit.demands for slot in demand.slots)

    def counters(self, question: Question) -> list[Edit]:
        """All counters raised at once, narrowed to those that fall short, and by how much."""
        if not any(is_counter(name) for pool in question.snapshot.pools for name in pool.resources):
            return []
        last: list[tuple[Snapshot, Snapshot]] = []

        def apply(asked: Question) -> Question:
            if not (last and last[0][0] is asked.snapshot):
                last[:] = [(asked.snapshot, _without_counters(asked).snapshot)]
            return replace(asked, snapshot=last[0][1])

        return [Edit({"kind": "counter"}, "with more of the counters", apply, 1, _short_counters)]

    def draws_counters(self, question: Question) -> bool:
        """Whether any device that the unit may take draws one."""
        devices = question.snapshot.devices
        slots = [slot for demand in question.unit.demands for slot in demand.slots]
        accepted = {id(slot.candidates.accepted): slot.candidates.accepted for slot in slots}.values()
        return any(is_counter(name) for some in accepted for i in some for name, _ in devices[i].draws)

    # -- one edit each -----------------------------------------------------------------------------------------------

    def _constraint(self, demand: Demand, index: int, constraint: Constraint) -> Edit:
        gone = demand.relations[index]
        name = "distinctAttribute" if constraint.distinct else "matchAttribute"
        path = f"spec.devices.constraints[{index}]"
        entry = {"kind": "constraint", **_claim(demand), "path": path, name: constraint.attribute}
        words = f"without {path} ({name} {constraint.attribute}){self._of(demand)}"

        def change(other: Demand) -> Demand:
            if other.key != demand.key:
                return other
            return replace(other, relations=tuple(r for r in other.relations if r is not gone), shape=None)

        return Edit(entry, words, lambda question: question.with_demands(change))

    def _count(self, demand: Demand, slot: Slot) -> Edit:
        path = f"{slot.spec.ask.path}.count"
        entry = {"kind": "amount", **_claim(demand), "path": path, "requested": str(slot.spec.ask.count)}

        def asking(count: int) -> Callable[[Question], Question]:
            def changed(other: Demand, now: Slot) -> Slot:
                same = other.key == demand.key and now.label == slot.label
                return replace(now, least=count, most=count) if same else now

            return lambda question: question.with_slots(changed)

        def narrow(question: Question, finder: Finder) -> Sequence[Edit]:
            fits, fails = 1, slot.least
            while fails - fits > 1:
                middle = (fits + fails) // 2
                fits, fails = (middle, fails) if finder.works(asking(middle)(question)) else (fits, middle)
            noun = "device" if fits == 1 else "devices"
            words = f"with at most {fits} {noun} for request {slot.spec.ask.name}{self._of(demand)}"
            return [Edit({**entry, "most": str(fits)}, words, asking(fits))]

        return Edit(entry, f"with {path} of 1", asking(1), narrow=narrow)

    def _selectors(self, demand: Demand, slot: Slot) -> Edit:
        path = f"{slot.spec.ask.path}.selectors"
        entry = {"kind": "selector", **_claim(demand), "path": path, "expressions": [*slot.spec.ask.selectors]}
        change = self._asking(_one(demand, slot), lambda ask: replace(ask, selectors=()))
        return Edit(entry, f"without {path}{self._of(demand)}", change)

    def _class(self, name: str) -> Edit:
        def change(ask: Ask) -> Ask:
            return replace(ask, class_name=ANY.name) if ask.class_name == name else ask

        words = f"without the selectors of class {name}"
        return Edit({"kind": "class", "deviceClassName": name}, words, self._asking(lambda *_: True, change))

    def _capacity(self, demand: Demand, slot: Slot, name: str) -> Edit:
        amount = str(slot.spec.ask.capacity[name])
        path = f"{slot.spec.ask.path}.capacity.requests[{name}]"
        entry = {"kind": "capacity", **_claim(demand), "path": path, "capacity": name, "requested": amount}

        def change(ask: Ask) -> Ask:
            return replace(ask, capacity={other: a for other, a in ask.capacity.items() if other != name})

        return Edit(entry, f"without {path}{self._of(demand)}", self._asking(_one(demand, slot), change))

    def _asking(
        self, about: Callable[[Demand, Slot], bool], change: Callable[[Ask], Ask]
    ) -> Callable[[Question], Question]:
        """With what some slots ask for changed, and judged again."""

        def changed(demand: Demand, slot: Slot) -> Slot:
            if not about(demand, slot):
                return slot
            try:
                choice = self.judge.choose(demand.claim.claim, change(slot.spec.ask))
            except AllocationError:  # what is asked for now cannot be judged: no remedy
                return slot
            return choose(slot, choice)

        return lambda question: question.with_slots(changed)

    def _request(self, demand: Demand, detail: int) -> Edit:
        name = demand.claim.claim.requests[detail].name
        entry = {"kind": "request", **_claim(demand), "request": name, "path": f"spec.devices.requests[{detail}]"}

        def change(other: Demand, slot: Slot) -> Slot | None:
            return None if other.key == demand.key and slot.detail == detail else slot

        return Edit(entry, f"without request {name}{self._of(demand)}", lambda q: q.with_slots(change))

    def _member(self, demand: Demand) -> Edit:
        namespace, name = demand.key
        entry = {"kind": "member", "namespace": namespace, "name": name}
        words = f"without {namespace}/{name}"
        return Edit(entry, words, lambda question: question.without_member(demand.key))

    def _of(self, demand: Demand) -> str:
        return f" of {'/'.join(demand.key)}" if len(self.unit.demands) > 1 else ""


def _one(demand: Demand, slot: Slot) -> Callable[[Demand, Slot], bool]:
    return lambda other, now: other.key == demand.key and now.label == slot.label


def choose(slot: Slot, choice: Choice) -> Slot:
    """The slot with other devices to choose from."""
    takes = {} if choice.ask.admin else choice.verdict.takes
    portions = {i: tuple(sorted((n, a.nano) for n, a in take.items())) for i, take in takes.items()}
    return replace(slot, spec=choice, candidates=choice.candidates(), portions=portions)


def _claim(demand: Demand) -> dict[str, Any]:
    return {"claim": "/".join(demand.key)}


# -- counters ------------------------------------------------------------------------------------------------------


def _without_counters(question: Question) -> Question:
    """With devices that draw on no counter: to raise all counters would come to the same, and take longer to solve."""

    def change(pool: Pool) -> Pool:
        if not any(is_counter(name) for name in pool.resources):
            return pool
        free = (replace(d, draws=tuple(draw for draw in d.draws if not is_counter(draw[0]))) for d in pool.devices)
        return replace(pool, devices=tuple(free))

    return question.with_pools(change)


def _raised(index: int, counter: str, nano: int) -> Callable[[Question], Question]:
    """With one counter raised, wherever it is seen and has less."""

    def more(name: str, resource: Resource) -> Resource:
        if counter_of(name) != counter or resource.nano >= nano:
            return resource
        return replace(resource, blocks=-(-nano // resource.block))

    def change(pool: Pool) -> Pool:
        if pool.index != index:
            return pool
        return replace(pool, resources={name: more(name, found) for name, found in pool.resources.items()})

    return lambda question: question.with_pools(change)


def _short_counters(question: Question, finder: Finder) -> Sequence[Edit]:
    """The counters that an answer without them draws too much of, where as much as fits keeps to them."""
    free = _without_counters(question)
    placements = finder.probe(free)
    if not placements:
        return []
    edits = [*_missing(question, _drawn(question, placements))]
    if len(edits) > 1:
        spared = [*_missing(question, _drawn(question, sparing(question, free, placements, finder)))]
        edits = min(spared, edits, key=len)
    return edits


def _drawn(question: Question, placements: Sequence[Placement]) -> dict[tuple[int, str], int]:
    """What the devices of these placements draw, by pool and counter."""
    taken = {e.device.index for p in placements for e in p.entries if not e.slot.mode.is_admin}
    drawn: dict[tuple[int, str], int] = {}
    for device in (question.snapshot.devices[index] for index in taken):
        for name, blocks in device.draws:
            drawn[device.pool, name] = drawn.get((device.pool, name), 0) + blocks
    return drawn


def _missing(question: Question, drawn: dict[tuple[int, str], int]) -> Iterator[Edit]:
    """One edit for each counter of which too much is drawn; nodes may see it differently."""
    short: dict[tuple[int, str], tuple[int, int]] = {}
    for (index, name), wanted in sorted(drawn.items()):
        missing = wanted - question.snapshot.pools[index].resources[name].nano
        if missing > 0:
            known = short.get((index, counter_of(name)), (0, 0))
            short[index, counter_of(name)] = max(known, (wanted, missing))
    for (index, name), (wanted, missing) in short.items():
        pool = question.snapshot.pools[index]
        title = pool.driver, pool.name.removeprefix(f"{pool.driver}/")
        entry, words = counter_entry(title, name, wanted, missing)
        yield Edit(entry, words, _raised(index, name, wanted), 1)
