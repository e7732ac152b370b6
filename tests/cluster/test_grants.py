"""What ResourceClaims of a real API server give to a node, read with the node's rights."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devalloc.store.kubernetes.client import Client
from devalloc_node.errors import Denied, Failed
from devalloc_node.kube.grants import ResourceClaimGrants
from devalloc_node.model.grant import ClaimRef, Grant, GrantedDevice
from tests.support.kube_api import Cluster
from tests.support.node_errors import raises

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
NODE_RIGHTS = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "claims-of-all-nodes"},
    "subjects": [{"kind": "Group", "name": "system:nodes", "apiGroup": "rbac.authorization.k8s.io"}],
    "roleRef": {"kind": "ClusterRole", "name": "claims", "apiGroup": "rbac.authorization.k8s.io"},
}
"""The node authorizer shows a node the claims of pods that are bound to it; these have none."""
ROLE = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "metadata": {"name": "claims"},
    "rules": [{"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get"]}],
}
SHARE = "6c1b2f3e-9d41-4b25-8a3f-000000000001"


def config(kind: str, driver: str = "devalloc.io") -> dict[str, Any]:
    spec = {"profile": "nvidia-746"} if kind == "VgpuConfig" else {}
    parameters = {"apiVersion": "devalloc.io/v1alpha1", "kind": kind, "spec": spec}
    return {"opaque": {"driver": driver, "parameters": parameters}}


def result(request: str, device: str, driver: str = "devalloc.io", **more: Any) -> dict[str, Any]:
    return {"request": request, "driver": driver, "pool": "node-a-0000-41-00", "device": device, **more}


def allocation(
    *results: dict[str, Any], configs: list[dict[str, Any]] | None = None, node: str = "node-a"
) -> dict[str, Any]:
    here = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {
        "devices": {"results": list(results), "config": configs or []},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [here]}]},
    }


@pytest.fixture(scope="module")
def api(cluster: Cluster) -> Cluster:
    assert cluster.create("/apis/rbac.authorization.k8s.io/v1/clusterroles", ROLE).ok
    assert cluster.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", NODE_RIGHTS).ok
    labelled = cluster.get("/api/v1/namespaces/default").content
    labelled["metadata"]["labels"]["resource.kubernetes.io/admin-access"] = "true"
    assert cluster.replace("/api/v1/namespaces/default", labelled).ok
    cluster.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}})
    return cluster


@pytest.fixture
def claim(api: Cluster) -> Iterator[ClaimRef]:
    """A pending claim with three requests."""
    requests: list[dict[str, Any]] = [{"name": name, "exactly": {"deviceClassName": "any"}} for name in ("gpu", "nic")]
    requests.append({"name": "vf", "firstAvailable": [{"name": "fast", "deviceClassName": "any"}]})
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "c1", "annotations": {"resource.kubernetes.io/pod-claim-name": "devices"}},
        "spec": {"devices": {"requests": requests}},
    }
    stored = api.create(CLAIMS, body)
    assert stored.ok, stored.message
    yield ClaimRef("default", "c1", stored.content["metadata"]["uid"])
    api.delete(f"{CLAIMS}/c1")


@pytest.fixture
def grants(api: Cluster) -> ResourceClaimGrants:
    return ResourceClaimGrants(Client.connect(api.kubeconfig("system:node:node-a")), "devalloc.io", "node-a")


def allocate(api: Cluster, content: dict[str, Any]) -> None:
    stored = api.get(f"{CLAIMS}/c1").content
    stored["status"] = {"allocation": content, "reservedFor": [{"resource": "pods", "name": "p1", "uid": "u1"}]}
    answer = api.replace(f"{CLAIMS}/c1/status", stored)
    assert answer.ok, answer.message


def code(grants: ResourceClaimGrants, ref: ClaimRef) -> str:
    with pytest.raises((Denied, Failed)) as error:
        grants.get(ref)
    return error.value.code


# -- get ---------------------------------------------------------------------------------------------------------------


def test_our_devices_with_what_goes_with_them(api: Cluster, grants: ResourceClaimGrants, claim: ClaimRef) -> None:
    configs = [
        config("VfioConfig") | {"source": "FromClass", "requests": ["gpu"]},
        config("VfConfig") | {"source": "FromClass", "requests": ["vf"]},
        config("VgpuConfig") | {"source": "FromClaim", "requests": []},
        config("VfConfig") | {"source": "FromClaim", "requests": ["vf/fast"]},
        config("Other", "gpu.example.com") | {"source": "FromClaim", "requests": []},
    ]
    own, share = result("gpu", "0000-41-00-0"), result("vf/fast", "0000-41-10-0")
    allocate(api, allocation(own, result("nic", "eth0", "gpu.example.com"), share, configs=configs))
    grant = grants.get(claim)
    assert (grant.ref, grant.kind, grant.pods, grant.pod_claim_name) == (claim, "ResourceClaim", ("p1",), "devices")
    gpu, vf = grant.devices
    assert (gpu.requests, gpu.pool, gpu.device) == (("gpu",), "node-a-0000-41-00", "0000-41-00-0")
    assert ([c["kind"] for c in gpu.class_configs], [c["kind"] for c in gpu.claim_configs]) == (
        ["VfioConfig"],
        ["VgpuConfig"],
    )
    assert vf.requests == ("vf",)
    assert [c["kind"] for c in vf.class_configs] == ["VfConfig"]
    assert [c["kind"] for c in vf.claim_configs] == ["VfConfig", "VgpuConfig"], "what is said later weighs more"


def test_admin_access_and_shares(api: Cluster, grants: ResourceClaimGrants, claim: ClaimRef) -> None:
    shared = result("nic", "b", shareID=SHARE, consumedCapacity={"bandwidth": "1G"})
    allocate(api, allocation(result("gpu", "a", adminAccess=True), shared))
    pool = "node-a-0000-41-00"
    assert grants.get(claim) == Grant(
        claim,
        "ResourceClaim",
        (GrantedDevice(("gpu",), pool, "a", admin=True), GrantedDevice(("nic",), pool, "b", share=SHARE)),
        ("p1",),
        "devices",
    )


def test_what_is_no_grant(api: Cluster, grants: ResourceClaimGrants, claim: ClaimRef) -> None:
    assert code(grants, claim) == "ClaimNotAllocated"
    assert code(grants, replace(claim, uid=str(uuid.uuid4()))) == "ClaimUidMismatch"
    assert code(grants, replace(claim, name="nobody")) == "ClaimNotFound"
    assert code(grants, replace(claim, name="../c1")) == "ClaimNotFound"
    assert code(grants, replace(claim, namespace="de\0fault")) == "ClaimNotFound"
    allocate(api, allocation(result("gpu", "a"), node="node-b"))
    assert code(grants, claim) == "ClaimElsewhere"


def test_a_claim_of_other_drivers_is_not_ours(api: Cluster, grants: ResourceClaimGrants, claim: ClaimRef) -> None:
    allocate(api, allocation(result("gpu", "a", "gpu.example.com")))
    assert code(grants, claim) == "ClaimElsewhere"


def test_devices_that_no_node_owns_may_be_anywhere(api: Cluster, grants: ResourceClaimGrants, claim: ClaimRef) -> None:
    allocate(api, {"devices": {"results": [result("gpu", "a")], "config": []}})
    assert [device.device for device in grants.get(claim).devices] == ["a"]


# -- gone --------------------------------------------------------------------------------------------------------------


def test_gone_is_what_the_server_says_is_gone(api: Cluster, grants: ResourceClaimGrants, claim: ClaimRef) -> None:
    assert not grants.is_gone(claim)
    assert grants.is_gone(replace(claim, uid=str(uuid.uuid4())))
    api.delete(f"{CLAIMS}/c1")
    assert grants.is_gone(claim)


def test_a_refusal_is_no_proof(api: Cluster, claim: ClaimRef) -> None:
    """A node without the right to read claims learns nothing of them."""
    client = Client.connect(api.kubeconfig("system:kube-scheduler"))
    grants = ResourceClaimGrants(client, "devalloc.io", "node-a")
    secret = replace(claim, namespace="kube-system", name="nobody")
    assert grants.is_gone(secret), "the scheduler may read claims"
    denied = ResourceClaimGrants(_stranger(api), "devalloc.io", "node-a")
    for ref in (claim, secret):
        with raises(Failed, "ApiUnavailable"):
            denied.is_gone(ref)


def _stranger(api: Cluster) -> Client:
    """A client whose token the server does not know."""
    path = api.kubeconfig("system:node:node-b")
    text = path.read_text().replace(api.tokens["system:node:node-b"], "unknown")
    stolen = path.with_name("stranger.kubeconfig")
    stolen.write_text(text)
    return Client.connect(stolen)


def test_a_path_that_is_not_served_is_no_proof(
    cluster: Cluster, claim: ClaimRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where resource.k8s.io/v1 was switched off, or a proxy answers."""
    monkeypatch.setattr("devalloc_node.kube.grants.CLAIMS", "/apis/resource.k8s.io/v9/namespaces/{}/resourceclaims/{}")
    grants = ResourceClaimGrants(Client.connect(cluster.kubeconfig("admin")), "devalloc.io", "node-a")
    with pytest.raises(Failed):
        grants.is_gone(claim)


def test_a_server_that_does_not_answer_is_no_proof(cluster: Cluster, claim: ClaimRef, tmp_path: Path) -> None:
    here = cluster.kubeconfig("admin").read_text()
    (tmp_path / "kubeconfig").write_text(here.replace(cluster.url, "https://127.0.0.1:1"))
    grants = ResourceClaimGrants(Client.connect(tmp_path / "kubeconfig"), "devalloc.io", "node-a")
    assert code(grants, claim) == "ApiUnavailable"
    with pytest.raises(Failed):
        grants.is_gone(claim)
    with pytest.raises(Failed):
        grants.identity()


# -- which cluster -----------------------------------------------------------------------------------------------------


def test_an_admin_identifies_a_cluster_by_kube_system_and_a_node_by_its_own_uid(
    api: Cluster, grants: ResourceClaimGrants
) -> None:
    admin = ResourceClaimGrants(Client.connect(api.kubeconfig("admin")), "devalloc.io", "node-a")
    system = api.get("/api/v1/namespaces/kube-system").content["metadata"]["uid"]
    node = api.get("/api/v1/nodes/node-a").content["metadata"]["uid"]
    assert admin.identity() == f"namespace kube-system {system}"
    assert grants.identity() == f"node {node}"
