"""A claim that is prepared a second time gets the same device, bound and there; or an error that says what is wrong.

Situations of dra-driver-nvidia-gpu#951, k8s-gpu-dra-driver#75 and #86, and QubesOS#7792 and #8681."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from devalloc.api import meta
from devalloc.controller.reconcile.pool_attributes import PoolAttributes
from devalloc.controller.reconcile.release import release_claim
from devalloc.inventory.config import InventoryConfig
from devalloc.inventory.discover import discover
from devalloc.store.sqlite import SQLiteStore
from devalloc_machines.part import MachineSettings
from devalloc_node.binding.binding import BindingConfig
from devalloc_node.claims.journal_content import inventory_facts
from devalloc_node.claims.store_grants import StoreGrants, claim_ref
from devalloc_node.deadline import Deadline
from devalloc_node.errors import NodeError
from devalloc_node.model.grant import ClaimRef
from devalloc_node.model.step import Prepared
from devalloc_node.node import ClaimSource, Node, open_node
from devalloc_solver import testing
from tests.conformance.test_node_and_kubelet import GPU, GPU_FUNCTIONS, POOLS, VF, Bed
from tests.support import pci_cards
from tests.support.binding_runner import pool_of
from tests.support.fake_host import LocalHost
from tests.support.fake_tree import memory_folder
from tests.support.fleet_manifests import fill, gpu_claim
from tests.support.machine_allocator import machine_allocator
from tests.support.node_errors import raises
from tests.support.pci_cards import Function

DRIVES = ("0000:42:00.0", "0000:43:00.0")
DRIVE_DEVICES = tuple(f"{address.replace(':', '-').replace('.', '-')}" for address in DRIVES)
POOLS.update({device: pool_of(device) for device in DRIVE_DEVICES})
PF = "0000:41:00.0"
IDENTITIES = meta.ALLOCATED_IDENTITIES


class StorageBed(Bed):
    """A host that gives drives away, too."""

    def settings(self, pod_uid: str | None = None) -> MachineSettings:
        settings = super().settings(pod_uid)
        allowed = frozenset({"gpu", "vf", "vgpu", "storage"})
        object.__setattr__(settings, "bindings", BindingConfig(self.name, allowed=allowed, erase_policy=True))
        return settings


@pytest.fixture
def bed() -> Iterator[Bed]:
    with memory_folder() as folder:
        yield Bed(Path(folder))


def drivers(bed: Bed) -> dict[str, str | None]:
    return {address: function.driver for address, function in bed.host.functions.items()}


@contextmanager
def started(bed: Bed) -> Iterator[Node]:
    with bed.opened() as node:
        node.reconciler.recover()
        yield node


def prepare(node: Node, ref: ClaimRef) -> Prepared:
    return node.claims.prepare(ref, Deadline.after(20), kind="ResourceClaim")


def refused(node: Node, ref: ClaimRef) -> NodeError:
    with pytest.raises(NodeError) as caught:
        prepare(node, ref)
    return caught.value


def give_back(bed: Bed) -> None:
    """Another program gives the GPU back to the host's drivers."""
    for address in GPU_FUNCTIONS:
        bed.host.unbind("vfio-pci", address)
        bed.host.set_override(address, "")
        bed.host.probe(address)


def fall_off_the_bus(bed: Bed) -> None:
    function = bed.host.functions[GPU_FUNCTIONS[0]]
    bed.host.config(function.path, function.spec, gone=True)


def pull(bed: Bed) -> None:
    for address in GPU_FUNCTIONS:
        bed.host.remove_function(address)


def remove_vfs(bed: Bed) -> None:
    for address in list(bed.host.functions):
        function = bed.host.functions[address]
        if function.pf == PF and function.driver is not None:
            bed.host.unbind(function.driver, address)
    bed.host.set_numvfs(PF, 0)


def replace_gpu(bed: Bed) -> None:
    """A T4 in the slot of the L4."""
    pull(bed)
    bed.host.add(pci_cards.t4_vgpu_card(GPU_FUNCTIONS[0], vgpu=None, iommu_group=15))


def same_model_other_board(bed: Bed) -> None:
    pull(bed)
    bed.host.add(pci_cards.gpu(iommu_group=15, subsystem=(0x1028, 0x1234)))


