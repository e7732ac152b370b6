"""Constraints: attributes that devices of a claim have in common, or in which they differ."""

from __future__ import annotations

from collections.abc import Container, Iterator
from itertools import combinations

from devalloc_solver.check.resource_k8s.claim import AnsweredClaim


def constraint_violations(answered: AnsweredClaim, features: Container[str]) -> Iterator[str]:
    """Violated matchAttribute and distinctAttribute constraints; a list stands for each of its values."""
    devices = (answered.claim.get("spec") or {}).get("devices") or {}
    for constraint in devices.get("constraints") or ():
        name = constraint.get("matchAttribute") or constraint.get("distinctAttribute")
        requests = constraint.get("requests") or []
        lists = "DRAListTypeAttributes" in features
        values = [one.device.values(name, lists=lists) for one in answered.taken if one.request.is_named(requests)]
        if not all(values):
            yield f"{name}: a device does not have it"
        elif constraint.get("matchAttribute"):
            if values and not frozenset.intersection(*values):
                yield f"{name}: no value is on all devices"
        elif any(one & other for one, other in combinations(values, 2)):
            yield f"{name}: two devices have the same value"
