"""The example of a node part in ``docs/development``: a node has it as soon as a package registers it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from devalloc.plugins import installed
from devalloc.programs.inventory_options import InventoryOptions
from devalloc.programs.node_options import PluginOptions, node_settings
from devalloc.programs.node_parts import store_source
from devalloc_node.daemon import run_daemon
from devalloc_node.node import open_node
from devalloc_node.parts import GROUP
from tests.conformance.test_node_daemon_store import Bed
from tests.support.fake_host import LocalHost
from tests.support.fake_tree import memory_folder
from tests.support.waiting import until
from tools.words import ROOT

REGISTRATION = "[devalloc.node_parts]\ntemperatures = toy_node_part:Temperatures\n"
HOT = "0000:01:00.0"


@pytest.fixture
def bed() -> Iterator[Bed]:
    with memory_folder() as folder:
        bed = Bed(Path(folder))
        with closing(bed.store):
            yield bed


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with the toy, as an installer leaves it."""
    about = tmp_path / "toy_node_part-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-node-part\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(REGISTRATION)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "docs/development")


@pytest.mark.usefixtures("toy")
def test_options_come_to_a_node_with_all_parts_that_are_installed(tmp_path: Path) -> None:
    settings = node_settings(InventoryOptions(node_name="n", sysfs_root=tmp_path), PluginOptions(), 60.0)
    assert installed(GROUP)
    assert settings.parts[-len(installed(GROUP)) :] == installed(GROUP)


@pytest.mark.usefixtures("toy")
def test_the_toy_tells_a_node_how_hot_its_devices_are(
    bed: Bed, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toy_node_part.LOOK_SECONDS", 0.01)
    sensor = bed.folder / "host/sys/bus/pci/devices" / HOT / "hwmon/hwmon0/temp1_input"
    sensor.parent.mkdir(parents=True)
    sensor.write_text("93500\n")
    settings = replace(bed.settings, parts=installed(GROUP))
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
    assert not any("toy_node_part" in repr(make) for make in installed(GROUP))
