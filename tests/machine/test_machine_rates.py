"""Must show: a machine gets the rates of its disks and network cards and no more, also when they change while it runs.

What its guest moves is counted where it leaves the limits: in QEMU's disk, and behind the queues of the TAP interface.
No window may have more than its rate and the bucket; one of them must come close to it. Only if others keep the
host busy, or the guest's emulated CPU cannot do more, it may be at a lower rate. The test then warns of the rates
that it reached.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from devalloc.inventory.capacity.machines import bucket_bytes
from devalloc_machines.qemu.qmp import QmpMonitor
from devalloc_machines.qemu.rates import GROUP
from devalloc_machines.qemu.settings import AllowedFolder
from devalloc_machines.qemu.spec import Disk, EmulatedDevice, RateLimits
from devalloc_node.host import traffic
from tests.machine.test_vm_objects import Host, host
from tests.support import waiting
from tests.support.deadlines import soon
from tests.support.guest import Guest
from tests.support.images import Image
from tests.support.machines import MICRO_APPEND, config, ended, plugin, short_folder, virtual_machine
from tests.support.private_network import HOST, add_tap, private_network
from tests.support.warm_bed import forked, needs_root

__all__ = ["host"]

TAP = "taprates"
MBIT_100, MB_20 = 12_500_000, 20_000_000
WINDOW, WINDOWS, LAST_TRIES = 3.0, 4, 10
"""Seconds; how many of them there are for a try of a rate; and how many tries the lowest rate has."""
ZEROS, DISCARD = "dd if=/dev/zero bs=64k", "dd of=/dev/null bs=64k"
IDLE_CPUS = 0.25
"""The host has time to spare if so much of a CPU is idle: its load is below its number of CPUs."""
BUSY_CPU = 0.8
"""The guest has no time to spare if its CPU computes for so much of a window."""
SLACK: dict[str, Callable[[int], int]] = {
    "network": lambda rate: bucket_bytes(rate) + (128 << 10),
    "disk_io": lambda rate: rate // 10 + (2 << 20),
}
"""Bytes that may pass at once: a bucket, and two packets or the largest requests of a guest's disk."""


def comes_close(
    counter: Callable[[], int], guest_cpu: Callable[[], float], rate: int, slack: int, what: str, windows: int
) -> bool:
    """Whether what is counted comes to 90 % of the rate in a window. No window may have more than the rate and the
    slack. None may have less if the host and the guest's CPU were idle."""
    idle = []
    for _ in range(windows):
        begun, before, idle_before, cpu_before = time.monotonic(), counter(), idle_seconds(), guest_cpu()
        time.sleep(WINDOW)
        moved, seconds = counter() - before, time.monotonic() - begun
        assert moved <= rate * seconds + slack, f"{what}: {moved} bytes in {seconds:.2f} s, the rate is {rate}"
        if moved >= 0.9 * rate * seconds:
            return True
        if guest_cpu() - cpu_before < BUSY_CPU * seconds:
            idle.append((idle_seconds() - idle_before) / seconds)
    cpus = ", ".join(f"{each:.2f}" for each in idle)
    assert len(idle) < windows or min(idle) < IDLE_CPUS, (
        f"{what}: less than 90 % of {rate} bytes/s, although the guest and the host had idle CPUs: {cpus}"
    )
    return False


def idle_seconds() -> float:
    """Of all CPUs of the host, since it was started."""
    return int(Path("/proc/stat").read_text().split()[4]) / os.sysconf("SC_CLK_TCK")


def interface_bytes(name: str, direction: str) -> int:
    """As the kernel counts them behind the queue of the interface."""
    return int(Path(f"/sys/class/net/{name}/statistics/{direction}_bytes").read_text())


