"""Programs that keep GPUs open to watch them, not to use them. They count as users: a driver does not leave a device
that a program has open, whatever for. But an admin can do something about them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from devalloc.inventory.open_nodes import COMM_LENGTH, Process
from devalloc.inventory.sysfs import Tree


@dataclass(frozen=True, slots=True)
class Monitor:
    """A program that watches GPUs."""

    name: str
    stop: str
    """The command that makes it leave a GPU; ``{address}`` stands for that of the GPU."""
    socket: tuple[str, ...] | None = None
    """Where it can be asked to let one GPU go, below the root folder; None if it cannot."""

    def can_release(self, tree: Tree) -> bool:
        """Whether it can be asked to let one GPU go, on this host."""
        if self.socket is None:
            return False
        *folders, name = self.socket
        folder = tree.folder(*folders)
        return folder is not None and folder.has(name)


_NO_POD = "kubectl label node NODE nvidia.com/gpu.deploy.{}=false"
"""The command that takes a pod of the NVIDIA GPU operator from a node."""
_MONITORS = (
    Monitor("nvidia-persistenced", "nvidia-smi -i {address} -pm 0", ("run", "nvidia-persistenced", "socket")),
    Monitor("nvidia-vgpud", "systemctl stop nvidia-vgpud"),
    Monitor("nvidia-vgpu-mgr", "systemctl stop nvidia-vgpu-mgr"),
    Monitor("nv-hostengine", "systemctl stop nvidia-dcgm"),
    Monitor("dcgm-exporter", "systemctl stop dcgm-exporter"),
    Monitor("nvidia_gpu_exporter", "systemctl stop nvidia_gpu_exporter"),
    Monitor("nvidia-device-plugin", _NO_POD.format("device-plugin")),
    Monitor("gpu-feature-discovery", _NO_POD.format("gpu-feature-discovery")),
    Monitor("rdcd", "systemctl stop rdc"),
    Monitor("xpumd", "systemctl stop xpum"),
)
MONITORS = {monitor.name[:COMM_LENGTH]: monitor for monitor in _MONITORS}
"""By their names, as Linux cuts off those of processes."""
RELEASABLE = tuple(monitor.name for monitor in _MONITORS if monitor.socket is not None)
"""Names of those that can be asked to let one GPU go."""


def monitor_of(process: Process) -> Monitor | None:
    """The monitor that a process seems to be: any program can give itself such a name."""
    return MONITORS.get(process.name[:COMM_LENGTH])


def describe_users(
    processes: Collection[Process], address: str, tree: Tree, released: Collection[str] = ()
) -> str | None:
    """Who uses a GPU, as the reason shows it: first any program other than a monitor, else a monitor and the remedy.

    None if only monitors use it that the admin lets devalloc ask to let it go (``released``), and that can be asked.
    """
    for process in processes:
        if monitor_of(process) is None:
            return str(process)
    for process in processes:
        monitor = monitor_of(process)
        if monitor is None or (monitor.name in released and monitor.can_release(tree)):
            continue
        offer = f", or allow devalloc to (--release-from {monitor.name})" if monitor.can_release(tree) else ""
        return f"{monitor.name}; stop it ({monitor.stop.format(address=address)}){offer}"
    return None
