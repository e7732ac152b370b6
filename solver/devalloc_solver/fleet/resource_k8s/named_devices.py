"""Devices that a claim selects by a unique attribute (a uuid): they are judged one by one.

This serves only claims whose expressions list the values. All other devices of a kind are treated together, because
what is true of one is true of all: they fail the expressions that name others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from devalloc_solver.dialects.resource_k8s.published_devices import PublishedDevice, find_attribute
from devalloc_solver.explain.typos import MAX_VALUES
from devalloc_solver.fleet.device_kinds import DeviceKinds
from devalloc_solver.fleet.pool_states import NodeRecord
from devalloc_solver.fleet.resource_k8s.rules import ResourceClaimQuery
from devalloc_solver.problem.demand import AllocationMode, Request

MAX_NODES = 80
"""Nodes that have what a claim names; where more have, the whole cluster is asked."""


@dataclass(frozen=True, slots=True, eq=False)
class NamedDevices:
    """What the expressions of one shape of claim name, for one layout of the cluster."""

    expressions: frozenset[str] = frozenset()
    """those that no device passes which is not on these nodes"""
    labels: frozenset[str] = frozenset()
    """of the requests that have such an expression"""
    records: tuple[NodeRecord, ...] = ()
    """the nodes that have devices with a value that is named, in natural order"""

    @classmethod
    def of(cls, ask: ResourceClaimQuery) -> NamedDevices | None:
        """None where expressions tell devices of one kind apart in other ways, or name those of many nodes."""
        index, demand = ask.rules.index, ask.sight.demand
        related = {
            *demand.match,
            *(n for s in demand.requests for n in s.match),
            *(r.attribute for r in demand.relations),
        }
        if not related.isdisjoint(index.kinds.choice.scattered):
            return None
        expressions: set[str] = set()
        labels: set[str] = set()
        nodes: set[str | None] = set()
        for request in demand.requests:
            for program in ask.rules.programs(request.spec.ask):
                places = ask.rules.places(program)
                if places is None:
                    if ask.rules.is_of_kinds(program):
                        continue
                    return None
                if request.mode is not AllocationMode.WHOLE:
                    return None
                expressions.add(program.text)
                labels.add(request.label)
                nodes.update(places)
        if len(nodes) > MAX_NODES:
            return None
        records = sorted((index.records[node] for node in nodes if node is not None), key=lambda one: one.rank)
        return cls(frozenset(expressions), frozenset(labels), tuple(records))

    @property
    def ranks(self) -> Collection[int]:
        return {record.rank for record in self.records}

    def sizes(self) -> Mapping[int, int]:
        """kind -> devices on these nodes"""
        return Counter(kind.index for record in self.records for kind in record.kinds)

    def has(self, request: Request) -> bool:
        """Whether a request, maybe of an edited claim, may only take devices of these nodes."""
        ask, judge = request.spec.ask, request.spec.judge
        return not self.expressions.isdisjoint((*judge.classes[ask.class_name].selectors, *ask.selectors))

    def is_all_there(self, details: Iterable[Iterable[Request]]) -> bool | None:
        """Whether a claim fits on these nodes only; None where an alternative does."""
        present = [[self.has(request) for request in requests] for requests in details]
        if any(map(all, present)):
            return True
        return None if any(map(any, present)) else False


def all_texts(
    kinds: DeviceKinds, shared_devices: Sequence[PublishedDevice], name: str, _: object
) -> Collection[object] | None:
    """The texts that a unique attribute has on any device; None when they are too many to look among for a typo."""
    texts = dict.fromkeys(str(v[1]) for v in kinds.values(name) if isinstance(v, tuple) and v[0] == "string")
    for attribute in (find_attribute(offer, name) for offer in shared_devices):
        if attribute is not None and attribute.kind == "string":
            texts |= dict.fromkeys(map(str, attribute.values))
    return texts if len(texts) <= MAX_VALUES else None
