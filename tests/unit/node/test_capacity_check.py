"""Whether a host has room for a machine, or for more of one, by what is recorded and permitted."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devalloc.inventory.capacity import CapacityConfig, discover_capacity, stored
from devalloc.inventory.capacity.config import DEFAULT_RATIOS
from devalloc.inventory.capacity.machines import MachineUsage
from devalloc_machines.qemu.records import MachineAmounts, MachineRecord, content_of
from devalloc_machines.qemu.resources import CapacityCheck, HostUses
from devalloc_machines.qemu.settings import MachineConfig
from devalloc_machines.qemu.spec import RateLimits, spec_of
from devalloc_node.errors import Denied, Failed
from tests.support.capacity_fakes import host
from tests.support.deadlines import soon
from tests.support.machines import plugin, short_folder, virtual_machine

GIB = 1 << 30
ROOM = host(cpu=8, memory="8Gi", ratios={"cpu": "1"})


def record(name: str, **has: int) -> MachineRecord:
    """One that runs with 1 CPU and 512 MiB, or with more."""
    amounts = MachineAmounts(**{"cpu_milli": 1000, "vcpus": 1, "memory_bytes": GIB // 2, **has})
    return MachineRecord(
        virtual_machine(name, cpu={"min": "1", "max": "8"}).to_manifest(), "running", "run", applied=amounts
    )


class MemoryRecords:
    """Records in memory."""

    def __init__(self, *records: MachineRecord) -> None:
        self.content = {each.spec.key: content_of(each) for each in records}

    def records(self, room: str) -> Mapping[str, Mapping[str, Any]]:
        return self.content

    def record(self, room: str, name: str) -> Mapping[str, Any] | None:
        return self.content.get(name)


def room(*records: MachineRecord, **permitted: MachineAmounts) -> CapacityCheck:
    return CapacityCheck(
        ROOM, MemoryRecords(*records), HostUses(permitted=lambda: {f"default/{k}": v for k, v in permitted.items()})
    )  # type: ignore[arg-type]


def starts(rooms: CapacityCheck, cpus: str) -> bool:
    machine = virtual_machine("new", cpu={"min": cpus, "max": "8"})
    try:
        rooms.check(machine, spec_of(machine))
    except Denied as error:
        return (error.code, error.retryable) != ("HostFull", True)
    return True


@pytest.mark.parametrize(
    ("of_one", "fits"),
    [
        (MachineAmounts(1000, 1, GIB), "7"),
        (MachineAmounts(3000, None, GIB), "5"),  # permitted, and not told yet
        (MachineAmounts(500, None, GIB), "7"),  # less than what it has
        (MachineAmounts(None, None, 4 * GIB), "7"),
    ],
)
def test_a_machine_that_begins_finds_what_is_not_permitted_to_others(of_one: MachineAmounts, fits: str) -> None:
    rooms = room(record("one"), one=of_one)
    assert starts(rooms, fits)
    assert not starts(rooms, f"{int(fits) + 1}")


def test_a_permit_of_a_machine_that_is_not_here_takes_nothing() -> None:
    assert starts(room(record("one"), other=MachineAmounts(8000, None, GIB)), "7")


@pytest.mark.parametrize(
    ("has", "requested", "counts"),
    [
        ({}, {"vcpus": 4}, 4),  # CPUs that nothing bounds have all of their time
        ({"vcpus": 2, "cpu_milli": 1500}, {"vcpus": 4}, 2),  # and these what their cgroup gives them, rounded up here
        ({"vcpus": 4, "cpu_milli": 4000}, {"vcpus": 2}, 4),  # until it has let go of them
        ({"vcpus": 4, "cpu_milli": 2000}, {"cpu_milli": 3000}, 3),
        ({}, {"cpu_milli": 3000}, 1),  # more than its one CPU can use, until it is to have more of them
        ({"vcpus": 1, "cpu_milli": 2000}, {"cpu_milli": 2000, "vcpus": 1}, 1),
    ],
)
def test_what_was_asked_of_one_counts_before_it_has_it(
    has: dict[str, int], requested: dict[str, int], counts: int
) -> None:
    one = replace(record("one", **has), requested=MachineAmounts(**requested))
    assert starts(room(one), f"{8 - counts}")
    assert not starts(room(one), f"{9 - counts}")


def test_more_is_given_as_far_as_there_is_room_or_a_permit_and_less_always() -> None:
    one, full = record("one"), record("full", cpu_milli=6000, vcpus=6)

    def more(rooms: CapacityCheck, **requested: int) -> None:
        rooms.check_more(one, replace(one, requested=MachineAmounts(**requested)))

    more(room(one, full), vcpus=2)
    with pytest.raises(Denied, match=r"machine default/one cannot grow .*: insufficient CPU: requested 3 vCPUs"):
        more(room(one, full), vcpus=3)
    more(room(one, full, one=MachineAmounts(3000, None, GIB)), vcpus=3)
    more(room(one, record("full", cpu_milli=9000, vcpus=9)), memory_bytes=GIB)
    more(room(one, record("full", cpu_milli=9000, vcpus=9)), cpu_milli=500)


def test_no_machine_starts_while_permits_cannot_be_read() -> None:
    def permitted() -> Mapping[str, MachineAmounts]:
        raise Failed("StoreUnavailable", "the store cannot be read")

    with pytest.raises(Failed, match="the store cannot be read") as failed:
        starts(CapacityCheck(ROOM, MemoryRecords(record("one")), HostUses(permitted=permitted)), "1")  # type: ignore[arg-type]
    assert failed.value.code == "StoreUnavailable", "as its reader reports it"


def test_no_machine_starts_while_others_cannot_be_counted() -> None:
    def others() -> list[MachineUsage]:
        raise OSError("out of descriptors")

    with pytest.raises(Failed, match=r"default/new does not fit .* out of descriptors") as failed:
        starts(CapacityCheck(ROOM, MemoryRecords(record("one")), HostUses(others)), "1")  # type: ignore[arg-type]
    assert failed.value.code == "HostUnreadable"


def machine_with(disk: int = 0, bandwidth: int = 0, disk_io: int = 0, name: str = "new") -> Any:
    nics = [{"backend": "tap", "interface": "tap1", "bandwidth": bandwidth}] if bandwidth else []
    amounts = {"disk": disk, "diskIO": disk_io}
    return virtual_machine(name, nics=nics, **{field: amount for field, amount in amounts.items() if amount})


LIMITED = host(
    cpu=8, memory="8Gi", disk="10GB", network="800Mbps", disk_io="100MB/s", ratios=dict.fromkeys(DEFAULT_RATIOS, "1")
)
"""Of the network 100 million bytes per second."""


@pytest.mark.parametrize(
    ("field", "most", "name"),
    [("disk", 10 << 30, "disk"), ("bandwidth", 10**8, "network bandwidth"), ("disk_io", 100 << 20, "disk I/O")],
)
def test_disk_network_and_disk_io_are_checked_as_well_and_what_runs_counts(field: str, most: int, name: str) -> None:
    half = machine_with(**{field: most // 2}, name="one")
    one = MachineRecord(half.to_manifest(), "running", "run", applied=MachineAmounts(1000, 1, GIB // 2))
    for records, left in (((), most), ((one,), most // 2)):
        rooms = CapacityCheck(LIMITED, MemoryRecords(*records))  # type: ignore[arg-type]
        fits, exceeds = machine_with(**{field: left}), machine_with(**{field: left + 1})
        rooms.check(fits, spec_of(fits))
        with pytest.raises(Denied, match=f"machine default/new does not fit .*: insufficient {name}: requested"):
            rooms.check(exceeds, spec_of(exceeds))
    stopped = CapacityCheck(LIMITED, MemoryRecords(one.become("stopped")))  # type: ignore[arg-type]
    stopped.check(machine_with(**{field: most}), spec_of(machine_with(**{field: most})))


def test_an_unknown_capacity_limits_nothing_and_the_log_names_the_option(caplog: pytest.LogCaptureFixture) -> None:
    rooms = CapacityCheck(host(cpu=8), MemoryRecords())  # type: ignore[arg-type]
    machine = machine_with(disk=1 << 40, bandwidth=10**12)
    rooms.check(machine, spec_of(machine))
    assert "so disk is not checked when a machine starts" in caplog.text
    assert "so network is not checked when a machine starts; configure a limit (--network-limit)" in caplog.text
    assert "so cpu is not" not in caplog.text


def test_a_higher_rate_needs_room_and_a_lower_one_does_not() -> None:
    rooms = CapacityCheck(LIMITED, MemoryRecords())  # type: ignore[arg-type]
    one = MachineRecord(machine_with(bandwidth=10**8 + 1, name="one").to_manifest(), "running", "run")
    rooms.check_more(one, replace(one, rates=RateLimits(100 << 20, (10**8,))))  # it exceeds now, and goes on with less
    for more in (RateLimits(0, (10**8 + 2,)), RateLimits((100 << 20) + 1, (10**8,))):
        with pytest.raises(Denied, match="machine default/one cannot grow on this host now: insufficient"):
            rooms.check_more(one, replace(one, rates=more))


def test_the_disk_is_counted_before_the_lock_and_not_within_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = tmp_path / "images/default/new.raw"
    disk.parent.mkdir(parents=True)
    with disk.open("wb") as file:
        file.truncate(6 << 20)
    capacity = discover_capacity(config=CapacityConfig(disk=10 << 20, data_dir=tmp_path))
    rooms = CapacityCheck(capacity, MemoryRecords())  # type: ignore[arg-type]
    machine = virtual_machine("new", disk=8 << 20, start={"disks": [{"path": str(disk), "format": "raw"}]})
    spec = spec_of(machine)
    rooms.count_stored(spec)
    monkeypatch.setattr(stored, "count_files", lambda folder: pytest.fail("a disk is read under the lock"))
    rooms.check(machine, spec)  # its 6 MiB are part of the 8 MiB that it reserves
    large = virtual_machine("new", disk=11 << 20, start={"disks": [{"path": str(disk), "format": "raw"}]})
    with pytest.raises(Denied, match=r"insufficient disk: requested 5\.0 MB, but only 4\.0 MB available"):
        rooms.check(large, spec_of(large))
    has = MachineRecord(machine.to_manifest(), "running", "run")
    others = CapacityCheck(capacity, MemoryRecords(has))  # type: ignore[arg-type]
    monkeypatch.undo()
    others.count_stored(spec)
    other = virtual_machine("other", disk=2 << 20)
    others.check(other, spec_of(other))
    with pytest.raises(Denied, match="insufficient disk"):
        others.check(machine := virtual_machine("other", disk=3 << 20), spec_of(machine))


def test_a_start_that_waits_for_a_slow_disk_does_not_block_the_others(tmp_path: Path) -> None:
    waits, go_on = threading.Event(), threading.Event()
    capacity = discover_capacity(config=CapacityConfig(disk=10 << 20, data_dir=tmp_path))
    with short_folder() as folder:
        settings = MachineConfig(state=folder / "machines")
        settings.state.mkdir()
        with plugin(settings, host=capacity) as machines:

            def slow(spec: object) -> None:
                if spec.key == "default/slow":  # type: ignore[attr-defined]
                    waits.set()
                    go_on.wait(60)

            machines._room.count_stored = slow  # type: ignore[union-attr,method-assign]

            def admit(name: str) -> None:
                machine = virtual_machine(name)
                with machines.admitted(machine, spec_of(machine), soon()):
                    pass

            thread = threading.Thread(target=admit, args=("slow",))
            thread.start()
            try:
                assert waits.wait(60)
                admit("quick")
            finally:
                go_on.set()
                thread.join()
