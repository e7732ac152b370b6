"""Must show: who is cut off or killed while a real machine grows or shrinks does no harm, and all comes right when it
is mended.

One machine goes up a level with each cut of the first kind and down again with each of the second, for no CPU can come
to an emulated machine that one has left. All the while a watcher looks at QEMU and at what is written down, another
machine asks for all the room there is, and a disk stays attached. ``DEVALLOC_CUTS=all`` makes all six cuts.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import yaml
from pyroute2 import IPRoute

from devalloc_machines.qemu.spec import machine_id
from tests.machine.test_guest_scaling import PATIENCE, gauges_are_served, host, machine
from tests.machine.test_vm_objects import Host
from tests.support import scaled_guest, tiny_guest
from tests.support.guest import Guest
from tests.support.machines import MIB
from tests.support.partition_test_bed import (
    GIB,
    RIVAL,
    WATCHED,
    GreedyAgent,
    InvariantWatcher,
    ObservedAmounts,
    PermitProxy,
    PermitServerProcess,
    locked,
)
from tests.support.private_network import HOST, NETWORK
from tests.support.waiting import until

__all__ = ["host"]
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="a network of its own is made by root only"),
    pytest.mark.timeout(1200),
]
DEVICE = "disk0-dev"
PREPARE = """
mkdir -p /load/proc; ln -s /proc/meminfo /load/proc/meminfo; ln -s /sys /load/sys; echo 1 1 > /load/proc/loadavg
cat > /bin/cache << 'END'
#!/bin/sh
[ -e /tmp/when-asked ] && mv /tmp/when-asked /tmp/now && touch /tmp/asked && . /tmp/now
true
END
chmod +x /bin/cache
"""
"""What the guest is loaded with is what a file says. When its cache must shrink, it does what another file says:
something happens between the question of the agent and the answer."""
MONITOR = ("--root", "/load", "--cache-program", "/bin/cache")


@dataclass
class Bed:
    """All that takes part."""

    host: Host
    server: PermitServerProcess
    between: PermitProxy
    watcher: InvariantWatcher
    rival: GreedyAgent
    guest: Guest
    plugin: ExitStack
    process: subprocess.Popen[str]

    def load(self, level: int) -> None:
        self.guest.check(f"echo {level} {level} > /load/proc/loadavg")

    def start_monitor(self) -> None:
        self.guest.check(scaled_guest.start(HOST, *MONITOR))

    def start_plugin(self) -> None:
        self.process = self.plugin.enter_context(self.host.plugin(*plugin_options(self.between)))

    def diagnostics(self) -> object:
        guest = self.guest.check("tail -n 20 /tmp/monitor.log; cat /load/proc/loadavg")
        return self.host.log()[-6000:], guest, self.watcher.has, self.watcher.permits(), self.host.status(), self.rival

    def until(self, true: Callable[[], object], what: str) -> None:
        until(true, what, PATIENCE, context=self.diagnostics)

    def settles(self, level: int) -> None:
        """Everybody agrees on the level, and the guest has what it says."""
        wants = ObservedAmounts(level, level * GIB)

        def agreed() -> bool:
            status = self.host.status()
            amounts = (status.get(part) or {"cpus": 0, "memory": 0} for part in ("wanted", "permitted", "observed"))
            return [*map(ObservedAmounts.from_status, amounts), self.watcher.has] == [wants] * 4

        self.until(agreed, f"all is at level {level}")
        self.guest.until(f"[ $(grep -c ^processor /proc/cpuinfo) = {level} ]", seconds=120)
        self.guest.until(f"[ $(awk '/MemTotal/ {{print $2}}' /proc/meminfo) -gt {level * 850_000} ]", seconds=120)
        assert self.guest.check("head -c 8 /dev/vda") == "attached"
        assert self.watcher.wrong == []


def plugin_options(between: PermitProxy) -> tuple[str, ...]:
    return ("--scaling", "--guest-network", NETWORK, "--compute-unit", "1,1Gi", "--permits", between.url)


def asks_for(level: int) -> Callable[[dict[str, Any]], bool]:
    return lambda request: request["pod"]["name"] == "web" and float(request["resources"]["vCPUs"]) == level


# -- while it grows ---------------------------------------------------------------------------------------------------


def the_server_is_killed_while_it_writes_a_permit(bed: Bed, level: int) -> None:
    with locked(bed.host.folder / "store.db") as lock:
        is_asked = asks_for(level)
        requests: list[bool] = []

        def before(request: dict[str, Any]) -> bool:
            if is_asked(request) and not requests:
                lock()
                requests.append(True)
            return False

        bed.between.before = before
        bed.load(level)
        bed.until(lambda: requests, "the server is asked")
        time.sleep(0.3)
        assert bed.watcher.permits()["web"] == ObservedAmounts(level - 1, (level - 1) * GIB), "it cannot be written yet"
        bed.server.kill()
        bed.rival.greedy = True
    bed.between.before = lambda request: False
    time.sleep(3)
    assert bed.watcher.has == ObservedAmounts(level - 1, (level - 1) * GIB), "nothing is plugged without a permit"
    bed.server.start()


def the_plugin_is_killed_between_permit_and_plugging(bed: Bed, level: int) -> None:
    bed.between.keeps = asks_for(level)
    bed.load(level)
    bed.until(bed.between.was_kept.is_set, "the permit is on its way")
    assert bed.watcher.permits()["web"] == ObservedAmounts(level, level * GIB)
    assert bed.watcher.has == ObservedAmounts(level - 1, (level - 1) * GIB)
    bed.rival.greedy = True
    bed.process.kill()
    bed.process.wait()
    bed.plugin.pop_all()
    bed.between.keeps = lambda request: False
    bed.between.let_go.set()
    time.sleep(2)
    bed.start_plugin()


def qemu_says_nothing_while_it_is_changed(bed: Bed, level: int) -> None:
    before, pid = bed.watcher.has, bed.host.status()["pid"]
    bed.load(level)
    bed.until(lambda: bed.watcher.has != before, "it is being changed")
    os.kill(pid, signal.SIGSTOP)
    bed.rival.greedy = True
    try:
        bed.watcher.frozen = True
        time.sleep(13)  # longer than a step of a change may take
        assert bed.watcher.permits()["web"] == ObservedAmounts(level, level * GIB), (
            "what it may have come to is kept for it"
        )
    finally:
        bed.watcher.frozen = False
        os.kill(pid, signal.SIGCONT)


# -- while it shrinks -------------------------------------------------------------------------------------------------


def being_asked(bed: Bed, level: int, then: str) -> None:
    """Have the guest do something when it is asked whether it can do with less, and before it answers."""
    bed.guest.check(f"rm -f /tmp/asked; echo '{then}' > /tmp/when-asked.new; mv /tmp/when-asked.new /tmp/when-asked")
    bed.load(level)
    bed.until(lambda: bed.guest.run("[ -e /tmp/asked ]").status == 0, "the guest is asked")


def the_network_is_cut_while_the_guest_is_asked(bed: Bed, level: int) -> None:
    before = bed.watcher.has
    being_asked(bed, level, "ip link set eth0 down")
    bed.rival.greedy = True
    with IPRoute() as here:
        (index,) = here.link_lookup(ifname="tap0")
        here.link("set", index=index, state="down")
        bed.guest.check("ip link set eth0 up")
        time.sleep(7)  # the guest has agreed, and the agent did not hear it in time
        assert bed.watcher.has == before, "nothing is taken from a guest that was not heard to agree"
        here.link("set", index=index, state="up")


def the_monitor_is_killed_while_it_is_asked(bed: Bed, level: int) -> None:
    before = bed.watcher.has
    being_asked(bed, level, "kill -9 $PPID")
    bed.rival.greedy = True
    time.sleep(3)
    assert bed.watcher.has == before, "nothing is taken from a guest that did not agree"
    bed.start_monitor()


def the_answer_to_what_is_given_back_is_lost(bed: Bed, level: int) -> None:
    bed.between.was_kept.clear()
    bed.between.let_go.clear()
    bed.between.keeps = asks_for(level)
    bed.load(level)
    bed.until(bed.between.was_kept.is_set, "it is given back")
    bed.rival.greedy = True
    assert bed.watcher.has == ObservedAmounts(level, level * GIB), "first it goes, then it is given back"
    time.sleep(4)
    bed.between.keeps = lambda request: False
    bed.between.let_go.set()


Cut = Callable[[Bed, int], None]
UP: tuple[Cut, ...] = (
    the_server_is_killed_while_it_writes_a_permit,
    the_plugin_is_killed_between_permit_and_plugging,
    qemu_says_nothing_while_it_is_changed,
)
DOWN: tuple[Cut, ...] = (
    the_network_is_cut_while_the_guest_is_asked,
    the_monitor_is_killed_while_it_is_asked,
    the_answer_to_what_is_given_back_is_lost,
)
ALL = os.environ.get("DEVALLOC_CUTS") == "all"


def test_cut_off_or_killed_it_does_no_harm_and_comes_right(host: Host) -> None:
    ups, downs = (UP, DOWN) if ALL else (UP[1:2], DOWN[:1])
    limit = ObservedAmounts(len(UP) + 3, (len(UP) + 3) * GIB)
    with bed_of(host, limit) as bed:
        bed.settles(1)
        level = 1
        for cut, way in [*((cut, 1) for cut in ups), *((cut, -1) for cut in downs)]:
            level += way
            began = time.monotonic()
            print(f"{cut.__name__}, level {level}", flush=True)
            cut(bed, level)
            bed.rival.greedy = False
            bed.settles(level)
            print(f"  healed, {time.monotonic() - began:.0f} s", flush=True)
        assert bed.rival.answers > 10
        assert bed.watcher.looks > 100


@contextmanager
def bed_of(host: Host, limit: ObservedAmounts) -> Iterator[Bed]:
    qemu, image = host.image.qemu, host.image.folder
    qemu.write_text(f"{qemu.read_text().rstrip()} {WATCHED}\n")
    (image / "tiny").write_bytes(tiny_guest.image())
    (image / "data").write_bytes(b"attached".ljust(MIB))
    with ExitStack() as stack:
        server = PermitServerProcess(host.folder / "store.db", limit)
        stack.callback(server.kill)
        between = stack.enter_context(closing(PermitProxy(server)))
        plugin = stack.enter_context(ExitStack())
        process = plugin.enter_context(host.plugin(*plugin_options(between)))
        web = yaml.safe_load(machine(host, loadAverageFractionTarget="1"))
        most = len(UP) + 1
        web["spec"] |= {"cpu": {"min": 1, "max": most}, "memory": {"min": "1Gi", "max": f"{most}Gi"}}
        web["spec"]["start"]["disks"] = [{"path": str(image / "data"), "format": "raw"}]
        host("apply", "-f", "-", stdin=yaml.safe_dump_all([web, rival_of(host)]))
        until(
            lambda: (host.status().get("permitted") or {}).get("givenBy"),
            "it has a permit",
            PATIENCE,
            context=lambda: (host.log(), host.status()),
        )
        folder = host.folder / "run" / machine_id("default/web")
        guest = stack.enter_context(Guest(folder / "agent"))
        guest.check(PREPARE)
        guest.check(scaled_guest.start(HOST, *MONITOR))
        until(gauges_are_served, "the monitor runs", PATIENCE, context=host.log)
        pid = host.status()["pid"]
        watcher = InvariantWatcher(host.folder / "store.db", folder / "cuts", "web", limit, DEVICE, pid)
        stack.enter_context(closing(watcher))
        rival = stack.enter_context(closing(GreedyAgent(server, limit)))
        yield Bed(host, server, between, watcher, rival, guest, plugin, process)


def rival_of(host: Host) -> dict[str, Any]:
    """A machine that an agent of others asks permits for."""
    content: dict[str, Any] = yaml.safe_load(
        host.manifest(memory={"min": "1Gi", "max": "8Gi"}, cpu={"min": 1, "max": 8})
    )
    labels = {"autoscaling.neon.tech/enabled": "true"}
    content["metadata"] |= {"name": RIVAL, "labels": labels}
    return content
