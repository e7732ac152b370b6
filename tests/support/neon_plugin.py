"""Neon's scheduler plugin, written from its protocol alone: v5.0 by plain HTTP, for machines that are named by pods.

It knows the pods of its cluster. A pod must be on a node and have a machine of NeonVM as its owner. A decrease is
granted as it is, an increase as far as there is room; what is not granted in full is answered after a second.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from devalloc.api.quantity import NANO, Quantity
from tests.support.kube_api import Cluster
from tests.support.neon_installation import cpus, milli

Object = dict[str, Any]
WAIT_SECONDS = 1.0
MAX_BODY = 1024


class _RefusedError(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


@dataclass
class ScriptedPlugin:
    """One node's worth of room: thousandths of a CPU and bytes, for all machines."""

    cluster: Cluster
    room: tuple[int, int]
    requests: list[Object] = field(default_factory=list)
    approved: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By pod."""
    refused: list[str] = field(default_factory=list)

    def answer(self, body: bytes) -> Object:
        """The answer to a request. Raises _RefusedError."""
        try:
            message = json.loads(body[:MAX_BODY])
            pod = f"{message['pod']['namespace']}/{message['pod']['name']}"
            wanted, unit, last = (_read(message[name]) for name in ("resources", "computeUnit", "lastPermit"))
        except (ValueError, KeyError, TypeError):
            raise _RefusedError(400, "bad JSON") from None
        if message["protoVersion"] != 7:
            raise _RefusedError(400, f"protocol version mismatch: need v5.0 but got {message['protoVersion']}")
        if unit is None or 0 in unit or wanted is None:
            raise _RefusedError(400, "computeUnit fields must be non-zero")
        self._check_pod(message["pod"])
        self.requests.append(message)
        before = self.approved.get(pod) or last or (0, 0)
        others = [each for name, each in self.approved.items() if name != pod]
        left = [room - sum(each[part] for each in others) for part, room in enumerate(self.room)]
        granted = tuple(
            total if total <= had else max(had, min(total, free // step * step))
            for total, had, free, step in zip(wanted, before, left, unit, strict=True)
        )
        self.approved[pod] = (granted[0], granted[1])
        if granted != wanted:
            time.sleep(WAIT_SECONDS)
        return {"permit": {"vCPUs": cpus(granted[0]), "mem": f"{granted[1] // 2**20}Mi"}}

    def _check_pod(self, name: Object) -> None:
        path = f"/api/v1/namespaces/{name['namespace']}/pods/{name['name']}"
        answer = self.cluster.get(path)
        if not answer.ok or not answer.content["spec"].get("nodeName"):
            raise _RefusedError(404, "pod not found")
        owners = answer.content["metadata"].get("ownerReferences", [])
        if not any((each["apiVersion"], each["kind"]) == ("vm.neon.tech/v1", "VirtualMachine") for each in owners):
            raise _RefusedError(400, "pod is not associated with a VM")


def scheduler_reserved(machine: Object) -> tuple[int, int]:
    """What the scheduler of that plugin sets aside for a machine of NeonVM, once its pod has the machine's annotations:
    what it believes to have approved, or what the machine uses. A machine that wants more than that without a scaling
    unit has it divide by zero."""
    annotations, guest = machine["metadata"].get("annotations", {}), machine["spec"]["guest"]

    def read(name: str) -> tuple[int, int] | None:
        return _read(json.loads(annotations[name])) if name in annotations else None

    uses = (
        milli(guest["cpus"]["use"]),
        guest["memorySlots"]["use"] * Quantity.parse(guest["memorySlotSize"]).nano // NANO,
    )
    approved = read("internal.autoscaling.neon.tech/resources-approved") or uses
    requested = read("internal.autoscaling.neon.tech/resources-requested") or uses
    unit = read("autoscaling.neon.tech/scaling-unit") or (0, 0)
    assert all(wanted <= has or step > 0 for wanted, has, step in zip(requested, approved, unit, strict=True)), "panic"
    return approved


def _read(amounts: Object | None) -> tuple[int, int] | None:
    return None if amounts is None else (milli(amounts["vCPUs"]), Quantity.parse(amounts["mem"]).nano // NANO)


@contextmanager
def serving(plugin: ScriptedPlugin) -> Iterator[str]:
    """While inside, it answers at this URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            try:
                self._send(200, "application/json", json.dumps(plugin.answer(body)))
            except _RefusedError as refused:
                plugin.refused.append(f"{refused.text}: {body.decode()}")
                self._send(refused.status, "text/plain", refused.text)

        def do_GET(self) -> None:
            self._send(400, "text/plain", "must be POST")

        def _send(self, status: int, kind: str, text: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/"
        finally:
            server.shutdown()
            thread.join(60)
