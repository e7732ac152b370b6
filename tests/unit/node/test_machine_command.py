"""What QEMU is started with: a function of the spec, and what it may not be started with."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devalloc.inventory.pci import BarSizes
from devalloc_machines.qemu import allowed_paths, cloned_disks, confinement, launch, preflight, spawn
from devalloc_machines.qemu.command_line import StartContext, qemu_arguments
from devalloc_machines.qemu.confinement import CpuGroup, QemuLimits, qemu_limits, seen_by_program
from devalloc_machines.qemu.launch import LaunchOptions, check, memlock_needed, seconds_to_answer, spawn_words
from devalloc_machines.qemu.process import Process
from devalloc_machines.qemu.records import MachineRecord
from devalloc_machines.qemu.resources import cpu_limit_of
from devalloc_machines.qemu.settings import AllowedFolder, MachineConfig
from devalloc_machines.qemu.spec import MIB, AmountBounds, Disk, MachineSpec, Nic, machine_id, spec_of
from devalloc_machines.qemu.user_ids import owners_among
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed
from tests.support.machines import virtual_machine
from tests.support.node_errors import raises

GIB = 1 << 30
SPEC = MachineSpec(
    "default",
    "m",
    "uid",
    cpus=AmountBounds(1000, 4000, 2500),
    memory=AmountBounds(512 * MIB, 2 * GIB, GIB),
    kernel="/k",
    initrd="/i",
    append="console=ttyS0",
    pci_slots=9,
)
START = StartContext("qemu", "tcg", "00000000-0000-0000-0000-000000000001", "/k", "/i")


def options(words: list[str], name: str) -> list[str]:
    """The values of all options of a name."""
    return [words[index + 1] for index, word in enumerate(words) if word == name]


def objects(words: list[str], name: str) -> list[dict[str, Any]]:
    return [json.loads(value) for value in options(words, name)]


def test_a_machine_starts_paused_sandboxed_and_with_nothing_that_was_not_asked_for() -> None:
    words = qemu_arguments(SPEC, START)
    assert words[0] == "qemu"
    for flag in ("-S", "-nodefaults", "-no-user-config"):
        assert flag in words
    assert options(words, "-sandbox") == ["on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"]
    assert options(words, "-accel") == ["tcg,thread=multi"]
    assert options(words, "-uuid") == [START.uuid]
    assert not any("iommu" in word for word in words)


def test_what_is_above_the_least_can_leave_again() -> None:
    words = qemu_arguments(SPEC, START)
    assert options(words, "-smp") == ["cpus=1,maxcpus=4,sockets=1,cores=4,threads=1"]
    cpus = [device for device in objects(words, "-device") if device["driver"] == "max-x86_64-cpu"]
    assert [(cpu["id"], cpu["core-id"]) for cpu in cpus] == [("cpu1", 1), ("cpu2", 2)], "2.5 CPUs need three"
    (memory,) = (device for device in objects(words, "-device") if device["driver"] == "virtio-mem-pci")
    assert memory["requested-size"] == GIB - 512 * MIB
    sizes = {each["id"]: each["size"] for each in objects(words, "-object")}
    assert sizes == {"ram0": 512 * MIB, "vmem0-ram": 2 * GIB - 512 * MIB}
    assert options(words, "-m") == [f"size={512 * MIB}B,slots=1,maxmem={2 * GIB}B"]


def test_memory_in_dimms_has_a_slot_for_each_and_those_in_use_from_the_start() -> None:
    words = qemu_arguments(replace(SPEC, dimm_bytes=256 * MIB), START)
    dimms = [device["id"] for device in objects(words, "-device") if device["driver"] == "pc-dimm"]
    assert dimms == ["dimm0", "dimm1"]
    assert "slots=6," in options(words, "-m")[0]


def test_a_machine_whose_memory_never_changes_has_no_room_for_more() -> None:
    words = qemu_arguments(replace(SPEC, memory=AmountBounds(GIB, GIB, GIB)), START)
    assert options(words, "-m") == [f"size={GIB}B"]
    assert not any("virtio-mem" in word for word in words)


def test_every_port_has_a_place_of_its_own_eight_to_a_device() -> None:
    nics = (Nic(), Nic("e1000e", mac="52:54:00:00:00:01"), Nic(interface="tap0"))
    devices = objects(qemu_arguments(replace(SPEC, nics=nics, pci_slots=17), START), "-device")
    ports = [device for device in devices if device["driver"] == "pcie-root-port"]
    assert [port["id"] for port in ports] == [f"port{n}" for n in range(17)]
    assert len({port["chassis"] for port in ports}) == 17
    addresses = [device["addr"] for device in devices if "addr" in device]
    assert len(addresses) == len(set(addresses)) == 21
    firsts = [port for port in ports if port["addr"].endswith(".0")]
    assert [port.get("multifunction", False) for port in firsts] == [True, True, False]


def test_no_two_cards_have_the_same_default_address() -> None:
    machines = (SPEC, replace(SPEC, uid="another"), replace(SPEC, uid=""), replace(SPEC, uid="", node="other"))

    def macs(spec: MachineSpec) -> list[str]:
        devices = objects(qemu_arguments(replace(spec, nics=(Nic(), Nic())), START), "-device")
        return [device["mac"] for device in devices if "netdev" in device]

    all_macs = [mac for spec in machines for mac in macs(spec)]
    assert len(set(all_macs)) == 8
    assert all(int(mac[:2], 16) & 3 == 2 for mac in all_macs), "of one card, and locally administered"
    assert macs(SPEC) == macs(SPEC), "the guest knows its card again after the next start"


def test_disks_are_what_they_were_said_to_be_and_name_no_other_file() -> None:
    disks = (Disk("/d/a", "raw"), Disk("/d/b,c=d", "qcow2", read_only=True, device="nvme"))
    words = qemu_arguments(replace(SPEC, disks=disks), replace(START, block_disks=frozenset({0})))
    nodes = objects(words, "-blockdev")
    assert [node["driver"] for node in nodes] == ["host_device", "raw", "file", "qcow2"]
    assert "backing" in nodes[3]
    assert nodes[3]["backing"] is None
    assert [node["read-only"] for node in nodes] == [False, False, True, True]
    assert not any("/d/" in word for word in words), "they are open when QEMU starts: it opens no path of its own"


def test_nothing_in_a_spec_can_become_another_option() -> None:
    hostile = replace(SPEC, append='a,b=c "quoted" -device x', nics=(Nic(mac='52:54:00:00:00:01","x":"y'),))
    words = qemu_arguments(hostile, START)
    assert options(words, "-append")[0].startswith('a,b=c "quoted" -device x ')
    assert [each["mac"] for each in objects(words, "-device") if "mac" in each] == ['52:54:00:00:00:01","x":"y']


def test_no_path_becomes_several() -> None:
    with pytest.raises(Denied, match="comma"):
        qemu_arguments(SPEC, replace(START, initrd="/images/a,/etc/shadow"))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"claims": ("a", "b"), "pci_slots": 1}, "TooFewPciSlots"),
        ({"pci_slots": 65}, "MachineInvalid"),
        ({"pci_slots": -1}, "MachineInvalid"),
        ({"cpus": AmountBounds(1000, 2000, 3000)}, "MachineInvalid"),
        ({"cpus": AmountBounds(0, 2000, 1000)}, "MachineInvalid"),
        ({"memory": AmountBounds(MIB, GIB, GIB)}, "MachineInvalid"),
        ({"dimm_bytes": 300 * MIB}, "MachineInvalid"),
        ({"kernel": None, "initrd": None, "append": ""}, "MachineInvalid"),
        ({"kernel": None, "disks": (Disk("/d", "raw"),)}, "MachineInvalid"),
        ({"append": "a\nb"}, "MachineInvalid"),
        ({"disks": (Disk("/d", "raw"),) * 240}, "MachineInvalid"),
    ],
)
def test_what_cannot_be_is_denied_before_anything_is_started(change: dict[str, Any], code: str) -> None:
    with raises(Denied, code):
        qemu_arguments(replace(SPEC, **change), START)


def test_huge_pages_are_all_taken_at_once_but_for_those_that_the_guest_has_not_asked_for() -> None:
    spec = replace(SPEC, huge_page_bytes=2 * MIB, numa_node=1)
    ram, hot = (json.loads(word) for word in options(qemu_arguments(spec, START), "-object"))
    common = {"qom-type": "memory-backend-memfd", "hugetlb": True, "hugetlbsize": 2 * MIB, "share": True}
    common |= {"prealloc-threads": 16}
    common |= {"host-nodes": [1], "policy": "bind"}
    assert ram == {**common, "id": "ram0", "size": spec.memory.least, "prealloc": True}
    assert hot == {**common, "id": "vmem0-ram", "size": spec.hot_memory, "prealloc": False, "reserve": False}
    devices = [json.loads(word) for word in options(qemu_arguments(spec, START), "-device")]
    assert [one["prealloc"] for one in devices if one["driver"] == "virtio-mem-pci"] == [True]
    with pytest.raises(Denied, match="multiples of 1Gi"):
        qemu_arguments(replace(spec, huge_page_bytes=GIB, memory=AmountBounds(GIB, 3 * GIB, GIB + 2 * MIB)), START)


def test_a_qemu_that_clears_huge_pages_is_waited_for_longer() -> None:
    config, size = MachineConfig(), 256 * GIB
    huge = replace(SPEC, huge_page_bytes=GIB, memory=AmountBounds(size, size, size), claims=())
    ordinary = replace(huge, huge_page_bytes=None)
    assert seconds_to_answer(ordinary, config, size) == config.start_seconds
    assert seconds_to_answer(huge, config, size) == config.start_seconds + 256
    assert (ordinary.locking_seconds, huge.locking_seconds) == (0, 256)


@pytest.mark.parametrize(("node", "free", "where"), [(None, 7, "this host"), (1, 5, "NUMA node 1 of this host")])
def test_a_machine_starts_only_if_its_huge_pages_are_free_where_it_may_have_them(
    tmp_path: Path, node: int | None, free: int, where: str
) -> None:
    for place, count in (("kernel/mm", 7), ("devices/system/node/node1", 5), ("devices/system/node/node0", 2)):
        folder = tmp_path / "sys" / place / "hugepages/hugepages-2048kB"
        folder.mkdir(parents=True)
        (folder / "free_hugepages").write_text(f"{count}\n")
    spec = replace(SPEC, huge_page_bytes=2 * MIB, numa_node=node)
    preflight.check_huge_pages(spec, GIB, GIB + free * 2 * MIB, tmp_path)
    preflight.check_huge_pages(replace(spec, huge_page_bytes=None), 0, GIB, tmp_path)
    with pytest.raises(Denied, match=rf"needs {free + 2} huge pages of 2Mi, but {where} has {free} free; .* 2 more"):
        preflight.check_huge_pages(spec, GIB, GIB + (free + 2) * 2 * MIB, tmp_path)
    with pytest.raises(Denied, match=f"needs 1 huge pages of 1Gi, but {where} has 0 free"):
        preflight.check_huge_pages(replace(spec, huge_page_bytes=GIB), 0, GIB, tmp_path)


def test_an_iommu_is_there_only_when_asked_for_and_then_each_device_may_lock_all_memory() -> None:
    words = qemu_arguments(replace(SPEC, iommu=True), replace(START, accel="kvm"))
    assert "kernel-irqchip=split" in options(words, "-machine")[0]
    config = MachineConfig()
    assert memlock_needed(SPEC, config) == 3 * GIB
    assert memlock_needed(replace(SPEC, iommu=True), config) == 9 * 2 * GIB + GIB


def test_the_objects_amounts_arrive_in_the_units_of_this_room() -> None:
    machine = virtual_machine(
        "m",
        cpu={"min": "500m", "max": "4", "use": "1500m"},
        memory={"min": "1Gi", "max": "3Gi", "method": "dimm", "slotSize": "1Gi"},
        nics=[{"backend": "tap", "interface": "tap0"}],
        claims=["a"],
        start={"kernel": "/images/vmlinuz", "iommu": True, "numaNode": 1},
    )
    spec = spec_of(machine)
    assert (spec.iommu, spec.numa_node) == (True, 1)
    assert (spec.cpus, spec.memory) == (AmountBounds(500, 4000, 1500), AmountBounds(GIB, 3 * GIB, GIB))
    assert (spec.dimm_bytes, spec.nics, spec.claims, spec.pci_slots) == (GIB, (Nic(interface="tap0"),), ("a",), 5)
    assert spec.key == "default/m"


def test_names_of_machines_become_short_names_of_files_no_two_alike() -> None:
    keys = ["a/b", "a/b-", "a-b/c", "a/" + "x" * 253, "a/" + "x" * 252 + "y", "a/../../etc"]
    ids = [machine_id(key) for key in keys]
    assert len(set(ids)) == len(keys)
    assert all(len(name) <= 40 and not set(name) & set("/.\0") for name in ids)


def test_with_systemd_a_machine_is_a_service_of_its_own_and_else_it_detaches(tmp_path: Path) -> None:
    plan = tmp_path / "plan"
    with_systemd = spawn_words(SPEC, MachineConfig(systemd=True), plan, QemuLimits(1 << 30, 300))
    assert with_systemd[0] == "systemd-run"
    assert f"--unit=devalloc-{SPEC.id}.service" in with_systemd
    assert "--detach" not in with_systemd
    assert "--property=Before=devalloc-guests.service" in with_systemd, "whose guests are asked before they are ended"
    assert "--scope" not in with_systemd
    assert spawn_words(SPEC, MachineConfig(systemd=False), plan, QemuLimits(1, 1))[-2:] == [str(plan), "--detach"]


def test_machines_of_one_name_of_two_plugins_share_no_cgroup_and_no_service() -> None:
    theirs = MachineConfig(state=Path("/srv/other/machines"), systemd=True)
    assert MachineConfig().group(SPEC.id) == SPEC.id
    assert theirs.group(SPEC.id).startswith(f"{SPEC.id}-")
    assert f"--unit=devalloc-{theirs.group(SPEC.id)}.service" in spawn_words(
        SPEC, theirs, Path("/plan"), QemuLimits(1, 1)
    )


@pytest.mark.parametrize("seconds", [60.0, None])
def test_disks_are_copied_before_qemu_starts_and_as_long_as_the_caller_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float | None
) -> None:
    """A caller that does not say how long has no time for a copy."""
    config = MachineConfig(state=tmp_path / "state", run=tmp_path / "run", binary="true", cgroups=tmp_path)
    deadlines: list[Deadline] = []

    def unfinished(spec: MachineSpec, config: MachineConfig, deadline: Deadline) -> None:
        deadlines.append(deadline)
        raise Denied("CopyUnfinished", "it goes on next time")

    monkeypatch.setattr(launch, "_resolved", lambda *_: ([], {}, {}))
    monkeypatch.setattr(cloned_disks, "make", unfinished)
    due = None if seconds is None else Deadline.after(seconds)
    with raises(Denied, "CopyUnfinished"):
        launch.launch(SPEC, config, LaunchOptions(MachineRecord({}, "starting", "uuid"), "tcg"), deadline=due)
    assert [each.passed for each in deadlines] == [seconds is None]
    assert not config.plan(SPEC.id).exists(), "no QEMU was started"


def test_a_folder_in_which_another_machine_listens_is_left_alone(images: Path, tmp_path: Path) -> None:
    """Of another plugin with the same folder for machines; or its life file was removed."""
    config = MachineConfig(
        state=tmp_path / "state",
        run=tmp_path / "run",
        binary="true",
        folders=(AllowedFolder(images, "any"),),
        cgroups=tmp_path,
    )
    spec = replace(SPEC, kernel=str(images / "disk"), initrd=None)
    folder, given = config.folder(spec.id), LaunchOptions(MachineRecord({}, "starting", "uuid"), "tcg")
    folder.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(str(folder / "console"))
        theirs.listen()
        with raises(Denied, "MachineRuns", retryable=True, match="--machine-dir"):
            check(spec, config, given)
        launch.forget(spec.id, config)
        assert (folder / "console").exists()
    check(spec, config, given)
    launch.forget(spec.id, config)
    assert not folder.exists()


def test_a_pipe_in_place_of_an_image_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "disk")
    for writable in (False, True):
        with pytest.raises(OSError, match="not a file"):
            spawn.open_checked(str(tmp_path / "disk"), writable)


def test_whether_kvm_works_is_tried_once_and_a_no_again_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, kvm, tries = MachineConfig(state=tmp_path / "state"), tmp_path / "kvm", [False, True]
    kvm.touch()
    monkeypatch.setattr(preflight, "why_no_boot", lambda *_: "" if tries.pop(0) else "it is too slow")
    verdict = config.state / "kvm.json"
    for _ in range(2):
        assert preflight.choose_accelerator(config, kvm) == "tcg"
    os.utime(verdict, (0, 0))  # which was long ago: the host had just come up, and was busy
    for _ in range(2):
        assert preflight.choose_accelerator(config, kvm) == "kvm"
    os.utime(verdict, (0, 0))
    assert preflight.choose_accelerator(config, kvm) == "kvm", "a yes counts as long as the host runs"
    for damaged in ("", "null", "{}", '{"host": 1}'):
        verdict.write_text(damaged)
        tries.append(True)
        assert preflight.choose_accelerator(config, kvm) == "kvm"
    assert tries == []


# Which files it may name (T13).


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """An allowed folder with a disk in it, beside a secret."""
    folder = tmp_path / "images"
    folder.mkdir()
    (folder / "disk").write_bytes(b"\0" * 512)
    (tmp_path / "secret").write_bytes(b"secret")
    return folder


def test_only_files_below_the_allowed_folders_are_used_and_by_their_true_path(images: Path) -> None:
    (images / "link").symlink_to("disk")
    assert (
        allowed_paths.boot_image(str(images / "link"), [AllowedFolder(images, "any")], "default", "kernel")
        == images / "disk"
    )


@pytest.mark.parametrize("name", ["../secret", "out", "dir/../../secret", "deep/out", "x\0y", "a\nb", "", "relative"])
def test_a_path_that_leads_out_is_refused(images: Path, name: str) -> None:
    (images / "out").symlink_to("../secret")
    (images / "deep").symlink_to("..")
    (images / "dir").mkdir()
    path = name if name in ("", "relative") else f"{images}/{name}"
    with raises(Denied, "PathNotAllowed"):
        allowed_paths.boot_image(path, [AllowedFolder(images, "any")], "default", "kernel")


def test_the_refusal_of_a_path_outside_does_not_show_whether_it_exists(images: Path) -> None:
    """It is refused for good: waiting for it to appear would be in vain."""
    (images / "dangling").symlink_to("../nowhere")
    for path in (images / "dangling", images.parent / "nowhere" / "disk", Path("/no/such/kernel")):
        with raises(Denied, "PathNotAllowed", retryable=False):
            allowed_paths.boot_image(str(path), [AllowedFolder(images, "any")], "default", "kernel")
    with raises(Denied, "PathMissing", retryable=True):
        allowed_paths.boot_image(str(images / "not-yet"), [AllowedFolder(images, "any")], "default", "kernel")


def test_the_example_adopts_from_a_folder_that_is_not_the_plugins_own() -> None:
    text = Path("examples/virtual-machine/machines.yaml").read_text()
    (socket,) = (Path(line.split()[-1]) for line in text.splitlines() if "qmpSocket:" in line)
    assert not socket.is_relative_to(MachineConfig().run), "there it makes and removes what it likes"


def refused(path: Path, folders: list[AllowedFolder], namespace: str, *, read_only: bool = True) -> str | None:
    """Why a namespace may not use a disk; None: it may."""
    try:
        allowed_paths.disk_image(Disk(str(path), "raw", read_only), folders, namespace)
    except Denied as error:
        return f"{error.code}: {error.message}"
    return None


def test_what_lies_below_a_folder_belongs_to_the_namespace_that_it_is_called_like(images: Path) -> None:
    for namespace in ("team-a", "team-b"):
        (images / namespace).mkdir()
        (images / namespace / "disk").write_bytes(b"\0" * 512)
    (images / "team-b" / "link").symlink_to("../team-a/disk")
    (images / "team-b" / "folder").symlink_to("../team-a")
    own = [AllowedFolder(images)]
    for read_only in (True, False):
        assert refused(images / "team-a" / "disk", own, "team-a", read_only=read_only) is None
    for path in ("team-a/disk", "team-b/link", "team-b/folder/disk", "team-a/no-such-disk", "disk"):
        why = refused(images / path, own, "team-b")
        assert why is not None, path
        assert why.startswith("PathNotAllowed: ")
        assert f"put it below {images}/team-b" in why
        assert f"--image-folder {images}:shared" in why
    for namespace in ("", ".", "..", "../images", "team"):
        assert refused(images / "team-a" / "disk", own, namespace), namespace


def test_what_the_admin_shares_all_namespaces_read_and_none_writes(images: Path) -> None:
    (images / "bases").mkdir()
    (images / "bases" / "disk").write_bytes(b"\0" * 512)
    folders = [AllowedFolder(images), AllowedFolder(images / "bases", "shared")]
    for namespace in ("team-a", "bases"):  # a namespace that is called so owns nothing of it
        assert refused(images / "bases" / "disk", folders, namespace) is None
        why = refused(images / "bases" / "disk", folders, namespace, read_only=False)
        assert why is not None
        assert f"put it below {images}/{namespace}, or set readOnly: true" in why
    assert refused(images / "bases" / "disk", [AllowedFolder(images, "any")], "team-a", read_only=False) is None


def test_a_shared_folder_opens_nothing_of_the_namespaces_below_it(images: Path) -> None:
    (images / "of" / "team-a").mkdir(parents=True)
    (images / "of" / "team-a" / "disk").write_bytes(b"\0" * 512)
    folders = [AllowedFolder(images, "shared"), AllowedFolder(images / "of")]
    assert refused(images / "disk", folders, "team-b") is None
    assert refused(images / "of" / "team-a" / "disk", folders, "team-b")
    assert refused(images / "of" / "team-a" / "disk", folders, "team-a", read_only=False) is None


@pytest.mark.parametrize(
    ("interface", "patterns", "namespace", "may"),
    [
        ("team-a.web", (), "team-a", True),
        ("team-a.web", (), "team-b", False),
        ("team-a.web", (), "team", False),
        ("team-a", (), "team-a", False),
        (".web", (), "", False),
        ("vnet-mgmt", (), "team-a", False),
        ("tap0", ("tap*",), "team-a", True),
        ("tap0", ("team-b:tap*",), "team-a", False),
        ("tap0", ("team-b:tap*", "team-a:tap0"), "team-a", True),
        ("team-b.web", ("tap*",), "team-a", False),
    ],
)
def test_a_tap_belongs_to_the_namespace_that_it_is_named_for_or_that_the_admin_says(
    interface: str, patterns: tuple[str, ...], namespace: str, may: bool
) -> None:
    with pytest.raises(Denied) as denied:
        allowed_paths.checked_tap(interface, patterns, namespace)
    assert denied.value.code == ("TapMissing" if may else "TapNotAllowed"), "there is no such interface here"
    if not may and namespace:
        assert f"--tap {namespace}:{interface}" in denied.value.message


def test_cards_of_qemus_own_network_reach_nothing_unless_the_admin_says_so() -> None:
    spec = replace(SPEC, nics=(Nic(), Nic(interface="tap0")))
    closed, tap = objects(qemu_arguments(spec, START), "-netdev")
    assert (closed["type"], closed["restrict"], closed["ipv6"]) == ("user", True, False)
    assert tap["type"] == "tap"
    assert objects(qemu_arguments(spec, replace(START, user_net=True)), "-netdev")[0] == {"type": "user", "id": "nic0"}


def test_without_allowed_folders_nothing_can_be_named(images: Path) -> None:
    with raises(Denied, "PathNotAllowed", match="none"):
        allowed_paths.boot_image(str(images / "disk"), [], "default", "kernel")
    sibling = images.parent / "images-of-others"
    sibling.mkdir()
    (sibling / "disk").touch()
    with pytest.raises(Denied):
        allowed_paths.boot_image(str(sibling / "disk"), [AllowedFolder(images, "any")], "default", "kernel")


def test_only_files_are_kernels_and_only_files_and_block_devices_are_disks(images: Path) -> None:
    os.mkfifo(images / "pipe")
    for path in (images, images / "pipe"):
        with pytest.raises(Denied, match="is not a file"):
            allowed_paths.boot_image(str(path), [AllowedFolder(images, "any")], "default", "kernel")
        with pytest.raises(Denied, match="neither"):
            allowed_paths.disk_image(Disk(str(path), "raw"), [AllowedFolder(images, "any")], "default")


def qcow2(backing: int = 0, incompatible: int = 0, version: int = 3) -> bytes:
    return b"QFI\xfb" + struct.pack(">IQ", version, backing) + b"\0" * 56 + struct.pack(">Q", incompatible)


@pytest.mark.parametrize(
    ("content", "format", "code"),
    [
        (b"\0" * 512, "qcow2", "DiskFormat"),
        (b"", "qcow2", "DiskFormat"),
        (qcow2(backing=112), "qcow2", "DiskNamesOthers"),
        (qcow2(incompatible=4), "qcow2", "DiskNamesOthers"),
        (qcow2(backing=112, version=2), "qcow2", "DiskNamesOthers"),
        (qcow2(), "vmdk", "DiskFormat"),
        (qcow2(), "", "DiskFormat"),
    ],
)
def test_a_disk_of_another_format_or_that_names_another_file_is_refused(
    images: Path, content: bytes, format: Any, code: str
) -> None:
    (images / "disk").write_bytes(content)
    with raises(Denied, code):
        allowed_paths.disk_image(Disk(str(images / "disk"), format), [AllowedFolder(images, "any")], "default")


def test_an_image_that_stands_alone_is_fine_and_a_raw_one_is_never_looked_into(images: Path) -> None:
    for content, format in ((qcow2(), "qcow2"), (qcow2(incompatible=1), "qcow2"), (qcow2(backing=112), "raw")):
        (images / "disk").write_bytes(content)
        assert (
            allowed_paths.disk_image(Disk(str(images / "disk"), format), [AllowedFolder(images, "any")], "default")
            == images / "disk"
        )  # type: ignore[arg-type]


def test_what_a_start_needs_is_checked_before_anything_is_made(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = replace(SPEC, kernel=str(images / "disk"), initrd=None)
    given = LaunchOptions(MachineRecord({}, "starting", "u"), "tcg")
    config = MachineConfig(
        state=tmp_path / "state", run=tmp_path / "run", binary="/bin/true", folders=(AllowedFolder(images, "any"),)
    )
    check(spec, config, given)
    for broken, code in (
        (replace(config, binary="no-such-qemu"), "QemuMissing"),
        (replace(config, run=tmp_path / ("x" * 100)), "PathTooLong"),
        (replace(config, folders=()), "PathNotAllowed"),
    ):
        with raises(Denied, code):
            check(spec, broken, given)
    for is_pod, advice in (
        (False, "install qemu-system-x86 .*--qemu"),
        (True, "the plugin's pod has no QEMU by design"),
    ):
        if is_pod:
            monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
        else:
            monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        with pytest.raises(Denied, match=f"there is no program no-such-qemu; {advice}"):
            check(spec, replace(config, binary="no-such-qemu"), given)
    for interface, code in (("default.none", "TapMissing"), ("no-such-tap", "TapNotAllowed")):
        with raises(Denied, code):
            check(replace(spec, nics=(Nic(interface=interface),)), config, given)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images", "secret"]


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Of a host with 8 GiB, 2 GiB of swap and 39 address bits."""
    (tmp_path / "meminfo").write_text("MemTotal:        8388608 kB\nMemFree:  1 kB\nSwapTotal:       2097152 kB\n")
    (tmp_path / "cpuinfo").write_text("processor\t: 0\naddress sizes\t: 39 bits physical, 48 bits virtual\n")
    return tmp_path


