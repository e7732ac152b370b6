"""The goals of S17, one after the other: each is optimised, then fixed, before the next.

There is always an incumbent (at first: no claim is satisfied), so running out of time keeps the best answer so far.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from devalloc_solver.bounds.minimum_use import MinimumUse, satisfied_details
from devalloc_solver.bounds.shared_amounts import SharedAmountBound, make_shared_amount_bound
from devalloc_solver.exact.claim_groups import request_key
from devalloc_solver.exact.goal_search import SMALL_MODEL, STEP_LIMIT, GoalSearch
from devalloc_solver.exact.model import build_model
from devalloc_solver.exact.policy import order_cost, policy_cost, share_cost, spread_costs
from devalloc_solver.exact.variables import BatchModel, ClaimGroupVars, LinearTerms
from devalloc_solver.place.step_budget import SearchTimeout
from devalloc_solver.problem.allocations import Holding
from devalloc_solver.problem.demand import Demand, PlacementUnit, Request
from devalloc_solver.problem.ordering import ClaimOrder, claim_order
from devalloc_solver.problem.placement import GoalLevel
from devalloc_solver.problem.placement_policy import PlacementPolicy
from devalloc_solver.problem.snapshot import Snapshot

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    from devalloc_solver.bounds.device_bound import DeviceBound

UNITS_PER_STEP = 24
"""Units that are decided together. One by one, the 40 batches of 30 and 100 claims of the benchmark `batches` take half
as long again, and two of them three times as long."""
MAX_TOGETHER = 2**24
"""The same for alternatives: the product of their numbers. One by one, a batch of 30 claims with oneOf takes 2.7 times
as long."""
SMALL_TO_SPREAD = 400
"""Variables up to which it is searched how to spread devices evenly; beyond, first fits do it better (``search``)."""


def may_fit(
    snapshot: Snapshot,
    allocations: Sequence[Holding],
    unit: PlacementUnit,
    ends: float | None,
    *,
    limit: float = STEP_LIMIT,
) -> bool:
    """Whether a unit fits by itself; False only when it is proven that it does not, within CP-SAT's ``limit``."""
    try:
        model = build_model(snapshot, allocations, [unit], ends=ends)
    except SearchTimeout:
        return True
    search = GoalSearch(model, ends)
    _, bound = search.maximize([(1, model.satisfied[0])], best=1, limit=limit)
    return bound > 0


def optimize_goals(
    model: BatchModel, *, policy: PlacementPolicy, ends: float | None, search: GoalSearch | None = None
) -> tuple[GoalSearch, list[GoalLevel]]:
    """All goals in order. The counts of goal 1 come with their bounds; the rest as far as it could be proven.

    ``search``: one of the model that has an incumbent already (``warm_start``).
    """
    search = search or GoalSearch(model, ends)
    levels = _maximize_satisfied(search)
    levels += _alternatives(search)
    minimum = _minimum_use(search, levels)
    limit = search.pools_limit
    value, bound = search.minimize([(1, used) for used in model.pools_used.values()], best=minimum.pools(), limit=limit)
    levels.append(GoalLevel("pools", value, bound))
    value, bound = search.minimize(
        [(1, used) for used in model.devices_used.values()], best=minimum.devices(), limit=limit
    )
    levels.append(GoalLevel("devices", value, bound))
    if policy.weighs_loads:
        search.minimize(share_cost(model), limit=search.policy_limit)
        if len(model.cp.proto.variables) <= SMALL_TO_SPREAD:
            for cost, least in spread_costs(search, policy.measure):
                search.minimize(cost, best=least, limit=search.policy_limit)
    size = len(model.cp.proto.variables)
    if size <= SMALL_MODEL or (size <= 2 * SMALL_MODEL and not search.is_placed):
        search.minimize(policy_cost(model, policy), best=None, limit=search.policy_limit)
    if len(model.units) > 1 and not search.is_warm:
        search.minimize(order_cost(model), limit=search.policy_limit)
    return search, levels


