"""A device's whole way on a real kernel with SR-IOV: found, claimed, allocated, prepared, in a machine, and back.

The host is itself a machine (tests/support/sriov_host.py), its machines are emulated within it. All that is done to it
is done by the project's own command lines; what became of it is read from its /sys, /proc and /dev by other means.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support import kernel_modules, sriov_host, tiny_guest
from tests.support.guest import CommandResult
from tests.support.host_commands import LONG, HostCommands
from tests.support.inside_plugin import InsidePlugin
from tests.support.qemu import Machine

pytestmark = pytest.mark.timeout(900)
"""Seconds; a machine that others use as well boots slowly."""

IMAGES, MANIFESTS = "/run/images", "/run/manifests"
VFS = 2
"""How many a card is given when the first of them is wanted."""
ALLOWED = "--allow gpu --allow vf --allow mdev"
UP = f"devalloc up --image-folder {IMAGES}:shared --max-vfs {VFS} {ALLOWED}"
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


SERIAL = """\
apiVersion: devmgmtproto.k8s.io/v1alpha1
kind: DeviceClass
metadata: {name: serial}
spec: {driver: mdev.devalloc.io, constraints: device.profile == 'Dual port serial'}
---
apiVersion: devmgmtproto.k8s.io/v1alpha1
kind: DeviceClaim
metadata: {name: serial}
spec: {claims: [{deviceClass: serial}]}
"""
"""A mediated device of the kernel's sample driver."""


def machine(name: str, claims: str = "", kernel: str = "") -> bytes:
    """A VirtualMachine whose kernel has its name, or another."""
    return f"""\
apiVersion: devalloc.io/v1alpha1
kind: VirtualMachine
metadata: {{name: {name}}}
spec:
  nodeName: guest
  cpu: {{min: 1, max: 1}}
  memory: {{min: 64Mi, max: 64Mi}}
  start: {{kernel: {IMAGES}/{kernel or name}}}
  pciSlots: 1
  powerdownSeconds: 1
  claims: [{claims}]
""".encode()


@dataclass
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
        answer = self._run(line)
        assert answer.status == 0, answer.output
        return answer.output

    def in_time(self, line: str, *seconds: int) -> str:
        """As ``devalloc``, again with more time where the host was too slow for it."""
        for timeout in seconds or (LONG,) * 4:
            answer = self._run(f"{line} --timeout {timeout:.0f}s")
            if not answer.status:
                return answer.output
            late = any(words in answer.output for words in ("(it may succeed later)", "no answer in time"))
            assert late, answer.output
        raise AssertionError(answer.output)

    def refused(self, line: str, code: str, *seconds: int) -> str:
        """What a command line says that fails with a code, again with more time where the host was too slow for it."""
        for timeout in seconds:
            answer = self._run(f"{line} --timeout {timeout}s")
            assert answer.status == 1, answer.output
            if f"[{code}]" in answer.output:
                return answer.output
        raise AssertionError(answer.output)

    def _run(self, line: str) -> CommandResult:
        began = time.monotonic()
        answer = self.lines.run(f"devalloc {line}")
        print(f"devalloc {line}: {time.monotonic() - began:.1f} s: {answer.output}")
        return answer

    def start(self) -> None:
        """Run ``devalloc up``, until its node plugin answers."""
        self.up = self.lines.start(UP)
        ended = self.up.removesuffix(".out") + ".rc"
        self.host.guest.until(f"[ -S /run/devalloc/node.sock ] || [ -e {ended} ]", seconds=LONG)
        output = self.host.guest.run(f"! [ -e {ended} ] || {{ cat {self.up}; false; }}")
        assert output.status == 0, f"devalloc up has ended: {output.output}"

    def kill(self) -> None:
        """kill -9 of it, and of the node plugin in it."""
        self.lines.kill(self.up)
        self.host.guest.check("rm /run/devalloc/node.sock")

    def device_status(self, claim: str) -> dict[str, Any]:
        """What a claim says about its one device, once the node has written it."""
        deadline = time.monotonic() + LONG
        while time.monotonic() < deadline:
            (status,) = json.loads(self.devalloc(f"get claim {claim} -o json"))["status"].get("deviceStatuses", [{}])
            if "deviceInfo" in status:
                return dict(status)
        raise AssertionError(f"{claim} says nothing about its device")

    def look(self) -> dict[str, Any]:
        """What the host has now: "devices" and "interfaces", and "nodes" of /dev/vfio, by name."""
        return self.lines.snapshot()

    def assert_as_before(self) -> None:
        """Soon: a card whose VFs go away takes its time, and up does later what it had no time for."""
        deadline = time.monotonic() + LONG
        while (now := self.lines.snapshot()) != self.before and time.monotonic() < deadline:
            time.sleep(1)
        assert now == self.before