@contextmanager
def traffic_server() -> Iterator[tuple[int, int]]:
    """Two TCP ports in this network: one that takes all it gets, and one that sends without end."""
    stop, threads, sockets = threading.Event(), [], []

    def listen(work: Callable[[socket.socket], object]) -> int:
        door = socket.create_server((HOST, 0))
        sockets.append(door)

        def serve() -> None:
            with suppress(OSError):
                while not stop.is_set():
                    client, _ = door.accept()
                    sockets.append(client)
                    thread = threading.Thread(target=talk, args=(client,), daemon=True)
                    thread.start()

        def talk(client: socket.socket) -> None:
            with suppress(OSError):
                while not stop.is_set() and work(client):
                    pass

        threads.append(threading.Thread(target=serve, daemon=True))
        threads[-1].start()
        return int(door.getsockname()[1])

    zeros = bytes(1 << 16)
    try:
        yield listen(lambda client: client.recv(1 << 16)), listen(lambda client: client.send(zeros))
    finally:
        stop.set()
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def disk_bytes(host: Host) -> Callable[[], int]:
    """What its guest has written, by QEMU."""
    (path,) = (host.folder / "run").glob("*/qmp")

    def count() -> int:
        line = QmpMonitor("default/web", str(path))
        try:
            stats = line.execute("query-blockstats", deadline=soon())
        finally:
            line.close()
        return sum(each["stats"]["wr_bytes"] for each in stats)

    return count


def cpu_seconds(host: Host) -> Callable[[], float]:
    """What its guest's one CPU has computed, by the kernel's count for the thread of QEMU that emulates it."""
    (path,) = (host.folder / "run").glob("*/qmp")
    line = QmpMonitor("default/web", str(path))
    try:
        (cpu,) = line.execute("query-cpus-fast", deadline=soon())
    finally:
        line.close()
    schedstat = Path(f"/proc/{cpu['thread-id']}/schedstat")
    return lambda: int(schedstat.read_text().split()[0]) / 1e9


def disk_rate(host: Host) -> int:
    """By QEMU."""
    (path,) = (host.folder / "run").glob("*/qmp")
    line = QmpMonitor("default/web", str(path))
    try:
        return int(line.execute("query-block", deadline=soon())[0]["inserted"]["bps"])
    finally:
        line.close()


def booted(host: Host) -> Guest:
    (port,) = (host.folder / "run").glob("*/agent")
    guest = Guest(port)
    guest.check(f"ifconfig eth0 192.0.2.2 netmask 255.255.255.0 up && ping -c 1 -w 60 {HOST}")
    return guest


@contextmanager
def busy(guest: Guest, command: str) -> Iterator[None]:
    """Its guest does nothing else than this, again and again: an emulated CPU has little time to spare."""
    guest.check(f"(while true; do {command}; usleep 200000; done) > /tmp/log 2>&1 & echo $! > /tmp/busy")
    yield
    guest.check("kill $(cat /tmp/busy); killall dd nc; true")