def _minimum_use(search: GoalSearch, levels: Sequence[GoalLevel]) -> MinimumUse:
    """What the satisfied claims take at least: by the alternatives that they have, where these are proven."""
    model = search.model
    details: list[tuple[Sequence[Request], int]] = [((request,), times) for request, times in search.filled()]
    if not all(level.is_proven for level in levels if level.goal == "oneOf"):
        demands = (
            demand for n, unit in enumerate(model.units) if search.value(model.satisfied[n]) for demand in unit.demands
        )
        details = [(alternatives, 1) for demand in demands for alternatives in demand.details]
    return MinimumUse(model.snapshot, model.usage, model.units, satisfied_details(details))


def _maximize_satisfied(search: GoalSearch) -> list[GoalLevel]:
    """Goal 1: per priority as many claims as possible, then the earlier ones."""
    model = search.model
    members = _in_order(model)
    priorities = sorted({-order[0] for order, _, _ in members}, reverse=True)
    levels: list[GoalLevel] = []
    settled: set[int] = set()
    denied: set[object] = set()
    asked_at_once = not search.is_warm
    most_claims = _most_claims(model, search.ends)
    for position, priority in enumerate(priorities):
        left = [number for order, number, _ in members if -order[0] <= priority]
        numbers = [number for order, number, _ in members if -order[0] == priority]
        incumbent, most = sum(_satisfied(search, numbers)), len(numbers)
        if search.is_warm and incumbent < most:
            higher = {level.priority or 0: level.value for level in levels}
            most = min(most, most_claims(priority, higher))
            if incumbent < most and levels:
                most = min(most, _most_beside(search, settled, priority, higher))
        if (
            not asked_at_once
            and incumbent < most
            and position + 1 < len(priorities)
            and not any(_satisfied(search, left))
        ):
            # Often nothing fits any more: one search for all levels that are left.
            asked_at_once = True
            if search.maximize(_claims(model, left), best=len(left), is_kept=False) == (0, 0):
                certain = all(level.choice for level in levels)
                certain &= _prefer_units(search, [*dict.fromkeys(left)], denied, proven=True)
                return levels + [GoalLevel("satisfied", 0, 0, each, choice=certain) for each in priorities[position:]]
        value, bound = search.maximize(_claims(model, numbers), best=most)
        certain = value == bound and all(level.choice for level in levels)
        undecided = [number for number in dict.fromkeys(numbers) if number not in settled]
        certain &= _prefer_units(search, undecided, denied, proven=search.is_warm and value == bound == 0)
        settled.update(numbers)
        levels.append(GoalLevel("satisfied", value, bound, priority, choice=certain))
    return levels


def _most_claims(model: BatchModel, ends: float | None) -> Callable[[int, Mapping[int, int]], int]:
    """A bound of the claims of a priority beside so many of each higher one, by counting; often it is reached."""
    bounds: tuple[DeviceBound, SharedAmountBound] | None = None

    def most(priority: int, higher: Mapping[int, int]) -> int:
        from devalloc_solver.bounds.device_bound import make_device_bound  # brings numpy

        nonlocal bounds
        if bounds is None:
            counted = model.snapshot, model.usage, model.units
            bounds = make_device_bound(*counted), make_shared_amount_bound(*counted)
        devices, amounts = bounds
        return min(devices.bound(priority, higher, ends), amounts.bound(priority, higher))

    return most


def _most_beside(search: GoalSearch, settled: Container[int], priority: int, higher: Mapping[int, int]) -> int:
    """A bound on the claims of a priority, given exactly which units of higher priorities are satisfied, not only how
    many."""
    from devalloc_solver.bounds.device_bound import make_device_bound  # brings numpy

    model = search.model
    units = [unit for n, unit in enumerate(model.units) if n not in settled or search.value(model.satisfied[n])]
    return make_device_bound(model.snapshot, model.usage, units).bound(priority, higher, search.ends)