@pytest.mark.parametrize(
    ("least", "most", "accel", "words"),
    [
        (10 * GIB, 10 * GIB, "kvm", None),
        (10 * GIB + 2 * MIB, 20 * GIB, "kvm", "has 10240Mi including swap; lower memory.min"),
        (GIB, 511 * GIB, "kvm", None),
        (GIB, 512 * GIB, "kvm", "less than 524288Mi; lower memory.max"),
        (GIB, 1023 * GIB, "tcg", None),
        (GIB, 64 << 40, "tcg", "less than 1048576Mi; lower memory.max"),
    ],
)
def test_a_machine_that_this_host_can_never_have_is_refused_for_good(
    proc: Path, least: int, most: int, accel: Any, words: str | None
) -> None:
    spec = replace(SPEC, memory=AmountBounds(least, most, least))
    if words is None:
        preflight.check_host_limits(spec, accel, proc)
        return
    with raises(Denied, "MachineTooLarge", retryable=False, match=words):
        preflight.check_host_limits(spec, accel, proc)


def test_memory_of_a_numa_node_that_is_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "node0").mkdir()
    preflight.check_host_limits(replace(SPEC, numa_node=0), "kvm", tmp_path, tmp_path)
    with pytest.raises(Denied, match=r"NUMA node 1, .* choose another start\.numaNode"):
        preflight.check_host_limits(replace(SPEC, numa_node=1), "kvm", tmp_path, tmp_path)


