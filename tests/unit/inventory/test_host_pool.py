"""The pool of what a host has for machines, and how it is published beside the host's devices."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from devalloc.api.host_pool_names import CLASS, node_of_host_pool
from devalloc.api.machine_location import receives_machines, shared_storage, storage_folders
from devalloc.api.meta import ONLY_CLASS
from devalloc.api.quantity import NANO, Quantity
from devalloc.api.virtual_machine import VirtualMachine
from devalloc.controller.host_inventory import with_host_pool
from devalloc.inventory.capacity import Capacity, CapacityConfig, CapacityError, NumaNode, host_pool
from devalloc.inventory.config import DeviceRecords
from devalloc.inventory.discover import Discovery
from devalloc.machines.permits.hosts import published
from devalloc.machines.permits.ledger import Host
from devalloc.settings import settings_of
from devalloc.store.sqlite import SQLiteStore
from tests.support.fake_tree import memory_folder
from tests.support.host_pools import GIB, capacity
from tests.support.machines import virtual_machine


def amounts(resource: str, pool: object) -> dict[str, int]:
    """Base units of a resource by device."""
    return {
        device.name: one.capacity.nano * (1000 if resource == "cpu" else 1) // NANO
        for device in pool.spec.devices  # type: ignore[attr-defined]
        for one in device.resources
        if one.name == resource
    }


def test_numa_nodes_have_parts_of_the_limits_that_sum_up_to_them() -> None:
    host = replace(
        capacity(cpus=6, memory=10),
        cpu=Capacity("cpu", 6000, Fraction("1.7"), "detected"),
        nodes=(
            NumaNode(0, frozenset({0, 1}), 3 * GIB),
            NumaNode(1, frozenset({2, 3, 4, 5}), 7 * GIB),
            NumaNode(2, frozenset(), 0),
        ),
    )
    pool = host_pool(host, "node-a")
    assert (pool.metadata.name, node_of_host_pool(pool.to_manifest())) == ("node-a-host", "node-a")
    assert amounts("cpu", pool) == {"numa0": 3333, "numa1": 6667}, "1.7 times 6 is 10 whole CPUs"
    assert sum(amounts("memory", pool).values()) == 10 * GIB
    assert amounts("network", pool) == {"io": 10**9}
    assert {a.name: a.value for a in pool.spec.attributes}[ONLY_CLASS] == CLASS


def test_capacity_reserved_for_other_machines_is_not_offered_but_permits_may_use_it() -> None:
    whole = capacity(cpus=6, memory=10)
    pool, rest = host_pool(whole, "n"), host_pool(whole, "n", for_others=(1500, 3 * GIB))
    assert sum(amounts("cpu", rest).values()) == sum(amounts("cpu", pool).values()) - 1500
    assert sum(amounts("memory", rest).values()) == sum(amounts("memory", pool).values()) - 3 * GIB
    assert permit_host(rest) == permit_host(pool)
    alone = host_pool(replace(whole, nodes=()), "n", for_others=(1500, 0))
    assert permit_host(alone) == permit_host(pool), "a host that tells of no NUMA nodes"
    none = host_pool(whole, "n", for_others=(10**9, 10**15))
    assert (sum(amounts("cpu", none).values()), sum(amounts("memory", none).values())) == (0, 0)
    assert permit_host(none) == permit_host(pool), "no more than there is"


@pytest.mark.parametrize("text", ["8", "8,32Gi,1", "x,1Gi", "-1,1Gi", "1,-1Gi", "nan,1Gi"])
def test_room_for_others_is_an_amount_of_cpus_and_of_memory(tmp_path: Path, text: str) -> None:
    (read,) = (each.type for each in settings_of(CapacityConfig) if each.flag == "--room-for-others")
    with pytest.raises(ValueError, match=f"must be CPU and memory, such as 8,32Gi, not {text}"):
        read(text)
    config = CapacityConfig(for_others=read("500m,1Gi"), data_dir=tmp_path)
    good = with_host_pool(lambda state: Discovery([], []), Path("/"), "n", config)
    (pool,) = good(DeviceRecords()).pools
    parts = [one.value for device in pool.spec.devices for one in device.attributes if one.name == "cpuForOthers"]
    assert sum(Quantity.parse(part).nano for part in parts) == NANO // 2


def permit_host(pool: Any) -> Host:
    """What the permit server may give on a node with this pool."""
    with memory_folder() as name, closing(SQLiteStore(Path(name) / "store.db")) as store:
        store.create(pool.to_manifest())
        return published(store)()["n"]


def test_huge_pages_are_what_each_node_set_aside_and_no_ordinary_memory() -> None:
    pool = host_pool(capacity(cpus=4, memory=8, huge=(0, 3)), "n")
    assert amounts("hugepages-2Mi", pool) == {"numa1": 3 * GIB}
    assert amounts("memory", pool) == {"numa0": 4 * GIB, "numa1": 4 * GIB}, "whatever lies in huge pages beside that"
    (pages,) = [one for device in pool.spec.devices for one in device.resources if one.name == "hugepages-2Mi"]
    assert pages.block.nano == (2 << 20) * NANO
    alone = host_pool(replace(capacity(cpus=2, memory=8, huge=(1,)), nodes=()), "n")
    assert amounts("hugepages-2Mi", alone) == {"compute": GIB}, "a host that tells of no NUMA nodes"


@pytest.mark.parametrize("nodes", [(), (NumaNode(0, frozenset(), 8 * GIB),), (NumaNode(0, frozenset({0, 1}), 0),)])
def test_a_host_that_does_not_say_what_its_numa_nodes_have_is_one(nodes: tuple[NumaNode, ...]) -> None:
    pool = host_pool(replace(capacity(cpus=2, memory=8), nodes=nodes), "n")
    assert (amounts("cpu", pool), amounts("memory", pool)) == ({"compute": 2000}, {"compute": 8 * GIB})
    assert not [a for device in pool.spec.devices for a in device.attributes if a.name == "numa"]


def test_a_host_that_becomes_unreadable_keeps_its_last_capacity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capacities = [capacity(cpus=2), capacity(cpus=4)]

    def discover(*_: object) -> object:
        if not capacities:
            raise CapacityError("discover CPU: gone")
        return capacities.pop(0)

    monkeypatch.setattr("devalloc.controller.host_inventory.discover_capacity", discover)
    limits = CapacityConfig(data_dir=tmp_path)
    look = with_host_pool(lambda state: Discovery([], []), tmp_path, "n", limits)
    for _ in range(2):  # the first look was at the beginning
        (pool,) = look(DeviceRecords()).pools
        assert sum(amounts("cpu", pool).values()) == 4000
    assert [problem.message for problem in look(DeviceRecords()).problems] == ["discover CPU: gone"]
    with pytest.raises(Exception, match="--host-capacity: discover CPU: gone"):
        with_host_pool(lambda state: Discovery([], []), tmp_path, "n", limits)


def test_what_lies_on_the_disk_is_not_offered_and_the_last_count_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A count that was slow holds for longer: also one that only waited for the CPU of a busy test machine.
    monkeypatch.setattr("devalloc.inventory.capacity.stored._REST", 0)
    limits = CapacityConfig(disk=10 * GIB, oversub_disk=Fraction(2), data_dir=tmp_path)
    look = with_host_pool(lambda state: Discovery([], []), Path("/"), "n", limits)

    def offered() -> int:
        (pool,) = look(DeviceRecords()).pools
        return amounts("disk", pool)["io"]

    assert offered() == 20 * GIB
    (tmp_path / "images").mkdir()
    with (tmp_path / "images/a").open("wb") as file:
        file.truncate(GIB + 1)
    assert offered() == 19 * GIB - (64 << 20), "in steps of 64 MiB"
    (tmp_path / "images/a").unlink()
    (tmp_path / "images").rmdir()
    (tmp_path / "images").write_text("not a folder")
    assert offered() == 19 * GIB - (64 << 20)
    assert any("images is not a folder" in problem.message for problem in look(DeviceRecords()).problems)


def test_what_a_machine_reserves_and_has_on_the_disk_is_taken_off_once(tmp_path: Path) -> None:
    disk = tmp_path / "images/default/m.raw"
    disk.parent.mkdir(parents=True)
    with disk.open("wb") as file:
        file.truncate(3 * GIB)
    spec = {"disk": 4 * GIB, "start": {"disks": [{"path": str(disk), "format": "raw"}]}}
    content = virtual_machine("m", **spec).to_manifest()
    machines: list[dict[str, Any]] = []
    look = with_host_pool(
        lambda state: Discovery([], []),
        Path("/"),
        "here",
        CapacityConfig(disk=10 * GIB, data_dir=tmp_path),
        machines=lambda: [VirtualMachine.model_validate(each) for each in machines],
    )

    def offered() -> int:
        (pool,) = look(DeviceRecords()).pools
        return amounts("disk", pool)["io"]

    assert offered() == 7 * GIB
    machines.append({**content, "status": {"phase": "Running"}})
    assert offered() == 10 * GIB, "of which its reservation takes 4, and that contains its disk"
    machines[0]["status"]["phase"] = "Stopped"
    assert offered() == 7 * GIB, "its reservation has ended, its disk is there"


def test_shared_storage_is_an_attribute_of_all_its_devices_whatever_the_order(tmp_path: Path) -> None:
    limits = CapacityConfig(data_dir=tmp_path)
    for folders in (("/srv/b", "/srv/a"), ("/srv/a", "/srv/b", "/srv/a")):
        look = with_host_pool(lambda state: Discovery([], []), Path("/"), "n", limits, folders)
        (pool,) = look(DeviceRecords()).pools
        attribute = shared_storage(pool.to_manifest())
        assert attribute == "/srv/a:/srv/b", "equal texts are equal storage"
        assert storage_folders(attribute) == {"/srv/a", "/srv/b"}
    look = with_host_pool(lambda state: Discovery([], []), Path("/"), "n", limits)
    (pool,) = look(DeviceRecords()).pools
    assert "sharedStorage" not in {each.name for each in pool.spec.attributes}


def test_that_it_receives_machines_that_run_is_an_attribute_of_all_its_devices(tmp_path: Path) -> None:
    limits = CapacityConfig(data_dir=tmp_path)
    for receives in (True, False):
        look = with_host_pool(lambda state: Discovery([], []), Path("/"), "n", limits, live_migration=receives)
        (pool,) = look(DeviceRecords()).pools
        assert receives_machines(pool.to_manifest()) is receives
        assert ("liveMigration" in {each.name for each in pool.spec.attributes}) is receives
