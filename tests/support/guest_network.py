"""A network namespace that a guest's programs run in, reached over a pair of interfaces. Needs root."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pyroute2 import IPRoute, NetNS, netns

from tests.support.repository import REPO


@dataclass(frozen=True)
class GuestNetwork:
    """Where the guest is."""

    name: str
    network: str
    host: str
    guest: str

    def monitor(self, root: Path, log: Path) -> subprocess.Popen[bytes]:
        """The guest monitor of a guest whose /proc and /sys are below ``root``."""
        command = [
            "nsenter", f"--net=/var/run/netns/{self.name}", sys.executable, "-m", "devalloc.programs.guest_monitor",
            f"--root={root}", f"--listen={self.guest}:10301", f"--metrics-listen={self.guest}:9100",
            "--cpus=leave", "--memory=leave", f"--allow={self.host}",
        ]  # fmt: skip
        paths = ":".join(str(REPO / part) for part in ("", "solver", "node-plugin"))
        with log.open("wb") as output:
            return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths}, stdout=output, stderr=output)


@contextmanager
def guest_network() -> Iterator[GuestNetwork]:
    """While inside, there is one, by the number of this process."""
    name, block = f"dvg{os.getpid()}", os.getpid() % 250
    made = GuestNetwork(name, f"10.213.{block}.0/30", f"10.213.{block}.1", f"10.213.{block}.2")
    netns.create(name)
    try:
        with IPRoute() as here, NetNS(name) as inside:
            here.link("add", ifname=name, kind="veth", peer={"ifname": "eth0", "net_ns_fd": name})
            for side, interface, address in ((here, name, made.host), (inside, "eth0", made.guest)):
                (index,) = side.link_lookup(ifname=interface)
                side.addr("add", index=index, address=address, prefixlen=30)
                side.link("set", index=index, state="up")
        yield made
    finally:
        with IPRoute() as here:
            for index in here.link_lookup(ifname=name):
                here.link("del", index=index)
        with suppress(OSError):
            netns.remove(name)
