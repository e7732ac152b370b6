"""The server of permits whose ports are in use: nothing else waits for that, and no answer is wrong."""

from __future__ import annotations

import http.client
import json
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from devalloc.machines.permits import Settings, doors, server
from devalloc.machines.permits.leadership import new_holder, permits_lease
from devalloc.programs import node_permits
from devalloc.scaling.resources import Resources
from devalloc.store.sqlite import SQLiteStore
from devalloc_machines.agent.settings import ScalingSettings
from devalloc_machines.part import Machines, MachineSettings
from devalloc_node.binding.binding import BindingConfig
from tests.support.permit_bench import machine, node_of, running, serving
from tests.support.ports import free_ports
from tests.support.waiting import in_threads, until

TOKEN = "0123456789abcdef"


def listener() -> socket.socket:
    """Who has a port."""
    return socket.create_server(("127.0.0.1", 0))


def node_without_machines(folder: Path, scaling: ScalingSettings) -> Any:
    """As far as a permit server asks it."""
    settings = MachineSettings("node-a", BindingConfig("node-a"), state=folder, scaling=scaling)

    class NoMachines(Machines):
        def __init__(self) -> None:
            self.settings = settings
            self.machines: Any = SimpleNamespace(still=lambda *_: nullcontext([]))
            self.operations: Any = SimpleNamespace(without_object=None)

    return SimpleNamespace(settings=settings, parts=[NoMachines()])


def test_a_server_waits_for_a_port_in_use_and_logs_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LISTEN_SECONDS", 0.05)
    with listener() as other, closing(SQLiteStore(tmp_path / "store.db")) as store:
        port = other.getsockname()[1]
        scaling = ScalingSettings(serves=True, permits_port=port)
        node = node_without_machines(tmp_path, scaling)
        messages: list[str] = []
        not_ours = threading.Event()
        loop = node_permits.store_permits(store, node, not_ours, alone=False, say=messages.append)
        with in_threads(loop):
            until(lambda: lease(store).get("leaseTransitions", 0) >= 2, "it is tried again")
            assert not_ours.is_set(), "who listens there is not to be asked"
            assert len(messages) == 1
            for part in (
                "WARNING: no permits, so machines cannot grow",
                f"port {port} of 127.0.0.1",
                "in use",
                "--permits-port",
            ):
                assert part in messages[0]
            other.close()
            until(lambda: len(messages) == 2, "the port is free")
            assert messages[1] == f"permit server at http://127.0.0.1:{port}/"
            assert not not_ours.is_set()
        assert "holderIdentity" not in lease(store)


def test_the_server_gets_the_time_limit_of_migrations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []
    monkeypatch.setattr(
        node_permits, "PermitServer", lambda services: limits.append(services.settings.migration_seconds)
    )
    scaling = ScalingSettings(serves=True, migration_seconds=7200.0)
    node = node_without_machines(tmp_path, scaling)
    with closing(SQLiteStore(tmp_path / "store.db")) as store:
        node_permits.store_permits(store, node, threading.Event(), alone=True, say=pytest.fail)
    assert limits == [7200.0]


@contextmanager
def given_by_a_node(folder: Path, scaling: ScalingSettings) -> Iterator[None]:
    """While inside, permits are given as a node plugin gives them."""
    with closing(SQLiteStore(folder / "store.db")) as store:
        node = node_without_machines(folder, scaling)
        messages = list[str]()
        loop = node_permits.store_permits(store, node, threading.Event(), alone=False, say=messages.append)
        with in_threads(loop):
            until(lambda: bool(messages), "permits are given")
            yield


def status_of(port: int, method: str) -> int:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request(method, "/", body=b"{}" if method == "POST" else None)
        return connection.getresponse().status


def test_people_of_this_host_see_the_ledgers_at_a_socket_and_strangers_get_no_permit(tmp_path: Path) -> None:
    (port,), path = free_ports(1), tmp_path / "node-permits.sock"
    scaling = ScalingSettings(serves=True, permits_port=port, permits_dump=path, permits_token_file=path, token=TOKEN)
    with given_by_a_node(tmp_path, scaling):
        until(path.exists, "the ledgers are shown")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        ledgers = json.loads(at_socket(path, "/").partition(b"\r\n\r\n")[2])
        assert ledgers["leaseValid"] is True
        assert b"devalloc_permit_requests" in at_socket(path, "/metrics")
        assert at_socket(path, "/", "POST").startswith(b"HTTP/1.1 405 ")
        assert status_of(port, "POST") == 401, "a client on loopback, as guests could be, has no rights"
    assert not path.exists()


