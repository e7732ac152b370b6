"""A device's whole way on a real kernel with SR-IOV: found, claimed, allocated, prepared, in a machine, and back.

The host is itself a machine (tests/support/sriov_host.py), its machines are emulated within it. All that is done to it
is done by the project's own command lines; what became of it is read from its /sys, /proc and /dev by other means.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support import sriov_host, tiny_guest
from tests.support.host_commands import LONG, HostCommands, seconds_until_said
from tests.support.qemu import Machine

IMAGES, MANIFESTS = "/run/images", "/run/manifests"
VFS = 2
"""How many a card is given when the first of them is wanted."""
CLASS_AND_CLAIM = """\
apiVersion: devmgmtproto.k8s.io/v1alpha1
kind: DeviceClass
metadata: {name: vf}
spec: {driver: nic.devalloc.io, constraints: device.function == 'vf'}
---
apiVersion: devmgmtproto.k8s.io/v1alpha1
kind: DeviceClaim
metadata: {name: uplink}
spec: {claims: [{deviceClass: vf}]}
"""
MACHINE = f"""\
apiVersion: devalloc.io/v1alpha1
kind: VirtualMachine
metadata: {{name: web}}
spec:
  nodeName: guest
  cpu: {{min: 1, max: 1}}
  memory: {{min: 64Mi, max: 64Mi}}
  start: {{kernel: {IMAGES}/web}}
  pciSlots: 1
  powerdownSeconds: 1
"""


@dataclass(frozen=True)
class Node:
    """A host on which `devalloc up` runs."""

    host: Machine
    lines: HostCommands
    up: str
    """The file with what `devalloc up` says."""
    before: dict[str, Any]
    """The host's devices before it ran."""

    def devalloc(self, line: str) -> str:
        """What a command line says, which must succeed."""
        began = time.monotonic()
        try:
            return self.lines.check(f"devalloc {line}")
        finally:
            print(f"devalloc {line}: {time.monotonic() - began:.1f} s")

    def in_time(self, line: str) -> str:
        """As ``devalloc``, again while it says that the same may succeed later: the host may be too slow for it."""
        deadline = time.monotonic() + LONG
        line += "" if "--timeout" in line else f" --timeout {LONG:.0f}s"
        while True:
            began = time.monotonic()
            answer = self.lines.run(f"devalloc {line}")
            print(f"devalloc {line}: {time.monotonic() - began:.1f} s: {answer.output}")
            if not answer.status:
                return answer.output
            late = any(words in answer.output for words in ("(the same may succeed later)", "no answer in time"))
            assert late, answer.output
            assert time.monotonic() < deadline, answer.output

    def text(self, path: str) -> str:
        """Of a file of a device's folder."""
        return self.host.guest.check(f"cat /sys/bus/pci/devices/{path}")

    def link(self, path: str) -> str:
        """The last part of where a link in a device's folder leads; "" where there is none."""
        return self.host.guest.run(f"readlink /sys/bus/pci/devices/{path}").output.rpartition("/")[2]

    def holders(self, node: str) -> list[str]:
        """Programs that hold a device node open."""
        script = f"for p in /proc/[0-9]*; do ls -l $p/fd 2>/dev/null | grep -q ' {node}$' && cat $p/comm; done; true"
        return self.host.guest.check(script).split()

    def assert_as_before(self) -> None:
        """Soon: a card whose VFs go away takes its time, and up does later what it had no time for."""
        deadline = time.monotonic() + LONG
        while (now := self.lines.snapshot()) != self.before and time.monotonic() < deadline:
            time.sleep(1)
        assert now == self.before


@pytest.fixture(scope="module")
def node(host: Machine) -> Iterator[Node]:
    lines = HostCommands(host.guest)
    before = lines.snapshot()
    host.guest.check(f"mkdir -p {IMAGES} {MANIFESTS}")
    lines.put(f"{IMAGES}/web", tiny_guest.image())
    lines.put(f"{MANIFESTS}/claim.yaml", CLASS_AND_CLAIM.encode())
    lines.put(f"{MANIFESTS}/web.yaml", MACHINE.encode())
    up = lines.start(f"devalloc up --image-folder {IMAGES} --max-vfs {VFS}")
    host.guest.until("[ -S /run/devalloc/node.sock ]", seconds=LONG)
    try:
        yield Node(host, lines, up, before)
    finally:
        print(host.guest.run(f"cat {up}").output)


@pytest.fixture
def claimed(node: Node) -> Node:
    """The node where the claim ``uplink`` is allocated."""
    node.devalloc(f"apply -f {MANIFESTS}/claim.yaml")
    node.in_time("wait uplink")
    return node


def test_a_virtual_function_goes_into_a_machine_and_comes_back(claimed: Node) -> None:
    node = claimed
    found = node.devalloc("discover -o name").split()
    assert {f"devicepool/guest-0000-{card}" for card in ("41-00", "42-00", "81-00", "82-00", "83-00")} <= set(found)
    vfs = [node.text(f"{card}/sriov_numvfs") for card in sriov_host.CARDS]
    assert vfs == ["0", "0"], "allocated is not touched: nobody has wanted it in a machine yet"

    node.in_time(f"vm create -f {MANIFESTS}/web.yaml")
    told = re.search(r"attached to web: guest-(\S+)/(\S+)", node.in_time("vm attach web uplink"))
    assert told, "the answer says which device it is"
    card, vf = (name.replace("-", ":", 2).replace("-", ".") for name in (f"{told[1]}-0", told[2]))
    assert card in sriov_host.CARDS
    assert (node.text(f"{card}/sriov_numvfs"), node.text(f"{card}/sriov_drivers_autoprobe")) == (str(VFS), "0")
    assert [node.link(f"{card}/virtfn{number}/driver") for number in range(VFS)].count("vfio-pci") == 1
    assert node.link(f"{vf}/driver") == "vfio-pci"
    group = f"/dev/vfio/{node.link(f'{vf}/iommu_group')}"
    assert [name[:4] for name in node.holders(group)] == ["qemu"]
    owner = f"stat -c %u {group}"
    assert node.host.guest.check(owner) != "0", "each machine has a user of its own"

    node.in_time("vm detach web uplink")
    assert node.holders(group) == []
    assert node.host.guest.check(owner) == "0"
    assert node.link(f"{vf}/driver") == "vfio-pci", "it stays prepared, for the next machine"

    node.in_time("vm unprepare uplink")
    node.assert_as_before()
    assert "released" in node.devalloc("release uplink")
    node.in_time("vm delete web --force")


def test_a_card_that_is_plugged_into_the_host_is_offered_and_one_that_is_pulled_is_not(node: Node) -> None:
    """The delay is printed, by the host's clock; it is emulated, and several times as slow as a host."""
    card, pool = "/sys/bus/pci/devices/0000:44:00.0", "guest-0000-44-00"
    node.host.monitor.execute("device_add", driver="igb", id="card", bus="hot0", mac="52:54:00:00:00:03")
    appeared = seconds_until_said(node.host.guest, f"[ -e {card} ]", node.up, f"pools: created.*{pool}")
    assert f"devicepool/{pool}" in node.devalloc("get pools -o name").split()

    node.host.monitor.execute("device_del", id="card")
    went = seconds_until_said(node.host.guest, f"[ ! -e {card} ]", node.up, f"pools:.*deleted.*{pool}")
    assert f"devicepool/{pool}" not in node.devalloc("get pools -o name").split()
    print(f"published {appeared:.1f} s after it appeared, withdrawn {went:.1f} s after it went")
