"""A real Kubernetes API: etcd and kube-apiserver on loopback in a temporary folder, and a client for tests.

A token says who asks: ``admin``, the scheduler and the controller manager, and the nodes of ``NODES``, each with
the rights that Kubernetes gives such a component (Node and RBAC authorization, NodeRestriction).
"""

from __future__ import annotations

import http.client
import json
import os
import secrets
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.support.go_build import Unavailable
from tests.support.ports import free_ports

START_SECONDS = 120
STOP_SECONDS = 20
FEWER_COLLECTIONS = {"GOGC": "400"}
"""For Go's garbage collector: it takes two fifths of the time that an API server needs to start, or 130 MB more."""
NODES = ("node-a", "node-b")
SCHEDULER = "system:kube-scheduler"
CONTROLLERS = "system:kube-controller-manager"


@dataclass(frozen=True)
class ApiAnswer:
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


class ServerProcess:
    """The process of the API server, or of etcd."""

    def __init__(self, processes: Processes, name: str, command: Sequence[str | Path]) -> None:
        self._processes = processes
        self._name = name
        self.command = command

    def kill(self) -> None:
        """At once, with all connections."""
        self._processes.kill_one(self._name)

    def start(self, cluster: Cluster) -> None:
        """Again, and wait until the API server is ready. Raises Unavailable."""
        self._processes.start(self._name, self.command)
        wait_ready(cluster, self._processes)


