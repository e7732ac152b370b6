"""The service's unix socket: a proxy in front of gRPC that knows which process calls (SO_PEERCRED).

gRPC for Python tells a server nothing about who is at the other end of a unix socket. So the plugin itself listens on
the socket, asks the kernel who has connected (SO_PEERCRED), and passes the bytes on to the gRPC server through a
connection of its own, whose address says it: the server reads the caller off ``context.peer()``. A caller cannot
lie, because the server's own socket loses its name before anyone could connect to it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import socket
import struct
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from devalloc_node.net import unix_sockets
from devalloc_node.net.http import wait_for_connection
from devalloc_node.service import server
from devalloc_node.service.server import ClientLimits, Service, SocketServer

if TYPE_CHECKING:
    import grpc

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 64
"""At a time; one more is closed at once."""
_CHUNK = 64 * 1024
_PREFIX = "devalloc-caller"
_PEER = re.compile(rf"unix-abstract:{_PREFIX}/(\d+)/(\d+)/\d+")
_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class CallingProcess:
    """The process at the other end, as the kernel names it."""

    uid: int
    pid: int

    @property
    def program(self) -> str:
        """Its command name, "" when it is gone or hidden; a process chooses its own, so this is for people only."""
        try:
            return Path(f"/proc/{self.pid}/comm").read_text(errors="replace").strip()
        except OSError:
            return ""

    def __str__(self) -> str:
        return f"uid {self.uid} pid {self.pid} ({self.program or '?'})" if self.pid else "an unknown process"


UNKNOWN_CALLER = CallingProcess(-1, 0)
"""Who calls if the kernel was not asked: a server without a door."""


def caller_of(context: grpc.ServicerContext) -> CallingProcess:
    """Who makes this call."""
    match = _PEER.fullmatch(str(context.peer()))
    return UNKNOWN_CALLER if match is None else CallingProcess(int(match[1]), int(match[2]))


class PeerCredentialProxy:
    """Listens on ``path`` (0600) and leads to a gRPC server. Open from ``open_proxy`` until ``stop``."""

    def __init__(
        self,
        path: Path,
        inner: SocketServer,
        way: int,
        listener: socket.socket,
        identity: unix_sockets.SocketIdentity,
        cleanup: ExitStack,
    ) -> None:
        self.path = path
        self._identity = identity
        self._server = inner
        self._way = way
        self._listener = listener
        self._cleanup = cleanup
        self._connections: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._accepting = self._loop.create_task(self._accept())
        self._thread = threading.Thread(target=self._run, name="devalloc-door", daemon=True)
        self._thread.start()

    def is_lost(self) -> bool:
        """Whether its name no longer leads to it."""
        return unix_sockets.is_lost(self.path, self._identity)

    def stop(self, grace: float = 5.0) -> None:
        """Take the socket away (if it is still ours), let calls end for ``grace`` seconds, cut the rest off."""
        self._cleanup.close()
        self._server.stop(grace)
        with suppress(RuntimeError):  # it is stopped already
            self._loop.call_soon_threadsafe(self._accepting.cancel)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            with suppress(asyncio.CancelledError):
                self._loop.run_until_complete(self._accepting)
        finally:
            self._listener.close()
            for task in self._connections:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*self._connections, return_exceptions=True))
            self._loop.close()
            os.close(self._way)

    async def _accept(self) -> None:
        while self._listener.fileno() >= 0:
            try:
                await wait_for_connection(self._listener)
                outer, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):  # it has gone again
                continue
            except OSError as error:  # out of descriptors: those who are served go on
                if self._listener.fileno() < 0:
                    break
                log.warning("cannot accept a call on %s: %s", self.path, error)
                await asyncio.sleep(0.1)
                continue
            if len(self._connections) >= MAX_CONNECTIONS:
                log.warning("%s has %d connections and accepts no more", self.path, MAX_CONNECTIONS)
                outer.close()
                continue
            outer.setblocking(False)
            task = self._loop.create_task(self._serve(outer))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)
        await asyncio.Event().wait()  # those who are served have until `stop` cancels this

    async def _serve(self, outer: socket.socket) -> None:
        inner = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        inner.setblocking(False)
        with outer, inner:
            try:
                pid, uid, _ = _CREDENTIALS.unpack(
                    outer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
                )
                # Abstract names are the whole machine's: another process could take one that it can guess.
                inner.bind(f"\0{_PREFIX}/{uid}/{pid}/{secrets.randbits(64)}")
                await self._loop.sock_connect(inner, f"/proc/self/fd/{self._way}")
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._copy(outer, inner))
                    both.create_task(self._copy(inner, outer))
            except* OSError as errors:
                log.debug("a connection to %s ended: %s", self.path, errors.exceptions)

    async def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        """Until the source ends. At most one chunk is held, so a slow reader slows the writer."""
        while chunk := await self._loop.sock_recv(source, _CHUNK):
            await self._loop.sock_sendall(sink, chunk)
        sink.shutdown(socket.SHUT_WR)


def open_proxy(path: Path, services: Sequence[Service], limits: ClientLimits | None = None) -> PeerCredentialProxy:
    """Serve them and the standard health and reflection services, which learn who calls (``caller_of``).

    The socket has mode 0600; its folder is made (0700) if it is not there. Raises as ``server.serve``.
    """
    unix_sockets.check_path(path)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Always the same folder, so that a kill leaves one empty folder at most.
    private = path.parent / ".d"
    private.mkdir(mode=0o700, exist_ok=True)
    inner = server.serve(private / secrets.token_hex(4), services, limits)
    way = -1
    try:
        way = os.open(inner.path, os.O_PATH | os.O_CLOEXEC)
        inner.path.unlink()  # /proc/self/fd is the only way to it now
        with ExitStack() as stack:
            listener, identity = stack.enter_context(unix_sockets.listening_socket(path, MAX_CONNECTIONS))
            return PeerCredentialProxy(path, inner, way, listener, identity, stack.pop_all())
    except BaseException:
        inner.stop(0)
        if way >= 0:
            os.close(way)
        raise
