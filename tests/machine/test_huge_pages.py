"""Must show: a real machine's memory lies in huge pages of the host's NUMA node, also what it gets while it runs.

The pages are this host's own: the test sets some aside, as an admin does, and gives them back.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from devalloc_machines.qemu.lifecycle import MachineLifecycle
from devalloc_machines.qemu.settings import MachineConfig
from devalloc_node.errors import Denied
from tests.support.deadlines import soon
from tests.support.guest import Guest
from tests.support.images import Image
from tests.support.machines import MIB, MICRO_APPEND, plugin, running, virtual_machine
from tests.support.waiting import until

KEY = "default/m"
PAGE = 2 * MIB
POOL = Path("/sys/devices/system/node/node0/hugepages/hugepages-2048kB")
NEEDED = 512 * MIB // PAGE
TRIES = 5
"""To have the kernel move other pages together."""


def free_pages() -> int:
    return int((POOL / "free_hugepages").read_text())


@pytest.fixture
def pages() -> Iterator[None]:
    """As many free pages as the machine may ever have, and no more."""
    total = POOL / "nr_hugepages"
    if not os.access(total, os.W_OK):
        pytest.skip("setting huge pages aside takes root, and a kernel with NUMA nodes and pages of 2 MiB")
    with total.open() as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)  # other workers set pages aside, too
        before, free = int(total.read_text()), free_pages()
        try:
            for _ in range(TRIES):
                total.write_text(str(before + NEEDED - free))
                if free_pages() == NEEDED:
                    break
                Path("/proc/sys/vm/compact_memory").write_text("1")
            else:
                pytest.skip(f"this host has no {NEEDED} free huge pages of 2 MiB to set aside")
            yield
        finally:
            total.write_text(str(before))


@pytest.fixture
def machines(pages: None, settings: MachineConfig) -> Iterator[MachineLifecycle]:
    with plugin(settings) as made:
        yield made


def huge_bytes(pid: int) -> int:
    """Bytes in huge pages that the kernel has given to a process, and only from node 0 by its own rule."""
    lines = Path(f"/proc/{pid}/numa_maps").read_text().splitlines()
    huge = [line.split() for line in lines if " huge " in line]
    assert all(words[1] == "bind:0" and "kernelpagesize_kB=2048" in words for words in huge)
    return sum(int(word.removeprefix("N0=")) * PAGE for words in huge for word in words if word.startswith("N0="))


@pytest.mark.parametrize("method", ["virtio-mem", "dimm"])
def test_all_memory_of_a_machine_comes_from_huge_pages_and_goes_back(
    machines: MachineLifecycle, micro: Image, method: str
) -> None:
    memory = {"min": "256Mi", "max": "512Mi", "hugePages": "2Mi", "method": method}
    memory |= {"slotSize": "128Mi"} if method == "dimm" else {}
    start = {"kernel": str(micro.kernel), "initrd": str(micro.initrd), "append": MICRO_APPEND, "numaNode": 0}
    machines.start(virtual_machine("m", micro, memory=memory, start=start), soon())
    machines.resume(KEY, soon())
    pid = running(machines).pid
    assert (huge_bytes(pid), free_pages()) == (256 * MIB, NEEDED - 128)

    other = virtual_machine("o", micro, memory=memory | {"min": "512Mi"}, start=start)
    words = r"needs 256 huge pages of 2Mi, but NUMA node 0 .* has 128 free; .* set 128 more"
    with pytest.raises(Denied, match=words) as too:
        machines.start(other, soon())
    assert (too.value.code, too.value.retryable, free_pages()) == ("HugePagesTooFew", True, NEEDED - 128)

    with closing(Guest(machines.config.folder(machines.record_for(KEY).spec.id) / "agent")) as guest:
        total_kib = int(guest.check("awk '/MemTotal/ {print $2}' /proc/meminfo"))
        machines.scale(KEY, "memory", 384 * MIB, soon())
        guest.until(f"[ $(awk '/MemTotal/ {{print $2}}' /proc/meminfo) -gt {total_kib + 100000} ]")
        assert (huge_bytes(pid), free_pages()) == (384 * MIB, NEEDED - 192)
        # An admin takes the rest away again: what there is no page of, the guest is never asked to take.
        total = POOL / "nr_hugepages"
        before = int(total.read_text())
        total.write_text(str(before - free_pages()))
        with pytest.raises(Denied, match="needs 64 huge pages of 2Mi, but NUMA node 0 of this host has 0 free"):
            machines.scale(KEY, "memory", 512 * MIB, soon())
        total.write_text(str(before))
        machines.scale(KEY, "memory", 512 * MIB, soon())
        assert (huge_bytes(pid), free_pages()) == (512 * MIB, 0)
        machines.scale(KEY, "memory", 256 * MIB, soon())
        until(lambda: free_pages() == NEEDED - 128, "the pages are free again", context=free_pages)
    machines.stop(KEY, 0, True, soon())
    until(lambda: free_pages() == NEEDED, "all pages are free again", context=free_pages)
