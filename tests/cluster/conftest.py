"""One control plane for all tests of the tier."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.go_build import Unavailable
from tests.support.kube import Cluster, running
from tests.support.kube_build import binaries


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A real API server; the first time its build takes some minutes and says how far it is."""
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def progress(line: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"  {line}", flush=True)

    try:
        with running(binaries(progress), tmp_path_factory.mktemp("kubernetes")) as cluster:
            yield cluster
    except Unavailable as reason:
        pytest.skip(f"no Kubernetes API server: {reason}")
