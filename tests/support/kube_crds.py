"""Our CRDs on a real API server."""

from __future__ import annotations

import time
from typing import Any

from devalloc.api import crds
from devalloc.api.api_kind import ApiKind
from devalloc.api.kinds import API_KINDS
from tests.support.kube_api import Cluster

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SECONDS = 120


def path_of(kind: ApiKind, namespace: str | None = None) -> str:
    """Where objects of a kind are listed and created."""
    scope = f"/namespaces/{namespace or 'default'}" if kind.namespaced else ""
    return f"/apis/{kind.api_version}{scope}/{kind.plural}"


def conditions(content: dict[str, Any]) -> dict[str, str]:
    """The conditions of an object: type to status."""
    return {entry["type"]: entry["status"] for entry in content.get("status", {}).get("conditions") or []}


def install(cluster: Cluster) -> None:
    """Have all of them established and served; those that are there already stay."""
    for kind in API_KINDS.values():
        answer = cluster.create(CRDS, crds.definition(kind))
        assert answer.ok or answer.status == 409, f"{kind.kind}: {answer.message}"
    deadline = time.monotonic() + SECONDS
    for kind in API_KINDS.values():
        while conditions(crd := cluster.get(f"{CRDS}/{kind.plural}.{kind.group}").content).get("Established") != "True":
            assert time.monotonic() < deadline, crd.get("status")
            time.sleep(0.1)
        while not cluster.get(path_of(kind)).ok:
            assert time.monotonic() < deadline, f"{kind.plural} are not served"
            time.sleep(0.1)
