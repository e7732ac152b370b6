"""Machines of the fault enumeration: a fake QEMU in a process of its own, forked in milliseconds.

The plugin's own program `spawn` becomes it: life file, cgroup, limits, user and log are real. Only what it executes is
not QEMU but `ForkedQemu` below, which holds the VFIO nodes of what is plugged into it open, each for itself alone, as
the kernel has it. It is no child of the plugin and outlives its `kill -9`.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import re
import signal
import socket
import sys
import threading
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from devalloc_machines.qemu import spawn
from tests.support.fake_qmp import GREETING, Error, FakeQemu
from tests.support.object_socket import receive, send

_SUBREAPER = 36


class ForkedQemu(FakeQemu):
    """One machine, as its command line says. `root`: the fake host's."""

    def __init__(self, path: Path, root: Path, words: list[str]) -> None:
        devices = [json.loads(word) for flag, word in pairwise(words) if flag == "-device"]
        drivers = [device["driver"] for device in devices]
        ports = [device for device in devices if device["driver"] == "pcie-root-port"]
        smp = dict(re.findall(r"(\w+)=(\d+)", words[words.index("-smp") + 1]))
        memory = dict(re.findall(r"(\w+)=(\d+)", words[words.index("-m") + 1]))
        base = int(memory["size"])
        room = int(memory.get("maxmem", base)) - base if "virtio-mem-pci" in drivers else 0
        self.root = root
        self.over = threading.Event()
        self.groups: dict[str, tuple[int, set[str]]] = {}
        """Open VFIO nodes, and the devices in QEMU that they are open for."""
        super().__init__(
            path,
            ports=len(ports),
            cpus=int(smp["cpus"]),
            most_cpus=int(smp["maxcpus"]),
            base=base,
            room=room,
        )
        self.uuid = words[words.index("-uuid") + 1]
        self.status = "prelaunch" if "-S" in words else "running"
        self.ports = [device.get("id", f"port{n}") for n, device in enumerate(ports)]
        self.expanders = {device["id"]: device["numa_node"] for device in devices if device["driver"] == "pxb-pcie"}
        self.windows = {device["id"]: device["pref64-reserve"] for device in devices if "pref64-reserve" in device}
        self.deaf = "guest=deaf" in words[words.index("-append") + 1]
        """Whether its guest does nothing when it is to power down."""
        for device in devices:
            if device["driver"].endswith("-cpu"):
                self.cpus[device["core-id"]] = f"/machine/peripheral/{device['id']}"
            if device["driver"] == "virtio-mem-pci":
                self.requested = self.size = device["requested-size"]
            if device["driver"] == "pc-dimm":
                self.devices[device["id"]] = device
        objects = [json.loads(word) for flag, word in pairwise(words) if flag == "-object"]
        for each in objects:
            if each["id"].startswith("dimm"):
                self.backends[each["id"]] = str(each["size"])

    def _do_query_fake(self, a: dict[str, Any]) -> Any:
        """What a test wants to know of it."""
        devices = {name: device.get("host", device.get("sysfsdev")) for name, device in sorted(self.devices.items())}
        return {
            "status": self.status,
            "devices": devices,
            "cpus": sorted(self.cpus),
            "memory": (self.base, self.size, self.requested),
            "backends": sorted(self.backends),
            "descriptors": [sorted(self.sets), sorted(self.named)],
        }

    def _do_quit(self, a: dict[str, Any]) -> Any:
        threading.Timer(0.002, self.over.set).start()  # after its answer
        return {}

    def _do_system_reset(self, a: dict[str, Any]) -> Any:
        self.event("RESET", guest=False, reason="host-qmp-system-reset")
        return {}

    def _do_query_cpus_fast(self, a: dict[str, Any]) -> Any:
        """Of a guest with several nodes: each vCPU is a socket. They have one thread together."""
        return [{"thread-id": os.getpid(), "props": {"socket-id": n, "core-id": 0}} for n in sorted(self.cpus)]

    def _do_system_powerdown(self, a: dict[str, Any]) -> Any:
        if not self.deaf and self.status == "running":
            threading.Timer(0.002, self.over.set).start()
        return {}

    def _do_device_add(self, a: dict[str, Any]) -> Any:
        if a["driver"] != "vfio-pci" or a["id"] in self.devices:
            return super()._do_device_add(a)
        host = a.get("host") or a["sysfsdev"]
        if host in [device.get("host") or device.get("sysfsdev") for device in self.devices.values()]:
            raise Error(f"vfio {host}: device is already attached")
        folder = self.root / (f"sys/bus/pci/devices/{host}" if "host" in a else host.lstrip("/"))
        try:
            group = (folder / "iommu_group").resolve(strict=True).name
            node = str(self.root / "dev/vfio" / group)
            if node not in self.groups:
                fd = os.open(node, os.O_RDWR | os.O_CLOEXEC)
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # VFIO gives a group to one process
                self.groups[node] = (fd, set())
        except OSError as error:
            raise Error(f"vfio {host}: failed to open its group: {error.strerror}") from None
        self.groups[node][1].add(a["id"])
        return super()._do_device_add(a)

    def let_go(self, name: str) -> None:
        for node, (fd, users) in list(self.groups.items()):
            users.discard(name)
            if not users:
                os.close(fd)
                del self.groups[node]
        super().let_go(name)


