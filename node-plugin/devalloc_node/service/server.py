"""Serving gRPC on a unix socket that only its owner can open, from the first moment on.

A socket is bound in a private folder beside its place and then renamed: no one can connect before it has its mode, and
a client that sees the name is answered. That a stale file is cleared away and a live one is not is decided under a lock
of the folder, so that two instances that start at once do not take each other's place.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import socket
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from devalloc.file_lock import FileLock
from devalloc_node.errors import Denied, Failed

log = logging.getLogger(__name__)
# A caller that sends an unreadable request gets an error; a traceback for each would only fill the log.
logging.getLogger("grpc._common").setLevel(logging.CRITICAL)

MAX_PATH_BYTES = 107
"""What the kernel takes of a socket's path (108 bytes with the zero at its end)."""
_PROBE_SECONDS = 1.0
_LOCK_SECONDS = 10.0
"""How long another instance may take to put its socket in place or away: it probes who answers, no more."""
_POLL_SECONDS = 0.02
_UNREADABLE = object()
SocketIdentity = tuple[int, int]
"""Of a file, whatever its name: device and number."""


@dataclass(frozen=True, slots=True)
class Service:
    """One gRPC service, ready to be served."""

    name: str
    """Its full name, such as ``k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin``."""
    add: Callable[[grpc.Server], None]


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """What clients of one socket may take up."""

    workers: int = 64
    """Calls that are worked on at the same time; an open stream is one of them, and so is one that waits half a minute
    for a guest to power down: who stops all machines of a node is not to hold up who asks how they are."""
    calls: int = 256
    """Calls that are worked on or wait for a worker; more are refused (RESOURCE_EXHAUSTED)."""
    message_bytes: int = 4 * 2**20
    """Of one message, either way; a longer one fails its call (RESOURCE_EXHAUSTED)."""
    metadata_bytes: int = 16 * 2**10


_ASIDE = ThreadPoolExecutor(8, thread_name_prefix="watch")
"""Threads for streams of the standard services, of all servers: many open streams delay only such streams."""


