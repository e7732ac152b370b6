"""A `FakeSysfs` behind the plugin's boundary to the host, with processes that hold devices and VFs set by netlink.

    host = FakeHost(tmp_path)
    host.add(cards.nic())
    LocalHost(host)                                   # the plugin's `Host`; or, in a child that may be killed:
    with serving(host) as address: RemoteHost(host.root, address)

Stricter than plain files where kernels are: what a process holds open is not let go, and a caller that wants it waits
(the write ends when the process does). `snapshot()` is all of the host's state, to compare. Every change that the
plugin makes goes through `Boundary.call`: the place to count, to fail, or to die at.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import TYPE_CHECKING, Any

from devalloc.inventory.sysfs import Tree
from devalloc_node.deadline import Deadline
from devalloc_node.errors import NodeError, Unknown
from devalloc_node.host.boundary import VfSettings
from devalloc_node.host.files import Files, is_name
from tests.support.fake_sysfs import FakeSysfs
from tests.support.fake_tree import fail, real

if TYPE_CHECKING:
    from devalloc.device_kinds import DeviceKind  # the release before, which some tests run here, has no such module

FRESH = {
    "mac": "00:00:00:00:00:00",
    "vlan": 0,
    "vlanQos": 0,
    "minTxRate": 0,
    "maxTxRate": 0,
    "trust": False,
    "spoofCheck": True,
    "linkState": "auto",
}
"""What igb says of a VF that was never set up."""
_INIT_NAMESPACE = "pid:[4026531836]"


class FakeHost(FakeSysfs):
    """A host whose kernel is played by this process."""

    def __init__(self, root: Path, *, drivers: tuple[str, ...] = ("vfio-pci",), folders: tuple[str, ...] = ()) -> None:
        """`folders`: where `put_file` may write; `files` below the root by default."""
        super().__init__(root, drivers=drivers)
        self.files = Files(folders or (str(self.root / "files"),))
        self.owners: dict[str, tuple[int, int]] = {}
        self.set_up: dict[str, dict[str, Any]] = {}
        """Settings of VFs that differ from fresh ones, by the VF's address."""
        self.no_link: set[str] = set()
        """Interfaces whose cable is out: igb sets no rate of a VF then."""
        self.held_by_daemon: dict[str, tuple[int, str]] = {}
        """GPUs that `nvidia-persistenced` can hold: its process, and the node."""
        self.daemon_runs = False
        self._open: dict[int, tuple[str, ...]] = {}
        self._waiting: list[tuple[str, str]] = []
        self._kernel = threading.RLock()
        (self.root / "dev/vfio").mkdir(parents=True, exist_ok=True)
        for pid in ("1", "self"):
            (self.root / "proc" / pid / "ns").mkdir(parents=True)
            os.symlink(_INIT_NAMESPACE, self.root / "proc" / pid / "ns/pid")
        self.process(1, "systemd")

    # Processes.

    def process(self, pid: int, name: str = "qemu-system-x86", opens: tuple[str, ...] = ()) -> None:
        """A process with device nodes open, such as `/dev/vfio/15`."""
        with self._kernel:
            self._open[pid] = opens
            self.proc(f"{pid}/comm", f"{name}\n")
            folder = self.root / f"proc/{pid}/fd"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            for number, node in enumerate(("/dev/null", *opens)):
                os.symlink(node, folder / str(number))
            self._go_on()

    def end_process(self, pid: int) -> None:
        """It ends, and writes that waited for what it held go on."""
        with self._kernel:
            del self._open[pid]
            shutil.rmtree(self.root / f"proc/{pid}")
            self._go_on()

    def blind(self, pid_namespace: str = "pid:[4026532201]") -> None:
        """The plugin is in a container that does not share the host's processes."""
        link = self.root / "proc/self/ns/pid"
        link.unlink()
        os.symlink(pid_namespace, link)

    def _go_on(self) -> None:
        waiting, self._waiting = self._waiting, []
        for path, text in waiting:
            if self._holds_up(path, text):
                self._waiting.append((path, text))
            else:
                with suppress(OSError):
                    self.store(path, text)

    def _holds_up(self, path: str, text: str) -> bool:
        """Whether a write has to wait for a process: what it takes away is open."""
        nodes = {node for nodes in self._open.values() for node in nodes}
        if not nodes:
            return False
        value, folder = text.strip(), os.path.basename(os.path.dirname(real(f"{self._sys}/{path}")))
        taken: list[str] = []
        if path.endswith("/unbind"):
            taken = [value]
        elif path.endswith("/sriov_numvfs") and value == "0" and folder in self.functions:
            taken = self.functions[folder].vfs
        elif path.endswith("/remove"):
            taken = [folder]
        return any(self._node_of(name) in nodes for name in taken)

    def _node_of(self, name: str) -> str | None:
        """The VFIO node of a function or mdev, while it has one."""
        for place in (f"bus/pci/devices/{name}", f"bus/mdev/devices/{name}"):
            link = self.sys / place / "iommu_group"
            if link.exists():
                group = os.path.basename(real(str(link)))
                return f"/dev/vfio/{group}" if (self.root / f"dev/vfio/{group}").exists() else None
        return None

    # What the plugin does, by way of the boundary.

    def answer(self, method: str, *arguments: Any) -> Any:
        """The answer to a call of a method of `Host`, other than `tree`."""
        calls: dict[str, Callable[..., Any]] = {
            "write": self._write,
            "hot_reset": self._hot_reset,
            "unanswered": self._unanswered,
            "vf_settings": self._vf_settings,
            "set_vf": self._set_vf,
            "persistence": self._persistence,
            "set_persistence": self._set_persistence,
            "own": self._own,
            "put_file": self.files.put,
            "remove_file": self.files.remove,
        }
        return calls[method](*arguments)

    def _write(self, path: str, text: str, deadline: Deadline) -> None:
        if not all(map(is_name, path.split("/"))):
            raise fail(errno.EPERM, path)
        while True:
            with self._kernel:
                if not self._holds_up(path, text):
                    if path.endswith("current_vgpu_type") and text.strip() == "0":
                        self._refuse_running(Path(path).parent.parent.name)
                    self.store(path, text)
                    return
                if deadline.passed:
                    self._waiting.append((path, text))
                    raise Unknown("HostNotAnswering", f"the kernel does not complete a write to /sys/{path}")
            time.sleep(0.002)

    def _hot_reset(self, address: str, groups: Sequence[int], expected: Sequence[str], deadline: Deadline) -> None:
        with self._kernel:
            nodes = {f"/dev/vfio/{group}" for group in groups}
            if any(nodes & {*opened} for opened in self._open.values()):
                raise fail(errno.EBUSY, address)
            port = os.path.dirname(self.functions[address].path)
            there = {name for name, other in self.functions.items() if os.path.dirname(other.path) == port}
            if there != {*expected} or not all("vfio" in (self.functions[name].driver or "") for name in there):
                raise fail(errno.EPERM, address)
            if not {f"/dev/vfio/{self.functions[name].group}" for name in there} <= nodes:
                raise fail(errno.EINVAL, address)
            for name in sorted(there):
                self.reset(name)

    def _unanswered(self, device: str) -> bool:
        with self._kernel:
            places = ((real(f"{self._sys}/{path}"), text) for path, text in self._waiting)
            return any(device == text.strip() or device in place.split("/") for place, text in places)

    def _refuse_running(self, vf: str) -> None:
        if any(self._node_of(vf) in nodes for nodes in self._open.values()):
            raise fail(errno.EBUSY, vf)

    def _vf_settings(self, interface: str, index: int) -> VfSettings:
        with self._kernel:
            return FRESH | self.set_up.get(self._vf(interface, index), {})

    def _set_vf(self, interface: str, index: int, settings: VfSettings) -> None:
        with self._kernel:
            vf = self._vf(interface, index)
            speed = self.functions[self.functions[vf].pf or ""].spec.speed
            wanted = {**FRESH, **self.set_up.get(vf, {}), **settings}
            wanted["mac"] = wanted["mac"].lower()
            multicast = int(wanted["mac"][:2], 16) & 1
            if settings.keys() - FRESH.keys() or multicast or wanted["vlan"] > 4094 or wanted["maxTxRate"] > speed:
                raise fail(errno.EINVAL, interface)
            if interface in self.no_link and settings.keys() & {"minTxRate", "maxTxRate"}:
                raise fail(errno.EINVAL, interface)
            if wanted["maxTxRate"] and wanted["minTxRate"] > wanted["maxTxRate"]:
                raise fail(errno.EINVAL, interface)
            self.set_up[vf] = {name: value for name, value in wanted.items() if value != FRESH[name]}

    def _vf(self, interface: str, index: int) -> str:
        for function in self.functions.values():
            if function.spec.netdev == interface and function.pf is None and function.driver == function.spec.native:
                if index >= len(function.vfs):
                    raise fail(errno.EINVAL, interface)
                return function.vfs[index]
        raise fail(errno.ENODEV, interface)

    def remove_function(self, address: str) -> None:
        self.set_up.pop(address, None)
        super().remove_function(address)

    def persistenced(self, address: str, *, pid: int = 812) -> str:
        """`nvidia-persistenced` runs, and holds this NVIDIA GPU, which is the only one; the GPU's node."""
        self.proc(f"driver/nvidia/gpus/{address}/information", "Device Minor: \t 0\n")
        socket = self.root / "run/nvidia-persistenced/socket"
        socket.parent.mkdir(parents=True, exist_ok=True)
        socket.touch()
        self.held_by_daemon, self.daemon_runs = {address: (pid, "/dev/nvidia0")}, True
        self._show_daemon(address, held=True)
        return "/dev/nvidia0"

    def _show_daemon(self, address: str, *, held: bool) -> None:
        pid, node = self.held_by_daemon[address]
        self.process(pid, "nvidia-persiste", ("/dev/nvidiactl", node) if held else ("/dev/nvidiactl",))

    def _persistence(self, address: str) -> bool:
        with self._kernel:
            if not self.daemon_runs:
                raise fail(errno.ENOENT, "run/nvidia-persistenced/socket")
            if address not in self.held_by_daemon:
                raise fail(errno.ENODEV, address)
            pid, node = self.held_by_daemon[address]
            return node in self._open[pid]

    def _set_persistence(self, address: str, enabled: bool, deadline: Deadline) -> None:
        with self._kernel:
            if self._persistence(address) != enabled:
                if enabled and (address not in self.functions or self.functions[address].driver != "nvidia"):
                    raise fail(errno.EIO, address)
                self._show_daemon(address, held=enabled)

    def _own(self, node: str, uid: int, gid: int) -> None:
        if not node.startswith("/dev/vfio/") or not is_name(node.rpartition("/")[2]):
            raise fail(errno.EPERM, node)
        if not (self.root / node[1:]).exists():
            raise fail(errno.ENOENT, node)
        self.owners[node] = (uid, gid)

    def vfio_group(self, group: int, *, present: bool) -> None:
        super().vfio_group(group, present=present)
        if not present:
            self.owners.pop(f"/dev/vfio/{group}", None)

    def snapshot(self) -> dict[str, str]:
        """Every file and link of the host (its processes aside), the settings of its VFs and the owners of nodes."""
        with self._kernel:
            state = {f"vf {vf}": str(sorted(settings.items())) for vf, settings in self.set_up.items() if settings}
            state |= {f"owner {node}": str(owner) for node, owner in self.owners.items()}
            for place in (self.sys, self.root / "dev", *map(Path, self.files.folders)):
                if place.exists():
                    _read_all(str(place), state)
            return state


