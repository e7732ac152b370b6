"""``devalloc console`` and ``devalloc logs``: what a guest and its QEMU write, through the plugin's socket."""

from __future__ import annotations

import os
import queue
import sys
import termios
import threading
import time
import tty
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any, cast

import grpc

from devalloc.cli.command import BadInput, CommandFailed, ending_on_sigterm
from devalloc.cli.node_client import connect_plugin, machine_ref
from devalloc.cli.object_names import keys_of
from devalloc.cli.terminal import pass_through, print_data, print_note
from devalloc_node.pb.node_pb2 import ConsoleInput, MachineRef, ReadLogRequest
from devalloc_node.pb.node_pb2_grpc import NodeStub

ESCAPE = b"\x1d"
"""Ctrl-], which no line discipline and few programs use."""
_SILENT_SECONDS, _MOST_SECONDS = 1.0, 10.0
"""After the end of input that is not a terminal: how long the guest must be silent, and how long it may talk."""
_RESET = b"\x1b[0m\x1b[?25h\r\n"
"""Ordinary characters, a visible cursor: a guest may have left other ones."""
_AT_ONCE = 1024


def console(name: str, namespace: str, socket: Path) -> int:
    machine = _machine(name, namespace)
    with connect_plugin(socket) as node, ending_on_sigterm():
        session = _Session(node, machine)
        if is_terminal := sys.stdin.isatty():
            print_note(f"connected to {machine.namespace}/{machine.name}; Ctrl-] ends it, Enter shows its prompt")
        with _raw_terminal(is_terminal):
            is_over = session.run(session.type_keys if is_terminal else session.type_input)
    if is_over:
        raise CommandFailed(f"machine {machine.namespace}/{machine.name} has ended: devalloc get vm/{machine.name}")
    return 0


def _machine(word: str, namespace: str) -> MachineRef:
    """The machine for ``vm/NAME`` or ``NAME``. Raises BadInput."""
    (key,) = keys_of([word], namespace, default="virtualmachines")
    if key.kind != "VirtualMachine":
        raise BadInput(f"only machines have a console and logs, not a {key.kind}: write vm/NAME")
    return machine_ref(key.name, namespace)


class _Session:
    """One call to the plugin. A thread takes what is typed, this one shows what the guest writes."""

    def __init__(self, node: NodeStub, machine: MachineRef) -> None:
        """Open the call before the terminal is changed. Raises RpcError if the machine has no console."""
        self._machine = machine
        self._typed: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._is_left = threading.Event()
        self._written_at = 0.0
        self._call: Any = node.OpenConsole(self._inputs())
        self._prompt: bytes = next(iter(self._call)).data

    def run(self, take_input: Callable[[], None]) -> bool:
        """Until the user leaves or QEMU ends; whether QEMU ended first."""
        pass_through(self._prompt)
        threading.Thread(target=take_input, daemon=True).start()
        try:
            for output in self._call:
                self._written_at = time.monotonic()
                pass_through(output.data)
        except grpc.RpcError:
            if not self._is_left.is_set():
                raise
        return not self._is_left.is_set()

    def type_keys(self) -> None:
        """Pass on what is typed on the terminal until Ctrl-]."""
        with suppress(OSError):
            while data := os.read(sys.stdin.fileno(), _AT_ONCE):
                keys, escape, _ = data.partition(ESCAPE)
                self._typed.put(keys)
                if escape:
                    break
        self._leave()

    def type_input(self) -> None:
        """Pass on all input, and leave once the guest is silent."""
        with suppress(OSError, ValueError):
            while data := cast(BufferedReader, sys.stdin.buffer).read1(_AT_ONCE):
                self._typed.put(data)
        began = self._written_at = time.monotonic()
        while (now := time.monotonic()) - self._written_at < _SILENT_SECONDS and now - began < _MOST_SECONDS:
            time.sleep(0.05)
        self._leave()

    def _inputs(self) -> Iterator[ConsoleInput]:
        yield ConsoleInput(machine=self._machine)
        while (data := self._typed.get()) is not None:
            yield ConsoleInput(data=data)

    def _leave(self) -> None:
        self._is_left.set()
        self._typed.put(None)
        self._call.cancel()


@contextmanager
def _raw_terminal(is_terminal: bool) -> Iterator[None]:
    """Inside, the terminal gives each key as it is typed."""
    if not is_terminal:
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setraw(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        pass_through(_RESET)


def logs(name: str, follow: bool, tail: int | None, qemu: bool, previous: bool, namespace: str, socket: Path) -> int:
    if previous and not qemu:
        raise BadInput("--previous is for QEMU's log: add --qemu; the console's log has all runs")
    machine = _machine(name, namespace)
    log = ReadLogRequest.LOG_CONSOLE
    if qemu:
        log = ReadLogRequest.LOG_QEMU_PREVIOUS if previous else ReadLogRequest.LOG_QEMU
    request = ReadLogRequest(machine=machine, log=log, lines=tail or 0, follow=follow)
    text = _Text()
    with connect_plugin(socket) as node:
        for chunk in node.ReadLog(request):
            print_data(text.decoded(chunk.data))
    rest = text.rest()
    print_data(rest, end="\n" if sys.stdout.isatty() else "")
    return 0


class _Text:
    """UTF-8 that comes in pieces, with the line ends of serial ports."""

    def __init__(self) -> None:
        self._decoder = getincrementaldecoder("utf-8")("replace")

    def decoded(self, data: bytes) -> str:
        return self._decoder.decode(data).replace("\r", "")

    def rest(self) -> str:
        return self._decoder.decode(b"", True)
