"""Why a claim is not satisfied: a stable code, a sentence with numbers, and who is in the way (S19).

Every reason is verified by solving again: the claim fits once what the reason names is taken away.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from devalloc_solver.assignment import Placement
from devalloc_solver.batch import NOTHING, Relax
from devalloc_solver.demand import Demand, Mode, Slot, Unit
from devalloc_solver.funnel import Funnel, make_funnel, shortage
from devalloc_solver.goals import Search
from devalloc_solver.holdings import Holding, Key, Ledger
from devalloc_solver.model import build_model
from devalloc_solver.reasons import Reason
from devalloc_solver.snapshot import Snapshot
from devalloc_solver.solution import ClaimAnswer

MAX_HELD_DEVICES = 5_000
"""Beyond this many devices in use, the smallest set of blockers is not looked for: the search would take too long."""

_EXCLUSIVE = (
    "the devices exclude each other: together they need more of their pool's resources than it has, "
    "or are of different groups"
)

_IN_THE_WAY = (
    Reason.DEVICES_IN_USE,
    Reason.LOST_TO_HIGHER_PRIORITY,
    Reason.LOST_TO_COMPETITION,
    Reason.SEARCH_LIMIT,
)
"""Reasons of what would fit, were it not for others."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The reason of a unit."""

    reason: Reason
    tail: str
    """what stands in the way, after the numbers of the funnel"""
    blockers: tuple[Key, ...] = ()


class Undecided(Exception):
    """The deadline or the search limit came before it was known whether a unit fits."""


