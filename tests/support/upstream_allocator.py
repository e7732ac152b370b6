"""Upstream's own allocator as a peer: a Go program of ours around the released module, built once, asked over pipes.

The program is in ``benchmarks/peer``; its go.mod pins k8s.io/dynamic-resource-allocation. Run this module to build it
ahead of the tests: ``python -m tests.support.upstream_allocator``.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from tests.support.go_build import Progress, Unavailable, cache_folder, locked, packages_built, run, toolchain

SOURCE = Path(__file__).parents[2] / "benchmarks" / "peer"
MODULE = "k8s.io/dynamic-resource-allocation"
TIMEOUT = 10.0
"""Seconds that kube-scheduler gives the allocator for a node."""

Answer = dict[str, Any]


def version() -> str:
    """The release of upstream's module that go.mod pins, such as 0.37.2."""
    match = re.search(rf"^\s*{re.escape(MODULE)} v(\S+)", (SOURCE / "go.mod").read_text(), re.MULTILINE)
    assert match is not None
    return match[1]


def binary(progress: Progress = lambda line: None) -> Path:
    """The peer's program; builds it when this source was not built yet. Raises Unavailable."""
    folder = _folder()
    with locked(folder):
        if not (folder / "peer").exists():
            _build(folder, progress)
    return folder / "peer"


def built_binary() -> Path | None:
    """The peer's program if this machine has built it, of this source."""
    program = _folder() / "peer"
    return program if program.exists() else None


def _folder() -> Path:
    files = [SOURCE / "go.mod", SOURCE / "go.sum", *sorted(SOURCE.glob("*.go"))]
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()[:12]
    return cache_folder() / f"upstream-allocator-{version()}-{digest}"


def _build(folder: Path, progress: Progress) -> None:
    go = toolchain(progress)
    progress(f"upstream's allocator {version()}: downloading Go modules")
    run([go, "mod", "download"], SOURCE, "-mod=readonly")
    flags = "-mod=readonly"
    total = len(run([go, "list", "-deps", "."], SOURCE, flags).split())
    command = [go, "build", "-v", "-trimpath", "-buildvcs=false", "-o", str(folder / "peer.new"), "."]
    for done in packages_built(command, SOURCE, flags):
        if done % 50 == 0:
            progress(f"upstream's allocator: {done} of {total} packages built")
    (folder / "peer.new").replace(folder / "peer")


class Peer(Protocol):
    """Whatever answers as upstream's allocator does."""

    def ask(
        self, given: Mapping[str, Any], features: Mapping[str, bool], *, runs: int = 1, timeout: float = TIMEOUT
    ) -> Answer:
        """Upstream's answer to the ``input`` of a case."""


class UpstreamPeer:
    """A running peer; use it as a context manager."""

    def __init__(self, program: Path) -> None:
        self._process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(
        self, given: Mapping[str, Any], features: Mapping[str, bool], *, runs: int = 1, timeout: float = TIMEOUT
    ) -> Answer:
        """Upstream's answer to the ``input`` of a case.

        ``outcome`` is allocated, not-allocated, error or timeout; then ``results`` (AllocationResults, one a claim),
        ``error``, ``errorIsNodeLocal``, and nanoseconds of every run. A timeout ends the runs.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"features": features, "input": given, "runs": runs, "timeoutSeconds": timeout}
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the peer ended with status {self._process.wait()}")
        answer: Answer = json.loads(line)
        if "malformed" in answer:
            raise ValueError(f"no case to the peer: {answer['malformed']}")
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def __enter__(self) -> UpstreamPeer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def running(progress: Progress = lambda line: None) -> UpstreamPeer:
    """Start the peer, built if need be. Raises Unavailable."""
    return UpstreamPeer(binary(progress))


if __name__ == "__main__":
    try:
        print(binary(lambda line: print(line, file=sys.stderr)))
    except Unavailable as reason:
        sys.exit(f"cannot build the peer: {reason}")