class _Reflection(reflection.ReflectionServicer):  # type: ignore[misc]
    """Its streams last as long as their clients like."""

    def ServerReflectionInfo(self, request_iterator: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        yield from super().ServerReflectionInfo(request_iterator, context)

    ServerReflectionInfo.experimental_thread_pool = _ASIDE  # type: ignore[attr-defined]


class _DecodeGuard(grpc.ServerInterceptor):  # type: ignore[misc]
    """Refuses bytes that are no message as the caller's mistake: gRPC itself says INTERNAL, as if it were ours."""

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        handler = continuation(details)
        if handler is None or handler.request_streaming or handler.request_deserializer is None:
            return handler
        behaviour = handler.unary_stream if handler.response_streaming else handler.unary_unary

        def read(data: bytes) -> Any:
            try:
                return handler.request_deserializer(data)
            except Exception:  # whatever the library raises for it
                return _UNREADABLE

        def refuse(request: Any, context: grpc.ServicerContext) -> None:
            if request is _UNREADABLE:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"cannot read the request of {details.method}")

        @wraps(behaviour)
        def answer(request: Any, context: grpc.ServicerContext) -> Any:
            refuse(request, context)
            return behaviour(request, context)

        @wraps(behaviour)
        def stream(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            refuse(request, context)
            yield from behaviour(request, context)

        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(stream, read, handler.response_serializer)
        return grpc.unary_unary_rpc_method_handler(answer, read, handler.response_serializer)


class SocketServer:
    """Services on one socket, from ``serve`` until ``stop``."""

    def __init__(
        self,
        path: Path,
        server: grpc.Server,
        status: health.HealthServicer,
        identity: SocketIdentity,
        cleanup: ExitStack,
    ) -> None:
        self.path = path
        self._identity = identity
        self._server = server
        self._status = status
        self._cleanup = cleanup
        self._stopping = threading.Lock()

    def is_lost(self) -> bool:
        """Whether the socket's name leads to something else by now, or to nothing."""
        return is_lost(self.path, self._identity)

    def stop(self, grace: float = 5.0) -> None:
        """Take the socket away (if it is still ours), let calls end for ``grace`` seconds, cancel the rest."""
        with self._stopping:
            self._status.enter_graceful_shutdown()
            self._cleanup.close()
            self._server.stop(grace).wait()


def serve(path: Path, services: Sequence[Service], limits: ClientLimits | None = None) -> SocketServer:
    """Serve them, and the standard health and reflection services, on a socket of mode 0600.

    The folder is made (0700) if it is not there. Raises Denied ``SocketPathTooLong``, ``SocketInUse`` (a process
    answers
    there) and ``SocketNotOurs`` (something else has the name: no socket, or another user's), Failed ``SocketFailed``,
    ``SocketFolderBusy``.
    """
    limits = limits or ClientLimits()
    check_path(path)
    server = grpc.server(
        ThreadPoolExecutor(limits.workers, thread_name_prefix=path.stem),
        maximum_concurrent_rpcs=limits.calls,
        interceptors=(_DecodeGuard(),),
        options=[
            ("grpc.max_receive_message_length", limits.message_bytes),
            ("grpc.max_send_message_length", limits.message_bytes),
            ("grpc.max_metadata_size", limits.metadata_bytes),
        ],
    )
    for service in services:
        service.add(server)
    # The way of its own that takes no threads holds a lock while it sends, and never ends when a watcher leaves then.
    status = health.HealthServicer(experimental_non_blocking=False, experimental_thread_pool=_ASIDE)
    health_pb2_grpc.add_HealthServicer_to_server(status, server)
    names = [service.name for service in services]
    reflected = _Reflection([*names, health.SERVICE_NAME, reflection.SERVICE_NAME])
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(reflected, server)
    with ExitStack() as stack:
        try:
            identity = stack.enter_context(_bound(path, server))
        except OSError as error:
            raise Failed(
                "SocketFailed", f"cannot serve on {path}: {error.strerror or error}", retryable=False
            ) from error
        for name in ("", *names):
            status.set(name, health_pb2.HealthCheckResponse.SERVING)
        return SocketServer(path, server, status, identity, stack.pop_all())


def check_path(path: Path) -> None:
    """Raises Denied: ``SocketPathInvalid``, ``SocketPathTooLong``, ``SocketFolderShared``.

    A user who can write in the folder could redirect what is put there: the socket and the warm setups.
    """
    length = len(os.fsencode(path))
    if not path.is_absolute():
        raise Denied("SocketPathInvalid", f"the socket {path} must be given by its full path")
    if length > MAX_PATH_BYTES:
        raise Denied(
            "SocketPathTooLong",
            f"the path of the socket {path} has {length} bytes, but the kernel allows {MAX_PATH_BYTES}; choose a "
            "folder with a shorter path",
        )
    with suppress(OSError):  # else it is made, by us and for us
        info = path.parent.stat()
        groups = info.st_mode & stat.S_IWGRP and info.st_gid not in (0, os.getegid())
        if info.st_mode & stat.S_IWOTH or groups or info.st_uid not in (0, os.geteuid()):
            raise Denied(
                "SocketFolderShared",
                f"other users can write in {path.parent}, so the plugin puts no socket there; choose a folder of "
                f"your own, such as {path.parent / 'devalloc' / path.name}",
            )


@contextmanager
def _bound(path: Path, server: grpc.Server) -> Iterator[SocketIdentity]:
    """The server started with the socket in place; taken away at the end if it is still the same one."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Names begin with a dot: the kubelet passes over these while it looks for sockets.
    private = path.parent / f".{secrets.token_hex(8)}"
    name = f".{secrets.token_hex(8)}"
    private.mkdir(mode=0o700)
    descriptor = -1
    try:
        descriptor = os.open(private, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        # By the descriptor, so that the private name may be longer than the kernel takes.
        if server.add_insecure_port(f"unix:/proc/self/fd/{descriptor}/{name}") == 0:
            raise Failed("SocketFailed", f"cannot bind a socket in {path.parent}", retryable=False)
        os.chmod(name, 0o600, dir_fd=descriptor)
        identity = place_socket(private / name, path, server.start)
    except BaseException:
        server.stop(None).wait()
        with suppress(OSError):
            (private / name).unlink()
        raise
    finally:
        if descriptor >= 0:
            os.close(descriptor)
        private.rmdir()
    try:
        yield identity
    finally:
        remove_socket(path, identity)


@contextmanager
def listening_socket(path: Path, backlog: int) -> Iterator[tuple[socket.socket, SocketIdentity]]:
    """A socket of mode 0600 that listens at the path, where at no moment one is that has another mode or does not
    listen. Raises as ``serve``."""
    check_path(path)
    private = path.parent / ".d" / secrets.token_hex(4)
    private.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            os.fchmod(listener.fileno(), 0o600)  # what bind gives the file, less the umask
            listener.bind(os.fspath(private))
            listener.listen(backlog)
            listener.setblocking(False)
            identity = place_socket(private, path)
        except OSError as error:
            raise Failed("SocketFailed", f"cannot serve on {path}: {error.strerror}", retryable=False) from error
        try:
            yield listener, identity
        finally:
            remove_socket(path, identity)
    finally:
        listener.close()
        private.unlink(missing_ok=True)


def place_socket(hidden: Path, path: Path, start: Callable[[], None] = lambda: None) -> SocketIdentity:
    """Give a socket that listens, or does after ``start``, its name; what identifies it then.

    Raises Denied as ``serve``, Failed ``SocketFolderBusy``, OSError.
    """
    identity = _identity(os.lstat(hidden))
    with _locked(path.parent):
        _clear(path)
        start()
        hidden.rename(path)
    return identity


def is_lost(path: Path, identity: SocketIdentity) -> bool:
    """Whether a name leads to another socket by now, or to nothing."""
    try:
        return _identity(os.lstat(path)) != identity
    except FileNotFoundError:
        return True


def remove_socket(path: Path, identity: SocketIdentity) -> None:
    """Remove a socket unless another one has its name by now."""
    try:
        with suppress(FileNotFoundError), _locked(path.parent):
            if _identity(os.lstat(path)) == identity:
                path.unlink()
    except Failed as error:
        log.warning("the socket %s remains; the next start removes it: %s", path, error)


def _clear(path: Path) -> None:
    """Take away the socket that a dead process of ours left."""
    try:
        info = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(info.st_mode):
        raise Denied("SocketNotOurs", f"{path} exists and is not a socket; remove it, or choose another path")
    if info.st_uid != os.geteuid():
        raise Denied(
            "SocketNotOurs", f"the socket {path} belongs to user {info.st_uid}; remove it, or choose another path"
        )
    if has_listener(path):
        raise Denied(
            "SocketInUse",
            f"another process serves {path}; stop it, choose another path, "
            "or give each instance of a rolling update its --pod-uid",
        )
    log.info("removing the stale socket %s", path)
    path.unlink()


def has_listener(path: Path) -> bool:
    """Whether a process listens on a unix socket. If in doubt: yes."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_SECONDS)
        try:
            probe.connect(os.fspath(path))
        except OSError as error:
            return error.errno not in (errno.ECONNREFUSED, errno.ENOENT)
    return True


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Be the only one who changes names in the folder. Raises Failed ``SocketFolderBusy``."""
    with FileLock.of_folder(folder) as lock:
        if not lock.lock_within(_LOCK_SECONDS, _POLL_SECONDS):
            raise Failed(
                "SocketFolderBusy",
                f"{folder} has been locked for {_LOCK_SECONDS:.0f} s by {lock.holder()}, which should take moments; "
                "end that process if it hangs, or choose another folder",
            )
        yield


def _identity(info: os.stat_result) -> SocketIdentity:
    return info.st_dev, info.st_ino
