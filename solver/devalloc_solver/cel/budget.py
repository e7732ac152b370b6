"""What expressions may cost, in steps and in time: the bounds of both dialects of CEL (S6).

===================  =========================================================================================
of one evaluation    ``Budget``: ``EVALUATION_BUDGET`` steps, and a time that is looked at every
                     ``STEPS_PER_CLOCK_CHECK`` of them
of one expression    ``EXPRESSION_BUDGET`` over all devices it is asked of, kept in ``Costs`` from call to call
of one call          ``COMMON_BUDGET`` for the expressions of all its claims, and the time of its ``Allowance``
===================  =========================================================================================

Steps depend on the expression and the device only, so a bound in steps gives the same answer on every machine. The time
is there for callers that must answer in time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

EVALUATION_BUDGET = 1_000_000
"""Steps that one evaluation may spend, as in Kubernetes: less than a tenth of a second. An evaluation cannot be gone on
with, so no claim waits longer than that for those of others.
"""

EXPRESSION_BUDGET = 5_000_000
"""Steps that one expression may spend over the whole fleet beyond those that are FREE: a second or two."""

COMMON_BUDGET = 4 * EXPRESSION_BUDGET
"""The same for the expressions of all claims of one call, but for those that are FREE."""

FREE_STEPS = 100
"""Steps of one evaluation that both budgets are spared: more than most expressions have. What is cheap for each device
is refused neither for what others cost, nor because the fleet is large.
"""

STEPS_PER_CLOCK_CHECK = 10_000
"""Steps after which the clock is looked at: about a millisecond."""

SHARING_ROUNDS = 3
"""How often the claims of a call that need more share equally what others have left."""

SHARE_OF_TIME = 0.4
"""The part of a deadline in which expressions are evaluated. The search needs the rest, and the check evaluates once
more what it was told of the devices that were chosen.
"""

MIN_SECONDS = 0.4
"""Time for expressions however short the deadline is, so that what is cheap is always answered. This and the next two
are not for quick calls, whose callers call again.
"""

MIN_CLAIM_SECONDS = 0.05
"""Seconds that every claim has, even when others have used up the time."""
EXTRA_SECONDS = 0.3
"""Seconds that all of them have together in this way."""

TOO_EXPENSIVE = "is too expensive for this fleet"
COMMON_SPENT = (
    "is too expensive: with the other expressions of these claims it exceeds their common budget; make it simpler"
)
TOO_EXPENSIVE_ONCE = "the evaluation costs more than"
"""of one device: in the dialect of resource.k8s.io that device is skipped"""
OUT_OF_TIME = "the time ran out before its expressions were evaluated; make them simpler, or give more time"
SEARCH_CUT_SHORT = "the time ran out before it was known whether devices fit together; ask for less, or give more time"


class Bound(StrEnum):
    """The bound that the expressions of a refused claim exceeded: asked again, they cost the same."""

    EXPRESSION = "expression"
    """what one expression may cost over all devices"""
    COMMON = "common"
    """what the expressions of all claims of the call may cost: alone the claim may be answered"""
    DEVICE = "device"
    """what one expression may cost on one device"""
    TIME = "time"
    """the time of the call: the next one may come further"""


T = TypeVar("T")
C = TypeVar("C")


class BudgetExceeded(Exception):
    """The expression costs more than its budget. It says nothing about the device."""


class CommonBudgetExceeded(BudgetExceeded):
    """An evaluation that does not fit beside those of the other expressions of a call."""


class OutOfTime(Exception):
    """The time is over; nothing is known of what was to be done. No operator of a language can absorb it."""

    bound: Bound | None = Bound.TIME
    """what the expressions exceeded; None if it was something else that took the time"""


class SearchCutShort(OutOfTime):
    """The time was over before it was known whether devices fit together."""

    bound = None


class Budget:
    """Evaluation steps that may be spent, over as many evaluations as share this object.

    One step is one node of the expression; an operation on a text, list or map costs steps in proportion to its size,
    and each turn of a macro costs the nodes of its body. The count depends on the expression and the attributes only,
    never on the machine.
    """

    __slots__ = ("_ends", "_portion", "_rest", "limit")

    def __init__(self, limit: int, ends: float | None = None) -> None:
        """``ends``: monotonic time after which nothing is evaluated any more."""
        self.limit = limit
        self._ends = ends
        self._portion = limit if ends is None or limit < STEPS_PER_CLOCK_CHECK else STEPS_PER_CLOCK_CHECK
        """steps until the next look at the clock"""
        self._rest = limit - self._portion

    @property
    def left(self) -> int:
        """Steps that are left; negative when more was needed than there was."""
        return self._portion + self._rest

    @property
    def spent(self) -> int:
        """Steps that were spent, at most the limit."""
        left = self._portion + self._rest
        return self.limit - left if left > 0 else self.limit

    def renew(self) -> None:
        """Give back what was spent. Only for a budget without a time."""
        self._portion = self.limit

    def spend(self, steps: int) -> None:
        """Take ``steps`` from the budget. Raises BudgetExceeded when it is used up, OutOfTime when the time is."""
        self._portion -= steps
        if self._portion < 0:
            self._take_portion()

    def _take_portion(self) -> None:
        left = self.left
        if left < 0:
            raise BudgetExceeded(f"costs more than its budget of {self.limit} evaluation steps")
        check_deadline(self._ends)
        self._portion = min(left, STEPS_PER_CLOCK_CHECK)
        self._rest = left - self._portion


def check_deadline(ends: float | None) -> None:
    """Raises OutOfTime when the monotonic time ``ends`` is over; None is never."""
    if ends is not None and time.monotonic() > ends:
        raise OutOfTime(OUT_OF_TIME)


@dataclass(slots=True)
class Allowance:
    """What the expressions of one call may cost, and until when they are evaluated."""

    until: float | None = None
    """monotonic time at which the call has to answer; None for no limit"""
    ends: float | None = None
    """monotonic time after which nothing is evaluated any more"""
    room: int = field(default_factory=lambda: COMMON_BUDGET)
    """steps beyond FREE that are left"""
    serial: int = 0
    """calls that have begun"""
    is_turn: bool = False
    """whether this is the turn of one claim among several, which gets another one"""
    can_finish: bool = False
    """whether one evaluation may go on to its end, however long that takes, because the time has cut it before"""
    _charged: dict[str, int] = field(default_factory=dict)
    """expression -> what it was charged: each pays once"""
    _overtime: float = EXTRA_SECONDS
    _now: dict[str, int] = field(default_factory=dict)
    """the same of this turn"""

    def begin(
        self,
        until: float | None = None,
        started: float | None = None,
        now: float | None = None,
        *,
        is_quick: bool = False,
    ) -> None:
        """A call begins, or did at the monotonic time ``started``, which has to answer at ``until``.

        Args:
            now: the time, where the caller has it.
            is_quick: expressions have as long as the call was to take, from now on, or as it took so far, if that is
                more: of many short calls each does as much as it costs. What is not evaluated by then is in a later
                call, which goes on from there. An evaluation cannot be gone on with, so one of those that the time has
                cut in an earlier call is not cut again.
        """
        self.until = until
        self.serial += 1
        self.can_finish = is_quick
        self._overtime = 0.0 if is_quick else EXTRA_SECONDS
        self.begin_again()
        if until is None:
            self.ends = None
            return
        now = time.monotonic() if now is None else now
        began = now if started is None else started
        seconds = until - began
        if is_quick:
            self.ends = now + max(seconds, min(now - began, MIN_SECONDS))
        else:
            self.ends = max(now + MIN_SECONDS, began + SHARE_OF_TIME * seconds)

    def begin_again(self) -> None:
        """The same call begins again in another way, with all that its expressions may cost."""
        self.room = COMMON_BUDGET
        if self._charged:
            self._charged.clear()

    def begin_search(self) -> None:
        """What is evaluated from now on may take as long as the search: it serves to find out the reasons."""
        self.ends = self.until

    def prolong(self, until: float | None) -> None:
        """The call has to answer at another time, and its search is about to begin."""
        self.until = until
        self.begin_search()

    @property
    def is_over(self) -> bool:
        """Whether the call should have answered: what it finds out now may be less than there is to know."""
        return self.until is not None and time.monotonic() > self.until

    @property
    def is_late(self) -> bool:
        """Whether the time for expressions is over."""
        return self.ends is not None and time.monotonic() > self.ends

    def left(self, expression: str, cost: int) -> int:
        """Steps that the next evaluation of an expression may take that has cost so much."""
        if not cost:
            return self.room + FREE_STEPS
        room = self.room - cost + self._paid(expression)
        return room + FREE_STEPS if room > 0 else FREE_STEPS

    def charge(self, expression: str, cost: int) -> None:
        """An expression has cost so much in all. Raises CommonBudgetExceeded when there is no room for that."""
        more = cost - self._paid(expression)
        if more > self.room:
            raise CommonBudgetExceeded
        if more > 0:
            self.room -= more
            (self._now if self.is_turn else self._charged)[expression] = cost

    def _paid(self, expression: str) -> int:
        paid, now = self._charged.get(expression, 0), self._now.get(expression, 0)
        return now if now > paid else paid

    def exhaust(self) -> None:
        """Nothing is left: an expression that needed more than there was is refused, and has taken it."""
        self.room = 0

    @contextmanager
    def turn(self, share: int, claims: int) -> Iterator[None]:
        """The turn of one of so many claims that have not had theirs: it may spend so many steps, and its share of half
        of the time. A turn that ends with an error is free; what was found out in it is remembered.
        """
        room, ends, share = self.room, self.ends, min(share, self.room)
        self.room, self.is_turn = share, True
        now = 0.0
        if ends is not None:
            now = time.monotonic()
            # What cannot be stopped, such as to check a long expression, may have taken more than its share.
            self.ends = now + max(max(0.0, ends - now) / (2 * claims), min(MIN_CLAIM_SECONDS, self._overtime))
        is_done = False
        try:
            yield
            is_done = True
        finally:
            if is_done:
                self._charged.update(self._now)
            self.room = room - share + self.room if is_done else room
            self._now.clear()
            if ends is not None and (late := time.monotonic() - max(now, ends)) > 0:
                self._overtime = max(0.0, self._overtime - min(late, MIN_CLAIM_SECONDS))
            self.ends, self.is_turn = ends, False


def evaluate_in_turns(
    claims: Sequence[C], allowance: Allowance, act: Callable[[C], T], late: Callable[[C, OutOfTime], T]
) -> list[T]:
    """``act`` of each claim, which evaluates its expressions; what it gives, in the order of the claims.

    Each claim has a turn with an equal share of the allowance, so that no claim waits for the expensive one before it.
    Those that need more share what is left, up to TURNS times; then they have it in their order. ``late``: what is
    given for a claim when the time is over.
    """
    results: dict[int, T] = {}
    waiting = list(range(len(claims)))
    for _ in range(SHARING_ROUNDS if len(claims) > 1 else 0):
        share, left = allowance.room // len(waiting), []
        for turn, number in enumerate(waiting):
            try:
                with allowance.turn(share, len(waiting) - turn):
                    results[number] = act(claims[number])
            except (CommonBudgetExceeded, OutOfTime):
                left.append(number)
        if len(left) in (0, len(waiting)) or allowance.is_late:
            break  # the moment that each has beyond the time it has once
        waiting = left
    for number, claim in enumerate(claims):
        if number not in results:
            try:
                results[number] = act(claim)
            except OutOfTime as error:
                results[number] = late(claim, error)
    return [results[number] for number in range(len(claims))]


@dataclass(slots=True)
class _Cost:
    """What one expression has cost."""

    left: int = field(default_factory=lambda: EXPRESSION_BUDGET)
    """steps beyond FREE that are left of its own budget"""
    beyond: int = 0
    """steps beyond FREE of each evaluation; none for what is cheap"""
    most: int = 0
    """steps of the most expensive evaluation that was completed, or more than one may have"""
    was_cut: bool = False
    """the time was over before one was completed"""


@dataclass(slots=True)
class Costs:
    """What expressions have cost since their verdicts are remembered."""

    _costs: dict[str, _Cost] = field(default_factory=dict)

    def of(self, expression: str) -> int:
        """The steps that an expression has cost beyond what is FREE."""
        cost = self._costs.get(expression)
        return 0 if cost is None else cost.beyond

    def forget(self, expression: str) -> None:
        """The expression has cost nothing: what it cost before was for other devices, or is to be found out again."""
        self._costs.pop(expression, None)

    def take_over(self, expression: str, others: Costs) -> None:
        """The expression has cost what it has cost there."""
        if (cost := others._costs.get(expression)) is not None:
            self._costs[expression] = cost

    @property
    def total(self) -> int:
        """The steps that all have cost beyond what is FREE."""
        return sum(cost.beyond for cost in self._costs.values())

    def too_expensive(self, expression: str) -> str:
        """Why an expression is refused that used up its budget."""
        most = self._costs.get(expression, _Cost()).most
        if most <= FREE_STEPS or most > EVALUATION_BUDGET:
            bound = min(EVALUATION_BUDGET, EXPRESSION_BUDGET)
            return f"{TOO_EXPENSIVE}: more than {bound} units for one device; make it simpler"
        devices = EXPRESSION_BUDGET // (most - FREE_STEPS)
        return (
            f"{TOO_EXPENSIVE}: up to {most} units for each device that differs in what it reads, and the bound of "
            f"{EXPRESSION_BUDGET} units is enough for {devices} of them; make it simpler"
        )

    def evaluate(
        self,
        expression: str,
        run: Callable[[Budget], T],
        allowance: Allowance,
        *,
        is_common: bool = True,
        is_counted: bool = True,
        base: int = 0,
        most: int | None = None,
    ) -> T:
        """One evaluation of an expression, within what is left of its budget and of the call's.

        Args:
            run: evaluates it.
            is_common: whether the common budget of the call pays for it.
            is_counted: whether it counts as a cost of the expression for calls to come.
            base: steps that it takes besides those that ``run`` counts.
            most: steps that one evaluation may take; None for EVALUATION_BUDGET.

        Raises what ``run`` does, BudgetExceeded when the expression's own budget does not suffice, and
        CommonBudgetExceeded or OutOfTime, which cost nothing.
        """
        ends = allowance.ends
        if ends is not None:
            check_deadline(ends)
        cost = self._costs.get(expression)
        if cost is None:
            cost = self._costs[expression] = _Cost()
        own = cost.left + FREE_STEPS
        common = allowance.left(expression, cost.beyond) if is_common else own
        limit = (common if common < own else own) - base
        if limit < 0:
            raise CommonBudgetExceeded if common < own else BudgetExceeded
        most = EVALUATION_BUDGET if most is None else most
        is_short = common < own and limit < most
        """whether less is left of the common budget than the evaluation may have otherwise"""
        finishes = cost.was_cut and allowance.can_finish
        budget = Budget(min(limit, most), None if finishes else ends)
        is_free, is_complete = False, True
        try:
            return run(budget)
        except BudgetExceeded:
            is_free, is_complete = is_short, False
            if is_free:
                raise CommonBudgetExceeded from None
            if budget.limit == most:
                cost.most = most + 1
            raise
        except OutOfTime:
            is_free = cost.was_cut = True
            raise
        finally:
            if finishes:
                allowance.can_finish = False
            if not is_free:
                spent = budget.spent + base
                if spent > FREE_STEPS:
                    if is_complete and spent > cost.most:
                        cost.most = spent
                    cost.left -= spent - FREE_STEPS
                    if is_counted:
                        cost.beyond += spent - FREE_STEPS