BROKEN: dict[str, tuple[str, Callable[[Bed], None], str, str]] = {
    "the card was pulled": (GPU, pull, "DeviceGone", "0000:01:00.0 no longer exists"),
    "it fell off the bus": (GPU, fall_off_the_bus, "DeviceGone", "0000:01:00.0 does not respond"),
    "its VFs were removed": (VF, remove_vfs, "DeviceGone", "0000:41:10.0 no longer exists"),
    "another GPU is in its slot": (GPU, replace_gpu, "DeviceChanged", "device 0x1eb8, not 0x27b8"),
    "the same GPU of another maker": (GPU, same_model_other_board, "DeviceChanged", "subsystem 0x1028:0x1234"),
}


@pytest.mark.parametrize("situation", BROKEN)
def test_what_cannot_be_repaired_is_an_error_with_what_the_health_watch_says(bed: Bed, situation: str) -> None:
    device, change, code, words = BROKEN[situation]
    ref = bed.grants.add("training", device)
    with started(bed) as node:
        (prepared,) = prepare(node, ref).devices
        change(bed)
        health = node.bindings.observe(prepared)
        assert (health.state, health.code) == ("unhealthy", code)
        error = refused(node, ref)
        assert error.code == code
        assert words in health.message in error.message
        node.claims.unprepare(ref, Deadline.after(20), kind="ResourceClaim")
        assert not node.claims.prepared()


def node_of_vfio_is_gone(bed: Bed) -> None:
    bed.host.vfio_group(15, present=False)


REPAIRABLE = {"the host's drivers have it": give_back, "its device node is gone": node_of_vfio_is_gone}


@pytest.mark.parametrize("situation", REPAIRABLE)
def test_a_device_that_only_lost_its_binding_is_bound_again(bed: Bed, situation: str) -> None:
    ref = bed.grants.add("training", GPU)
    with started(bed) as node:
        first = prepare(node, ref)
        REPAIRABLE[situation](bed)
        assert prepare(node, ref) == first
        assert {bed.driver(address) for address in GPU_FUNCTIONS} == {"vfio-pci"}
        assert all((bed.host.root / each.removeprefix("/")).exists() for each in first.devices[0].nodes)
        node.claims.unprepare(ref, Deadline.after(20), kind="ResourceClaim")
    assert bed.host.snapshot() == bed.before
    assert bed.files() == []


def test_a_device_that_the_host_uses_now_stays_with_the_host(bed: Bed) -> None:
    ref = bed.grants.add("training", GPU)
    with started(bed) as node:
        prepare(node, ref)
        give_back(bed)
        bed.host.process(77, "python", ("/dev/dri/card0",))
        assert "python" in refused(node, ref).message
        assert bed.driver(GPU_FUNCTIONS[0]) == "nvidia"


def test_a_claim_with_another_device_in_use_is_not_taken_apart(bed: Bed) -> None:
    ref = bed.grants.add("training", GPU, VF)
    with started(bed) as node:
        _, vf = prepare(node, ref).devices
        bed.host.process(77, "qemu-system-x86", vf.nodes)
        give_back(bed)
        assert refused(node, ref).code == "DeviceInUse"
        assert bed.driver("0000:41:10.0") == "vfio-pci"


def test_a_host_that_was_restored_with_its_boot_id_gets_its_claims_prepared_again(bed: Bed) -> None:
    ref = bed.grants.add("training", GPU)
    with started(bed) as node:
        first = prepare(node, ref)
    give_back(bed)
    for file in (bed.folder / "cdi").iterdir():
        file.unlink()
    files = bed.files()
    with started(bed) as node:
        assert prepare(node, ref) == first
    assert {bed.driver(address) for address in GPU_FUNCTIONS} == {"vfio-pci"}
    assert set(files) < set(bed.files())


def reboot(bed: Bed) -> None:
    give_back(bed)
    bed.host.proc("sys/kernel/random/boot_id", "11111111-0000-4000-8000-00000000b007\n")


def replaced_by(*functions: Function) -> Callable[[Bed], None]:
    def change(bed: Bed) -> None:
        pull(bed)
        for function in functions:
            bed.host.add(function)

    return change


RENUMBERED = {
    "a T4": replace_gpu,
    "the boot display": replaced_by(
        Function(GPU_FUNCTIONS[0], 0x10DE, 0x1CB1, 0x030000, native="nouveau", boot_vga=True, iommu_group=15)
    ),
    "a NIC": replaced_by(pci_cards.plain_nic(GPU_FUNCTIONS[0], iommu_group=15)),
    "a drive": replaced_by(pci_cards.nvme(GPU_FUNCTIONS[0], iommu_group=15)),
}


