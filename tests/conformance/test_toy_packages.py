"""The examples of parts, kinds, requesters and verbs in ``docs/development``: devalloc has them as soon as a package
registers them, and no file of it changes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from devalloc.plugins import NODE_PARTS, REQUESTERS, BadPackage, installed
from devalloc.programs.inventory_options import InventoryOptions
from devalloc.programs.node_options import PluginOptions, node_settings
from devalloc.programs.node_parts import store_source
from devalloc.store.sqlite import SQLiteStore
from devalloc_node.daemon import run_daemon
from devalloc_node.deadline import Deadline
from devalloc_node.model.step import Step
from devalloc_node.node import open_node
from devalloc_node.pb import node_pb2 as pb
from tests.conformance.test_node_daemon_store import Bed, allocated
from tests.support.fake_host import LocalHost
from tests.support.fake_tree import memory_folder
from tests.support.fleet_manifests import fill, gpu_claim, gpu_class, gpu_pool
from tests.support.waiting import until
from tools.words import ROOT

REGISTRATION = "[devalloc.node_parts]\ntemperatures = toy_node_part:Temperatures\n"
LOANS = """
[devalloc.kinds]
loans = toy_loans:LOAN
[devalloc.requesters]
loans = toy_loans.requester:LOANS
[devalloc.verbs]
loans = toy_loans.verb:loans
"""
HOT = "0000:01:00.0"


@pytest.fixture
def bed() -> Iterator[Bed]:
    with memory_folder() as folder:
        bed = Bed(Path(folder))
        with closing(bed.store):
            yield bed


def register(folder: Path, entry_points: str, name: str = "toy") -> None:
    """A package with a toy, as an installer leaves it."""
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(entry_points)


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(tmp_path, REGISTRATION)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "docs/development")


@pytest.mark.usefixtures("toy")
def test_options_come_to_a_node_with_all_parts_that_are_installed(tmp_path: Path) -> None:
    settings = node_settings(InventoryOptions(node_name="n", sysfs_root=tmp_path), PluginOptions(), 60.0)
    assert installed(NODE_PARTS)
    assert settings.parts[-len(installed(NODE_PARTS)) :] == installed(NODE_PARTS)


@pytest.mark.usefixtures("toy")
def test_the_toy_tells_a_node_how_hot_its_devices_are(
    bed: Bed, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toy_node_part.LOOK_SECONDS", 0.01)
    sensor = bed.folder / "host/sys/bus/pci/devices" / HOT / "hwmon/hwmon0/temp1_input"
    sensor.parent.mkdir(parents=True)
    sensor.write_text("93500\n")
    settings = replace(bed.settings, parts=installed(NODE_PARTS))
    output: list[str] = []
    with open_node(settings, LocalHost(bed.host), store_source(bed.store, settings.node_name)) as node:
        thread = threading.Thread(target=run_daemon, args=(node, None, output.append))
        thread.start()
        try:
            until(lambda: bool(caplog.messages), "the device is in the log")
            assert node.metrics.registry.get_sample_value("toy_device_celsius", {"function": HOT}) == 93.5
        finally:
            node.stop()
            thread.join(60)
    assert f"device {HOT} has 94 degrees Celsius; check its cooling" in caplog.messages
    assert not any("sensor" in line for line in output)
    sensor.unlink()
    with open_node(settings, LocalHost(bed.host), store_source(bed.store, settings.node_name)) as node:
        assert [text for part in node.parts for text in part.warnings()] == [
            "no PCI device of this host has a sensor, so there are no temperatures"
        ]


def test_without_a_registration_a_node_has_no_such_part() -> None:
    assert not any("toy_node_part" in repr(make) for make in installed(NODE_PARTS))


TAGS = """
from pathlib import Path
from devalloc_node.parts import NodePart

class Tag:
    def read(self, target):
        return Path(target).read_text() if Path(target).exists() else None
    def apply(self, target, value, deadline):
        Path(target).unlink(missing_ok=True) if value is None else Path(target).write_text(value)

