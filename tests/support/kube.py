"""A real Kubernetes API: etcd and kube-apiserver on loopback in a temporary folder, and a client for tests."""

from __future__ import annotations

import json
import secrets
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.go_build import Unavailable

START_SECONDS = 120


@dataclass(frozen=True)
class Answer:
    """What the server said: HTTP status, content, and warnings from the headers."""

    status: int
    content: dict[str, Any]
    warnings: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return self.status < 300

    @property
    def message(self) -> str:
        return str(self.content.get("message", ""))


@dataclass(frozen=True)
class Cluster:
    """A running API server."""

    url: str
    token: str

    def request(self, method: str, path: str, body: Any = None, *, accept: str = "application/json") -> Answer:
        """One request; an error answer is an answer."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json", "Accept": accept}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        context = ssl._create_unverified_context()
        try:
            with urllib.request.urlopen(request, timeout=60, context=context) as response:
                return Answer(response.status, json.load(response), response.headers.get_all("Warning") or [])
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            try:
                content = json.loads(text)
            except ValueError:
                content = {"message": text}
            return Answer(error.code, content)

    def get(self, path: str, *, accept: str = "application/json") -> Answer:
        return self.request("GET", path, accept=accept)

    def create(self, path: str, body: Any, *, dry_run: bool = False) -> Answer:
        """Unknown and double fields are errors, as with kubectl."""
        return self.request("POST", f"{path}?fieldValidation=Strict{'&dryRun=All' if dry_run else ''}", body)

    def replace(self, path: str, body: Any, *, dry_run: bool = False) -> Answer:
        return self.request("PUT", f"{path}?fieldValidation=Strict{'&dryRun=All' if dry_run else ''}", body)

    def delete(self, path: str) -> Answer:
        return self.request("DELETE", path)


@contextmanager
def running(binaries: Path, folder: Path) -> Iterator[Cluster]:
    """Start both, wait until the server is ready, and stop them in the end.

    Raises Unavailable when one does not start.
    """
    processes: list[subprocess.Popen[bytes]] = []
    try:
        etcd_client, etcd_peer, api = _free_ports(3)
        etcd_url = f"http://127.0.0.1:{etcd_client}"
        processes.append(
            _start(
                folder,
                "etcd",
                binaries / "etcd",
                f"--data-dir={folder / 'etcd'}",
                "--unsafe-no-fsync",
                f"--listen-client-urls={etcd_url}",
                f"--advertise-client-urls={etcd_url}",
                f"--listen-peer-urls=http://127.0.0.1:{etcd_peer}",
            )
        )
        token = secrets.token_hex(16)
        (folder / "tokens.csv").write_text(f'{token},admin,admin,"system:masters"\n')
        key, public = _service_account_key(folder)
        processes.append(
            _start(
                folder,
                "kube-apiserver",
                binaries / "kube-apiserver",
                f"--etcd-servers={etcd_url}",
                "--bind-address=127.0.0.1",
                f"--secure-port={api}",
                f"--cert-dir={folder / 'certs'}",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={public}",
                f"--service-account-signing-key-file={key}",
                "--service-cluster-ip-range=10.0.0.0/24",
                "--authorization-mode=RBAC",
                f"--token-auth-file={folder / 'tokens.csv'}",
            )
        )
        cluster = Cluster(f"https://127.0.0.1:{api}", token)
        _wait_ready(cluster, processes, folder)
        yield cluster
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _start(folder: Path, name: str, binary: Path, *arguments: str) -> subprocess.Popen[bytes]:
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen([str(binary), *arguments], stdout=log, stderr=subprocess.STDOUT, cwd=folder)


def _wait_ready(cluster: Cluster, processes: list[subprocess.Popen[bytes]], folder: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        for process in processes:
            if process.poll() is not None:
                raise Unavailable(f"etcd or kube-apiserver ended at once: {_last_lines(folder)}")
        try:
            request = urllib.request.Request(
                f"{cluster.url}/readyz", headers={"Authorization": f"Bearer {cluster.token}"}
            )
            with urllib.request.urlopen(request, timeout=5, context=ssl._create_unverified_context()):
                return
        except OSError:
            time.sleep(0.1)
    raise Unavailable(f"the API server is not ready after {START_SECONDS} s: {_last_lines(folder)}")


def _last_lines(folder: Path) -> str:
    logs = sorted(folder.glob("*.log"), key=lambda path: path.name)
    return " | ".join(
        f"{log.name}: {' '.join(log.read_text(errors='replace').splitlines()[-3:])[-600:]}" for log in logs
    )


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _service_account_key(folder: Path) -> tuple[Path, Path]:
    key, public = folder / "sa.key", folder / "sa.pub"
    try:
        subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
        subprocess.run(
            ["openssl", "rsa", "-in", str(key), "-pubout", "-out", str(public)], check=True, capture_output=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise Unavailable(f"openssl cannot make a key: {error}") from None
    return key, public
