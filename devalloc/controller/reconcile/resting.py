"""Which objects a round looks at. Claims and machines that were refused rest until a change could help them.

A unit (a claim, the members of a group, or a machine) rests once its refusal stands on it, and

- it fits nowhere, as the fleet is now: until devices that it could use become free or new (``WaitingBook``); or
- a quota or admin access keeps it out: until the quota, the namespace or a class changes, or a claim of the namespace
  gives something back.

It also wakes if it changes itself, or something that belongs to it. Claims that hold devices rest as well
(``SettledClaims``). What rests costs a round nothing, however much it is. Of very many new units, a round looks at the
first, in turns of namespaces (``postponed``).
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from devalloc.api import host_pool_names
from devalloc.api.owner_names import MACHINE
from devalloc.api.reasons import Reason
from devalloc.api.views import ClaimKey, ClaimView, MachineView, Order, order_of
from devalloc.controller.reconcile.postponed import CLAIM, PostponedUnits, Unit
from devalloc.controller.reconcile.requester import RoundRequests
from devalloc.controller.reconcile.round_solver import RoundSolver, may_rest_with
from devalloc.controller.reconcile.settled import SettledClaims, may_matter, says_all
from devalloc.controller.reconcile.snapshot import order_of_key
from devalloc.store import Key, Object
from devalloc_solver.pipeline import admission

MAX_NEW = 100
"""New objects that are looked at in one round: so the most urgent, and those of all namespaces, are answered soon. The
last group or machine is looked at as a whole."""
_OF_ADMISSION = (Reason.QUOTA_EXCEEDED.value, Reason.ADMIN_ACCESS_DENIED.value)
Answer = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What a round came to."""

    answers: Mapping[ClaimKey, Answer]
    """As the solver gave them."""
    written: Mapping[Key, Object]
    """As they are now."""
    undone: frozenset[Key]
    """What was to be written and is not."""
    gives: bool
    """Something was given to units that waited."""
    is_proven: bool
    """No more could be satisfied."""


