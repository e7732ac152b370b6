"""The real host: sysfs, settings of VFs by netlink, and questions to its kernel."""

from __future__ import annotations

import errno
import ipaddress
import logging
import os
import queue
import socket
import stat
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from devalloc.device_kinds import DeviceKind
from devalloc.inventory.pci import Address
from devalloc.inventory.sysfs import Tree
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Failed, Unknown
from devalloc_node.host import persistence
from devalloc_node.host.boundary import VfSettings
from devalloc_node.host.files import Files, is_name
from devalloc_node.host.vfio_reset import hot_reset
from devalloc_node.model.step import Value

_LOCAL = 2
"""RTN_LOCAL of rtnetlink(7)."""


@dataclass(frozen=True, slots=True)
class Route:
    """The way that the kernel would take now."""

    interface: str | None
    """None: there is no way there."""
    by_gateway: bool = False
    """Another host passes it on."""
    is_own: bool = False
    """It ends in this host."""
    is_tap: bool = False
    """Only a machine is behind the interface."""


NO_ROUTE = Route(None)


def route_to(address: str) -> Route:
    """The way to an address; NO_ROUTE if the kernel knows none. Raises OSError if it does not say."""
    from pyroute2 import IPRoute  # 0.2 s, which only hosts with machines that are scaled need
    from pyroute2.netlink.exceptions import NetlinkError

    family = {4: 2, 6: 10}[ipaddress.ip_address(address).version]
    with IPRoute() as routes:
        try:
            (answer,) = routes.route("get", dst=address, family=family)
            index = answer.get_attr("RTA_OIF")
            (link,) = routes.link("get", index=index)
        except (NetlinkError, ValueError):
            return NO_ROUTE
    name = str(link.get_attr("IFLA_IFNAME"))
    gateway = answer.get_attr("RTA_GATEWAY") or answer.get_attr("RTA_VIA")
    is_own = answer["type"] == _LOCAL or name == "lo"
    return Route(name, gateway is not None, is_own, Path(f"/sys/class/net/{name}/tun_flags").exists())


_WITH_VFS = 1 | 8  # RTEXT_FILTER_VF | RTEXT_FILTER_SKIP_STATS
"""Without their statistics, as ``ip link`` asks: those of 200 VFs and more do not fit into the attribute (64 KiB)."""
_LINK_STATES = ("auto", "enable", "disable")  # in the order of IFLA_VF_LINK_STATE_*
_UNSET = 2**32 - 1
"""What the kernel answers for a switch that the driver does not have."""


def vf_settings(interface: str, index: int) -> VfSettings:
    """What the PF's interface says of a VF; only what its driver knows. Raises OSError: ENODEV if there is no such
    interface or VF."""
    with _route() as route:
        return settings_of(_link(route, interface), interface, index)


def set_vf(interface: str, index: int, settings: VfSettings) -> None:
    """Set them, all in one message. Raises OSError with the kernel's errno."""
    with _route() as route:
        link = _link(route, interface)
        now = settings_of(link, interface, index)
        route.link("set", index=link["index"], vf=request(index, now, settings))


def settings_of(link: Any, interface: str, index: int) -> dict[str, Value]:
    """The settings of one VF out of the kernel's answer about its PF; empty if its driver has none."""
    listed = link.get_attr("IFLA_VFINFO_LIST")
    for info in listed.get_attrs("IFLA_VF_INFO") if listed is not None else ():
        mac = info.get_attr("IFLA_VF_MAC")
        if mac is None or mac["vf"] != index:
            continue
        settings: dict[str, Value] = {"mac": mac["mac"]}
        vlan, rate = info.get_attr("IFLA_VF_VLAN"), info.get_attr("IFLA_VF_RATE")
        if vlan is not None:
            settings |= {"vlan": vlan["vlan"], "vlanQos": vlan["qos"]}
        if rate is not None:
            settings |= {"minTxRate": rate["min_tx_rate"], "maxTxRate": rate["max_tx_rate"]}
        for name, attribute, member in (("trust", "TRUST", "trust"), ("spoofCheck", "SPOOFCHK", "spoofchk")):
            switch = info.get_attr(f"IFLA_VF_{attribute}")
            if switch is not None and switch[member] != _UNSET:
                settings[name] = bool(switch[member])
        state = info.get_attr("IFLA_VF_LINK_STATE")
        if state is not None and state["link_state"] < len(_LINK_STATES):
            settings["linkState"] = _LINK_STATES[state["link_state"]]
        return settings
    if (link.get_attr("IFLA_NUM_VF") or 0) > index:
        return {}
    raise OSError(errno.ENODEV, f"{os.strerror(errno.ENODEV)}: no VF {index}", interface)


