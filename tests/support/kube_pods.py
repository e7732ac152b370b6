"""Pods with a device each under a real kubelet: their classes and templates, what they see, and their claims."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devalloc.api.dedicated_pools import ALLOCATOR_KEY, DEVALLOC
from devalloc_node.model.grant import ClaimRef
from tests.support import kube_rights, pci_cards
from tests.support.fake_host import FakeHost
from tests.support.fake_tree import memory_folder
from tests.support.kube_images import IMAGE
from tests.support.kube_node import NODE, Node
from tests.support.kube_plugin import DRIVER, Bed, Plugin, plugin_bed
from tests.support.pci_cards import Sriov

RESOURCE = "/apis/resource.k8s.io/v1"
SLICES = f"{RESOURCE}/resourceslices"
CLAIMS = f"{RESOURCE}/namespaces/default/resourceclaims"
TEMPLATES = f"{RESOURCE}/namespaces/default/resourceclaimtemplates"
PODS = "/api/v1/namespaces/default/pods"
METADATA = "/var/run/kubernetes.io/dra-device-attributes"
CLASSES = {
    "vf": 'device.driver == "devalloc.io" && device.attributes["devalloc.io"].function == "vf"',
    "card": 'device.driver == "devalloc.io" && device.attributes["devalloc.io"].kind == "nic"'
    ' && device.attributes["devalloc.io"].function != "vf"',
    "gpu": 'device.driver == "devalloc.io" && device.attributes["devalloc.io"].kind == "gpu"',
}
OURS = "-ours"
"""After the name of a class: the template whose claims devalloc's controller allocates."""
VFS = 2
SECONDS = 45.0


def node_with_claims(node: Node) -> Node:
    """With classes, and templates of claims for one device, which kube-scheduler or devalloc's controller allocates."""
    kube_rights.install(node.cluster)
    for name, expression in CLASSES.items():
        selectors = [{"cel": {"expression": expression}}]
        version = {"apiVersion": "resource.k8s.io/v1"}
        bodies = [version | {"kind": "DeviceClass", "metadata": {"name": name}, "spec": {"selectors": selectors}}]
        spec = {"devices": {"requests": [{"name": "device", "exactly": {"deviceClassName": name}}]}}
        for called, labels in ((name, {}), (f"{name}{OURS}", {ALLOCATOR_KEY: DEVALLOC})):
            template = {"metadata": {"labels": labels}, "spec": spec}
            bodies.append(version | {"kind": "ResourceClaimTemplate", "metadata": {"name": called}, "spec": template})
        for body in bodies:
            path = f"{RESOURCE}/deviceclasses" if body["kind"] == "DeviceClass" else TEMPLATES
            made = node.cluster.create(path, body)
            assert made.ok or made.status == 409, made.message
    return node


@dataclass
class Pods:
    """Pods of one test, each with one device."""

    node: Node

    def start(self, name: str, device_class: str) -> None:
        patterns = ["/dev/vfio/*", f"{METADATA}/*/*/*/*"]
        container = {
            "name": "main",
            "image": IMAGE,
            "imagePullPolicy": "Never",
            "args": ["tell", *patterns],
            "resources": {"claims": [{"name": "device"}]},
        }
        spec = {
            "hostNetwork": True,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "resourceClaims": [{"name": "device", "resourceClaimTemplateName": device_class}],
            "containers": [container],
        }
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        made = self.node.cluster.create(PODS, body)
        assert made.ok, made.message

    def seen_in_container(self, name: str) -> dict[str, Any]:
        """What the pod's container sees, once it runs."""
        lines = self.node.wait_until(f"pod {name} runs", lambda: self.node.output(name), SECONDS)
        seen: dict[str, Any] = json.loads(lines[0])
        return seen

    def claim(self, name: str) -> dict[str, Any]:
        """The claim that was made for the pod."""
        status = self.node.cluster.get(f"{PODS}/{name}").content["status"]
        (made,) = status["resourceClaimStatuses"]
        content: dict[str, Any] = self.node.cluster.get(f"{CLAIMS}/{made['resourceClaimName']}").content
        return content

    def ref(self, name: str) -> ClaimRef:
        metadata = self.claim(name)["metadata"]
        return ClaimRef("default", metadata["name"], metadata["uid"])

    def device(self, name: str) -> str:
        """The device that the scheduler chose for the pod."""
        (result,) = self.claim(name)["status"]["allocation"]["devices"]["results"]
        assert result["driver"] == DRIVER
        device: str = result["device"]
        return device

    def end(self, *names: str) -> None:
        """Delete them, and wait until they are gone: the kubelet lets them go when their claims are unprepared."""
        for name in names:
            self.node.cluster.delete(f"{PODS}/{name}")
        self.node.wait_until(
            f"{names} are gone", lambda: all(self.node.cluster.get(f"{PODS}/{name}").status == 404 for name in names)
        )

    def all_gone(self) -> bool:
        return not self.node.cluster.get(PODS).content["items"] and not self.node.cluster.get(CLAIMS).content["items"]


def published(node: Node) -> dict[str, Any]:
    """The devices in the slices, by name, once they are there."""

    def whole_pools() -> dict[str, Any]:
        items = node.cluster.get(SLICES).content["items"]
        whole = {item["spec"]["pool"]["name"]: item["spec"]["pool"]["resourceSliceCount"] for item in items}
        if len(whole) != 2 or len(items) != sum(whole.values()):
            return {}
        return {device["name"]: device for item in items for device in item["spec"].get("devices", [])}

    devices: dict[str, Any] = node.wait_until("all devices are published", whole_pools)
    return devices


def serve(bed: Bed, node: Node, *options: str, die_before_reply: bool = False) -> Plugin:
    """A plugin that the kubelet knows, with its devices published."""
    plugin = bed.start(*options, die_before_reply=die_before_reply)
    plugin.wait_for(f"the kubelet registered {DRIVER}")
    published(node)
    return plugin


@contextmanager
def pods_of(node: Node) -> Iterator[Pods]:
    """Pods of one test; in the end all are gone, with their claims."""
    yield Pods(node)
    node.cluster.delete(f"{PODS}?gracePeriodSeconds=0")
    node.wait_until("all pods and claims are gone", Pods(node).all_gone)


@contextmanager
def cards_of(node: Node, folder: Path) -> Iterator[Bed]:
    """A host with a GPU and a NIC with two possible VFs, without a plugin yet."""
    with memory_folder() as memory:
        written = (str(node.cdi_folder), str(node.kubelet_folder / "plugins" / DRIVER))
        host = FakeHost(Path(memory) / "host", folders=written)
        host.add(pci_cards.gpu(iommu_group=15))
        host.add(pci_cards.gpu_audio(iommu_group=15))
        host.add(pci_cards.nic("0000:41:00.0", sriov=Sriov(VFS, 128, 2)))
        kubeconfig = kube_rights.kubeconfig(node.cluster, NODE)
        with plugin_bed(host, NODE, folder, node.cdi_folder, node.kubelet_folder, kubeconfig) as bed:
            yield bed
