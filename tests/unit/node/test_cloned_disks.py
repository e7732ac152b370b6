"""Disks that machines have of their own: what is made and refused, and that no half-made one is ever used."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devalloc_machines.qemu import cloned_disks, machine_files
from devalloc_machines.qemu.cloned_disks import CLUSTER, clone_path, empty_overlay, folder_of
from devalloc_machines.qemu.settings import AllowedFolder, MachineConfig
from devalloc_machines.qemu.spec import AmountBounds, Disk, MachineSpec
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied
from tests.support.deadlines import soon
from tests.support.node_errors import raises

GIB, MIB = 1 << 30, 1 << 20
BOUNDS = AmountBounds(1000, 1000, 1000)


def spec_with(*disks: Disk, reserved: int = 64 * MIB) -> MachineSpec:
    return MachineSpec("default", "m", "uid", BOUNDS, BOUNDS, disks=disks, disk_bytes=reserved)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "images" / "base.raw"
    path.parent.mkdir()
    path.write_bytes(os.urandom(3 * MIB))
    return path


@pytest.fixture
def config(tmp_path: Path, image: Path) -> MachineConfig:
    return MachineConfig(
        state=tmp_path / "state", run=tmp_path / "run", folders=(AllowedFolder(image.parent, "shared"),)
    )


def made(spec: MachineSpec, config: MachineConfig) -> dict[str, bytes]:
    folder = folder_of(spec.id, config)
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


def only(spec: MachineSpec, config: MachineConfig) -> Path:
    return clone_path(spec.disks[0], folder_of(spec.id, config))


def test_an_overlay_is_a_qcow2_over_its_image(image: Path, config: MachineConfig) -> None:
    spec = spec_with(Disk(str(image), "raw", clone="overlay"))
    cloned_disks.check(spec, config)
    cloned_disks.make(spec, config, soon())
    content = only(spec, config).read_bytes()
    magic, version, at, length, bits, size = struct.unpack_from(">4sIQIIQ", content)
    assert (magic, version, bits, size) == (b"QFI\xfb", 3, 16, 3 * MIB)
    assert content[at : at + length] == str(image).encode()
    assert oct(only(spec, config).stat().st_mode & 0o777) == "0o600"
    assert oct(folder_of(spec.id, config).stat().st_mode & 0o777) == "0o700"


@settings(deadline=None)
@given(size=st.integers(0, cloned_disks.MAX_BYTES), name=st.binary(min_size=1, max_size=1023))
def test_the_tables_of_an_overlay_are_where_its_header_says_and_count_all_clusters(size: int, name: bytes) -> None:
    content = empty_overlay(size, name, "qcow2")
    assert len(content) % CLUSTER == 0
    (virtual,) = struct.unpack_from(">Q", content, 24)
    l1_entries, l1_at, counts_table, clusters = struct.unpack_from(">IQQI", content, 36)
    order, header = struct.unpack_from(">II", content, 96)
    assert (virtual - size) in range(512)
    assert l1_entries * (CLUSTER // 8) * CLUSTER >= virtual
    assert l1_at + l1_entries * 8 <= len(content)
    assert (order, header, clusters) == (4, 104, 1)
    (block,) = struct.unpack_from(">Q", content, counts_table)
    counts = struct.unpack_from(f">{CLUSTER // 2}H", content, block)
    used = len(content) // CLUSTER
    assert counts == (1,) * used + (0,) * (CLUSTER // 2 - used)
    assert not any(content[l1_at:])
    assert used == 3 + -(-l1_entries * 8 // CLUSTER), "and no more than it needs"


def test_a_copy_has_all_of_the_image_and_its_holes(image: Path, config: MachineConfig) -> None:
    with image.open("r+b") as file:
        file.truncate(40 * MIB)
        file.seek(36 * MIB)
        file.write(b"far behind a hole")
    spec = spec_with(Disk(str(image), "raw", clone="copy"))
    cloned_disks.make(spec, config, soon())
    assert only(spec, config).read_bytes() == image.read_bytes()
    assert only(spec, config).stat().st_blocks <= image.stat().st_blocks + 64


def test_what_the_machine_wrote_stays_and_a_start_makes_only_what_is_missing(
    image: Path, config: MachineConfig
) -> None:
    spec = spec_with(Disk(str(image), "raw", clone="copy"))
    cloned_disks.make(spec, config, soon())
    only(spec, config).write_bytes(b"of the guest")
    image.write_bytes(b"a newer image")  # a copy does not care
    cloned_disks.check(spec, config)
    cloned_disks.make(spec, config, soon())
    assert only(spec, config).read_bytes() == b"of the guest"
    image.unlink()
    cloned_disks.check(spec, config)
    cloned_disks.make(spec, config, soon())
    assert cloned_disks.image_of(spec.disks[0], spec, config) == only(spec, config)


def test_a_copy_that_has_no_time_left_goes_on_where_it_was(
    image: Path, config: MachineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloned_disks, "_CHUNK", MIB)
    monkeypatch.setattr(cloned_disks, "_shares_blocks", lambda source, target: False)
    spec, left = spec_with(Disk(str(image), "raw", clone="copy")), [1]
    copied: list[int] = []
    real = cloned_disks._copy_chunk

    def chunk(source: int, target: int, done: int, size: int) -> int:
        left[0] -= 1
        copied.append(done)
        return real(source, target, done, size)

    class Passing(Deadline):
        @property
        def passed(self) -> bool:
            return left[0] <= 0

    monkeypatch.setattr(cloned_disks, "_copy_chunk", chunk)
    for _ in range(2):
        left[0] = 1
        with raises(Denied, "CopyUnfinished", retryable=True):
            cloned_disks.make(spec, config, Passing(0.0))
        assert not only(spec, config).exists()
    left[0] = 9
    cloned_disks.make(spec, config, Passing(0.0))
    assert copied == [0, MIB, 2 * MIB]
    assert only(spec, config).read_bytes() == image.read_bytes()


def test_what_was_copied_of_another_image_or_before_a_reboot_is_not_gone_on_with(
    image: Path, config: MachineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloned_disks, "_shares_blocks", lambda source, target: False)
    spec = spec_with(Disk(str(image), "raw", clone="copy"))
    part = only(spec, config).with_suffix(".new")
    for spoil in (lambda: os.utime(part, (1, 1)), lambda: image.write_bytes(b"another one" * 100)):
        with pytest.raises(Denied):
            cloned_disks.make(spec, config, Deadline.after(-1.0))
        part.write_bytes(b"half of something else")
        spoil()
        cloned_disks.make(spec, config, soon())
        assert only(spec, config).read_bytes() == image.read_bytes()
        only(spec, config).unlink()


@pytest.mark.parametrize("mode", ["overlay", "copy"])
def test_disks_that_can_outgrow_what_is_reserved_are_refused_with_both_numbers(
    image: Path, config: MachineConfig, mode: Any
) -> None:
    disk = Disk(str(image), "raw", clone=mode)
    most = cloned_disks.most_bytes(disk, image)
    cloned_disks.check(spec_with(disk, reserved=most), config)
    with raises(
        Denied, "DiskTooSmall", match=f"up to {most} bytes, but its spec.disk reserves {most - 1}: set disk to"
    ):
        cloned_disks.check(spec_with(disk, reserved=most - 1), config)


def test_a_copy_that_does_not_fit_the_file_system_is_refused_before_it_begins(
    image: Path, config: MachineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.statvfs

    class Full:
        def __init__(self, path: Any) -> None:
            self.f_frsize, self.f_bavail = real(path).f_frsize, 3

    monkeypatch.setattr(cloned_disks.os, "statvfs", Full)
    with raises(Denied, "HostDiskFull", retryable=True, match="take 3Mi at once, but the file system"):
        cloned_disks.check(spec_with(Disk(str(image), "raw", clone="copy")), config)


def qcow2(size: int, *, backing: bytes = b"") -> bytes:
    content = bytearray(empty_overlay(size, backing or b"x", "raw"))
    if not backing:
        content[8:20] = bytes(12)
    return bytes(content)


@pytest.mark.parametrize(
    ("content", "image_format", "code"),
    [
        (qcow2(MIB, backing=b"/etc/shadow"), "qcow2", "DiskNamesOthers"),
        (b"raw bytes", "qcow2", "DiskFormat"),
        (qcow2(MIB)[:24] + struct.pack(">Q", 1 << 63) + qcow2(MIB)[32:], "qcow2", "DiskFormat"),
        (qcow2(MIB)[:24] + struct.pack(">Q", 511) + qcow2(MIB)[32:], "qcow2", "DiskFormat"),
        (qcow2(63 << 40), "qcow2", "DiskTooSmall"),
    ],
)
def test_images_that_name_other_files_or_lie_about_themselves_get_no_overlay(
    image: Path, config: MachineConfig, content: bytes, image_format: Any, code: str
) -> None:
    image.write_bytes(content)
    with raises(Denied, code):
        cloned_disks.check(spec_with(Disk(str(image), image_format, clone="overlay")), config)


def test_a_raw_image_that_looks_like_qcow2_is_raw(image: Path, config: MachineConfig) -> None:
    image.write_bytes(qcow2(GIB, backing=b"/etc/shadow"))
    disk = Disk(str(image), "raw", clone="overlay")
    assert cloned_disks.guest_bytes(disk, image) == image.stat().st_size
    cloned_disks.check(spec_with(disk), config)


def test_images_outside_of_the_admins_folders_and_other_files_are_refused(
    tmp_path: Path, image: Path, config: MachineConfig
) -> None:
    (tmp_path / "secret").write_bytes(bytes(MIB))
    (image.parent / "link").symlink_to(tmp_path / "secret")
    for path, code in ((tmp_path / "secret", "PathNotAllowed"), (image.parent / "link", "PathNotAllowed"),
                       (image.parent, "PathNotFile"), (image.parent / "none", "PathMissing")):  # fmt: skip
        with raises(Denied, code):
            cloned_disks.check(spec_with(Disk(str(path), "raw", clone="copy")), config)


def test_an_overlay_is_not_used_over_another_image(image: Path, config: MachineConfig) -> None:
    spec = spec_with(Disk(str(image), "raw", clone="overlay"))
    cloned_disks.make(spec, config, soon())
    cloned_disks.check(spec, config)
    image.write_bytes(bytes(3 * MIB))
    for act in (lambda: cloned_disks.check(spec, config), lambda: cloned_disks.make(spec, config, soon())):
        with raises(Denied, "ImageChanged"):
            act()


def test_disks_that_the_spec_names_no_more_go_at_the_next_start_and_all_with_the_machine(
    image: Path, config: MachineConfig
) -> None:
    overlay, copy = (Disk(str(image), "raw", clone=mode) for mode in ("overlay", "copy"))
    cloned_disks.make(spec_with(overlay), config, soon())
    cloned_disks.make(spec_with(copy), config, soon())
    assert sorted(Path(name).suffix for name in made(spec_with(copy), config)) == [".copy", ".json"]
    cloned_disks.make(spec_with(), config, soon())
    assert made(spec_with(), config) == {}
    machine_files.remove_folder(config.disks(spec_with().id))
    assert not config.disks(spec_with().id).exists()
    cloned_disks.make(spec_with(), config, soon())
    assert not config.disks(spec_with().id).exists(), "machines without such disks have no folder for them"


CALLS = ((machine_files, "write_synced"), *((cloned_disks, name) for name in ("_copy", "_finish", "_remove_file")))


@pytest.mark.parametrize("mode", ["overlay", "copy"])
@pytest.mark.parametrize("how", ["before", "after", "half"])
def test_whatever_call_it_is_cut_off_at_the_next_try_makes_whole_disks(
    image: Path, config: MachineConfig, monkeypatch: pytest.MonkeyPatch, mode: Any, how: str
) -> None:
    """``half``: the file that was being written has half of its bytes, as after a kill in the middle of it."""
    monkeypatch.setattr(cloned_disks, "_shares_blocks", lambda source, target: False)
    undisturbed = replace(config, state=config.state / "undisturbed")
    spec = spec_with(Disk(str(image), "raw", clone=mode))
    cloned_disks.make(spec, undisturbed, soon())
    for number in range(100):
        state = replace(config, state=config.state / f"{number}")
        count = [number]
        with monkeypatch.context() as patch:
            for module, name in CALLS:
                patch.setattr(module, name, _cut_off(getattr(module, name), count, how))
            try:
                cloned_disks.make(spec, state, soon())
                assert number > 2, "nothing was cut off"
                return
            except KeyboardInterrupt:
                pass
        if only(spec, state).exists():
            assert only(spec, state).read_bytes() == only(spec, undisturbed).read_bytes(), "a half disk has its name"
        cloned_disks.check(spec, state)
        cloned_disks.make(spec, state, soon())
        assert made(spec, state) == made(spec, undisturbed)
    raise AssertionError("it never ends")


def _cut_off(real: Callable[..., Any], count: list[int], how: str) -> Callable[..., Any]:
    def act(*arguments: Any) -> Any:
        count[0] -= 1
        if count[0] >= 0:
            return real(*arguments)
        if how != "before":
            real(*arguments)
            paths = [each for each in arguments if isinstance(each, Path) and each.suffix in (".new", ".part")]
            for path in paths if how == "half" else ():
                if path.exists():
                    os.truncate(path, path.stat().st_size // 2)
        raise KeyboardInterrupt

    return act


@pytest.mark.parametrize(("more", "fits"), [(0, True), (512, False)])
def test_an_image_with_overlays_is_as_large_as_its_table_of_counts_allows(
    image: Path, config: MachineConfig, more: int, fits: bool
) -> None:
    size = cloned_disks.MAX_BYTES + more
    image.write_bytes(b"QFI\xfb" + bytes(20) + size.to_bytes(8, "big"))
    spec = spec_with(Disk(str(image), "qcow2", clone="overlay"), reserved=2 * size)
    if fits:
        cloned_disks.check(spec, config)
        return
    with pytest.raises(Denied) as error:
        cloned_disks.check(spec, config)
    assert error.value.code == "DiskFormat"