def request(index: int, now: VfSettings, wanted: VfSettings) -> dict[str, Any]:
    """The ``vf`` argument of pyroute2. VLAN and rates are pairs: what of one is not asked for stays as it is."""
    arguments: dict[str, Any] = {"vf": index}
    both = {**now, **wanted}
    if "mac" in wanted:
        arguments["mac"] = wanted["mac"]
    if wanted.keys() & {"vlan", "vlanQos"}:
        arguments["vlan"] = {"vlan": both.get("vlan", 0), "qos": both.get("vlanQos", 0)}
    if wanted.keys() & {"minTxRate", "maxTxRate"}:
        arguments["rate"] = {"min_tx_rate": both.get("minTxRate", 0), "max_tx_rate": both.get("maxTxRate", 0)}
    if "trust" in wanted:
        arguments["trust"] = int(wanted["trust"])
    if "spoofCheck" in wanted:
        arguments["spoofchk"] = int(wanted["spoofCheck"])
    if "linkState" in wanted:
        arguments["link_state"] = _LINK_STATES.index(wanted["linkState"])
    return arguments


def _link(route: Any, interface: str) -> Any:
    try:
        index = socket.if_nametoindex(interface)
    except OSError as error:  # without an errno
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), interface) from error
    answer = list(route.link("get", index=index, ext_mask=_WITH_VFS))
    if not answer:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), interface)
    return answer[0]


@contextmanager
def _route() -> Iterator[Any]:
    from pyroute2 import IPRoute  # 0.2 s, which only hosts with VFs of network cards need
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        with IPRoute() as route:
            yield route
    except NetlinkError as error:
        raise OSError(error.code, os.strerror(error.code)) from error


_MAX_WAITING = 64
"""Writes that the kernel may leave unanswered at a time; with more of them something is badly wrong."""
_DEVICES = "/dev/vfio"

log = logging.getLogger(__name__)


_DAEMON_SECONDS = 10.0
"""How long nvidia-persistenced may take: it starts a GPU when it is to hold it."""


def _address(text: str) -> Address:
    address = Address.parse(text)
    if address is None:
        raise OSError(errno.EINVAL, "is not a PCI address", text)
    return address


@dataclass(frozen=True, slots=True)
class _Job:
    """A change that the kernel may not complete in time."""

    place: str
    text: str
    name: str
    """Of its thread."""
    earlier: str
    """The same, if it was begun before."""
    what: str

    @property
    def key(self) -> tuple[str, str]:
        return self.place, self.text


def _write(place: str, text: str) -> None:
    descriptor = os.open(place, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "is not a file", place)
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


