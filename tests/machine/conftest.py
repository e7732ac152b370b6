"""Real machines for the tier."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import micro_image, python_image, sriov_host, sriov_image
from tests.support.go_build import Progress, Unavailable
from tests.support.images import Image
from tests.support.machines import MIB
from tests.support.qemu import Machine, micro_arguments

HERE = Path(__file__).parent
TOGETHER = {
    **dict.fromkeys(("test_power_cut.py", "test_sriov_bindings.py"), "they share a host"),
    **dict.fromkeys(
        ("test_guest_partitions.py", "test_guest_scaling.py", "test_vm_objects.py"), "they run the plugin as users do"
    ),
    **dict.fromkeys(
        ("test_machine_model.py", "test_machine_owners.py", "test_machine_scaling.py", "test_machine_survival.py"),
        "their machines have one name, and so one cgroup",
    ),
}
"""Modules whose tests run one after the other, also where several workers run tests at the same time."""
FIRST = (
    *("test_guest_scaling.py", "test_guest_partitions.py", "test_vm_objects.py", "test_sriov_host.py"),
    *("test_machine_scaling.py", "test_machine_survival.py", "test_machine_owners.py", "test_machine_model.py"),
    *("test_power_cut.py", "test_sriov_bindings.py", "test_warm_objects.py", "test_crash.py"),
)
"""Modules that take the longest: what is begun last is to be short, so that no worker is left with nothing to do."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {name: number for number, name in enumerate(FIRST)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)) if item.path.parent == HERE else -1)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With several workers: a module at a time, and what belongs together by the one that began it. (Marks for
    `--dist loadgroup` would say the same, but are not seen with pytest 9.2.)"""
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False  # in the order of ``FIRST``

    class ByModule(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            module = nodeid.partition("::")[0].rpartition("/")[2]
            return TOGETHER.get(module, module)

    return ByModule(config, log)


def built(request: pytest.FixtureRequest, image: Callable[[Progress], Image]) -> Image:
    """An image; the first time it is built, which takes a minute or less and says how far it is."""
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def progress(line: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"  {line}", flush=True)

    try:
        return image(progress)
    except Unavailable as reason:
        pytest.skip(f"no test machine: {reason}")


@pytest.fixture(scope="session")
def micro(request: pytest.FixtureRequest) -> Image:
    """QEMU 7.2 and a Linux 6.1 with a shell on its second serial port: for tests that start machines themselves."""
    return built(request, micro_image.image)


@pytest.fixture
def machine(micro: Image, tmp_path: Path) -> Iterator[Machine]:
    """A running machine of the micro image; ``machine.guest.run(command)`` runs a command in it."""
    with Machine(micro, tmp_path, micro_arguments(micro)) as machine:
        yield machine


@pytest.fixture
def open_image(micro: Image) -> Iterator[Image]:
    """The image where every user can read it; its own folder is its user's."""
    with tempfile.TemporaryDirectory(prefix="dvm-image-") as name:
        os.chmod(name, 0o755)
        folder = Path(name) / "image"
        subprocess.run(["cp", "-al", str(micro.folder), str(folder)], check=True)
        launcher = (folder / "qemu").read_text().replace(str(micro.folder), str(folder))
        (folder / "qemu").unlink()
        (folder / "qemu").write_text(launcher)
        (folder / "qemu").chmod(0o755)
        (folder / "disk").write_bytes(b"\0" * (8 * MIB))
        (folder / "disk").chmod(0o600)
        (folder / "read-only").write_bytes(b"not to be changed".ljust(MIB))
        (folder / "outside").symlink_to("/etc/passwd")
        yield Image(folder)


@pytest.fixture(scope="session")
def sriov(request: pytest.FixtureRequest) -> Image:
    """QEMU 10 and a Linux 6.12 with Python, udev and a QEMU of its own."""
    return built(request, sriov_image.image)


@pytest.fixture(scope="session")
def python(request: pytest.FixtureRequest) -> Image:
    """A Linux 6.1 with Python, for what runs in guests. It has no QEMU of its own."""
    return built(request, python_image.image)


@pytest.fixture(scope="session")
def project(sriov: Image, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A disk with this checkout of the project."""
    return sriov_host.project_disk(sriov, tmp_path_factory.mktemp("project") / "disk")


@pytest.fixture(scope="session")
def host(sriov: Image, project: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A running host with an IOMMU, two NUMA nodes and SR-IOV. All tests of a group share it, for booting it takes
    long: each leaves it as it was."""
    folder = tmp_path_factory.mktemp("host")
    state = sriov_host.state_disk(sriov, folder / "state")
    with Machine(sriov, folder, sriov_host.arguments(sriov, project, state), seconds=300) as host:
        yield host
