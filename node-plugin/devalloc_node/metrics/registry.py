"""Prometheus metrics of the node plugin.

| metric | labels | what |
|---|---|---|
| ``devalloc_node_requests_total`` | method, result | requests answered; result as in ``RESULTS`` |
| ``devalloc_node_request_seconds`` | method | how long they took |
| ``devalloc_node_prepared_devices`` | binding | devices that prepared claims hold |
| ``devalloc_node_claims`` | state | claims with a record in the journal |
| ``devalloc_node_attached_devices`` | | devices in machines |
| ``devalloc_node_reconcile_removals_total`` | what | what reconciling removed because its owner was gone |
| ``devalloc_node_machines_ended_total`` | | machines that ended without a request |
| ``devalloc_node_publish_failures_total`` | | looks at the devices and publications that failed; tried again |
| ``devalloc_node_journal_quarantined`` | | records that cannot be read |
| ``devalloc_node_state_readable`` | | 0 when the gauges above could not be read |

Parts of the node show theirs beside these.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import secrets
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, Counter, Histogram, make_wsgi_app
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from devalloc.net.localhost import MISDIRECTED, MISDIRECTED_MESSAGE, is_local_host_header
from devalloc_node.errors import NodeError
from devalloc_node.net.unix_sockets import SocketIdentity, place_socket, remove_socket

log = logging.getLogger(__name__)

RESULTS = ("done", "denied", "failed", "unknown", "invalid", "error")
"""``invalid``: the request made no sense. ``error``: a bug, or a call that broke off."""
_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40)


@dataclass(frozen=True, slots=True)
class NodeState:
    """How things stand, in numbers."""

    prepared_devices: Mapping[str, int] = field(default_factory=dict)
    """By binding."""
    claims: Mapping[str, int] = field(default_factory=dict)
    """By state."""
    attached_devices: int = 0
    quarantined: int = 0
    of_parts: Sequence[Metric] = ()
    """What its parts show beside."""


class NodeMetrics:
    """The counters of one plugin, in a registry of their own. Safe for threads."""

    def __init__(self, state: Callable[[], NodeState] = NodeState) -> None:
        """``state`` is called for each scrape."""
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "devalloc_node_requests", "Requests answered.", ("method", "result"), registry=self.registry
        )
        self._seconds = Histogram(
            "devalloc_node_request_seconds",
            "How long requests took.",
            ("method",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._removals = Counter(
            "devalloc_node_reconcile_removals",
            "Objects that reconciling removed because they no longer had an owner.",
            ("what",),
            registry=self.registry,
        )
        self._ended = Counter(
            "devalloc_node_machines_ended",
            "Machines that ended without a request.",
            registry=self.registry,
        )
        self._publish_failures = Counter(
            "devalloc_node_publish_failures",
            "Failed observations of the devices and failed publications.",
            registry=self.registry,
        )
        self.registry.register(_StateCollector(state))

    def observe(self, method: str, result: str, seconds: float) -> None:
        """A request was answered. ``method`` is one that a service has, ``result`` one of RESULTS."""
        assert result in RESULTS, result
        self._requests.labels(method, result).inc()
        self._seconds.labels(method).observe(seconds)

    @contextmanager
    def timed(self, method: str) -> Iterator[TimedRequest]:
        """Observe what happens inside. Its result is ``error`` until it is said."""
        timed = TimedRequest()
        began = time.monotonic()
        try:
            yield timed
        finally:
            self.observe(method, timed.result, time.monotonic() - began)

    def removed(self, what: str, number: int = 1) -> None:
        """Reconciling removed something; ``what`` is a kind: claim, machine, file."""
        self._removals.labels(what).inc(number)

    def ended(self) -> None:
        """A machine ended without a request."""
        self._ended.inc()

    def publish_failed(self) -> None:
        """The node's devices could not be looked at or published; that is tried again."""
        self._publish_failures.inc()


@dataclass(slots=True)
class TimedRequest:
    """A request under way."""

    result: str = "error"


class _StateCollector(Collector):
    def __init__(self, state: Callable[[], NodeState]) -> None:
        self._state = state

    def describe(self) -> Iterable[Metric]:
        return []  # registering reads nothing

    def collect(self) -> Iterable[Metric]:
        try:
            state = self._state()
        except Exception as error:
            log.error("cannot read the state for the metrics: %s", error, exc_info=not isinstance(error, NodeError))
            yield gauge("devalloc_node_state_readable", "0 if the state could not be read.", 0)
            return
        yield gauge("devalloc_node_state_readable", "0 if the state could not be read.", 1)
        yield gauges(
            "devalloc_node_prepared_devices", "Devices that prepared claims hold.", "binding", state.prepared_devices
        )
        yield gauges("devalloc_node_claims", "Claims with a record in the journal.", "state", state.claims)
        yield gauge("devalloc_node_attached_devices", "Devices of claims in machines.", state.attached_devices)
        yield gauge("devalloc_node_journal_quarantined", "Journal records that are unreadable.", state.quarantined)
        yield from state.of_parts