@dataclass(slots=True)
class LinuxHost:
    """This machine. Safe for threads."""

    files: Files
    """The folders of the plugin's own files."""
    root: Path = Path("/")
    """Where sys, proc and dev are: elsewhere in a container that has the host's mounted below a folder."""
    kinds: tuple[DeviceKind, ...] = ()
    """Kinds of devices that the admin adds."""
    _waiting: set[tuple[str, str]] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _tree: Tree | None = None

    def tree(self) -> Tree:
        self._tree = Tree(self.root, kinds=self.kinds) if self._tree is None else self._tree.again()
        return self._tree

    def write(self, path: str, text: str, deadline: Deadline) -> None:
        place = self._below_sys(path)
        job = _Job(place, text, f"write {path}", f"an earlier write to /sys/{path}", f"a write to /sys/{path}")
        self._in_time(job, lambda: _write(place, text), deadline)

    def hot_reset(self, address: str, groups: Sequence[int], expected: Collection[str], deadline: Deadline) -> None:
        what = f"a reset of the bus of {address}"
        folder = f"{self.root}{_DEVICES}"
        job = _Job(f"{_DEVICES}/reset", address, f"reset {address}", f"{what} that was begun earlier", what)
        self._in_time(job, lambda: hot_reset(folder, address, groups, expected), deadline)

    def _in_time(self, job: _Job, act: Callable[[], None], deadline: Deadline) -> None:
        """In a thread of its own: the kernel may block, as ``unbind`` does for as long as a process has the device."""
        if deadline.passed:
            raise Failed("DeadlineExceeded", f"no time was left for {job.what}")
        with self._lock:
            if job.key in self._waiting or len(self._waiting) >= _MAX_WAITING:
                raise Unknown("HostNotAnswering", f"the kernel has not completed {job.earlier} yet")
            self._waiting.add(job.key)
        answer: queue.SimpleQueue[OSError | None] = queue.SimpleQueue()
        try:
            threading.Thread(target=self._done, args=(job, act, answer), name=job.name, daemon=True).start()
        except RuntimeError as refused:  # no thread can be had; nothing was changed
            with self._lock:
                self._waiting.discard(job.key)
            raise Failed("HostBusy", f"{job.what} is not possible now: {refused}") from refused
        try:
            error = answer.get(timeout=deadline.seconds)
        except queue.Empty:
            raise Unknown("HostNotAnswering", f"the kernel does not complete {job.what}") from None
        if error is not None:
            raise error

    def unanswered(self, device: str) -> bool:
        with self._lock:
            return any(device == text.strip() or device in place.split("/") for place, text in self._waiting)

    def _done(self, job: _Job, act: Callable[[], None], answer: queue.SimpleQueue[OSError | None]) -> None:
        outcome: OSError | None = None
        try:
            act()
        except OSError as error:
            outcome = OSError(error.errno, error.strerror, job.place)
        with self._lock:
            self._waiting.discard(job.key)
        answer.put(outcome)
        log.debug("%s of %r: %s", job.what, job.text, outcome or "done")

    def _below_sys(self, path: str) -> str:
        """The file without links, proven to be below sys."""
        if not all(map(is_name, path.split("/"))):
            raise OSError(errno.EPERM, "is not a path below sys", path)
        sys = os.path.realpath(self.root / "sys")
        place = os.path.realpath(f"{sys}/{path}")
        if not place.startswith(f"{sys}/"):
            raise OSError(errno.EPERM, "leads out of sys", path)
        return place

    def vf_settings(self, interface: str, index: int) -> VfSettings:
        return vf_settings(interface, index)

    def set_vf(self, interface: str, index: int, settings: VfSettings) -> None:
        set_vf(interface, index, settings)

    def persistence(self, address: str) -> bool:
        return persistence.persistence(self._persistenced, _address(address), _DAEMON_SECONDS)

    def set_persistence(self, address: str, enabled: bool, deadline: Deadline) -> None:
        where, seconds = _address(address), max(0.1, min(deadline.seconds, _DAEMON_SECONDS))
        persistence.set_persistence(self._persistenced, where, enabled=enabled, seconds=seconds)

    @property
    def _persistenced(self) -> Path:
        return self.root / "run/nvidia-persistenced/socket"

    def own(self, node: str, uid: int, gid: int) -> None:
        names = node.removeprefix(f"{_DEVICES}/").split("/")
        if not node.startswith(f"{_DEVICES}/") or len(names) > 2 or not all(map(is_name, names)):
            raise OSError(errno.EPERM, f"is not a device node below {_DEVICES}", node)
        folder = os.open(f"{self.root}{_DEVICES}", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if len(names) == 2:
                inner = os.open(names[0], os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
                os.close(folder)
                folder = inner
            if not stat.S_ISCHR(os.stat(names[-1], dir_fd=folder, follow_symlinks=False).st_mode):
                raise OSError(errno.EPERM, "is not a device node", node)
            os.chown(names[-1], uid, gid, dir_fd=folder, follow_symlinks=False)
        finally:
            os.close(folder)

    def put_file(self, path: str, content: bytes, mode: int = 0o644) -> None:
        self.files.put(path, content, mode)

    def remove_file(self, path: str) -> None:
        self.files.remove(path)