def _read_all(folder: str, contents: dict[str, str]) -> None:
    """Add what its files say and where its links point, and so for the folders in it."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                contents[entry.path] = f"-> {os.readlink(entry.path)}"
            elif entry.is_dir():
                _read_all(entry.path, contents)
            elif entry.is_file():
                try:
                    with open(entry.path, "rb", buffering=0) as file:
                        contents[entry.path] = file.read().decode("latin-1")
                except PermissionError:  # only root reads what can be written only
                    contents[entry.path] = f"{entry.stat().st_size} bytes"


class Boundary:
    """The plugin's `Host`, all of it by way of `call`."""

    root: Path
    kinds: tuple[DeviceKind, ...] = ()
    _tree: Tree | None = None

    def call(self, method: str, *arguments: Any) -> Any:
        """The answer of the host. Raises OSError or NodeError."""
        raise NotImplementedError

    def tree(self) -> Tree:
        # The release before, which some tests run here, knows no kinds of the admin's.
        new = partial(Tree, self.root, kinds=self.kinds) if self.kinds else partial(Tree, self.root)
        self._tree = new() if self._tree is None else self._tree.again()
        return self._tree

    def write(self, path: str, text: str, deadline: Deadline) -> None:
        self.call("write", path, text, deadline)

    def hot_reset(self, address: str, groups: Sequence[int], expected: Collection[str], deadline: Deadline) -> None:
        self.call("hot_reset", address, list(groups), sorted(expected), deadline)

    def unanswered(self, device: str) -> bool:
        return bool(self.call("unanswered", device))

    def vf_settings(self, interface: str, index: int) -> VfSettings:
        settings: VfSettings = self.call("vf_settings", interface, index)
        return settings

    def set_vf(self, interface: str, index: int, settings: VfSettings) -> None:
        self.call("set_vf", interface, index, dict(settings))

    def persistence(self, address: str) -> bool:
        return bool(self.call("persistence", address))

    def set_persistence(self, address: str, enabled: bool, deadline: Deadline) -> None:
        self.call("set_persistence", address, enabled, deadline)

    def own(self, node: str, uid: int, gid: int) -> None:
        self.call("own", node, uid, gid)

    def put_file(self, path: str, content: bytes, mode: int = 0o644) -> None:
        self.call("put_file", path, content, mode)

    def remove_file(self, path: str) -> None:
        self.call("remove_file", path)