@pytest.mark.parametrize("other", RENUMBERED)
def test_another_device_at_the_address_after_a_reboot_is_refused_until_the_claim_lets_go(bed: Bed, other: str) -> None:
    ref = bed.grants.add("training", GPU)
    with started(bed) as node:
        prepare(node, ref)
    reboot(bed)
    RENUMBERED[other](bed)
    before = drivers(bed)
    for _ in range(2):  # also by a plugin that is started once more
        with started(bed) as node:
            node.reconciler.reconcile()
            assert {refused(node, ref).code for _ in range(2)} == {"DeviceChanged"}
    assert drivers(bed) == before
    with started(bed) as node:
        node.claims.unprepare(ref, Deadline.after(20), kind="ResourceClaim")
        assert not node.journal.records("allocated"), "the next allocation may be of what is there now"


def test_a_plugin_that_did_not_notice_the_reboot_prepares_the_claim_again(bed: Bed) -> None:
    ref, other = bed.grants.add("training", GPU), bed.grants.add("other", VF)
    with started(bed) as node:
        first = prepare(node, ref)
        prepare(node, other)
        reboot(bed)
        assert prepare(node, ref) == first
        assert {bed.driver(address) for address in GPU_FUNCTIONS} == {"vfio-pci"}
        assert [claim.ref for claim in node.claims.prepared()] == [ref], "the other was undone by the reboot, too"
        assert prepare(node, ref) == first, "the reboot is noted once"


def test_the_same_device_after_a_reboot_is_prepared(bed: Bed) -> None:
    ref = bed.grants.add("training", GPU)
    with started(bed) as node:
        first = prepare(node, ref)
    reboot(bed)
    with started(bed) as node:
        assert prepare(node, ref) == first
        assert not node.journal.records("allocated")


def test_what_a_claim_had_before_a_reboot_is_forgotten_with_the_claim(bed: Bed) -> None:
    ref = bed.grants.add("training", GPU)
    with started(bed) as node:
        prepare(node, ref)
    reboot(bed)
    with started(bed) as node:
        node.reconciler.reconcile()
        assert set(node.journal.records("allocated")) == {ref.uid}
        del bed.grants.granted[ref.uid]
        node.reconciler.reconcile()
        assert not node.journal.records("allocated")


def test_a_claim_that_lets_go_before_the_reboot_was_cleared_up_gets_the_device_that_is_there(bed: Bed) -> None:
    """The undoing of what a reboot left may fail again and again, such as where another program has a function."""
    ref, other = bed.grants.add("training", GPU), bed.grants.add("other", VF)
    with started(bed) as node:
        prepare(node, ref)
        reboot(bed)
        replace_gpu(bed)
        prepare(node, other)  # this notes the reboot, and clears up nothing of other claims
        assert set(node.journal.records("allocated")) == {ref.uid}
        node.claims.unprepare(ref, Deadline.after(20), kind="ResourceClaim")
        assert prepare(node, ref).devices[0].identity["deviceID"] == "0x1eb8"


def test_what_a_claim_had_is_remembered_while_its_kind_is_not_served(bed: Bed, store: SQLiteStore) -> None:
    ref = bed.grants.add("training", GPU)
    with started(bed) as node:
        prepare(node, ref)
    reboot(bed)
    with on_store(bed, store) as node:  # of DeviceClaims only
        node.reconciler.reconcile()
    replace_gpu(bed)
    with started(bed) as node:
        assert refused(node, ref).code == "DeviceChanged"


@dataclass(frozen=True)
class Drive:
    """What the host's driver shows of one."""

    serial: str
    namespace: str | None = None
    """The identifier of its first namespace."""
    subsystem: str | None = None


def show(bed: Bed, drives: Sequence[Drive]) -> None:
    for address, drive in zip(DRIVES, drives, strict=True):
        name = bed.host.functions[address].spec.nvme
        for path, text in (
            (f"nvme/{name}/serial", drive.serial),
            (f"nvme/{name}/{name}n1/wwid", drive.namespace),
            (f"nvme/{name}/subsysnqn", drive.subsystem),
        ):
            if text is not None:
                bed.host.write(bed.host.path(address, path), text)


