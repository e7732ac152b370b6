"""ResourceSlices on a real API server, written with the token of a node and its rights."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from devalloc.api.pool import DevicePool
from devalloc.store.kubernetes.api_error import ApiError
from devalloc.store.kubernetes.client import Client
from devalloc_node.kube.publisher import SLICES, SlicePublisher, probe_features
from devalloc_node.kube.slices import SliceFeatures
from tests.support import kube_build, kube_rights, pci_cards
from tests.support.discovery_view import DiscoveredPools
from tests.support.fake_sysfs import FakeSysfs
from tests.support.go_build import Progress
from tests.support.kube_api import Cluster, running
from tests.support.pci_cards import Sriov
from tests.support.recordings import unpack
from tests.support.slice_rules import devices_of, fits
from tests.support.waiting import in_threads, until

DRIVER = "devalloc.io"
NODES = "/api/v1/nodes"
SECONDS = 120.0


@pytest.fixture
def api(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with its two nodes, and without slices in the end."""
    for node in ("node-a", "node-b"):
        cluster.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
    yield cluster
    cluster.delete(SLICES)


def client_of(cluster: Cluster, node: str = "node-a") -> Client:
    return Client.connect(cluster.kubeconfig(f"system:node:{node}"))


def publisher(cluster: Cluster, node: str = "node-a") -> SlicePublisher:
    return SlicePublisher(client_of(cluster, node), DRIVER, node)


def slices(cluster: Cluster) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = cluster.get(SLICES).content["items"]
    return sorted(items, key=lambda content: content["metadata"]["name"])


def versions(cluster: Cluster, without: str = "") -> dict[str, str]:
    """The resourceVersions of the slices, but for that of one."""
    listed = {content["metadata"]["name"]: content["metadata"]["resourceVersion"] for content in slices(cluster)}
    return {name: version for name, version in listed.items() if name != without}


def break_one(cluster: Cluster) -> str:
    """Take devices out of the largest slice; its name. One whole pool is then one write away."""

    def tried() -> str:
        largest = max(slices(cluster), key=lambda content: len(content["spec"].get("devices", ())))
        name = str(largest["metadata"]["name"])
        assert len(largest["spec"]["devices"]) > 1
        largest["spec"]["devices"] = largest["spec"]["devices"][:1]
        return name if cluster.replace(f"{SLICES}/{name}", largest).ok else ""

    return until(tried, "no other writer has it meanwhile")


def nic(folder: Path, vfs: int = 4) -> list[DevicePool]:
    host = FakeSysfs(folder)
    host.add(pci_cards.nic("0000:41:00.0", sriov=Sriov(vfs, 128, 2)))
    return DiscoveredPools.on(host.root).pools


def bind(host: FakeSysfs, device: str) -> None:
    """Hand a function to VFIO, which the inventory shows."""
    domain, bus, slot, function = device.split("-")
    address = f"{domain}:{bus}:{slot}.{function}"
    host.set_override(address, "vfio-pci")
    host.bind("vfio-pci", address)


def vgpu(folder: Path) -> list[DevicePool]:
    host = FakeSysfs(folder)
    host.add(pci_cards.a2_vgpu_card("0000:08:00.0", vfs=16))
    return DiscoveredPools.on(host.root).pools


@contextmanager
def started(one: SlicePublisher) -> Iterator[SlicePublisher]:
    """With its loops running. At the end they have ended: one that still wrote would write into the next test."""
    with in_threads(*one.loops):
        yield one


# -- what is accepted --------------------------------------------------------------------------------------------------


def test_a_recorded_host_is_published_whole(api: Cluster, tmp_path: Path) -> None:
    inventory = DiscoveredPools.on(unpack("harvester-vgpu-node", tmp_path))
    published = publisher(api).publish(inventory.pools)
    assert published.error is None
    assert published.slices == len(slices(api))
    names = {device["name"] for content in slices(api) for device in content["spec"].get("devices", [])}
    assert names == set(inventory.devices)


def test_a_card_of_all_profiles_is_published_in_slices_of_one_generation(api: Cluster, tmp_path: Path) -> None:
    published = publisher(api).publish(vgpu(tmp_path))
    assert published.error is None
    listed = slices(api)
    assert len(listed) > 3
    assert {content["spec"]["pool"]["resourceSliceCount"] for content in listed} == {len(listed)}
    assert {content["spec"]["pool"]["generation"] for content in listed} == {1}
    assert {content["spec"]["nodeName"] for content in listed} == {"node-a"}
    assert "sharedCounters" in listed[0]["spec"]
    names = {content["metadata"]["name"] for content in listed}
    assert f"node-a-0000-08-00-{DRIVER}-000" in names


