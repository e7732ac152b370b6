"""HTTP with small bodies, over the loopback: what is answered, and how little a stranger can have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from devalloc_machines.agent.http_client import fetch_bounded, new_session
from devalloc_node.errors import Failed, NodeError, Unknown
from devalloc_node.net.http import HttpLimits, HttpRequest, HttpResponse, HttpServer, http_request
from tests.support.node_errors import raises
from tests.support.virtual_time import run

HOST = "127.0.0.1"
GET = HttpRequest("GET", "/there", b"")
Ask = Callable[[HttpRequest], Awaitable[HttpResponse]]


async def echo(request: HttpRequest) -> HttpResponse:
    return HttpResponse(200, f"{request.method} {request.path} ".encode() + request.body)


async def served(use: Callable[[int], Awaitable[None]], server: HttpServer) -> None:
    _, port = await server.listen(HOST)
    try:
        await use(port)
    finally:
        await server.close()


async def raw(port: int, data: bytes, *, then: bytes = b"") -> bytes:
    """All that comes back for these bytes, until the other end closes."""
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(data)
    try:
        if then:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(then)
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()


def test_a_request_is_answered_with_its_body() -> None:
    async def use(port: int) -> None:
        for request in (GET, HttpRequest("GET", "/id", b"{}"), HttpRequest("PUT", "/x", b"y" * 16000)):
            response = await http_request(HOST, port, request, 5)
            assert (response.status, response.body) == (200, (await echo(request)).body)
        status = await raw(port, b"HEAD /there?a=b HTTP/1.1\r\nHost: x\r\n\r\n")
        assert status.startswith(b"HTTP/1.1 200")
        assert status.endswith(b"\r\n\r\n")

    run(served(use, HttpServer(echo)))


def test_what_peers_may_do_works() -> None:
    """Bodies in chunks, and a body that waits to be asked for."""

    async def use(port: int) -> None:
        chunks = b"POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
        assert (await raw(port, chunks)).endswith(b"POST /x abc")
        waits = b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"
        assert (await raw(port, waits, then=b"abc")).endswith(b"POST /x abc")

    run(served(use, HttpServer(echo)))


def test_what_is_no_request_or_too_large_is_refused() -> None:
    async def use(port: int) -> None:
        assert (await raw(port, b"hello\r\n\r\n")).startswith(b"HTTP/1.1 400")
        assert (await raw(port, b"GET / HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 400")
        assert (await raw(port, b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"x" * 99999)).startswith(b"HTTP/1.1 431")
        assert (await http_request(HOST, port, HttpRequest("POST", "/", b"x" * 11), 5)).status == 413
        assert (await http_request(HOST, port, HttpRequest("POST", "/", b"x" * 10), 5)).status == 200

    run(served(use, HttpServer(echo, HttpLimits(body=10))))


def test_a_server_that_breaks_says_so_and_goes_on() -> None:
    async def breaks(request: HttpRequest) -> HttpResponse:
        if request.path == "/there":
            raise ValueError("a secret")
        return HttpResponse(200)

    async def use(port: int) -> None:
        response = await http_request(HOST, port, GET, 5)
        assert (response.status, response.text) == (500, "internal error")
        assert (await http_request(HOST, port, HttpRequest("GET", "/", b""), 5)).status == 200

    run(served(use, HttpServer(breaks)))


def test_only_so_many_may_wait_and_the_one_that_is_idle_for_longest_goes() -> None:
    async def use(port: int) -> None:
        slow = [await asyncio.open_connection(HOST, port) for _ in range(2)]
        slow[0][1].write(b"GET / HT")
        await asyncio.sleep(0.05)
        assert (await raw(port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")).startswith(b"HTTP/1.1 200")
        for reader, writer in slow:
            with suppress(ConnectionError):
                assert await reader.read() == b""
            writer.transport.abort()
        assert (await http_request(HOST, port, GET, 5)).status == 200

    run(served(use, HttpServer(echo, HttpLimits(connections=2, seconds=0.3))))


def test_a_client_beyond_its_rate_waits() -> None:
    async def use(port: int) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert [(await http_request(HOST, port, GET, 5)).status for _ in range(4)] == [200] * 4
        assert loop.time() - began < 0.2
        assert [(await http_request(HOST, port, GET, 5)).status for _ in range(2)] == [200] * 2
        assert loop.time() - began >= 0.9

    run(served(use, HttpServer(echo, HttpLimits(requests_a_second=2, requests_burst=4))))


def test_an_address_that_floods_the_port_keeps_no_other_address_out() -> None:
    """With only a limit for all, it holds every connection, and all others are refused."""

    async def ask(port: int, source: str) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = await reader.read()
        writer.transport.abort()
        return answer

    async def use(port: int) -> None:
        held = [await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.3", 0)) for _ in range(40)]
        await asyncio.sleep(0.05)
        for _ in range(3):
            assert (await ask(port, "127.0.0.2")).startswith(b"HTTP/1.1 200")
        ended = [reader.at_eof() or reader.exception() is not None for reader, _ in held]
        assert all(ended[:37]), "the flood displaced its own connections"
        assert not ended[-1], "and has a share"
        for _, writer in held:
            writer.transport.abort()

    run(served(use, HttpServer(echo, HttpLimits(connections=4, seconds=5, requests_burst=100))))


@pytest.mark.parametrize("turns", range(8))
def test_a_client_that_connects_during_the_close_gets_an_end(turns: int) -> None:
    """Whichever turn of the event loop it is."""

    async def main() -> None:
        server = HttpServer(echo)
        _, port = await server.listen(HOST)
        await asyncio.sleep(0)
        asking = asyncio.create_task(http_request(HOST, port, GET, 5))
        for _ in range(turns):
            await asyncio.sleep(0)
        await server.close()
        (answer,) = await asyncio.gather(asking, return_exceptions=True)
        assert "within 5 s" not in str(answer)

    run(main())


def test_others_than_the_one_who_may_are_not_heard() -> None:
    async def use(port: int) -> None:
        with pytest.raises(NodeError):
            await http_request(HOST, port, GET, 5)

    run(served(use, HttpServer(echo, allows=lambda address: address == "127.0.0.2")))


def test_refused_clients_take_nothing_of_the_rate_of_others() -> None:
    """With one rate for all, the guest would wait 50 s for 100 strangers who knock."""

    async def use(port: int) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        for _ in range(100):
            assert await raw(port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n") == b"", "it is not even answered"
        who.add(HOST)
        assert (await http_request(HOST, port, GET, 5)).status == 200
        assert loop.time() - began < 1

    who: set[str] = set()
    run(
        served(
            use, HttpServer(echo, HttpLimits(requests_a_second=2, requests_burst=4), allows=lambda peer: peer in who)
        )
    )


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:1", 200), ("[::1]:1", 200), ("localhost", 200), ("LOCALHOST:80", 200), ("192.0.2.1", 200),
        ("attacker.example:1", 421), ("127.0.0.1.attacker.example", 421), ("localhost.example", 421), ("x", 421),
    ],
)  # fmt: skip
def test_a_server_for_people_of_this_host_refuses_other_host_headers(host: str, status: int) -> None:
    async def use(port: int) -> None:
        answer = await raw(port, f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        assert answer.startswith(f"HTTP/1.1 {status} ".encode())

    run(served(use, HttpServer(echo, for_people=True)))


async def against(answer: bytes | None, limits: HttpLimits, seconds: float) -> HttpResponse:
    """What the client makes of a server that sends these bytes and closes, or sends nothing and keeps quiet."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if answer is None:
            await reader.read()
        else:
            writer.write(answer)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, HOST, 0)
    async with server:
        return await http_request(HOST, server.sockets[0].getsockname()[1], GET, seconds, limits)