def test_a_host_that_does_not_say_how_large_it_is_bounds_nothing(tmp_path: Path) -> None:
    preflight.check_host_limits(replace(SPEC, memory=AmountBounds(1 << 50, 1 << 50, 1 << 50)), "kvm", tmp_path)


class Gone:
    """The monitor of a QEMU that has ended."""

    def execute(self, *_: Any, **__: Any) -> Any:
        raise Failed("MonitorUnreachable", "the port is closed")


@pytest.mark.parametrize(
    ("words", "again"),
    [
        ("Invalid SMP CPUs 300. The max CPUs supported by machine 'pc-q35-7.2' is 288", False),
        ("Address space limit 0xffffffffff < 0x41083fffffff phys-bits too low (40)", False),
        ("cannot set up guest memory 'ram0': Cannot allocate memory", True),
    ],
)
def test_what_qemu_will_never_have_is_not_to_be_tried_again(tmp_path: Path, words: str, again: bool) -> None:
    config = MachineConfig(state=tmp_path / "state", run=tmp_path / "run")
    config.folder(SPEC.id).mkdir(parents=True)
    (config.folder(SPEC.id) / "qemu.log").write_text(f"qemu-system-x86_64: {words}\n")
    with raises(Failed, "MachineDidNotStart", retryable=again, match="did not start: qemu-system"):
        launch.await_monitor(SPEC, config, Gone(), Deadline.after(5))  # type: ignore[arg-type]