def test_slices_belong_to_the_node(api: Cluster, tmp_path: Path) -> None:
    publisher(api).publish(nic(tmp_path))
    uid = api.get(f"{NODES}/node-a").content["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": uid, "controller": True}
    assert all(content["metadata"]["ownerReferences"] == [owner] for content in slices(api))


# -- as few writes as can be -------------------------------------------------------------------------------------------


def test_nothing_is_written_where_nothing_changed_also_by_another_instance(api: Cluster, tmp_path: Path) -> None:
    pools = vgpu(tmp_path)
    first = publisher(api)
    writes = first.publish(pools).writes
    before = slices(api)
    assert writes == len(before)
    assert first.publish(pools).writes == writes
    assert publisher(api).publish(pools).writes == 0
    assert slices(api) == before


def test_one_device_that_changes_is_one_write_in_the_same_generation(api: Cluster, tmp_path: Path) -> None:
    host = FakeSysfs(tmp_path)
    host.add(pci_cards.nic("0000:41:00.0", sriov=Sriov(4, 128, 2), vfs=4))
    one = publisher(api)
    writes = one.publish(DiscoveredPools.on(host.root).pools).writes
    bind(host, DiscoveredPools.on(host.root).names(function="vf")[0])
    assert one.publish(DiscoveredPools.on(host.root).pools).writes == writes + 1
    assert {content["spec"]["pool"]["generation"] for content in slices(api)} == {1}


def test_a_pool_that_needs_more_slices_gets_a_new_generation_and_old_ones_go(api: Cluster, tmp_path: Path) -> None:
    one = publisher(api)
    one.publish(nic(tmp_path / "small", 4))
    assert len(slices(api)) == 2
    one.publish(nic(tmp_path / "large", 200))
    grown = slices(api)
    assert len(grown) > 4
    assert {content["spec"]["pool"]["generation"] for content in grown} == {2}
    one.publish(nic(tmp_path / "again", 4))
    assert len(slices(api)) == 2
    assert {content["spec"]["pool"]["generation"] for content in slices(api)} == {3}
    one.publish([])
    assert slices(api) == []


def test_a_taint_keeps_its_time(api: Cluster, tmp_path: Path) -> None:
    host = FakeSysfs(tmp_path)
    host.add(pci_cards.nic("0000:41:00.0", sriov=Sriov(4, 128, 2), vfs=4))
    host.default_route("eth0")

    def pf() -> dict[str, Any]:
        devices = [device for content in slices(api) for device in content["spec"].get("devices", [])]
        return next(device for device in devices if device["name"] == "0000-41-00-0")

    one = publisher(api)
    one.publish(DiscoveredPools.on(host.root).pools)
    (before,) = pf()["taints"]
    assert (before["key"], before["effect"]) == ("devalloc.io/unavailable", "NoSchedule")
    time.sleep(1.1)  # times have whole seconds
    bind(host, DiscoveredPools.on(host.root).names(function="vf")[0])
    published = one.publish(DiscoveredPools.on(host.root).pools)
    assert published.error is None
    assert pf()["taints"] == [before]


class Watcher:
    """What a reader of slices takes a pool for at each moment, by the rules of the API: only the newest generation
    counts, and only when as many slices of it are there as each of them says."""

    def __init__(self) -> None:
        self.slices: dict[str, dict[str, Any]] = {}
        self.generation = 0
        self.whole: list[set[str]] = []
        """The devices of the pool, each time it is whole and another than before."""
        self.wrong: list[str] = []

    def tell(self, event: dict[str, Any]) -> None:
        content = event["object"]
        name = content["metadata"]["name"]
        if event["type"] == "DELETED":
            self.slices.pop(name, None)
        else:
            self.slices[name] = content["spec"]
        if not self.slices:
            return
        newest = max(spec["pool"]["generation"] for spec in self.slices.values())
        if newest < self.generation:
            self.wrong.append(f"generation {newest} after {self.generation}")
        self.generation = newest
        members = [spec for spec in self.slices.values() if spec["pool"]["generation"] == newest]
        counts = {spec["pool"]["resourceSliceCount"] for spec in members}
        if len(counts) > 1:
            self.wrong.append(f"generation {newest} has {sorted(counts)} slices")
        if counts == {len(members)}:
            names = [device["name"] for spec in members for device in spec.get("devices", [])]
            if len(set(names)) != len(names):
                self.wrong.append(f"generation {newest} has a device twice")
            sets = {each["name"] for spec in members for each in spec.get("sharedCounters", [])}
            used = {
                use["counterSet"]
                for spec in members
                for d in spec.get("devices", [])
                for use in d.get("consumesCounters", [])
            }
            if not used <= sets:
                self.wrong.append(f"generation {newest} lacks counters {used - sets}")
            if not self.whole or self.whole[-1] != set(names):
                self.whole.append(set(names))