@pytest.fixture(scope="module")
def node(host: Machine, modules: Path) -> Iterator[Node]:
    InsidePlugin(host.guest).kill()  # of the modules before
    with kernel_modules.loaded(host, modules):
        yield from _running(host)


def _running(host: Machine) -> Iterator[Node]:
    lines = HostCommands(host.guest)
    before = lines.snapshot()
    host.guest.check(f"mkdir -p {IMAGES} {MANIFESTS}")
    lines.put(f"{IMAGES}/web", tiny_guest.image())
    lines.put(f"{IMAGES}/stubborn", tiny_guest.image(ejects=False))
    lines.put(f"{MANIFESTS}/claim.yaml", CLASS_AND_CLAIM.encode())
    lines.put(f"{MANIFESTS}/web.yaml", machine("web"))
    lines.put(f"{MANIFESTS}/stubborn.yaml", machine("stubborn", "uplink"))
    lines.put(f"{MANIFESTS}/serial.yaml", SERIAL.encode())
    lines.put(f"{MANIFESTS}/console.yaml", machine("console", "serial", kernel="web"))
    node = Node(host, lines, "", before)
    node.start()
    try:
        yield node
    finally:
        print(host.guest.run(f"cat {node.up}").output)
        node.kill()


@pytest.fixture(scope="module")
def claimed(node: Node) -> Node:
    """The node where the claim ``uplink`` is allocated. The tests share it, for each command line takes seconds."""
    node.devalloc(f"apply -f {MANIFESTS}/claim.yaml")
    node.in_time("wait uplink")
    return node


def held_by_qemu(seen: dict[str, Any]) -> list[str]:
    """The nodes of IOMMU groups that a QEMU has open."""
    return [name for name, node in seen["nodes"].items() if name != "vfio" and node["held_by"] == ["qemu-system-x86"]]


def test_the_host_in_a_machine_has_an_iommu_two_nodes_and_virtual_functions(node: Node) -> None:
    def facts(name: str) -> dict[str, str]:
        return {card: node.host.guest.check(f"cat /sys/bus/pci/devices/{card}/{name}") for card in sriov_host.CARDS}

    assert facts("sriov_totalvfs") == dict.fromkeys(sriov_host.CARDS, "7")
    assert list(facts("numa_node").values()) == ["0", "1"]
    devices = (*sriov_host.CARDS, sriov_host.NVME, sriov_host.GPU, sriov_host.PLAIN_NIC)
    groups = [node.before["devices"][device]["iommu_group"] for device in devices]
    assert len({*groups, ""}) == len(devices) + 1, "each is in a group of its own"
    assert node.host.guest.check("devalloc --version").startswith("devalloc")
    names = node.devalloc("discover -o name").split()
    assert {f"devicepool/guest-{device[:-2].replace(':', '-')}" for device in devices} <= set(names)


def test_a_virtual_function_goes_into_a_machine_and_comes_out_again(claimed: Node) -> None:
    node = claimed
    assert node.look() == node.before, "allocated is not touched: no machine has wanted it yet"

    node.in_time(f"vm create -f {MANIFESTS}/web.yaml")
    attached = re.search(r"attached to web: guest-(\S+)/(\S+)", node.in_time("vm attach web uplink"))
    assert attached, "the answer says which device it is"
    card, vf = (name.replace("-", ":", 2).replace("-", ".") for name in (f"{attached[1]}-0", attached[2]))
    assert card in sriov_host.CARDS
    seen = node.look()
    devices = seen["devices"]
    assert (devices[card]["sriov_numvfs"], devices[card]["sriov_drivers_autoprobe"]) == (str(VFS), "0")
    new = sorted(set(devices) - set(node.before["devices"]))
    assert (len(new), vf in new) == (VFS, True)
    assert [name for name in new if devices[name]["driver"]] == [vf]
    assert devices[vf]["driver"] == "vfio-pci"
    group = devices[vf]["iommu_group"]
    assert held_by_qemu(seen) == [group]
    assert seen["nodes"][group]["owner"] != 0, "each machine has a user of its own"
    status = node.device_status("uplink")
    (info,) = status["deviceInfo"]
    assert (status["deviceName"], info["binding"], info["functions"]) == (attached[2], "vfio", [vf])
    assert (info["nodes"], info["iommuGroups"]) == ([f"/dev/vfio/{group}"], [int(group)])
    assert "allocations" not in status, status

    node.in_time("vm detach web uplink")
    seen = node.look()
    assert seen["nodes"][group] == {"owner": 0, "held_by": []}
    assert seen["devices"][vf]["driver"] == "vfio-pci", "it stays prepared, for the next machine"
    node.in_time("vm delete web --force")


