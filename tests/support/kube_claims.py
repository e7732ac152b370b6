"""ResourceClaims, pods that wait for them and nodes that are set aside, on a real API server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

from devalloc.api.adopted_pools import AdoptionRule
from devalloc.api.dedicated_pools import ALLOCATOR_KEY, DEVALLOC, TAINT, dedicated_pool_name
from devalloc.controller.reconcile.events import ObjectEvent
from devalloc.controller.reconcile.loop import AllocatorSettings
from devalloc.controller.reconcile.resource_claims.adoption import PolicyProbe
from devalloc.controller.reconcile.resource_claims.allocator import ResourceClaimAllocator
from devalloc.controller.reconcile.resource_claims.cluster_state import RESOURCES
from devalloc.store.kubernetes import ApiError, Client, KubernetesStore
from tests.support import kube_crds, kube_rights
from tests.support.kube_api import Cluster
from tests.support.waiting import until

RESOURCE = "/apis/resource.k8s.io/v1"
SLICES = f"{RESOURCE}/resourceslices"
RULES = f"{RESOURCE}/devicetaintrules"
CLASSES = f"{RESOURCE}/deviceclasses"
DRIVER = "devalloc.io"
FOREIGN_DRIVER = "gpu.example.com"
SECONDS = 60.0


def install(cluster: Cluster, *, adoption: bool = False) -> None:
    """The rights of the controller and of nodes, and the policies, as they are shipped."""
    kube_crds.install(cluster)
    kube_rights.install(cluster, "both", resource_claims=True, adoption=adoption)


def controller(cluster: Cluster) -> Client:
    """With a token as the controller's pods have, once its rights count."""
    client = Client.connect(kube_rights.controller_kubeconfig(cluster))

    def may() -> bool:
        try:
            return bool(client.get("/api/v1/pods", {"limit": "1"}))
        except ApiError:
            return False

    until(may, "the controller's rights count")
    _await_policy(cluster)
    return client


def _await_policy(cluster: Cluster) -> None:
    """A policy counts a moment after it is created."""
    space = Space(cluster, "default")
    space.claim("probe", "any")
    body = {**space.get("probe"), "status": {"allocation": {"devices": {"results": []}}}}
    words = "leaves this claim to devalloc's controller"
    try:
        until(
            lambda: words in cluster.replace(f"{space.claims}/probe/status", body, dry_run=True).message,
            "the policy counts",
        )
    finally:
        space.clear()


