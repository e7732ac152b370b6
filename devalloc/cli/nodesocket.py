"""Talking to the node plugin of this machine, over its socket."""

from __future__ import annotations

import errno
import socket as sockets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devalloc.cli.options import duration
from devalloc.cli.output import note
from devalloc.cli.verb import BadInput, Failed

if TYPE_CHECKING:
    from devalloc_node.pb.node_pb2 import ClaimRef, MachineRef, Result
    from devalloc_node.pb.node_pb2_grpc import NodeStub
    from devalloc_node.pb.warm_pb2_grpc import WarmPoolStub

DEFAULT = Path("/run/devalloc/node.sock")
_STORE = "devalloc.cli.nodesocket.store"
MAX_MESSAGE = 64 * 1024 * 1024
"""Bytes of a reply: the devices of a large node."""


def socket_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """--socket PATH: passed as ``socket: Path``. --store PATH: whose plugin is meant where none is named."""
    function = click.option(
        "--store",
        type=click.Path(path_type=Path),
        metavar="PATH",
        envvar="DEVALLOC_STORE",
        is_eager=True,
        expose_value=False,
        callback=lambda ctx, param, path: ctx.meta.__setitem__(_STORE, path),
        help="The store whose `devalloc up` or `devalloc node` is asked [env: DEVALLOC_STORE].",
    )(function)
    return click.option(
        "--socket",
        type=click.Path(path_type=Path),
        metavar="PATH",
        envvar="DEVALLOC_NODE_SOCKET",
        callback=lambda ctx, param, path: path or default_socket(ctx.meta.get(_STORE)),
        help="The node plugin's socket [env: DEVALLOC_NODE_SOCKET; default: that beside the store, if another than the "
        f"usual one is named; else that of this user's own plugin, or if there is none, and for root, {DEFAULT}].",
    )(function)


def timeout_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """--timeout: passed as ``timeout: float`` in seconds."""
    what = "How long to wait for the answer, at most 10m."
    return click.option("--timeout", type=duration, default="40s", metavar="DURATION", help=what)(function)


def force_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """--force: passed as ``force: bool``."""
    what = "END THE MACHINE, as if its power were cut, where its guest does not do what is asked."
    return click.option("--force", is_flag=True, help=what)(function)


def default_socket(store: Path | None = None) -> Path:
    """As ``devalloc up`` and ``devalloc node`` choose it: beside a store that is not the usual one. Else a user's own
    plugin goes before root's, whose socket no user may open."""
    import os

    from devalloc.cli.storage import is_default, node_state
    from devalloc.store.errors import Unusable
    from devalloc.store.paths import default_path

    if store is not None and store.name and not is_default(store):
        state = os.environ.get("DEVALLOC_NODE_STATE")
        return node_state(Path(state) if state else None, store) / DEFAULT.name
    if os.geteuid() == 0:
        return DEFAULT
    # Where the store is said to be has no part in it.
    here = {name: value for name, value in os.environ.items() if name in ("HOME", "XDG_STATE_HOME")}
    try:
        own = default_path(here).parent / "node" / DEFAULT.name
    except Unusable:  # without a home folder a user has no plugin of his own
        return DEFAULT
    return own if own.exists() else DEFAULT


@contextmanager
def connected(path: Path) -> Iterator[NodeStub]:
    """The node plugin's service. Raises Failed where nobody answers on the socket; gRPC's errors become ours."""
    with _channel(path) as channel:
        from devalloc_node.pb.node_pb2_grpc import NodeStub

        yield NodeStub(channel)


@contextmanager
def connected_to_pool(path: Path) -> Iterator[WarmPoolStub]:
    """Its service for warm setups. Raises as ``connected``."""
    with _channel(path) as channel:
        from devalloc_node.pb.warm_pb2_grpc import WarmPoolStub

        yield WarmPoolStub(channel)


