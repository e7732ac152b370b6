"""Equal requests of one choice of alternatives together, as a vector of what is still needed.

A demand entry needs amounts (devices, or units of a resource) and may have budgets (a cap on devices, limits).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from devalloc_solver.place.node_view import count_fixed
from devalloc_solver.place.remaining import RemainingSupply
from devalloc_solver.place.requests import IndexedRequest, indistinguishable
from devalloc_solver.place.step_budget import SharesInterfere
from devalloc_solver.problem.demand import AllocationMode


class TakeKind(Enum):
    """How a demand entry takes devices."""

    COUNT = "count"
    """so many devices, whole or a fixed portion each"""
    TOTAL = "total"
    """whole devices until their capacities add up"""
    SHARE = "share"
    """amounts over as many devices as need be"""
    ADMIN = "admin"


@dataclass(frozen=True, slots=True, eq=False)
class DemandEntry:
    """Requests that want the same of the same devices."""

    number: int
    kind: TakeKind
    indexed_requests: tuple[IndexedRequest, ...]
    candidate_mask: int
    """mask of the candidate groups it may take of"""
    first: int
    """its first need; the number of devices, but for SHARE"""
    budget: int
    """its first budget"""
    distincts: tuple[int, ...]
    demand: int | None
    """the claim, where no device may be twice in it and admin requests are about"""

    @property
    def overlaps(self) -> bool:
        """Whether its requests may have the same devices: those that look only, where nothing forbids it."""
        return self.kind is TakeKind.ADMIN and self.demand is None and not self.distincts

    @property
    def indexed(self) -> IndexedRequest:
        """Any of them stands for all."""
        return self.indexed_requests[0]


@dataclass(frozen=True, slots=True, eq=False)
class DemandVector:
    """All demand entries, with their needs and budgets."""

    stock: RemainingSupply
    demand_entries: tuple[DemandEntry, ...]
    needs: tuple[int, ...]
    budgets: tuple[int, ...]
    entries: Mapping[int, int]
    """claim -> the budget of its entries, where it has a cap and their number is open"""
    counts_all: bool
    """whether plain counts cost devices, too: where some are shared, looked at by admins, or counted already"""

    @property
    def takes_portions(self) -> bool:
        """Whether some request takes a share, or a portion, of a device: it may matter of which one of a pool."""
        requests = [entry.indexed.request for entry in self.demand_entries]
        return any(request.mode is AllocationMode.SHARE or request.portions for request in requests)

    @property
    def constant(self) -> int:
        """Devices that every cover needs and none counts."""
        if self.counts_all:
            return 0
        plain = (
            entry
            for entry in self.demand_entries
            if entry.kind is TakeKind.COUNT and entry.indexed.request.mode is AllocationMode.WHOLE
        )
        return sum(self.needs[entry.first] for entry in plain)


def make_demand_vector(stock: RemainingSupply, chosen: int, *, unsplit: bool = False) -> DemandVector:
    """The demand entries of a choice. ``unsplit``: every share is to be of one device. Raises SharesInterfere."""
    node_view = stock.node_view
    together: dict[object, list[IndexedRequest]] = {}
    candidate_masks: dict[int, int] = {}
    kinds: dict[int, TakeKind] = {}
    watched = {indexed.demand for indexed in node_view.unit_requests.of(chosen & node_view.unit_requests.admin)}
    keys: dict[tuple[int, int], object] = {}
    for group in indistinguishable(stock.takers, chosen):
        candidate_groups = [
            candidate_group
            for candidate_group in node_view.candidate_groups
            if stock.takers[candidate_group.number] & group
        ]
        for indexed in node_view.unit_requests.of(group):
            if not indexed.is_fixed:
                kind = kinds[indexed.number] = _kind(indexed, unsplit)
                own_groups = candidate_groups
                if kind is TakeKind.COUNT and indexed.request.mode is AllocationMode.SHARE:
                    own_groups = [
                        candidate_group
                        for candidate_group in candidate_groups
                        if all(name in candidate_group.one.resources for name in indexed.request.requests)
                    ]
                candidate_masks[indexed.number] = sum([1 << candidate_group.number for candidate_group in own_groups])
    for indexed in node_view.unit_requests.of(chosen):
        if not indexed.is_fixed:
            same = indexed.kind, candidate_masks[indexed.number]
            if same not in keys:
                keys[same] = _entry_key(stock, indexed, kinds[indexed.number], candidate_masks[indexed.number], watched)
            key = keys[same]
            together.setdefault(indexed.number if key is None else key, []).append(indexed)
    needs: list[int] = []
    budgets: list[int] = []
    demand_entries: list[DemandEntry] = []
    for indexed_requests in together.values():
        entry = DemandEntry(
            number=len(demand_entries),
            kind=kinds[indexed_requests[0].number],
            indexed_requests=tuple(indexed_requests),
            candidate_mask=candidate_masks[indexed_requests[0].number],
            first=len(needs),
            budget=len(budgets),
            distincts=_distincts(stock, indexed_requests[0]),
            demand=indexed_requests[0].demand if _must_stay_apart(stock, indexed_requests[0], watched) else None,
        )
        demand_entries.append(entry)
        needs += _needs(stock, entry)
        budgets += _budgets(entry)
    entries: dict[int, int] = {}
    for entry in demand_entries:
        cap = node_view.unit_requests.unit.demands[entry.indexed.demand].most
        if entry.kind is TakeKind.TOTAL and cap is not None and entry.indexed.demand not in entries:
            entries[entry.indexed.demand] = len(budgets)
            budgets.append(cap - _entries(stock, chosen, entry.indexed.demand))
    admin = sum(entry.candidate_mask for entry in demand_entries if entry.kind is TakeKind.ADMIN)
    seen = sum(1 << number for number in stock.seen)
    split = sum(
        1 << candidate_group.number for candidate_group in node_view.candidate_groups if candidate_group.one.shareable
    )
    counts_all = any(
        entry.candidate_mask & (admin | seen | split) for entry in demand_entries if entry.kind is not TakeKind.ADMIN
    )
    return DemandVector(stock, tuple(demand_entries), tuple(needs), tuple(budgets), entries, counts_all)


def _entries(stock: RemainingSupply, chosen: int, demand: int) -> int:
    """The entries of a claim whose number is known."""
    indexed_requests = [
        indexed
        for indexed in stock.node_view.unit_requests.of(chosen)
        if indexed.demand == demand and _kind(indexed) is not TakeKind.TOTAL
    ]
    return sum(
        count_fixed(stock.node_view, indexed) if indexed.is_fixed else indexed.need for indexed in indexed_requests
    )


def _kind(indexed: IndexedRequest, unsplit: bool = False) -> TakeKind:
    if indexed.request.mode.is_admin:
        return TakeKind.ADMIN
    if indexed.is_counted or (unsplit and indexed.request.mode is AllocationMode.SHARE):
        return TakeKind.COUNT
    return TakeKind.SHARE if indexed.request.mode is AllocationMode.SHARE else TakeKind.TOTAL


def _must_stay_apart(stock: RemainingSupply, indexed: IndexedRequest, watched: set[int]) -> bool:
    """Whether it matters to which claim a device goes."""
    return indexed.demand in watched and stock.node_view.unit_requests.unit.demands[indexed.demand].once


def _distincts(stock: RemainingSupply, indexed: IndexedRequest) -> tuple[int, ...]:
    return tuple(
        index for index, tie in enumerate(stock.node_view.unit_requests.distincts) if tie.request_mask & indexed.bit
    )


def _entry_key(
    stock: RemainingSupply, indexed: IndexedRequest, kind: TakeKind, candidate_mask: int, watched: set[int]
) -> object:
    """Equal for requests that can be served as one; None for those that cannot be served with others."""
    demand = indexed.demand if _must_stay_apart(stock, indexed, watched) else None
    request = indexed.request
    if kind is TakeKind.TOTAL or (kind is TakeKind.SHARE and request.max_count is not None):
        return None
    amounts: object = tuple(sorted(request.requests.items()))
    if kind is TakeKind.SHARE:
        amounts = None  # each resource is a question of its own, so different amounts simply add up
    elif shared := [
        candidate_group.one.index
        for candidate_group in stock.node_view.candidate_groups
        if candidate_mask >> candidate_group.number & 1 and candidate_group.one.shareable
    ]:
        # A request has a device once, so what equal requests may take of one device is a matter of how many they are.
        amounts = (request.min_count, *(request.portions.get(index) for index in shared))
        if demand is not None and kind is TakeKind.ADMIN:
            return None
    return kind, request.mode, candidate_mask, amounts, _distincts(stock, indexed), demand


def _needs(stock: RemainingSupply, entry: DemandEntry) -> list[int]:
    request = entry.indexed.request
    if entry.kind is TakeKind.COUNT:
        return [
            sum(
                indexed.request.min_count if indexed.request.mode is AllocationMode.WHOLE else 1
                for indexed in entry.indexed_requests
            )
        ]
    if entry.kind is TakeKind.ADMIN:
        counts = [indexed.request.min_count for indexed in entry.indexed_requests]
        return [max(counts) if entry.overlaps else sum(counts)]
    if entry.kind is TakeKind.TOTAL:
        return [request.min_count, *(request.requests[name] for name in sorted(request.requests))]
    if len(entry.indexed_requests) == 1:
        return [request.requests[name] for name in sorted(request.requests)]
    names = share_names(entry)
    blocks = {name: _common_block(stock, entry, name) for name in names}
    return [
        sum(
            -(-indexed.request.requests[name] // blocks[name]) * blocks[name]
            for indexed in entry.indexed_requests
            if name in indexed.request.requests
        )
        for name in names
    ]


def share_names(entry: DemandEntry) -> list[str]:
    """The resources that the requests of a demand entry want, in the order of its needs."""
    return sorted({name for indexed in entry.indexed_requests for name in indexed.request.requests})


def _common_block(stock: RemainingSupply, entry: DemandEntry, name: str) -> int:
    """With one size of block, requests rounded up to it can be split in any way over devices that have the room."""
    blocks = {
        candidate_group.one.resources[name].block
        for candidate_group in stock.node_view.candidate_groups
        if entry.candidate_mask >> candidate_group.number & 1 and name in candidate_group.one.resources
    }
    if len(blocks) > 1:
        raise SharesInterfere("several shares over blocks of different sizes")
    return blocks.pop() if blocks else 1


def _budgets(entry: DemandEntry) -> list[int]:
    request = entry.indexed.request
    if entry.kind is TakeKind.TOTAL:
        most = [] if request.max_count is None else [request.max_count]
        return [*most, *(request.limits[name] for name in sorted(request.limits))]
    return [request.max_count] if entry.kind is TakeKind.SHARE and request.max_count is not None else []
