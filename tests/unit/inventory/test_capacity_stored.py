"""What lies on the disk is counted from the files, again when they change, and never with unbounded work."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devalloc.api.virtual_machine import VirtualMachine
from devalloc.inventory.capacity import CapacityConfig, discover_capacity, stored
from devalloc.inventory.capacity.machines import machine_usage
from devalloc.inventory.capacity.room import Admission, Insufficient, Request
from devalloc.inventory.capacity.status import UsageUnknown, host_status
from tests.support.capacity_fakes import host, stores
from tests.support.machines import virtual_machine
from tests.support.waiting import until

MIB = 1 << 20


def write(path: Path, size: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size)
    return path


def test_files_count_once_with_their_length_and_links_and_other_file_systems_do_not(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    big = write(folder / "a/b/big", 5 * MIB)
    os.link(big, folder / "again")
    (folder / "link").symlink_to(big)
    (folder / "loop").symlink_to(folder)
    os.mkfifo(folder / "pipe")
    write(folder / "small", 3)
    (folder / "small").write_bytes(b"abc")  # takes a block
    size, _ = stored.count_files(folder)
    assert size == 5 * MIB + (folder / "small").stat().st_blocks * 512
    assert stored.count_files(tmp_path / "none") == (0, ((str(tmp_path / "none"), 0),))
    with pytest.raises(NotADirectoryError):
        stored.count_files(big)


def test_a_count_is_taken_again_when_a_folder_changes_or_after_a_time_and_not_before(tmp_path: Path) -> None:
    now = [100.0]
    folder = tmp_path / "images"
    counts = stored.FolderSize(folder, lambda: now[0])
    assert counts() == 0
    write(folder / "deep/er/a", MIB)
    assert counts() == MIB, "the folder has come"
    time.sleep(0.05)  # times of files go in steps of up to 10 ms
    write(folder / "deep/er/b", MIB)
    assert counts() == 2 * MIB, "a file has come, deep below"
    os.truncate(folder / "deep/er/b", 3 * MIB)
    assert counts() == 2 * MIB, "a file that grows shows after a time"
    now[0] += stored.HOLDS_SECONDS + 0.1
    assert counts() == 4 * MIB
    time.sleep(0.05)
    (folder / "deep/er/a").unlink()
    assert counts() == 3 * MIB


def test_counting_takes_a_small_part_of_the_time_however_slow_the_disk(tmp_path: Path) -> None:
    now, looks = [0.0], [0]

    def slow() -> float:
        looks[0] += 1
        now[0] += 30.0  # each look at the clock: a count takes that long
        return now[0]

    write(tmp_path / "images/a", MIB)
    counts = stored.FolderSize(tmp_path / "images", slow)
    assert counts() == MIB
    write(tmp_path / "images/b", MIB)
    assert counts() == MIB, "it rests"
    now[0] += 20 * 30.0
    assert counts() == 2 * MIB


def test_a_folder_with_too_many_files_is_not_known_and_nothing_is_admitted_by_a_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "MAX_FILES", 5)
    for number in range(6):
        write(tmp_path / f"volumes/{number}", 1)
    config = CapacityConfig(disk=100 * MIB, data_dir=tmp_path)
    capacity = discover_capacity(config=config)
    sources = stored.stores_of(capacity)
    assert sources is not None
    status = host_status(capacity, tuple, sources)
    assert len(status.uncounted) == 1
    assert "total volume bytes: " in status.uncounted[0]
    assert "has more than 5 files" in status.uncounted[0]
    assert stored.pull_refusal(status, 1) == status.uncounted[0]
    with pytest.raises(UsageUnknown, match="has more than 5 files"):
        Admission(capacity, tuple, sources).validate(Request(disk=1))


def test_what_is_stored_leaves_less_for_machines(tmp_path: Path) -> None:
    write(tmp_path / "images/a", 60 * MIB)
    write(tmp_path / "elsewhere", 60 * MIB)
    capacity = discover_capacity(config=CapacityConfig(disk=100 * MIB, data_dir=tmp_path))
    admission = Admission(capacity, tuple, stored.stores_of(capacity))
    admission.validate(Request(disk=40 * MIB))
    write(tmp_path / "volumes/b", MIB)

    def refusal() -> str:
        try:
            admission.validate(Request(disk=40 * MIB))
        except Insufficient as error:
            return str(error)
        return ""

    # A count that took long, on a busy host, holds for longer.
    assert "requested 40.0 MB, but only 39.0 MB available (currently allocated" in until(refusal, "the new file counts")


def test_without_a_data_folder_no_pull_is_allowed_blindly() -> None:
    status = host_status(host(disk="100GB"), tuple, None)
    assert stored.pull_refusal(status) == "the host's images are not counted: name its data folder with --data-dir"
    counted = host_status(host(disk="100GB"), tuple, stores(images="1GB"))
    assert stored.pull_refusal(counted) is None
    assert stored.stores_of(host(disk="100GB")) is None


def machine_on(path: Path, **spec: object) -> VirtualMachine:
    status = {"phase": "Running", "nodeName": "n", "machineID": "1"}
    content = virtual_machine(
        "m", **{"disk": 40 * MIB, "start": {"disks": [{"path": str(path), "format": "raw"}]}, **spec}
    )
    return VirtualMachine.model_validate({**content.to_manifest(), "status": status})


def test_a_disk_in_a_counted_folder_counts_once_with_what_its_machine_reserves(tmp_path: Path) -> None:
    disk = write(tmp_path / "data/images/default/m.raw", 30 * MIB)
    (tmp_path / "link").symlink_to(tmp_path / "data")
    capacity = discover_capacity(config=CapacityConfig(disk=100 * MIB, data_dir=tmp_path / "data"))
    for path in (disk, tmp_path / "link/images/default/m.raw"):
        machine = machine_on(path)
        use = replace(machine_usage(machine), stored=stored.stored_of_machine(capacity, machine))
        status = host_status(capacity, lambda use=use: [use], stored.stores_of(capacity))  # type: ignore[misc]
        assert (status.disk.images, status.disk.overlays, status.disk.total) == (30 * MIB, 10 * MIB, 40 * MIB)
        assert stored.reserved_in_stores(capacity, machine) == 30 * MIB
    write(disk, 70 * MIB)  # more than it reserves
    machine = machine_on(disk)
    use = replace(machine_usage(machine), stored=stored.stored_of_machine(capacity, machine))
    assert host_status(capacity, lambda: [use], stored.stores_of(capacity)).disk.total == 70 * MIB
    assert stored.reserved_in_stores(capacity, machine) == 40 * MIB, "the rest is no one's reservation"


@pytest.mark.parametrize(
    "spec",
    [
        {"start": {"disks": [{"path": "elsewhere.raw"}]}},
        {"start": {"disks": [{"path": "data/images/m.raw", "readOnly": True}]}},
        {"start": {"disks": [{"path": "data/images/m.raw", "clone": "copy"}]}},
        {"start": {"disks": [{"path": "data/images/m.raw", "clone": "overlay"}]}},
        {"start": {"disks": [{"path": "data/images"}]}},
        {"start": {"disks": [{"path": "data/images-of-others/m.raw"}]}},
        {"start": {"disks": [{"path": "data/images/none"}]}},
        {"disk": None},
        {"start": None, "adopt": {"qmpSocket": "/run/q"}, "nics": None},
    ],
)
def test_a_disk_that_is_not_counted_or_not_its_own_takes_nothing_off(tmp_path: Path, spec: dict[str, Any]) -> None:
    for path in ("elsewhere.raw", "data/images/m.raw", "data/images-of-others/m.raw"):
        write(tmp_path / path, MIB)
    for disk in (spec.get("start") or {}).get("disks", ()):
        disk |= {"path": str(tmp_path / disk["path"]), "format": "raw"}
    capacity = discover_capacity(config=CapacityConfig(disk=100 * MIB, data_dir=tmp_path / "data"))
    assert stored.stored_of_machine(capacity, machine_on(tmp_path / "data/images/m.raw", **spec)) == 0


def test_the_last_count_is_asked_without_waiting_for_the_disk() -> None:
    answers: list[int | Exception] = [5, OSError("gone"), 7]

    def source() -> int:
        if isinstance(answer := answers.pop(0), Exception):
            raise answer
        return answer

    last = stored.LastCount(source)
    with pytest.raises(UsageUnknown):
        last()
    last.refresh()
    assert (last(), last(), len(answers)) == (5, 5, 2)
    last.refresh()
    with pytest.raises(OSError, match="gone"):
        last()
    last.refresh()
    assert last() == 7
