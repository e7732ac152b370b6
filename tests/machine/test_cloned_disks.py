"""Must show, with real QEMU: disks of machines that begin as one image, and are their own."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from devalloc.api.virtual_machine import VirtualMachine
from devalloc_machines.qemu.cloned_disks import CLUSTER, empty_overlay
from devalloc_machines.qemu.lifecycle import MachineLifecycle
from devalloc_machines.qemu.settings import MachineConfig
from devalloc_node.errors import Denied
from tests.support.deadlines import soon
from tests.support.guest import Guest
from tests.support.images import Image
from tests.support.machines import MIB, open_folder, plugin, virtual_machine
from tests.support.node_errors import raises

SIZE = 12 * MIB


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o711)
    return tmp_path


def with_clones(name: str, image: Image, *disks: tuple[Path, str, str]) -> VirtualMachine:
    """A machine with clones of images: path, format and mode."""
    start = {
        "kernel": str(image.kernel),
        "initrd": str(image.initrd),
        "append": virtual_machine(name).to_manifest()["spec"]["start"]["append"],
        "disks": [{"path": str(path), "format": image_format, "clone": mode} for path, image_format, mode in disks],
    }
    return virtual_machine(name, start=start, disk="64Mi", memory={"min": "128Mi", "max": "128Mi"})


@contextmanager
def guest_of(machines: MachineLifecycle, vm: VirtualMachine) -> Iterator[Guest]:
    key = "/".join(vm.key)
    machines.start(vm, soon())
    machines.resume(key, soon())
    with closing(Guest(machines.config.folder(machines.record_for(key).spec.id) / "agent")) as guest:
        guest.until("[ -b /dev/vda ]")
        yield guest
    machines.stop(key, 0, True, soon())


def write(guest: Guest, disk: str, at: int, text: str) -> None:
    guest.check(f"printf {text} | dd of={disk} bs=512 seek={at} conv=notrunc,sync 2>/dev/null && sync")


def read(guest: Guest, disk: str, at: int) -> str:
    return guest.check(f"dd if={disk} bs=512 skip={at} count=1 2>/dev/null | tr -d '\\0'")


def qcow2_with(data: bytes) -> bytes:
    """A standalone qcow2 image that begins with ``data``: its second level table is the fifth cluster, its data the
    next."""
    content = bytearray(empty_overlay(SIZE, b"x", "raw")[: 4 * CLUSTER]) + bytearray(2 * CLUSTER)
    content[8:20] = bytes(12)  # no backing file
    struct.pack_into(">Q", content, 3 * CLUSTER, 4 * CLUSTER | 1 << 63)
    struct.pack_into(">Q", content, 4 * CLUSTER, 5 * CLUSTER | 1 << 63)
    struct.pack_into(">2H", content, 2 * CLUSTER + 8, 1, 1)
    content[5 * CLUSTER : 5 * CLUSTER + len(data)] = data
    return bytes(content)


def test_what_machines_write_to_clones_of_one_image_is_theirs_alone_and_survives_their_restarts(
    settings: MachineConfig, micro: Image, folder: Path
) -> None:
    image = folder / "base.raw"
    image.write_bytes(b"from the image".ljust(SIZE, b"\0"))
    before = image.read_bytes()
    settings = replace(settings, folders=(*settings.folders, open_folder(folder)))
    last = SIZE // 512 - 1
    with plugin(settings) as machines:
        first, second = (with_clones(n, micro, (image, "raw", m)) for n, m in (("a", "overlay"), ("b", "copy")))
        with guest_of(machines, first) as one, guest_of(machines, second) as other:
            assert one.check("blockdev --getsize64 /dev/vda || cat /sys/block/vda/size") in (
                str(SIZE),
                str(SIZE // 512),
            )
            for guest, text in ((one, "first"), (other, "second")):
                assert read(guest, "/dev/vda", 0) == "from the image"
                write(guest, "/dev/vda", 0, text)
                write(guest, "/dev/vda", last, f"end-of-{text}")
        with guest_of(machines, first) as one, guest_of(machines, second) as other:
            for guest, text in ((one, "first"), (other, "second")):
                assert [read(guest, "/dev/vda", at) for at in (0, last)] == [text, f"end-of-{text}"]
        assert image.read_bytes() == before
        made = sorted(path.suffix for path in settings.state.glob("*.disks/*"))
        assert made == [".copy", ".json", ".json", ".overlay"]
        for name in ("a", "b"):
            machines.forget(f"default/{name}", soon())
    assert not list(settings.state.glob("*.disks"))


def test_an_overlay_over_a_qcow2_image_reads_it_as_qcow2_and_never_what_it_names(
    settings: MachineConfig, micro: Image, folder: Path
) -> None:
    image = folder / "image.qcow2"
    image.write_bytes(qcow2_with(b"in-qcow2"))
    settings = replace(settings, folders=(*settings.folders, open_folder(folder)))
    with plugin(settings) as machines:
        before = image.read_bytes()
        user = with_clones("user", micro, (image, "qcow2", "overlay"))
        with guest_of(machines, user) as guest:
            assert read(guest, "/dev/vda", 0) == "in-qcow2"
            write(guest, "/dev/vda", 0, "changed")
        (own,) = settings.state.glob("*.disks/*.overlay")
        # A compromised QEMU could write any name into the header of its overlay: it is not opened.
        damaged = bytearray(own.read_bytes())
        name = damaged.index(str(image).encode())
        damaged[name : name + len(str(image))] = b"/etc/shadow".ljust(len(str(image)), b"x")
        own.write_bytes(damaged)
        with guest_of(machines, user) as guest:
            assert read(guest, "/dev/vda", 0) == "changed"
        assert image.read_bytes() == before
        image.write_bytes(before + b"x")
        with raises(Denied, "ImageChanged", match="was changed or replaced"):
            machines.start(user, soon())
