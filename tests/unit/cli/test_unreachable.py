"""An API server that is not there: each verb says so first, and then what it was asked for."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from devalloc.controller.certificate import self_signed
from devalloc.store.kubernetes import ApiError, Client
from tests.support.cli_shell import Shell, devalloc
from tests.support.ports import free_ports

__all__ = ["devalloc"]


VERBS = ["get claims", "top --once", "install", "uninstall", "explain a", "cordon node/a", "release a"]


def kubeconfig(path: Path, url: str, **cluster: str) -> Path:
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url, **cluster}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("verb", VERBS)
def test_the_cause_comes_first(devalloc: Shell, tmp_path: Path, verb: str) -> None:
    (port,) = free_ports(1)
    url = f"https://127.0.0.1:{port}"

    done = devalloc(*verb.split(), "--kubeconfig", kubeconfig(tmp_path / "kubeconfig", url))

    assert done.code == 1
    words = f"error: cannot reach the API server at {url}: Failed to establish a new connection: "
    assert (done.out + done.err).startswith(words), done.out + done.err
    assert "Connection refused" in done.err


@contextmanager
def served(tls: ssl.SSLContext | None) -> Iterator[int]:
    """The port of a server that no client should send a token to."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    line, _ = listening.accept()
                    with suppress(OSError), line:
                        if tls is None:
                            line.recv(4096)
                            line.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                        else:
                            tls.wrap_socket(line, server_side=True).close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize("verb", VERBS)
def test_a_certificate_that_cannot_be_verified_has_a_remedy(devalloc: Shell, tmp_path: Path, verb: str) -> None:
    with served(self_signed(["127.0.0.1"])) as port:
        done = devalloc(*verb.split(), "--kubeconfig", kubeconfig(tmp_path / "k", f"https://127.0.0.1:{port}"))
    assert done.code == 1
    words = f"error: cannot verify the certificate of the API server at https://127.0.0.1:{port}: "
    assert (done.out + done.err).startswith(words), done.out + done.err
    assert "self-signed certificate" in done.err
    assert "certificate-authority" in done.err, "what to do"


def test_a_server_without_tls_is_reported(devalloc: Shell, tmp_path: Path) -> None:
    with served(None) as port:
        done = devalloc("get", "claims", "--kubeconfig", kubeconfig(tmp_path / "k", f"https://127.0.0.1:{port}"))
    assert f"no TLS connection to the API server at https://127.0.0.1:{port}: " in done.err
    assert "https" in done.err


def test_nothing_was_sent_so_a_write_is_not_in_doubt(tmp_path: Path) -> None:
    """A user who writes may do it again, and has nothing to look up first."""
    with served(self_signed(["127.0.0.1"])) as port:
        client = Client.connect(kubeconfig(tmp_path / "k", f"https://127.0.0.1:{port}"))
        with pytest.raises(ApiError, match="cannot verify") as refused:
            client.create("/api/v1/namespaces/default/configmaps", {"metadata": {"name": "a"}})
    assert refused.value.is_unreachable
    assert not refused.value.is_unknown
