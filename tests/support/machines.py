"""Machines of the node plugin for tests: VirtualMachine objects of the micro image, and a plugin to kill."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute

from devalloc.api.virtual_machine import VirtualMachine
from devalloc.inventory.capacity import HostCapacity
from devalloc_machines.qemu import settings as machine_settings
from devalloc_machines.qemu.lifecycle import MachineLifecycle
from devalloc_machines.qemu.qmp import Connect, QmpMonitor
from devalloc_machines.qemu.records import MachineView
from devalloc_machines.qemu.settings import MachineConfig
from devalloc_node.journal import Journal
from devalloc_node.journal.sqlite import open_journal
from tests.support import old_names
from tests.support.images import Image
from tests.support.qemu import MICRO_APPEND
from tests.support.waiting import until

MIB = 1 << 20
IS_RELEASE_BEFORE = old_names.ENVIRONMENT in os.environ
"""Whether the release before runs here, which has no owners of folders, no firmware and no TPM."""


class NoDeviceOwner:
    """No device of the host is given to a machine here."""

    def own(self, node: str, uid: int, gid: int) -> None:
        raise AssertionError(f"{node} was given to {uid}:{gid}")


def virtual_machine(name: str, image: Image | None = None, **spec: Any) -> VirtualMachine:
    """One to four CPUs, 512 MiB to 2 GiB, in the state of its least; ``spec`` in place of that."""
    start = {"kernel": "/none", "append": MICRO_APPEND}
    if image is not None:
        start |= {"kernel": str(image.kernel), "initrd": str(image.initrd)}
    content = {
        "nodeName": "here",
        "cpu": {"min": "1", "max": "4"},
        "memory": {"min": "512Mi", "max": "2Gi"},
        "start": start,
        **spec,
    }
    return VirtualMachine.model_validate(
        {
            "apiVersion": "devalloc.io/v1alpha1",
            "kind": "VirtualMachine",
            "metadata": {"namespace": "default", "name": name},
            "spec": {key: value for key, value in content.items() if value is not None},
        }
    )


def open_folder(path: Path) -> Any:
    """A folder that machines of all namespaces may use, as each one was in the release before."""
    return path if IS_RELEASE_BEFORE else machine_settings.AllowedFolder(path, "any")


def config(image: Image, folder: Path, **other: Any) -> MachineConfig:
    """Everything below ``folder``, whose name must be short: sockets lie below it."""
    settings: dict[str, Any] = {
        "state": folder / "state",
        "run": folder / "run",
        "binary": str(image.qemu),
        "folders": (open_folder(image.folder),),
        "socket_folders": (open_folder(folder),),
        "taps": ("dvm*",),
        "accel": "tcg",
        "users": None,
        "systemd": False,
    }
    return MachineConfig(**{**settings, **other})


@contextlib.contextmanager
def short_folder() -> Iterator[Path]:
    """A folder whose path leaves room for those of sockets, and that other users can enter."""
    with tempfile.TemporaryDirectory(prefix="dvm-") as name:
        os.chmod(name, 0o711)
        yield Path(name)


@contextlib.contextmanager
def plugin(
    settings: MachineConfig,
    *,
    changed: Callable[[str], None] = lambda key: None,
    connect: Connect = QmpMonitor,
    records: Callable[[Journal], Journal] = lambda journal: journal,
    host: HostCapacity | None = None,
) -> Iterator[MachineLifecycle]:
    """The part of a plugin that has to do with machines, with a journal of its own."""
    journal = open_journal(settings.state.parent / "journal")
    machines = MachineLifecycle(settings, records(journal), changed=changed, connect=connect, host=host)
    try:
        machines.recover()
        yield machines
    finally:
        machines.close()
        journal.close()


def view(machines: MachineLifecycle, key: str = "default/m") -> MachineView:
    """A machine that is there."""
    machine = machines.get(key)
    assert machine is not None, f"there is no machine {key}"
    return machine


def running(machines: MachineLifecycle, key: str = "default/m") -> MachineView:
    """The machine, once its QEMU says that it runs: if an answer comes too late on a busy host, it is ``Unknown``."""

    def seen() -> MachineView | None:
        machine = machines.get(key)
        return machine if machine is not None and machine.phase == "Running" else None

    machine = until(seen, f"machine {key} runs", context=lambda: machines.get(key))
    assert machine is not None
    return machine


@contextlib.contextmanager
def ended(settings: MachineConfig) -> Iterator[None]:
    """Whatever happens, no machine of this test outlives it."""
    try:
        yield
    finally:
        for life in settings.state.glob("*.life"):
            words = life.read_text().split()
            if len(words) == 2:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(words[0]), signal.SIGKILL)


@contextlib.contextmanager
def tap_interface(*, queues: bool = False) -> Iterator[str]:
    """A TAP interface of this host, which only root can make: its name. ``queues``: it can have several."""
    name = f"dvm{os.getpid()}"
    with IPRoute() as host:
        if queues:
            _make_tap_with_queues(name)
        else:
            host.link("add", ifname=name, kind="tuntap", mode="tap")
        try:
            yield name
        finally:
            host.link("del", index=host.link_lookup(ifname=name)[0])


def _make_tap_with_queues(name: str) -> None:
    """As ``ip tuntap add NAME mode tap multi_queue`` does; pyroute2 loses that flag."""
    with open("/dev/net/tun", "r+b", buffering=0) as tun:
        fcntl.ioctl(tun, 0x400454CA, struct.pack("16sH22x", name.encode(), 0x0002 | 0x1000 | 0x0100))  # TUNSETIFF
        fcntl.ioctl(tun, 0x400454CB, 1)  # TUNSETPERSIST