def test_a_machine_is_not_started_on_an_image_that_another_one_writes_to(images: Path, tmp_path: Path) -> None:
    image = images / "disk"
    image.write_bytes(b"content".ljust(4096))
    config = MachineConfig(
        state=tmp_path / "state", run=tmp_path / "run", binary="true", folders=(AllowedFolder(images, "any"),)
    )
    spec = replace(SPEC, disks=(Disk(str(image), "raw"),), kernel=None, initrd=None, append="", nics=())
    given = LaunchOptions(MachineRecord({}, "starting", "uuid"), "tcg")
    check(spec, config, given)
    with image.open("rb") as other:
        fcntl.fcntl(other, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, 201, 1, 0))
        with raises(Denied, "DiskInUse", retryable=True):
            check(spec, config, given)
    check(spec, config, given)


def test_qemu_is_bounded_far_above_what_it_needs(tmp_path: Path) -> None:
    spec = replace(SPEC, cpus=AmountBounds(1000, 8000, 1000), memory=AmountBounds(GIB, 64 * GIB, GIB))
    kvm, tcg = (qemu_limits(spec, accel, devices=BarSizes(other=16 << 20)) for accel in ("kvm", "tcg"))
    assert 65 * GIB < kvm.memory < 67 * GIB, "all memory that its guest can ever have, and some for QEMU itself"
    assert tcg.memory == kvm.memory + GIB, "and the translated code of its CPUs"
    assert kvm.tasks == 256 + 16
    words = spawn_words(SPEC, MachineConfig(systemd=True), tmp_path, kvm)
    assert f"--property=MemoryMax={kvm.memory}" in words
    assert "--property=TasksMax=272" in words