@dataclass(slots=True)
class RestingObjects:
    """Of one loop. Not thread-safe."""

    solver: RoundSolver
    asking: frozenset[str] = frozenset({CLAIM, MACHINE})
    """Kinds of what asks for devices."""
    settled: SettledClaims = field(default_factory=SettledClaims)
    """Claims that hold devices and are left alone."""
    _asleep: dict[Key, Object] = field(default_factory=dict)
    """Objects that are left alone, as they are."""
    _awake: set[Key] = field(default_factory=set)
    """All others that the last round looked at; and some that are gone."""
    _postponed: PostponedUnits = field(default_factory=PostponedUnits)
    """What waits and was left to a later round."""
    _order: list[Key] = field(default_factory=list)
    """The objects of the last look in order."""
    _busy: dict[Key, Object] = field(default_factory=dict)
    """Objects that wait for nothing, as rounds have seen them; and some that are gone."""
    _written: dict[Key, str] = field(default_factory=dict)
    """The same for those that were written in the last round: their versions."""
    _machines: set[Key] = field(default_factory=set)
    """Machines among these."""
    _unit_of: dict[Key, Unit] = field(default_factory=dict)
    _members: dict[Unit, frozenset[Key]] = field(default_factory=dict)
    _by_admission: dict[str, set[Unit]] = field(default_factory=dict)
    """Namespace -> units that admission keeps out."""
    _freed: set[str] = field(default_factory=set)
    """Namespaces that hold less than before the last round."""
    _by_hosts: set[Unit] = field(default_factory=set)
    """Machines that no node has anything for, as nodes have published it."""
    _groups: dict[tuple[str, str], Unit] = field(default_factory=dict)
    _equals: set[Hashable] = field(default_factory=set)
    """Units that ask for the same as one that a change could have helped, and that admission kept out."""
    has_woken: bool = False
    """The last ``look`` woke some."""
    _has_new: bool = False
    """It found claims or machines that wait as no round has seen them."""

    def __len__(self) -> int:
        return len(self._unit_of)

    @property
    def claims(self) -> int:
        """How many claims wait that the last round did not look at."""
        return self._postponed.claims + len(self._asleep) + len(self._written) - len(self._machines)

    @property
    def has_machines(self) -> bool:
        """Whether machines are left alone."""
        return bool(self._machines)

    def without_resting(self, objects: Mapping[Key, Object]) -> dict[Key, Object]:
        """The objects that do not rest."""
        at_rest = zip(objects.items(), map(self._asleep.get, objects), map(self.settled.get, objects), strict=True)
        return {key: obj for (key, obj), *as_they_rest in at_rest if all(obj is not one for one in as_they_rest)}

    # -- before a round ------------------------------------------------------------------------------------------------

    def look(
        self, objects: Mapping[Key, Object], before: Mapping[Key, Object], changed: Collection[Key]
    ) -> dict[Key, Object]:
        """The objects that a round looks at.

        ``objects``: all. ``before``: the same as of the last round, with what it wrote. ``changed``: those that are
        others now, have come or gone, and perhaps more."""
        changes: list[tuple[Key, Object | None, Object | None]] = []
        fresh: set[Key] = set()  # as they are, no round has looked at them
        for key in {*changed, *self._written}:
            old, new = before.get(key), objects.get(key)
            fresh.update(self._postponed.withdraw(key))
            if new is None:
                self._awake.discard(key)
                self._busy.pop(key, None)
                self._written.pop(key, None)
            elif new["metadata"].get("resourceVersion") == self._written.get(key, ()):
                self._asleep[key] = new
                self._awake.discard(key)
                del self._written[key]
                continue
            elif key.kind not in self.asking:
                pass  # all rounds have it
            elif self._asleep.get(key) is not new and self.settled.get(key) is not new:
                self._awake.add(key)
                fresh.add(key)
            if old is not new:
                changes.append((key, old, new))
        self.settled.withdraw(key for key, _, _ in changes)
        if len(self.settled) and any(may_matter(*change) for change in changes):
            self.wake_held()
        awake = {self._unit_of[key] for key, _, _ in changes if key in self._unit_of}
        for key, old, new in changes:
            self._end_pauses(key, new or old or {})
        awake |= {unit for unit in self.solver.waiting.due() if isinstance(unit, Unit)}
        awake |= self._touched(changes) | (self._members.keys() & self._equals)
        self._equals.clear()
        self.has_woken = bool(awake)
        fresh.update(key for unit in awake for key in self._members.get(unit, ()))
        self._wake(awake)
        self._bound(fresh, objects)
        self._order = [key for key in self._order if key in self._awake and key in objects]
        for key in self._awake.difference(self._order):
            if key in objects:
                insort(self._order, key, key=order_of_key)
        self._awake = set(self._order)
        return {key: objects[key] for key in self._order}

    def _touched(self, changes: Iterable[tuple[Key, Object | None, Object | None]]) -> set[Unit]:
        """The units to which changes of other objects may matter: each with what it was and what it is."""
        units: set[Unit] = set()
        has_new_hosts = has_new_plugins = has_new_classes = False
        freed, self._freed = self._freed, set()
        admitting: set[str] = set()  # namespaces that admit something else than before
        for key, old, new in changes:
            obj = new or old
            assert obj is not None
            if key.kind == CLAIM:
                namespace, group = ClaimView(obj).key[0], ClaimView(obj).group
                if group is not None and (unit := self._groups.get((namespace, group))):
                    units.add(unit)
                if _gives_back(old, new):
                    freed.add(namespace)
            elif key.kind == MACHINE:
                units |= {unit for claim in MachineView(obj).claims if (unit := self._unit_of.get(Key(CLAIM, *claim)))}
            elif _may_serve_others(key, old, new):
                has_new_plugins = True
            elif key.kind == "DevicePool" and host_pool_names.node_of_host_pool(obj) is not None:
                has_new_hosts |= _content(old) != _content(new)
            elif key.kind == "DeviceClass":
                has_new_classes = True
            elif admission.is_admission_object(obj) and _admission_content(old) != _admission_content(new):
                admitting.add(key.name if key.kind == "Namespace" else key.namespace or "default")
        # Once for all changes: a tenant can release thousands of claims at once, while thousands wait.
        units |= {self._unit_of[machine] for machine in self._machines} if has_new_plugins else set()
        units |= self._by_hosts if has_new_hosts else set()
        units |= {unit for unit in self._members if unit.namespace in admitting} if admitting else set()
        for namespace in self._by_admission if has_new_classes else freed | admitting:
            units |= self._by_admission.get(namespace, set())
        return units

    def wake(self, active: Mapping[Key, Object], objects: Mapping[Key, Object]) -> dict[Key, Object] | None:
        """The objects that a round looks at, with those that a change of the fleet could help; None if there are no
        more than ``active``."""
        woken = {
            unit for unit in self.solver.wake(has_new=self._has_new) if isinstance(unit, Unit) and unit in self._members
        }
        for key in (key for unit in woken for key in self._members[unit]):
            self._postponed.withdraw(key)  # it was woken before, for another reason
        urgent = self._postponed.urgent
        keys: set[Key] = set()
        for unit in woken:
            members = self._members[unit]
            for key in members:
                self._forget(key)
            order = min(order_of(objects[key]) for key in members)
            if urgent is not None and order[0] > urgent:
                self._postpone(unit, order, {key: objects[key] for key in members})
            else:
                keys |= members
        return _in_order(active.keys() | keys, objects) if keys else None

    def _forget(self, key: Key) -> None:
        """It does not rest."""
        self._asleep.pop(key, None)
        self._written.pop(key, None)
        self._machines.discard(key)
        self._awake.add(key)

    def _end_pauses(self, key: Key, obj: Object) -> None:
        """How often it took too long does not matter any more."""
        if key.kind in (CLAIM, MACHINE):
            self.solver.waiting.end_pauses(self._unit_of.get(key) or _unit_of(key, obj))

    @property
    def is_behind(self) -> bool:
        """Whether the next round is due at once."""
        return bool(self._postponed or self._equals) or self.solver.waiting.is_behind

    @property
    def is_due(self) -> bool:
        """Whether a round has something to look at, though nothing has changed and the next ``look`` wakes none."""
        return self.is_behind or self.solver.waiting.has_outdated

    def _wake(self, units: Iterable[Unit]) -> None:
        for unit in units:
            for key in self._members.pop(unit, ()):
                self._forget(key)
                self._unit_of.pop(key, None)
            self.solver.waiting.discard(unit)
            if (of_namespace := self._by_admission.get(unit.namespace)) is not None:
                of_namespace.discard(unit)
                if not of_namespace:
                    del self._by_admission[unit.namespace]
            self._by_hosts.discard(unit)
            if unit.group:
                self._groups.pop((unit.namespace, unit.group), None)

    def _bound(self, fresh: Iterable[Key], objects: Mapping[Key, Object]) -> None:
        """Postpone new units if there are too many for a round; none goes before more urgent ones."""
        new = {key: objects[key] for key in fresh if key in objects and _waits(objects[key])}
        self._postponed.begin_round()
        self._has_new = bool(new or self._postponed)
        if not self._postponed and len(new) <= MAX_NEW:
            self._awake |= new.keys()
            self._postponed.charge(new)
            return
        for key, obj in [*new.items()]:
            own = [Key(CLAIM, *claim) for claim in MachineView(obj).claims] if key.kind == MACHINE else []
            for other in (other for one in (key, *own) for other in self._postponed.withdraw(one)):
                if other in objects:
                    new[other] = objects[other]
        machines = (key for key in self._awake | new.keys() if key.kind == MACHINE)
        waiting = (key for key in machines if key in objects and _waits(objects[key]))
        owner = {Key(CLAIM, *claim): key for key in waiting for claim in MachineView(objects[key]).claims}
        units: dict[Unit, dict[Key, Object]] = defaultdict(dict)
        for key, obj in new.items():
            units[Unit(owner[key]) if key in owner else _unit_of(key, obj)][key] = obj
        groups = {unit for unit in units if unit.group}
        for key in self._awake.difference(new) if groups else ():  # their other members go with the new ones
            member = objects.get(key)
            if member is None or self._busy.get(key) is member or not _waits(member):
                continue
            if (unit := _unit_of(key, member)) in groups:
                units[unit][key] = member
        for unit, members in units.items():
            self._postpone(unit, min(map(order_of, members.values())), members)
        self._awake.update(self._postponed.take(MAX_NEW))

    def _postpone(self, unit: Unit, order: Order, members: Mapping[Key, Object]) -> None:
        self._postponed.add(unit, order, members)
        self._awake.difference_update(members)  # ``-=`` with keys would copy the set

    # -- after a round -------------------------------------------------------------------------------------------------

    def settle(self, active: Mapping[Key, Object], requests: RoundRequests, done: RoundResult) -> None:
        """Let the units rest that were refused in a round, and whose refusals stand on them."""
        bound = {Key(CLAIM, *claim) for claim in requests.bound}
        units = self._waiting_units(active)
        self._freed = {
            key.namespace or "default" for key, obj in done.written.items() if _gives_back(active.get(key), obj)
        }
        unsettled: set[str] = set()
        refused: dict[Unit, list[Answer]] = {}
        for unit, keys in units.items():
            answers = [one for key in keys if (one := self._answer(key, requests, done)) is not None]
            if unit in self._members:
                if unit not in self._equals and _is_kept_out(answers):
                    self._equals.update(self.solver.waiting.equals(unit))
                self._wake([unit])
            is_reported = unit.key not in done.written and unit.key not in done.undone
            has_no_host = unit.key.kind == MACHINE and is_reported and requests.is_waiting(unit.key)
            if has_no_host and not MachineView(active[unit.key]).claims:
                self._enter(unit, keys, active, done.written, by_admission=False)
                self._by_hosts.add(unit)
                continue
            is_settled = bound.isdisjoint(keys) and done.undone.isdisjoint(keys)
            if unit.key.kind == MACHINE and unit.key in done.written:
                continue  # a round may have more to say of it
            if len(answers) == len(keys) and is_settled and may_rest_with(answers):
                refused[unit] = answers
            elif unit.key.kind == CLAIM:
                unsettled.add(unit.namespace)
        self._equals -= units.keys()
        by_solver = {unit.namespace for unit, answers in refused.items() if not _is_kept_out(answers)}
        documents = (
            {ClaimView(doc).key: doc for doc in requests.documents if doc.get("kind") == CLAIM} if refused else {}
        )
        for unit, answers in refused.items():
            keys = units[unit]
            kept_out = _is_kept_out(answers)
            if kept_out and (unit.namespace in unsettled or unit.namespace in by_solver):
                continue  # what these leave of a quota may be for it
            if kept_out or self._rests(unit, keys, answers, active, requests, documents, done):
                self._enter(unit, keys, active, done.written, by_admission=kept_out)

    def settle_held(self, active: Mapping[Key, Object], done: RoundResult, apart_from: Collection[Key]) -> None:
        """Let claims rest of which a round has no more to say; not those ``apart_from``."""
        claims = {
            key: obj
            for key, obj in active.items()
            if key.kind == CLAIM
            and says_all(obj, done.answers.get((key.namespace or "default", key.name)))
            and not (key in done.written or key in done.undone or key in apart_from)
        }
        self._awake.difference_update(claims)
        self.settled.add(claims)

    def wake_held(self) -> None:
        """The next round looks at all claims that hold devices."""
        self._awake.update(self.settled.withdraw_all())

    def _waiting_units(self, active: Mapping[Key, Object]) -> dict[Unit, list[Key]]:
        """What waits, by unit. What waits no more is noted once: a round costs little however much holds devices."""
        units: dict[Unit, list[Key]] = defaultdict(list)
        for key, obj in active.items():
            if self._busy.get(key) is obj:
                continue
            if _waits(obj):
                units[_unit_of(key, obj)].append(key)
                continue
            self._busy[key] = obj
            self._end_pauses(key, obj)
            if key.kind == CLAIM and key in self._unit_of:
                self._wake([self._unit_of[key]])
        return units

    def _answer(self, key: Key, requests: RoundRequests, done: RoundResult) -> Answer | None:
        """The refusal of one object; None if it has none, or another one than the solver's."""
        answers = [done.answers.get(part) for part in requests.parts_of(key, alone=True)]
        if key.kind == CLAIM:
            return answers[0]
        return next((one for one in answers if one is not None and not one["allocated"]), None)

    def _rests(
        self,
        unit: Unit,
        keys: Sequence[Key],
        answers: Sequence[Answer],
        active: Mapping[Key, Object],
        requests: RoundRequests,
        documents: Mapping[ClaimKey, Object],
        done: RoundResult,
    ) -> bool:
        names = (name for key in keys for name in requests.parts_of(key))
        claims = [documents[name] for name in names if name in documents]
        order = min(order_of(active[key]) for key in keys)
        return self.solver.rest(unit, order, claims, answers, is_proven=done.is_proven and not done.gives)

    def _enter(
        self,
        unit: Unit,
        keys: Sequence[Key],
        active: Mapping[Key, Object],
        written: Mapping[Key, Object],
        *,
        by_admission: bool,
    ) -> None:
        self._members[unit] = frozenset(keys)
        if by_admission:
            self._by_admission.setdefault(unit.namespace, set()).add(unit)
        if unit.group:
            self._groups[unit.namespace, unit.group] = unit
        for key in keys:
            self._unit_of[key] = unit
            if key.kind == MACHINE:
                self._machines.add(key)
            if key in written:
                self._written[key] = written[key]["metadata"]["resourceVersion"]
            else:
                self._asleep[key] = active[key]
                self._awake.discard(key)