def test_what_a_guest_does_not_let_go_stays_with_its_machine_until_that_is_ended(claimed: Node) -> None:
    node = claimed
    node.in_time(f"vm create -f {MANIFESTS}/stubborn.yaml")
    inside = node.look()
    assert len(held_by_qemu(inside)) == 1

    refused = node.refused("vm detach stubborn uplink", "GuestRefused", 8, *[30] * 6)
    assert "uplink: denied: machine default/stubborn: the guest did not release claim-" in refused
    assert refused.endswith("[GuestRefused] (it may succeed later)")
    assert node.look() == inside, "nothing is unbound under a running machine"

    node.in_time("vm detach stubborn uplink --force", 16, 80, 200)
    assert node.host.guest.run("cat /proc/[0-9]*/comm | grep -q ^qemu").status == 1, "the machine was ended"
    seen = node.look()
    assert held_by_qemu(seen) == []
    assert seen["devices"] == inside["devices"], "the claim stays prepared"
    node.in_time("vm delete stubborn")


def test_an_unprepared_device_is_as_before(claimed: Node) -> None:
    claimed.in_time("vm unprepare uplink")
    claimed.assert_as_before()
    assert "released" in claimed.devalloc("release uplink")


def test_a_mediated_device_is_in_a_machine_that_outlives_a_killed_daemon_and_goes_with_its_claim(node: Node) -> None:
    """Of the kernel's sample driver, from the claim to the machine and back; between them the daemon is killed."""
    node.devalloc(f"apply -f {MANIFESTS}/serial.yaml")
    node.in_time("wait serial")
    assert node.look()["mdevs"] == [], "allocated is not created"
    node.in_time(f"vm create -f {MANIFESTS}/console.yaml")
    inside = node.look()
    (uuid,) = inside["mdevs"]
    link = node.host.guest.check(f"readlink /sys/bus/mdev/devices/{uuid}/iommu_group")
    assert held_by_qemu(inside) == [link.rpartition("/")[2]]
    (info,) = node.device_status("serial")["deviceInfo"]
    assert (info["binding"], info["mdevUUID"]) == ("mdev", uuid), info

    node.kill()
    assert node.look() == inside, "the machine goes on, and so does its device"
    node.start()
    assert node.look() == inside, "also under the daemon that takes it over"
    node.in_time("vm delete console --force")
    node.in_time("vm unprepare serial")
    node.assert_as_before()
    assert "released" in node.devalloc("release serial")


def test_a_card_that_is_plugged_into_the_host_is_offered_and_one_that_is_pulled_is_not(node: Node) -> None:
    """The delay is printed, by the host's clock; it is emulated, and several times as slow as a host."""
    card, pool = "/sys/bus/pci/devices/0000:44:00.0", "guest-0000-44-00"
    appears = node.lines.watching(card, node.up, f"pools:.created.*{pool}")
    node.host.monitor.execute("device_add", driver="igb", id="card", bus="hot0", mac="52:54:00:00:00:03")
    appeared = appears()
    assert f"devicepool/{pool}" in node.devalloc("get pools -o name").split()

    goes = node.lines.watching(card, node.up, f"pools:.*deleted.*{pool}")
    node.host.monitor.execute("device_del", id="card")
    went = goes()
    assert f"devicepool/{pool}" not in node.devalloc("get pools -o name").split()
    print(f"published {appeared:.1f} s after it appeared, withdrawn {went:.1f} s after it went")
