"""Checks before a machine starts: KVM works (a real boot proves it), and the host and its QEMU are large enough.

It also refuses a machine under the name of another one that still runs.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Literal

from devalloc.api.virtual_machine import VirtualMachine
from devalloc.inventory.capacity.cpus import free_huge_pages, parse_cpu_list
from devalloc.inventory.sysfs import Tree
from devalloc_machines.qemu import spawn
from devalloc_machines.qemu.guest_numa import memory_by_cell
from devalloc_machines.qemu.records import (
    MachineView,
)
from devalloc_machines.qemu.settings import MachineConfig
from devalloc_machines.qemu.spec import MIB, NO_RATES, MachineSpec, memory_text, spec_of
from devalloc_node.errors import Denied
from devalloc_node.model.step import NUMA_NODE, Prepared


def check_slots(machine: VirtualMachine, claims: Sequence[Prepared]) -> None:
    """Raises Denied (``TooFewPciSlots``) if a machine that is to be started can never have all devices: it is not to
    be started for that, and ended again."""
    needed = sum(not device.admin for claim in claims for device in claim.devices)
    there = machine.spec.slots
    if machine.spec.adopt is None and needed > there:
        raise Denied(
            "TooFewPciSlots",
            f"the claims of machine {'/'.join(machine.key)} have {needed} devices, but it has {there} PCI slots: "
            f"each device needs one; set pciSlots to {needed} or more",
        )


_CHANGED_BY_OBJECTS = ("scaling", "runner", "disk", "disk_io", "network", "reserve_max", "numa_policy")
"""What is not told to QEMU: objects change it while their machines run. A machine of the service has no object."""


def check_numa(machine: VirtualMachine, claims: Sequence[Prepared]) -> None:
    """Raises Denied (``NumaNodeMismatch``) if a machine without an object, which no allocator placed, is to be on
    one NUMA node and a device of its claims is on another one."""
    start = machine.spec.start
    if machine.metadata.uid or start is None or machine.spec.numa_policy != "single-numa-node":
        return
    for device in (device for claim in claims for device in claim.devices if not device.admin):
        numa = device.attributes.get(NUMA_NODE)
        if numa not in (None, start.numa_node):
            raise Denied(
                "NumaNodeMismatch",
                f"machine {'/'.join(machine.key)} is to be on NUMA node {start.numa_node} alone, but device "
                f"{device.name} is on node {numa}; choose another start.numaNode, or numaPolicy none",
            )


def refuse_other_spec(there: MachineView, requested: VirtualMachine) -> None:
    """Raises Denied (``MachineExists``) if a machine that runs was started as something else than is asked for: only
    its claims, and with them its slots, come and go while it runs, and its rates change."""
    if there.started is None:
        return
    then, now = (
        replace(spec, claims=(), pci_slots=0, numa_cells=(), page_node=None, rates=NO_RATES, disk_bytes=0)
        for spec in (there.started, spec_of(requested))
    )
    other = [
        field.name.replace("_", " ") for field in fields(then) if getattr(then, field.name) != getattr(now, field.name)
    ]
    if not there.uid and there.created_as is not None:
        was, wanted = there.created_as.spec, requested.spec
        other += [name.replace("_", " ") for name in _CHANGED_BY_OBJECTS if getattr(was, name) != getattr(wanted, name)]
    if other:
        raise Denied(
            "MachineExists",
            f"machine {there.key} already runs with another {', '.join(other)}; scale it, or delete it first",
        )


LOG = logging.getLogger(__name__)
BOOT_SECONDS = 10.0
"""KVM counts in a tenth of a second. A kernel that only emulates (kvm_pvm does) would take minutes."""
_NO_SECONDS = 3600.0
"""How long it counts that no guest booted."""
_BYE = (0x10 << 1) | 1
"""The exit status of QEMU when the boot sector wrote 0x10 to the port of isa-debug-exit."""
_BOOT_SECTOR = bytes.fromhex(
    # From real mode through paging into long mode, as a kernel goes; there it counts 2**26 down and says goodbye.
    "fafc31c08ed88ec08ed0bc007cbf00106631c0b9000c66f3abc70600100320c70600200330c7060030830066b8001000000f22d80f20e0"
    "6683c8200f22e066b9800000c00f32660d000100000f300f0116887c0f20c0660d010000800f22c0ea647c0800b900000004ffc975fcb0"
    "10e6f4f4ebfd0f1f4000000000000000000000000000009a20000f00787c"
)
_DISK_BYTES = 1 << 20


def choose_accelerator(config: MachineConfig, kvm: Path = Path("/dev/kvm")) -> Literal["kvm", "tcg"]:
    """How machines of this host are run. With ``auto`` the verdict is kept until the host or QEMU changes.

    Raises Denied (``KvmUnusable``) if KVM is demanded and does not boot a guest.
    """
    if config.accel == "tcg":
        return "tcg"
    works = os.access(kvm, os.R_OK | os.W_OK) and _cached_verdict(config)
    if config.accel == "kvm" and not works:
        raise Denied("KvmUnusable", f"KVM is required, but no guest boots with {kvm}; the log of the plugin says why")
    return "kvm" if works else "tcg"


def why_no_boot(binary: str, accel: str, seconds: float = BOOT_SECONDS) -> str:
    """Why a guest of 512 bytes does not get into long mode, count to 67 million and end, all within ``seconds``; empty
    if it does."""
    # Nothing of it may be left by a plugin that is killed meanwhile: the disk has no name, and the guest is tied to us.
    disk = os.memfd_create("devalloc-boot")
    try:
        os.write(disk, _BOOT_SECTOR.ljust(510, b"\0") + b"\x55\xaa")
        os.truncate(disk, _DISK_BYTES)
        words = [sys.executable, "-I", str(Path(spawn.__file__).resolve()), spawn.WITH_PARENT, str(os.getpid())]
        words += [binary, "-accel", accel, "-cpu", "host" if accel == "kvm" else "max", "-machine", "q35", "-m", "16M"]
        words += ["-display", "none", "-nodefaults", "-no-user-config", "-no-reboot"]
        words += ["-device", "isa-debug-exit,iobase=0xf4,iosize=0x04"]
        words += ["-drive", f"file=/proc/self/fd/{disk},format=raw,if=ide"]
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False, pass_fds=(disk,)
        )
    except subprocess.TimeoutExpired:
        return f"the guest did not end within {seconds:.0f} s"
    except OSError as error:
        return f"{binary} cannot be run: {error.strerror or error}"
    finally:
        os.close(disk)
    if done.returncode == _BYE:
        return ""
    lines = done.stderr.decode(errors="replace").split("\n")
    return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "QEMU ended without a message")


def _cached_verdict(config: MachineConfig) -> bool:
    """The verdict of an earlier test of the same boot, kernel and QEMU, or a new test.

    A no does not count for ever: a host that is busy while it comes up may be too slow once.
    """
    file = config.state / "kvm.json"
    host = _host(config.binary)
    with suppress(OSError, ValueError, KeyError, TypeError):
        cached = json.loads(file.read_text())
        age = time.time() - file.stat().st_mtime
        if cached["host"] == host and (cached["boots"] or 0 <= age < _NO_SECONDS):
            return bool(cached["boots"])
    verdict = not (why := why_no_boot(config.binary, "kvm"))
    if not verdict and shutil.which(config.binary) is None:
        LOG.warning("%s not found on this host: machines cannot start until QEMU is installed", config.binary)
    elif not verdict:
        LOG.warning("no guest boots with /dev/kvm, so machines are emulated and slow: %s", why)
    with suppress(OSError):
        config.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        file.write_text(json.dumps({"host": host, "boots": verdict}))
    return verdict


def _host(binary: str) -> list[object]:
    path = shutil.which(binary) or binary
    facts: list[object] = [os.uname().release, path]
    with suppress(OSError):
        facts += [os.stat(path).st_mtime_ns, os.stat(path).st_size]
    with suppress(OSError):
        facts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    return facts


NODES = Path("/sys/devices/system/node")
EMULATED_BITS = 40
"""Bits of an address of memory in an emulated CPU (QEMU's TCG)."""
_FLAGS = re.compile(r"^flags\s*: (.*)$", re.MULTILINE)
_PHYSICAL = re.compile(r"^address sizes\s*: (\d+) bits physical", re.MULTILINE)
_AMOUNT = re.compile(r"^(?:MemTotal|SwapTotal):\s*(\d+) kB$", re.MULTILINE)
_PERMANENT_FAILURES = ("Invalid SMP CPUs", "phys-bits too low", "maximum memory size")
"""What QEMU says of a machine that it will never have, whenever it is asked."""


def check_host_limits(
    spec: MachineSpec,
    accel: Literal["kvm", "tcg"],
    proc: Path = Path("/proc"),
    nodes: Path = NODES,
) -> None:
    """Raises Denied: ``MachineTooLarge``, ``NumaNodeMissing``. What cannot be read bounds nothing: QEMU says it then,
    though later."""
    for number in spec.host_nodes:
        if not (nodes / f"node{number}").is_dir():
            raise Denied(
                "NumaNodeMissing",
                f"machine {spec.key} requires NUMA node {number}, which does not exist on this host; choose "
                "another start.numaNode",
            )
    if (whole := _bytes_of_host(proc)) is not None and spec.memory.least > whole:
        raise Denied(
            "MachineTooLarge",
            f"machine {spec.key} requires at least {spec.memory.least // MIB}Mi of memory, but this host has "
            f"{whole // MIB}Mi including swap; lower memory.min",
        )
    bits = address_bits(accel, proc)
    # QEMU would take half a minute for the tables of so much memory before it looks whether it can be addressed.
    if bits is not None and spec.memory.most >= 1 << bits:
        raise Denied(
            "MachineTooLarge",
            f"machine {spec.key} requires addresses for {spec.memory.most // MIB}Mi of memory, but its CPUs (with "
            f"{accel}) address less than {(1 << bits) // MIB}Mi; lower memory.max",
        )


def check_huge_pages(spec: MachineSpec, has: int, goal: int, root: Path = Path("/")) -> None:
    """Raises Denied (``HugePagesTooFew``, retryable) if too few huge pages are free for a machine with ``has`` bytes of
    memory to have ``goal``, on its NUMA nodes if it has any. Without huge pages there is nothing to check."""
    if spec.huge_page_bytes is None or goal <= has:
        return
    if not spec.numa_cells:
        _check_free_pages(spec, spec.huge_page_bytes, spec.numa_node, goal - has, root)
    by_cell = zip(spec.numa_cells, memory_by_cell(spec, has), memory_by_cell(spec, goal), strict=True)
    for cell, before, after in by_cell if spec.numa_cells else ():
        _check_free_pages(spec, spec.huge_page_bytes, cell.host_node, after - before, root)


def _check_free_pages(spec: MachineSpec, size: int, node: int | None, more: int, root: Path) -> None:
    free = free_huge_pages(Tree(root), size, node)
    if free >= more:
        return
    where = "this host" if node is None else f"NUMA node {node} of this host"
    folder = "/sys/kernel/mm" if node is None else f"{NODES}/node{node}"
    missing = -(-(more - free) // size)
    raise Denied(
        "HugePagesTooFew",
        f"machine {spec.key} needs {more // size} huge pages of {memory_text(size)}, but {where} has {free // size} "
        f"free; stop a machine that uses them, or set {missing} more aside: add them to the number in "
        f"{folder}/hugepages/hugepages-{size // 1024}kB/nr_hugepages (1Gi pages are best reserved at boot)",
    )


def cpus_of(*numa_nodes: int) -> tuple[int, ...]:
    """CPUs of NUMA nodes that machines may run on; none if they may run on any, or nothing tells which they are."""
    cpus: set[int] = set()
    for number in numa_nodes:
        with suppress(OSError):
            cpus |= parse_cpu_list((NODES / f"node{number}" / "cpulist").read_text()) or frozenset()
    return tuple(sorted(cpus & os.sched_getaffinity(0)))


def is_permanent_failure(words: str) -> bool:
    """Whether QEMU, by its last words, will never have such a machine."""
    return any(each in words for each in _PERMANENT_FAILURES)


def _bytes_of_host(proc: Path) -> int | None:
    try:
        sizes = _AMOUNT.findall((proc / "meminfo").read_text())
    except OSError:
        return None
    return sum(map(int, sizes)) * 1024 if sizes else None


def cpu_flags(proc: Path = Path("/proc")) -> tuple[str, ...]:
    """What the host's CPUs can do, by name; none if the host does not tell."""
    try:
        match = _FLAGS.search((proc / "cpuinfo").read_text())
    except OSError:
        return ()
    return () if match is None else tuple(sorted(set(match[1].split())))


def address_bits(accel: Literal["kvm", "tcg"], proc: Path = Path("/proc")) -> int | None:
    """Bits of a physical address of the machine's CPUs; None if the host does not tell."""
    if accel == "tcg":
        return EMULATED_BITS
    try:
        match = _PHYSICAL.search((proc / "cpuinfo").read_text())
    except OSError:
        return None
    return None if match is None else int(match[1])
