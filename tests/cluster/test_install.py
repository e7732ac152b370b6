"""devalloc is brought to a real cluster, changed there, and taken off again."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from devalloc.api.kinds import API_KINDS
from devalloc.cli.main import run
from devalloc.install import remove
from devalloc.install.manifests import (
    InstallOptions,
    object_collection_path,
    object_path,
    render_folder,
    render_manifests,
)
from devalloc.version import VERSION
from tests.support import kube_build, kube_controllers
from tests.support.go_build import Progress, Unavailable
from tests.support.kube_api import Cluster, Processes, running
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
NODES = {
    name: {"devalloc.io/publish": name} if name != "slices" else {} for name in ("slices", "pools", "host", "none")
}
"""By name their labels, which say what they are to publish."""
RUNNING = ("Deployment", "DaemonSet")
PODS = "/api/v1/namespaces/devalloc-system/pods"
DAEMONSETS = "/apis/apps/v1/namespaces/devalloc-system/daemonsets"
CLAIMS = "/apis/devmgmtproto.k8s.io/v1alpha1/namespaces/default/deviceclaims"
RESOURCE_CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
Install = Callable[..., list[str]]
Kubectl = Callable[..., str]


@pytest.fixture(scope="module")
def own(progress: Progress, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of its own, with the controllers that bring forth pods and clear up, and nodes that run none."""
    processes = Processes(tmp_path_factory.mktemp("controllers"))
    try:
        folder = tmp_path_factory.mktemp("kubernetes")
        with running(kube_build.binaries(progress), folder) as cluster:
            kube_controllers.start(
                cluster,
                kube_build.node_binaries(progress),
                processes,
                "--concurrent-gc-syncs=4",
                "--controllers=namespace-controller,garbage-collector-controller,daemonset-controller,"
                "deployment-controller,replicaset-controller,clusterrole-aggregation-controller,"
                "serviceaccount-controller",
            )
            for name, labels in NODES.items():
                metadata = {"name": name, "labels": {"kubernetes.io/os": "linux"} | labels}
                assert cluster.create("/api/v1/nodes", {"kind": "Node", "metadata": metadata}).ok
            path = "/api/v1/namespaces/default/serviceaccounts/default"
            until(lambda: cluster.get(path).ok, "the controllers work")
            yield cluster
    except Unavailable as reason:
        pytest.skip(f"no Kubernetes controllers: {reason}")
    finally:
        processes.stop()


