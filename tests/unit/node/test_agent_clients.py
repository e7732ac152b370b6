"""The agent asks by HTTP: what it sends, what it makes of answers, and what a hostile guest cannot do to it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from devalloc.scaling.messages.permits import PodName
from devalloc.scaling.metrics import MAX_TEXT, GuestReport, SystemMetrics
from devalloc.scaling.resources import Resources
from devalloc_machines.agent.http_client import HttpMetrics, new_session
from devalloc_machines.agent.permit_client import HttpPermits, StaticEndpoint
from devalloc_node.errors import Denied, Failed, NodeError, Unknown
from tests.support.node_errors import raises
from tests.support.virtual_time import run

GIB = 2**30
UNIT = Resources(250, GIB)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
METRICS = "".join(
    f"# TYPE host_{name} gauge\nhost_{name} {value}\n"
    for name, value in {
        "load1": 0.3,
        "load5": 0.2,
        "memory_total_bytes": 4 * GIB,
        "memory_available_bytes": 3 * GIB,
        "memory_cached_bytes": GIB,
    }.items()
)


@asynccontextmanager
async def answering(handler: Handler) -> AsyncIterator[int]:
    """A server on loopback; its port."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def _ask_permit(handler: Handler) -> Resources:
    async with answering(handler) as port, new_session() as session:
        permits = HttpPermits(
            session, StaticEndpoint(f"http://127.0.0.1:{port}/", "secret" * 4), PodName("ns", "vm-1"), UNIT
        )
        return await permits.ask(UNIT, Resources(500, 2 * GIB), SystemMetrics(0.3))


async def _measured(handler: Handler) -> SystemMetrics:
    async with answering(handler) as port, new_session() as session:
        return await HttpMetrics(session, "127.0.0.1", system_port=port).system()


def _says(status: int = 200, body: bytes = b"", **headers: str) -> Handler:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=status, body=body, headers=headers)

    return handler


def test_a_request_is_as_the_newest_version_has_it() -> None:
    seen: list[object] = []

    async def handler(request: web.Request) -> web.Response:
        seen.append((request.method, request.headers["Authorization"], json.loads(await request.read())))
        return web.json_response({"permit": {"vCPUs": "500m", "mem": "2Gi"}})

    assert run(_ask_permit(handler)) == Resources(500, 2 * GIB)
    assert seen == [
        (
            "POST",
            "Bearer secretsecretsecretsecret",
            {
                "protoVersion": 7,
                "pod": {"namespace": "ns", "name": "vm-1"},
                "computeUnit": {"vCPUs": "250m", "mem": "1Gi"},
                "resources": {"vCPUs": "500m", "mem": "2Gi"},
                "lastPermit": {"vCPUs": "250m", "mem": "1Gi"},
                "metrics": {"loadAvg1M": 0.3},
            },
        )
    ]


@pytest.mark.parametrize(
    ("handler", "kind", "code", "words"),
    [
        (_says(404, b"pod not found"), Denied, "PermitRefused", "404: pod not found"),
        (_says(400, b"bad JSON\x1b[2J" + b"x" * 500), Denied, "PermitRefused", "400: bad JSON [2J"),
        (_says(503, b"later"), Failed, "PermitFailed", "503: later"),
        (_says(200, b"{"), Failed, "PermitFailed", "unreadable answer"),
        (_says(200, b'{"permit": {"vCPUs": -1, "mem": 1}}'), Failed, "PermitFailed", "unreadable answer"),
        (_says(200, b" " * 2000), Failed, "AnswerTooLong", "more than 1024 bytes"),
        (_says(302, Location="http://169.254.169.254/"), Denied, "PermitRefused", "302"),
        (
            _says(200, b'{"permit": {"vCPUs": 1, "mem": "1Gi"}, "migrate": {}}'),
            Denied,
            "MachineMigrating",
            "ns/vm-1 is about to be migrated",
        ),
    ],
)
def test_each_answer_that_is_no_permit_has_its_code(
    handler: Handler, kind: type[NodeError], code: str, words: str
) -> None:
    with pytest.raises(kind) as error:
        run(_ask_permit(handler))
    assert error.value.code == code
    assert words in error.value.message
    assert error.value.retryable
    assert error.value.message.isprintable()


def test_a_server_with_another_identity_gets_no_request() -> None:
    seen: list[object] = []

    async def stranger(request: web.Request) -> web.Response:
        seen.append(request)
        return web.json_response({"permit": {"vCPUs": 9, "mem": "9Gi"}})

    async def ask() -> None:
        async with answering(stranger) as port, new_session() as session:
            pod = PodName("ns", "vm")
            permits = HttpPermits(
                session, StaticEndpoint(f"http://127.0.0.1:{port}/", "secret" * 4), pod, UNIT, lambda: False
            )
            await permits.ask(None, UNIT, None)

    with pytest.raises(Failed, match="does not listen at") as failed:
        run(ask())
    assert (failed.value.code, failed.value.retryable, seen) == ("Unreachable", True, [])


def test_a_closed_port_is_a_failure_and_an_answer_cut_off_is_unknown() -> None:
    async def ask_closed_port() -> None:
        async with answering(_says()) as port:
            pass
        async with new_session() as session:
            await HttpPermits(session, StaticEndpoint(f"http://127.0.0.1:{port}/"), PodName("ns", "vm"), UNIT).ask(
                None, UNIT, None
            )

    async def cut(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    with raises(Failed, "Unreachable", match="cannot be reached"):
        run(ask_closed_port())
    with raises(Unknown, "NoAnswer"):
        run(_ask_permit(cut))


def test_metrics_of_a_guest_are_read() -> None:
    assert run(_measured(_says(200, METRICS.encode()))) == SystemMetrics(
        0.3, 0.2, GIB + 100 * 2**20, GIB, GuestReport(None, 4 * GIB)
    )


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (_says(200, b""), "host_load1 is missing"),
        (_says(500, METRICS.encode()), "answers 500"),
        (_says(301, METRICS.encode(), Location="http://127.0.0.1:10298/"), "answers 301"),
        (_says(200, METRICS.encode() + b"#" * MAX_TEXT), "more than 1048576 bytes"),
        # Nothing is unpacked, so that a few bytes cannot become many.
        (_says(200, b"\x1f\x8b\x08\x00" + b"\x00" * 100, **{"Content-Encoding": "gzip"}), "not UTF-8"),
    ],
)
def test_what_a_guest_sends_instead_fails(handler: Handler, words: str) -> None:
    with raises(Failed, "MetricsUnavailable", match=words):
        run(_measured(handler))
