"""The first incumbent of an exact model: claims placed one by one, so that a search need not begin with none placed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from devalloc_solver.bounds.minimum_use import MinimumUse, satisfied_details
from devalloc_solver.exact.builder import sum_terms
from devalloc_solver.exact.goal_search import GoalSearch
from devalloc_solver.exact.variables import ClaimGroupVars, GroupSiteVars, RequestVars
from devalloc_solver.place.greedy import close_pools, has_later_choice, place_compactly
from devalloc_solver.problem.allocations import Holding
from devalloc_solver.problem.demand import AllocationMode, PlacementUnit
from devalloc_solver.problem.ordering import ClaimOrder, claim_order
from devalloc_solver.problem.placement import PlacedDevice, Placement
from devalloc_solver.problem.placement_policy import PlacementPolicy

LEAST_SIZE = 400
"""Variables of models that are worth it; of smaller ones, the names of devices are searched for in natural order, too.
At 0 the batches of 10 to 100 claims of the benchmark `batches` take a tenth less and are as good in goals 1 to 4 of
S17, at 1,000 a batch of 100 claims for shares takes 3.5 s instead of 0.5."""
STEP_LIMIT = 1.0
"""CP-SAT's deterministic time to complete what is placed to values of all variables."""


def start_search(search: GoalSearch, allocations: Sequence[Holding], *, policy: PlacementPolicy) -> None:
    """Make the best answer that places unit after unit the incumbent of a search.

    ``allocations``: what is in use, as the model was built with.
    """
    model = search.model
    if len(search.values) < LEAST_SIZE:
        return
    for b in model.unwatched:  # then an answer has the fewest devices at once, and goal 4 needs no search
        model.cp.add(sum_terms(model.users[b]) == model.devices_used[b])
    in_order = sorted(model.units, key=_order)
    best: list[Placement] = []
    orders = (sorted(in_order, key=_size, reverse=True), in_order)
    for units in {tuple(map(id, order)): order for order in orders}.values():
        answer = place_compactly(model.snapshot, allocations, units, policy=policy, ends=search.ends)
        best = max(best, answer, key=lambda placements: _value(in_order, placements))
        if len(best) == sum(len(unit.demands) for unit in units) and not has_later_choice(best):
            break  # all claims, by their first alternatives: other orders have only more pools
    best = _with_fewer_pools(search, allocations, best, policy)
    if best:
        search.complete(_Hints(search, best).all(), limit=STEP_LIMIT)


def _with_fewer_pools(
    search: GoalSearch, allocations: Sequence[Holding], answer: list[Placement], policy: PlacementPolicy
) -> list[Placement]:
    """The same claims by the same alternatives in fewer pools, if there may be fewer and a first fit finds them."""
    model, best = search.model, answer
    filled = {(one.demand.key, entry.request.label): entry.request for one in answer for entry in one.entries}
    least = MinimumUse(
        model.snapshot, model.usage, model.units, satisfied_details([((each,), 1) for each in filled.values()])
    ).pools()
    if has_later_choice(answer) or len(_pools(answer)) <= least:
        return answer
    placed = {one.demand.key for one in answer}
    units = sorted((unit for unit in model.units if unit.demands[0].key in placed), key=_size, reverse=True)
    roomy = place_compactly(model.snapshot, allocations, units, policy=policy, ends=search.ends, is_roomy=True)
    for rival in (answer, roomy):
        if len(rival) == len(answer) and not has_later_choice(rival):
            closed = close_pools(model.snapshot, allocations, units, rival, policy=policy, ends=search.ends)
            best = min(best, closed, key=lambda each: len(_pools(each)))
    return best


def _pools(placements: Sequence[Placement]) -> set[int]:
    return {entry.device.pool for one in placements for entry in one.entries}


def _order(unit: PlacementUnit) -> ClaimOrder:
    return min(claim_order(demand.claim) for demand in unit.demands)


