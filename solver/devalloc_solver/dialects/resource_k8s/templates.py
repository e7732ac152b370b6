"""ResourceClaimTemplates: the claim that a pod gets from one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from devalloc_solver.dialects.resource_k8s.versions import API_VERSION, as_v1

KIND = "ResourceClaimTemplate"

Manifest = Mapping[str, Any]


def claim_of_template(content: Manifest) -> dict[str, Any]:
    """A pending ResourceClaim of the template's name; what cannot be read is for the reader of claims to report."""
    template = as_v1(content)
    metadata, spec = template.get("metadata"), template.get("spec")
    own = metadata if isinstance(metadata, Mapping) else {}
    inner = spec if isinstance(spec, Mapping) else {}
    given = inner.get("metadata")
    of_claims = given if isinstance(given, Mapping) else {}
    names = {key: own[key] for key in ("name", "namespace") if key in own}
    return {
        "apiVersion": template.get("apiVersion", API_VERSION),
        "kind": "ResourceClaim",
        "metadata": {**{key: of_claims[key] for key in ("labels", "annotations") if key in of_claims}, **names},
        "spec": inner.get("spec", {}) if isinstance(spec, Mapping | None) else spec,
    }
