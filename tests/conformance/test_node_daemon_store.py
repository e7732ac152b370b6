"""The whole plugin on the embedded store: pools published, a claim allocated, prepared and given back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import grpc
import pytest

from devalloc.api.meta import PUBLISHED_BY
from devalloc.controller import pool_publisher
from devalloc.controller.cordon import find_target, set_cordon
from devalloc.controller.pool_publisher import INVENTORY, PublishLock, PublishResult
from devalloc.programs.node_parts import store_publishing, store_source
from devalloc.programs.plugin_thread import previous_name
from devalloc.store.sqlite import SQLiteStore
from devalloc_machines.part import MachineSettings
from devalloc_machines.qemu.settings import MachineConfig
from devalloc_node.binding.binding import BindingConfig
from devalloc_node.daemon import run_daemon
from devalloc_node.errors import Denied
from devalloc_node.node import Node, open_node
from devalloc_node.pb import node_pb2 as pb
from devalloc_node.pb.node_pb2_grpc import NodeStub
from tests.support import pci_cards
from tests.support.fake_host import FakeHost, LocalHost
from tests.support.fake_tree import memory_folder
from tests.support.fleet_manifests import gpu_pool
from tests.support.machine_allocator import machine_allocator
from tests.support.node_errors import raises
from tests.support.waiting import until

NODE = "node-a"
POOL = "node-a-0000-01-00"
GPU = ("0000:01:00.0", "0000:01:00.1")
CLASS = {
    "apiVersion": "devmgmtproto.k8s.io/v1alpha1",
    "kind": "DeviceClass",
    "metadata": {"name": "gpu"},
    "spec": {"constraints": "device.kind == 'gpu'"},
}
CLAIM = {
    "apiVersion": "devmgmtproto.k8s.io/v1alpha1",
    "kind": "DeviceClaim",
    "metadata": {"namespace": "default", "name": "training"},
    "spec": {"claims": [{"deviceClass": "gpu"}]},
}


class Bed:
    """A host with a GPU, a store, and an instance of the plugin between them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings = MachineSettings(
            NODE,
            BindingConfig(NODE),
            root=folder / "host",
            state=folder / "state",
            machines=MachineConfig(state=folder / "state" / "machines", run=folder / "run"),
            socket=folder / "node.sock",
            cdi=folder / "cdi",
        )
        self.host = FakeHost(folder / "host", folders=self.settings.written)
        for card in (pci_cards.gpu(iommu_group=15), pci_cards.gpu_audio(iommu_group=15)):
            self.host.add(card)
        self.host.proc("sys/kernel/random/boot_id", "boot-1\n")
        self.before = self.host.snapshot()
        self.store = SQLiteStore(folder / "devalloc.db")
        self.published: list[PublishResult] = []

    @contextmanager
    def running(self) -> Iterator[tuple[Node, NodeStub]]:
        source = store_source(self.store, self.settings.node_name)
        with open_node(self.settings, LocalHost(self.host), source) as node:
            serving = threading.Event()
            with store_publishing(
                self.store, node, node.inventory.discover, self.published.append, place=self.folder / "db"
            ) as publishing:
                thread = threading.Thread(target=run_daemon, args=(node, publishing, lambda text: serving.set()))
                thread.start()
                try:
                    assert serving.wait(60)
                    with grpc.insecure_channel(f"unix:{self.settings.socket}") as channel:
                        yield node, NodeStub(channel)
                finally:
                    node.stop()
                    thread.join(60)
                assert not thread.is_alive()

    def drivers(self) -> set[str | None]:
        return {self.host.functions[address].driver for address in GPU if address in self.host.functions}

    def unavailable(self) -> str | None:
        """Why the pool's GPU is not to be had, as published."""
        spec = self.store.get("DevicePool", None, POOL)["spec"]
        entries = [*spec.get("attributes", ()), *(e for d in spec["devices"] for e in d.get("attributes", ()))]
        return next((e["stringValue"] for e in entries if e["name"] == "devalloc.io/unavailable"), None)

    def conditions(self) -> dict[str, str]:
        status = self.store.get("DeviceClaim", "default", "training").get("status", {})
        entries = [each for device in status.get("deviceStatuses", ()) for each in device.get("conditions", ())]
        return {each["type"]: each["status"] for each in entries}


