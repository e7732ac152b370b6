"""The objects of a store as documents for the solver, for explain, or for a file."""

from __future__ import annotations

from collections.abc import Iterable

from devalloc.api.cordon import apply_all_cordons, is_node
from devalloc.controller.reconcile.claims import effective_documents
from devalloc.controller.reconcile.foreign_objects import is_foreign
from devalloc.store import Object


def solver_documents(objects: Iterable[Object], *, with_nodes: bool = False) -> list[Object]:
    """Objects of a store as the allocator sees them: without foreign ones and Nodes.

    Allocated claims come with the spec that their allocation answers, and what is cordoned is unavailable.
    ``with_nodes``: also by Nodes among the objects, as on a cluster.
    """
    own = [obj for obj in objects if not is_foreign(obj) and (with_nodes or not is_node(obj))]
    return [obj for obj in apply_all_cordons(effective_documents(own)) if not is_node(obj)]
