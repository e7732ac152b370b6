"""A server of permits with machines in a real store, and clients that speak HTTP byte by byte."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from devalloc.api import meta
from devalloc.machines.permits import Host, Hosts, PermitServer, Settings
from devalloc.machines.permits.doors import ServerAddresses
from devalloc.machines.permits.hosts import FrozenHosts
from devalloc.machines.permits.leadership import new_holder, permits_lease
from devalloc.machines.permits.server import PermitServices
from devalloc.machines.permits.sources import bytes_text, cpus_text
from devalloc.scaling.resources import Resources
from devalloc.store import Conflict, Object, Store
from devalloc.store.sqlite import SQLiteStore
from devalloc_neon.billing import billing

GIB = 2**30
KIND = "VirtualMachine"
NODE = "node-a"


def amounts(milli: int, gib: float) -> Resources:
    """Thousandths of a CPU, and GiB."""
    return Resources(milli, int(gib * GIB))


def machine(
    name: str,
    *,
    node: str = "node-a",
    least: Resources = Resources(250, GIB),  # noqa: B008 - frozen
    most: Resources = Resources(8000, 16 * GIB),  # noqa: B008
    labels: Mapping[str, str] = {"autoscaling.neon.tech/enabled": "true"},
    annotations: Mapping[str, str] | None = None,
    slot: int | None = None,
    **spec: Any,
) -> Object:
    """A VirtualMachine as a user writes it."""
    memory = {"min": bytes_text(least.memory), "max": bytes_text(most.memory)}
    if slot is not None:
        memory |= {"method": "dimm", "slotSize": bytes_text(slot)}
    return {
        "apiVersion": meta.DEVALLOC,
        "kind": KIND,
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": dict(labels),
            "annotations": dict(annotations or {}),
        },
        "spec": {
            "nodeName": node,
            "cpu": {"min": cpus_text(least.cpu), "max": cpus_text(most.cpu)},
            "memory": memory,
            "start": {"kernel": "/boot/vmlinuz"},
            **spec,
        },
    }


def write_status_part(store: Store, name: str, **status: Any) -> Object:
    """Write parts of a machine's status, as its node does; None removes a part."""
    while True:
        obj = store.get(KIND, "default", name)
        merged = {k: v for k, v in {**(obj.get("status") or {}), **status}.items() if v is not None}
        try:
            return store.replace_status({**obj, "status": merged})
        except Conflict:  # the server wrote a permit meanwhile
            continue


def running(store: Store, obj: Object, use: Resources | None = None) -> None:
    """A machine that runs, and uses what it was started with or more."""
    name = store.create(obj)["metadata"]["name"]
    spec = obj["spec"]
    observed = {"cpus": spec["cpu"]["min"], "memory": spec["memory"]["min"]}
    if use is not None:
        observed = {"cpus": cpus_text(use.cpu), "memory": bytes_text(use.memory)}
    write_status_part(store, name, phase="Running", machineID="run-1", observed=observed)


def permit_of(store: Store, name: str) -> dict[str, Any] | None:
    """What is written down that a machine may have."""
    permit: dict[str, Any] | None = store.get(KIND, "default", name).get("status", {}).get("permitted")
    return permit


@dataclass
class Client:
    """One agent: a connection that is kept."""

    address: tuple[str, int]
    version: int = 7
    unit: Any = field(default_factory=lambda: {"vCPUs": "250m", "mem": "1Gi"})

    def __post_init__(self) -> None:
        self._connection = http.client.HTTPConnection(*self.address, timeout=30)

    def post(self, body: bytes, **headers: str) -> tuple[int, str, bytes]:
        """Status, type and body of the answer."""
        self._connection.request("POST", "/", body, headers)
        answer = self._connection.getresponse()
        return answer.status, answer.headers.get("Content-Type", ""), answer.read()

    def message(self, name: str, cpu: Any, memory: Any, last: Any = None, load: float | None = 0.5) -> dict[str, Any]:
        """A request of this client's version."""
        message: dict[str, Any] = {
            "protoVersion": self.version,
            "pod": {"namespace": "default", "name": name},
            "resources": {"vCPUs": cpu, "mem": memory},
            "lastPermit": last,
            "metrics": None if load is None else {"loadAvg1M": load},
        }
        if self.version >= 6:
            message["computeUnit"] = self.unit
        if load is not None and self.version < 7:
            message["metrics"] |= {"loadAvg5M": load, "memoryUsageBytes": 1000.0}
        return message

    def ask(self, name: str, cpu: Any, memory: Any, last: Any = None, load: float | None = 0.5) -> Any:
        """What a good request is answered. Raises AssertionError for any other status than 200."""
        status, kind, body = self.post(json.dumps(self.message(name, cpu, memory, last, load)).encode())
        assert (status, kind) == (200, "application/json"), body
        return json.loads(body)

    def close(self) -> None:
        self._connection.close()


@dataclass
class PermitBench:
    """A server that runs, and its store."""

    store: SQLiteStore
    server: PermitServer
    addresses: ServerAddresses

    def client(self, version: int = 7) -> Client:
        return Client(self.addresses.requests, version)

    def get(self, path: str) -> tuple[int, str, bytes]:
        """From the port for people."""
        assert self.addresses.dump is not None
        with closing(http.client.HTTPConnection(*self.addresses.dump, timeout=30)) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.headers.get("Content-Type", ""), answer.read()

    def state(self, node: str = "node-a") -> Any:
        """The ledger of a node, as the server shows it."""
        return json.loads(self.get("/")[2])["nodes"][node]


def node_of(limit: Resources, name: str = NODE) -> Hosts:
    """One node."""
    return lambda: {name: Host(limit)}


@contextmanager
def serving(
    path: Path,
    hosts: Hosts,
    settings: Settings | None = None,
    *,
    store: Store | None = None,
    still: FrozenHosts | None = None,
    alone: bool = True,
    lease_seconds: float = 15.0,
    **more: Any,
) -> Iterator[PermitBench]:
    """A server in a thread, on a store at ``path``; it is stopped and its store closed in the end. ``more``: as
    ``PermitServices`` has it."""
    listening, ports = threading.Event(), []

    def ready(addresses: ServerAddresses) -> None:
        ports.append(addresses)
        listening.set()

    stop, failed = threading.Event(), []
    with closing(SQLiteStore(path)) as own:
        there = store or own
        server = PermitServer(
            PermitServices(
                store=there,
                hosts=hosts,
                frozen=still,
                settings=settings or Settings(port=0, dump_port=0),
                leadership=permits_lease(
                    there, new_holder(), node=more.get("node"), seconds=lease_seconds, alone=alone
                ),
                ready=ready,
                **{"accounts": billing(there), **more},
            )
        )

        def run() -> None:
            try:
                server.run(stop)
            except BaseException as error:
                failed.append(error)
                listening.set()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            assert listening.wait(60), "the server does not listen"
            if failed:
                raise failed[0]
            yield PermitBench(own, server, ports[-1])
        finally:
            stop.set()
            thread.join(60)
            assert not thread.is_alive()
        if failed:
            raise failed[0]