@pytest.fixture(scope="module")
def kubectl(own: Cluster, progress: Progress, tmp_path_factory: pytest.TempPathFactory) -> Kubectl:
    """kubectl as the cluster's administrator; what it prints."""
    program, home = kube_build.kubectl(progress), tmp_path_factory.mktemp("home")
    environment = {"HOME": str(home), "KUBECONFIG": str(own.kubeconfig("admin")), "PATH": os.environ["PATH"]}

    def call(*arguments: str) -> str:
        done = subprocess.run(
            [program, *arguments], env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stderr
        assert "Warning" not in done.stderr, done.stderr
        return done.stdout

    return call


@pytest.fixture
def devalloc(own: Cluster, capfd: pytest.CaptureFixture[str]) -> Install:
    """The command as a user types it; the lines it prints."""

    def call(*arguments: str, code: int = 0) -> list[str]:
        capfd.readouterr()
        if arguments[0] == "install" and not any(each.startswith("--image-prefix") for each in arguments):
            arguments = (*arguments, "--image-prefix=localhost/")
        ended = run([*arguments, f"--kubeconfig={own.kubeconfig('admin')}"])
        captured = capfd.readouterr()
        assert ended == code, captured.err + captured.out
        return (captured.out if code == 0 else captured.out + captured.err).splitlines()

    return call


def everything(cluster: Cluster) -> set[str]:
    """All objects there are, of every kind that is served, but those that the control plane makes for itself."""
    groups = cluster.get("/apis").content["groups"]
    roots = ["/api/v1", *(f"/apis/{group['preferredVersion']['groupVersion']}" for group in groups)]
    names = set()
    for root in roots:
        for kind in cluster.get(root).content["resources"]:
            if "list" not in kind["verbs"] or kind["name"] in ("events", "leases", "componentstatuses"):
                continue
            items = cluster.get(f"{root}/{kind['name']}").content.get("items", [])
            names |= {f"{root}/{kind['name']}/{name_of(item)}" for item in items}
    return names


def objects(cluster: Cluster) -> set[str]:
    """Those that no controller makes and ends."""
    made = ("/pods/", "/endpoints", "/replicasets/", "/controllerrevisions/")
    return {name for name in everything(cluster) if not any(kind in name for kind in made)}


def name_of(item: dict[str, Any]) -> str:
    return f"{item['metadata'].get('namespace', '')}/{item['metadata']['name']}"


def outcomes(lines: list[str]) -> dict[str, str]:
    return dict(line.split(" ", 1) for line in lines)


@pytest.fixture
def installed(devalloc: Install) -> None:
    """Installed, whatever the test before has made of it."""
    devalloc("install", "--reset", "--force")


# -- what is installed -------------------------------------------------------------------------------------------------


OVERLAYS = {
    "slices": InstallOptions(publish="slices"),
    "pools": InstallOptions(publish="pools"),
    "both": InstallOptions(),
    "service-monitor": InstallOptions(service_monitor=True),
    "resource-claims": InstallOptions(resource_claims=True),
    "adoption": InstallOptions(resource_claims=True, adoption=True),
    "permits": InstallOptions(permits=True),
    "neon": InstallOptions(permits=True, neon=True),
}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_manifests_are_those_of_kubectl(overlay: str, kubectl: Kubectl) -> None:
    """What we make of kustomize's files, and what kubectl does."""

    def by_path(objects: list[dict[str, Any]]) -> dict[str, Any]:
        return {object_path(one): one for one in objects}

    folder = ROOT / "deploy" / "overlays" / overlay
    theirs = by_path(list(yaml.safe_load_all(kubectl("kustomize", str(folder)))))
    assert by_path(render_folder(folder)) == theirs
    assert by_path(render_manifests(OVERLAYS[overlay])) == theirs
    assert {path.name for path in folder.parent.iterdir()} == OVERLAYS.keys()


def test_it_is_installed_used_and_taken_off_with_nothing_left(
    own: Cluster, devalloc: Install, kubectl: Kubectl
) -> None:
    before = everything(own)
    lines = devalloc("install")
    assert all(line.endswith(" created") for line in lines), lines
    assert len(lines) == len(render_manifests(InstallOptions()))
    assert lines[0] == "namespace/devalloc-system created"

    generations = {object_path(one): own.get(object_path(one)).content["metadata"]["generation"] for one in generated()}
    again = devalloc("install")
    assert all(line.endswith(" unchanged") for line in again), again
    for path, generation in generations.items():
        assert own.get(path).content["metadata"]["generation"] == generation, path

    kubectl("create", "namespace", "network")
    kubectl("apply", "-R", "-f", "examples")
    shown = kubectl("get", "dpool,dclass,dclaim")
    assert "devicepool.devmgmtproto.k8s.io/node-b-l40s" in shown
    assert "deviceclaim.devmgmtproto.k8s.io/train" in shown
    slice_of_ours(own)

    where = {"slices": "devalloc-node", "pools": "devalloc-node-pools", "host": "devalloc-node-host"}
    until(lambda: plugins(own) == where, "each node has the pod that its label says")
    assert len(controllers(own)) == 2

    gone = devalloc("uninstall", "--crds")
    assert "deviceclaim.devmgmtproto.k8s.io/train deleted" in gone
    assert "resourceslice.resource.k8s.io/p deleted" in gone
    kubectl("delete", "-R", "-f", "examples/dra", "--ignore-not-found", "--wait=false")
    kubectl("delete", "-R", "-f", "examples/pods", "--ignore-not-found", "--wait=false")
    kubectl("delete", "namespace", "network", "--wait=false")
    until(lambda: everything(own) == before, "nothing is left")
    assert devalloc("uninstall", "--crds") == []


def plugins(cluster: Cluster) -> dict[str, str]:
    """By node the DaemonSet whose pod is meant for it."""
    by_node = {}
    for pod in cluster.get(f"{PODS}?labelSelector=app.kubernetes.io/name!=devalloc-controller").content["items"]:
        affinity = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        (field,) = affinity["nodeSelectorTerms"][0]["matchFields"]
        by_node[field["values"][0]] = pod["metadata"]["ownerReferences"][0]["name"]
    return by_node


def controllers(cluster: Cluster) -> list[dict[str, Any]]:
    path = f"{PODS}?labelSelector=app.kubernetes.io/name=devalloc-controller"
    return list(cluster.get(path).content["items"])


def slice_of_ours(cluster: Cluster) -> None:
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "devalloc.io", "nodeName": "slices", "pool": pool, "devices": [{"name": "d"}]}
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "p"}, "spec": spec}
    assert cluster.create(SLICES, body).ok