@pytest.mark.parametrize(("own", "status"), [(True, 200), (False, 401)])
def test_the_ledger_port_needs_only_the_admins_own_token(tmp_path: Path, own: bool, status: int) -> None:
    """The admin's own token, which people can send, is wanted there too."""
    port, shown = free_ports(2)
    scaling = ScalingSettings(serves=True, permits_port=port, permits_dump=shown, token=TOKEN)
    with given_by_a_node(tmp_path, scaling if own else replace(scaling, permits_token_file=tmp_path / "token")):
        assert status_of(shown, "GET") == status
        assert status_of(port, "POST") == 401


def at_socket(path: Path, page: str, method: str = "GET") -> bytes:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(f"{method} {page} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        with client.makefile("rb") as answer:
            return answer.read()


def lease(store: SQLiteStore) -> dict[str, Any]:
    leases = [each for each in store.list("Lease").objects if each["metadata"]["name"] == "devalloc-permits-node-a"]
    return leases[0]["spec"] if leases else {}


def test_a_server_that_cannot_listen_leaves_its_lease_to_others(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with listener() as other, pytest.raises(OSError, match="in use"):  # noqa: SIM117
        with serving(path, node_of(Resources(1000, 2**30)), Settings(port=other.getsockname()[1], dump_port=None)):
            pass
    with closing(SQLiteStore(path)) as store:
        assert "holderIdentity" not in store.get("Lease", "default", "devalloc-permits")["spec"]


def test_permits_are_given_while_the_ledgers_cannot_be_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(doors, "DUMP_RETRY_SECONDS", 0.05)
    path = tmp_path / "store.db"
    with closing(SQLiteStore(path)) as store:
        running(store, machine("a"), None)
    with listener() as other:
        port = other.getsockname()[1]
        ten = node_of(Resources(10_000, 10 * 2**30))
        with serving(path, ten, Settings(port=0, dump_port=port)) as bench, closing(bench.client()) as client:
            assert bench.addresses.dump is None
            assert client.ask("a", 2, "2Gi")["permit"] == {"vCPUs": 2, "mem": "2Gi"}
            text = f"cannot serve the permit ledgers at 127.0.0.1 port {port} (--permits-dump-port)"
            assert caplog.text.count(text) == 1
            other.close()
            until(lambda: is_shown(port), "the ledgers are shown")
            assert client.ask("a", 3, "3Gi")["permit"] == {"vCPUs": 3, "mem": "3Gi"}


def is_shown(port: int) -> bool:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        try:
            connection.request("GET", "/")
        except ConnectionRefusedError:
            return False
        return connection.getresponse().status == 200


def test_waiting_for_a_lease_is_logged_once_with_its_holder(tmp_path: Path) -> None:
    path, messages = tmp_path / "store.db", list[str]()
    ten = node_of(Resources(10_000, 10 * 2**30))
    with closing(SQLiteStore(path)) as store:
        second = server.PermitServer(
            server.PermitServices(
                store=store,
                hosts=ten,
                settings=Settings(port=0, dump_port=None),
                leadership=permits_lease(store, new_holder(), seconds=1.0),
                waiting=messages.append,
            )
        )
        stop = threading.Event()
        with serving(path, ten, alone=False, lease_seconds=60.0) as first:
            thread = threading.Thread(target=second.run, args=(stop,))
            thread.start()
            until(lambda: messages, "it waits")
            until(lambda: second.lease.held_by is not None, "it looks again")
            holder = first.server.lease.holder
        try:
            until(lambda: second.lease.is_valid, "it has the lease")
        finally:
            stop.set()
            thread.join(60)
    assert messages == [
        f"not serving permits yet: waiting for the lease default/devalloc-permits, held by {holder}, until it is "
        "released or has not been renewed for 60 s"
    ]