@pytest.fixture
def bed() -> Iterator[Bed]:
    with memory_folder() as folder:
        bed = Bed(Path(folder))
        with closing(bed.store):
            yield bed


def allocated(bed: Bed) -> pb.ClaimRef:
    """The claim, once the plugin's pool is there and the allocator had its round."""
    until(lambda: len(bed.store.list("DevicePool").objects) == 1, "the pool is published")
    bed.store.create(CLASS)
    bed.store.create(CLAIM)
    machine_allocator(bed.store).round()
    assert bed.store.get("DeviceClaim", "default", "training")["status"]["allocations"]
    return pb.ClaimRef(namespace="default", name="training")


def test_a_claim_from_publication_to_the_initial_state(bed: Bed) -> None:
    with bed.running() as (_, stub):
        ref = allocated(bed)
        bed.host.add(pci_cards.nic())
        before = bed.host.snapshot()

        reply = stub.PrepareClaim(pb.PrepareClaimRequest(claim=ref), timeout=90)
        assert reply.result.outcome == pb.Result.DONE, reply.result
        assert bed.drivers() == {"vfio-pci"}
        until(lambda: bed.conditions() == {"Ready": "True", "Healthy": "True"}, "the device is well")

        looked = stub.Rescan(pb.RescanRequest(), timeout=90)
        assert (looked.result.outcome, looked.pools) == (pb.Result.DONE, 2)
        assert bed.unavailable() is None, "what its own claim uses is not in use by others"

        reply = stub.UnprepareClaim(pb.UnprepareClaimRequest(claim=ref), timeout=90)
        assert reply.result.outcome == pb.Result.DONE, reply.result
        assert bed.host.snapshot() == before
        until(lambda: bed.conditions()["Ready"] == "False", "the claim says that its device is not prepared")
    assert not bed.store.get("DeviceClaim", "default", "training")["metadata"].get("finalizers")


def test_a_prepared_device_that_loses_its_driver_is_withheld_until_it_is_well(bed: Bed) -> None:
    with bed.running() as (node, stub):
        ref = allocated(bed)
        assert stub.PrepareClaim(pb.PrepareClaimRequest(claim=ref), timeout=90).result.outcome == pb.Result.DONE
        until(lambda: bed.conditions().get("Healthy") == "True", "the device is well")
        bed.host.unbind("vfio-pci", GPU[0])
        node.rescan()
        until(lambda: bed.conditions().get("Healthy") == "False", "the claim says that its device is unwell")
        until(lambda: "unhealthy" in (bed.unavailable() or ""), "the pool says that the device is unwell")
        (device,) = stub.ListDevices(pb.ListDevicesRequest(), timeout=90).devices
        assert (device.device, device.health) == ("0000-01-00-0", pb.Device.UNHEALTHY)
        bed.host.bind("vfio-pci", GPU[0])
        node.rescan()
        until(lambda: bed.conditions().get("Healthy") == "True", "the device is well again")
        until(lambda: bed.unavailable() is None, "the pool offers it again")


def test_the_node_tells_about_itself(bed: Bed) -> None:
    with bed.running() as (_, stub):
        about = stub.GetNode(pb.GetNodeRequest(), timeout=90)
    assert (about.node_name, about.boot_id) == (NODE, "boot-1")
    assert list(about.allowed_kinds) == ["gpu", "vf", "vgpu"]
    assert about.journal.prepared_claims == 0
    assert about.journal.path == str(bed.folder / "state" / "journal.db")


