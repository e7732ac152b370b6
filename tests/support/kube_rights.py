"""The rights of the node plugin as `deploy/node/rights.yaml` gives them, and tokens of its service account."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from tests.support.kube import Answer, Cluster

MANIFESTS = Path(__file__).parents[2] / "deploy" / "node" / "rights.yaml"
ACCOUNT = "/api/v1/namespaces/devalloc-system/serviceaccounts/devalloc-node"
_PLURALS = {"ValidatingAdmissionPolicy": "validatingadmissionpolicies"}


def install(cluster: Cluster) -> None:
    """Create all of it, once."""
    for body in yaml.safe_load_all(MANIFESTS.read_text()):
        answer = cluster.create(path_of(body), body)
        assert answer.ok or answer.status == 409, f"{body['kind']}: {answer.message}"


def path_of(body: dict[str, Any]) -> str:
    """Where objects of this kind are created."""
    version = body["apiVersion"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    namespace = body["metadata"].get("namespace")
    plural = _PLURALS.get(body["kind"], f"{body['kind'].lower()}s")
    return f"{root}/namespaces/{namespace}/{plural}" if namespace else f"{root}/{plural}"


def kubeconfig(cluster: Cluster, node: str) -> Path:
    """A kubeconfig with a token as the plugin's pods on that node have."""
    uid = cluster.get(f"/api/v1/nodes/{node}").content["metadata"]["uid"]
    bound = {"kind": "Node", "apiVersion": "v1", "name": node, "uid": uid}
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"boundObjectRef": bound}}
    answer: Answer = cluster.create(f"{ACCOUNT}/token", asked)
    assert answer.ok, answer.message
    content = json.loads(cluster.kubeconfig("admin").read_text())
    content["users"][0]["user"]["token"] = answer.content["status"]["token"]
    path = cluster.folder / f"plugin-{node}.kubeconfig"
    path.touch(0o600)
    path.write_text(json.dumps(content))
    return path
