"""Programs that keep GPUs open to watch them, not to use them. They count as users: a driver does not leave a device
that a program has open, whatever for. But an admin can do something about them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from devalloc.inventory.open_nodes import Process


@dataclass(frozen=True, slots=True)
class Monitor:
    """A program that watches GPUs."""

    name: str
    stop: str
    """The command that makes it leave a GPU; ``{address}`` stands for that of the GPU."""


_MONITORS = (
    Monitor("nvidia-persistenced", "nvidia-smi -i {address} -pm 0"),
    Monitor("nvidia-vgpud", "systemctl stop nvidia-vgpud"),
    Monitor("nvidia-vgpu-mgr", "systemctl stop nvidia-vgpu-mgr"),
    Monitor("nv-hostengine", "systemctl stop nvidia-dcgm"),
    Monitor("dcgm-exporter", "systemctl stop dcgm-exporter"),
)
_COMM_LENGTH = 15
MONITORS = {monitor.name[:_COMM_LENGTH]: monitor for monitor in _MONITORS}
"""By their names, as Linux cuts off those of processes."""


def monitor_of(process: Process) -> Monitor | None:
    """The monitor that a process seems to be: any program can give itself such a name."""
    return MONITORS.get(process.name[:_COMM_LENGTH])


def describe_users(processes: Collection[Process], address: str) -> str:
    """Who uses a GPU, for its reason: a program that is no monitor; if there is none, what to do about the monitor."""
    for process in processes:
        if monitor_of(process) is None:
            return str(process)
    monitor = next(monitor for process in processes if (monitor := monitor_of(process)) is not None)
    return f"{monitor.name}; stop it ({monitor.stop.format(address=address)})"
