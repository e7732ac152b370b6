"""The permit server's real decisions in this process, without sockets and threads."""

from __future__ import annotations

import copy

from devalloc.machines.permits.decide import PermitTransaction
from devalloc.machines.permits.ledger import Host, PermitLedgers
from devalloc.machines.permits.settings import Settings
from devalloc.machines.permits.sources import bytes_text, cpus_text
from devalloc.scaling.messages.permits import (
    LoadMetrics,
    PermitRequest,
    PodName,
    WireResources,
    decode_reply,
    decode_request,
    encode_request,
)
from devalloc.scaling.metrics import SystemMetrics
from devalloc.scaling.resources import Resources, ScalingBounds
from devalloc.scaling.versions import PluginVersion
from devalloc.store import Object
from tests.support.permit_bench import machine
from tests.support.permit_records import SOURCES, changes_of

NODE = "node-a"
NOW = "2026-01-01T00:00:00Z"


class InProcessPermits:
    """Answers in the words of the protocol. What is committed is there after a restart, and nothing else."""

    def __init__(self, total: Resources, unit: Resources) -> None:
        self.total, self._unit = total, unit
        self._objects: dict[str, Object] = {}
        self._version = 0
        self.restart()

    # What the node tells of its machines.

    def admit(self, name: str, bounds: ScalingBounds) -> None:
        """A machine begins on the node."""
        obj = machine(name, node=NODE, least=bounds.min, most=bounds.max)
        obj["metadata"]["creationTimestamp"] = NOW
        self._put(name, {**obj, "status": {}})
        self.observe(name, bounds.min, "run-0")

    def observe(self, name: str, has: Resources, run: str) -> None:
        """What the node wrote about the machine reaches the server."""
        obj = copy.deepcopy(self._objects[name])
        observed = {"cpus": cpus_text(has.cpu), "memory": bytes_text(has.memory)}
        obj["status"] |= {"phase": "Running", "observed": observed, "machineID": run}
        self._put(name, obj)

    def _put(self, name: str, obj: Object) -> None:
        self._version += 1
        obj["metadata"]["resourceVersion"] = str(self._version)
        self._objects[name] = obj
        self._book.put(obj)

    # The server.

    def restart(self) -> None:
        """Another server: it knows what is written down."""
        self._book = PermitLedgers(Settings(unit=self._unit), SOURCES)
        self._book.begin({NODE: Host(self.total)})
        for obj in self._objects.values():
            self._book.put(obj, starting=True)

    def answer(self, name: str, last: Resources | None, target: Resources, metrics: SystemMetrics | None) -> Resources:
        """One request, decided and committed. What a draft wants written is based on what is there."""
        request = PermitRequest(
            PluginVersion(7),
            PodName("default", name),
            WireResources(target.cpu, target.memory),
            WireResources(self._unit.cpu, self._unit.memory),
            None if last is None else WireResources(last.cpu, last.memory),
            None if metrics is None else LoadMetrics(metrics.load1),
        )
        permit = decode_reply(self.respond(encode_request(request))).permit
        return Resources(permit.cpu, permit.memory)

    def respond(self, body: bytes) -> bytes:
        """The same in bytes. Raises RequestError."""
        draft = PermitTransaction(self._book, "the-server", NOW)
        granted = draft.answer(decode_request(body))
        stored = []
        for change in changes_of(draft, self._book):
            obj = copy.deepcopy(self._objects[change.key.name])
            assert obj["metadata"]["resourceVersion"] == change.resource_version
            self._version += 1
            obj["metadata"]["resourceVersion"] = str(self._version)
            obj["status"] = change.status
            self._objects[change.key.name] = obj
            stored.append(obj)
        draft.adopt(stored)
        return granted.body

    # What is looked at.

    def permitted(self, name: str) -> Resources:
        """What the machine may take itself to have."""
        return self._book.nodes[NODE].machines["default", name].assumed

    def recorded(self, name: str) -> Resources | None:
        """What is written down that it may have; None where it has not asked in this run."""
        return self._book.nodes[NODE].machines["default", name].permit