class Tags(NodePart):
    def __init__(self, node):
        pass
    def kinds(self):
        return {"tag": Tag()}
"""


def test_steps_of_a_kind_that_a_part_brings_are_undone_with_the_claim(
    bed: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(tmp_path, "[devalloc.node_parts]\ntags = toy_tags:Tags\n")
    (tmp_path / "toy_tags.py").write_text(TAGS)
    monkeypatch.syspath_prepend(tmp_path)
    bed.settings = replace(bed.settings, parts=installed(NODE_PARTS))
    tag = tmp_path / "tag"
    with bed.running() as (node, stub):
        ref = allocated(bed)
        stub.PrepareClaim(pb.PrepareClaimRequest(claim=ref))
        (prepared,) = node.claims.prepared()
        device = next(iter(prepared.devices)).key
        node.claims.add(prepared.ref, Step("tag", str(tag), None, "lab"), Deadline.after(60.0), device=device)
        assert tag.read_text() == "lab"
        stub.UnprepareClaim(pb.UnprepareClaimRequest(claim=ref))
    assert not tag.exists()


class Fleet:
    """A store with one device and a claim for it, and the command, each call in a process of its own."""

    def __init__(self, folder: Path, packages: Path) -> None:
        self.path = folder / "store.db"
        path = [str(packages), str(ROOT / "docs/development"), os.environ.get("PYTHONPATH", "")]
        self._env = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "DEVALLOC_STORE": str(self.path)}
        with closing(SQLiteStore(self.path)) as store:
            fill(store, gpu_class(), gpu_pool(devices=1), gpu_claim("wants"))

    def __call__(self, *words: str, stdin: str = "") -> str:
        """What a command prints, with its errors."""
        return self._run("-m", "devalloc.cli", *words, stdin=stdin)

    def allocate(self) -> None:
        """Rounds of an allocator, in a process that has the packages."""
        self._run("-c", ROUNDS, str(self.path))

    def _run(self, *words: str, stdin: str = "") -> str:
        done = subprocess.run([sys.executable, *words], env=self._env, input=stdin, capture_output=True, text=True)
        return done.stdout + done.stderr


ROUNDS = """
import sys
from contextlib import closing
from pathlib import Path
from devalloc.store.sqlite import SQLiteStore
from tests.support.allocator_rounds import settle
from tests.support.machine_allocator import machine_allocator

with closing(SQLiteStore(Path(sys.argv[1]))) as store:
    settle(machine_allocator(store))
