"""Run in a test host: runs command lines of devalloc, each in a process of its own that is forked from this one.

A start of Python with all that devalloc loads costs seconds of a CPU that is emulated; a fork costs nothing. A command
line is a file ``NAME.run`` in the folder that is given (a first word other than ``devalloc`` is a script of Python);
then a line with NAME comes through the pipe ``asked`` there. What the command says comes into ``NAME.out``, as it says
it, and its exit status into ``NAME.rc`` when it has ended; a process that waits for that makes a pipe ``NAME.end`` and
opens it to read. No process has to look again and again: each look is a process, which takes CPU time.
``ready`` appears in the folder when the first can come. ``NAME.pid`` contains the process.
"""

from __future__ import annotations

import importlib
import os
import runpy
import shlex
import signal
import sys
import time
from pathlib import Path

_OPTIONS = ("hosts", "manifests", "maintenance", "objects", "vm")
_VERBS = ("up", "apply", "capacity", "cordon", "discover", "get", "vm", "vm_create", "wait")
"""Modules of verbs: ``delete`` is in ``apply``, ``release`` in ``cordon``."""
LOADED = (
    *("devalloc.cli.main", *(f"devalloc.cli.options.{subject}" for subject in _OPTIONS)),
    *(f"devalloc.cli.verbs.{verb}" for verb in _VERBS),
    *(
        "devalloc.cli.documents",
        "devalloc.programs.inventory_options",
        "devalloc.programs.node_options",
    ),
    *(
        "devalloc.cli.node_client",
        "devalloc.cli.target",
        "devalloc.programs.node_parts",
        "devalloc.programs.plugin_thread",
    ),
    *(
        "devalloc.api.manifests",
        "devalloc.programs.store_loops",
        "devalloc.store.sqlite",
        "devalloc_solver.cel.device_claims",
    ),
    *("devalloc_node.daemon", "devalloc_node.host.linux", "devalloc_node.pb.node_pb2_grpc", "pyroute2", "pyudev"),
)


def main(folder: Path) -> None:
    for name in LOADED:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, lambda *_: _reap(folder))
    if not (folder / "asked").exists():
        os.mkfifo(folder / "asked")
    with os.fdopen(os.open(folder / "asked", os.O_RDWR)) as pipe:  # for writing too: so it never ends
        (folder / "ready").touch()
        for line in pipe:
            _start(folder, line.strip())


def _start(folder: Path, name: str) -> None:
    line = (folder / f"{name}.run").read_text()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    child = os.fork()
    if not child:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        _run(line, folder / f"{name}.out")
    RUNNING[child] = name
    (folder / f"{name}.pid").write_text(str(child))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})


RUNNING: dict[int, str] = {}
"""Names of command lines by the process."""


def _reap(folder: Path) -> None:
    while RUNNING:
        child, status = os.waitpid(-1, os.WNOHANG)
        if not child:
            return
        done = folder / f"{RUNNING.pop(child)}.rc"
        done.with_suffix(".tmp").write_text(str(os.waitstatus_to_exitcode(status)))
        done.with_suffix(".tmp").rename(done)
        _tell(done.with_suffix(".end"))


def _tell(waiting: Path) -> None:
    """Wake who waits there; not there: none does, or no longer."""
    while waiting.exists():
        try:
            return os.close(os.open(waiting, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:  # made and not opened yet
            time.sleep(0.01)


def _run(line: str, output: Path) -> None:
    """In the child: become the command. Does not return."""
    os.setsid()
    written = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(written, stream)
    program, *sys.argv[1:] = shlex.split(line)
    sys.argv[0] = program
    status: object = 1
    try:
        if program == "devalloc":
            from devalloc.cli.main import main as command

            command()
        else:
            runpy.run_path(program, run_name="__main__")
        status = 0
    except SystemExit as end:
        status = 0 if end.code is None else end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else 1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
