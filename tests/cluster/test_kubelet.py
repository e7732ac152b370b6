"""The node plugin under a real kubelet, with containerd and kube-scheduler: from a Pod's claim to its device and back.

Only the kernel's /sys is played, by a `FakeHost`; the VFIO nodes that containers get are what /dev/null is.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from devalloc_node.grant import ClaimRef
from tests.support import cards, kube_rights
from tests.support.cards import Sriov
from tests.support.fakehost import FakeHost
from tests.support.faketree import memory_folder
from tests.support.kube_images import IMAGE
from tests.support.kube_node import NODE, Node
from tests.support.kube_plugin import DRIVER, Bed, Plugin, plugin_bed
from tests.support.kubelet_client import kubelet_client

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
VFS = 2
SECONDS = 45.0


@pytest.fixture(scope="module")
def ready(node: Node) -> Node:
    """The node's cluster with classes and templates of claims, each for one device."""
    kube_rights.install(node.cluster)
    for name, expression in CLASSES.items():
        selectors = [{"cel": {"expression": expression}}]
        body = {"apiVersion": "resource.k8s.io/v1", "metadata": {"name": name}}
        made = node.cluster.create(
            f"{RESOURCE}/deviceclasses", body | {"kind": "DeviceClass", "spec": {"selectors": selectors}}
        )
        assert made.ok, made.message
        spec = {"spec": {"devices": {"requests": [{"name": "device", "exactly": {"deviceClassName": name}}]}}}
        made = node.cluster.create(TEMPLATES, body | {"kind": "ResourceClaimTemplate", "spec": spec})
        assert made.ok, made.message
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

    def told(self, name: str) -> dict[str, Any]:
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


@pytest.fixture
def pods(ready: Node) -> Iterator[Pods]:
    yield Pods(ready)
    ready.cluster.delete(f"{PODS}?gracePeriodSeconds=0")
    ready.wait_until("all pods and claims are gone", Pods(ready).all_gone)


@pytest.fixture
def bed(ready: Node, tmp_path: Path) -> Iterator[Bed]:
    """A host with a GPU and a NIC with two possible VFs, without a plugin yet."""
    with memory_folder() as folder:
        written = (str(ready.cdi_folder), str(ready.kubelet_folder / "plugins" / DRIVER))
        host = FakeHost(Path(folder) / "host", folders=written)
        host.add(cards.gpu(iommu_group=15))
        host.add(cards.gpu_audio(iommu_group=15))
        host.add(cards.nic("0000:41:00.0", sriov=Sriov(VFS, 128, 2)))
        kubeconfig = kube_rights.kubeconfig(ready.cluster, NODE)
        with plugin_bed(host, NODE, tmp_path, ready.cdi_folder, ready.kubelet_folder, kubeconfig) as bed:
            yield bed


def published(node: Node) -> dict[str, Any]:
    """The devices in the slices, by name, once they are there."""

    def found() -> dict[str, Any]:
        items = node.cluster.get(SLICES).content["items"]
        whole = {item["spec"]["pool"]["name"]: item["spec"]["pool"]["resourceSliceCount"] for item in items}
        if len(whole) != 2 or len(items) != sum(whole.values()):
            return {}
        return {device["name"]: device for item in items for device in item["spec"].get("devices", [])}

    devices: dict[str, Any] = node.wait_until("all devices are published", found)
    return devices


def serve(bed: Bed, node: Node, *options: str, die_before_reply: bool = False) -> Plugin:
    """A plugin that the kubelet knows, with its devices published."""
    plugin = bed.start(*options, die_before_reply=die_before_reply)
    plugin.wait_for(f"the kubelet registered {DRIVER}")
    published(node)
    return plugin


def opened(seen: dict[str, Any]) -> list[str]:
    """The VFIO nodes that the container could open."""
    return sorted(
        entry["path"] for entry in seen["paths"] if entry["path"].startswith("/dev/vfio/") and entry["opens"] == "ok"
    )


def files(bed: Bed) -> list[Path]:
    """What the plugin has written for claims."""
    return [path for folder in (bed.cdi, bed.kubelet / "plugins" / DRIVER) for path in folder.rglob("*.json")]


def group_of(bed: Bed, address: str) -> str:
    return f"/dev/vfio/{bed.host.functions[address].group}"


# -- a pod's device ----------------------------------------------------------------------------------------------------


