"""Devices of machines that move: which hardware they are, and what the target prepares before the claim says so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from devalloc.api import meta
from devalloc.api.virtual_machine_migration import MigrationDevice
from devalloc.store import Object
from devalloc.store.sqlite import SQLiteStore
from devalloc_machines.qemu import hotplug, pci
from devalloc_machines.qemu.migration_offer import check_same, identify, with_ports
from devalloc_machines.vms.migration_objects import hand_over_object
from devalloc_node.claims.store_grants import StoreGrants, claim_ref
from devalloc_node.errors import Denied
from devalloc_node.model.step import PreparedDevice
from tests.support.node_errors import raises

HERE, THERE = [{"devicePoolName": "b-card", "deviceName": "d"}], [{"devicePoolName": "a-card", "deviceName": "d"}]


def test_hardware_and_driver_say_which_device_it_is(tmp_path: Path) -> None:
    card = tmp_path / "bus/pci/devices/0000:41:00.0"
    card.mkdir(parents=True)
    for name, text in (("vendor", "0x10de"), ("device", "0x2330"), ("revision", "0xa1")):
        (card / name).write_text(f"{text}\n")
    (card / "driver").symlink_to("../../../drivers/nvgrace-gpu-vfio-pci")
    mdev = tmp_path / "bus/mdev/devices/u"
    mdev.mkdir(parents=True)
    (mdev / "mdev_type").symlink_to("../types/mtty-2")
    (mdev / "driver").symlink_to("../../drivers/vfio_mdev")
    whole = PreparedDevice((), "p", "d", "vfio", ("0000:41:00.0",))
    part = PreparedDevice((), "p", "d", "mdev", sysfsdev="bus/mdev/devices/u")
    assert identify(whole, tmp_path) == ["nvgrace-gpu-vfio-pci vendor=0x10de device=0x2330 revision=0xa1"]
    assert identify(part, tmp_path) == ["vfio_mdev mtty-2"]
    (card / "revision").write_text("0xa2\n")
    functions = ["nvgrace-gpu-vfio-pci vendor=0x10de device=0x2330 revision=0xa1"]
    there = MigrationDevice(claim="u", index=0, port="port-1", functions=functions)
    with raises(Denied, "DeviceDiffers", match="0xa2 here"):
        check_same("default/m", there, identify(whole, tmp_path))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with closing(SQLiteStore(tmp_path / "store.db")) as made:
        notes = {meta.ALLOCATED_NODE: "a", meta.PREPARED_ON: "a"}
        metadata = {"namespace": "default", "name": "c", "annotations": notes, "finalizers": [meta.NODE_FINALIZER]}
        spec = {"claims": [{"deviceClass": "x"}]}
        claim = made.create({"apiVersion": meta.DEVMGMT, "kind": "DeviceClaim", "metadata": metadata, "spec": spec})
        made.replace_status({**claim, "status": {"allocations": THERE}})
        moved = [{"name": "c", "uid": claim["metadata"]["uid"], "allocations": HERE}]
        state = {"migrationName": "m", "migrationUID": "u", "sourceNode": "a", "targetNode": "b", "claims": moved}
        vm = made.create(
            {
                "apiVersion": meta.DEVALLOC,
                "kind": "VirtualMachine",
                "metadata": {"namespace": "default", "name": "m"},
                "spec": {"cpu": {"min": 1, "max": 1}, "memory": {"min": "64Mi", "max": "64Mi"}, "claims": ["c"]},
            }
        )
        made.replace_status({**vm, "status": {"nodeName": "a", "migrationState": state}})
        yield made


def devices_of(store: SQLiteStore, node: str) -> list[str]:
    return [each.pool for each in StoreGrants(store, node).get(claim_ref(_claim(store))).devices]


def _claim(store: SQLiteStore) -> Object:
    return store.get("DeviceClaim", "default", "c")


def _vm(store: SQLiteStore, **status: Any) -> Object:
    now = store.get("VirtualMachine", "default", "m")
    return store.replace_status({**now, "status": status}) if status else now


def test_each_node_has_what_is_its_own_until_the_claim_has_moved(store: SQLiteStore) -> None:
    moved = _vm(store)["status"]["migrationState"]["claims"]
    for _ in ("booked", "handed over"):
        before = _claim(store)
        assert (devices_of(store, "b"), devices_of(store, "a")) == (["b-card"], ["a-card"])
        assert _claim(store) == before, "the target writes nothing on it"
        with pytest.raises(Denied):
            devices_of(store, "c")
        if "migrationState" in _vm(store)["status"]:
            hand_over_object(store, _vm(store))
    assert _vm(store)["status"]["movedClaims"] == moved
    assert "migrationState" not in _vm(store)["status"]


def test_a_claim_that_the_controller_gives_its_devices_is_marked_only_when_it_has_them(store: SQLiteStore) -> None:
    hand_over_object(store, _vm(store))
    claim = _claim(store)
    metadata = {**claim["metadata"], "annotations": {meta.ALLOCATED_NODE: "b"}, "finalizers": []}
    pool = {"apiVersion": meta.DEVMGMT, "kind": "DevicePool", "metadata": {"name": "a-card"}, "spec": {"nodeName": "a"}}
    store.create(pool)
    claim = store.replace({**claim, "metadata": metadata})  # the first of two writes; it was killed before the other
    assert devices_of(store, "b") == ["b-card"]
    assert meta.PREPARED_ON not in _claim(store)["metadata"]["annotations"]
    store.replace_status({**claim, "status": {"allocations": HERE}})
    assert devices_of(store, "b") == ["b-card"]
    assert _claim(store)["metadata"]["annotations"][meta.PREPARED_ON] == "b"


def test_without_a_booking_it_is_the_sources(store: SQLiteStore) -> None:
    _vm(store, nodeName="a")
    with raises(Denied, "ClaimElsewhere"):
        devices_of(store, "b")


def test_what_a_target_could_not_read_is_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pci, "present_devices", lambda monitor, due: [pci.function_id("dev-1", 0)])
    monkeypatch.setattr(pci, "list_root_ports", lambda monitor, due: [SimpleNamespace(path="/port", name="rp0")])
    monkeypatch.setattr(pci, "bus_of", lambda monitor, name, due: "/port")
    monkeypatch.setattr(hotplug, "plugged_names", lambda functions: {"dev-1"})
    nothing: Any = None
    device = {"claim": "claim-uid-0", "index": 0, "functions": ["vfio-pci vendor=0x10de"]}
    (placed,) = with_ports("default/m", {"dev-1": device}, nothing, nothing)
    assert (placed.port, placed.functions) == ("rp0", device["functions"])
    with raises(Denied, "MachineNotMovable", match="what this host tells of dev-1 cannot be offered"):
        with_ports("default/m", {"dev-1": {**device, "functions": [""]}}, nothing, nothing)
