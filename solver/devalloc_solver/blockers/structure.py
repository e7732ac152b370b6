"""Why a unit fits no node even when nothing is in use: the first rules, in this order, without which it would."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from devalloc_solver.blockers.details import Offers, shape_of
from devalloc_solver.blockers.edits import Edit, fewest
from devalloc_solver.blockers.question import Finder, Question
from devalloc_solver.demand import Mode, Slot, Unit
from devalloc_solver.holdings import Key
from devalloc_solver.reasons import Reason


@dataclass(frozen=True, slots=True)
class Structure:
    """What makes it impossible. No edit can be left out, and together they make it fit an empty fleet."""

    reason: Reason
    edits: tuple[Edit, ...]


Tier = tuple[Reason, list[Edit]]


def why_impossible(question: Question, offers: Offers, finder: Finder, members: Sequence[Edit] = ()) -> Structure:
    """Which rules to take away. The question, on a fleet where nothing is held, has no answer. Raises Undecided.

    ``members`` of the unit's group may be left out, once no rule alone will do.
    """
    unmatched = unmatched_details(question.unit)
    tiers: Iterable[Tier] = _tiers(question, offers, finder, members)
    if unmatched:
        tiers = _tiers_without_match(offers, {str(number) for number in unmatched})
    for reason, edits in tiers:
        found = fewest(question, edits, finder)
        if found is not None:
            return Structure(reason, tuple(found))
    return Structure(Reason.NO_MATCHING_DEVICES if unmatched else short_reason(question.unit), ())


def unmatched_details(unit: Unit) -> list[int]:
    """Details for which no device passes class, type and constraints."""
    details = (detail for demand in unit.demands for detail in demand.details)
    return [detail[0].detail for detail in details if not any(slot.candidates.accepted for slot in detail)]


def short_reason(unit: Unit) -> Reason:
    """Too few devices, or too small ones?"""
    details = [detail for demand in unit.demands for detail in demand.details]
    amounts = any(slot.requests for detail in details for slot in detail)
    counted = any(_too_few(detail) for detail in details)
    return Reason.INSUFFICIENT_CAPACITY if amounts and not counted else Reason.NOT_ENOUGH_DEVICES


def _too_few(detail: Sequence[Slot]) -> bool:
    """Counting alone shows it: fewer matching devices than needed."""
    return all(len(s.candidates.accepted) < s.least for s in detail if s.mode is not Mode.ADMIN_ALL)


def _tiers(question: Question, offers: Offers, finder: Finder, members: Sequence[Edit]) -> Iterator[Tier]:
    """One after the other: what to offer may take questions of its own, which are asked when it comes to them."""
    short = short_reason(question.unit)
    pins, matches, limits, withheld = offers.pins(), offers.matches(), offers.limits(), offers.withheld()
    pools = offers.shared()
    yield Reason.NODE_UNAVAILABLE, pins
    yield Reason.MATCH_ATTRIBUTES_CONFLICT, matches
    yield Reason.POOL_RESOURCES_EXHAUSTED, pools
    yield Reason.MATCH_ATTRIBUTES_CONFLICT, [*matches, *pools] if matches and pools else []
    yield Reason.INSUFFICIENT_CAPACITY, limits
    yield short, withheld
    yield short, list(members)
    amounts, requests = offers.amounts(), offers.requests()
    rules = [*pins, *matches, *pools, *limits, *withheld, *amounts]
    more = [*rules, *offers.constraints(), *offers.classes(), *members]
    yield short, _too_much_alone(question, amounts, finder)
    yield short, requests if len(requests) > 1 else []
    yield short, rules
    yield short, more
    yield short, [*more, *requests]


def _too_much_alone(question: Question, amounts: list[Edit], finder: Finder) -> list[Edit]:
    """Amounts of the details that fit nowhere even on their own."""
    details = [(demand.key, detail) for demand in question.unit.demands for detail in demand.details]
    if len(details) < 2:
        return amounts
    fits: dict[object, bool] = {}
    for key, slots in details:
        if (key, shape_of(slots)) not in fits:
            fits[key, shape_of(slots)] = finder.works(_alone(question, key, slots[0].detail))
    hopeless = [(key, slots[0].detail) for key, slots in details if not fits[key, shape_of(slots)]]
    named = {(f"{namespace}/{name}", str(number)) for (namespace, name), number in hopeless}
    one = f"{question.unit.demands[0].key[0]}/{question.unit.demands[0].key[1]}"
    return [edit for edit in amounts if (edit.entry.get("claim", one), _detail(edit)) in named]


def _alone(question: Question, key: Key, number: int) -> Question:
    """The question for one detail only."""
    return question.with_slots(lambda demand, slot: slot if (demand.key, slot.detail) == (key, number) else None)


def _tiers_without_match(offers: Offers, unmatched: set[str]) -> list[Tier]:
    """Nothing matches: what is withheld, then the rules of the details that nothing matches, then all rules."""

    def own(edits: list[Edit]) -> list[Edit]:
        return [edit for edit in edits if _detail(edit) in unmatched]

    withheld, matches, constraints = offers.withheld(), offers.matches(), offers.constraints()
    classes, requests = offers.classes(), offers.requests()
    asked = [*own(matches), *withheld, *own(constraints)]
    rest = [*offers.pins(), *offers.shared(), *offers.limits(), *offers.amounts()]
    rules = [*matches, *withheld, *constraints, *classes, *rest]
    tiers = [withheld, own(matches), own(constraints), asked, own(classes), [*asked, *own(classes)]]
    tiers += [own(requests) if len(requests) > 1 else [], rules, [*rules, *requests]]
    return [(Reason.NO_MATCHING_DEVICES, edits) for edits in tiers]


def _detail(edit: Edit) -> str:
    return str(edit.entry.get("request", "")).partition(".")[0]