@dataclass(slots=True)
class Explainer:
    """Explains the units that a solution left out."""

    snapshot: Snapshot
    holdings: Sequence[Holding]
    """held before this batch"""
    placements: Sequence[Placement]
    """given in this batch"""
    ends: float | None = None
    given: tuple[Holding, ...] = field(init=False)
    priorities: Mapping[Key, int] = field(init=False)
    known: dict[object, Finding] = field(default_factory=dict)
    """kind of a unit -> its reason, which is that of all its equals"""

    def __post_init__(self) -> None:
        self.given = tuple(placement.holding() for placement in self.placements)
        self.priorities = {h.claim: h.priority for h in (*self.holdings, *self.given)}

    def explain(self, unit: Unit, warnings: Mapping[Key, tuple[str, ...]]) -> list[ClaimAnswer]:
        """An answer for each claim of the unit."""
        try:
            findings = (
                self._find_members(unit) if len(unit.demands) > 1 else {unit.demands[0].key: self._find_one(unit)}
            )
        except Undecided:
            late = Finding(Reason.SEARCH_LIMIT, "the search ended before the reason was found")
            findings = {demand.key: late for demand in unit.demands}
        return [self._answer(d, findings[d.key], unit.pin, warnings) for d in unit.demands]

    def _find_members(self, unit: Unit) -> dict[Key, Finding]:
        """Reasons in a group, which is all or none: who cannot be helped fails the others, and blockers are common."""
        alone = {d.key: Unit((d,), unit.group, unit.pin) for d in unit.demands}
        hopeless = [key for key, single in alone.items() if not self._fits(single, ())]
        if hopeless:
            names = ", ".join(f"{namespace}/{name}" for namespace, name in hopeless)
            told = f"group {unit.group} is all or none, and {names} cannot be satisfied"
            others = Finding(Reason.GROUP_UNSATISFIABLE, told)
            return {key: self._find(single) if key in hopeless else others for key, single in alone.items()}
        together = self._find(unit)
        possible = together.reason in _IN_THE_WAY
        told = f"group {unit.group} is all or none and shares a node: {together.tail}"
        common = replace(together, reason=together.reason if possible else Reason.GROUP_UNSATISFIABLE, tail=told)
        return dict.fromkeys(alone, common)

    # -- the reason --------------------------------------------------------------------------------------------------

    @property
    def _in_use(self) -> tuple[Holding, ...]:
        return (*self.holdings, *self.given)

    def _find_one(self, unit: Unit) -> Finding:
        kind = unit.kind
        found = self.known.get(kind) or self._find(unit)
        if kind is not None:
            self.known[kind] = found
        return found

    def _find(self, unit: Unit) -> Finding:
        if self.ends is not None and time.monotonic() > self.ends:
            raise Undecided
        empty = [detail for d in unit.demands for detail in d.details if not any(s.candidates.accepted for s in detail)]
        if empty:
            return Finding(Reason.NO_MATCHING_DEVICES, f"no device matches{_request(unit, empty[0])}")
        if not self._fits(unit, ()):
            return self._impossible(unit)
        if self._fits(unit, self._in_use):
            return Finding(Reason.SEARCH_LIMIT, "it fits, but the search ended before a place was found")
        blockers = self._blockers(unit)
        short = self._shortage(unit, self._in_use) or self._exhausted(unit)
        tail = "; ".join(part for part in (short, _release(blockers)) if part)
        if not self._fits(unit, self.holdings):
            return Finding(Reason.DEVICES_IN_USE, tail, blockers)
        mine = max(d.claim.priority for d in unit.demands)
        higher = any(self.priorities[key] > mine for key in blockers)
        return Finding(Reason.LOST_TO_HIGHER_PRIORITY if higher else Reason.LOST_TO_COMPETITION, tail, blockers)

    def _impossible(self, unit: Unit) -> Finding:
        """Why it does not fit even when nothing is in use: the first rule without which it would."""
        short = self._shortage(unit, ())
        if unit.pin is not None and self._fits(replace(unit, pin=None), ()):
            return Finding(
                Reason.NODE_UNAVAILABLE, f"it would fit on another node, but is bound to {unit.pin}: {short}"
            )
        names = sorted({n for d in unit.demands for n in (*d.match, *(m for s in d.slots for m in s.match))})
        told = " and ".join(f"`{name}`" for name in names)
        differ = short or f"the devices needed together differ in {told} on every node"
        if names and self._fits(unit, (), Relax(match=True)):
            return Finding(Reason.MATCH_ATTRIBUTES_CONFLICT, differ)
        if self._fits(unit, (), Relax(pool_resources=True)):
            return Finding(Reason.POOL_RESOURCES_EXHAUSTED, short or _EXCLUSIVE)
        if names and self._fits(unit, (), Relax(match=True, pool_resources=True)):
            return Finding(Reason.MATCH_ATTRIBUTES_CONFLICT, f"{differ}; besides, {_EXCLUSIVE}")
        if self._fits(unit, (), Relax(limits=True)):
            limited = sorted({name for d in unit.demands for s in d.slots for name in s.spec.limits})
            kept = f"no choice of devices keeps within the limits of {' and '.join(limited)}"
            return Finding(Reason.INSUFFICIENT_CAPACITY, short or kept)
        amounts = any(s.requests for d in unit.demands for s in d.slots)
        counted = any(_too_few(detail) for d in unit.demands for detail in d.details)
        reason = Reason.INSUFFICIENT_CAPACITY if amounts and not counted else Reason.NOT_ENOUGH_DEVICES
        return Finding(reason, short or "no one node has all that is requested together, even when nothing is in use")

    def _exhausted(self, unit: Unit) -> str:
        """Devices are free, and yet it does not fit."""
        if self._fits(unit, self._in_use, Relax(pool_resources=True)):
            return "the free devices need pool resources (or a compatibility group) that devices in use have taken"
        return "no one node has all that is requested together free"

    def _fits(self, unit: Unit, held: Sequence[Holding], relax: Relax | None = None) -> bool:
        """Whether the unit fits beside what is held, for certain. Raises Undecided."""
        search = Search(build_model(self.snapshot, held, [unit], relax=relax or NOTHING), self.ends)
        value, bound = search.maximize([(1, search.model.satisfied[0])], best=1)
        if value != bound:
            raise Undecided
        return value == 1

    def _blockers(self, unit: Unit) -> tuple[Key, ...]:
        """The smallest set of claims whose release makes room; of equal ones, those given in this batch.

        Empty when it is not known to be the smallest.
        """
        releasable = [h for h in self._in_use if h.items]
        if sum(len(h.items) for h in releasable) > MAX_HELD_DEVICES:
            return ()
        model = build_model(self.snapshot, (), [unit], releasable=releasable)
        search = Search(model, self.ends)
        value, _ = search.maximize([(1, model.satisfied[0])], best=1)
        if not value:
            return ()
        new = {h.claim for h in self.given}
        staying, bound = search.maximize([(1, kept) for kept in model.kept.values()], best=len(model.kept))
        if staying < bound:
            return ()
        search.maximize([(1, kept) for key, kept in model.kept.items() if key not in new], best=len(model.kept))
        return tuple(sorted(key for key, kept in model.kept.items() if not search.value(kept)))

    # -- words -------------------------------------------------------------------------------------------------------

    def _shortage(self, unit: Unit, held: Sequence[Holding]) -> str:
        ledger = Ledger.of(self.snapshot, held)
        for demand in unit.demands:
            for detail in demand.details:
                told = [
                    shortage(self.snapshot, demand, slot, ledger, free="free " if held else "", pin=unit.pin)
                    for slot in detail
                ]
                if all(told):
                    return told[0]
        return ""

    def _answer(
        self, demand: Demand, finding: Finding, pin: str | None, warnings: Mapping[Key, tuple[str, ...]]
    ) -> ClaimAnswer:
        funnels = [make_funnel(self.snapshot, slot, self._in_use) for slot in demand.slots]
        namespace, name = demand.key
        return ClaimAnswer(
            namespace=namespace,
            name=name,
            allocated=False,
            reason=finding.reason,
            message=_message(funnels, finding),
            warnings=warnings.get(demand.key, ()),
            funnel=tuple(funnel.to_dict() for funnel in funnels),
            blockers=tuple(
                {"namespace": ns, "name": other, "priority": self.priorities[ns, other]}
                for ns, other in finding.blockers
            ),
        )


def _message(funnels: Sequence[Funnel], finding: Finding) -> str:
    """One sentence: the numbers of the request that is worst off, then what stands in the way."""
    worst = min(funnels, key=lambda f: (f.free - f.slot.least, f.slot.detail))
    told = f"request {worst.slot.label}: " if len(funnels) > 1 else ""
    return told + "; ".join(part for part in (worst.sentence(), finding.tail) if part)


def _release(blockers: Sequence[Key]) -> str:
    if not blockers:
        return ""
    names = ", ".join(f"{namespace}/{name}" for namespace, name in blockers)
    return f"releasing {names} would make room"


def _request(unit: Unit, detail: Sequence[Slot]) -> str:
    several = sum(len(d.details) for d in unit.demands) > 1
    return f" request {detail[0].detail}" if several else ""


def _too_few(detail: Sequence[Slot]) -> bool:
    """Counting alone shows it: fewer matching devices than needed."""
    return all(len(s.candidates.accepted) < s.least for s in detail if s.mode is not Mode.ADMIN_ALL)