def served_as(bed: Bed, name: str) -> None:
    """Run the plugin under a name until it serves, and end it. Raises Denied if it does not start."""
    settings = named(bed, name)
    with (
        open_node(settings, LocalHost(bed.host), store_source(bed.store, name)) as node,
        store_publishing(
            bed.store, node, node.inventory.discover, bed.published.append, place=bed.folder / "db"
        ) as publishing,
    ):
        run_daemon(node, publishing, lambda text: node.stop())


def test_a_node_has_one_plugin(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_publisher, "PublishLock", partial(PublishLock, wait=0.0))
    other = bed.folder / "other"
    machines = replace(bed.settings.machines, state=other / "machines", run=other / "run")
    second = replace(bed.settings, state=other, socket=other / "node.sock", machines=machines)
    first = bed.settings
    with bed.running():
        bed.settings = second
        with raises(
            Denied, "NodeServed", retryable=True, match=r"already runs the plugin of node node-a .*--node-name"
        ):
            served_as(bed, NODE)
        bed.settings = replace(second, dry_run=True)
        served_as(bed, NODE)
        bed.settings = first
    bed.settings = second
    served_as(bed, NODE)


def named(bed: Bed, name: str) -> MachineSettings:
    """The settings of the plugin after its host was renamed."""
    return replace(bed.settings, node_name=name, bindings=BindingConfig(name))


def pools(bed: Bed) -> set[str]:
    return {pool["metadata"]["name"] for pool in bed.store.list("DevicePool").objects}


def test_a_host_that_was_renamed_keeps_what_it_has(bed: Bed) -> None:
    with bed.running() as (_, stub):
        ref = allocated(bed)
        assert stub.PrepareClaim(pb.PrepareClaimRequest(claim=ref), timeout=90).result.outcome == pb.Result.DONE
    with raises(Denied, "NodeRenamed", match=r"node node-a: claim default/training; .* with --node-name node-a\."):
        served_as(bed, "renamed")
    with bed.running() as (node, stub):
        assert [claim.ref.name for claim in node.journal.claims()] == ["training"]
        assert bed.drivers() == {"vfio-pci"}
        unprepared = stub.UnprepareClaim(pb.UnprepareClaimRequest(claim=ref), timeout=90)
        assert unprepared.result.outcome == pb.Result.DONE
    bed.store.delete("DeviceClaim", "default", "training")
    served_as(bed, "renamed")
    served_as(bed, NODE)


def test_a_host_that_was_renamed_has_its_devices_once(bed: Bed) -> None:
    other = gpu_pool("of-node-b", node="node-b")  # of another plugin on this store
    bed.store.create({**other, "metadata": {**other["metadata"], "labels": {PUBLISHED_BY: INVENTORY}}})
    with bed.running():
        until(lambda: pools(bed) == {POOL, "of-node-b"}, "its pool is published")
    assert previous_name(bed.settings.state) == NODE, "`devalloc up` knows it from the journal"
    bed.published.clear()
    bed.settings = named(bed, "renamed")
    with bed.running():
        until(lambda: pools(bed) == {POOL.replace(NODE, "renamed"), "of-node-b"}, "its pool has the new name")
    assert bed.published[0] == PublishResult(deleted=(POOL,)), "before anything is published"


def test_a_host_that_was_renamed_is_not_served_while_its_pools_are_in_use(bed: Bed) -> None:
    def refuses(why: str) -> None:
        for _ in range(2):  # it knows its previous name after the first try, too
            with raises(Denied, "NodeRenamed", match=why):
                served_as(bed, "renamed")
        assert pools(bed) == {POOL}

    with bed.running():
        allocated(bed)
    refuses(r"node node-a, not renamed, and are in use: claim default/training\. .* --node-name node-a\.")
    bed.store.delete("DeviceClaim", "default", "training")
    cordon = find_target(bed.store, f"pool/{POOL}")
    set_cordon(bed.store, cordon, "a fan is broken")
    refuses(f"pool {POOL}, which is cordoned")
    set_cordon(bed.store, cordon, None)
    served_as(bed, "renamed")
    assert POOL not in pools(bed)
