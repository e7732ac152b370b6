"""An API server that is not there: each verb says so first, and then what it was asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.ports import free_ports
from tests.support.shell import Shell, devalloc

__all__ = ["devalloc"]


@pytest.mark.parametrize(
    "verb", ["get claims", "top --once", "install", "uninstall", "explain a", "cordon node/a", "release a"]
)
def test_the_cause_comes_first(devalloc: Shell, tmp_path: Path, verb: str) -> None:
    (port,) = free_ports(1)
    url, path = f"https://127.0.0.1:{port}", tmp_path / "kubeconfig"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(content))

    done = devalloc(*verb.split(), "--kubeconfig", path)

    assert done.code == 1
    words = f"error: the API server at {url} cannot be reached: Failed to establish a new connection: "
    assert (done.out + done.err).startswith(words), done.out + done.err
    assert "Connection refused" in done.err