def _claims(model: BatchModel, numbers: Sequence[int]) -> LinearTerms:
    """How many claims are satisfied. ``numbers``: of each claim its unit."""
    return [(times, model.satisfied[number]) for number, times in Counter(numbers).items()]


def _satisfied(search: GoalSearch, numbers: Iterable[int]) -> Iterator[int]:
    return (search.value(search.model.satisfied[number]) for number in numbers)


def _in_order(model: BatchModel) -> list[tuple[ClaimOrder, int, Demand]]:
    """(order, unit, demand) of all claims in the order they are decided."""
    ordered = [(claim_order(d.claim), number, d) for number, unit in enumerate(model.units) for d in unit.demands]
    return sorted(ordered, key=lambda item: item[:2])


def _prefer_units(search: GoalSearch, numbers: Sequence[int], denied: set[object], *, proven: bool = False) -> bool:
    """Satisfy each of these units if the counts allow it, whatever becomes of later ones. False when that remains open.

    Those that follow each other are decided together, by weights: each counts more than all after it. That says the
    same as one after the other, in fewer searches; where one of these proves nothing they are asked one by one.

    ``proven``: what the incumbent says of all of them is proven.
    """
    certain, together, left = True, len(numbers) if proven else UNITS_PER_STEP, list(numbers)

    def is_open(number: int) -> bool:
        wish = request_key(search.model.units[number])
        return wish is None or wish not in denied

    while left:
        size = together
        if search.is_warm and not proven:  # large models: as few searches as possible
            first = next(
                (
                    n
                    for n, number in enumerate(left)
                    if is_open(number) and not search.value(search.model.satisfied[number])
                ),
                len(left),
            )
            for number in left[:first]:  # better is not possible
                certain &= _prefer_unit(search, number, denied, proven=True)
            left = left[first:]
            open_positions = [n for n, number in enumerate(left) if is_open(number)][: together + 1]
            size = open_positions[together] if len(open_positions) > together else len(left)
        now, left = left[:size], left[size:]
        open_numbers = [number for number in now if is_open(number)]
        literals = [search.model.satisfied[number] for number in open_numbers]
        are_proven = proven
        if not proven and len(open_numbers) > 1 and not all(map(search.value, literals)):
            terms = [(1 << n, literal) for n, literal in enumerate(reversed(literals))]
            value, bound = search.maximize(terms, best=(1 << len(terms)) - 1, limit=search.choice_limit)
            are_proven = value == bound
            together = together if are_proven else 1
        for number in now:
            certain &= _prefer_unit(search, number, denied, proven=are_proven)
    return certain


def _prefer_unit(search: GoalSearch, number: int, denied: set[object], *, proven: bool) -> bool:
    """The same for one unit; ``proven``: what the incumbent says of it is proven.

    Where an equal claim before it was denied, so is this one: the two could change places.
    """
    literal, wish = search.model.satisfied[number], request_key(search.model.units[number])
    certain = True
    if not search.value(literal) and not proven and (wish is None or wish not in denied):
        value, bound = search.maximize([(1, literal)], best=1, limit=search.choice_limit)
        certain = value == bound
    if not search.value(literal):
        denied.add(wish)
    search.fix(literal, search.value(literal))
    return certain


