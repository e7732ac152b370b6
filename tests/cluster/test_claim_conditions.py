"""A claim that waits and a machine that does not run are not ready: for kubectl, Helm, and all that judge by kstatus'
rules (Argo CD, Flux)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from devalloc.controller.reconcile.decision import IN_CONDITIONS
from devalloc.controller.reconcile.loop import AllocatorSettings
from devalloc.controller.reconcile.release import release_claim
from devalloc.store import Key, NotFound
from devalloc.store.kubernetes import Client, KubernetesStore
from tests.support import fast_yaml, kube_build, kube_crds
from tests.support.fleet_manifests import gpu_claim, gpu_class, gpu_pool
from tests.support.go_build import Progress
from tests.support.host_pools import host, machine
from tests.support.kube_api import Cluster
from tests.support.machine_allocator import machine_allocator
from tests.support.waiting import until

CLAIMS = "/apis/devmgmtproto.k8s.io/v1alpha1/namespaces/default/deviceclaims"
MACHINES = "/apis/devalloc.io/v1alpha1/namespaces/default/virtualmachines"
OBJECTS = (gpu_pool(), gpu_class(), gpu_claim("fits"), gpu_claim("big", 9))
Program = Callable[..., "subprocess.CompletedProcess[str]"]
SETTINGS = AllocatorSettings(form=IN_CONDITIONS)


@pytest.fixture
def store(cluster: Cluster) -> Iterator[KubernetesStore]:
    kube_crds.install(cluster)
    with closing(KubernetesStore(Client.connect(cluster.kubeconfig("admin")))) as store:
        for obj in OBJECTS:
            store.create(obj)
        yield store
        for obj in OBJECTS:
            with suppress(NotFound):
                store.delete(*Key.of(obj))


def program(path: Path, cluster: Cluster, home: Path) -> Program:
    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {"HOME": str(home), "KUBECONFIG": str(cluster.kubeconfig("admin")), "PATH": os.environ["PATH"]}
        command = [str(path), *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)

    return call


def conditions(cluster: Cluster, name: str) -> dict[str, Any]:
    status = cluster.get(f"{CLAIMS}/{name}").content["status"]
    return {one["type"]: one for one in status["conditions"]}


def allocate(store: KubernetesStore) -> None:
    store.refresh()
    machine_allocator(store, settings=SETTINGS).round()
    store.refresh()


def kstatus(obj: dict[str, Any]) -> str:
    """The rules of sigs.k8s.io/cli-utils (pkg/kstatus/status/generic.go) for kinds that it does not know."""
    status = obj.get("status") or {}
    if obj["metadata"].get("deletionTimestamp"):
        return "Terminating"
    if status.get("observedGeneration", obj["metadata"]["generation"]) != obj["metadata"]["generation"]:
        return "InProgress"
    by_type = {one["type"]: one["status"] for one in status.get("conditions", ())}
    if by_type.get("Stalled") == "True":
        return "Failed"
    return "InProgress" if by_type.get("Reconciling") == "True" or by_type.get("Ready", "True") != "True" else "Current"


def test_a_claim_is_ready_while_it_has_devices_and_not_ready_by_default(
    cluster: Cluster, store: KubernetesStore
) -> None:
    for name in ("fits", "big"):
        assert {one["status"] for one in conditions(cluster, name).values()} == {"False"}
        assert "status" not in store.get("DeviceClaim", "default", name), "nothing was written, so nothing is read"
        assert kstatus(cluster.get(f"{CLAIMS}/{name}").content) == "InProgress"
    allocate(store)
    assert {name: one["status"] for name, one in conditions(cluster, "fits").items()} == {
        "Allocated": "True",
        "Ready": "True",
    }
    assert kstatus(cluster.get(f"{CLAIMS}/fits").content) == "Current"
    big = cluster.get(f"{CLAIMS}/big").content
    for condition in conditions(cluster, "big").values():
        assert (condition["status"], condition["reason"]) == ("False", "NotEnoughDevices")
        assert condition["observedGeneration"] == big["metadata"]["generation"]
    assert "annotations" not in big["metadata"]
    assert kstatus(big) == "InProgress"
    release_claim(store, "default", "fits")
    assert {one["status"] for one in conditions(cluster, "fits").values()} == {"False"}


def test_a_machine_is_not_ready_until_it_runs_and_current_if_it_is_not_to_run(
    cluster: Cluster, store: KubernetesStore
) -> None:
    bodies = [host("n", cpus=4, numa=1), machine("web", "1", "1Gi"), machine("big", "8", "1Gi")]
    bodies.append(machine("off", "1", "1Gi", running=False))
    for body in bodies:
        store.create(body)

    def seen(name: str) -> dict[str, Any]:
        return cluster.get(f"{MACHINES}/{name}").content

    def ready(name: str) -> tuple[str, str, int | None]:
        condition = next(one for one in seen(name)["status"]["conditions"] if one["type"] == "Ready")
        return condition["status"], condition["reason"], condition.get("observedGeneration")

    try:
        for name in ("web", "big", "off"):
            assert ready(name) == ("False", "Waiting", None)
            assert kstatus(seen(name)) == "InProgress"
            assert "status" not in store.get("VirtualMachine", "default", name), "nothing was written"
        allocate(store)
        assert ready("web") == ("False", "NotStarted", 1)
        assert ready("big") == ("False", "NodesTooSmall", 1)
        assert {name: kstatus(seen(name)) for name in ("web", "big", "off")} == {
            "web": "InProgress",
            "big": "InProgress",
            "off": "Current",
        }
    finally:
        for body in bodies:
            store.delete(*Key.of(body))


def test_sets_and_migrations_are_not_ready_before_they_are_answered(cluster: Cluster, store: KubernetesStore) -> None:
    spec = {"cpu": {"min": 1, "max": 1}, "memory": {"min": "256Mi", "max": "256Mi"}, "start": {"kernel": "/images/k"}}
    for kind, plural, content in (
        ("VirtualMachineReplicaSet", "virtualmachinereplicasets", {"replicas": 1, "template": {"spec": spec}}),
        ("VirtualMachineMigration", "virtualmachinemigrations", {"vmName": "web"}),
    ):
        metadata = {"name": "some", "namespace": "default"}
        store.create({"apiVersion": "devalloc.io/v1alpha1", "kind": kind, "metadata": metadata, "spec": content})
        try:
            seen = cluster.get(f"/apis/devalloc.io/v1alpha1/namespaces/default/{plural}/some").content
            assert [(one["type"], one["status"]) for one in seen["status"]["conditions"]] == [("Ready", "False")]
            assert kstatus(seen) == "InProgress"
            assert "status" not in store.get(kind, "default", "some"), "nothing was written"
        finally:
            store.delete(kind, "default", "some")


def test_a_class_says_once_whether_it_is_valid(
    cluster: Cluster, store: KubernetesStore, progress: Progress, tmp_path: Path
) -> None:
    kubectl = program(kube_build.kubectl(progress), cluster, tmp_path)
    store.create(gpu_class("broken", constraints="device.model =="))
    try:
        allocate(store)
        waits = kubectl("wait", "dclass/broken", "--for=condition=Valid=false", "--timeout=20s")
        assert waits.returncode == 0, waits.stderr
        assert kubectl("wait", "dclass/gpu", "--for=condition=Valid", "--timeout=20s").returncode == 0
        written = store.get("DeviceClass", None, "broken")
        assert written["status"]["conditions"][0]["observedGeneration"] == written["metadata"]["generation"] == 1
        assert kstatus(cluster.get("/apis/devmgmtproto.k8s.io/v1alpha1/deviceclasses/broken").content) == "Failed"
        allocate(store)
        assert store.get("DeviceClass", None, "broken") == written
        head, *rows = kubectl("get", "dclass").stdout.splitlines()
        place = head.index("VALID")
        assert {row.split()[0]: row[place:].split()[0] for row in rows} == {"broken": "False", "gpu": "True"}
    finally:
        store.delete("DeviceClass", None, "broken")


def test_tools_do_not_wait_for_what_only_a_change_of_the_object_can_help(
    cluster: Cluster, store: KubernetesStore
) -> None:
    claim = gpu_claim("typo")
    claim["spec"]["claims"][0]["constraints"] = "device.model =="
    key, correct = Key.of(store.create(claim)), gpu_claim("typo")["spec"]
    path = f"{CLAIMS}/typo"
    try:
        allocate(store)
        assert kstatus(cluster.get(path).content) == "Failed"
        stalled = conditions(cluster, "typo")["Stalled"]
        assert (stalled["reason"], stalled["observedGeneration"]) == ("ClaimInvalid", 1)
        store.replace({**store.get(*key), "spec": correct})
        allocate(store)
        assert "Stalled" not in conditions(cluster, "typo")
        assert kstatus(cluster.get(path).content) in ("Current", "InProgress")
    finally:
        release_claim(store, "default", "typo")
        store.delete(*key)


def test_a_claim_that_waits_costs_one_write(cluster: Cluster, store: KubernetesStore) -> None:
    """Of the status alone."""
    before = int(cluster.get(f"{CLAIMS}/big").content["metadata"]["resourceVersion"])
    writes: list[str] = []
    replace = Client.replace

    def counted(self: Client, path: str, obj: Any) -> Any:
        writes.append(path)
        return replace(self, path, obj)

    Client.replace = counted  # type: ignore[method-assign]
    try:
        allocate(store)
        allocate(store)
    finally:
        Client.replace = replace  # type: ignore[method-assign]
    assert [path for path in writes if "/big" in path] == [f"{CLAIMS}/big/status"]
    assert int(cluster.get(f"{CLAIMS}/big").content["metadata"]["resourceVersion"]) > before


def test_kubectl_waits_for_both(cluster: Cluster, store: KubernetesStore, progress: Progress, tmp_path: Path) -> None:
    kubectl = program(kube_build.kubectl(progress), cluster, tmp_path)
    waits = kubectl("wait", "dclaim/big", "--for=condition=Allocated=false", "--timeout=20s")
    assert waits.returncode == 0, waits.stderr
    allocate(store)
    assert kubectl("wait", "dclaim/fits", "--for=condition=Allocated", "--timeout=20s").returncode == 0
    assert kubectl("wait", "dclaim/fits", "--for=condition=Ready", "--timeout=20s").returncode == 0


def test_claims_are_selected_by_their_node_and_by_what_they_wait_for(
    cluster: Cluster, store: KubernetesStore, progress: Progress, tmp_path: Path
) -> None:
    kubectl = program(kube_build.kubectl(progress), cluster, tmp_path)

    def selected(selector: str) -> list[str]:
        listed = kubectl("get", "dclaim", "-o", "name", "--field-selector", selector)
        assert listed.returncode == 0, listed.stderr
        return [line.rpartition("/")[2] for line in listed.stdout.split()]

    assert selected("status.reason=") == ["big", "fits"]
    allocate(store)
    assert selected("status.nodeName=n") == ["fits"]
    assert selected("status.nodeName=") == selected("status.reason!=Allocated") == ["big"]
    assert selected("status.reason=NotEnoughDevices") == ["big"]
    release_claim(store, "default", "fits")
    assert selected("status.reason=") == selected("status.nodeName!=n,status.reason!=NotEnoughDevices") == ["fits"]


def test_the_table_of_kubectl_says_why_a_claim_waits(
    cluster: Cluster, store: KubernetesStore, progress: Progress, tmp_path: Path
) -> None:
    kubectl = program(kube_build.kubectl(progress), cluster, tmp_path)
    allocate(store)
    head, big, fits = kubectl("get", "dclaim", "-o", "wide").stdout.splitlines()
    assert head.split()[:5] == ["NAME", "CLASS", "NODE", "DEVICES", "REASON"]
    assert ["NotEnoughDevices" in row for row in (big, fits)] == [True, False]
    assert conditions(cluster, "big")["Allocated"]["message"] in big


def test_helm_waits_for_a_claim_and_says_why_it_is_not_ready(
    cluster: Cluster, store: KubernetesStore, progress: Progress, tmp_path: Path
) -> None:
    helm = program(kube_build.helm(progress), cluster, tmp_path)
    chart = tmp_path / "chart"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text("apiVersion: v2\nname: claims\nversion: 0.1.0\n")
    (chart / "templates" / "claim.yaml").write_text(fast_yaml.dump_all([gpu_claim("charted", 9)]))
    with ThreadPoolExecutor(1) as threads:
        waits = threads.submit(helm, "install", "claims", str(chart), "--wait", "--timeout", "8s")
        until(lambda: cluster.get(f"{CLAIMS}/charted").ok, "the claim exists")
        allocate(store)
        installed = waits.result()
    try:
        assert installed.returncode != 0, installed.stdout
        assert conditions(cluster, "charted")["Ready"]["message"] in installed.stderr
    finally:
        helm("uninstall", "claims")
