"""What warm setups with a network need on a host: nft, and CNI's reference plugins, built from their Go module.

Run this module to have both ahead of the tests: ``python -m tests.support.network_tools``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.support.debian_programs import nft
from tests.support.go_build import Progress, Unavailable, cache_folder, locked, run, toolchain

PLUGINS = "1.9.1"
"""The version of CNI's reference plugins."""
_MODULE = "github.com/containernetworking/plugins"
_PACKAGES = {"bridge": "./plugins/main/bridge", "host-local": "./plugins/ipam/host-local"}


def cni_plugins(progress: Progress = lambda line: None) -> Path:
    """A folder with the executables ``bridge`` and ``host-local``. Raises Unavailable."""
    folder = cache_folder() / f"cni-plugins-{PLUGINS}"
    with locked(folder):
        if not all((folder / name).exists() for name in _PACKAGES):
            _build(folder, progress)
    return folder


def _build(folder: Path, progress: Progress) -> None:
    go = toolchain(progress)
    progress(f"CNI plugins {PLUGINS}: downloading Go modules")
    (folder / "go.mod").write_text("module testbed\n")
    source = Path(json.loads(run([go, "mod", "download", "-json", f"{_MODULE}@v{PLUGINS}"], folder))["Dir"])
    (folder / "go.mod").unlink()
    for name, package in _PACKAGES.items():
        progress(f"CNI plugins {PLUGINS}: building {name}")
        unfinished = folder / f"{name}.unfinished"
        options = ["-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", str(unfinished)]
        run([go, "build", *options, package], source, "-mod=readonly")
        unfinished.replace(folder / name)


if __name__ == "__main__":
    try:
        print(nft(lambda line: print(line, file=sys.stderr)))
        print(cni_plugins(lambda line: print(line, file=sys.stderr)))
    except Unavailable as reason:
        sys.exit(f"no network tools: {reason}")
