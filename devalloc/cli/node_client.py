"""Client of this machine's node plugin, over its socket."""

from __future__ import annotations

import errno
import os
import socket as sockets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from devalloc.cli.command import BadInput, CommandFailed
from devalloc.cli.render.output import enum_text
from devalloc.cli.terminal import print_line, print_note
from devalloc.printable import printable
from devalloc.store.paths import as_root
from devalloc_node.pb.node_pb2 import ClaimRef, MachineRef, Result
from devalloc_node.pb.node_pb2 import Result as Kind
from devalloc_node.pb.node_pb2_grpc import NodeStub
from devalloc_node.pb.warm_pb2_grpc import WarmPoolStub

MAX_MESSAGE = 64 * 1024 * 1024
"""Maximum bytes of a reply: enough for the devices of a large node."""


@contextmanager
def connect_plugin(path: Path) -> Iterator[NodeStub]:
    """The node plugin's service. Raises CommandFailed if no plugin answers on the socket; translates gRPC's errors."""
    with _channel(path) as channel:
        yield NodeStub(channel)


@contextmanager
def connect_warm_pool(path: Path) -> Iterator[WarmPoolStub]:
    """The node plugin's service for warm setups. Raises like ``connect_plugin``."""
    with _channel(path) as channel:
        yield WarmPoolStub(channel)


@contextmanager
def _channel(path: Path) -> Iterator[Any]:
    _check_socket(path)
    channel = grpc.insecure_channel(
        f"unix:{path.absolute()}", options=[("grpc.max_receive_message_length", MAX_MESSAGE)]
    )
    try:
        yield channel
    except grpc.RpcError as error:
        raise _translate_grpc_error(path, error) from error
    finally:
        channel.close()


def _check_socket(path: Path) -> None:
    """Report at once, and exactly, why a socket cannot be used: gRPC would retry and then report little."""
    knock = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
    try:
        knock.connect(str(path))
    except OSError as error:
        raise CommandFailed(_connect_problem(path, error)) from None
    finally:
        knock.close()


def _connect_problem(path: Path, error: OSError) -> str:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        up = "devalloc up" if os.geteuid() == 0 else "devalloc up --node"  # else it runs the plugin only as root
        return (
            f"no node plugin at {path}; start one on this machine with `devalloc node` or `{up}`, or name another "
            "socket with --socket or DEVALLOC_NODE_SOCKET"
        )
    if error.errno == errno.ECONNREFUSED:
        return f"no answer at {path}: its node plugin is gone; start `devalloc node` or `devalloc up` again"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"only root and the node plugin's user may open {path}; run this as root ({as_root()})"
    return f"{path}: {error.strerror or error}"


def _translate_grpc_error(path: Path, error: Any) -> CommandFailed:
    code, details = error.code(), printable(error.details() or "")
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return BadInput(details)
    if code is grpc.StatusCode.UNAVAILABLE:
        return CommandFailed(
            f"the node plugin at {path} stopped before it answered; check what it has done ({details})"
        )
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return CommandFailed("no answer in time; check what has been done, or allow more time with --timeout")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return CommandFailed(f"the node plugin at {path} is older than this command and does not support this")
    if code in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.FAILED_PRECONDITION):
        return CommandFailed(details)
    return CommandFailed(f"the node plugin reports {code.name}: {details}")


def failure_message(result: Result) -> str:
    """Why something failed, as a sentence; "" if it succeeded."""
    if result.outcome == Kind.DONE:
        return ""
    words = {Kind.DENIED: "denied", Kind.FAILED: "failed"}
    word = words.get(result.outcome, "unknown whether it happened")
    again = " (it may succeed later)" if result.retryable else ""
    return f"{word}: {result.message or 'no reason given'} [{result.code}]{again}"


def print_result(name: str, done: str, result: Result) -> int:
    """Print the result; returns the exit code."""
    if why := failure_message(result):
        print_note(f"error: {name}: {why}")
        return 1
    print_line(f"{name} {done}")
    return 0


def ask_for_each(names: Iterable[str], path: Path, ask: Callable[[NodeStub, str], tuple[str, Result]]) -> int:
    """``ask`` the node plugin about each name, and print what was done and the result; returns the exit code."""
    with connect_plugin(path) as node:
        return max([print_result(name, *ask(node, name)) for name in names])


def machine_ref(name: str, namespace: str) -> MachineRef:
    """``name``, or ``namespace/name``."""
    space, slash, rest = name.partition("/")
    return MachineRef(namespace=space, name=rest) if slash else MachineRef(namespace=namespace, name=name)


def claim_ref(name: str, namespace: str, uid: str = "") -> ClaimRef:
    """``name``, or ``namespace/name``."""
    space, slash, rest = name.partition("/")
    return ClaimRef(namespace=space if slash else namespace, name=rest if slash else name, uid=uid)


def message_content(message: Any) -> dict[str, Any]:
    """A message as JSON content: camelCase names, numbers as numbers, without unset fields."""
    return {field.json_name: _value(field, value) for field, value in message.ListFields()}


def _value(field: Any, value: Any) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return dict(value)
    if field.is_repeated:
        return [_one(field, item) for item in value]
    return _one(field, value)


def _one(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return message_content(value)
    return enum_text(field.enum_type, value) if field.enum_type is not None else value
