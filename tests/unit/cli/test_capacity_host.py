"""``devalloc capacity --host``: what a host has for machines, and who has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from devalloc.store.sqlite import SQLiteStore
from tests.support import pci_cards
from tests.support.cli_shell import Shell, text
from tests.support.fake_sysfs import FakeSysfs
from tests.support.node_service import served
from tests.support.toy_machines import vm

MACHINE = {
    "apiVersion": "devalloc.io/v1alpha1",
    "kind": "VirtualMachine",
    "metadata": {"name": "web"},
    "spec": {
        "nodeName": "node-a",
        "cpu": {"min": "1500m", "max": "4"},
        "memory": {"min": "2Gi", "max": "4Gi"},
        "start": {"kernel": "/images/kernel"},
    },
}


@pytest.fixture
def host(tmp_path: Path) -> FakeSysfs:
    """Two nodes of 8 CPUs and 64 GiB each, a GPU, and an uplink of 1 Gbit/s."""
    sysfs = FakeSysfs(tmp_path / "host")
    sysfs.add(pci_cards.gpu())
    sysfs.add(pci_cards.nic())
    sysfs.default_route("eth0")
    return sysfs


def run(devalloc: Shell, host: FakeSysfs, *more: str) -> tuple[str, ...]:
    return ("capacity", "--host", "--node-name", "node-a", "--sysfs-root", str(host.root), *more)


def test_the_table_tells_limits_nodes_and_gpus(devalloc: Shell, host: FakeSysfs) -> None:
    output = devalloc(
        *run(devalloc, host, "--disk-limit", "1000GB", "--max-image-storage", "0.1", "--oversub-memory", "1.5")
    )
    assert output.code == 0, output.err
    assert output.err == ""
    *lines, gpu = [" ".join(line.split()) for line in output.out.splitlines()]
    assert lines == [
        "RESOURCE CAPACITY RATIO LIMIT ALLOCATED AVAILABLE SOURCE",
        "cpu 16 4 64 0 64 detected",
        "memory 128Gi 1.5 192Gi 0 192Gi detected",
        "disk 1000Gi 1 1000Gi 0 1000Gi configured",
        "network 119.2Mi/s 2 238.4Mi/s 0/s 238.4Mi/s detected",
        "disk_io 953.7Mi/s 2 1.9Gi/s 0/s 1.9Gi/s assumed",
        "images - - 100Gi not counted - of the disk",
        "",
        "NUMA NODE CPUS MEMORY",
        "0 0-7 64Gi",
        "1 8-15 64Gi",
        "",
        "GPUs: 1 slots, 0 used, 1 available",
        "DEVICE MODEL AVAILABLE",
    ]
    assert gpu.startswith("0000-01-00-0 ")
    assert gpu.endswith(" yes")


def test_huge_pages_have_rows_and_the_machines_in_them_take_no_ordinary_memory(
    devalloc: Shell, host: FakeSysfs
) -> None:
    folder = host.root / "sys/devices/system/node/node1/hugepages/hugepages-2048kB"
    folder.mkdir(parents=True)
    (folder / "nr_hugepages").write_text("2048\n")
    memory = {"min": "1Gi", "max": "2Gi", "hugePages": "2Mi"}
    machine = {**MACHINE, "spec": {**MACHINE["spec"], "memory": memory}}
    assert devalloc("apply", "-f", "-", stdin=text(machine)).code == 0
    store = SQLiteStore(devalloc.store)
    status = {"phase": "Running", "observed": {"cpus": 2, "memory": "1536Mi"}}
    store.replace_status({**store.get("VirtualMachine", "default", "web"), "status": status})
    store.close()
    output = devalloc(*run(devalloc, host))
    lines = [" ".join(line.split()) for line in output.out.splitlines()]
    assert "memory 124Gi 1 124Gi 0 124Gi detected" in lines
    assert "hugepages-2Mi 4Gi 1 4Gi 1.5Gi 2.5Gi detected" in lines
    assert lines[lines.index("NUMA NODE CPUS MEMORY HUGE PAGES") + 1 :][:2] == [
        "0 0-7 64Gi -",
        "1 8-15 64Gi 4Gi of 2Mi",
    ]
    content = devalloc(*run(devalloc, host, "-o", "json")).json
    assert [(one["type"], one["allocated"]) for one in content["huge_pages"]] == [("hugepages-2Mi", 3 << 29)]
    assert content["numa_nodes"][1]["huge_pages_bytes"] == {str(2 << 20): 4 << 30}


def test_amounts_reserved_for_a_machine_that_has_not_begun_count_as_allocated(devalloc: Shell, host: FakeSysfs) -> None:
    assert devalloc("apply", "-f", "-", stdin=text(MACHINE)).code == 0
    amounts = {"numa0": {"cpu": "2", "memory": "2Gi"}, "numa1": {"cpu": "1"}, "io": {"network": "1k", "disk": "1Gi"}}
    entries = [
        {
            "devicePoolName": "node-a-host",
            "deviceName": device,
            "allocations": [{"name": name, "allocation": amount} for name, amount in amount_of.items()],
        }
        for device, amount_of in amounts.items()
    ]
    store = SQLiteStore(devalloc.store)
    status = {"phase": "Pending", "nodeName": "node-a", "allocations": entries}
    store.replace_status({**store.get("VirtualMachine", "default", "web"), "status": status})
    store.close()
    report = devalloc(*run(devalloc, host, "-o", "json")).json
    allocated = {name: report[name]["allocated"] for name in ("cpu", "memory", "network", "disk")}
    assert allocated == {"cpu": 3, "memory": 2 << 30, "network": 1000, "disk": 1 << 30}


def test_the_machines_of_the_store_count_and_those_of_other_nodes_do_not(devalloc: Shell, host: FakeSysfs) -> None:
    other = {**MACHINE, "metadata": {"name": "far"}, "spec": {**MACHINE["spec"], "nodeName": "node-b"}}  # type: ignore[dict-item]
    assert devalloc("apply", "-f", "-", stdin=text(MACHINE, other)).code == 0
    store = SQLiteStore(devalloc.store)
    for name in ("web", "far"):
        status = {"phase": "Running", "permitted": {"cpus": "2"}}
        store.replace_status({**store.get("VirtualMachine", "default", name), "status": status})
    store.close()
    report = devalloc(*run(devalloc, host, "-o", "json")).json
    assert (report["cpu"]["allocated"], report["cpu"]["available"], report["memory"]["allocated"]) == (2, 62, 2 << 30)
    assert [row["instance_id"] for row in report["allocations"]] == ["default/web"]
    assert report["numa_nodes"][1] == {"id": 1, "cpus": list(range(8, 16)), "memory_bytes": 64 << 30}
    assert (report["network"]["capacity"], report["uplink"]) == (125_000_000, "eth0")
    assert report["gpu"]["mode"] == "passthrough"
    assert "default/web   Running   2" in devalloc(*run(devalloc, host)).out


def test_machines_without_an_object_count_where_the_plugin_can_be_asked(
    devalloc: Shell, host: FakeSysfs, tmp_path: Path
) -> None:
    assert devalloc("apply", "-f", "-", stdin=text(MACHINE)).code == 0
    with served(tmp_path / "node") as plugin:
        socket = ("--socket", str(plugin.socket))
        assert devalloc("vm", "create", "-f", "-", *socket, stdin=text(vm("own"))).code == 0
        assert devalloc("vm", "create", "-f", "-", *socket, stdin=text(vm("ended"))).code == 0
        assert devalloc("vm", "stop", "ended", *socket).code == 0
        there = run(devalloc, host, "-o", "json", *socket)
        report = devalloc(*there).json
        assert [row["instance_id"] for row in report["allocations"]] == ["default/own"]
        assert (report["cpu"]["allocated"], report["memory"]["allocated"]) == (2, 1 << 30)
        other = devalloc(*(each if each != "node-a" else "node-b" for each in there)).json
        assert (other["cpu"]["allocated"], other["allocations"]) == (0, [])
        assert "serves node node-a, not node-b: its machines are not counted" in str(other)
    gone = devalloc(*there).json["problems"]
    assert any("machines of `devalloc vm create` are not counted: " in each for each in gone), gone


def test_a_store_with_another_name_for_this_host_is_a_warning(devalloc: Shell, host: FakeSysfs) -> None:
    assert devalloc("apply", "-f", "-", stdin=text(MACHINE)).code == 0
    warning = "the store has machines of node-a but none of node-b; if this host is one of them, name it"
    of_b = [each if each != "node-a" else "node-b" for each in run(devalloc, host)]
    assert warning in devalloc(*of_b).err
    assert "none of" not in devalloc(*run(devalloc, host)).err


def test_unknown_amounts_are_warnings(devalloc: Shell, host: FakeSysfs) -> None:
    output = devalloc(*run(devalloc, host, "--uplink", "eth7"))
    assert output.code == 0
    assert "warning: capacity: network: its bandwidth is unknown (there is no interface eth7)" in output.err
    assert "warning: capacity: disk: its size is unknown" in output.err


@pytest.mark.parametrize(
    ("options", "code", "error"),
    [
        (("--network-limit", "1GBPS"), 2, "may be bits or bytes: write bits as 100Mbps or 10Gbps"),
        (("--disk-limit", "-5GB"), 2, "invalid size"),
        (("--oversub-cpu", "many"), 2, "invalid ratio"),
        (("--oversub-cpu", "0"), 2, "--oversub-cpu must be more than 0, not 0"),
        (("train",), 2, "counts no claim"),
        (("--data-dir", "/nope"), 2, "Directory '/nope' does not exist"),
        (("--data-dir", "/etc/passwd"), 2, "Directory '/etc/passwd' is a file"),
        (("--max-image-storage", "2"), 2, "invalid part of the disk 2: write 0.2 for a fifth, at most 1"),
        (("--max-image-storage", "-1"), 2, "invalid part of the disk -1"),
    ],
)
def test_what_makes_no_sense_is_refused(
    devalloc: Shell, host: FakeSysfs, options: tuple[str, ...], code: int, error: str
) -> None:
    output = devalloc(*run(devalloc, host, *options))
    assert (output.code, error in output.err) == (code, True), output.err


def test_settings_come_from_the_environment(devalloc: Shell, host: FakeSysfs, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"OVERSUB_CPU": "2", "DISK_LIMIT": "10GB", "NETWORK_LIMIT": "10Gbps", "DISK_IO_LIMIT": "500MB/s"}
    for name, value in settings.items():
        monkeypatch.setenv(f"DEVALLOC_{name}", value)
    report = devalloc(*run(devalloc, host, "-o", "json")).json
    limits = [report[name]["effective_limit"] for name in ("cpu", "disk", "network", "disk_io")]
    assert limits == [32, 10 << 30, 2_500_000_000, 2 * 500 << 20]


def test_a_host_without_sources_still_shows_limits_and_assumptions(devalloc: Shell, tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()
    output = devalloc("capacity", "--host", "--sysfs-root", tmp_path, "--network-limit", "1Gbps")
    assert output.code == 0
    rows = {line.split()[0]: line.split()[-1] for line in output.out.splitlines()}
    assert rows == {
        "RESOURCE": "SOURCE",
        "cpu": "unknown",
        "memory": "unknown",
        "disk": "unknown",
        "network": "configured",
        "disk_io": "assumed",
    }
    assert "capacity: cpu: discover CPU: neither /sys nor /proc lists any" in output.err
    assert "capacity: memory: discover memory: cannot read the host's memory" in output.err


def test_a_store_that_cannot_be_read_is_a_problem_and_hides_nothing_else(devalloc: Shell, host: FakeSysfs) -> None:
    devalloc.store.write_bytes(b"no database at all" * 100)
    output = devalloc(*run(devalloc, host, "-o", "json"))
    assert (output.code, output.json["cpu"]["capacity"]) == (0, 16), output.err
    assert any("machines and claims of the store are not counted" in each for each in output.json["problems"])


def test_what_lies_on_the_disk_counts_and_an_image_too_large_is_refused_with_numbers(
    devalloc: Shell, host: FakeSysfs, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    for name, size in (("images/a", 3 << 30), ("oci-cache/layers/b", 1 << 30), ("volumes/team/c", 4 << 30)):
        (data / name).parent.mkdir(parents=True)
        with (data / name).open("wb") as file:
            file.truncate(size)  # sparse: its machine may fill it
    options = ("--data-dir", str(data), "--disk-limit", "50GB", "--max-image-storage", "0.2")
    report = devalloc(*run(devalloc, host, *options, "-o", "json")).json
    assert report["disk_breakdown"] == {
        "images_bytes": 3 << 30,
        "oci_cache_bytes": 1 << 30,
        "volumes_bytes": 4 << 30,
        "overlays_bytes": 0,
    }
    assert report["image_storage"] == {"limit": 10 << 30, "allocated": 4 << 30, "available": 6 << 30}
    assert (report["disk"]["allocated"], report["disk"]["available"]) == (8 << 30, 42 << 30)
    assert "images - - 10Gi 4Gi 6Gi" in " ".join(devalloc(*run(devalloc, host, *options)).out.split())

    def pull(size: str, *more: str) -> tuple[int, str]:
        output = devalloc(*run(devalloc, host, *options, *more, "--pull", size))
        return output.code, output.err.splitlines()[-1] if output.err else ""

    assert pull("6GB") == (0, "")
    advice = "remove what is no longer needed, or raise --max-image-storage or --disk-limit"
    numbers = "insufficient image storage: requested 7.0 GB, 4.0 GB used, the limit is 10.0 GB"
    assert pull("7GB") == (1, f"error: {numbers}; {advice}")
    numbers = "insufficient disk to pull an image: 1024.0 MB available, 5.0 GB needed at least"
    assert pull("1MB", "--disk-limit", "9GB", "--max-image-storage", "1") == (1, f"error: {numbers}; {advice}")
