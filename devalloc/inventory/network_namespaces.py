"""What stands on the interfaces of this network namespace: a macvlan, ipvlan or VLAN, also in another namespace; and
what takes their packets.

Linux shows in sysfs what stands on an interface only if both are in one namespace. By netlink, each interface names the
one below it, and the namespace of that one. So this asks every namespace that a process is in, or that has a name (a
mount, as of ``ip netns`` or a container runtime). One that only an open descriptor, or a mount in a mount namespace of
its own, keeps alive cannot be known.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from devalloc.inventory.sysfs import Tree

_NAMESPACE = re.compile(r"net:\[([0-9]{1,20})\]", re.ASCII)
_ESCAPED = re.compile(r"\\([0-7]{3})", re.ASCII)
_MOST = 5000
"""Namespaces that are asked."""
_CLONE_NEWNET = 0x40000000
_ANSWER_SECONDS, _MOST_SECONDS = 2.0, 15.0
"""For one answer of the kernel, and for all of them together."""
_BUFFER = 1 << 18

_RTM_NEWLINK, _RTM_GETLINK, _RTM_NEWNSID, _RTM_GETNSID = 16, 18, 88, 90
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_REQUEST, _DUMP = 0x001, 0x300
_IFLA_IFNAME, _IFLA_LINK, _IFLA_PROMISCUITY, _IFLA_LINK_NETNSID, _IFLA_XDP = 3, 5, 30, 37, 43
_IFLA_XDP_ATTACHED = 2
_NETNSA_NSID, _NETNSA_FD = 1, 3
_HEADER, _LINK, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=BxHiII"), struct.Struct("=HH")


@dataclass(frozen=True, slots=True)
class StackedInterfaces:
    """What stands on the interfaces of this namespace."""

    by_parent: Mapping[str, str] = field(default_factory=dict)
    """By the interface below it: ``net1 in the network namespace of pause 4711``."""
    captured: Mapping[str, str] = field(default_factory=dict)
    """By the interface: that something takes its packets, which then needs no address: an IDS, a router with XDP."""
    problem: str | None = None
    """Why not all namespaces could be asked."""


class _Interface(NamedTuple):
    number: int
    name: str
    link: int
    """The number of the interface below it; 0 for none."""
    namespace: int | None
    """The namespace of that one, by the number that it has in the interface's own; None: the same."""
    capture: str | None
    """That something takes its packets; None if nothing is seen to."""


def stacked_interfaces(tree: Tree) -> StackedInterfaces:
    """Asks the kernel. Nothing for a recording, whose processes are not this kernel's."""
    if tree.proc is None or not os.path.ismount(tree.proc.path):
        return StackedInterfaces()
    proc, ends = tree.proc.path, time.monotonic() + _MOST_SECONDS
    if not _asking_now.acquire(timeout=_MOST_SECONDS):  # and no threads that pile up where the kernel hangs
        return StackedInterfaces(problem="the network namespaces could not be asked: an earlier look has not ended")
    answers: list[StackedInterfaces] = []

    def ask() -> None:
        try:
            answers.append(_ask_all(proc, ends))
        finally:
            _asking_now.release()

    # A thread of its own, which ends in the last namespace that it went to.
    thread = threading.Thread(target=ask, name="network-namespaces", daemon=True)
    thread.start()
    thread.join(_MOST_SECONDS + _ANSWER_SECONDS)
    return answers[0] if answers else StackedInterfaces(problem="the network namespaces could not be asked")


_asking_now = threading.Lock()


def _ask_all(proc: str, ends: float) -> StackedInterfaces:
    try:
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        return StackedInterfaces(problem=f"the network namespaces cannot be read: {error.strerror}")
    try:
        own = os.fstat(home).st_ino
        with _netlink() as asking:
            interfaces = list(_interfaces(asking, ends))
        names = {each.number: each.name for each in interfaces}
        stacked = {names[each.link]: each.name for each in interfaces
                   if each.namespace is None and each.link in names and each.link != each.number}  # fmt: skip
        captured = {each.name: each.capture for each in interfaces if each.capture is not None}
        others, problem = _others(proc, own, ends)
        for number, (inode, (path, owner)) in enumerate(others.items()):
            if time.monotonic() >= ends:
                left = len(others) - number
                problem = f"{left} network namespaces were not asked within {_MOST_SECONDS:.0f} s"
                break
            try:
                for each in _standing_on(path, inode, home, ends):
                    if each.link in names:
                        stacked.setdefault(names[each.link], f"{each.name} in the network namespace of {owner}")
            except FileNotFoundError:  # it has ended
                continue
            except OSError as error:
                problem = problem or f"the network namespace of {owner} cannot be asked: {error.strerror or error}"
        return StackedInterfaces(stacked, captured, problem)
    except OSError as error:
        return StackedInterfaces(problem=f"interfaces cannot be listed: {error.strerror or error}")
    finally:
        os.close(home)