def test_a_pod_gets_its_vf_and_gives_it_back(bed: Bed, ready: Node, pods: Pods) -> None:
    before = bed.host.snapshot()
    serve(bed, ready)
    assert published(ready)["0000-41-00-0"]["attributes"]["resource.kubernetes.io/pciBusID"] == {
        "string": "0000:41:00.0"
    }

    pods.start("p1", "vf")
    seen = pods.told("p1")
    address = seen["env"][f"DEVALLOC_PCI_{pods.device('p1').replace('-', '_')}"]
    assert address in bed.host.vf_addresses("0000:41:00.0")
    assert bed.host.driver_of(address) == "vfio-pci"
    assert opened(seen) == sorted(["/dev/vfio/vfio", group_of(bed, address)])

    (metadata,) = (entry for entry in seen["paths"] if entry["path"].startswith(METADATA))
    assert metadata["path"] == f"{METADATA}/resourceclaimtemplates/device/device/{DRIVER}-metadata.json"
    newest, _ = json.JSONDecoder().raw_decode(metadata["content"])
    assert newest["metadata"]["uid"] == pods.ref("p1").uid
    (device,) = newest["requests"][0]["devices"]
    assert device["attributes"]["resource.kubernetes.io/pciBusID"] == {"string": address}

    told = ready.wait_until("the claim says how its device is", lambda: pods.claim("p1")["status"].get("devices"))
    assert [(each["driver"], each["device"]) for each in told] == [(DRIVER, pods.device("p1"))]
    assert told[0]["data"]["functions"] == [address]
    assert {each["type"]: each["status"] for each in told[0]["conditions"]}["Ready"] == "True"

    pods.end("p1")
    assert files(bed) == []
    assert bed.host.snapshot() == before


def test_the_whole_card_and_its_vfs_exclude_each_other_in_the_scheduler(bed: Bed, ready: Node, pods: Pods) -> None:
    serve(bed, ready)
    for number in range(VFS):
        pods.start(f"vf{number}", "vf")
        pods.told(f"vf{number}")
    assert len({pods.device(f"vf{number}") for number in range(VFS)}) == VFS
    pods.start("whole", "card")

    def refused() -> bool:
        conditions = ready.cluster.get(f"{PODS}/whole").content["status"].get("conditions", [])
        return any(c["type"] == "PodScheduled" and c["reason"] == "Unschedulable" for c in conditions)

    ready.wait_until("the card is refused", refused)
    pods.end(*(f"vf{number}" for number in range(VFS)))
    seen = pods.told("whole")
    assert opened(seen) == sorted(["/dev/vfio/vfio", group_of(bed, "0000:41:00.0")])
    assert bed.host.driver_of("0000:41:00.0") == "vfio-pci"
    pods.end("whole")
    assert bed.host.driver_of("0000:41:00.0") == "igb"


def test_an_older_kubelet_is_served_in_v1beta1_alone(bed: Bed, ready: Node, pods: Pods) -> None:
    before = bed.host.snapshot()
    serve(bed, ready, "--kubelet-api=v1beta1")
    pods.start("p1", "gpu")
    seen = pods.told("p1")
    assert seen["env"]["DEVALLOC_PCI_0000_01_00_0"] == "0000:01:00.0,0000:01:00.1"
    assert opened(seen) == ["/dev/vfio/15", "/dev/vfio/vfio"]
    pods.end("p1")
    assert bed.host.snapshot() == before


# -- instances come and go ---------------------------------------------------------------------------------------------


def test_a_restart_keeps_pods_and_unprepares_them_later(bed: Bed, ready: Node, pods: Pods) -> None:
    before = bed.host.snapshot()
    first = serve(bed, ready)
    pods.start("p1", "vf")
    pods.told("p1")
    held = bed.host.snapshot()
    first.stop()
    assert bed.host.snapshot() == held
    serve(bed, ready)
    pods.start("p2", "gpu")
    pods.told("p2")
    pods.end("p1", "p2")
    assert files(bed) == []
    assert bed.host.snapshot() == before


def test_killed_between_prepare_and_reply_the_pod_gets_its_device_once(bed: Bed, ready: Node, pods: Pods) -> None:
    before = bed.host.snapshot()
    dying = serve(bed, ready, die_before_reply=True)
    pods.start("p1", "vf")
    assert dying.died()
    prepared = bed.host.snapshot()
    assert prepared != before
    serve(bed, ready)
    seen = pods.told("p1")
    assert bed.host.snapshot() == prepared
    bound = [vf for vf in bed.host.vf_addresses("0000:41:00.0") if bed.host.driver_of(vf) == "vfio-pci"]
    assert bound == [seen["env"][f"DEVALLOC_PCI_{pods.device('p1').replace('-', '_')}"]]
    pods.end("p1")
    assert files(bed) == []
    assert bed.host.snapshot() == before