def _in_order(keys: Iterable[Key], objects: Mapping[Key, Object]) -> dict[Key, Object]:
    return {key: objects[key] for key in sorted(keys, key=order_of_key)}


def _unit_of(key: Key, obj: Object) -> Unit:
    group = ClaimView(obj).group if key.kind == CLAIM else None
    return Unit(key) if group is None else Unit(Key(CLAIM, key.namespace, ""), group)


def _gives_back(old: Object | None, new: Object | None) -> bool:
    """Whether it is a claim that had devices, and has none."""
    if old is None or old["kind"] != CLAIM:
        return False
    return bool(ClaimView(old).entries) and (new is None or not ClaimView(new).entries)


def _waits(obj: Object) -> bool:
    """Whether it is a claim without devices, or a machine without a node, and asks for them."""
    if obj["kind"] == CLAIM:
        view = ClaimView(obj)
        return not view.entries and not view.is_deleting and not view.is_held
    if obj["kind"] == MACHINE:
        machine = MachineView(obj)
        return not machine.is_deleting and not machine.is_held and not machine.status.get("nodeName")
    return False


def _content(obj: Object | None) -> Any:
    """Equal as long as the spec is."""
    return None if obj is None else (obj["metadata"].get("uid"), obj["metadata"].get("generation"), obj.get("spec"))


def _may_serve_others(key: Key, old: Object | None, new: Object | None) -> bool:
    """Whether nodes may have other plugins than before: what a machine that names its node says of that."""
    if key.kind == "DevicePool":
        return old is None or new is None
    labels = [None if one is None else one["metadata"].get("labels") for one in (old, new)]
    return key.kind == "Node" and ((old is None) != (new is None) or labels[0] != labels[1])


def _is_kept_out(answers: Collection[Answer]) -> bool:
    """Whether one of them is kept out by admission, and with it the others."""
    return any(answer["reason"] in _OF_ADMISSION for answer in answers)


def _admission_content(obj: Object | None) -> Any:
    """Of a quota what it allows: how much of it is used changes with each answer."""
    content = None if obj is None else admission.relevant_content(obj)
    return content[0] if isinstance(content, tuple) else content
