"""Public API of the dialect resource.k8s.io/v1: ResourceClaims in, AllocationResults out."""

from devalloc_solver.dialects.resource_k8s.call import allocate
from devalloc_solver.dialects.resource_k8s.call_explainer import explain
from devalloc_solver.dialects.resource_k8s.fields import AllocationError
from devalloc_solver.dialects.resource_k8s.solve import solve_manifests

__all__ = ["AllocationError", "allocate", "explain", "solve_manifests"]