def test_a_rolling_update_with_two_instances(bed: Bed, ready: Node, pods: Pods) -> None:
    before = bed.host.snapshot()
    old = serve(bed, ready, "--pod-uid=11111111-0000-4000-8000-000000000001")
    pods.start("p1", "vf")
    pods.told("p1")
    serve(bed, ready, "--pod-uid=22222222-0000-4000-8000-000000000002")
    pods.start("p2", "gpu")  # whichever the kubelet asks
    pods.told("p2")
    old.stop()
    pods.start("p3", "vf")
    pods.told("p3")
    pods.end("p1", "p2", "p3")
    assert files(bed) == []
    assert bed.host.snapshot() == before


def test_slices_that_the_kubelet_wipes_come_back(bed: Bed, ready: Node, pods: Pods) -> None:
    """A kubelet deletes its node's slices when it starts, and finds the plugin again."""
    plugin = serve(bed, ready)
    uids = {item["metadata"]["uid"] for item in ready.cluster.get(SLICES).content["items"]}
    heard = len(plugin.said)
    ready.stop_kubelet()
    ready.start_kubelet()
    ready.wait_until(
        "the kubelet registers it again", lambda: any("kubelet registered" in line for line in plugin.said[heard:])
    )
    ready.wait_until(
        "the slices are new",
        lambda: not uids & {item["metadata"]["uid"] for item in ready.cluster.get(SLICES).content["items"]},
    )
    published(ready)
    ready.wait_until("the node takes pods again", ready.takes_pods)
    pods.start("p1", "gpu")
    pods.told("p1")
    pods.end("p1")


# -- health ------------------------------------------------------------------------------------------------------------


def test_a_device_that_vanishes_is_told_to_the_pod_and_offered_no_more(bed: Bed, ready: Node, pods: Pods) -> None:
    serve(bed, ready)
    pods.start("p1", "gpu")
    pods.told("p1")
    bed.host.remove_function("0000:01:00.0")

    def told() -> bool:
        statuses = ready.cluster.get(f"{PODS}/p1").content["status"].get("containerStatuses", [])
        resources = [r for s in statuses for a in s.get("allocatedResourcesStatus", []) for r in a["resources"]]
        return any(resource["health"] == "Unhealthy" for resource in resources)

    def offered() -> list[str]:
        items = ready.cluster.get(SLICES).content["items"]
        devices = [device for item in items for device in item["spec"].get("devices", [])]
        return [device["name"] for device in devices if "taints" not in device]

    assert "0000-41-00-0" in offered()
    ready.wait_until("it is not offered any more", lambda: "0000-01-00-0" not in offered(), SECONDS)
    ready.wait_until("the pod's status says that its device is unhealthy", told, SECONDS)
    pods.end("p1")


# -- the same sockets, without a kubelet between -----------------------------------------------------------------------


def test_a_raw_client_on_the_daemons_socket(bed: Bed, ready: Node, pods: Pods) -> None:
    serve(bed, ready)
    pods.start("p1", "vf")
    seen = pods.told("p1")
    ref = pods.ref("p1")
    held = bed.host.snapshot()
    socket = bed.kubelet / "plugins" / DRIVER / "dra.sock"
    with kubelet_client(socket) as kubelet:
        for version in ("v1", "v1beta1"):
            again = kubelet.prepare([ref, ref], version)[ref.uid]
            assert again.error == ""
            assert [device.device_name for device in again.devices] == [pods.device("p1")]
        unknown = ClaimRef("default", "nobody", "00000000-0000-4000-8000-00000000dead")
        assert kubelet.unprepare([unknown])[unknown.uid].error == ""
        assert "ClaimNotFound" in kubelet.prepare([unknown])[unknown.uid].error
        wrong = ClaimRef(ref.namespace, ref.name, unknown.uid)
        assert "ClaimUidMismatch" in kubelet.prepare([wrong])[wrong.uid].error
        assert bed.host.snapshot() == held

        streams = [kubelet.watch(version) for version in ("v1", "v1alpha1")]
        for stream in streams:
            states = {entry.device.device_name: entry.health for entry in next(stream).devices}
            assert states[pods.device("p1")] == 1, "healthy"
        bed.host.remove_function(seen["env"][f"DEVALLOC_PCI_{pods.device('p1').replace('-', '_')}"])
        for stream in streams:
            deadline = time.monotonic() + 30
            while {e.device.device_name: e.health for e in next(stream).devices}.get(pods.device("p1")) != 2:
                assert time.monotonic() < deadline, "unhealthy"
            stream.cancel()
    pods.end("p1")