def gauge(name: str, what: str, value: float) -> Metric:
    """Make a gauge without labels."""
    return GaugeMetricFamily(name, what, value=value)


def gauges(name: str, what: str, label: str, values: Mapping[str, int]) -> Metric:
    """Do as ``gauge``, for each value of a label."""
    family = GaugeMetricFamily(name, what, labels=[label])
    for key, value in sorted(values.items()):
        family.add_metric([key], value)
    return family


@contextmanager
def metrics_served(metrics: NodeMetrics, address: str) -> Iterator[str]:
    """While inside, answer scrapes at ``HOST:PORT`` (loopback only; port 0 for any) or ``unix:PATH`` (0600).

    Yields the address, with the port that it is. Raises ValueError for an address that is none or that others could
    reach, OSError where it cannot be bound, and of a socket what ``place_socket`` raises.
    """
    app = make_wsgi_app(metrics.registry)
    if address.startswith("unix:"):
        server: WSGIServer = _UnixServer((address.removeprefix("unix:"), 0), _Handler)
        shown = address
    else:
        host, port = _loopback(address)
        server = _server(host)((host, port), _Handler)
        shown = f"[{host}]:{server.server_port}" if ":" in host else f"{host}:{server.server_port}"
    server.set_app(app)
    thread = threading.Thread(target=server.serve_forever, name="devalloc-metrics", daemon=True)
    thread.start()
    try:
        yield shown
    finally:
        with suppress(OSError):  # wakes it up: by itself it looks every half second whether it is to end
            server.socket.shutdown(socket.SHUT_RDWR)
        server.shutdown()
        thread.join()
        server.server_close()


def check_address(address: str) -> None:
    """Raises ValueError for an address that is none or that others could reach."""
    if not address.startswith("unix:"):
        _loopback(address)


def _loopback(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"invalid address for metrics: {address!r}; write 127.0.0.1:9180, [::1]:9180 or unix:PATH")
    try:
        ip = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError as error:
        raise ValueError(f"invalid address for metrics: {address!r}: {error}") from None
    if not ip.is_loopback:
        raise ValueError(
            f"{address!r} is reachable from other hosts, but metrics have no authentication; use 127.0.0.1:{port} or "
            "unix:PATH, behind a proxy that authenticates"
        )
    return str(ip), int(port)


class _ThreadedServer(socketserver.ThreadingMixIn):
    daemon_threads = True


class _TcpServer(_ThreadedServer, WSGIServer):
    """The plain one resolves its own name when it starts, which may take long."""

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)
        name, self.server_port = self.server_address[:2]
        self.server_name = str(name)
        self.setup_environ()


def _server(host: str) -> type[WSGIServer]:
    if ":" not in host:
        return _TcpServer
    return type("_Inet6", (_TcpServer,), {"address_family": socket.AF_INET6})


class _UnixServer(_ThreadedServer, WSGIServer):
    address_family = socket.AF_UNIX
    _identity: SocketIdentity | None = None

    def server_bind(self) -> None:
        path = Path(str(self.server_address[0]))
        hidden = path.with_name(f".{secrets.token_hex(4)}")
        os.fchmod(self.socket.fileno(), 0o600)
        self.socket.bind(str(hidden))
        try:
            self.socket.listen(self.request_queue_size)
            self._identity = place_socket(hidden, path)
        finally:
            hidden.unlink(missing_ok=True)
        self.server_name, self.server_port = "localhost", 0
        self.setup_environ()

    def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
        connection, _ = self.socket.accept()
        return connection, ("scraper", 0)  # which has no address, and the handler looks for one

    def server_close(self) -> None:
        if self._identity is not None:  # it is closed too when it could not be bound
            remove_socket(Path(str(self.server_address[0])), self._identity)
        super().server_close()


class _Handler(WSGIRequestHandler):
    timeout = 10

    def parse_request(self) -> bool:
        """Whether there is a request to answer."""
        if not super().parse_request():
            return False
        if not is_local_host_header(self.headers.get("Host")):
            self.send_error(MISDIRECTED, MISDIRECTED_MESSAGE.decode())
            return False
        return True

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)