BARS = {
    "four A100 80GB": (4, BarSizes(prefetchable=(128 << 30) + (32 << 20), other=16 << 20)),
    "eight MI300X": (8, BarSizes(prefetchable=256 << 30, other=1 << 20)),
    "a device that is not known yet": (1, None),
    "eight of those": (8, None),
}
ALL_TABLES = 3
"""QEMU's, KVM's and the IOMMU's, of 8 bytes for each 4 KiB."""


@pytest.mark.parametrize("devices", BARS)
def test_qemus_bound_has_room_for_the_page_tables_of_its_devices(devices: str) -> None:
    """harvester#7223: a machine of 32 GiB with four A100 was killed at 33.98 GiB, 1.82 GiB of them the kernel's."""
    slots, bars = BARS[devices]
    spec = replace(SPEC, pci_slots=slots, memory=AmountBounds(32 * GIB, 32 * GIB, 32 * GIB))
    limit = qemu_limits(spec, "kvm", devices=bars).memory
    tables = ALL_TABLES * (32 * GIB + slots * (bars.total if bars else 128 << 30)) // 512
    assert limit - 32 * GIB > tables + GIB
    assert limit > 35634176 * 1024


def test_each_part_of_a_machine_that_takes_memory_of_its_host_raises_qemus_bound() -> None:
    def bound(bars: int = 1 << 30, slack: int = GIB, **changes: Any) -> int:
        return qemu_limits(replace(SPEC, pci_slots=4, **changes), "kvm", slack, BarSizes(prefetchable=bars)).memory

    least = bound()
    assert bound(2 << 30) > least, "larger devices"
    assert bound(slack=2 * GIB) == least + GIB, "what the admin adds"
    assert bound(iommu=not SPEC.iommu) != least, "tables of an IOMMU for each device"
    assert bound(nics=(Nic(),)) > least, "network cards"
    without = qemu_limits(replace(SPEC, pci_slots=0), "kvm")
    assert without == qemu_limits(replace(SPEC, pci_slots=0), "kvm", devices=BarSizes(prefetchable=1 << 40))


