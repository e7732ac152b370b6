"""The rights of controller and nodes as ``devalloc install`` gives them, and tokens of their service accounts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from devalloc.install.manifests import InstallOptions, Publish, object_collection_path, render_manifests
from tests.support.kube_api import ApiAnswer, Cluster

NAMESPACE = "devalloc-system"
NODE = "devalloc-node"
CONTROLLER = "devalloc-controller"


def install(
    cluster: Cluster,
    publish: Publish = "slices",
    *,
    resource_claims: bool = False,
    adoption: bool = False,
    permits: bool = False,
    neon: bool = False,
    neon_agents: str = "",
) -> None:
    """Accounts, rights and policies, without anything that runs; those that are there already stay.

    But for slices the CRDs must be served: a policy whose parameters are of an unknown kind refuses all.
    """
    options = InstallOptions(
        publish=publish,
        resource_claims=resource_claims,
        adoption=adoption,
        permits=permits,
        neon=neon,
        neon_agents=neon_agents,
    )
    for body in render_manifests(options, ["namespace", "rbac", "policies"]):
        answer = cluster.create(object_collection_path(body), body)
        assert answer.ok or answer.status == 409, f"{body['kind']}: {answer.message}"


def kubeconfig(cluster: Cluster, node: str) -> Path:
    """A kubeconfig with a token as the plugin's pods on that node have."""
    uid = cluster.get(f"/api/v1/nodes/{node}").content["metadata"]["uid"]
    bound = {"kind": "Node", "apiVersion": "v1", "name": node, "uid": uid}
    return with_token(cluster, f"plugin-{node}", token(cluster, NODE, bound))


def controller_kubeconfig(cluster: Cluster) -> Path:
    """A kubeconfig with a token as the controller's pods have."""
    return with_token(cluster, CONTROLLER, token(cluster, CONTROLLER))


def token(
    cluster: Cluster,
    account: str,
    bound: dict[str, Any] | None = None,
    *,
    namespace: str = NAMESPACE,
    audience: str | None = None,
) -> str:
    """A token of a service account. ``bound``: the object that it is bound to; ``audience``: whom it is for, if not the
    API server."""
    request: dict[str, Any] = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    request["spec"] |= {"boundObjectRef": bound} if bound else {}
    request["spec"] |= {"audiences": [audience]} if audience else {}
    answer: ApiAnswer = cluster.create(f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token", request)
    assert answer.ok, answer.message
    return str(answer.content["status"]["token"])


def with_token(cluster: Cluster, name: str, token: str) -> Path:
    """A kubeconfig of that name with that token."""
    content = json.loads(cluster.kubeconfig("admin").read_text())
    content["users"][0]["user"]["token"] = token
    path = cluster.folder / f"{name}.kubeconfig"
    path.touch(0o600)
    path.write_text(json.dumps(content))
    return path
