"""The binaries of a Kubernetes control plane, built once from pinned Go modules into a cache outside the tree.

Binaries that exist already are taken from the folder that KUBEBUILDER_ASSETS names. Run this module to build ahead of
the tests: ``python -m tests.support.kube_build``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

from tests.support.go_build import Progress, Unavailable, cache_folder, locked, packages_built, run, toolchain

KUBERNETES = "1.37.1"
PACKAGES = {"kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver", "etcd": "go.etcd.io/etcd/server/v3"}


def binaries(progress: Progress = lambda line: None) -> Path:
    """The folder that holds kube-apiserver and etcd; builds them when they are not there. Raises Unavailable."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets:
        missing = [name for name in PACKAGES if not os.access(Path(assets) / name, os.X_OK)]
        if missing:
            raise Unavailable(f"KUBEBUILDER_ASSETS={assets} has no {' and no '.join(missing)}")
        return Path(assets)
    folder = cache_folder() / f"kubernetes-{KUBERNETES}"
    with locked(folder):
        if not all((folder / name).exists() for name in PACKAGES):
            _build(folder, progress)
    return folder


def _build(folder: Path, progress: Progress) -> None:
    go = toolchain(progress)
    source = folder / "source"
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir()
    progress(f"Kubernetes {KUBERNETES}: downloading Go modules (1.1 GB)")
    (source / "go.mod").write_text("module testbed\n")
    downloaded = json.loads(run([go, "mod", "download", "-json", f"k8s.io/kubernetes@v{KUBERNETES}"], source))
    (source / "go.mod").write_text(_go_mod(Path(downloaded["GoMod"]).read_text()))
    run([go, "mod", "tidy"], source)
    for name, package in PACKAGES.items():
        total = len(run([go, "list", "-deps", package], source).split())
        command = [go, "build", "-v", "-trimpath", "-ldflags", _version_flags(), "-o", str(source / name), package]
        for done in packages_built(command, source):
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


if __name__ == "__main__":
    print(binaries(lambda line: print(line, file=sys.stderr)))