OWN = ("m-1", "devalloc-m-1.service")
GROUPS = {
    "version 2": ("0::/devalloc/m-1\n", "devalloc/m-1/memory.max"),
    "version 2, a service": (
        "0::/devalloc.slice/devalloc-machines.slice/devalloc-m-1.service\n",
        "devalloc.slice/devalloc-machines.slice/devalloc-m-1.service/memory.max",
    ),
    "version 1": ("3:cpu,cpuacct:/devalloc/m-1\n2:memory:/devalloc/m-1\n", "memory/devalloc/m-1/memory.limit_in_bytes"),
}


@pytest.mark.parametrize("version", GROUPS)
def test_a_larger_device_raises_the_bound_of_a_machine_that_runs(tmp_path: Path, version: str) -> None:
    lines, place = GROUPS[version]
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/cgroup").write_text(lines)
    file = tmp_path / "cgroup" / place
    file.parent.mkdir(parents=True)
    file.write_text(str(4 * GIB))
    assert confinement.memory_bound(tmp_path / "cgroup", 7, *OWN, tmp_path / "proc") == file
    assert confinement.raise_memory_bound(file, 6 * GIB)
    assert file.read_text() == str(6 * GIB)
    assert not confinement.raise_memory_bound(file, 5 * GIB), "it is never lowered"
    file.write_text("max")
    assert not confinement.raise_memory_bound(file, 5 * GIB)


