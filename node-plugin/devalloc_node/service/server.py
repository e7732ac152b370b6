"""gRPC servers on unix sockets: bounds for clients, and the standard health and reflection services.

One process holds an endpoint, such as a socket, at a time: in a rolling update, the new process waits. An endpoint can
be lost: if the file of a socket is deleted, no client finds the process that listens there. The process then creates it
again, which ends the connections that were open.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
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

from devalloc.worker import repeat
from devalloc_node.errors import Denied, Failed, NodeError
from devalloc_node.net.unix_sockets import SocketIdentity, check_path, is_lost, place_socket, remove_socket

log = logging.getLogger(__name__)

_PAUSE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class ExclusiveEndpoint:
    """A place that is taken."""

    what: str
    """For people: ``metrics on 127.0.0.1:9180``."""
    give: Callable[[], None]
    """Give it back."""
    is_lost: Callable[[], bool] = lambda: False
    """Whether others do not find us there any more."""


@contextmanager
def hold_endpoint(
    what: str, take: Callable[[], ExclusiveEndpoint], *, wait: bool, say: Callable[[str], None]
) -> Iterator[None]:
    """While inside, have a place. ``take`` takes it.

    If another process has it (Denied ``SocketInUse``, OSError EADDRINUSE), that is raised, or with ``wait`` it is tried
    again and again, in a thread, until the place is free.
    """
    over = threading.Event()
    places: list[ExclusiveEndpoint] = []

    def give() -> None:
        while places:
            places.pop().give()

    def look() -> None:
        if places and places[0].is_lost():
            log.warning("the endpoint of %s was removed; serving it again", what)
            give()
        if places:
            return
        try:
            places.append(take())
        except (Denied, OSError) as error:
            if not _is_in_use(error):
                raise
        else:
            say(f"now serving {places[0].what}")

    def keep() -> None:
        expected = (NodeError, OSError)
        repeat(over, look, _PAUSE_SECONDS, f"cannot serve {what}", delay=_PAUSE_SECONDS, expected=expected)

    try:
        places.append(take())
    except (Denied, OSError) as error:
        if not (wait and _is_in_use(error)):
            raise
        say(f"another process serves {what}; this one takes over when that ends")
    else:
        say(f"serving {places[0].what}")
    keeping = threading.Thread(target=keep, name="takeover", daemon=True)
    keeping.start()
    try:
        yield
    finally:
        over.set()
        keeping.join()
        give()


def _is_in_use(error: Exception) -> bool:
    if isinstance(error, Denied):
        return error.code in ("SocketInUse", "PoolInUse")
    return isinstance(error, OSError) and error.errno == errno.EADDRINUSE


# A caller that sends an unreadable request gets an error; a traceback for each would only fill the log.
logging.getLogger("grpc._common").setLevel(logging.CRITICAL)

_UNREADABLE = object()


@dataclass(frozen=True, slots=True)
class Service:
    """One gRPC service, ready to be served."""

    name: str
    """Its full name, such as ``k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin``."""
    add: Callable[[grpc.Server], None]


def part_of_service(name: str, add: Callable[[Any, Any], None], servicer: object) -> Service:
    """The methods of a service that the servicer's class defines; another servicer of the same name may have the rest.

    ``add``: the generated function that adds a servicer to a server."""
    taken = _Handlers()
    add(servicer, taken)
    own = {method: handler for method, handler in taken.handlers.items() if method in vars(type(servicer))}
    return Service(
        name, lambda server: server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, own),))
    )


class _Handlers:
    """A server that only takes what is added to it."""

    def __init__(self) -> None:
        self.handlers: dict[str, Any] = {}

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        """They are the same ones."""

    def add_registered_method_handlers(self, name: str, handlers: dict[str, Any]) -> None:
        self.handlers |= handlers


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
    answers there) and ``SocketNotOurs`` (something else has the name: no socket, or another user's), Failed
    ``SocketFailed``, ``SocketFolderBusy``.
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
    names = [*dict.fromkeys(service.name for service in services)]
    reflected = _Reflection([*names, health.SERVICE_NAME, reflection.SERVICE_NAME])
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(reflected, server)
    with ExitStack() as stack:
        try:
            identity = stack.enter_context(_bound(path, server))
        except OSError as error:
            raise Failed("SocketFailed", f"cannot serve on {path}: {error.strerror or error}") from error
        for name in ("", *names):
            status.set(name, health_pb2.HealthCheckResponse.SERVING)
        return SocketServer(path, server, status, identity, stack.pop_all())


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
            raise Failed("SocketFailed", f"cannot bind a socket in {path.parent}")
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
