"""The devices of all pools of a cluster, each with the nodes that reach it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from devalloc_solver.dialects.resource_k8s.node_selectors import ClusterNode
from devalloc_solver.dialects.resource_k8s.pools import PoolStatus, ResourcePool, SliceBook
from devalloc_solver.dialects.resource_k8s.published_devices import PoolView
from devalloc_solver.dialects.resource_k8s.slices import ResourceSlice
from devalloc_solver.problem.ordering import natural_key


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What all nodes see."""

    nodes: Mapping[str, ClusterNode]
    views: tuple[PoolView, ...]
    broken: Mapping[str, ResourcePool]
    """node -> a pool of it that is incomplete or invalid"""


def view_cluster(book: SliceBook, nodes: Mapping[str, ClusterNode]) -> ClusterView:
    """See the pools from every node: those given, and those that slices name.

    Raises AllocationError for a slice whose nodes cannot be told.
    """
    named = {**{name: ClusterNode(name) for name in book.node_names}, **nodes}
    order = sorted(named, key=natural_key)
    views: list[PoolView] = []
    shared: dict[object, list[tuple[ResourcePool, ClusterNode]]] = {}
    broken: dict[str, ResourcePool] = {}
    for name in order:
        for pool in book.pools(named[name]):
            if pool.state is not PoolStatus.COMPLETE:
                broken.setdefault(name, pool)
            if _is_local_to_one_node(pool):
                views.append(PoolView(pool, (named[name],)))
            else:
                shared.setdefault((pool.driver, pool.name, pool.generation, pool.state), []).append((pool, named[name]))
    views += [_merged_pool(sightings) for sightings in shared.values()]
    position = {name: number for number, name in enumerate(order)}
    views.sort(key=lambda v: (v.pool.has_binding_conditions, v.pool.driver, v.pool.name, position[v.nodes[0].name]))
    return ClusterView({name: named[name] for name in order}, tuple(views), broken)


def _is_local_to_one_node(pool: ResourcePool) -> bool:
    """Whether all devices that have a say are of one node."""
    return not pool.hidden and all(resource_slice.spec.node_name is not None for resource_slice in pool.slices)


def _merged_pool(sightings: list[tuple[ResourcePool, ClusterNode]]) -> PoolView:
    """One pool of what several nodes see of it."""
    first = sightings[0][0]
    near = _distinct_slices(one for pool, _ in sightings for one in pool.slices)
    near_ids = {id(one) for one in near}
    hidden = _distinct_slices(one for pool, _ in sightings for one in pool.hidden if id(one) not in near_ids)
    counters = {key: nano for pool, _ in sightings for key, nano in pool.counters.items()}
    pool = replace(first, slices=near, hidden=hidden, counters=counters)
    return PoolView(pool, tuple(node for _, node in sightings))


def _distinct_slices(slices: Iterable[ResourceSlice]) -> tuple[ResourceSlice, ...]:
    return tuple(sorted({id(one): one for one in slices}.values(), key=lambda one: one.name))
