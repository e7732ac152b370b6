"""Read ResourceClaim manifests; a spec that was read before is not decoded again."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from copy import deepcopy
from typing import Any, NamedTuple

from devalloc.api.fields import is_label, is_subdomain_name
from devalloc.api.meta import PRIORITY, parse_time
from devalloc.api.node_rules import FIELD, NodeRestriction, restrictions_of
from devalloc_solver.dialects.resource_k8s.claims import Metadata, ResourceClaim
from devalloc_solver.dialects.resource_k8s.manifests import (
    Key,
    Manifest,
    priority_of,
    read_documents,
    with_defaults,
)
from devalloc_solver.dialects.resource_k8s.versions import API_VERSION
from devalloc_solver.fleet.claim_reader import ClaimReader, spec_text
from devalloc_solver.pipeline.units import RejectedClaim


class ReadResourceClaim(NamedTuple):
    """A claim as it was read."""

    claim: ResourceClaim | RejectedClaim
    manifest: Manifest
    """with the API server's defaults"""
    shape: Hashable | None
    """equal for claims that ask for the same; None if unknown"""
    has_problems: bool = False
    """whether anything is to be said of how it is written"""

    @property
    def key(self) -> Key:
        return self.claim.key

    @property
    def group(self) -> str | None:
        return self.claim.group

    @property
    def pinned_node(self) -> str | None:
        return self.valid.pinned_node

    @property
    def restrictions(self) -> tuple[NodeRestriction, ...]:
        return self.valid.restrictions

    @property
    def priority(self) -> int:
        return priority_of(self.valid)

    @property
    def repeated(self) -> Mapping[str, Any]:
        return {}

    @property
    def valid(self) -> ResourceClaim:
        assert isinstance(self.claim, ResourceClaim)
        return self.claim


class ResourceClaimReader(ClaimReader[ReadResourceClaim, ReadResourceClaim]):
    """Of ResourceClaims."""

    api_version = API_VERSION
    fields = ClaimReader.fields | {FIELD}

    def __init__(self, gates: frozenset[str]) -> None:
        super().__init__()
        self._gates = gates

    def _read_anew(self, manifest: Manifest, *, is_kept: bool) -> tuple[ReadResourceClaim, ReadResourceClaim | None]:
        problem_input = read_documents([manifest], self._gates)
        filled = with_defaults(manifest)
        if not problem_input.claims:
            return ReadResourceClaim(problem_input.refused[0], filled, None), None
        claim = problem_input.claims[0]
        outcome = ReadResourceClaim(claim, filled, _shape(filled), bool(problem_input.problems))
        if not is_kept or problem_input.problems or claim.allocation is not None:
            return outcome, None
        own = deepcopy(
            {name: value for name, value in manifest.items() if name != FIELD}
        )  # the caller may write on theirs
        (claim,) = read_documents([own], self._gates).claims
        return outcome, ReadResourceClaim(claim, with_defaults(own), outcome.shape)

    def _with_metadata(
        self, manifest: Manifest, metadata: dict[str, Any], template: ReadResourceClaim
    ) -> ReadResourceClaim | None:
        name, namespace, uid = metadata.get("name"), metadata.get("namespace", "default"), metadata.get("uid", "")
        annotations, created = metadata.get("annotations", {}), metadata.get("creationTimestamp")
        if not (type(name) is type(namespace) is type(uid) is str and is_subdomain_name(name) and is_label(namespace)):
            return None
        if type(annotations) is not dict or (annotations and not _is_plain(annotations)) or not _is_time(created):
            return None
        assert isinstance(template.claim, ResourceClaim)
        earlier, given = template.claim, restrictions_of(manifest)
        own = Metadata(namespace, name, uid, {**annotations}, created)
        # ``dataclasses.replace`` takes longer than all else that is read of it.
        parts = earlier.requests, earlier.constraints, earlier.config, None, earlier.spec
        claim = ResourceClaim(own, *parts, given)
        filled = {**template.manifest, "metadata": {**metadata, "namespace": namespace}}
        if given is not None:
            filled[FIELD] = given
        return ReadResourceClaim(claim, filled, template.shape)


def _shape(filled: Manifest) -> Hashable | None:
    devices = (filled.get("spec") or {}).get("devices") or {}
    return spec_text((devices.get("requests"), devices.get("constraints")))


def _is_plain(annotations: Mapping[Any, Any]) -> bool:
    priority = annotations.get(PRIORITY, "0")
    return (
        type(priority) is str
        and priority.isascii()
        and priority.isdecimal()
        and len(priority) <= 18
        and all(type(key) is type(value) is str for key, value in annotations.items())
    )


def _is_time(created: object) -> bool:
    if created is None:
        return True
    if type(created) is not str:
        return False
    try:
        parse_time(created)
    except ValueError:
        return False
    return True