@dataclass
class Space:
    """A namespace of one test, and the slices and nodes that it made."""

    cluster: Cluster
    name: str
    made: list[str] = field(default_factory=list)

    @property
    def claims(self) -> str:
        return f"{RESOURCE}/namespaces/{self.name}/resourceclaims"

    @property
    def pods(self) -> str:
        return f"/api/v1/namespaces/{self.name}/pods"

    def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = self.cluster.create(path, body)
        assert answer.ok, answer.message
        self.made.append(f"{path}/{body['metadata']['name']}")
        return answer.content

    def node(self, name: str, room: int = 0, **labels: str) -> None:
        """``room``: for so many pods, with the taints that a node has whose kubelet does not answer."""
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
        path = f"/api/v1/nodes/{name}"
        self.create("/api/v1/nodes", body)
        there = {"pods": str(room), "cpu": "64", "memory": "64Gi"}
        status = {"allocatable": there, "capacity": there}

        def written() -> bool:
            current = self.cluster.get(path).content
            if room:
                return self.cluster.replace(f"{path}/status", {**current, "status": status}).ok
            return self.cluster.replace(path, {**current, "spec": {**current["spec"], "taints": []}}).ok

        until(written, f"node {name} is as it should be")

    def slice(self, node: str, devices: Iterable[str], *, aside: bool = True, **attributes: str) -> None:
        """A pool of one slice."""
        pool = dedicated_pool_name(f"{node}-card") if aside else f"{node}-card"
        attributes |= {"allocator": DEVALLOC} if aside else {}
        fields: dict[str, Any] = {"attributes": {name: {"string": value} for name, value in attributes.items()}}
        fields |= {"taints": [TAINT]} if aside else {}
        header = {"name": pool, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": node, "pool": header, "devices": [{"name": d, **fields} for d in devices]}
        metadata = {"name": f"{self.name}-{pool}"}
        self.create(SLICES, _of("ResourceSlice", metadata, spec))

    def foreign_slice(self, node: str, devices: int, *, driver: str = FOREIGN_DRIVER, pool: str = "") -> None:
        """A pool as the example driver of kubernetes-sigs publishes it: named after its node."""
        entries = [
            {
                "name": f"gpu-{number}",
                "attributes": {
                    "index": {"int": number},
                    "uuid": {"string": f"gpu-{node}-{number}"},
                    "model": {"string": "LATEST-GPU-MODEL"},
                    "driverVersion": {"version": "1.0.0"},
                },
                "capacity": {"memory": {"value": "80Gi"}},
            }
            for number in range(devices)
        ]
        header = {"name": pool or node, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": driver, "nodeName": node, "pool": header, "devices": entries}
        self.create(SLICES, _of("ResourceSlice", {"name": f"{node}-{driver}-{pool or node}"}, spec))

    def device_class(self, name: str, expression: str) -> None:
        self.create(CLASSES, _of("DeviceClass", {"name": name}, {"selectors": [{"cel": {"expression": expression}}]}))

    def rule(self, name: str, effect: str = "NoSchedule", **selector: str) -> None:
        taint = {"key": "example.com/broken", "effect": effect}
        self.create(RULES, _of("DeviceTaintRule", {"name": name}, {"deviceSelector": selector, "taint": taint}))

    def claim(self, name: str, device_class: str, count: int = 1, *, ours: bool = True, **more: Any) -> None:
        self.create(self.claims, self.claim_of(name, device_class, count, ours=ours, **more))

    def claim_of(
        self, name: str, device_class: str, count: int = 1, *, ours: bool = True, **more: Any
    ) -> dict[str, Any]:
        exactly = {"deviceClassName": device_class, "count": count, **more}
        labels = {ALLOCATOR_KEY: DEVALLOC} if ours else {}
        spec = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
        return _of("ResourceClaim", {"name": name, "labels": labels}, spec)

    def pod(self, name: str, *claims: str, **more: Any) -> str:
        """A pod that waits for claims; its UID."""
        uid: str = self.create(self.pods, self.pod_of(name, *claims, **more))["metadata"]["uid"]
        return uid

    def pod_of(self, name: str, *claims: str, **more: Any) -> dict[str, Any]:
        used = [{"name": claim, "resourceClaimName": claim} for claim in claims]
        container = {"name": "main", "image": "none"}
        spec = {"containers": [container], "resourceClaims": used, "automountServiceAccountToken": False, **more}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}

    def get(self, claim: str) -> dict[str, Any]:
        content: dict[str, Any] = self.cluster.get(f"{self.claims}/{claim}").content
        return content

    def given(self, claim: str) -> set[str]:
        """The names of a claim's devices; none while it has none."""
        held = self.get(claim).get("status", {}).get("allocation") or {}
        return {each["device"] for each in held.get("devices", {}).get("results", ())}

    def all_given(self, *claims: str) -> list[set[str]]:
        """Those of several, once they all have some."""
        until(lambda: all(self.given(claim) for claim in claims), f"{claims} are allocated")
        return [self.given(claim) for claim in claims]

    def node_of(self, claim: str) -> str:
        terms = self.get(claim)["status"]["allocation"]["nodeSelector"]["nodeSelectorTerms"]
        node: str = terms[0]["matchFields"][0]["values"][0]
        return node

    def clear(self) -> None:
        """As kube-controller-manager would: claims lose finalizer and allocation."""
        for path in reversed(self.made):
            answer = self.cluster.get(path)
            if answer.ok and answer.content["metadata"].get("finalizers") and answer.content["kind"] == "ResourceClaim":
                if answer.content.get("status", {}).get("allocation"):
                    answer = self.cluster.replace(f"{path}/status", {**answer.content, "status": {}})
                metadata = {**answer.content["metadata"], "finalizers": []}
                self.cluster.replace(path, {**answer.content, "metadata": metadata})
            grace = "?gracePeriodSeconds=0" if "/pods/" in path else ""
            self.cluster.delete(f"{path}{grace}")


def ready_node(cluster: Cluster, name: str, *, pods: int = 10) -> None:
    """A node without a kubelet that takes pods all the same."""
    there = {"pods": str(pods), "cpu": "64", "memory": "64Gi"}
    status = {"allocatable": there, "capacity": there, "conditions": [{"type": "Ready", "status": "True"}]}
    path = f"/api/v1/nodes/{name}"
    assert cluster.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}).ok
    for place, more in ((f"{path}/status", {"status": status}), (path, {"spec": {}})):
        until(lambda place=place, more=more: cluster.replace(place, {**cluster.get(path).content, **more}).ok)  # type: ignore[misc]


def make_space(cluster: Cluster, name: str) -> Space:
    space = Space(cluster, name)
    for path, kind, called in (
        ("/api/v1/namespaces", "Namespace", name),
        (f"/api/v1/namespaces/{name}/serviceaccounts", "ServiceAccount", "default"),
    ):
        answer = cluster.create(path, {"apiVersion": "v1", "kind": kind, "metadata": {"name": called}})
        assert answer.ok or answer.status == 409, answer.message
    return space


def _of(kind: str, metadata: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": spec}


@dataclass
class Allocating:
    """An allocator that runs, and what it told."""

    events: list[ObjectEvent] = field(default_factory=list)

    def notes(self, reason: str) -> list[str]:
        return [
            each.note for each in self.events if each.reason == reason and each.regarding["kind"] == "ResourceClaim"
        ]


@contextmanager
def allocating(
    client: Client, stamp: str = "1 test", probe: Callable[[AdoptionRule], str] | None = None
) -> Iterator[Allocating]:
    """``probe``: of rules that adopt; by default the real one."""
    running = Allocating()
    store = KubernetesStore(client, resources=RESOURCES)
    settings = AllocatorSettings(retry=0.2)
    probe = probe or PolicyProbe(client, kube_rights.NAMESPACE)
    one = ResourceClaimAllocator(store, stamp=stamp, record=running.events.extend, probe=probe, settings=settings)
    stop = threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            with closing(store):
                one.run(stop)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield running
    finally:
        stop.set()
        thread.join(SECONDS)
    assert failures == []
    assert not thread.is_alive()
