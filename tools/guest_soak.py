"""`python -m tools.guest_soak`: a machine with a virtual function is scaled up and down, inside a test host.

The host has SR-IOV and an IOMMU, and is emulated; the machine in it is emulated once more, and has a VF of the host by
a DeviceClaim, with VFIO: all of its memory is locked and mapped for the card, also what comes and goes. The guest
answers through the VF all the while. Agent, permits and guest monitor are the project's own; Python takes too long on
a CPU that is emulated twice, so the monitor runs in the host, and load and memory in use are what files say.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from typing import Any

from tests.support import sriov_host, sriov_image, vf_image
from tests.support.host_commands import HostCommands
from tests.support.qemu import MICRO_APPEND, Machine

CARD, VF, HOST = "0000:41:00.0", "0000:41:10.0", "192.0.2.1"
IMAGES, MANIFESTS, LOAD = "/run/images", "/run/manifests", "/run/load"
PATIENCE = 1800.0
"""Seconds."""
APPEND = f"{MICRO_APPEND} net.ifnames=0"
UP = (
    f"devalloc up --image-folder {IMAGES}:any --max-vfs 2 --scaling --guest-network 192.0.2.0/24 --compute-unit 1,512Mi"
)
MONITOR = f"devalloc guest-monitor --root {LOAD} --cpus leave --memory leave"
CLAIM = b"""\
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
VIRTUAL_MACHINE = f"""\
apiVersion: devalloc.io/v1alpha1
kind: VirtualMachine
metadata: {{name: web}}
spec:
  nodeName: guest
  cpu: {{min: 1, max: 2}}
  memory: {{min: 512Mi, max: 1Gi}}
  start: {{kernel: {IMAGES}/kernel, initrd: {IMAGES}/initrd, append: "{APPEND}"}}
  pciSlots: 1
  powerdownSeconds: 1
  claims: [uplink]
  scaling: {{address: {HOST}, loadAverageFractionTarget: "1", memoryUsageFractionTarget: 990m}}
""".encode()
SMALL, LARGE = {"cpus": "1", "memory": "512Mi"}, {"cpus": "2", "memory": "1Gi"}
BEGUN = time.monotonic()


def say(line: str) -> None:
    print(f"{time.monotonic() - BEGUN:5.0f} s  {line}", flush=True)


