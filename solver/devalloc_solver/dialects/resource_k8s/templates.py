"""ResourceClaimTemplates: the claim that a pod gets from one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from devalloc_solver.dialects.resource_k8s.claims import ResourceClaimTemplateManifest
from devalloc_solver.dialects.resource_k8s.decode import check_version, read, read_claim
from devalloc_solver.dialects.resource_k8s.feature_gates import DEFAULT_GATES
from devalloc_solver.dialects.resource_k8s.fields import FieldError
from devalloc_solver.dialects.resource_k8s.manifests import check_annotations, check_claim, check_names, with_defaults
from devalloc_solver.dialects.resource_k8s.versions import API_VERSION, as_v1

Manifest = Mapping[str, Any]


def check_template(content: Manifest) -> None:
    """Raises FieldError for a template that the API server refuses, and for one from which no claim can be made."""
    template = as_v1(content)
    check_version(template)
    own = read(ResourceClaimTemplateManifest, template).metadata
    check_names("", own.name)
    try:
        claim = read_claim(with_defaults(claim_of_template(template)), DEFAULT_GATES)
        check_annotations(claim)
        check_claim(claim)
    except FieldError as error:
        raise FieldError(f"spec.{error.path}", error.message) from None


def claim_of_template(content: Manifest) -> dict[str, Any]:
    """A pending ResourceClaim of the template's name; what cannot be read is for the reader of claims to report."""
    template = as_v1(content)
    metadata, spec = template.get("metadata"), template.get("spec")
    own = metadata if isinstance(metadata, Mapping) else {}
    inner = spec if isinstance(spec, Mapping) else {}
    given = inner.get("metadata")
    of_claims = given if isinstance(given, Mapping) else {}
    names = {key: own[key] for key in ("name", "namespace") if key in own}
    is_known = isinstance(inner.get("spec"), Mapping) and inner.keys() <= {"metadata", "spec"}
    return {
        "apiVersion": template.get("apiVersion", API_VERSION),
        "kind": "ResourceClaim",
        "metadata": {**{key: of_claims[key] for key in ("labels", "annotations") if key in of_claims}, **names},
        "spec": inner["spec"] if is_known else {"spec": spec},
    }
