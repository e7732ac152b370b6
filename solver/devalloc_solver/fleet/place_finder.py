"""The best place in the fleet for a claim: a search for each shape of claim, kept from one claim to the next."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from devalloc.api.node_rules import is_barred
from devalloc_solver.fleet.node_class_plan import ChosenPlace, ClaimQuery, NodeClassPlan
from devalloc_solver.fleet.node_index import NodeIndex
from devalloc_solver.fleet.pool_states import NodeRecord
from devalloc_solver.fleet.shape_search import ShapeSearch
from devalloc_solver.fleet.unique_attribute_search import BestOnNode, UniqueAttributeSearch
from devalloc_solver.problem.demand import Request
from devalloc_solver.problem.snapshot import Snapshot

MAX_SHAPES = 1_000
"""Shapes remembered; the one not asked for longest is forgotten first."""


@dataclass(slots=True, eq=False)
class PlaceFinder:
    """Finds places on the nodes of an index."""

    index: NodeIndex
    _edition: int = 0
    """of the index when these were made"""
    _shapes: dict[Hashable, ShapeSearch | UniqueAttributeSearch] = field(default_factory=dict)
    _sample: Snapshot | None = None

    def find(self, query: ClaimQuery, pin: str | None = None) -> ChosenPlace | None:
        """The best place for a claim on the node ``pin``, or on any; None where it fits nowhere."""
        shape, index, restrictions = self.shape(query), self.index, query.restrictions
        if pin is None and index.records:
            best: tuple[NodeRecord, NodeClassPlan | BestOnNode] | None = shape.best(restrictions)
        elif is_barred(restrictions, pin):
            return None
        else:
            best = _on_one(shape, index.records.get(pin or "") or index.without_pools(pin))
        if best is None:
            return None
        record, recipe = best
        given = recipe.given(record, index.network)
        return ChosenPlace(record.name if pin is not None or recipe.local else None, given)

    def shape(self, query: ClaimQuery) -> ShapeSearch | UniqueAttributeSearch:
        """What is known of the shape of a claim."""
        if self._edition != self.index.edition:
            self._shapes.clear()
            self._sample, self._edition = None, self.index.edition
        key = query.shape
        shape = self._shapes.pop(key, None)
        if shape is None:
            shape = self._new_shape(query)
            if len(self._shapes) >= MAX_SHAPES:
                del self._shapes[next(iter(self._shapes))]
        self._shapes[key] = shape  # the last one asked for is the last of the dict
        return shape

    def _new_shape(self, query: ClaimQuery) -> ShapeSearch | UniqueAttributeSearch:
        index = self.index
        if self._sample is None:
            self._sample = index.kinds.sample()
        unit = query.unit_on(self._sample)
        (demand,) = unit.demands
        network = index.network.kinds if index.network is not None and query.takes_network else ()
        reaching = any(kind.one.reach is not None for kind in network)
        values = {
            *demand.match,
            *(n for s in demand.requests for n in s.match),
            *(r.attribute for r in demand.relations),
        }
        choice = index.kinds.choice
        apart = self._tells_apart(demand.requests) or not values.isdisjoint(choice.scattered)
        if apart or (network and (reaching or not values.isdisjoint(choice.varied))):
            return UniqueAttributeSearch(index, query, unit)
        return ShapeSearch(index, query, unit)

    def _tells_apart(self, requests: Iterable[Request]) -> bool:
        """Whether an expression reads what differs between devices of one kind."""
        varied = self.index.kinds.varied
        reads = [request.eligible.reads for request in requests] if varied else []
        return any(names is None or not names.isdisjoint(varied) for names in reads)


def _on_one(
    shape: ShapeSearch | UniqueAttributeSearch, record: NodeRecord
) -> tuple[NodeRecord, NodeClassPlan | BestOnNode] | None:
    recipe = shape.on(record)
    return None if recipe is None else (record, recipe)