def _others(proc: str, own: int, ends: float) -> tuple[dict[int, tuple[str, str]], str | None]:
    """The other namespaces: by their number a path to each, and whose it is; and why some may be missing."""
    namespaces: dict[int, tuple[str, str]] = {}
    denied = 0
    for pid in sorted(int(name) for name in os.listdir(proc) if name.isdecimal()):
        if time.monotonic() >= ends:
            return namespaces, f"not all processes were looked at within {_MOST_SECONDS:.0f} s"
        path = f"{proc}/{pid}/ns/net"
        try:
            match = _NAMESPACE.fullmatch(os.readlink(path))
        except PermissionError:
            denied += 1
            continue
        except OSError:  # it has ended
            continue
        if match and int(match[1]) != own and int(match[1]) not in namespaces:
            namespaces[int(match[1])] = (path, f"{_comm(proc, pid)} {pid}")
    for process in ("self", "1"):
        for number, place in _named(proc, process):
            if number != own:
                namespaces.setdefault(number, (f"{proc}/{process}/root{place}", place.rpartition("/")[2]))
    if len(namespaces) > _MOST:
        return dict(list(namespaces.items())[:_MOST]), f"there are more than {_MOST} network namespaces"
    if denied:
        return namespaces, f"the network namespaces of {denied} processes cannot be read (requires CAP_SYS_PTRACE)"
    return namespaces, None


def _comm(proc: str, pid: int) -> str:
    try:
        with open(f"{proc}/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read(64).strip()
    except OSError:
        return "process"


def _named(proc: str, process: str) -> Iterator[tuple[int, str]]:
    """The namespaces that are mounted somewhere: their numbers and places."""
    try:
        with open(f"{proc}/{process}/mountinfo", encoding="utf-8", errors="replace") as file:
            rows = [line.split() for line in file if " nsfs " in line]
    except OSError:
        return
    for row in rows:
        match = _NAMESPACE.fullmatch(row[3]) if len(row) > 4 else None
        if match:
            yield int(match[1]), _ESCAPED.sub(lambda code: chr(int(code[1], 8)), row[4])


def _standing_on(path: str, inode: int, home: int, ends: float) -> list[_Interface]:
    """The interfaces of a namespace that stand on one of the namespace ``home``. This thread stays in there. Raises
    OSError."""
    namespace = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if os.fstat(namespace).st_ino != inode:
            raise FileNotFoundError(path)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(namespace, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        os.close(namespace)
    with _netlink() as asking:
        foreign = [each for each in _interfaces(asking, ends) if each.namespace is not None and each.link]
        number = _number_of(asking, home, ends) if foreign else None
    return [each for each in foreign if each.namespace == number]


def _netlink() -> socket.socket:
    asking = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
    return asking


def _interfaces(asking: socket.socket, ends: float) -> Iterator[_Interface]:
    request = _LINK.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
    for kind, body in _answers(asking, _RTM_GETLINK, _DUMP, request, ends):
        if kind != _RTM_NEWLINK or len(body) < _LINK.size:
            continue
        attributes = dict(_attributes(body[_LINK.size :]))
        name = attributes.get(_IFLA_IFNAME, b"").rstrip(b"\0").decode("utf-8", "replace")
        namespace = attributes.get(_IFLA_LINK_NETNSID)
        yield _Interface(
            _LINK.unpack_from(body)[2],
            name,
            int.from_bytes(attributes.get(_IFLA_LINK, b""), "little" if _LITTLE else "big"),
            None if namespace is None else struct.unpack("=i", namespace)[0],
            _capture(attributes),
        )


def _capture(attributes: Mapping[int, bytes]) -> str | None:
    if any(dict(_attributes(attributes.get(_IFLA_XDP, b""))).get(_IFLA_XDP_ATTACHED, b"")):
        return "an XDP program runs on"
    return "a program captures the packets of" if any(attributes.get(_IFLA_PROMISCUITY, b"")) else None


_LITTLE = struct.pack("=H", 1) == b"\1\0"


def _number_of(asking: socket.socket, namespace: int, ends: float) -> int | None:
    """The number that a namespace has in the one that is asked; None where it has none."""
    request = struct.pack("=B3x", socket.AF_UNSPEC) + _ATTRIBUTE.pack(8, _NETNSA_FD) + struct.pack("=I", namespace)
    for kind, body in _answers(asking, _RTM_GETNSID, 0, request, ends):
        number = dict(_attributes(body[4:])).get(_NETNSA_NSID) if kind == _RTM_NEWNSID else None
        if number is not None and len(number) == 4:
            value: int = struct.unpack("=i", number)[0]
            return value if value >= 0 else None
    return None


def _answers(asking: socket.socket, kind: int, flags: int, request: bytes, ends: float) -> Iterator[tuple[int, bytes]]:
    asking.send(_HEADER.pack(_HEADER.size + len(request), kind, _REQUEST | flags, 1, 0) + request)
    while True:
        left = ends - time.monotonic()
        if left <= 0:
            raise TimeoutError(errno.ETIMEDOUT, "no answer in time")
        asking.settimeout(min(left, _ANSWER_SECONDS))
        answer = asking.recv(_BUFFER)
        at = 0
        while at + _HEADER.size <= len(answer):
            length, answered = _HEADER.unpack_from(answer, at)[:2]
            if length < _HEADER.size:
                return
            body = answer[at + _HEADER.size : at + length]
            if answered == _NLMSG_DONE:
                return
            if answered == _NLMSG_ERROR:
                code = -struct.unpack_from("=i", body)[0]
                raise OSError(code, os.strerror(code))
            yield answered, body
            if not flags & _DUMP:
                return
            at += (length + 3) & ~3


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size:
            return
        yield kind & 0x3FFF, data[at + _ATTRIBUTE.size : at + length]
        at += (length + 3) & ~3
