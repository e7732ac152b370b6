"""Must show: a machine gets the rates of its disks and network cards and no more, also when they change while it runs.

What its guest moves is counted where it leaves the limits: in QEMU's disk, and behind the queues of the TAP interface.
No window may have more than its rate and the bucket; one of them must come close to it, however busy the host is.
"""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from devalloc.inventory.capacity.machines import bucket_bytes
from devalloc_node.host import traffic
from devalloc_node.machine.qmp import QmpMonitor
from tests.machine.test_vm_objects import Host, host
from tests.support import waiting
from tests.support.deadlines import soon
from tests.support.guest import Guest
from tests.support.private_network import HOST, add_tap, private_network
from tests.support.warm_bed import forked, needs_root

__all__ = ["host"]
pytestmark = needs_root

TAP = "taprates"
MBIT_100, MB_20 = 12_500_000, 20_000_000
WINDOW = 3.0
"""Seconds."""
UNDER_WAY = 2 << 20
"""Bytes: more than a request of a guest's disk, and than packets between two counters."""


def moves(counter: Callable[[], int], rate: int, slack: int, what: str) -> None:
    """That what is counted moves at the rate. Each window is an upper bound, and the best of them the lower one."""
    best = 0.0

    def has_come_close() -> bool:
        nonlocal best
        begun, before = time.monotonic(), counter()
        time.sleep(WINDOW)
        moved, seconds = counter() - before, time.monotonic() - begun
        assert moved <= rate * seconds + slack, f"{what}: {moved} bytes in {seconds:.2f} s, the rate is {rate}"
        best = max(best, moved / seconds / rate)
        return best >= 0.9

    waiting.until(has_come_close, f"{what} comes to 90 % of {rate} bytes/s", context=lambda: f"at best {best:.0%}")


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


def moves_100_mbit_and_20_megabytes(host: Host) -> None:
    disk = host.image.folder / "data"
    with disk.open("wb") as file:
        file.truncate(256 << 20)
    start = {
        "kernel": str(host.image.kernel),
        "initrd": str(host.image.initrd),
        "append": "console=ttyS0 quiet",
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
            guest = booted(host)

            def holds(network: int, disk_io: int) -> None:
                bucket = bucket_bytes(network) + UNDER_WAY
                with busy(guest, f"nc {HOST} {source} -e dd of=/dev/null bs=64k"):
                    moves(lambda: interface_bytes(TAP, "tx"), network, bucket, "to the guest")
                with busy(guest, f"nc {HOST} {sink} -e dd if=/dev/zero bs=64k"):
                    moves(lambda: interface_bytes(ifb, "rx"), network, bucket, "from the guest")
                with busy(guest, "dd if=/dev/zero of=/dev/vda bs=1M count=256 oflag=direct"):
                    moves(disk_bytes(host), disk_io, disk_io // 10 + UNDER_WAY, "the disk")

            holds(MBIT_100, MB_20)
            assert host.status().get("reason", "") == ""

            host("apply", "-f", "-", stdin=manifest(MBIT_100 // 4, MB_20 // 4))
            until(lambda: traffic.observe_rates(None, TAP).are(MBIT_100 // 4), "it is told of the lower rate")
            holds(MBIT_100 // 4, MB_20 // 4)
            killed.send_signal(signal.SIGKILL)
            killed.wait()
        assert traffic.observe_rates(None, TAP).are(MBIT_100 // 4), "no plugin is needed for them"
        host("apply", "-f", "-", stdin=manifest(None, None))
        with host.plugin():
            until(lambda: traffic.observe_rates(None, TAP) == traffic.NO_RATES, "it is free")
            host("apply", "-f", "-", stdin=manifest(MBIT_100, None))
            until(lambda: traffic.observe_rates(None, TAP).are(MBIT_100), "it is told of a rate again")
            host("delete", "vm/web")
            until(lambda: host("get", "vms", "-o", "name") == "", "it is gone")
            assert traffic.observe_rates(None, TAP) == traffic.NO_RATES


def test_100_mbit_and_20_megabytes_a_second_and_no_more_also_changed_while_it_runs(host: Host) -> None:
    def in_a_network_of_its_own() -> None:
        network = private_network()
        network.__enter__()
        stays.append(network)  # threads that were started in there do not leave it, and this process ends
        moves_100_mbit_and_20_megabytes(host)

    stays: list[object] = []
    failure = forked(in_a_network_of_its_own)
    assert failure is None, failure