class Scaled:
    """The machine in the host."""

    def __init__(self, host: Machine) -> None:
        self.host, self.lines = host, HostCommands(host.guest)
        card = host.guest.check(f"ls /sys/bus/pci/devices/{CARD}/net")
        cpus = f"{LOAD}/sys/devices/system/cpu"
        host.guest.check(
            f"mkdir -p {IMAGES} {MANIFESTS} {LOAD}/proc {cpus}; echo 0 | tee {cpus}/online > {cpus}/present"
        )
        host.guest.check(f"mount -o ro /dev/disk/by-label/images {IMAGES}")
        host.guest.check(f"ip link set {card} up; ip addr add {HOST}/24 dev {card}")
        self.lines.put(f"{MANIFESTS}/claim.yaml", CLAIM)
        self.lines.put(f"{MANIFESTS}/web.yaml", VIRTUAL_MACHINE)
        self.load("0.10", used=100)
        self.up, self.monitor = self.lines.start(UP), self.lines.start(MONITOR)
        host.guest.until("[ -S /run/devalloc/node.sock ]", seconds=PATIENCE)

    def load(self, load: str, used: int) -> None:
        """From now on the guest has this load, and uses so many MiB of a GiB."""
        amounts = {
            "MemTotal": 1024,
            "MemAvailable": 1024 - used,
            "Cached": 0,
            "Active(anon)": used,
            "Inactive(anon)": 0,
        }
        lines = "\\n".join(f"{name}: {amount << 10} kB" for name, amount in amounts.items())
        self.host.guest.check(f"printf '{lines}\\n' > {LOAD}/new && mv {LOAD}/new {LOAD}/proc/meminfo")
        self.host.guest.check(f"echo {load} {load} {load} 1/1 1 > {LOAD}/new && mv {LOAD}/new {LOAD}/proc/loadavg")

    def until(self, true: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not true():
            assert time.monotonic() < deadline, f"never: {what}"
            time.sleep(5)
        say(what)

    def status(self) -> dict[str, Any]:
        fields: dict[str, Any] = json.loads(self.lines.check("devalloc get vm/web -o json")).get("status", {})
        return fields

    def comes_to(self, amounts: dict[str, str], what: str) -> list[dict[str, str]]:
        """What QEMU says, and what it is permitted; all that QEMU said until then."""
        history: list[dict[str, str]] = []

        def is_there() -> bool:
            status = self.status()
            observed = status.get("observed")
            if observed and observed not in history[-1:]:
                history.append(observed)
                say(f"  it has {observed['cpus']} CPU and {observed['memory']}, {self.locked()} MiB are locked")
            return all(amounts.items() <= (status.get(part) or {}).items() for part in ("observed", "permitted"))

        self.until(is_there, what)
        return history

    def knows(self, cpus: str) -> None:
        """Wait for the guest to run these CPUs, as its own kernel names them."""
        last = "grep -a ^CPUs /run/devalloc/machines/*/console.log | tail -n 1"
        self.until(lambda: f"CPUs {cpus}," in self.host.guest.run(last).output, f"its guest runs CPUs {cpus}")

    def locked(self) -> int:
        """MiB of its memory that are locked for the card."""
        text = self.host.guest.check(
            "for p in /proc/[0-9]*; do grep -q ^qemu $p/comm && grep VmLck $p/status; done; true"
        )
        return int(text.split()[1]) >> 10

    def answers(self) -> bool:
        """The guest, through the card."""
        return self.host.guest.run(f"ping -c 3 -W 20 -s 1400 {vf_image.ADDRESS}", seconds=PATIENCE).status == 0

    def asked_often(self) -> Callable[[], None]:
        """From now on its guest is asked every 5 s; the returned function ends that, and tells of the answers."""
        log = "/run/answers"
        self.host.guest.check(f"ping -i 5 -W 20 -s 1400 {vf_image.ADDRESS} > {log} 2>&1 & echo $! > {log}.pid")

        def end() -> None:
            self.host.guest.check(f"kill -INT $(cat {log}.pid)")
            summary = self.host.guest.until(f"grep 'packets received' {log}", seconds=PATIENCE)
            say(f"  asked every 5 s: {summary.strip()}")
            sent, received = (int(number) for number in re.findall("([0-9]+) packets", summary)[:2])
            assert received >= sent * 9 // 10, "a guest may stand still while it gets a CPU, and answers nonetheless"

        return end

    def check_device(self) -> int:
        """The card is in the machine, and works; MiB that are locked for it."""
        seen = self.lines.snapshot()
        (device,) = self.status()["devices"]
        assert seen["devices"][VF]["driver"] == "vfio-pci"
        assert seen["nodes"][seen["devices"][VF]["iommu_group"]]["held_by"] == ["qemu-system-x86"]
        assert self.answers()
        locked = self.locked()
        say(f"  VF {VF} is in the machine at {device['id']}, its guest answers through it, {locked} MiB are locked")
        return locked

    def run(self) -> None:
        self.lines.check(f"devalloc apply -f {MANIFESTS}/claim.yaml -f {MANIFESTS}/web.yaml")
        self.until(lambda: self.status().get("phase") == "Running", "the machine runs")
        self.until(self.answers, "its guest is up, and answers through the VF")
        before, end = self.check_device(), self.asked_often()
        self.load("2.00", used=100)
        say("load begins")
        self.comes_to(LARGE, "it has more, as is permitted")
        self.knows("0-1")
        assert self.check_device() >= before + 512, "what came is locked and mapped for the card, too"
        self.load("0.10", used=100)
        say("load ends")
        history = self.comes_to(SMALL, "it has less, and is permitted less")
        fewer = next(had for had in history if had["cpus"] == SMALL["cpus"])
        assert fewer["memory"] != LARGE["memory"], "memory leaves first"
        self.knows("0")
        assert self.check_device() <= before + 16, "what went is not locked any more"
        end()


def main() -> int:
    image, guest = (built.image(lambda line: print(f"  {line}", flush=True)) for built in (sriov_image, vf_image))
    files = {"kernel": guest.kernel.read_bytes(), "initrd": guest.initrd.read_bytes()}
    with sriov_host.with_files(image, files, cpus=2, gibibytes=4) as host:
        say("the host is up")
        scaled = Scaled(host)
        try:
            scaled.run()
        finally:
            print(host.guest.run(f"tail -n 40 {scaled.up} {scaled.monitor} /run/devalloc/machines/*/*.log").output)
    say("scaled up and down with a VF in it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