def _alternatives(search: GoalSearch) -> list[GoalLevel]:
    """Goal 2: the vector of chosen oneOf indexes, claim by claim, smallest first."""
    model = search.model
    claim_groups = {number: claim_group for claim_group in model.claim_groups for number in claim_group.units}
    by_demand: dict[int, dict[int, LinearTerms]] = defaultdict(dict)
    for parts in model.requests:
        if parts.request.alternative is not None and search.value(model.satisfied[parts.unit]):
            terms = by_demand[id(parts.demand)].setdefault(parts.request.detail, [])
            terms.append((parts.request.alternative, parts.chosen))
    steps: list[tuple[ClaimGroupVars, int] | dict[int, LinearTerms]] = []
    for _, number, demand in _in_order(model):
        if not search.value(model.satisfied[number]):
            continue
        if number in claim_groups:
            claim_group = claim_groups[number]
            upto = claim_group.units.index(number) + 1
            if steps and isinstance(steps[-1], tuple) and steps[-1][0] is claim_group:
                steps.pop()
            if any(len(detail) > 1 for detail in demand.details):
                steps.append((claim_group, upto))
        elif id(demand) in by_demand:
            steps.append(by_demand[id(demand)])
    value = bound = 0
    settled: dict[int, int] = defaultdict(int)
    for counted, group in groupby(steps, key=lambda step: isinstance(step, tuple)):
        reached: list[tuple[int, int]] = []
        entries: list[LinearTerms] = []
        for step in group:
            if isinstance(step, tuple):
                claim_group, upto = step
                reached.append(_prefer_alternatives(search, claim_group, settled[id(claim_group)], upto))
                settled[id(claim_group)] = upto
            else:
                entries += [[(w, v) for w, v in step[detail] if w] for detail in sorted(step)]
        reached += [] if counted else _minimize_in_turn(search, entries)
        value, bound = value + sum(each for each, _ in reached), bound + sum(each for _, each in reached)
    return [GoalLevel("oneOf", value, bound)] if steps else []


def _minimize_in_turn(search: GoalSearch, sums: Sequence[LinearTerms]) -> list[tuple[int, int]]:
    """Minimise these sums of 0/1 variables one after the other: (value, bound) of each.

    Those that follow each other are minimised together, by weights as in ``_prefer_units``; where that proves nothing,
    one by one.
    """
    reached: list[tuple[int, int]] = []
    together, left = search.is_warm, list(sums)
    while left:
        weighted: LinearTerms = []
        number, weight = 0, 1
        while number < len(left) and (not number or (together and weight < MAX_TOGETHER)):
            # What is counted so far weighs less than one step of the next sum, seen from the last of them.
            weighted = [(w * _span(left[number]), v) for w, v in weighted] + left[number]
            weight *= _span(left[number])
            number += 1
        now, left = left[:number], left[number:]
        proven = False
        if len(now) > 1 and any(map(search.total, now)):
            value, bound = search.minimize(weighted, limit=search.choice_limit)
            together = proven = value == bound
        reached += [
            search.minimize(terms, best=search.total(terms) if proven else 0, limit=search.choice_limit)
            for terms in now
        ]
    return reached


def _span(terms: LinearTerms) -> int:
    """More than a sum of 0/1 variables, of which one is 1 at the most, can be."""
    return 1 + max((weight for weight, _ in terms), default=0)


def _prefer_alternatives(search: GoalSearch, claim_group: ClaimGroupVars, settled: int, upto: int) -> tuple[int, int]:
    """The same for consecutive members, from ``settled`` (exclusive) to ``upto``: (value, bound) of their sum.

    The earlier members get the smaller vectors, so the vector of the j-th is at most a given one when j members have
    vectors up to that: for each vector in turn, as many as possible.
    """
    ranked: dict[tuple[int, ...], list[cp_model.IntVar]] = defaultdict(list)
    for site in claim_group.sites:
        for pattern, variable in site.patterns.items():
            ranked[pattern].append(variable)
    value = bound = 0
    reached = possible = settled
    below: list[cp_model.IntVar] = []
    for pattern in sorted(ranked):
        below += ranked[pattern]
        now = min(upto, sum(search.value(variable) for variable in below))
        counted = search.new_int(upto, now)
        search.model.cp.add(counted <= sum(below))
        now, most = search.maximize([(1, counted)], best=upto, limit=search.choice_limit)
        value += sum(pattern) * max(0, now - reached)
        # Members that may do better are counted with the least that is to come: a bound in any case.
        least = min(sum(other) for other in ranked if other >= pattern)
        bound += least * max(0, most - possible)
        reached, possible = max(reached, now), max(possible, most)
        if reached == upto:
            break
    return value, bound