class LocalHost(Boundary):
    """A fake host of this process."""

    def __init__(self, host: FakeHost, kinds: tuple[DeviceKind, ...] = ()) -> None:
        self.root = host.root
        self.host = host
        self.kinds = kinds

    def call(self, method: str, *arguments: Any) -> Any:
        return self.host.answer(method, *arguments)


class RemoteHost(Boundary):
    """A fake host that another process serves. Safe for threads; each has a connection of its own."""

    def __init__(self, root: Path, address: str) -> None:
        self.root = root
        self.address = address
        self._local = threading.local()

    def call(self, method: str, *arguments: Any) -> Any:
        if not hasattr(self._local, "connection"):
            self._local.connection = Client(self.address, "AF_UNIX")
        # The other side cannot hear that a caller has gone.
        sent = tuple(Deadline(each.at) if isinstance(each, Deadline) else each for each in arguments)
        self._local.connection.send((method, sent))
        answer = self._local.connection.recv()
        if isinstance(answer, _Refusal):
            raise answer.error()
        if isinstance(answer, Exception):
            raise answer
        return answer


class _Refusal:
    """A NodeError on its way: they are not made to be pickled."""

    def __init__(self, error: NodeError) -> None:
        self.kind, self.code, self.message, self.retryable = type(error), error.code, error.message, error.retryable

    def error(self) -> NodeError:
        if issubclass(self.kind, Unknown):
            return self.kind(self.code, self.message)
        return self.kind(self.code, self.message, retryable=self.retryable)


@contextmanager
def serving(host: FakeHost) -> Iterator[str]:
    """Answers `RemoteHost`s of other processes for as long as the context lasts; the address to give them."""
    with tempfile.TemporaryDirectory() as folder:
        address = f"{folder}/host"
        listener = Listener(address, "AF_UNIX", backlog=128)
        threading.Thread(target=_accept, args=(listener, host), daemon=True).start()
        try:
            yield address
        finally:
            listener.close()


def _accept(listener: Listener, host: FakeHost) -> None:
    while True:
        try:
            connection = listener.accept()
        except OSError:  # closed
            return
        threading.Thread(target=_answer, args=(connection, host), daemon=True).start()


def _answer(connection: Connection[Any, Any], host: FakeHost) -> None:
    with suppress(EOFError, OSError):  # the caller has been killed
        while True:
            method, arguments = connection.recv()
            answer: Any
            try:
                answer = host.answer(method, *arguments)
            except NodeError as error:
                answer = _Refusal(error)
            except OSError as error:
                answer = error
            connection.send(answer)
