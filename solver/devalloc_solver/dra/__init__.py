"""The dialect resource.k8s.io/v1: ResourceClaims in, AllocationResults out."""

from devalloc_solver.dra.allocate import allocate
from devalloc_solver.dra.errors import AllocationError
from devalloc_solver.dra.joint import solve_manifests
from devalloc_solver.dra.why import explain

__all__ = ["AllocationError", "allocate", "explain", "solve_manifests"]