@dataclass(frozen=True)
class Cluster:
    """A running API server, asked as one of its users."""

    url: str
    token: str
    folder: Path = field(default=Path(), repr=False)
    tokens: Mapping[str, str] = field(default_factory=dict, repr=False)
    """By user."""
    server: ServerProcess | None = field(default=None, repr=False, compare=False)
    """Its process, for tests that have a cluster to themselves."""
    keeper: ServerProcess | None = field(default=None, repr=False, compare=False)
    """That of etcd."""
    etcd: str = field(default="", repr=False)
    """The URL of what it keeps its objects in."""

    def as_user(self, user: str) -> Cluster:
        return replace(self, token=self.tokens[user])

    def kubeconfig(self, user: str) -> Path:
        """A kubeconfig of a user, which checks the server's certificate."""
        path = self.folder / f"{user.rpartition(':')[2]}.kubeconfig"
        server = {"server": self.url, "certificate-authority": str(self.folder / "certs" / "apiserver.crt")}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": server}],
            "users": [{"name": user, "user": {"token": self.tokens[user]}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
            "current-context": "test",
        }
        path.touch(0o600)
        path.write_text(json.dumps(content))
        return path

    def request(self, method: str, path: str, body: Any = None, *, accept: str = "application/json") -> ApiAnswer:
        """One request; an error answer is an answer."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json", "Accept": accept}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        context = ssl._create_unverified_context()
        try:
            with urllib.request.urlopen(request, timeout=60, context=context) as response:
                return ApiAnswer(response.status, json.load(response), response.headers.get_all("Warning") or [])
        except http.client.HTTPException as cut:  # the server ended in the middle of its answer
            raise ConnectionError(f"{method} {path}: {cut!r}") from cut
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            try:
                content = json.loads(text)
            except ValueError:
                content = {"message": text}
            return ApiAnswer(error.code, content)

    def get(self, path: str, *, accept: str = "application/json") -> ApiAnswer:
        return self.request("GET", path, accept=accept)

    def create(self, path: str, body: Any, *, dry_run: bool = False) -> ApiAnswer:
        """Unknown and double fields are errors, as with kubectl."""
        return self.request("POST", f"{path}?fieldValidation=Strict{'&dryRun=All' if dry_run else ''}", body)

    def replace(self, path: str, body: Any, *, dry_run: bool = False) -> ApiAnswer:
        return self.request("PUT", f"{path}?fieldValidation=Strict{'&dryRun=All' if dry_run else ''}", body)

    def delete(self, path: str) -> ApiAnswer:
        return self.request("DELETE", path)

    def compact(self) -> None:
        """Have etcd forget all that was before: a watch from there gets 410."""
        newest = int(_etcd(self, "range", {"key": "AA=="})["header"]["revision"])
        _etcd(self, "compaction", {"revision": newest, "physical": True})


class Processes:
    """Daemons with their logs in one folder, stopped in reverse order."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, command: Sequence[str | Path], **settings: str) -> subprocess.Popen[bytes]:
        """Start one; ``settings`` are added to its environment."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=os.environ | FEWER_COLLECTIONS | settings,
            )
        return self._running[name]

    def check(self) -> None:
        """Raises Unavailable when one has ended."""
        for name, process in self._running.items():
            if process.poll() is not None:
                raise Unavailable(f"{name} ended with {process.returncode}: {last_lines(self.folder, name)}")

    def stop_one(self, name: str) -> None:
        """Ask it to end, and wait until it has."""
        process = self._running.pop(name)
        for pid in _children(process.pid) or [process.pid]:  # the child, where it was started through nsenter
            os.kill(pid, signal.SIGTERM)
        try:
            process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def kill_one(self, name: str) -> None:
        """End it without a warning, and wait until it has ended."""
        process = self._running.pop(name)
        process.kill()
        process.wait()

    def stop(self, *ended: str) -> None:
        """End all at once: their data go too. ``ended``: those that were ended by other means."""
        for name, process in self._running.items():
            if name not in ended:
                process.kill()
        for process in self._running.values():
            process.wait()


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextmanager
def running(binaries: Path, folder: Path, *options: str, nodes: Sequence[str] = NODES) -> Iterator[Cluster]:
    """Start both, wait until the server is ready, and stop them in the end. ``options``: more for the API server;
    ``nodes``: the names of the nodes that have a token.

    Raises Unavailable when one does not start.
    """
    processes = Processes(folder)
    try:
        etcd_client, etcd_peer, api = free_ports(3)
        etcd_url = f"http://127.0.0.1:{etcd_client}"
        etcd = [
            f"--data-dir={folder / 'etcd'}",
            "--unsafe-no-fsync",
            f"--listen-client-urls={etcd_url}",
            f"--advertise-client-urls={etcd_url}",
            f"--listen-peer-urls=http://127.0.0.1:{etcd_peer}",
        ]
        keeper = ServerProcess(processes, "etcd", [binaries / "etcd", *etcd])
        processes.start("etcd", [binaries / "etcd", *etcd])
        tokens = _tokens(folder, nodes)
        key, public = _service_account_key(folder)
        server = [
            f"--etcd-servers={etcd_url}",
            "--bind-address=127.0.0.1",
            f"--secure-port={api}",
            f"--cert-dir={folder / 'certs'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={public}",
            f"--service-account-signing-key-file={key}",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged",
            f"--token-auth-file={folder / 'tokens.csv'}",
            *options,
        ]
        command = [binaries / "kube-apiserver", *server]
        processes.start("kube-apiserver", command)
        cluster = Cluster(
            f"https://127.0.0.1:{api}",
            tokens["admin"],
            folder,
            tokens,
            ServerProcess(processes, "kube-apiserver", command),
            keeper,
            etcd_url,
        )
        wait_ready(cluster, processes)
        yield cluster
    finally:
        processes.stop()


def _etcd(cluster: Cluster, call: str, body: Any) -> Any:
    request = urllib.request.Request(f"{cluster.etcd}/v3/kv/{call}", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def _tokens(folder: Path, nodes: Sequence[str]) -> dict[str, str]:
    """A token for each user, in the file that the server reads."""
    groups = {"admin": "system:masters", SCHEDULER: "", CONTROLLERS: ""}
    groups |= {f"system:node:{node}": "system:nodes" for node in nodes}
    tokens = {user: secrets.token_hex(16) for user in groups}
    path = folder / "tokens.csv"
    path.touch(0o600)
    path.write_text("".join(f'{tokens[user]},{user},{user},"{group}"\n' for user, group in groups.items()))
    return tokens


def wait_ready(cluster: Cluster, processes: Processes) -> None:
    """Wait until the API server of a cluster is ready. Raises Unavailable."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        processes.check()
        try:
            request = urllib.request.Request(
                f"{cluster.url}/readyz", headers={"Authorization": f"Bearer {cluster.token}"}
            )
            with urllib.request.urlopen(request, timeout=5, context=ssl._create_unverified_context()):
                return
        except OSError:
            time.sleep(0.1)
    lines = last_lines(cluster.folder, "kube-apiserver")
    raise Unavailable(f"the API server is not ready after {START_SECONDS} s: {lines}")


def last_lines(folder: Path, name: str) -> str:
    """The end of a daemon's log, on one line."""
    return " ".join((folder / f"{name}.log").read_text(errors="replace").splitlines()[-3:])[-900:]


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