def refusals_after_a_reboot(first: Sequence[Drive], then: Sequence[Drive]) -> list[str | None]:
    """Two tenants get a drive each; then the machine boots again, and shows what is in their places."""
    with memory_folder() as folder:
        bed = StorageBed(Path(folder))
        for number, address in enumerate(DRIVES):
            bed.host.add(pci_cards.nvme(address, nvme=f"nvme{number}"))
        show(bed, first)
        refs = [bed.grants.add(f"tenant-{number}", device) for number, device in enumerate(DRIVE_DEVICES)]
        with started(bed) as node:
            for ref in refs:
                prepare(node, ref)
        bed.host.proc("sys/kernel/random/boot_id", "11111111-0000-4000-8000-00000000b007\n")
        for address in DRIVES:
            bed.host.unbind("vfio-pci", address)
            bed.host.set_override(address, "")
            bed.host.probe(address)
        show(bed, then)
        refusals: list[str | None] = []
        with started(bed) as node:
            for ref in refs:
                try:
                    prepare(node, ref)
                except NodeError as error:
                    refusals.append(f"{error.code}: {error.message}")
                else:
                    refusals.append(None)
        return refusals


A, B = Drive("S64HNE0R500001", "eui.0a01"), Drive("S64HNE0R500002", "eui.0b01")


def test_two_equal_drives_of_two_tenants_that_change_places_are_both_refused() -> None:
    first, second = refusals_after_a_reboot((A, B), (B, A))
    assert re.fullmatch(f"DeviceChanged: .* serial {B.serial}, not {A.serial}.*", first or "")
    assert re.fullmatch(f"DeviceChanged: .* serial {A.serial}, not {B.serial}.*", second or "")


@pytest.mark.parametrize("namespace", ["eui.0a02", "uuid.5a1c0f1e-0000-4000-8000-0123456789ab", ""])
def test_a_tenant_who_makes_the_namespaces_of_a_drive_anew_keeps_the_drive(namespace: str) -> None:
    assert refusals_after_a_reboot((A, B), (replace(A, namespace=namespace), B)) == [None, None]


CLONES = Drive("AA000000000000000001", "eui.0c01"), Drive("AA000000000000000001", "eui.0c02")


@dataclass(frozen=True)
class Place:
    """What is in the place of a drive, or of a GPU, after the boot."""

    driver: str | None
    serial: str = ""


UNSEEN = {
    "vfio-pci has it": Place("vfio-pci"),
    "it has no driver": Place(None),
    "its driver does not show the serial number": Place("nvme"),
}


@contextmanager
def drive_of_a_tenant() -> Iterator[tuple[StorageBed, ClaimRef]]:
    """A drive with a serial number that a tenant has."""
    with memory_folder() as folder:
        bed = StorageBed(Path(folder))
        put(bed, Place("nvme", A.serial))
        ref = bed.grants.add("tenant", DRIVE_DEVICES[0])
        with started(bed) as node:
            prepare(node, ref)
        yield bed, ref


def put(bed: Bed, place: Place) -> None:
    if DRIVES[0] in bed.host.functions:
        bed.host.remove_function(DRIVES[0])
    bed.host.add(replace(pci_cards.nvme(DRIVES[0], nvme="nvme0"), driver=place.driver))
    file = bed.host.path(DRIVES[0], "nvme/nvme0/serial")
    if place.serial:
        bed.host.write(file, place.serial)
    elif place.driver == "nvme":
        bed.host.remove(file)


def next_boot(bed: Bed) -> None:
    bed.host.proc("sys/kernel/random/boot_id", "11111111-0000-4000-8000-00000000b007\n")


@pytest.mark.parametrize("place", UNSEEN.values(), ids=UNSEEN)
def test_a_drive_that_does_not_show_which_one_it_is_waits_until_it_does(place: Place) -> None:
    with drive_of_a_tenant() as (bed, ref):
        next_boot(bed)
        put(bed, place)
        with started(bed) as node:
            for _ in range(2):
                error = refused(node, ref)
                assert (error.code, error.retryable) == ("IdentityUnseen", True)
                assert "its serial number does not show" in error.message
                assert "bind it to nvme" in error.message
                assert len(error.message) <= 120
            put(bed, Place("nvme", B.serial))
            assert refused(node, ref).code == "DeviceChanged"
            put(bed, Place("nvme", A.serial))
            assert prepare(node, ref).devices[0].identity["serial"] == A.serial


