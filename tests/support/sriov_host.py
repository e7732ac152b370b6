"""A host with an IOMMU, two NUMA nodes and SR-IOV, as a machine for tests, with this checkout of the project in it.

What it has: network cards (igb, 7 virtual functions each) at 41:00.0 near node 0 and at 81:00.0 near node 1, an NVMe
with four virtual functions at 42:00.0, a GPU (ATI, not the console) at 82:00.0, a plain virtio network card at 83:00.0,
and free hot-plug ports ``hot0`` near node 0 and ``hot1`` near node 1. Near node 1 there are also two cards behind a
bridge without ACS, which share an IOMMU group (86:01.0, 86:02.0), a card of two functions (87:00), an NVMe with 16 GiB
of memory in a BAR (88:00.0), and a card of two functions that can be reset only together (89:00).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from deploy.images import debs
from tests.support import sriov_image
from tests.support.go_build import cache_folder, locked
from tests.support.images import Image
from tests.support.qemu import QUICK_BOOT, Machine

CARDS = ("0000:41:00.0", "0000:81:00.0")
"""The physical functions of the network cards, near node 0 and near node 1."""
NVME, GPU, PLAIN_NIC = "0000:42:00.0", "0000:82:00.0", "0000:83:00.0"
SHARED_SLOTS = ("0000:86:01.0", "0000:86:02.0")
"""Cards of one IOMMU group, without drivers and without a reset that the kernel could do."""
TWO_FUNCTIONS = ("0000:87:00.0", "0000:87:00.1")
"""One card."""
LARGE_BAR = "0000:88:00.0"
ONLY_TOGETHER = ("0000:89:00.0", "0000:89:00.1")
"""One card, without drivers; its functions have no reset but that of their bus."""
CPU = "max,avx=off,avx2=off,erms=off,fsrm=off,la57=off,xsave=off"
"""What costs an emulated CPU the least: nothing copied byte by byte, four levels of page tables, a small state."""
APPEND = (
    # tsc=unstable: as for micro machines
    f"console=ttyS0 quiet intel_iommu=on net.ifnames=0 tsc=unstable lpj=4000000 {QUICK_BOOT}"
    # On a busy machine no tick comes while the kernel looks whether any do, and it panics.
    " no_timer_check"
)
ONE_GIB_PAGE = "hugepagesz=1G hugepages=1:1"
"""Of the kernel's command line: reserves a page of 1 GiB on node 1, which must have more than 1 GiB."""
PACKAGES = (
    "devalloc",
    "solver/devalloc_solver",
    "node-plugin/devalloc_node",
    "node-plugin/devalloc_machines",
    "node-plugin/devalloc_neon",
    "tests/machine/inside",
)
REPOSITORY = Path(__file__).parents[2]


def arguments(
    image: Image, project: Path, state: Path, *, cpus: int = 1, gibibytes: int = 2, append: str = ""
) -> list[str]:
    """Of QEMU. ``project``: a disk of ``project_disk``. ``state``: a disk of ``state_disk``, which stays after the
    machine has ended; of the root disk nothing does. CPUs are near node 0, half of the memory near each node."""
    half = f"{gibibytes * 512}M"
    near, far = ("bus=pxb0", "bus=pxb1")
    ports = (
        (("rpa", near, 0), ("rpb", near, 1), ("rpv", near, 2), ("hot0", near, 3)),
        (("rpc", far, 0), ("rpd", far, 1), ("rpe", far, 2), ("hot1", far, 3)),
    )
    return [
        *(
            "-accel",
            "tcg,thread=multi,tb-size=512",
            "-cpu",
            CPU,
            "-machine",
            "q35",
            "-smp",
            str(cpus),
            "-m",
            f"{gibibytes}G",
        ),
        *("-object", f"memory-backend-ram,id=m0,size={half}", "-object", f"memory-backend-ram,id=m1,size={half}"),
        *("-numa", f"node,nodeid=0,memdev=m0,cpus=0-{cpus - 1}", "-numa", "node,nodeid=1,memdev=m1"),
        *("-device", "intel-iommu,intremap=on,caching-mode=on,device-iotlb=on"),
        *("-drive", f"if=none,id=root,file={image.folder / 'root.ext4'},format=raw,snapshot=on"),
        *("-device", "virtio-blk-pci,drive=root"),
        *("-drive", f"if=none,id=project,file={project},format=raw,readonly=on"),
        *("-device", "virtio-blk-pci,drive=project"),
        *("-drive", f"if=none,id=state,file={state},format=raw,cache=writeback"),
        *("-device", "virtio-blk-pci,drive=state"),
        *("-device", "pxb-pcie,id=pxb0,bus=pcie.0,bus_nr=64,numa_node=0"),
        *("-device", "pxb-pcie,id=pxb1,bus=pcie.0,bus_nr=128,numa_node=1"),
        *(
            word
            for group, side in enumerate(ports)
            for name, bus, address in side
            for word in (
                "-device",
                f"pcie-root-port,id={name},{bus},chassis={group + 1},slot={address + 1},addr={address}",
            )
        ),
        *(
            "-netdev",
            "user,id=n0,restrict=on",
            "-netdev",
            "user,id=n1,restrict=on",
            "-netdev",
            "user,id=n2,restrict=on",
        ),
        *("-device", "igb,bus=rpa,netdev=n0,mac=52:54:00:00:00:01"),
        *("-device", "igb,bus=rpc,netdev=n1,mac=52:54:00:00:00:02"),
        *("-device", "nvme-subsys,id=ss0"),
        *(
            "-device",
            "nvme,bus=rpb,serial=nvmepf,subsys=ss0,sriov_max_vfs=4,sriov_vq_flexible=8,sriov_vi_flexible=4,"
            "max_ioqpairs=10,msix_qsize=10",
        ),
        *("-device", "ati-vga,bus=rpv,romfile="),  # the console's
        *("-device", "ati-vga,bus=rpd,romfile="),
        *("-device", "virtio-net-pci,bus=rpe,netdev=n2,disable-legacy=on,iommu_platform=on"),
        *_behind_other_bridges(),
        *("-kernel", str(image.kernel), "-initrd", str(image.initrd), "-append", f"{APPEND} {append}"),
    ]