@contextmanager
def _channel(path: Path) -> Iterator[Any]:
    _knock(path)
    import grpc

    channel = grpc.insecure_channel(
        f"unix:{path.absolute()}", options=[("grpc.max_receive_message_length", MAX_MESSAGE)]
    )
    try:
        yield channel
    except grpc.RpcError as error:
        raise _translated(path, error) from error
    finally:
        channel.close()


def _knock(path: Path) -> None:
    """Say at once, and exactly, why a socket cannot be used: gRPC would try again and then say little."""
    knock = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
    try:
        knock.connect(str(path))
    except OSError as error:
        raise Failed(_why_not(path, error)) from None
    finally:
        knock.close()


def _why_not(path: Path, error: OSError) -> str:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return (
            f"there is no node plugin at {path}; start it on this machine with `devalloc node` or `devalloc up`, or "
            "name another socket with --socket or DEVALLOC_NODE_SOCKET"
        )
    if error.errno == errno.ECONNREFUSED:
        return (
            f"nobody answers on {path}: the node plugin that made it is gone; start `devalloc node` or `devalloc up` "
            "again"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{path} is for the node plugin's own user and root only; run this as root (sudo devalloc …)"
    return f"{path}: {error.strerror or error}"


def _translated(path: Path, error: Any) -> Failed:
    import grpc

    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return BadInput(details)
    if code is grpc.StatusCode.UNAVAILABLE:
        return Failed(f"the node plugin at {path} went away in the middle; ask again what came of it ({details})")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Failed("there was no answer in time; ask again what came of it, or give it longer with --timeout")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return Failed(f"the node plugin at {path} is older than this command and cannot do that")
    if code in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.FAILED_PRECONDITION):
        return Failed(details)
    return Failed(f"the node plugin answers {code.name}: {details}")


def failure(result: Result) -> str:
    """Why something is not done, as a sentence; "" when it is done."""
    from devalloc_node.pb.node_pb2 import Result as Kind

    if result.outcome == Kind.DONE:
        return ""
    words = {Kind.DENIED: "denied", Kind.FAILED: "failed"}
    word = words.get(result.outcome, "unknown whether it happened")
    again = " (the same may succeed later)" if result.retryable else ""
    return f"{word}: {result.message or 'no reason given'} [{result.code}]{again}"


def said(name: str, done: str, result: Result) -> int:
    """Tell what became of it; returns the exit code."""
    if why := failure(result):
        note(f"error: {name}: {why}")
        return 1
    click.echo(f"{name} {done}")
    return 0


def machine_ref(name: str, namespace: str) -> MachineRef:
    """``name``, or ``namespace/name``."""
    from devalloc_node.pb.node_pb2 import MachineRef

    space, slash, rest = name.partition("/")
    return MachineRef(namespace=space, name=rest) if slash else MachineRef(namespace=namespace, name=name)


def claim_ref(name: str, namespace: str, uid: str = "") -> ClaimRef:
    """``name``, or ``namespace/name``."""
    from devalloc_node.pb.node_pb2 import ClaimRef

    space, slash, rest = name.partition("/")
    return ClaimRef(namespace=space if slash else namespace, name=rest if slash else name, uid=uid)


def content(message: Any) -> dict[str, Any]:
    """A message as JSON-able content: camelCase names, numbers as numbers, unset fields left out."""
    return {field.json_name: _value(field, value) for field, value in message.ListFields()}


def _value(field: Any, value: Any) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return dict(value)
    if field.is_repeated:
        return [_one(field, item) for item in value]
    return _one(field, value)


def _one(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return content(value)
    return word(field.enum_type, value) if field.enum_type is not None else value


def word(enum: Any, number: int) -> str:
    """An enum's value for people: ``Running``; ``Unknown`` for one that this command does not know yet."""
    value = enum.values_by_number.get(number)
    return value.name.removeprefix("CHANGE_").capitalize() if value is not None else "Unknown"