FOREIGN = {
    "none": "/",
    "a user's": "/user.slice/qemu",
    "the plugin's own": "/system.slice/devalloc-node.service",
    "that of another machine": "/devalloc.slice/devalloc-machines.slice/devalloc-m-2.service",
    "another one of our cgroups": "/devalloc/m-2",
}


@pytest.mark.parametrize("place", FOREIGN)
def test_the_bound_of_a_cgroup_that_is_not_the_machines_is_left_alone(tmp_path: Path, place: str) -> None:
    """QEMU is in the plugin's cgroup where it can have none of its own."""
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/cgroup").write_text(f"0::{FOREIGN[place]}\n")
    file = tmp_path / "cgroup" / FOREIGN[place].lstrip("/") / "memory.max"
    file.parent.mkdir(parents=True)
    file.write_text("1")
    assert confinement.memory_bound(tmp_path / "cgroup", 7, *OWN, tmp_path / "proc") is None


@pytest.mark.parametrize("lines", ["", "0::/../devalloc/m-1\n"])
def test_a_process_that_has_ended_or_is_out_of_sight_has_no_bound(tmp_path: Path, lines: str) -> None:
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/cgroup").write_text(lines)
    outside = tmp_path / "devalloc/m-1/memory.max"
    (tmp_path / "cgroup").mkdir()
    outside.parent.mkdir(parents=True)
    outside.write_text("1")
    assert confinement.memory_bound(tmp_path / "cgroup", 7, *OWN, tmp_path / "proc") is None


