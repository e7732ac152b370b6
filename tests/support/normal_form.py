"""Tiny random instances of the solver's own normal form, and an exhaustive search over all their answers.

The rules are written here once more, from the types' own words and one device at a time, so that nothing of the model
(counts, bunches, crowds) is believed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from random import Random
from types import SimpleNamespace
from typing import Any

from devalloc_solver.assignment import Placement
from devalloc_solver.demand import Demand, Mode, Relation, Slot, Unit
from devalloc_solver.eligibility import Candidates
from devalloc_solver.holdings import Held, Holding, Ledger
from devalloc_solver.snapshot import Device, Pool, Resource, Snapshot

Place = str | None
Taken = tuple[Slot, tuple[int, ...]]
"""One chosen slot and its devices."""
Claimed = tuple[Taken, ...]
"""What one claim gets, a slot for each detail."""


@dataclass(frozen=True, slots=True)
class Instance:
    """Units in the order they are decided, and what they may take."""

    snapshot: Snapshot
    holdings: tuple[Holding, ...]
    units: tuple[Unit, ...]


@dataclass(frozen=True, slots=True)
class Option:
    """One way to satisfy a unit."""

    place: Place
    claims: tuple[Claimed, ...]

    @property
    def alternatives(self) -> tuple[tuple[int, ...], ...]:
        """For each claim the chosen alternatives of the details that have some (S17, goal 2)."""
        return tuple(tuple(s.alternative for s, _ in c if s.alternative is not None) for c in self.claims)


# -- the rules -------------------------------------------------------------------------------------------------------


def option_of(placements: Sequence[Placement]) -> Option:
    """What the solver gave to the claims of one unit."""
    claims = []
    for placement in placements:
        taken: dict[int, tuple[Slot, list[int]]] = {}
        for entry in placement.entries:
            slot, devices = taken.setdefault(entry.slot.detail, (entry.slot, []))
            assert slot is entry.slot, "two alternatives of a detail are filled"
            assert entry.amounts == slot.portions.get(entry.device.index, ())
            devices.append(entry.device.index)
        claims.append(tuple((slot, tuple(devices)) for _, (slot, devices) in sorted(taken.items())))
    return Option(placements[0].node, tuple(claims))


def objections(instance: Instance, unit: Unit, option: Option) -> Iterator[str]:
    """What speaks against an option, all other units aside."""
    for demand, claimed in zip(unit.demands, option.claims, strict=True):
        if [slot.detail for slot, _ in claimed] != [*range(len(demand.details))]:
            yield "a detail is not filled"
        for slot, devices in claimed:
            yield from _slot_objections(instance, slot, devices, option.place, unit)
        yield from _claim_objections(instance, demand, claimed)
    if unit.pin is not None and option.place != unit.pin:
        yield "another place than the unit is pinned to"
    yield from overuse(instance, [option])


def _slot_objections(instance: Instance, slot: Slot, devices: Sequence[int], place: Place, unit: Unit) -> Iterator[str]:
    if len(set(devices)) < len(devices):
        yield "a slot has a device twice"
    if not all(index in slot.candidates.accepted for index in devices):
        yield "no candidate"
    if not all(_reaches(instance, place, index) for index in devices):
        yield "not reached from its place"
    if slot.mode in (Mode.EVERY, Mode.ADMIN_ALL):
        if {*devices} != {i for i in slot.candidates.accepted if _reaches(instance, place, i)} or not devices:
            yield "not all candidates"
        if slot.most is not None and len(devices) > slot.most:
            yield "more than the limit"
    elif not slot.least <= len(devices) <= (slot.most or len(devices)):
        yield "not as many as asked for"
    for name in slot.match:
        if not _agree(instance.snapshot.devices[i].attributes.get(name) for i in devices):
            yield "differ in a match attribute"
    given = Counter[str]()
    for index in devices:
        device = instance.snapshot.devices[index]
        amounts = (
            slot.portions.get(index, ()) if device.shareable else [(n, r.nano) for n, r in device.resources.items()]
        )
        given.update(dict(amounts))
    if any(given[name] < amount for name, amount in slot.requests.items()) and not slot.mode.is_admin:
        yield "less than requested"


def _claim_objections(instance: Instance, demand: Demand, claimed: Claimed) -> Iterator[str]:
    devices = instance.snapshot.devices
    for name in demand.match:
        if not _agree(devices[i].attributes.get(name) for _, taken in claimed for i in taken):
            yield "differ in a match attribute of the claim"
    for relation in demand.relations:
        values = [
            devices[i].values(relation.attribute) for s, taken in claimed if s.label in relation.labels for i in taken
        ]
        if not all(values):
            yield "has no value of a relation"
        elif relation.distinct and any(one & other for one, other in combinations(values, 2)):
            yield "not distinct"
        elif not relation.distinct and values and not frozenset.intersection(*values):
            yield "no value in common"
    entries = Counter(index for _, taken in claimed for index in taken)
    if demand.most is not None and sum(entries.values()) > demand.most:
        yield "too many entries"
    if demand.once and any(times > 1 and not devices[i].shareable for i, times in entries.items()):
        yield "a device twice in the claim"


def _agree(values: Iterable[object | None]) -> bool:
    found = {*values}
    return len(found) <= 1 and None not in found


def _reaches(instance: Instance, place: Place, index: int) -> bool:
    device = instance.snapshot.devices[index]
    node = instance.snapshot.pools[device.pool].node
    return node == place if node is not None else device.reach is None or place in device.reach


def overuse(instance: Instance, options: Iterable[Option]) -> Iterator[str]:
    """Devices given twice, capacities and pool resources exceeded, all options together."""
    snapshot, ledger = instance.snapshot, Ledger.of(instance.snapshot, instance.holdings)
    whole: Counter[int] = Counter()
    portions: dict[int, Counter[str]] = {}
    for option in options:
        for slot, taken in (t for claimed in option.claims for t in claimed if not t[0].mode.is_admin):
            for index in taken:
                if not snapshot.devices[index].shareable:
                    whole[index] += 1
                elif index in slot.portions:
                    portions.setdefault(index, Counter()).update(dict(slot.portions[index]))
                else:
                    yield "a shareable device whole"
    if any(times > 1 or i in ledger.whole or i in ledger.shared for i, times in whole.items()):
        yield "a device given twice"
    for index, amounts in portions.items():
        device = snapshot.devices[index]
        held = ledger.shared.get(index, {})
        if index in ledger.whole:
            yield "a portion of a device in use"
        if any(held.get(name, 0) + amount > device.resources[name].nano for name, amount in amounts.items()):
            yield "more than the device has"
    drawn: Counter[tuple[int, str]] = Counter()
    for index in {*whole, *portions}:
        device = snapshot.devices[index]
        if not ledger.in_use(device):
            drawn.update({(device.pool, name): blocks for name, blocks in device.draws})
    for (pool, name), blocks in drawn.items():
        if blocks + ledger.drawn[pool][name] > snapshot.pools[pool].resources[name].blocks:
            yield "more than the pool has"


# -- exhaustive search -----------------------------------------------------------------------------------------------

Score = tuple[tuple[int, ...], tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...], int, int]


def score(instance: Instance, options: Mapping[int, Option]) -> Score:
    """The goals of S17 as one tuple to minimise: counts, who, alternatives, pools, devices."""
    priorities = sorted({d.claim.priority for unit in instance.units for d in unit.demands}, reverse=True)
    members = [(d.claim.priority, number) for number, unit in enumerate(instance.units) for d in unit.demands]
    counts = tuple(-sum(p == priority and number in options for p, number in members) for priority in priorities)
    who = tuple(tuple(number not in options for p, number in members if p == priority) for priority in priorities)
    by_level = tuple(entry for pair in zip(counts, who, strict=True) for entry in ((pair[0],), pair[1]))
    chosen = tuple(vector for number in sorted(options) for vector in options[number].alternatives)
    devices = {i for option in options.values() for claimed in option.claims for _, taken in claimed for i in taken}
    pools = {instance.snapshot.devices[index].pool for index in devices}
    return counts, by_level, chosen, len(pools), len(devices)


def rank(found: Score) -> tuple[object, ...]:
    """What is compared: a level is fully decided before the next."""
    return found[1:]


def best_score(instance: Instance, budget: int) -> Score | None:
    """The best score of all answers, or None when there are more than ``budget`` to look at."""
    options = []
    total = 1
    for unit in instance.units:
        found = _options(instance, unit, budget)
        if found is None or (total := total * (1 + len(found))) > budget:
            return None
        options.append(found)
    best: Score | None = None
    for chosen in _combinations(instance, options, {}, 0):
        now = score(instance, chosen)
        if best is None or rank(now) < rank(best):
            best = now
    return best


def _combinations(
    instance: Instance, options: Sequence[Sequence[Option]], chosen: dict[int, Option], number: int
) -> Iterator[dict[int, Option]]:
    if number == len(options):
        yield chosen
        return
    for option in options[number]:
        more = chosen | {number: option}
        if not any(overuse(instance, more.values())):
            yield from _combinations(instance, options, more, number + 1)
    yield from _combinations(instance, options, chosen, number + 1)


def _options(instance: Instance, unit: Unit, budget: int) -> list[Option] | None:
    """The ways to satisfy a unit, or None when there are too many to try."""
    places: Sequence[Place] = instance.snapshot.nodes or [None]
    found: dict[object, Option] = {}
    tried = 0
    for place in [unit.pin] if unit.pin is not None else places:
        for claims in product(*(_claims(instance, demand, place) for demand in unit.demands)):
            tried += 1
            if tried > budget:
                return None
            option = Option(place, claims)
            if not any(objections(instance, unit, option)):
                found.setdefault(claims, option)
    return [*found.values()]


def _claims(instance: Instance, demand: Demand, place: Place) -> list[Claimed]:
    details = [[taken for slot in detail for taken in _sets(instance, slot, place)] for detail in demand.details]
    return [claimed for claimed in product(*details) if not any(_claim_objections(instance, demand, claimed))]


def _sets(instance: Instance, slot: Slot, place: Place) -> list[Taken]:
    reached = [index for index in sorted(slot.candidates.accepted) if _reaches(instance, place, index)]
    if slot.mode in (Mode.EVERY, Mode.ADMIN_ALL):
        return [(slot, tuple(reached))]
    most = len(reached) if slot.most is None else min(slot.most, len(reached))
    return [(slot, devices) for size in range(slot.least, most + 1) for devices in combinations(reached, size)]


# -- random instances ------------------------------------------------------------------------------------------------


def random_instance(random: Random, *, crowded: bool = False) -> Instance:
    """A few devices and claims that meet the rules and each other; ``crowded``: equal claims for whole devices."""
    snapshot = _snapshot(random)
    sets = [_candidates(random, snapshot) for _ in range(random.choice([1, 2, 2, 3]))]
    kinds = [_demand_shape(random, snapshot, sets, crowded) for _ in range(random.choice([1, 1, 2, 2]))]
    units: list[Unit] = []
    for number in range(random.choice([3, 3, 4, 5]) if crowded else random.choice([1, 2, 3, 3, 4])):
        kind = random.randrange(len(kinds))
        pin, demand = kinds[kind]
        claim = a_claim(f"c{number}", demand.claim.priority)
        copy = _copy(demand, claim, kind)
        group = None
        if random.random() < (0.03 if crowded else 0.1):
            other = _copy(random.choice(kinds)[1], a_claim(f"c{number}b", demand.claim.priority), kind)
            units.append(Unit((copy, other), "group", pin))
            continue
        units.append(Unit((copy,), group, pin))
    units.sort(key=lambda unit: (-unit.demands[0].claim.priority, unit.demands[0].key))
    return Instance(snapshot, tuple(_holdings(random, snapshot)), tuple(units))


def candidates(devices: Iterable[int]) -> Candidates:
    """Devices that a slot accepts."""
    return Candidates(dict.fromkeys(devices), ())


def a_slot(accepted: Candidates, **fields: Any) -> Slot:
    """A slot for one whole device, but for these fields."""
    plain = Slot(0, None, None, Mode.WHOLE, 1, 1, {}, {}, (), accepted)
    return replace(plain, **fields)


def a_claim(name: str, priority: int = 0) -> SimpleNamespace:
    """What the solver knows of a claim of any dialect."""
    key = ("default", name)
    return SimpleNamespace(key=key, priority=priority, metadata=SimpleNamespace(creation_timestamp=None, name=name))


def _copy(demand: Demand, claim: SimpleNamespace, kind: int) -> Demand:
    """An equal claim with slots of its own, as two manifests would make it."""
    details = tuple(tuple(replace(slot) for slot in detail) for detail in demand.details)
    return replace(demand, claim=claim, details=details, shape=kind)


def _snapshot(random: Random) -> Snapshot:
    nodes = ["n1", "n2"][: random.choice([0, 1, 1, 2, 2])]
    pools: list[Pool] = []
    devices: list[Device] = []
    theme = random.choice(["plain", "shareable", "counters", "mixed", "mixed"])
    lists = random.random() < 0.5
    for number in range(random.choice([1, 2, 2, 3])):
        node = random.choice([*nodes, *nodes, None])
        counters = {"c": Resource(1, random.choice([1, 2, 3]))} if theme in ("counters", "mixed") else {}
        members = []
        alike = random.random() < 0.4
        attributes, resources = _attributes(random, lists), _resources(random)
        for _ in range(random.choice([1, 2, 2, 3, 4])):
            shareable = theme == "shareable" or (theme == "mixed" and random.random() < (0.8 if alike else 0.4))
            reach = None
            if node is None and nodes and random.random() < 0.4:
                reach = frozenset(random.sample(nodes, random.choice([1, len(nodes)])))
            members.append(
                Device(
                    index=len(devices) + len(members),
                    pool=number,
                    name=f"d{len(members)}",
                    attributes=attributes if alike else _attributes(random, lists),
                    resources=resources if alike else _resources(random),
                    draws=(("c", random.choice([1, 1, 2])),) if counters and random.random() < 0.7 else (),
                    undefined=None,
                    shareable=shareable,
                    reach=reach,
                )
            )
        pools.append(Pool(number, node, f"p{number}", "driver", counters, tuple(members)))
        devices += members
    by_node: dict[Place, tuple[Pool, ...]] = defaultdict(tuple)
    for pool in pools:
        by_node[pool.node] = (*by_node[pool.node], pool)
    return Snapshot(tuple(pools), tuple(devices), tuple(nodes), dict(by_node), {p.name: (p,) for p in pools})


SCALE = 10**27 + 1
"""Amounts beyond 64 bits, and not round."""


def _resources(random: Random) -> dict[str, Resource]:
    found = {"m": Resource(1, random.choice([2, 3, 4]) * SCALE)}
    if random.random() < 0.3:
        found["k"] = Resource(1, random.choice([0, 1, 2]))
    return found


def _attributes(random: Random, lists: bool) -> dict[str, object]:
    found: dict[str, object] = {}
    for name in "ab":
        if random.random() < 0.85:
            found[name] = random.choice("xyz"[: random.choice([1, 2, 3])])
            if lists and random.random() < 0.4:
                found[name] = frozenset(random.sample("xyz", random.choice([1, 2, 2])))
    return found


def _candidates(random: Random, snapshot: Snapshot) -> Candidates:
    chance = random.choice([0.5, 0.8, 1.0])
    return Candidates({d.index: None for d in snapshot.devices if random.random() < chance}, ())


def _demand_shape(
    random: Random, snapshot: Snapshot, sets: Sequence[Candidates], crowded: bool
) -> tuple[str | None, Demand]:
    details = []
    for index in range(random.choice([1, 1, 2] if crowded else [1, 1, 2, 2, 3])):
        count = random.choice([1, 1, 1, 2, 3])
        numbers: list[int | None] = [None] if count == 1 else [*range(count)]
        details.append(
            tuple(_slot(random, snapshot, index, number, random.choice(sets), crowded) for number in numbers)
        )
    labels = [slot.label for detail in details for slot in detail]
    relations = []
    for _ in range(random.choice([0, 0, 1] if crowded else [0, 0, 1, 1, 2])):
        scope = labels if random.random() < 0.5 else random.sample(labels, random.randint(1, len(labels)))
        relations.append(Relation(random.choice("ab"), random.random() < (0.1 if crowded else 0.4), frozenset(scope)))
    pin = random.choice(["n1", "n2", "n3"]) if random.random() < 0.1 else None
    demand = Demand(
        claim=a_claim("", random.choice([0, 0, 0, 1])),
        details=tuple(details),
        match=("a",) if random.random() < 0.15 and not _lists(snapshot) else (),
        relations=tuple(relations),
        most=random.choice([None, None, None, 2, 3]),
        once=random.random() < 0.5,
    )
    return pin, demand


def _lists(snapshot: Snapshot) -> bool:
    """Match attributes of details are of one dialect, lists of the other."""
    return any(isinstance(value, frozenset) for d in snapshot.devices for value in d.attributes.values())


def _slot(
    random: Random,
    snapshot: Snapshot,
    index: int,
    alternative: int | None,
    candidates: Candidates,
    crowded: bool,
) -> Slot:
    modes = [Mode.WHOLE, Mode.EVERY, Mode.ADMIN_COUNT, Mode.ADMIN_ALL]
    mode = Mode.WHOLE if crowded else random.choices(modes, weights=[8, 1, 1, 1])[0]
    least = random.choice([1, 1, 1, 2]) if mode in (Mode.WHOLE, Mode.ADMIN_COUNT) else 1
    most: int | None = least
    if mode is Mode.WHOLE and random.random() < 0.1:
        most = least + 1
    elif mode in (Mode.EVERY, Mode.ADMIN_ALL):
        most = random.choice([None, None, 2])
    match = ("b",) if random.random() < 0.15 and not _lists(snapshot) else ()
    if match:
        having = {i: None for i in candidates.accepted if "b" in snapshot.devices[i].attributes}
        candidates = Candidates(having, ())
    portion = (("m", random.choice([1, SCALE, SCALE, SCALE, SCALE, 2 * SCALE])),)
    with_k = (*portion, ("k", random.choice([0, 1])))
    portions = {}
    for i in candidates.accepted:
        device = snapshot.devices[i]
        if device.shareable and random.random() < 0.97:
            portions[i] = with_k if "k" in device.resources else portion
    requests = {"m": random.choice([1, 3]) * SCALE} if mode is Mode.WHOLE and random.random() < 0.1 else {}
    return Slot(index, alternative, None, mode, least, most, requests, {}, match, candidates, portions)


def _holdings(random: Random, snapshot: Snapshot) -> Iterator[Holding]:
    for device in snapshot.devices:
        if random.random() < 0.1:
            amounts = (("m", random.choice([1, 1, 2, 3]) * SCALE),) if device.shareable else None
            yield Holding(("held", f"h{device.index}"), 0, (Held(device.index, amounts),))