def generated() -> list[dict[str, Any]]:
    """Those whose changes the server counts."""
    kinds = ("CustomResourceDefinition", "Deployment", "DaemonSet", "ValidatingAdmissionPolicy", "NetworkPolicy")
    return [one for one in render_manifests(InstallOptions()) if one["kind"] in kinds]


def test_what_kubectl_brought_is_taken_off_too_but_not_from_under_a_claim(
    own: Cluster, devalloc: Install, kubectl: Kubectl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remove, "FORCE_SECONDS", 0.5)
    if own.get(DAEMONSETS).content["items"]:
        devalloc("uninstall", "--crds", "--force")
    before = everything(own)
    kubectl("apply", "--server-side", "-k", "deploy")
    kubectl("wait", "--for=condition=Established", "crd/deviceclaims.devmgmtproto.k8s.io", "--timeout=60s")
    metadata = {
        "name": "held",
        "finalizers": ["devalloc.io/node"],
        "annotations": {"devalloc.io/prepared-on": "pools", "devalloc.io/allocated-node": "pools"},
    }
    claim = {"apiVersion": API_KINDS["DeviceClaim"].api_version, "kind": "DeviceClaim", "metadata": metadata}
    body = {**claim, "spec": {"claims": [{"deviceType": "gpu.devalloc.io"}]}}
    until(lambda: own.create(CLAIMS, body).status in (201, 409), "claims are served")

    refused = " ".join(devalloc("uninstall", code=1))
    assert "devices are in use: deviceclaim default/held on node pools" in refused
    refused = " ".join(devalloc("uninstall", "--crds", "--timeout=1s", code=1))
    assert "not deleted yet: default/held on node pools" in refused
    assert own.get(f"{DAEMONSETS}/devalloc-node").ok
    devalloc("uninstall", "--force")
    assert own.get(f"{CLAIMS}/held").ok, "claims stay without --crds"
    lines = devalloc("uninstall", "--crds", "--force")
    assert "deviceclaim.devmgmtproto.k8s.io/held: finalizer removed; default/held on node pools" in lines
    until(lambda: everything(own) == before, "nothing is left")


def test_every_object_says_only_what_the_server_knows(own: Cluster, installed: None) -> None:
    refused = {}
    for one in render_manifests(InstallOptions(resource_claims=True)):
        one["metadata"]["name"] += "-again" if one["kind"] not in ("Namespace", "CustomResourceDefinition") else ""
        answer = own.create(object_collection_path(one), one, dry_run=True)
        if not (answer.ok or answer.status == 409) or answer.warnings:
            refused[object_path(one)] = [answer.message, *answer.warnings]
    assert refused == {}


