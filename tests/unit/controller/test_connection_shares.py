"""One address that floods the port keeps no other from it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from devalloc.controller.certificate import self_signed
from devalloc.net.connection_shares import source_of as source
from devalloc.net.http_server import HttpResponse, HttpServer, ServerLimits

MOST = 16
STRANGER, FRIEND = "127.0.0.9", "127.0.0.2"
Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def answer(request: web.BaseRequest) -> HttpResponse:
    if request.path == "/slow":
        await asyncio.sleep(30)
    return HttpResponse(200, b"ok")


class Port:
    """A server, and connections to it from addresses of this host."""

    def __init__(self, door: HttpServer, at: tuple[str, int]) -> None:
        self.door, self.at = door, at
        self._lines: list[Line] = []

    async def connect(self, address: str, count: int = 1) -> list[Line]:
        lines = [await asyncio.open_connection(*self.at, local_addr=(address, 0)) for _ in range(count)]
        self._lines += lines
        await asyncio.sleep(0.05)
        return lines

    async def ask(self, line: Line, path: str = "/") -> bytes:
        """The first line of the answer; empty where the connection is cut."""
        line[1].write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        try:
            head = await asyncio.wait_for(line[0].readuntil(b"\r\n\r\n"), 5)
            await line[0].readexactly(2)
        except (OSError, asyncio.IncompleteReadError):
            return b""
        return head.partition(b"\r\n")[0]

    async def still_open(self, lines: list[Line]) -> int:
        """How many of them the server has not cut."""
        await asyncio.sleep(0.1)
        return sum(not line[0].at_eof() and line[0].exception() is None for line in lines)

    def close(self) -> None:
        for _, writer in self._lines:
            writer.close()


@asynccontextmanager
async def port(most: int = MOST, tls: ssl.SSLContext | None = None) -> AsyncIterator[Port]:
    door = HttpServer(answer, ServerLimits(connections=most, request_seconds=20))
    made = Port(door, await door.listen("127.0.0.1", 0, tls))
    try:
        yield made
    finally:
        made.close()
        await door.close()


OK = b"HTTP/1.1 200 OK"


def test_a_flood_displaces_only_its_own_connections() -> None:
    async def run() -> None:
        async with port() as at:
            (early,) = await at.connect(FRIEND)
            assert await at.ask(early) == OK
            flood = await at.connect(STRANGER, 3 * MOST)
            assert await at.ask(early) == OK, "it was idle for longest, and stays"
            (late,) = await at.connect(FRIEND)
            assert await at.ask(late) == OK, "there is room for a new one"
            assert await at.still_open(flood) == MOST * 3 // 4

    asyncio.run(run())


def test_connections_that_never_finish_a_tls_handshake_do_not_keep_others_out() -> None:
    async def run() -> None:
        client = ssl.create_default_context()
        client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
        async with port(tls=self_signed(["localhost"])) as at:
            for _ in range(4):
                await at.connect(STRANGER, MOST)
                reader, writer = await asyncio.open_connection(*at.at, ssl=client, local_addr=(FRIEND, 0))
                assert await at.ask((reader, writer)) == OK
                writer.close()

    asyncio.run(run())


def test_requests_that_are_answered_slowly_leave_others_a_quarter() -> None:
    async def run() -> None:
        async with port() as at:
            slow = await at.connect(STRANGER, MOST)
            for line in slow:
                line[1].write(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
            await asyncio.sleep(0.1)
            lines = await at.connect(FRIEND, MOST // 4)
            assert [await at.ask(line) for line in lines] == [OK] * (MOST // 4)

    asyncio.run(run())


def test_the_address_with_most_connections_makes_room_for_a_new_one() -> None:
    async def run() -> None:
        async with port() as at:
            few = [(await at.connect(f"127.0.1.{number}"))[0] for number in range(6)]
            many = await at.connect(STRANGER, MOST - 6)
            (new,) = await at.connect(FRIEND)
            assert await at.ask(new) == OK
            assert await at.still_open(few) == 6
            assert await at.still_open(many) == MOST - 7

    asyncio.run(run())


def test_one_address_alone_has_three_quarters_and_its_oldest_idle_one_goes() -> None:
    async def run() -> None:
        async with port() as at:
            first, *rest = await at.connect(FRIEND, MOST * 3 // 4)
            assert await at.ask(first) == OK
            (new,) = await at.connect(FRIEND)
            assert await at.ask(new) == OK
            assert await at.still_open([first, *rest[1:]]) == MOST * 3 // 4 - 1
            assert await at.still_open([rest[0]]) == 0

    asyncio.run(run())


@pytest.mark.parametrize("most", [1, 2])
def test_a_small_port_has_room_for_one(most: int) -> None:
    async def run() -> None:
        async with port(most) as at:
            for _ in range(3):
                (line,) = await at.connect(FRIEND)
                assert await at.ask(line) == OK

    asyncio.run(run())


def test_the_addresses_of_one_host_count_as_one() -> None:
    assert source("2001:db8:1:2::5") == source("2001:db8:1:2:ffff::1") != source("2001:db8:1:3::5")
    assert source("::ffff:10.0.0.1") == source("10.0.0.1") != source("10.0.0.2")
    assert source("") == ""


def test_probes_at_a_port_of_their_own_are_answered_while_the_other_is_full() -> None:
    async def run() -> None:
        async with port() as at, port(4) as probes:
            await at.connect(STRANGER, MOST)
            (line,) = await probes.connect(STRANGER)
            assert await probes.ask(line) == OK, "it has connections of its own"

    asyncio.run(run())