def described_by_monitor(path: Path) -> Any:
    """What a machine says of itself, by its monitor."""
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(60.0)
        line.connect(str(path))
        with line.makefile("rw") as file:
            assert json.loads(file.readline()) == GREETING
            file.write(json.dumps({"execute": "query-fake"}))
            file.flush()
            return json.loads(file.readline())["return"]


class QemuForkServer:
    """A small process that forks machines, so that they are made fast and share no other memory."""

    def __init__(self, root: Path) -> None:
        self._line, theirs = socket.socketpair()
        self._turn = threading.Lock()
        self._pid = os.fork()
        if self._pid == 0:
            self._line.close()
            _serve(theirs, root)
        theirs.close()

    def run(self, plan: str) -> tuple[int, bytes]:
        """As the program `spawn` with the path of a plan: its exit status, and what it said."""
        with self._turn:
            send(self._line, ("run", plan))
            answer = receive(self._line)
        if answer is None:
            raise RuntimeError(f"the process that forks machines ({self._pid}) has ended before it answered")
        status, words = answer
        return status, words

    def children(self) -> list[int]:
        """Process ids of the machines that live."""
        pids = Path(f"/proc/{self._pid}/task/{self._pid}/children").read_text().split()
        return [pid for pid in map(int, pids) if _is_alive(pid)]

    def close(self) -> None:
        """End it, and all of its machines."""
        self._line.close()
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):  # the second where it ends between opening and reading
        return False


def _serve(line: socket.socket, root: Path) -> NoReturn:
    os.closerange(3, line.fileno())
    os.closerange(line.fileno() + 1, 4096)
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    with suppress(BaseException):
        while (message := receive(line)) is not None:
            send(line, _run(message[1], root))
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
    for child in map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()):
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    os._exit(0)


def _run(plan: str, root: Path) -> tuple[int, bytes]:
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        status = spawn.FAILED
        try:
            os.dup2(writes, 2)
            os.closerange(3, 4096)
            sys.stderr = os.fdopen(2, "w", closefd=False)
            os.execve = lambda path, words, env: (  # type: ignore[assignment, misc]
                _become_tpm(words) if "--tpmstate" in words else _become(root, words)
            )
            status = spawn.main(plan, detach=True)
            sys.stderr.flush()
        finally:
            os._exit(status)
    os.close(writes)
    _, status = os.waitpid(child, 0)
    with os.fdopen(reads, "rb") as pipe:
        return os.waitstatus_to_exitcode(status), pipe.read()


def _become_tpm(words: list[str]) -> NoReturn:
    """A TPM: it writes to its folder, in which it is, and ends when QEMU closes the line to it."""
    line = int(words[words.index("--ctrl") + 1].rpartition("=")[2])
    _close(_closing())
    Path("tpm2-00.permall").write_text("keys")
    while os.read(line, 4096):
        pass
    os._exit(0)


def _become(root: Path, words: list[str]) -> NoReturn:
    """What `execve` does: close what is not to be inherited, and be the machine."""
    closing = _closing()
    try:
        qemu = ForkedQemu(Path("qmp"), root, words)
    except BaseException as error:
        os.write(2, f"fake QEMU: {error!r}\n".encode())
        os._exit(1)
    _close(closing)
    qemu.over.wait()
    os._exit(0)


def _closing() -> list[int]:
    """Descriptors that a program does not inherit."""
    return [fd for fd in map(int, os.listdir("/proc/self/fd")) if fd > 2 and _closes(fd)]


def _close(fds: list[int]) -> None:
    for fd in fds:
        with suppress(OSError):
            os.close(fd)


def _closes(fd: int) -> bool:
    try:
        return not os.get_inheritable(fd)
    except OSError:
        return False


def opened(pid: int, root: Path) -> tuple[str, ...]:
    """The device nodes of the fake host that a process has open, as they are called there."""
    paths = set()
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                path = os.readlink(f"/proc/{pid}/fd/{name}").removesuffix(" (deleted)")
                if path.startswith(f"{root}/dev/"):
                    paths.add(path.removeprefix(str(root)))
    return tuple(sorted(paths))