@pytest.mark.parametrize(
    ("answer", "error", "code"),
    [
        (None, Unknown, "PeerSilent"),
        (b"", Unknown, "PeerUnreadable"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc", Unknown, "PeerUnreadable"),
        (b"SSH-2.0\r\n\r\n", Unknown, "PeerUnreadable"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 11, Unknown, "PeerUnreadable"),
        (b"HTTP/1.1 200 OK\r\nA: " + b"x" * 2000, Unknown, "PeerUnreadable"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 3, Unknown, "PeerUnreadable"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 3000, Unknown, "PeerUnreadable"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1;a=%s\r\nx\r\n" % (b"b" * 900) * 9,
            Unknown,
            "PeerUnreadable",
        ),
    ],
)
def test_each_missing_reply_has_its_code(answer: bytes | None, error: type[NodeError], code: str) -> None:
    with pytest.raises(error) as raised:
        run(against(answer, HttpLimits(head=1000, body=10), 0.2 if answer is None else 5))
    assert raised.value.code == code


def test_informational_replies_are_passed_over() -> None:
    answer = b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 404 No\r\nContent-Length: 4\r\n\r\na\nb\x1b"
    response = run(against(answer, HttpLimits(), 5))
    assert (response.status, response.text) == (404, "a b")


def test_a_closed_port_is_unreachable() -> None:
    async def ask() -> None:
        server = HttpServer(echo)
        _, port = await server.listen(HOST)
        await server.close()
        await http_request(HOST, port, GET, 5)

    with raises(Failed, "PeerUnreachable"):
        run(ask())


def test_what_is_answered_in_no_http_stands_in_no_error() -> None:
    """A user who names an address in an object would read what another server answers there."""

    async def main() -> None:
        for answer in (b"SSH-2.0-secret\r\n\r\n", b"HTTP/1.1 200 OK\r\nsecret\r\n\r\n"):
            with pytest.raises(Unknown, match="does not answer in HTTP") as unknown:
                await against(answer, HttpLimits(), 5)
            assert "secret" not in unknown.value.message
            async with new_session() as session, serving(answer) as port:
                with pytest.raises(Unknown) as unknown:
                    await fetch_bounded(session, "GET", f"http://{HOST}:{port}/", 1000)
            assert "secret" not in unknown.value.message

    run(main())


@asynccontextmanager
async def serving(answer: bytes) -> AsyncIterator[int]:
    """A server that sends these bytes to everybody."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, HOST, 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
