"""The dialect resource.k8s.io/v1: ResourceClaims in, AllocationResults out."""

from devalloc_solver.dra.allocate import allocate
from devalloc_solver.dra.errors import AllocationError

__all__ = ["AllocationError", "allocate"]
