"""Prometheus' own judge of alerts and metrics, built once: ``python -m tests.support.promtool``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.go_build import Progress, Unavailable, cache_folder, locked, packages_built, run, toolchain

PROMETHEUS = "0.315.0"
"""The version of the Go module; Prometheus itself is 3.15.0."""
_MODULE = "github.com/prometheus/prometheus"
_PACKAGE = "./cmd/promtool"
_TAGS = "remove_all_sd"
"""Without the ways to find targets in clouds, which are most of it."""


def binary(progress: Progress = lambda line: None) -> Path:
    """promtool; builds it when it is not there. Raises Unavailable."""
    folder = cache_folder() / f"promtool-{PROMETHEUS}"
    with locked(folder):
        if not (folder / "promtool").exists():
            _build(folder, progress)
    return folder / "promtool"


def _build(folder: Path, progress: Progress) -> None:
    go = toolchain(progress)
    progress(f"promtool {PROMETHEUS}: downloading Go modules")
    (folder / "go.mod").write_text("module testbed\n")
    source = Path(json.loads(run([go, "mod", "download", "-json", f"{_MODULE}@v{PROMETHEUS}"], folder))["Dir"])
    (folder / "go.mod").unlink()
    flags = "-mod=readonly"
    total = len(run([go, "list", "-deps", "-tags", _TAGS, _PACKAGE], source, flags).split())
    unfinished = folder / "promtool.unfinished"
    options = ["-trimpath", "-buildvcs=false", "-tags", _TAGS, "-ldflags", "-s -w", "-o", str(unfinished)]
    for done in packages_built([go, "build", "-v", *options, _PACKAGE], source, flags):
        if done % 50 == 0:
            progress(f"promtool: {done} of {total} packages built")
    unfinished.replace(folder / "promtool")


def promtool(program: Path, *words: str | Path, content: str = "") -> tuple[int, str]:
    """Exit code and all that it says. ``content``: its standard input."""
    done = subprocess.run(
        [program, *words], input=content, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return done.returncode, done.stdout


if __name__ == "__main__":
    try:
        print(binary(lambda line: print(line, file=sys.stderr)))
    except Unavailable as reason:
        sys.exit(f"no promtool: {reason}")