def test_qemu_sees_its_programs_devices_and_what_it_opens_itself(tmp_path: Path) -> None:
    program = tmp_path / "qemu-10" / "bin" / "qemu"
    program.parent.mkdir(parents=True)
    program.touch()
    (tmp_path / "link").symlink_to(program)
    (tmp_path / "more").symlink_to("where")
    (tmp_path / "where").mkdir()
    (tmp_path / "folder").mkdir()
    (tmp_path / "kernel").touch()
    files = [str(tmp_path / "kernel"), str(tmp_path / "no-such-file")]
    seen = dict(seen_by_program(str(program), files, tmp_path / "folder", [tmp_path / "more"]))
    own = {path.removeprefix(f"{tmp_path}/"): access for path, access in seen.items() if path.startswith(str(tmp_path))}
    assert own == {"qemu-10": "read", "more": "as-is", "where": "as-is", "folder": "write", "kernel": "read"}
    assert {path: seen[path] for path in ("/usr", "/dev", "/sys", "/proc")} == {
        "/usr": "read", "/dev": "as-is", "/sys": "as-is", "/proc": "as-is",
    }  # fmt: skip
    assert not {"/", "/etc", "/root", "/home", "/var", "/run", "/tmp"} & seen.keys()
    assert list(seen) == sorted(seen), "what lies in another one comes after it"


def test_users_of_machines_belong_to_no_other_account(tmp_path: Path) -> None:
    (tmp_path / "passwd").write_text("root:x:0:0::/root:/bin/sh\nbroken\nann:x:2146435080:1::/:/bin/sh\n")
    (tmp_path / "subuid").write_text("bob:100000:65536\n1000:2146436000:10\n\n")

    def owners(*among: int) -> list[str]:
        return owners_among(range(*among), tmp_path / "passwd", tmp_path / "subuid")

    assert owners(3_000_000_000, 3_000_001_000) == []
    (pods, containers) = owners(100_000, 101_000)
    assert "the kubelet gives 65536-7274495 to pods" in pods
    assert "100000-165535 belong to containers of bob" in containers
    assert [text.split()[0] for text in owners(2_146_435_072, 2_146_437_072)] == ["2146435080", "2146436000-2146436009"]
    assert owners_among(MachineConfig().users or range(0), tmp_path / "none", tmp_path / "none") == []
    assert owners_among(range(70000, 71000), tmp_path / "none", tmp_path / "none"), "where they were before"


@pytest.mark.parametrize(
    ("name", "share"), [("own", 1500), ("devalloc-own.service", 1500), ("devalloc-node.service", None), ("", None)]
)
def test_only_a_cgroup_of_its_own_bounds_a_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, share: int | None
) -> None:
    """Where it could be given none, it is in the plugin's, whose bound is not the machine's."""
    config = MachineConfig(state=tmp_path / "state", run=tmp_path / "run", binary="true", cgroups=tmp_path)
    folder = tmp_path / name.replace("own", config.group(SPEC.id))
    folder.mkdir(exist_ok=True)
    (folder / "cpu.max").write_text("150000 100000")
    group = CpuGroup(2, folder) if name else None
    monkeypatch.setattr("devalloc_machines.qemu.confinement.group_of", lambda root, pid: group)
    assert cpu_limit_of(SPEC, config, Process(4711, 1)) == share