def test_a_watcher_sees_no_pool_that_is_whole_and_wrong(api: Cluster, tmp_path: Path) -> None:
    """Growing, shrinking, written by another instance, wiped: between two states nothing is ever complete."""
    watcher, stop = Watcher(), threading.Event()
    version = api.get(SLICES).content["metadata"]["resourceVersion"]
    reader = Client.connect(api.kubeconfig("admin"))
    heard = threading.Event()

    def watch() -> None:
        for event in reader.watch(SLICES, {}, version, stop):
            if event["type"] != "BOOKMARK":
                if event["object"]["metadata"]["name"] == "the-end":
                    heard.set()
                    return
                watcher.tell(event)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    small, large = nic(tmp_path / "small", 4), nic(tmp_path / "large", 200)
    one = publisher(api)
    for pools in (small, large, small):
        one.publish(pools)
    publisher(api).publish(large)
    assert api.as_user("system:node:node-a").delete(f"{SLICES}?fieldSelector=spec.nodeName%3Dnode-a").ok
    one.publish(small)
    end = {"name": "the-end", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.example.com", "nodeName": "node-a", "pool": end}
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "the-end"}, "spec": spec}
    assert api.create(SLICES, body).ok
    assert heard.wait(SECONDS * 2)
    stop.set()
    assert watcher.wrong == []
    few, many = ({device.name for device in pools[0].spec.devices} for pools in (small, large))
    assert watcher.whole == [few, many, few, many, few]


# -- loops -------------------------------------------------------------------------------------------------------------


def test_slices_that_are_wiped_or_changed_come_back(api: Cluster, tmp_path: Path) -> None:
    with started(publisher(api)) as one:
        one.set(nic(tmp_path))
        assert one.wait(lambda published: published.slices > 0, SECONDS)
        before = slices(api)
        # as the kubelet does when it starts, and when a driver stays away
        node = api.as_user("system:node:node-a")
        assert node.delete(f"{SLICES}?fieldSelector=spec.nodeName%3Dnode-a").ok
        again = until(lambda: len(slices(api)) == len(before) and slices(api), "they come back")
        assert [content["spec"]["devices"] for content in again[1:]] == [c["spec"]["devices"] for c in before[1:]]
        assert {content["spec"]["pool"]["generation"] for content in again} == {2}

        broken = again[1]
        broken["spec"]["devices"] = broken["spec"]["devices"][:1]
        assert api.replace(f"{SLICES}/{broken['metadata']['name']}", broken).ok
        until(lambda: slices(api)[1]["spec"]["devices"] == before[1]["spec"]["devices"], "it is mended")


def test_new_pools_are_published_and_nothing_more_is_written(api: Cluster, tmp_path: Path) -> None:
    with started(publisher(api)) as one:
        one.set(nic(tmp_path / "a", 4))
        assert one.wait(lambda published: published.slices == 2, SECONDS)
        one.set(nic(tmp_path / "b", 200))
        assert one.wait(lambda published: published.slices > 4, SECONDS)
        writes = one.published.writes
        before = versions(api)
        name = break_one(api)
        assert one.wait(lambda published: published.writes > writes, SECONDS), "it is mended"
        assert one.published.writes == writes + 1
        assert versions(api, without=name) == {each: before[each] for each in before.keys() - {name}}


def test_two_instances_side_by_side_do_not_write_in_turns(api: Cluster, tmp_path: Path) -> None:
    """A rolling update: both have the same inventory."""
    pools = vgpu(tmp_path)
    with started(publisher(api)) as old, started(publisher(api)) as new:
        for one in (old, new):
            one.set(pools)
        for one in (old, new):
            assert one.wait(lambda published: published.slices > 0 and published.error is None, SECONDS)

        def no_slice_is_written() -> bool:
            before = versions(api)
            name = break_one(api)
            until(lambda: len(api.get(f"{SLICES}/{name}").content["spec"]["devices"]) > 1, "it is mended")
            return versions(api, without=name) == {each: before[each] for each in before.keys() - {name}}

        until(no_slice_is_written, "both leave what was not broken", context=lambda: (old.published, new.published))
        assert old.published.slices == len(slices(api))


# -- rights ------------------------------------------------------------------------------------------------------------


def test_slices_of_others_are_left_alone(api: Cluster, tmp_path: Path) -> None:
    def foreign(name: str, driver: str, node: str) -> dict[str, Any]:
        pool = {"name": name, "generation": 7, "resourceSliceCount": 1}
        spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": [{"name": "d"}]}
        return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}

    for content in (foreign("other-driver", "gpu.example.com", "node-a"), foreign("other-node", DRIVER, "node-b")):
        assert api.create(SLICES, content).ok
    before = slices(api)
    one = publisher(api)
    one.publish(nic(tmp_path))
    one.publish([])
    assert slices(api) == before