def test_the_controllers_pods_are_admitted_where_pods_are_restricted(own: Cluster) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "restricted", "labels": labels}}
    assert own.create("/api/v1/namespaces", namespace).ok
    account = "/api/v1/namespaces/restricted/serviceaccounts"
    body = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "devalloc-controller"}}
    assert own.create(account, body).ok
    template = next(one for one in render_manifests(InstallOptions()) if one["kind"] == "Deployment")["spec"][
        "template"
    ]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "controller"}, "spec": template["spec"]}
    answer = own.create("/api/v1/namespaces/restricted/pods", pod, dry_run=True)
    assert answer.ok, answer.message
    pod["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    assert "violates PodSecurity" in own.create("/api/v1/namespaces/restricted/pods", pod, dry_run=True).message
    own.delete("/api/v1/namespaces/restricted")


# -- rights of people --------------------------------------------------------------------------------------------------


VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "allocate", "prepare")
MACHINES = "devalloc.io/virtualmachines"
MIGRATIONS, REPLICA_SETS = "devalloc.io/virtualmachinemigrations", "devalloc.io/virtualmachinereplicasets"
OF_MACHINES = (MACHINES, MIGRATIONS, REPLICA_SETS)
OF_A_NAMESPACE = (
    "devmgmtproto.k8s.io/deviceclaims",
    *OF_MACHINES,
    *(f"devalloc.io/{plural}" for plural in ("vfconfigs", "vfioconfigs", "vgpuconfigs")),
)
OF_THE_CLUSTER = ("devmgmtproto.k8s.io/deviceclasses", "devmgmtproto.k8s.io/devicepools")
STATUSES = tuple(f"{one}/status" for one in (*OF_A_NAMESPACE[:3], OF_THE_CLUSTER[1]))
READ = frozenset(VERBS[:3])
EDIT = frozenset(VERBS[:8])


def test_rights_come_with_the_roles_that_a_cluster_has_anyway(own: Cluster, kubectl: Kubectl, installed: None) -> None:
    """Kubernetes puts `view`, `edit` and `admin` together of what has their labels."""
    for role in ("view", "edit", "admin"):
        kubectl("create", "rolebinding", f"{role}-here", f"--clusterrole={role}", f"--user={role}-here")
    kubectl("create", "clusterrolebinding", "view-all", "--clusterrole=view", "--user=view-all")
    kubectl("create", "clusterrolebinding", "fleet", "--clusterrole=devalloc-fleet", "--user=fleet")
    kubectl("create", "clusterrolebinding", "classes", "--clusterrole=devalloc-classes", "--user=classes")
    everywhere = (*OF_A_NAMESPACE, *OF_THE_CLUSTER, *STATUSES)
    expected: dict[str, dict[str, frozenset[str]]] = {
        "view-here": dict.fromkeys(OF_A_NAMESPACE, READ),
        "edit-here": dict.fromkeys(OF_A_NAMESPACE, EDIT) | dict.fromkeys(OF_MACHINES, READ),
        "admin-here": dict.fromkeys(OF_A_NAMESPACE, EDIT) | dict.fromkeys(OF_MACHINES, READ),
        "view-all": dict.fromkeys((*OF_A_NAMESPACE, *OF_THE_CLUSTER), READ),
        "fleet": dict.fromkeys(OF_THE_CLUSTER, EDIT),
        "classes": {OF_THE_CLUSTER[0]: READ},
        "stranger": {},
    }
    try:
        until(lambda: is_allowed(own, "admin-here", OF_A_NAMESPACE[-1], "delete"), "the roles are put together")
        for user, rights in expected.items():
            may = {
                one: verbs
                for one in everywhere
                if (verbs := frozenset(verb for verb in VERBS if is_allowed(own, user, one, verb)))
            }
            assert may == rights, user
        assert not is_allowed(own, "edit-here", OF_A_NAMESPACE[0], "get", "kube-system")
        edit = "rbac.authorization.k8s.io/aggregate-to-edit"
        kubectl("label", "clusterrole", "devalloc-machines", f"{edit}=true")
        until(lambda: is_allowed(own, "admin-here", MACHINES, "create"), "machines are part of edit")
        kubectl("label", "clusterrole", "devalloc-machines", f"{edit}-")
        until(lambda: not is_allowed(own, "admin-here", MACHINES, "create"), "they are not any more")
    finally:
        kubectl("delete", "rolebinding", "view-here", "edit-here", "admin-here")
        kubectl("delete", "clusterrolebinding", "view-all", "fleet", "classes")