def moves_100_mbit_and_20_megabytes(host: Host, reached: Callable[[dict[str, int]], object]) -> None:
    """``reached`` is called with rates that the guest came close to."""
    disk = host.image.folder / "data"
    with disk.open("wb") as file:
        file.truncate(256 << 20)
    start = {
        "kernel": str(host.image.kernel),
        "initrd": str(host.image.initrd),
        "append": MICRO_APPEND,
        "disks": [{"path": str(disk), "format": "raw"}],
    }
    ifb = traffic.ifb_name(TAP)

    def manifest(network: int | None, disk_io: int | None) -> str:
        nic = {"backend": "tap", "interface": TAP} | ({} if network is None else {"bandwidth": network})
        rates = {} if disk_io is None else {"diskIO": disk_io}
        memory = {"min": "256Mi", "max": "256Mi"}
        return host.manifest(start=start, nics=[nic], powerdownSeconds=0, memory=memory, **rates)

    def until(done: Callable[[], object], what: str) -> None:
        waiting.until(done, what, context=host.log)

    add_tap(TAP)
    with traffic_server() as (sink, source):
        with host.plugin() as killed:
            host("apply", "-f", "-", stdin=manifest(MBIT_100, MB_20))
            until(lambda: host.status().get("phase") == "Running", "it runs")
            guest, guest_cpu = booted(host), cpu_seconds(host)

            def change_to(network: int, disk_io: int) -> None:
                host("apply", "-f", "-", stdin=manifest(network, disk_io))
                until(lambda: traffic.observe_rates(None, TAP).are(network), "its card gets another rate")
                until(lambda: disk_rate(host) == disk_io, "its disk gets another rate")

            def holds(network: int, disk_io: int) -> None:
                """At these rates, or at lower ones if the guest of a busy host comes to no more by itself."""
                rates = {"network": network, "disk_io": disk_io}
                lowest = {name: rate // 32 for name, rate in rates.items()}
                for what, name, counter, command in (
                    ("to the guest", "network", lambda: interface_bytes(TAP, "tx"), f"nc {HOST} {source} -e {DISCARD}"),
                    ("from the guest", "network", lambda: interface_bytes(ifb, "rx"), f"nc {HOST} {sink} -e {ZEROS}"),
                    (
                        "the disk",
                        "disk_io",
                        disk_bytes(host),
                        "dd if=/dev/zero of=/dev/vda bs=1M count=256 oflag=direct",
                    ),
                ):
                    tries = LAST_TRIES
                    while True:
                        # Anew for each try: a connection that lost packets may wait for a minute before it goes on.
                        with busy(guest, command):
                            if comes_close(counter, guest_cpu, rates[name], SLACK[name](rates[name]), what, WINDOWS):
                                break
                        if rates[name] > lowest[name]:
                            rates[name] //= 2
                            change_to(**rates)
                        else:
                            tries -= 1
                            assert tries, f"{what}: less than 90 % even of the lowest rate"
                reached(rates)

            holds(MBIT_100, MB_20)
            assert host.status().get("reason", "") == ""
            change_to(MBIT_100 // 4, MB_20 // 4)
            holds(MBIT_100 // 4, MB_20 // 4)
            change_to(MBIT_100 // 4, MB_20 // 4)
            killed.send_signal(signal.SIGKILL)
            killed.wait()
        assert traffic.observe_rates(None, TAP).are(MBIT_100 // 4), "no plugin is needed for them"
        host("apply", "-f", "-", stdin=manifest(None, None))
        with host.plugin():
            until(lambda: traffic.observe_rates(None, TAP) == traffic.NO_RATES, "it is free")
            host("apply", "-f", "-", stdin=manifest(MBIT_100, None))
            until(lambda: traffic.observe_rates(None, TAP).are(MBIT_100), "its card gets a rate again")
            host("delete", "vm/web")
            until(lambda: host("get", "vms", "-o", "name") == "", "it is gone")
            assert traffic.observe_rates(None, TAP) == traffic.NO_RATES


@needs_root
def test_100_mbit_and_20_megabytes_a_second_and_no_more_also_changed_while_it_runs(host: Host, tmp_path: Path) -> None:
    def write_down(rates: dict[str, int]) -> None:
        with (tmp_path / "reached").open("a") as file:
            print(json.dumps(rates), file=file)

    def in_a_network_of_its_own() -> None:
        network = private_network()
        network.__enter__()
        stays.append(network)  # threads that were started in there do not leave it, and this process ends
        moves_100_mbit_and_20_megabytes(host, write_down)

    stays: list[object] = []
    failure = forked(in_a_network_of_its_own)
    assert failure is None, failure
    highest, *_ = [json.loads(line) for line in (tmp_path / "reached").read_text().splitlines()]
    words = f"the guest came to 90 % of {highest['network']} and {highest['disk_io']} bytes/s of network and disk"
    print(words)
    if highest != {"network": MBIT_100, "disk_io": MB_20}:
        warnings.warn(f"{words}, and not more, because this host is busy", stacklevel=1)


def test_all_disks_share_one_rate_whatever_they_are_and_whenever_they_came(micro: Image) -> None:
    with short_folder() as folder:
        settings = config(micro, folder, folders=(AllowedFolder(micro.folder, "any"), AllowedFolder(folder, "any")))
        paths = [folder / name for name in ("first", "second", "late")]
        for path in paths:
            path.write_bytes(bytes(1 << 20))
        first, second, late = map(str, paths)
        disks = [{"path": first, "format": "raw"}, {"path": second, "format": "raw", "device": "nvme"}]
        start = {"kernel": str(micro.kernel), "initrd": str(micro.initrd), "disks": disks}

        def rates() -> list[tuple[str | None, int]]:
            with machines.line(machines.record_for("default/m")) as line:
                media = [each["inserted"] for each in line.execute("query-block", deadline=soon())]
            return [(medium.get("group"), medium["bps"]) for medium in media]

        with ended(settings), plugin(settings) as machines:
            machines.start(virtual_machine("m", micro, start=start, diskIO="20M"), soon())
            assert rates() == [(GROUP, MB_20)] * 2
            machines.plug_in("default/m", EmulatedDevice("late", Disk(late, "raw")), soon())
            assert rates() == [(GROUP, MB_20)] * 3
            assert machines.limit_rates("default/m", RateLimits(5), soon()) == ()
            assert rates() == [(GROUP, 5)] * 3
            assert machines.limit_rates("default/m", RateLimits(), soon()) == ()
            assert rates() == [(None, 0)] * 3
