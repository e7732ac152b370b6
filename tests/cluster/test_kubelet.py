"""The node plugin under a real kubelet, with containerd and kube-scheduler: from a Pod's claim to its device and back.

Only the kernel's /sys is played, by a `FakeHost`; the VFIO nodes that containers get are what /dev/null is.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from devalloc_node.model.grant import ClaimRef
from tests.support.kube_node import Node
from tests.support.kube_plugin import DRIVER, Bed
from tests.support.kube_pods import (
    METADATA,
    PODS,
    SECONDS,
    SLICES,
    VFS,
    Pods,
    published,
    serve,
)
from tests.support.kubelet_client import kubelet_client


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


def test_what_pods_write_on_the_node_is_gone_with_it(node: Node) -> None:
    """As the state of devalloc's plugin: a real one on this host would find it."""
    node.runs("mkdir", "-p", "/var/lib/devalloc-of-the-test-bed")
    assert not Path("/var/lib/devalloc-of-the-test-bed").exists()


def test_a_pod_gets_its_vf_and_gives_it_back(bed: Bed, ready: Node, pods: Pods) -> None:
    before = bed.host.snapshot()
    serve(bed, ready)
    assert published(ready)["0000-41-00-0"]["attributes"]["resource.kubernetes.io/pciBusID"] == {
        "string": "0000:41:00.0"
    }

    pods.start("p1", "vf")
    seen = pods.seen_in_container("p1")
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

    devices = ready.wait_until("the claim says how its device is", lambda: pods.claim("p1")["status"].get("devices"))
    assert [(each["driver"], each["device"]) for each in devices] == [(DRIVER, pods.device("p1"))]
    assert devices[0]["data"]["functions"] == [address]
    assert {each["type"]: each["status"] for each in devices[0]["conditions"]}["Ready"] == "True"

    pods.end("p1")
    assert files(bed) == []
    assert bed.host.snapshot() == before


def test_the_whole_card_and_its_vfs_exclude_each_other_in_the_scheduler(bed: Bed, ready: Node, pods: Pods) -> None:
    serve(bed, ready)
    for number in range(VFS):
        pods.start(f"vf{number}", "vf")
        pods.seen_in_container(f"vf{number}")
    assert len({pods.device(f"vf{number}") for number in range(VFS)}) == VFS
    pods.start("whole", "card")

    def refused() -> bool:
        conditions = ready.cluster.get(f"{PODS}/whole").content["status"].get("conditions", [])
        return any(c["type"] == "PodScheduled" and c["reason"] == "Unschedulable" for c in conditions)

    ready.wait_until("the card is refused", refused)
    pods.end(*(f"vf{number}" for number in range(VFS)))
    seen = pods.seen_in_container("whole")
    assert opened(seen) == sorted(["/dev/vfio/vfio", group_of(bed, "0000:41:00.0")])
    assert bed.host.driver_of("0000:41:00.0") == "vfio-pci"
    pods.end("whole")
    assert bed.host.driver_of("0000:41:00.0") == "igb"


def test_an_older_kubelet_is_served_in_v1beta1_alone(bed: Bed, ready: Node, pods: Pods) -> None:
    before = bed.host.snapshot()
    serve(bed, ready, "--kubelet-api=v1beta1")
    pods.start("p1", "gpu")
    seen = pods.seen_in_container("p1")
    assert seen["env"]["DEVALLOC_PCI_0000_01_00_0"] == "0000:01:00.0,0000:01:00.1"
    assert opened(seen) == ["/dev/vfio/15", "/dev/vfio/vfio"]
    pods.end("p1")
    assert bed.host.snapshot() == before


# -- instances come and go ---------------------------------------------------------------------------------------------


def test_a_restart_keeps_pods_and_unprepares_them_later(bed: Bed, ready: Node, pods: Pods) -> None:
    before = bed.host.snapshot()
    first = serve(bed, ready)
    pods.start("p1", "vf")
    pods.seen_in_container("p1")
    held = bed.host.snapshot()
    first.stop()
    assert bed.host.snapshot() == held
    serve(bed, ready)
    pods.start("p2", "gpu")
    pods.seen_in_container("p2")
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
    seen = pods.seen_in_container("p1")
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
    pods.seen_in_container("p1")
    serve(bed, ready, "--pod-uid=22222222-0000-4000-8000-000000000002")
    pods.start("p2", "gpu")  # whichever the kubelet asks
    pods.seen_in_container("p2")
    old.stop()
    pods.start("p3", "vf")
    pods.seen_in_container("p3")
    pods.end("p1", "p2", "p3")
    assert files(bed) == []
    assert bed.host.snapshot() == before


def test_slices_that_the_kubelet_wipes_come_back(bed: Bed, ready: Node, pods: Pods) -> None:
    """A kubelet deletes its node's slices when it starts, and finds the plugin again."""
    plugin = serve(bed, ready)
    uids = {item["metadata"]["uid"] for item in ready.cluster.get(SLICES).content["items"]}
    heard = len(plugin.output)
    ready.stop_kubelet()
    ready.start_kubelet()
    ready.wait_until(
        "the kubelet registers it again", lambda: any("kubelet registered" in line for line in plugin.output[heard:])
    )
    ready.wait_until(
        "the slices are new",
        lambda: not uids & {item["metadata"]["uid"] for item in ready.cluster.get(SLICES).content["items"]},
    )
    published(ready)
    ready.wait_until("the node takes pods again", ready.takes_pods)
    pods.start("p1", "gpu")
    pods.seen_in_container("p1")
    pods.end("p1")


# -- health ------------------------------------------------------------------------------------------------------------


def test_a_device_that_vanishes_is_unhealthy_in_the_pods_status_and_no_longer_offered(
    bed: Bed, ready: Node, pods: Pods
) -> None:
    serve(bed, ready)
    pods.start("p1", "gpu")
    pods.seen_in_container("p1")
    bed.host.remove_function("0000:01:00.0")

    def is_unhealthy() -> bool:
        statuses = ready.cluster.get(f"{PODS}/p1").content["status"].get("containerStatuses", [])
        resources = [r for s in statuses for a in s.get("allocatedResourcesStatus", []) for r in a["resources"]]
        return any(resource["health"] == "Unhealthy" for resource in resources)

    def offered() -> list[str]:
        items = ready.cluster.get(SLICES).content["items"]
        devices = [device for item in items for device in item["spec"].get("devices", [])]
        return [device["name"] for device in devices if "taints" not in device]

    assert "0000-41-00-0" in offered()
    ready.wait_until("it is not offered any more", lambda: "0000-01-00-0" not in offered(), SECONDS)
    ready.wait_until("the pod's status says that its device is unhealthy", is_unhealthy, SECONDS)
    pods.end("p1")


# -- the same sockets, without a kubelet between -----------------------------------------------------------------------


def test_a_raw_client_on_the_daemons_socket(bed: Bed, ready: Node, pods: Pods) -> None:
    serve(bed, ready)
    pods.start("p1", "vf")
    seen = pods.seen_in_container("p1")
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
            deadline = time.monotonic() + 120
            while {e.device.device_name: e.health for e in next(stream).devices}.get(pods.device("p1")) != 2:
                assert time.monotonic() < deadline, "unhealthy"
            stream.cancel()
    pods.end("p1")