def test_a_drive_that_the_plugin_has_bound_is_handed_out_again_in_the_same_boot() -> None:
    with drive_of_a_tenant() as (bed, ref):
        for _ in range(2):  # starts of the plugin
            with started(bed) as node:
                assert prepare(node, ref).devices[0].identity["serial"] == A.serial
                assert bed.host.functions[DRIVES[0]].driver == "vfio-pci"


def show_serial_number(bed: Bed, number: int) -> None:
    """As the capability in the configuration space that every driver leaves readable."""
    function = bed.host.functions[GPU_FUNCTIONS[0]]
    space = bytearray(4096)
    space[0:4] = function.spec.vendor.to_bytes(2, "little") + function.spec.device.to_bytes(2, "little")
    space[0x100:0x10C] = (0x0003 | 1 << 16).to_bytes(4, "little") + number.to_bytes(8, "little")
    (bed.host.sys / function.path / "config").write_bytes(bytes(space))


@pytest.mark.parametrize(("number", "code"), [(1, None), (2, "DeviceChanged"), (None, None)])
def test_a_gpu_on_vfio_after_the_boot_is_identified_by_its_pci_serial_number(
    bed: Bed, number: int | None, code: str | None
) -> None:
    """Without one it is accepted: it has no data of its last owner."""
    ref = bed.grants.add("training", GPU)
    show_serial_number(bed, 1)
    with started(bed) as node:
        assert prepare(node, ref).devices[0].identity["serial"] == "00-00-00-00-00-00-00-01"
    reboot(bed)
    for address in GPU_FUNCTIONS:
        bed.host.unbind(str(bed.host.functions[address].driver), address)
        bed.host.set_override(address, "vfio-pci")
        bed.host.probe(address)
    bed.host.config(bed.host.functions[GPU_FUNCTIONS[0]].path, bed.host.functions[GPU_FUNCTIONS[0]].spec)
    if number is not None:
        show_serial_number(bed, number)
    with started(bed) as node:
        outcome = prepare(node, ref).devices[0].name if code is None else refused(node, ref).code
    assert outcome == (code or f"{pool_of(GPU)}/{GPU}")


def test_namespaces_distinguish_drives_with_one_serial_number() -> None:
    assert refusals_after_a_reboot(CLONES, CLONES) == [None, None]
    first, second = refusals_after_a_reboot(CLONES, CLONES[::-1])
    assert re.fullmatch("DeviceChanged: .* uuid eui.0c02, not eui.0c01.*", first or "")
    assert re.fullmatch("DeviceChanged: .* uuid eui.0c01, not eui.0c02.*", second or "")


def test_a_drive_is_not_taken_for_another_one_that_has_its_serial_number() -> None:
    """While VFIO has one of them, the host shows the serial number of the other one only."""
    alike = [replace(each, subsystem=f"nqn.2024-01.com.example:nvme:{n}") for n, each in enumerate(CLONES)]
    with memory_folder() as folder:
        bed = StorageBed(Path(folder))
        for number, address in enumerate(DRIVES):
            bed.host.add(pci_cards.nvme(address, nvme=f"nvme{number}"))
        show(bed, alike)
        first, second, third = (
            bed.grants.add(f"tenant-{number}", DRIVE_DEVICES[number % 2]) for number in range(len(alike) + 1)
        )
        with started(bed) as node:
            prepare(node, first)
            prepare(node, second)
            node.claims.unprepare(first, Deadline.after(20), kind="ResourceClaim")
            for name, text in (("serial", alike[0].serial), ("subsysnqn", alike[0].subsystem)):
                bed.host.write(bed.host.path(DRIVES[0], f"nvme/nvme0/{name}"), str(text))
            assert reason_of(bed, node, DRIVE_DEVICES[0]) is None
            assert prepare(node, third).devices[0].device == DRIVE_DEVICES[0]


def test_namespaces_distinguish_drives_without_a_serial_number() -> None:
    blank = tuple(replace(each, serial=" 0000 ") for each in CLONES)
    assert all(refusals_after_a_reboot(blank, blank[::-1]))