def test_a_slice_name_in_use_by_another_driver_costs_that_pool_only(api: Cluster, tmp_path: Path) -> None:
    pools = [*nic(tmp_path / "a"), *vgpu(tmp_path / "b")]
    name = f"{pools[0].metadata.name}-{DRIVER}-000"
    pool = {"name": "x", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.example.com", "nodeName": "node-a", "pool": pool}
    taken = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}
    assert api.create(SLICES, taken).ok
    published = publisher(api).publish(pools)
    assert published.error is not None
    assert name in published.error
    assert any(content["spec"]["pool"]["name"] == pools[1].metadata.name for content in slices(api))


def test_the_token_of_another_node_writes_nothing_here(api: Cluster, tmp_path: Path) -> None:
    publisher(api).publish(nic(tmp_path))
    before = slices(api)
    stolen = SlicePublisher(client_of(api, "node-b"), DRIVER, "node-a")
    with pytest.raises(ApiError) as refused:
        stolen.publish([])
    assert refused.value.status == 403
    assert slices(api) == before


def test_the_plugins_own_account_writes_the_slices_of_its_node_only(api: Cluster, tmp_path: Path) -> None:
    """With the rights that are installed (T30), also when the token of another node is stolen."""
    kube_rights.install(api)
    own = SlicePublisher(Client.connect(kube_rights.kubeconfig(api, "node-a")), DRIVER, "node-a")
    pools = nic(tmp_path / "a")
    assert own.publish(pools).error is None

    stolen = SlicePublisher(Client.connect(kube_rights.kubeconfig(api, "node-b")), DRIVER, "node-a")
    others = vgpu(tmp_path / "b")

    def refused() -> str:
        # a policy counts a moment after it is created
        try:
            error = stolen.publish(others).error
        except ApiError as refusal:
            return str(refusal)
        own.publish(pools)
        return error or ""

    assert "the token of node node-b must not write slices of node node-a" in until(refused, "the policy counts")
    assert own.publish(pools).error is None  # again, where others were written before the policy counted
    before = slices(api)
    for content in before:
        path, pool = f"{SLICES}/{content['metadata']['name']}", content["spec"]["pool"]
        client = Client.connect(kube_rights.kubeconfig(api, "node-b"))
        with pytest.raises(ApiError, match="must not write slices"):
            client.delete(path, content["metadata"]["uid"], content["metadata"]["resourceVersion"])
        with pytest.raises(ApiError, match="must not write slices"):
            client.replace(path, {**content, "spec": {**content["spec"], "pool": {**pool, "generation": 9}}})
    assert slices(api) == before
    assert own.publish(pools).error is None
    assert slices(api) == before


# -- features ----------------------------------------------------------------------------------------------------------


def test_the_plugin_probes_the_features_of_the_server(api: Cluster) -> None:
    assert probe_features(client_of(api), DRIVER, "node-a") == SliceFeatures(counters=True, taints=True, groups=False)


@pytest.mark.parametrize(
    ("gates", "features"),
    [
        ("DRADeviceCompatibilityGroups=true", SliceFeatures(counters=True, taints=True, groups=True)),
        ("DRAPartitionableDevices=false", SliceFeatures(counters=False, taints=True, groups=False)),
    ],
)
def test_features_that_differ_are_heeded(
    gates: str, features: SliceFeatures, progress: Progress, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("kubernetes")
    with running(kube_build.binaries(progress), folder, f"--feature-gates={gates}") as server:
        server.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}})
        assert probe_features(client_of(server), DRIVER, "node-a") == features
        pools = vgpu(tmp_path)
        published = publisher(server).publish(pools)
        assert published.error is None
        assert publisher(server).publish(pools).writes == 0
        specs = [content["spec"] for content in slices(server)]
        good = [name for name in devices_of(specs) if fits(specs, [name])]
        inventory = DiscoveredPools.on(tmp_path)
        assert good
        if features.groups:
            assert len(good) > 16, "devices of all groups are offered"
        if not features.counters:
            assert inventory.fits(*good), "all that is offered goes together"
            assert any("DRAPartitionableDevices is off" in problem.message for problem in published.problems)


# -- the server is away ------------------------------------------------------------------------------------------------


def test_a_silent_api_server_is_reported_and_tried_again(cluster: Cluster, tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        kubeconfig = tmp_path / "kubeconfig"
        here = cluster.kubeconfig("system:node:node-a").read_text()
        kubeconfig.write_text(here.replace(cluster.url, f"https://127.0.0.1:{listener.getsockname()[1]}"))
        one = SlicePublisher(Client.connect(kubeconfig), DRIVER, "node-a")
        with started(one):
            one.set(nic(tmp_path))
            assert one.wait(lambda published: published.error is not None, SECONDS)
            assert "resourceslices" in (one.published.error or "")
