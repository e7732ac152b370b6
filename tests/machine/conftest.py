"""Real machines for the tier."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from devalloc_machines.qemu.settings import MachineConfig
from tests.support import firmware_image, kernel_modules, micro_image, python_image, sriov_host, sriov_image, tiny_guest
from tests.support.go_build import Progress, Unavailable
from tests.support.images import Image
from tests.support.machines import MIB, config, ended, short_folder
from tests.support.node_fleet import Fleet
from tests.support.qemu import Machine, micro_arguments
from tests.support.scheduler import pytest_collection_modifyitems, pytest_xdist_make_scheduler

__all__ = ["pytest_collection_modifyitems", "pytest_xdist_make_scheduler"]


Built = TypeVar("Built", Image, Path)


def built(request: pytest.FixtureRequest, image: Callable[[Progress], Built]) -> Built:
    """An image or disk; the first time it is built, which takes a minute or less and says how far it is."""
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


@pytest.fixture(scope="session")
def platform(request: pytest.FixtureRequest) -> Image:
    """UEFI firmware, a TPM, and disks to start from."""
    return built(request, firmware_image.image)


@pytest.fixture
def settings(micro: Image) -> Iterator[MachineConfig]:
    with short_folder() as folder:
        made = config(micro, folder)
        with ended(made):
            yield made


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
        folder, source = Path(name) / "image", micro.folder.resolve()  # in the cache it may be a link
        subprocess.run(["cp", "-al", str(source), str(folder)], check=True)
        launcher = (folder / "qemu").read_text().replace(str(source), str(folder))
        (folder / "qemu").unlink()
        (folder / "qemu").write_text(launcher)
        (folder / "qemu").chmod(0o755)
        (folder / "disk").write_bytes(b"\0" * (8 * MIB))
        (folder / "disk").chmod(0o600)
        (folder / "read-only").write_bytes(b"not to be changed".ljust(MIB))
        (folder / "outside").symlink_to("/etc/passwd")
        yield Image(folder)


@pytest.fixture
def fleet(open_image: Image) -> Iterator[Fleet]:
    """Two nodes, which have the kernel of the tiny guest."""
    (open_image.folder / "tiny").write_bytes(tiny_guest.image())
    with short_folder() as folder:
        made = Fleet(folder, open_image)
        try:
            yield made
        finally:
            made.end()
            print(made.log())


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
def modules(sriov: Image, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A disk with the kernel modules that the host's Debian does not have."""
    return built(
        request, lambda progress: kernel_modules.disk(sriov, tmp_path_factory.mktemp("modules") / "disk", progress)
    )


@pytest.fixture(scope="session")
def host(sriov: Image, project: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A running host with an IOMMU, two NUMA nodes, SR-IOV and a page of 1 GiB. All tests of a group share it, for
    booting it takes long: each leaves it as it was."""
    folder = tmp_path_factory.mktemp("host")
    state = sriov_host.state_disk(sriov, folder / "state")
    words = sriov_host.arguments(sriov, project, state, gibibytes=4, append=sriov_host.ONE_GIB_PAGE)
    with Machine(sriov, folder, words, seconds=300) as host:
        yield host
