"""Claims on this node: prepared, unprepared, recovered after a crash, and reconciled with the store and the host."""

from devalloc_node.claims.engine import Claims
from devalloc_node.claims.locks import Locks
from devalloc_node.claims.options import Options

__all__ = ["Claims", "Locks", "Options"]
