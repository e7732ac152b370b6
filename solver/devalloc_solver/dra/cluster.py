"""All nodes of a cluster at once: the devices of all pools, each with the nodes that reach it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from devalloc_solver.dra.inventory import View
from devalloc_solver.dra.objects import Node, Slice
from devalloc_solver.dra.pools import Pool, SliceBook, State
from devalloc_solver.naming import natural


@dataclass(frozen=True, slots=True)
class Survey:
    """What all nodes see."""

    nodes: Mapping[str, Node]
    views: tuple[View, ...]
    broken: Mapping[str, Pool]
    """node -> a pool of it that is incomplete or invalid"""


def survey(book: SliceBook, nodes: Mapping[str, Node]) -> Survey:
    """See the pools from every node: those given, and those that slices name.

    Raises AllocationError for a slice whose nodes cannot be told.
    """
    known = {**{name: Node(name) for name in book.node_names}, **nodes}
    order = sorted(known, key=natural)
    views: list[View] = []
    shared: dict[object, list[tuple[Pool, Node]]] = {}
    broken: dict[str, Pool] = {}
    for name in order:
        for pool in book.pools(known[name]):
            if pool.state is not State.COMPLETE:
                broken.setdefault(name, pool)
            if _is_local(pool):
                views.append(View(pool, (known[name],)))
            else:
                shared.setdefault((pool.driver, pool.name, pool.generation, pool.state), []).append((pool, known[name]))
    views += [_merged(found) for found in shared.values()]
    position = {name: number for number, name in enumerate(order)}
    views.sort(key=lambda v: (v.pool.has_binding_conditions, v.pool.driver, v.pool.name, position[v.nodes[0].name]))
    return Survey({name: known[name] for name in order}, tuple(views), broken)


def _is_local(pool: Pool) -> bool:
    """Whether all devices that have a say are of one node."""
    return not pool.hidden and all(found.reach.node_name is not None for found in pool.slices)


def _merged(found: list[tuple[Pool, Node]]) -> View:
    """One pool of what several nodes see of it."""
    first = found[0][0]
    near = _distinct(one for pool, _ in found for one in pool.slices)
    known = {id(one) for one in near}
    hidden = _distinct(one for pool, _ in found for one in pool.hidden if id(one) not in known)
    counters = {key: nano for pool, _ in found for key, nano in pool.counters.items()}
    pool = replace(first, slices=near, hidden=hidden, counters=counters)
    return View(pool, tuple(node for _, node in found))


def _distinct(slices: Iterable[Slice]) -> tuple[Slice, ...]:
    return tuple(sorted({id(one): one for one in slices}.values(), key=lambda one: one.name))
