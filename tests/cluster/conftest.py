"""One control plane for all tests of a worker, and one node with a kubelet for those that need it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import kube_build, kube_images, kube_node, kube_runc
from tests.support.go_build import Progress, Unavailable
from tests.support.kube_api import Cluster, running
from tests.support.kube_node import Node, Programs, leftovers, node_running
from tests.support.kube_plugin import Bed
from tests.support.kube_pods import Pods, cards_of, node_with_claims, pods_of
from tests.support.scheduler import pytest_collection_modifyitems, pytest_xdist_make_scheduler

__all__ = ["pytest_collection_modifyitems", "pytest_xdist_make_scheduler"]


@pytest.fixture(scope="session")
def progress(request: pytest.FixtureRequest) -> Progress:
    """Prints a line past pytest's capture: the first build takes some minutes."""
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def line(text: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"  {text}", flush=True)

    return line


@pytest.fixture(scope="session")
def cluster(progress: Progress, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A real API server; the first time its build takes some minutes and says how far it is."""
    try:
        with running(kube_build.binaries(progress), tmp_path_factory.mktemp("kubernetes")) as cluster:
            yield cluster
    except Unavailable as reason:
        pytest.skip(f"no Kubernetes API server: {reason}")


@pytest.fixture(scope="session")
def node(progress: Progress) -> Iterator[Node]:
    """A whole cluster with one real node."""
    if reason := kube_node.why_not():
        pytest.skip(f"no Kubernetes node: {reason}")
    try:
        programs = Programs(
            control_plane=kube_build.binaries(progress),
            node=kube_build.node_binaries(progress),
            runtime=kube_build.runtime_binaries(progress),
            runc=kube_runc.runc(progress),
            image=kube_images.archive(progress),
        )
        with node_running(programs) as node:
            yield node
        assert leftovers(node.folder) == []
    except Unavailable as reason:
        pytest.skip(f"no Kubernetes node: {reason}")


@pytest.fixture(scope="module")
def ready(node: Node) -> Node:
    """The node's cluster with classes and templates of claims, each for one device."""
    return node_with_claims(node)


@pytest.fixture
def pods(ready: Node) -> Iterator[Pods]:
    with pods_of(ready) as pods:
        yield pods


@pytest.fixture
def bed(ready: Node, tmp_path: Path) -> Iterator[Bed]:
    with cards_of(ready, tmp_path) as bed:
        yield bed