def is_allowed(cluster: Cluster, user: str, resource: str, verb: str, namespace: str = "default") -> bool:
    group, kind, *below = resource.split("/")
    access = {"group": group, "resource": kind, "subresource": "".join(below), "verb": verb}
    place = {} if resource in OF_THE_CLUSTER else {"namespace": namespace}
    spec = {"user": user, "resourceAttributes": access | place}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    return bool(cluster.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", body).content["status"]["allowed"])


# -- changes -----------------------------------------------------------------------------------------------------------


def test_what_another_way_of_publishing_does_not_have_is_taken_off(
    own: Cluster, devalloc: Install, installed: None
) -> None:
    would = outcomes(devalloc("install", "--publish=pools", "--dry-run"))
    by_object = outcomes(devalloc("install", "--publish=pools"))
    assert {one: outcome.partition(" (dry run)")[0] for one, outcome in would.items()} == by_object
    assert by_object["daemonset.apps/devalloc-node"] == "deleted"
    assert by_object["daemonset.apps/devalloc-node-pools"] == "configured"
    assert by_object["clusterrole.rbac.authorization.k8s.io/devalloc-node-slices"] == "deleted"
    assert by_object["deployment.apps/devalloc-controller"] == "unchanged"
    by_object = outcomes(devalloc("install", "--publish=slices"))
    assert by_object["deployment.apps/devalloc-controller"] == "deleted"
    assert own.get("/apis/devmgmtproto.k8s.io/v1alpha1/devicepools").ok, "CRDs stay"


def test_the_proxy_in_another_namespace_is_kept_and_taken_off(own: Cluster, devalloc: Install, installed: None) -> None:
    made = outcomes(devalloc("install", "--permits", "--neon", "--neon-agents=10.1.0.0/16"))
    assert made["networkpolicy.networking.k8s.io/devalloc-permit-proxy"] == "created"
    path = "/apis/apps/v1/namespaces/kube-system/deployments/devalloc-permit-proxy"
    assert own.get(path).ok
    assert set(outcomes(devalloc("install")).values()) == {"unchanged"}
    gone = outcomes(devalloc("install", "--neon-agents="))
    assert gone["deployment.apps/devalloc-permit-proxy"] == "deleted"
    assert gone["serviceaccount/devalloc-permit-proxy"] == "deleted"
    assert not own.get(path).ok
    devalloc("install", "--neon-agents=10.1.0.0/16")
    assert "deployment.apps/devalloc-permit-proxy deleted" in devalloc("uninstall")


def test_the_options_of_the_last_installation_count_again(
    own: Cluster, devalloc: Install, kubectl: Kubectl, installed: None
) -> None:
    devalloc("install", "--resource-claims", "--kubelet-dir=/k")
    assert set(outcomes(devalloc("install")).values()) == {"unchanged"}
    assert own.get(f"{DAEMONSETS}/devalloc-node-set-aside").ok
    binding = "clusterrolebinding/devalloc-node"
    kubectl("annotate", binding, "devalloc.io/install-options-")
    again = outcomes(devalloc("install"))
    assert set(again.values()) == {"unchanged", "configured"}, "0.1.0 has noted nothing: they are read off what runs"
    assert '"/k"' in kubectl("get", binding, "-o", "yaml")


def test_objects_and_fields_of_other_managers_stay(devalloc: Install, kubectl: Kubectl, installed: None) -> None:
    kubectl("create", "clusterrole", "ours", "--verb=get", "--resource=pods")
    kubectl("label", "clusterrole", "ours", "app.kubernetes.io/part-of=devalloc")
    deployment = "deployment/devalloc-controller"
    kubectl("-n", "devalloc-system", "annotate", deployment, "team.example.com/owner=ops")
    outcome = outcomes(devalloc("install", "--image-prefix=registry.example.com/x/", "--version=9.9"))
    assert outcome["deployment.apps/devalloc-controller"] == "configured"
    assert "clusterrole.rbac.authorization.k8s.io/ours" not in outcome
    current = yaml.safe_load(kubectl("-n", "devalloc-system", "get", deployment, "-o", "yaml"))
    assert current["metadata"]["annotations"]["team.example.com/owner"] == "ops"
    (container,) = current["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example.com/x/devalloc-controller:9.9"
    kubectl("delete", "clusterrole", "ours")


def test_images_alone_go_back_as_the_guide_says(own: Cluster, devalloc: Install, kubectl: Kubectl) -> None:
    def images() -> set[str]:
        workloads = [
            own.get(object_path(one)).content for one in render_manifests(InstallOptions()) if one["kind"] in RUNNING
        ]
        return {one["spec"]["template"]["spec"]["containers"][0]["image"].rpartition(":")[2] for one in workloads}

    guide = (ROOT / "docs/install.md").read_text()
    (command,) = re.findall(r"kubectl -n devalloc-system (rollout undo .+)", guide)
    for version in ("9.8", "9.9"):
        devalloc("install", f"--version={version}")
        for target in command.split()[2:]:
            until(partial(_noted, own, target, version), f"{target} has been noted with images {version}")
    kubectl("-n", "devalloc-system", *command.split())
    assert images() == {"9.8"}
    devalloc("install")
    assert images() == {VERSION}


def _noted(cluster: Cluster, target: str, version: str) -> bool:
    """Whether there is something to go back to: a ReplicaSet or a ControllerRevision with that image."""
    kind, _, name = target.partition("/")
    plural = "replicasets" if kind == "deployment" else "controllerrevisions"
    items = cluster.get(f"/apis/apps/v1/namespaces/devalloc-system/{plural}").content["items"]
    return any(one["metadata"]["name"].startswith(f"{name}-") and f":{version}" in str(one) for one in items)


# -- what is in use ----------------------------------------------------------------------------------------------------


def test_nothing_is_taken_off_while_a_pod_has_devices(own: Cluster, devalloc: Install, installed: None) -> None:
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "used"}}
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "any"}}]
    claim = own.create(RESOURCE_CLAIMS, {**body, "spec": {"devices": {"requests": requests}}}).content
    results = [{"request": "gpu", "driver": "devalloc.io", "pool": "p", "device": "d"}]
    user = {"resource": "pods", "name": "trainer", "uid": "6c1b2f3e-9d41-4b25-8a3f-000000000001"}
    claim["status"] = {"allocation": {"devices": {"results": results}}, "reservedFor": [user]}
    answer = own.replace(f"{RESOURCE_CLAIMS}/used/status", claim)
    assert answer.ok, answer.message
    refused = " ".join(devalloc("install", "--publish=pools", code=1))
    assert (
        "would be removed from nodes that have devices prepared for resourceclaim default/used of pod trainer"
        in refused
    )
    there = objects(own)
    for options in ([], ["--crds"]):
        refused = " ".join(devalloc("uninstall", *options, code=1))
        assert "resourceclaim default/used of pod trainer" in refused
        assert objects(own) == there, "nothing is deleted before"
    assert own.get(f"{DAEMONSETS}/devalloc-node").ok
    stored = own.get(f"{RESOURCE_CLAIMS}/used").content
    del stored["status"]["reservedFor"], stored["status"]["allocation"]
    assert own.replace(f"{RESOURCE_CLAIMS}/used/status", stored).ok
    own.delete(f"{RESOURCE_CLAIMS}/used")


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_kubectl_goes_on_with_what_was_installed(devalloc: Install, kubectl: Kubectl, installed: None) -> None:
    kubectl("apply", "--server-side", "--force-conflicts", "-k", "deploy")
    changed = {
        name.partition(".")[0] for name, outcome in outcomes(devalloc("install")).items() if outcome != "unchanged"
    }
    assert changed == {"deployment", "daemonset"}, "the folder does not say where our images are"


@pytest.mark.parametrize("verb", ["install", "uninstall"])
def test_a_cluster_has_it_in_one_namespace(verb: str, own: Cluster, devalloc: Install, installed: None) -> None:
    lines = devalloc(verb, "--namespace=elsewhere", code=1)
    assert "installed in namespace devalloc-system" in lines[-1]
    assert not own.get("/api/v1/namespaces/elsewhere").ok
    assert set(outcomes(devalloc("install")).values()) == {"unchanged"}
    if verb == "install":
        assert all("unchanged" in line for line in devalloc(verb, "--only=crds", "--namespace=elsewhere"))


def test_a_user_without_rights_gets_the_refusal_of_the_server(own: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["install", f"--kubeconfig={own.kubeconfig('system:node:node-a')}"]) == 1
    assert 'User "system:node:node-a" cannot get resource "clusterrolebindings"' in capfd.readouterr().err


def test_a_missing_prometheus_operator_is_reported(devalloc: Install, installed: None) -> None:
    lines = devalloc("install", "--service-monitor", "--only=monitoring", code=1)
    assert "the Prometheus operator is not installed" in lines[-1]