"""
LOAN = """
apiVersion: toys.example.com/v1
kind: Loan
metadata: {name: bench, namespace: default}
spec: {devicePoolName: p, deviceName: d0, borrower: the lab}
"""


def test_a_package_adds_a_kind_what_it_has_of_devices_and_a_verb(tmp_path: Path) -> None:
    register(tmp_path, LOANS)
    fleet = Fleet(tmp_path, tmp_path)
    assert "deviceNmae" in fleet("validate", "-f", "-", stdin=LOAN.replace("deviceName", "deviceNmae"))
    assert "created" in fleet("apply", "-f", "-", stdin=LOAN)
    fleet.allocate()
    assert "DevicesInUse" in fleet("get", "claims")
    assert "Loan default/bench" in fleet("explain", "wants")
    assert "0 more like default/wants" in fleet("capacity", "wants")
    assert fleet("loans").strip() == "d0 is lent: the lab"
    assert "bench" in fleet("get", "loans")
    assert "loans" in fleet("--help")
    assert "Show who has devices without a claim" in fleet("--help-all")
    assert "name: loans.toys.example.com" in fleet("crds")
    assert '"allocated": false' in fleet("solve", "--with-store", "-o", "json")
    fleet("delete", "loan/bench")
    fleet.allocate()
    assert "p/d0" in fleet("get", "claims")


def test_without_the_package_none_of_it_is_there(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, tmp_path)
    assert "no verb `loans`" in fleet("loans")
    assert "loans" not in fleet("--help-all")
    assert "devalloc does not use this kind" in fleet("validate", "-f", "-", stdin=LOAN)


def broken(folder: Path, group: str, module: str = "import nothing_here\n") -> str:
    """Register a package in a group, and what it says when it is used."""
    register(folder, f"[{group}]\nbroken = broken_package:ADDED\n")
    (folder / "broken_package.py").write_text(module)
    why = "importing it fails: ModuleNotFoundError: No module named 'nothing_here'"
    return f"error: a package adds broken_package:ADDED to devalloc, but {why}; upgrade it or uninstall it\n"


def test_a_verb_that_cannot_be_loaded_fails_when_it_is_used(tmp_path: Path) -> None:
    message, fleet = broken(tmp_path, "devalloc.verbs"), Fleet(tmp_path, tmp_path)
    assert fleet("broken", "--any", "word") == message
    assert "broken" in fleet("--help")
    assert "wants" in fleet("get", "claims")


def test_a_kind_that_cannot_be_loaded_ends_a_command_with_one_line(tmp_path: Path) -> None:
    message, fleet = broken(tmp_path, "devalloc.kinds"), Fleet(tmp_path, tmp_path)
    assert fleet("get", "claims") == message
    assert "Usage" in fleet("get", "--help")


def test_a_package_that_exits_when_it_is_imported_is_an_error(tmp_path: Path) -> None:
    broken(tmp_path, "devalloc.kinds", "raise SystemExit(0)\n")
    output = Fleet(tmp_path, tmp_path)("get", "claims")
    assert "a package adds broken_package:ADDED to devalloc, but importing it fails: SystemExit: 0;" in output


@pytest.mark.parametrize("entry_points", ["[devalloc.kinds]\nno value\n", "[devalloc.kinds]\na = b\n[c]\nd\n"])
def test_entry_points_that_cannot_be_read_end_a_command_with_one_line(tmp_path: Path, entry_points: str) -> None:
    register(tmp_path, entry_points)
    (line,) = Fleet(tmp_path, tmp_path)("get", "claims").splitlines()
    assert line.startswith("error: a package adds devalloc.kinds to devalloc, but an entry_points.txt cannot be read: ")


def test_what_is_not_of_its_group_ends_a_command_with_one_line(tmp_path: Path) -> None:
    broken(tmp_path, "devalloc.kinds", "ADDED = 'Loan'\n")
    assert "broken_package:ADDED to devalloc, but it is no ApiKind" in Fleet(tmp_path, tmp_path)("get", "claims")


def test_a_requester_that_cannot_be_loaded_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(tmp_path, REQUESTERS)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BadPackage, match="nothing_here"):
        installed(REQUESTERS)


def test_a_kind_of_ours_is_not_replaced(tmp_path: Path) -> None:
    twin = "from devalloc.api.api_kind import ApiKind\n"
    twin += "ADDED = ApiKind('DevicePool', 'example.com/v1', 'pools', 'pool', (), True)\n"
    broken(tmp_path, "devalloc.kinds", twin)
    (line,) = Fleet(tmp_path, tmp_path)("get", "pools").splitlines()
    assert line.startswith("error: a package adds the kind DevicePool of example.com/v1 to devalloc, but there is such")


def test_parts_of_the_same_name_are_all_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        register(tmp_path / name, f"[devalloc.node_parts]\npart = {name}_part:make\n", name)
        (tmp_path / name / f"{name}_part.py").write_text("def make(node):\n    pass\n")
        monkeypatch.syspath_prepend(tmp_path / name)
    assert [make.__module__ for make in installed(NODE_PARTS)] == ["one_part", "other_part"]


def test_a_verb_of_ours_is_not_replaced(tmp_path: Path) -> None:
    register(tmp_path, "[devalloc.verbs]\nversion = toy_loans.verb:loans\n")
    assert Fleet(tmp_path, tmp_path)("version").startswith("devalloc ")