def test_the_two_ports_of_one_drive_go_to_one_claim_at_a_time() -> None:
    """Both reach all namespaces."""
    with memory_folder() as folder:
        bed = StorageBed(Path(folder))
        for number, address in enumerate(DRIVES):
            bed.host.add(pci_cards.nvme(address, nvme=f"nvme{number}"))
        show(bed, [replace(A, subsystem="nqn.2014.08.org.nvmexpress:144d144dS64HNE0R500001") for _ in DRIVES])
        first, second = (bed.grants.add(f"tenant-{number}", device) for number, device in enumerate(DRIVE_DEVICES))
        with started(bed) as node:
            prepare(node, first)
            assert refused(node, second).code == "DeviceInUse"
            node.claims.unprepare(first, Deadline.after(20), kind="ResourceClaim")
            prepare(node, second)


def plug_in_elsewhere(bed: Bed, drive: Drive) -> None:
    """The drive of the first place goes to the second, which was empty."""
    bed.host.remove_function(DRIVES[0])
    bed.host.add(pci_cards.nvme(DRIVES[1], nvme="nvme1"))
    bed.host.write(bed.host.path(DRIVES[1], "nvme/nvme1/serial"), drive.serial)


@pytest.mark.parametrize("rebooted", [False, True])
def test_a_drive_that_has_another_name_now_is_given_to_no_one_else(rebooted: bool) -> None:
    """Its data is still that of the claim that got it: buses were renumbered, or someone plugged it in elsewhere."""
    with memory_folder() as folder:
        bed = StorageBed(Path(folder))
        bed.host.add(pci_cards.nvme(DRIVES[0]))
        owner = bed.grants.add("owner", DRIVE_DEVICES[0])
        other = bed.grants.add("other", DRIVE_DEVICES[1])
        with started(bed) as node:
            prepare(node, owner)
        plug_in_elsewhere(bed, A)
        if rebooted:
            bed.host.proc("sys/kernel/random/boot_id", "11111111-0000-4000-8000-00000000b007\n")
        with started(bed) as node:
            error = refused(node, other)
            assert error.code == "DeviceInUse"
            assert f"is the drive that claim {owner} got as {DRIVE_DEVICES[0]}" in error.message
            assert reason_of(bed, node, DRIVE_DEVICES[1]) == (
                f"in use: it is the drive that claim {owner} got as {DRIVE_DEVICES[0]}; release that claim"
            )
            node.claims.unprepare(owner, Deadline.after(20), kind="ResourceClaim")
            assert reason_of(bed, node, DRIVE_DEVICES[1]) is None
            assert prepare(node, other).devices


@pytest.mark.parametrize("rebooted", [False, True])
def test_admin_access_to_a_drive_keeps_it_from_no_claim(rebooted: bool) -> None:
    with memory_folder() as folder:
        bed = StorageBed(Path(folder))
        bed.host.add(pci_cards.nvme(DRIVES[0]))
        watcher = bed.grants.add("watcher", DRIVE_DEVICES[0])
        grant = bed.grants.granted[watcher.uid]
        watched = tuple(replace(device, admin=True) for device in grant.devices)
        bed.grants.granted[watcher.uid] = replace(grant, devices=watched)
        other = bed.grants.add("other", DRIVE_DEVICES[1])
        with started(bed) as node:
            prepare(node, watcher)
        plug_in_elsewhere(bed, A)
        if rebooted:
            next_boot(bed)
        with started(bed) as node:
            assert reason_of(bed, node, DRIVE_DEVICES[1]) is None
            assert prepare(node, other).devices


def reason_of(bed: Bed, node: Node, device: str) -> str | None:
    """Why the node does not offer a device."""
    config = InventoryConfig(records=inventory_facts(node.journal), erase_policy=True)
    pools = discover(bed.host.root, node_name=bed.name, config=config).pools
    (published,) = [each for pool in pools for each in pool.spec.devices if each.name == device]
    return next((str(one.value) for one in published.attributes if one.name == meta.UNAVAILABLE), None)