@contextmanager
def with_files(image: Image, content: Mapping[str, bytes], *, cpus: int, gibibytes: int) -> Iterator[Machine]:
    """A running host that also has a read-only disk ``images`` with these files (at most 64 MiB), until the end of the
    block."""
    with tempfile.TemporaryDirectory(prefix="devalloc-host-") as name:
        folder = Path(name)
        (folder / "content").mkdir()
        for path, data in content.items():
            (folder / "content" / path).write_bytes(data)
        disk = folder / "images"
        sriov_image.make_disk(image.folder / "root", folder / "content", disk, "images", mebibytes=80, journal=False)
        project, state = project_disk(image, folder / "project"), state_disk(image, folder / "state")
        more = [
            *("-drive", f"if=none,id=images,file={disk},format=raw,readonly=on"),
            *("-device", "virtio-blk-pci,drive=images,bus=pcie.0"),
        ]
        words = [*arguments(image, project, state, cpus=cpus, gibibytes=gibibytes), *more]
        with Machine(image, folder, words, seconds=600) as host:
            yield host


def _behind_other_bridges() -> Iterator[str]:
    """The cards that are not alone in their IOMMU group, and the one with a large BAR."""
    for number, name in enumerate(("shared", "two", "large", "together"), 4):
        yield from ("-device", f"pcie-root-port,id={name},bus=pxb1,chassis=2,slot={number + 1},addr={number}")
    yield from ("-device", "pcie-pci-bridge,id=conventional,bus=shared")
    for slot in (1, 2):
        yield from ("-device", f"e1000,bus=conventional,addr={slot},romfile=")
    for place in ("0.1", "0.0,multifunction=on"):
        yield from ("-device", f"virtio-net-pci,bus=two,addr={place},disable-legacy=on,iommu_platform=on,romfile=")
    for place in ("0.1", "0.0,multifunction=on"):
        yield from ("-device", f"e1000,bus=together,addr={place},romfile=")
    yield from ("-object", "memory-backend-ram,id=large-bar,size=16G,share=on,reserve=off")
    yield from ("-device", "nvme,bus=large,serial=large,pmrdev=large-bar")


def state_disk(image: Image, disk: Path) -> Path:
    """An empty file system with a journal, for what must outlive a power cut."""
    sriov_image.make_disk(image.folder / "root", None, disk, "state", mebibytes=64, journal=True)
    return disk


def project_disk(image: Image, disk: Path) -> Path:
    """A file system with this checkout, compiled for the guest's Python."""
    with locked(cache_folder() / "images" / "project") as _:
        folder = cache_folder() / "images" / "project" / "tree"
        _mirror(folder)
        python = debs.program(image.folder / "root", "usr/bin/python3.13")
        subprocess.run([*python, "-I", "-m", "compileall", "-q", str(folder)], check=False, capture_output=True)
        sriov_image.make_disk(image.folder / "root", folder, disk, "project", mebibytes=64, journal=False)
    return disk


def _mirror(folder: Path) -> None:
    """Bring a copy of the packages up to date; what has not changed keeps its compiled form."""
    wanted: set[Path] = set()
    for package in PACKAGES:
        for source in (REPOSITORY / package).rglob("*"):
            if not source.is_file() or "__pycache__" in source.parts:
                continue
            relative = source.relative_to(REPOSITORY)
            wanted.add(relative)
            target = folder / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists() or target.read_bytes() != source.read_bytes():
                shutil.copyfile(source, target)
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        relative = path.relative_to(folder)
        if path.suffix == ".pyc":
            relative = relative.parent.parent / f"{path.name.split('.')[0]}.py"
        if relative not in wanted:
            os.unlink(path)
