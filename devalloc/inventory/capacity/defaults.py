"""The default share of a machine in the host's bandwidth, by CPUs, and how it may burst."""

from __future__ import annotations

from dataclasses import dataclass

from devalloc.inventory.capacity.host import HostCapacity
from devalloc.inventory.capacity.resource import Capacity

BURST = 4
"""How many times its sustained rate a machine may use for a moment."""
_TBF_PERIODS = 250
"""A token bucket holds what comes in a tick of 4 ms."""
_MIN_BUCKET = 1540
"""Bytes: less than a frame in the bucket would let nothing through."""
TBF_LATENCY_MS = 50
"""Milliseconds that a packet may wait for its tokens before it is dropped."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes per second."""

    sustained: int
    burst: int


def default_network(host: HostCapacity, cpu: int) -> tuple[int, int]:
    """Download and upload of a machine with so many thousandths of a CPU, in bytes per second: the same both ways."""
    share = _share(host.network, host.cpu, cpu)
    return share, share


def default_disk_io(host: HostCapacity, cpu: int) -> Rates:
    """Disk bandwidth of a machine with so many thousandths of a CPU."""
    share = _share(host.disk_io, host.cpu, cpu)
    return Rates(share, BURST * share)


def upload_ceiling(rate: int, burst: int = BURST) -> int:
    """Bytes per second that an HTB class may borrow up to."""
    return rate * burst


def download_bucket(rate: int, burst: int = BURST) -> int:
    """Bytes that a TBF bucket holds."""
    return max(_MIN_BUCKET, rate * burst // _TBF_PERIODS)


def _share(resource: Capacity, cpus: Capacity, cpu: int) -> int:
    """The part of what may be promised of a resource that the machine's CPUs are of the host's; nothing of nothing."""
    if cpu < 0:
        raise ValueError(f"a machine cannot have {cpu} thousandths of a CPU")
    return cpu * resource.effective_limit // cpus.capacity if cpus.capacity else 0
