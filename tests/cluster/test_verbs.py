"""The verbs for people, on a cluster: what they show and do is what they do on the embedded store."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from devalloc.controller.reconcile.device_claims import DeviceClaimAllocator
from devalloc.store import Key, NotFound
from devalloc.store.kubernetes import Client, KubernetesStore
from tests.support import kube_crds
from tests.support.cli_shell import Shell, devalloc, text
from tests.support.kube_api import Cluster
from tests.support.minimal_manifests import claim

__all__ = ["devalloc"]
POOL = {
    "apiVersion": "devmgmtproto.k8s.io/v1alpha1",
    "kind": "DevicePool",
    "metadata": {"name": "verbs-pool"},
    "spec": {
        "driver": "d",
        "nodeName": "verbs-node",
        "attributes": [{"name": "kind", "stringValue": "verbs"}],
        "devices": [{"name": "one"}],
    },
}
CLASS = {
    "apiVersion": "devmgmtproto.k8s.io/v1alpha1",
    "kind": "DeviceClass",
    "metadata": {"name": "verbs-class"},
    "spec": {"constraints": "device.kind == 'verbs'"},
}
CLAIMS = [{**claim(name), "spec": {"claims": [{"deviceClass": "verbs-class"}]}} for name in ("verbs-a", "verbs-b")]


@pytest.fixture
def kubeconfig(cluster: Cluster) -> Path:
    kube_crds.install(cluster)
    return cluster.kubeconfig("admin")


@pytest.fixture
def store(kubeconfig: Path) -> Iterator[KubernetesStore]:
    with closing(KubernetesStore(Client.connect(kubeconfig))) as store:
        yield store
        for obj in (POOL, CLASS, *CLAIMS):
            with suppress(NotFound):
                store.delete(*Key.of(obj))


def test_what_people_do_with_claims_and_devices(devalloc: Shell, store: KubernetesStore, kubeconfig: Path) -> None:
    def run(*words: str, code: int = 0) -> str:
        result = devalloc(*words, "--kubeconfig", str(kubeconfig))
        assert result.code == code, (words, result.out, result.err)
        return result.out + result.err

    for obj in (POOL, CLASS, *CLAIMS):
        store.create(obj)
    assert "there is no" not in run("cordon", "pool/verbs-pool", "--reason", "test")
    assert "verbs-pool" in run("cordon")
    store.refresh()
    DeviceClaimAllocator(store).round()
    assert "verbs-a is not allocated" in run("wait", "verbs-a", "--timeout", "0.1s", code=3)
    run("uncordon", "pool/verbs-pool")
    store.refresh()
    waiting = threading.Thread(target=DeviceClaimAllocator(store).round)
    waiting.start()
    assert "allocated" in run("wait", "verbs-a", "--timeout", "60s")
    waiting.join()
    shown = {each["metadata"]["name"]: each for each in json.loads(run("get", "claims", "-o", "json"))["items"]}
    assert shown["verbs-a"]["status"]["allocations"]
    assert "status" not in shown["verbs-b"]
    assert "verbs-pool   one" in run("describe", "dclaim/verbs-a")
    assert "verbs-pool" in run("get", "pools")
    assert "no devices" not in run("release", "verbs-a")
    assert "allocations" not in store.get(*Key.of(CLAIMS[0])).get("status", {})
    assert "DeviceClaim default/absent does not exist" in run("get", "dclaim/absent", code=4)


def test_what_if_a_claim_were_applied(
    devalloc: Shell, store: KubernetesStore, kubeconfig: Path, tmp_path: Path
) -> None:
    for obj in (POOL, CLASS):
        store.create(obj)
    (tmp_path / "claim.yaml").write_text(text(CLAIMS[0]))
    where = ("-f", str(tmp_path / "claim.yaml"), "--kubeconfig", str(kubeconfig))

    solved = devalloc("solve", *where)
    assert (solved.code, "verbs-node" in solved.out) == (0, True), solved.err
    assert "would be on node verbs-node" in devalloc("explain", "verbs-a", *where).out
    assert devalloc("capacity", *where).out.startswith("1 more like default/verbs-a")
    assert devalloc("snapshot", tmp_path / "s.json", *where).code == 0
    assert {"DevicePool", "Namespace"} <= {
        one["kind"] for one in json.loads((tmp_path / "s.json").read_text())["documents"]
    }
    with pytest.raises(NotFound):
        store.get(*Key.of(CLAIMS[0]))
    drained = devalloc("drain", "node/verbs-node", "--kubeconfig", str(kubeconfig))
    assert drained.out.splitlines() == ["will cordon node verbs-node", "node verbs-node cordoned"]
    assert devalloc("solve", *where).code == 3


@pytest.mark.parametrize("options", [("--store", "x", "--in-cluster"), ("--in-cluster",)])
def test_one_place_and_one_that_is_there(devalloc: Shell, options: tuple[str, ...]) -> None:
    result = devalloc("get", "pools", *options)
    assert result.code == (2 if "--store" in options else 1)
    assert ("give one of them" if "--store" in options else "cannot connect to the API server") in result.err
