"""A host for pools of warm setups: real namespaces and TAP interfaces, none of which this machine ever sees.

What is to be tried runs in a forked process with mount and network namespaces of its own and an empty /run. All that it
leaves ends with it. Plugins that are to be killed are forked there again.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import socket
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import pytest

from devalloc.inventory.device_users import visibility_problem
from devalloc.inventory.sysfs import Tree
from devalloc_machines.warm import bridge, builder, cni, cni_part, guest_port, network
from devalloc_machines.warm.pool import Pool
from devalloc_machines.warm.records import SetupRecords
from devalloc_machines.warm.settings import WarmConfig
from devalloc_node.errors import Denied
from devalloc_node.host import firewall, network_namespace
from tests.support.deadlines import soon
from tests.support.fault_gates import FaultGate
from tests.support.waiting import until

BOOT = "boot-1"
NAMESPACES, RUN = Path("/run/netns"), Path("/run/devalloc/warm")
_NEW_MOUNTS, _NEW_NETWORK, _PRIVATE, _RECURSIVE = 0x20000, 0x40000000, 1 << 18, 1 << 14

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not os.access("/dev/net/tun", os.R_OK | os.W_OK),
    reason="network namespaces and TAP interfaces take root, and a kernel with /dev/net/tun",
)

_UNSEEN = visibility_problem(Tree(Path("/")))
needs_host_processes = pytest.mark.skipif(_UNSEEN is not None, reason=f"a plugin keeps no setups here: {_UNSEEN}")


@dataclass(frozen=True)
class Snapshot:
    """What there is on the host that a pool makes some of."""

    namespaces: frozenset[tuple[str, int]] = field(default_factory=frozenset)
    """Names, and which they keep."""
    mounts: tuple[str, ...] = ()
    links: frozenset[str] = field(default_factory=frozenset)
    """Interfaces of the host's own namespace."""
    files: frozenset[str] = field(default_factory=frozenset)


def _mount_points() -> list[str]:
    return [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]


def snapshot() -> Snapshot:
    namespaces = sorted(NAMESPACES.iterdir()) if NAMESPACES.is_dir() else []
    return Snapshot(
        frozenset((name.name, name.stat().st_ino) for name in namespaces),
        # Those of tests beside it go with their folders also in here.
        tuple(point for point in _mount_points() if point.startswith("/run")),
        frozenset(name for _, name in socket.if_nameindex()),
        frozenset(str(path) for path in RUN.rglob("*")),
    )


def config(**more: Any) -> WarmConfig:
    return WarmConfig(**{"run": RUN, "namespaces": NAMESPACES, "look_seconds": 0.01, **more})


def opened(**more: Any) -> Pool:
    pool = Pool(config(**more), BOOT)
    pool.open()
    return pool


def opened_after_a_kill(make: Callable[[], Pool] = opened) -> Pool:
    """What a killed plugin had just forked holds its lock until it is another program; a plugin waits for that, too
    (`devalloc_node.service.server`)."""

    def pool() -> Pool | None:
        try:
            return make()
        except Denied as error:
            if error.code != "PoolInUse":
                raise
            return None

    free_pool = until(pool, "no process has the pool any more")
    assert free_pool is not None
    return free_pool


def in_a_bed(body: Callable[[], None]) -> None:
    """Run it there, after a pool was there once, so that all folders are. Raises AssertionError with its traceback."""
    from pyroute2 import IPRoute, netns  # noqa: F401  # once, and not in every child

    def there() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.unshare(_NEW_MOUNTS | _NEW_NETWORK) == 0, os.strerror(ctypes.get_errno())
        assert libc.mount(None, b"/", None, _PRIVATE | _RECURSIVE, None) == 0
        assert libc.mount(b"none", b"/run", b"tmpfs", 0, None) == 0
        pool = opened()
        pool.fill(1)
        pool.close(soon())
        body()

    why = forked(there)
    assert why is None, why


def forked(body: Callable[[], object]) -> Any:
    """What becomes of it in a process of its own: None where it came to its end, ``killed``, or its traceback."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        _become(body, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        content = pipe.read()
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return "killed" if os.WTERMSIG(status) == signal.SIGKILL else f"signal {os.WTERMSIG(status)}"
    return pickle.loads(content)


def _become(body: Callable[[], object], writer: int) -> NoReturn:
    failure = None
    try:
        body()
    except BaseException:
        failure = traceback.format_exc()
    os.write(writer, pickle.dumps(failure)[:60000] if failure is None else pickle.dumps(failure[-20000:]))
    os._exit(0)


def gate_all(gate: FaultGate) -> None:
    """In this process, every call of a pool that changes the host or a record passes the gate."""

    def gated(owner: Any, method: str, what: str) -> None:
        inner = getattr(owner, method)

        def call(*arguments: Any, **more: Any) -> Any:
            return gate(what, lambda: inner(*arguments, **more), OSError(5, "Input/output error"))

        setattr(owner, method, call)

    gated(network, "make_namespace", "make namespace")
    gated(network, "remove_namespace", "remove namespace")
    gated(network, "make_tap", "make tap")
    gated(network, "remove_tap", "remove tap")
    for method in ("make", "remove"):
        inner = getattr(builder.FolderPart, method)
        setattr(builder.FolderPart, method, _gated_method(inner, gate, f"{method} folder"))
    gated(firewall, "load_rules", "load rules")
    gated(bridge, "_write_record", "write bridge")
    gated(cni, "write_attachment", "write attachment")
    gated(cni, "drop_attachment", "drop attachment")
    inner_run = cni._run

    def run_plugin(command: cni.CniCommand, *arguments: Any) -> Any:
        return gate(f"plugin {command}", lambda: inner_run(command, *arguments), OSError(5, "Input/output error"))

    cni._run = run_plugin
    for module in (bridge, guest_port, cni_part):
        module.netlink = _gated_netlink(gate, network_namespace.netlink)  # type: ignore[attr-defined]
    from devalloc_node.errors import Failed

    for method in ("put", "drop"):
        inner = getattr(SetupRecords, method)
        failure = Failed("RecordsUnavailable", "No space left on device")
        setattr(SetupRecords, method, _gated_method(inner, gate, f"{method} record", failure))


def _gated_netlink(gate: FaultGate, inner: Callable[[], Any]) -> Callable[[], Any]:
    """Netlink whose changes of interfaces and addresses pass the gate."""

    class Gated:
        def __init__(self, route: Any) -> None:
            self._route = route

        def __getattr__(self, name: str) -> Any:
            attribute = getattr(self._route, name)
            if name not in ("link", "addr", "brport"):
                return attribute

            def call(command: str, **more: Any) -> Any:
                if command in ("get", "dump"):
                    return attribute(command, **more)
                what = " ".join(filter(None, (name, command, str(more.get("kind", "")))))
                return gate(what, lambda: attribute(command, **more), OSError(5, "Input/output error"))

            return call

    @contextmanager
    def netlink() -> Iterator[Any]:
        with inner() as route:
            yield Gated(route)

    return netlink


def _gated_method(inner: Any, gate: FaultGate, what: str, failure: Exception | None = None) -> Any:
    def call(self: Any, *arguments: Any) -> Any:
        point = f"{what} {arguments[0].state}" if hasattr(arguments[0], "state") else what
        return gate(point, lambda: inner(self, *arguments), failure or OSError(5, "Input/output error"))

    return call
