"""VirtualMachineReplicaSets on a real API server: the controller with the rights that are shipped, the scale
subresource, and rules that the CRD enforces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from devalloc.api import meta
from devalloc.machines.replica_sets import KIND
from tests.support import kube_crds, kube_rights
from tests.support.controller_processes import Process
from tests.support.kube_api import Cluster
from tests.support.waiting import until

SPACE = "replicas"
ROOT = f"/apis/devalloc.io/v1alpha1/namespaces/{SPACE}"
SETS, MACHINES = f"{ROOT}/virtualmachinereplicasets", f"{ROOT}/virtualmachines"


def a_set(replicas: int, **spec: Any) -> dict[str, Any]:
    machine = {
        "cpu": {"min": 1, "max": 1},
        "memory": {"min": "256Mi", "max": "256Mi"},
        "disk": "1Gi",
        "start": {"disks": [{"path": "/images/shared/a.raw", "format": "raw", "clone": "overlay"}]},
        **spec,
    }
    metadata = {"name": "web", "namespace": SPACE}
    template = {"metadata": {"labels": {"app": "web"}}, "spec": machine}
    body = {"apiVersion": "devalloc.io/v1alpha1", "kind": KIND, "metadata": metadata}
    return {**body, "spec": {"replicas": replicas, "template": template}}


@pytest.fixture
def replicas(cluster: Cluster, tmp_path: Path) -> Iterator[Cluster]:
    """The cluster, with a controller that has the rights that are shipped and no others."""
    kube_crds.install(cluster)
    kube_rights.install(cluster, "pools")
    answer = cluster.create("/api/v1/namespaces", {"kind": "Namespace", "metadata": {"name": SPACE}})
    assert answer.ok or answer.status == 409, answer.message
    process = Process(cluster, tmp_path, "one", "6s")
    process.kubeconfig = kube_rights.controller_kubeconfig(cluster)
    process.start()
    try:
        yield cluster
    finally:
        process.close()
        print(process.output())
        for path in (SETS, MACHINES):
            for one in cluster.get(path).content["items"]:
                cluster.delete(f"{path}/{one['metadata']['name']}")


def names(cluster: Cluster) -> list[str]:
    return sorted(one["metadata"]["name"] for one in cluster.get(MACHINES).content["items"])


def ready(cluster: Cluster) -> tuple[str, str, str]:
    """Status, reason and message of the condition Ready of the set."""
    conditions = cluster.get(f"{SETS}/web").content["status"]["conditions"]
    one = next(one for one in conditions if one["type"] == "Ready")
    return one["status"], one["reason"], one["message"]


@contextmanager
def on_a_node(cluster: Cluster, name: str, held: dict[str, Any]) -> Iterator[None]:
    """A machine that a node has and runs, with ``held`` in its metadata, and whose guest is ready."""
    reported = {"reason": "GuestReady", "message": "", "lastTransitionTime": "2026-01-31T12:00:00Z"}
    ready = {"type": "Ready", "status": "True", **reported}

    def write(metadata: dict[str, Any], status: dict[str, Any] | None) -> bool:
        now = cluster.get(f"{MACHINES}/{name}").content
        if not cluster.replace(f"{MACHINES}/{name}", {**now, "metadata": {**now["metadata"], **metadata}}).ok:
            return False
        now = cluster.get(f"{MACHINES}/{name}").content
        return status is None or cluster.replace(f"{MACHINES}/{name}/status", {**now, "status": status}).ok

    until(lambda: write(held, {"phase": "Running", "nodeName": "n", "conditions": [ready]}), "the node has it")
    try:
        yield
    finally:
        until(lambda: write({"annotations": {}, "finalizers": []}, None), "the node has let it go")


def test_the_controller_keeps_as_many_machines_as_the_set_and_its_scale_say(replicas: Cluster) -> None:
    stored = replicas.create(SETS, a_set(2, guestReports=True))
    assert stored.ok, stored.message
    until(lambda: names(replicas) == ["web-1", "web-2"], "two machines")
    machine = replicas.get(f"{MACHINES}/web-1").content
    assert machine["metadata"]["labels"]["app"] == "web"
    assert machine["metadata"]["ownerReferences"][0]["uid"] == stored.content["metadata"]["uid"]
    replicas.delete(f"{MACHINES}/web-2")
    until(lambda: names(replicas) == ["web-1", "web-2"], "the one that was deleted is replaced")
    until(lambda: replicas.get(f"{SETS}/web/scale").content["status"].get("replicas") == 2, "it says so")
    assert ready(replicas)[:2] == ("False", "MachinesNotReady")
    assert ready(replicas)[2].startswith("0 of 2 machines are ready")
    scale = replicas.get(f"{SETS}/web/scale").content
    assert (scale["spec"]["replicas"], scale["status"]["selector"]) == (2, "devalloc.io/replica-set=web")
    answer = replicas.replace(f"{SETS}/web/scale", {**scale, "spec": {"replicas": 3}})
    assert answer.ok, answer.message
    until(lambda: names(replicas) == ["web-1", "web-2", "web-3"], "it was scaled up")
    held = {"annotations": {meta.PREPARED_ON: "n"}, "finalizers": [meta.NODE_FINALIZER]}
    with on_a_node(replicas, "web-3", held):  # or the controller would write that it waits for a node
        until(lambda: replicas.get(f"{SETS}/web").content["status"]["readyReplicas"] == 1, "it is ready")
        scale = replicas.get(f"{SETS}/web/scale").content
        assert replicas.replace(f"{SETS}/web/scale", {**scale, "spec": {"replicas": 1}}).ok
        until(lambda: names(replicas) == ["web-3"], "those that do not run went first")
        until(lambda: ready(replicas)[:2] == ("True", "MachinesReady"), "the set has what it wants")
        status = replicas.get(f"{SETS}/web").content["status"]
        assert status["conditions"][0]["observedGeneration"] == status["observedGeneration"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"claims": ["gpu"]}, "claims cannot be in a template"),
        ({"runner": {"address": "10.0.0.2"}}, "runner cannot be in a template"),
        ({"nics": [{"mac": "02:00:00:00:00:01"}]}, "nics[].mac and backend tap cannot be in a template"),
        ({"start": {"disks": [{"path": "/a", "format": "raw"}]}}, "start.disks[] must be readOnly or have clone"),
    ],
)
def test_the_api_server_refuses_what_only_one_machine_can_have(
    cluster: Cluster, change: dict[str, Any], words: str
) -> None:
    kube_crds.install(cluster)
    cluster.create("/api/v1/namespaces", {"kind": "Namespace", "metadata": {"name": SPACE}})
    answer = cluster.create(SETS, a_set(1, **change), dry_run=True)
    assert words in answer.message