def test_a_claim_of_a_journal_without_identities_goes_on_working(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = bed.grants.add("training", GPU)
    with started(bed) as node:
        monkeypatch.setattr(node.claims, "_host", replace(node.claims._host, identify=lambda binding: {}))
        prepare(node, ref)
        assert "identity" not in node.journal.claim(ref.uid).prepared["devices"][0]  # type: ignore[union-attr, index]
    reboot(bed)
    with started(bed) as node:
        assert prepare(node, ref).devices[0].identity["deviceID"] == "0x27b8"


# What was allocated, though never prepared.


def allocated_in_store(bed: Bed, store: SQLiteStore) -> ClaimRef:
    """A DeviceClaim for the GPU, allocated by the controller from what discovery publishes."""
    made = testing.device_class("gpu", driver="gpu.devalloc.io")
    pools = [pool.to_manifest() for pool in discover(bed.host.root, node_name=bed.name).pools]
    fill(store, *pools, made, gpu_claim("training"))
    machine_allocator(store).round()
    return claim_ref(store.get("DeviceClaim", "default", "training"))


@contextmanager
def on_store(bed: Bed, store: SQLiteStore) -> Iterator[Node]:
    source = ClaimSource("DeviceClaim", StoreGrants(store, bed.name), lambda namespace, name: None)
    with open_node(bed.settings(), LocalHost(bed.host), source) as node:
        node.reconciler.recover()
        yield node


def prepare_of_store(node: Node, ref: ClaimRef) -> Prepared:
    return node.claims.prepare(ref, Deadline.after(20), kind="DeviceClaim")


def test_a_device_that_was_replaced_before_its_claim_was_prepared_is_refused(bed: Bed, store: SQLiteStore) -> None:
    ref = allocated_in_store(bed, store)
    noted = json.loads(store.get("DeviceClaim", "default", "training")["metadata"]["annotations"][IDENTITIES])
    l4 = {"vendorID": "0x10de", "deviceID": "0x27b8", "subsystemID": "0x10de:0x16ca"}
    assert noted == {f"{pool_of(GPU)}/{GPU}": l4}
    replace_gpu(bed)
    before = drivers(bed)
    with on_store(bed, store) as node:
        for _ in range(2):  # also after it let go
            with raises(NodeError, "DeviceChanged", retryable=False, match="device 0x1eb8, not 0x27b8"):
                prepare_of_store(node, ref)
            node.claims.unprepare(ref, Deadline.after(20), kind="DeviceClaim")
    assert drivers(bed) == before


def test_a_claim_that_is_released_and_allocated_again_gets_the_device_that_is_there(
    bed: Bed, store: SQLiteStore
) -> None:
    ref = allocated_in_store(bed, store)
    replace_gpu(bed)
    release_claim(store, "default", "training")
    assert IDENTITIES not in store.get("DeviceClaim", "default", "training")["metadata"].get("annotations", {})
    (pool,) = [pool for pool in discover(bed.host.root, node_name=bed.name).pools if pool.metadata.name == pool_of(GPU)]
    stored = store.get("DevicePool", None, pool.metadata.name)
    store.replace({**stored, "spec": pool.to_manifest()["spec"]})
    machine_allocator(store).round()
    with on_store(bed, store) as node:
        assert prepare_of_store(node, ref).devices[0].identity["deviceID"] == "0x1eb8"


@pytest.mark.parametrize("note", ["", "[]", '{"node-a-0000-01-00/0000-01-00-0": 7}', "{"])
def test_a_claim_without_a_readable_note_is_prepared_as_by_the_release_before(
    bed: Bed, store: SQLiteStore, note: str
) -> None:
    ref = allocated_in_store(bed, store)
    claim = store.get("DeviceClaim", "default", "training")
    claim["metadata"]["annotations"][IDENTITIES] = note
    if not note:
        del claim["metadata"]["annotations"][IDENTITIES]
    store.replace(claim)
    replace_gpu(bed)
    with on_store(bed, store) as node:
        assert prepare_of_store(node, ref).devices[0].identity["deviceID"] == "0x1eb8"


def test_the_note_of_a_claim_with_very_many_devices_is_left_out() -> None:
    long = {"name": "serial", "stringValue": "x" * 64}
    devices = [{"name": f"d{number}", "attributes": [long]} for number in range(600)]
    pool = {"kind": "DevicePool", "metadata": {"name": "p"}, "spec": {"devices": devices}}
    entries = [{"devicePoolName": "p", "deviceName": f"d{number}"} for number in range(600)]
    noted = PoolAttributes([pool])
    assert noted.identities(entries) is None
    assert json.loads(noted.identities(entries[:2]) or "") == {key: {"serial": "x" * 64} for key in ("p/d0", "p/d1")}