def _size(unit: PlacementUnit) -> tuple[int, int]:
    """Units that need several kinds of devices come first, and large ones before small ones that fill gaps."""
    details = [detail for demand in unit.demands for detail in demand.details]
    return len(details), sum(min(request.min_count for request in detail) for detail in details)


def _value(units: Sequence[PlacementUnit], placements: Sequence[Placement]) -> tuple[object, ...]:
    """How good an answer is by goals 1 to 4 of S17: the greater, the better. ``units``: in the order of S17."""
    placed = {one.demand.key: one for one in placements}
    demands = sorted(
        (demand for unit in units for demand in unit.demands), key=lambda demand: claim_order(demand.claim)
    )
    answered = [demand.key in placed for demand in demands]
    counts = Counter(one.demand.claim.priority for one in placements)
    priorities = sorted({demand.claim.priority for demand in demands}, reverse=True)
    entries = [entry for one in placements for entry in one.entries]
    ranks = [
        tuple(-(entry.request.alternative or 0) for entry in placed[demand.key].entries)
        for demand in demands
        if demand.key in placed
    ]
    pools, devices = {entry.device.pool for entry in entries}, {entry.device.index for entry in entries}
    return [counts[priority] for priority in priorities], answered, ranks, -len(pools), -len(devices)


class _Hints:
    """variable -> value, of the decisions that placements tell; what follows from these is left open."""

    def __init__(self, search: GoalSearch, placements: Sequence[Placement]) -> None:
        self.model = search.model
        self.placed = {one.demand.key: one for one in placements}
        device_groups = self.model.device_groups
        self.group_of = {device.index: b for b, group in enumerate(device_groups) for device in group.devices}
        self.values: dict[int, int] = {}

    def all(self) -> dict[int, int]:
        model = self.model
        for number, unit in enumerate(model.units):
            one = self.placed.get(unit.demands[0].key)
            self.values[model.satisfied[number].index] = int(one is not None)
            places = model.places.get(number, {})
            if one is not None and one.node in places:
                self.values |= {literal.index: int(node == one.node) for node, literal in places.items()}
        for parts in model.requests:
            self.add_request(parts)
        for claim_group in model.claim_groups:
            self.add_claim_group(claim_group)
        return self.values

    def add_request(self, parts: RequestVars) -> None:
        one = self.placed.get(parts.demand.key)
        entries = [] if one is None else [entry for entry in one.entries if entry.request is parts.request]
        self.values.setdefault(parts.chosen.index, int(bool(entries)))
        if parts.request.mode is AllocationMode.WHOLE:
            counts = self.counts(entries)
            self.values |= {v.index: counts[b] for b, v in parts.takes.items() if isinstance(b, int)}

    def add_claim_group(self, claim_group: ClaimGroupVars) -> None:
        """How many members of each pattern a site has; what they take is left open where it is of parts of devices."""
        patterns: dict[int, int] = {v.index: 0 for site in claim_group.sites for v in site.patterns.values()}
        for number in claim_group.units:
            one = self.placed.get(self.model.units[number].demands[0].key)
            if one is None:
                continue
            pattern = tuple(
                next((e.request.alternative or 0 for e in one.entries if e.request.detail == detail), 0)
                for detail in range(len(one.demand.details))
            )
            first = one.entries[0]
            key, b = (first.request.detail, pattern[first.request.detail]), self.group_of.get(first.device.index)
            site = next((s for s in claim_group.sites if s.place == one.node and _has(s, key, b)), None)
            if site is None or pattern not in site.patterns:
                return
            patterns[site.patterns[pattern].index] += 1
        self.values |= patterns

    def counts(self, entries: Iterable[PlacedDevice]) -> Counter[int | None]:
        """Devices of each group."""
        return Counter(self.group_of.get(entry.device.index) for entry in entries)


def _has(site: GroupSiteVars, key: tuple[int, int], b: int | None) -> bool:
    """Whether members at a site may take devices of a group for one of their requests."""
    targets = (target for cell in site.cells.get(key, ()) for target in (*cell.takes, *cell.undivided, *cell.parts))
    return any((target if isinstance(target, int) else target[0]) == b for target in targets)
