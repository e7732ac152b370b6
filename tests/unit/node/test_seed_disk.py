"""The seed disk: a file system that cloud-init finds by its label, and reads by the real names of its files."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from pydantic import ValidationError

from devalloc.api.machine_start import MAX_CLOUD_INIT
from devalloc_machines.qemu import launch, seed_disk
from devalloc_machines.qemu.command_line import start_disks
from devalloc_machines.qemu.settings import MachineConfig
from devalloc_machines.qemu.spec import spec_of
from tests.support.toy_machines import machine_of, vm

USERS = "#cloud-config\nusers: [{name: ops}]\n"


def machine(**cloud_init: str) -> dict[str, object]:
    start = {"disks": [{"path": "/images/debian.raw", "format": "raw"}], "cloudInit": cloud_init}
    manifest: dict[str, object] = vm("web", uid="uid-1", start=start)
    return manifest


def read(image: bytes) -> dict[str, bytes]:
    """The files of a FAT12 file system, by their long names, as an implementation of its own reads them."""
    sector, _, reserved, tables, entries, _, _, per_table = struct.unpack_from("<HBHBHHBH", image, 11)
    root = (reserved + tables * per_table) * sector
    data = root + entries * 32
    table = image[reserved * sector :]
    assert image[reserved * sector : root] == table[: per_table * sector] * tables, "both tables are the same"
    files, name = {}, ""
    for at in range(root, data, 32):
        entry = image[at : at + 32]
        if entry[0] == 0:
            break
        if entry[11] == 0x0F:
            name = (entry[1:11] + entry[14:26] + entry[28:32]).decode("utf-16-le").partition("\0")[0] + name
            continue
        if entry[11] == 0x08:
            assert entry[:11] == b"CIDATA     "
            continue
        cluster, size = struct.unpack_from("<HI", entry, 26)
        content = b""
        while 2 <= cluster < 0xFF0:
            content += image[data + (cluster - 2) * sector :][:sector]
            pair = struct.unpack_from("<H", table, cluster * 3 // 2)[0]
            cluster = pair >> 4 if cluster % 2 else pair & 0xFFF
        files[name], name = content[:size], ""
    return files


def test_the_files_are_those_that_cloud_init_reads(tmp_path: Path) -> None:
    spec = spec_of(machine_of(machine(userData=USERS, networkData="version: 2\n")))
    config = MachineConfig(state=tmp_path, run=tmp_path / "run", cgroups=tmp_path / "none")
    seed_disk.make(spec, config)
    files = read(config.seed(spec.id).read_bytes())
    assert files == {
        "user-data": USERS.encode(),
        "meta-data": b'{"instance-id": "uid-1", "local-hostname": "web"}',
        "network-config": b"version: 2\n",
    }
    assert config.seed(spec.id).stat().st_mode & 0o777 == 0o600
    before = config.seed(spec.id).read_bytes()
    seed_disk.make(spec, config)
    assert config.seed(spec.id).read_bytes() == before, "the same on each node and at each start"
    launch.forget(spec.id, config)
    launch.forget(spec.id, config)
    assert list(tmp_path.iterdir()) == []


def test_the_largest_texts_fit() -> None:
    text = "#" + "é" * (MAX_CLOUD_INIT - 1)
    spec = spec_of(machine_of(machine(userData=text, networkData=text)))
    assert spec.cloud_init is not None
    files = seed_disk.files_of(spec, spec.cloud_init)
    assert read(seed_disk.image(files)) == files


def test_it_is_the_last_disk_and_read_only() -> None:
    spec = spec_of(machine_of(machine(userData=USERS)))
    *_, seed = start_disks(spec)
    assert (len(start_disks(spec)), seed.read_only, seed.format) == (2, True, "raw")
    without = spec_of(machine_of(vm("web")))
    assert start_disks(without) == without.disks


@pytest.mark.parametrize("user_data", ["", "users: []", "#" * (MAX_CLOUD_INIT + 1)], ids=["empty", "no form", "long"])
def test_texts_that_cloud_init_would_pass_over_are_refused(user_data: str) -> None:
    with pytest.raises(ValidationError, match="userData"):
        machine_of(machine(userData=user_data))


def test_the_meta_data_is_yaml_whatever_the_name_is() -> None:
    spec = spec_of(machine_of(machine(userData=USERS)))
    assert spec.cloud_init is not None
    assert json.loads(seed_disk.files_of(spec, spec.cloud_init)["meta-data"])["local-hostname"] == "web"
