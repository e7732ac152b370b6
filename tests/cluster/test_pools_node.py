"""`devalloc node --publish pools`, with no more rights than it is given: pools that follow the host, claims from
allocation to the initial state, what machines report, and a node that publishes slices instead. Its host is a fake
one; the allocator has the rights of the controller."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from devalloc.api import meta
from devalloc.controller.reconcile.loop import AllocatorSettings
from devalloc.store import Key, NotFound
from devalloc.store.kubernetes import Client, KubernetesStore
from devalloc_node.kube.publisher import SLICES
from devalloc_node.pb import node_pb2 as pb
from devalloc_node.pb.node_pb2_grpc import NodeStub
from tests.support import kube_crds, kube_rights, pci_cards, waiting
from tests.support.fake_host import FakeHost
from tests.support.fake_tree import memory_folder
from tests.support.kube_api import Cluster
from tests.support.kube_plugin import Bed, plugin_bed
from tests.support.machine_allocator import machine_allocator
from tests.support.minimal_manifests import claim
from tests.support.toy_machines import vm

NODE = "pools-node"
POOL = f"{NODE}-0000-01-00"
GPU = "0000:01:00.0"
LABELS = AllocatorSettings(labels_nodes=True)
"""A controller that ran in the cluster before may have promised labels, and the plugin then watches by them."""
OPTIONS = ("--publish=pools",)
READY = "DeviceClaims and VirtualMachines of the cluster"
CLASS = {
    "apiVersion": "devmgmtproto.k8s.io/v1alpha1",
    "kind": "DeviceClass",
    "metadata": {"name": "pools-node-gpu"},
    "spec": {"constraints": "device.kind == 'gpu'"},
}
CLAIM = {**claim("pools-node"), "spec": {"claims": [{"deviceClass": "pools-node-gpu"}]}}
REF = pb.ClaimRef(namespace="default", name="pools-node")
KEY = Key.of(CLAIM)


@pytest.fixture(scope="module")
def furnished(cluster: Cluster) -> Iterator[Cluster]:
    kube_crds.install(cluster)
    kube_rights.install(cluster, "both")
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
    assert cluster.create("/api/v1/nodes", body).ok
    yield cluster
    assert cluster.delete(f"/api/v1/nodes/{NODE}").ok


@pytest.fixture
def bed(furnished: Cluster, tmp_path: Path) -> Iterator[Bed]:
    with memory_folder() as folder:
        host = FakeHost(Path(folder) / "host", folders=(str(tmp_path / "cdi"),))
        host.add(pci_cards.gpu(iommu_group=15))
        host.add(pci_cards.gpu_audio(iommu_group=15))
        kubeconfig = kube_rights.kubeconfig(furnished, NODE)
        with plugin_bed(host, NODE, Path(folder), tmp_path / "cdi", Path(folder) / "kubelet", kubeconfig) as bed:
            yield bed


@pytest.fixture
def store(furnished: Cluster) -> Iterator[KubernetesStore]:
    """As the controller has it; and an admin who takes away in the end what is left."""
    with closing(KubernetesStore(Client.connect(kube_rights.controller_kubeconfig(furnished)))) as store:
        yield store
    with closing(KubernetesStore(Client.connect(furnished.kubeconfig("admin")))) as admin:
        for obj in admin.list(("DeviceClaim", "VirtualMachine", "DevicePool", "DeviceClass")).objects:
            if not obj["metadata"]["name"].startswith("pools-node"):
                continue
            if obj["metadata"].get("finalizers"):
                obj = admin.replace({**obj, "metadata": {**obj["metadata"], "finalizers": []}})
            with suppress(NotFound):
                admin.delete(*Key.of(obj))


@pytest.fixture
def user(furnished: Cluster) -> Iterator[KubernetesStore]:
    """The user who makes classes, claims and machines."""
    with closing(KubernetesStore(Client.connect(furnished.kubeconfig("admin")))) as store:
        yield store


def until(holds: Callable[[], Any], what: str, bed: Bed) -> Any:
    return waiting.until(
        holds, what, context=lambda: "\n".join(line for plugin in bed.running for line in plugin.output)
    )


def pools(store: KubernetesStore) -> dict[str, Any]:
    objects = store.list("DevicePool").objects
    return {obj["metadata"]["name"]: obj for obj in objects if obj["spec"].get("nodeName") == NODE}


def slices(cluster: Cluster) -> list[dict[str, Any]]:
    return list(cluster.get(f"{SLICES}?fieldSelector=spec.nodeName%3D{NODE}").content["items"])


def offered(published: list[dict[str, Any]]) -> dict[str, str]:
    """The devices of slices or pools, and why they are not offered; empty where they are."""
    by_device = {}
    for device in (device for one in published for device in one["spec"].get("devices", ())):
        attributes = device.get("attributes", ())
        if isinstance(attributes, dict):
            why = attributes.get(meta.UNAVAILABLE, {}).get("string", "")
            assert bool(why) == any(taint["key"] == meta.UNAVAILABLE for taint in device.get("taints", ()))
        else:
            why = next((each["stringValue"] for each in attributes if each["name"] == meta.UNAVAILABLE), "")
        by_device[device["name"]] = why
    return by_device


def conditions(store: KubernetesStore) -> dict[str, str]:
    status = store.get(*KEY).get("status", {})
    entries = [each for device in status.get("deviceStatuses", ()) for each in device.get("conditions", ())]
    return {each["type"]: each["status"] for each in entries}


def test_pools_follow_the_host_and_belong_to_the_node(bed: Bed, store: KubernetesStore, furnished: Cluster) -> None:
    plugin = bed.start(*OPTIONS, ready=READY)
    until(lambda: pools(store).keys() == {POOL}, "the pool is published", bed)
    uid = furnished.get(f"/api/v1/nodes/{NODE}").content["metadata"]["uid"]
    owners = pools(store)[POOL]["metadata"]["ownerReferences"]
    assert owners == [{"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": uid}]
    bed.host.add(pci_cards.nic("0000:41:00.0"))
    until(lambda: len(pools(store)) == 2, "a card that was plugged in is published", bed)
    bed.host.remove_function("0000:41:00.0")
    until(lambda: pools(store).keys() == {POOL}, "the pool of a card that was taken out is gone", bed)
    before = pools(store)[POOL]["metadata"]["resourceVersion"]
    plugin.stop()
    bed.start(*OPTIONS, ready=READY).wait_for("nothing changed")
    assert pools(store)[POOL]["metadata"]["resourceVersion"] == before, "another start writes nothing"


def test_a_claim_from_allocation_to_the_initial_state(bed: Bed, store: KubernetesStore, user: KubernetesStore) -> None:
    bed.start(*OPTIONS, ready=READY)
    until(lambda: POOL in pools(store), "the pool is published", bed)
    user.create(CLASS)
    user.create(CLAIM)
    until(lambda: any(Key.of(obj) == KEY for obj in store.list("DeviceClaim").objects), "the claim is seen", bed)
    machine_allocator(store, settings=LABELS).round()
    assert store.get(*KEY)["status"]["allocations"]
    before = bed.host.snapshot()
    with grpc.insecure_channel(f"unix:{bed.state / 'node.sock'}") as channel:
        stub = NodeStub(channel)
        marked = annotated(user, {meta.TRANSACTION: "devalloc-transaction-0"})
        reply = stub.PrepareClaim(pb.PrepareClaimRequest(claim=REF), timeout=60, wait_for_ready=True)
        assert reply.result.code == "ClaimNotAllocated", "it is written together with others, and may be put back"
        assert store.get(*KEY) == marked
        annotated(user, {meta.TRANSACTION: None})

        reply = stub.PrepareClaim(pb.PrepareClaimRequest(claim=REF), timeout=60)
        assert reply.result.outcome == pb.Result.DONE, reply.result
        assert bed.host.functions[GPU].driver == "vfio-pci"
        metadata = store.get(*KEY)["metadata"]
        assert metadata["finalizers"] == [meta.NODE_FINALIZER]
        assert metadata["annotations"][meta.PREPARED_ON] == NODE
        until(lambda: conditions(store).get("Ready") == "True", "the claim says that its device is ready", bed)

        reply = stub.UnprepareClaim(pb.UnprepareClaimRequest(claim=REF), timeout=60)
        assert reply.result.outcome == pb.Result.DONE, reply.result
    assert bed.host.snapshot() == before
    until(lambda: conditions(store).get("Ready") == "False", "the claim says that its device is not prepared", bed)
    assert not store.get(*KEY)["metadata"].get("finalizers")


def annotated(user: KubernetesStore, annotations: dict[str, str | None]) -> dict[str, Any]:
    obj = user.get(*KEY)
    merged = {**obj["metadata"].get("annotations", {}), **annotations}
    wanted = {name: value for name, value in merged.items() if value is not None}
    return user.replace({**obj, "metadata": {**obj["metadata"], "annotations": wanted}})


def status_of(store: KubernetesStore, key: Key) -> dict[str, Any]:
    """Empty where it is gone."""
    try:
        return dict(store.get(*key).get("status", {}))
    except NotFound:
        return {}


def test_a_group_is_allocated_as_one_with_the_rights_of_the_controller(
    store: KubernetesStore, user: KubernetesStore, furnished: Cluster
) -> None:
    pool = {
        "apiVersion": "devmgmtproto.k8s.io/v1alpha1",
        "kind": "DevicePool",
        "metadata": {"name": "pools-node-group"},
        "spec": {
            "driver": "d",
            "nodeName": "pools-node-other",
            "attributes": [{"name": "kind", "stringValue": "gpu"}],
            "devices": [{"name": "one"}, {"name": "two"}],
        },
    }
    group = {meta.GROUP: "pools-node"}
    claims = [{**CLAIM, **claim(f"pools-node-{name}", annotations=group), "spec": CLAIM["spec"]} for name in "ab"]
    for obj in (pool, CLASS, *claims):
        user.create(obj)
    store.list()
    store.refresh()
    done = machine_allocator(store, settings=LABELS).round()
    assert {key.name for key in done.granted} == {"pools-node-a", "pools-node-b"}
    for obj in claims:
        now = store.get(*Key.of(obj))
        assert len(now["status"]["allocations"]) == 1
        assert meta.TRANSACTION not in now["metadata"]["annotations"]
    assert store.client.requests()["create", 201] == 1, "the record of the transaction"
    path = "/api/v1/namespaces/devalloc-system/configmaps?labelSelector=devalloc.io/transaction"
    assert furnished.get(path).content["items"] == [], "which is gone"


def test_a_machine_is_placed_with_its_claim_and_taken_up_by_its_node(
    bed: Bed, store: KubernetesStore, user: KubernetesStore
) -> None:
    bed.host.proc("meminfo", "MemTotal: 16777216 kB\nMemAvailable: 16777216 kB\n")
    bed.start(*OPTIONS, "--host-capacity", "--scaling", "--dump-port=0", "--qemu=/does/not/exist", ready=READY)
    until(lambda: len(pools(store)) == 2, "the host's pool is published beside the card's", bed)
    machine = vm("pools-node", "pools-node")
    del machine["spec"]["nodeName"]
    for obj in (CLASS, CLAIM, machine):
        user.create(obj)
    key = Key.of(machine)
    until(lambda: {Key.of(o) for o in store.list().objects} >= {key, KEY}, "both are seen", bed)
    assert {got.kind for got in machine_allocator(store, settings=LABELS).round().granted} == {
        "DeviceClaim",
        "VirtualMachine",
    }
    assert store.get(*key)["status"]["nodeName"] == NODE, store.list().objects
    until(lambda: status_of(store, key).get("reason") == "QemuMissing", "its node says why it cannot start", bed)
    stored = store.get(*key)
    assert (stored["metadata"]["finalizers"], stored["status"]["nodeName"]) == ([meta.NODE_FINALIZER], NODE)
    assert stored["metadata"]["annotations"] == {meta.PREPARED_ON: NODE}
    user.delete(*key)
    until(lambda: status_of(store, key) == {}, "the machine is let go", bed)
    until(lambda: not store.get(*KEY)["metadata"].get("finalizers"), "and its claim", bed)


def test_a_node_that_is_labelled_anew_publishes_one_way_only(
    bed: Bed, store: KubernetesStore, user: KubernetesStore, furnished: Cluster
) -> None:
    """There and back. What a claim holds from before is not offered, though nothing of it was ever prepared."""
    plugin = bed.start(*OPTIONS, ready=READY)
    until(lambda: POOL in pools(store), "the pool is published", bed)
    user.create(CLASS)
    user.create(CLAIM)
    until(lambda: any(Key.of(obj) == KEY for obj in store.list("DeviceClaim").objects), "the claim is seen", bed)
    machine_allocator(store, settings=LABELS).round()
    (device,) = store.get(*KEY)["status"]["allocations"]
    plugin.stop()

    plugin = bed.start()
    until(lambda: slices(furnished), "slices are published", bed)
    user.refresh()
    assert POOL not in pools(user), "and the pools were taken back before"
    names = [name for name, why in offered(slices(furnished)).items() if why.startswith("in use: DeviceClaim default/")]
    assert device["deviceName"] in names
    user.delete(*KEY)
    until(lambda: not any(offered(slices(furnished)).values()), "what was let go is offered", bed)

    claims = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
    request = {"name": "gpu", "exactly": {"deviceClassName": "of-nobody"}}
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "pools-node"},
        "spec": {"devices": {"requests": [request]}},
    }
    claim = furnished.create(claims, body)
    assert claim.ok, claim.message
    result = {"request": "gpu", "driver": "devalloc.io", "pool": POOL, "device": device["deviceName"]}
    given = {"allocation": {"devices": {"results": [result]}}}
    answer = furnished.replace(f"{claims}/pools-node/status", {**claim.content, "status": given})
    assert answer.ok, answer.message
    plugin.stop()

    bed.start(*OPTIONS, ready=READY)
    until(lambda: POOL in pools(user), "the pool is published", bed)
    assert slices(furnished) == [], "and the slices were taken back before"
    why = offered(list(pools(user).values()))[device["deviceName"]]
    assert why == "in use: ResourceClaim default/pools-node, from when the node published ResourceSlices"
    assert furnished.delete(f"{claims}/pools-node").ok
    until(lambda: not any(offered(list(pools(user).values())).values()), "what was let go is offered", bed)
