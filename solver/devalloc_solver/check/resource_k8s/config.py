"""Configurations in the result: those of the classes first, each once, then those of the claim that apply."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from devalloc_solver.check.resource_k8s.claim import AnsweredClaim

Manifest = Mapping[str, Any]


def config_violations(answered: AnsweredClaim, classes: Mapping[str, Manifest]) -> Iterator[str]:
    """Configurations that are missing, too many, or for the wrong requests."""
    given = [_entry(one, one.get("source"), one.get("requests")) for one in _given_configs(answered)]
    wanted = _expected_configs(answered, classes)
    if given != wanted:
        yield f"has the configurations {given} instead of {wanted}"


def _given_configs(answered: AnsweredClaim) -> list[Manifest]:
    return (answered.result.get("devices") or {}).get("config") or []


def _expected_configs(answered: AnsweredClaim, classes: Mapping[str, Manifest]) -> list[Manifest]:
    entries: list[Manifest] = []
    by_class: dict[str, list[str]] = {}
    for request in answered.requests:
        by_class.setdefault(request.spec.get("deviceClassName") or "", []).append(request.name)
    for name, requests in by_class.items():
        spec = (classes.get(name) or {}).get("spec") or {}
        entries += [_entry(one, "FromClass", requests) for one in spec.get("config") or ()]
    devices = (answered.claim.get("spec") or {}).get("devices") or {}
    for one in devices.get("config") or ():
        named = one.get("requests") or []
        if any(request.is_named(named) for request in answered.requests) or not named:
            entries.append(_entry(one, "FromClaim", named))
    for one in entries:
        if all(request.is_named(one["requests"]) for request in answered.requests):
            one["requests"].clear()
    return entries


def _entry(config: Manifest, source: object, requests: object) -> Manifest:
    named = list(requests) if isinstance(requests, list) else []
    return {"source": source, "requests": named, "opaque": config.get("opaque")}
