"""Kubernetes and containerd, built once from pinned Go modules into a cache outside the tree.

An API server and its etcd are taken from the folder that KUBEBUILDER_ASSETS names, where it is set. Run this module to
build ahead of the tests: ``python -m tests.support.kube_build``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.support.go_build import (
    OLDEST_GO,
    Progress,
    Unavailable,
    cache_folder,
    locked,
    packages_built,
    run,
    toolchain,
)

KUBERNETES = "1.37.1"
CONTAINERD = "2.2.1"
HELM = "4.3.1"
API_SERVER = {"kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver", "etcd": "go.etcd.io/etcd/server/v3"}
NODE = {name: f"k8s.io/kubernetes/cmd/{name}" for name in ("kube-scheduler", "kube-controller-manager", "kubelet")}
KUBECTL = {"kubectl": "k8s.io/kubernetes/cmd/kubectl"}
RUNTIME = {name: f"./cmd/{name}" for name in ("containerd", "containerd-shim-runc-v2", "ctr")}
_RUNTIME_TAGS = "no_btrfs,no_zfs,no_devmapper"


def binaries(progress: Progress = lambda line: None) -> Path:
    """The folder that holds kube-apiserver and etcd; builds them when they are not there. Raises Unavailable."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets:
        missing = [name for name in API_SERVER if not os.access(Path(assets) / name, os.X_OK)]
        if missing:
            raise Unavailable(f"KUBEBUILDER_ASSETS={assets} has no {' and no '.join(missing)}")
        return Path(assets)
    return _kubernetes(API_SERVER, progress)


def node_binaries(progress: Progress = lambda line: None) -> Path:
    """The folder that holds kube-scheduler, kube-controller-manager and kubelet. Raises Unavailable."""
    return _kubernetes(NODE, progress)


def kubectl(progress: Progress = lambda line: None) -> Path:
    """kubectl of the same version; one on PATH may be any. Raises Unavailable."""
    return _kubernetes(KUBECTL, progress) / "kubectl"


def helm(progress: Progress = lambda line: None) -> Path:
    """helm, which shares most of its packages with kubectl. Raises Unavailable."""
    folder = cache_folder() / f"helm-{HELM}"
    package = "helm.sh/helm/v4/cmd/helm"
    with locked(folder):
        if _missing(folder, {"helm": package}):
            go = toolchain(progress)
            source = folder / "source"
            shutil.rmtree(source, ignore_errors=True)
            source.mkdir()
            progress(f"helm {HELM}: downloading Go modules (0.2 GB)")
            lines = ["module testbed", f"go {'.'.join(map(str, OLDEST_GO))}", f"require helm.sh/helm/v4 v{HELM}"]
            (source / "go.mod").write_text("\n".join([*lines, f"tool {package}", ""]))
            run([go, "mod", "tidy"], source)
            _build(go, source, "helm", package, ["-ldflags", "-s -w"], folder, progress)
            shutil.rmtree(source)
    return folder / "helm"


def runtime_binaries(progress: Progress = lambda line: None) -> Path:
    """The folder that holds containerd, its shim and ctr. Raises Unavailable."""
    folder = cache_folder() / f"containerd-{CONTAINERD}"
    with locked(folder):
        if missing := _missing(folder, RUNTIME):
            go = toolchain(progress)
            progress(f"containerd {CONTAINERD}: downloading Go modules (0.2 GB)")
            (folder / "go.mod").write_text("module testbed\n")
            module = f"github.com/containerd/containerd/v2@v{CONTAINERD}"
            source = Path(json.loads(run([go, "mod", "download", "-json", module], folder))["Dir"])
            (folder / "go.mod").unlink()
            for name, package in missing.items():
                options = ["-tags", _RUNTIME_TAGS, "-ldflags", "-s -w"]
                _build(go, source, name, package, options, folder, progress, flags="-mod=readonly")
    return folder


def _missing(folder: Path, packages: Mapping[str, str]) -> dict[str, str]:
    return {name: package for name, package in packages.items() if not (folder / name).exists()}


def _kubernetes(packages: Mapping[str, str], progress: Progress) -> Path:
    folder = cache_folder() / f"kubernetes-{KUBERNETES}"
    with locked(folder):
        if missing := _missing(folder, packages):
            go = toolchain(progress)
            source = _source(go, folder, missing, progress)
            for name, package in missing.items():
                _build(go, source, name, package, ["-ldflags", _version_flags()], folder, progress)
            shutil.rmtree(source)
    return folder


def _source(go: str, folder: Path, packages: Mapping[str, str], progress: Progress) -> Path:
    """A module of our own that has Kubernetes as its dependency."""
    source = folder / "source"
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir()
    progress(f"Kubernetes {KUBERNETES}: downloading Go modules (1.1 GB)")
    (source / "go.mod").write_text("module testbed\n")
    downloaded = json.loads(run([go, "mod", "download", "-json", f"k8s.io/kubernetes@v{KUBERNETES}"], source))
    (source / "go.mod").write_text(_go_mod(Path(downloaded["GoMod"]).read_text(), packages))
    run([go, "mod", "tidy"], source)
    return source


def _build(
    go: str,
    source: Path,
    name: str,
    package: str,
    options: list[str],
    folder: Path,
    progress: Progress,
    *,
    flags: str = "-mod=mod",
) -> None:
    """Build one program; it appears in the folder when it is whole."""
    total = len(run([go, "list", "-deps", package], source, flags).split())
    unfinished = folder / f"{name}.unfinished"
    command = [go, "build", "-v", "-trimpath", *options, "-o", str(unfinished), package]
    for done in packages_built(command, source, flags):
        if done % 50 == 0:
            progress(f"{name}: {done} of {total} packages built")
    unfinished.replace(folder / name)


def _go_mod(kubernetes_go_mod: str, packages: Mapping[str, str]) -> str:
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
            *(f"tool {package}" for package in packages.values()),
            "",
        ]
    )


def _version_flags() -> str:
    """Without these a server calls itself v0.0.0-master, which clients cannot parse."""
    major, minor, _ = KUBERNETES.split(".")
    values = {"gitVersion": f"v{KUBERNETES}", "gitMajor": major, "gitMinor": minor}
    return " ".join(["-s -w", *(f"-X k8s.io/component-base/version.{key}={value}" for key, value in values.items())])


if __name__ == "__main__":
    from deploy.images import layers
    from deploy.images.contents import contents
    from tests.support import kube_images, kube_runc
    from tests.support.kube_node import why_not

    def images(progress: Progress) -> list[Path]:
        """The layers of the images that are shipped."""
        built = contents()
        return [layer for image in built.images.values() for layer in layers.layers(image, built, progress)]

    try:
        of_a_node = () if why_not() else (runtime_binaries, kube_runc.runc, kube_images.archive, images)
        for built in (binaries, kubectl, helm, node_binaries, *of_a_node):
            print(built(lambda line: print(line, file=sys.stderr)))
    except Unavailable as reason:
        sys.exit(f"no Kubernetes: {reason}")
