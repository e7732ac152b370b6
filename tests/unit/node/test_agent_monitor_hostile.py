"""A hostile guest: whatever it does, the agent pays little and waits no longer, and others are served (T28)."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
from collections.abc import Awaitable, Callable

import pytest
from websockets.exceptions import ConnectionClosed

from devalloc.scaling.resources import Resources
from devalloc_node.errors import NodeError
from tests.support.guest_monitor_peers import (
    ScriptedConnection,
    are_closed,
    connected,
    now,
    raw_server,
    scripted_monitor,
    watched,
)
from tests.support.virtual_time import run

GIB = 2**30
LITTLE = Resources(250, GIB)


def frame(opcode: int, payload: bytes, *, fin: bool = True) -> bytes:
    """As a server sends it: not masked."""
    size = len(payload)
    length = (
        bytes([size])
        if size < 126
        else b"\x7e" + size.to_bytes(2, "big")
        if size < 2**16
        else b"\x7f" + size.to_bytes(8, "big")
    )
    return bytes([opcode | 0x80 * fin]) + length + payload


async def shaken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, version: str = '{"version":1}') -> None:
    """The handshake, byte by byte, as a monitor does it."""
    request = await reader.readuntil(b"\r\n\r\n")
    key = next(line.split(b": ")[1] for line in request.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key"))
    accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                 b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n")  # fmt: skip
    writer.write(frame(1, version.encode()))
    await writer.drain()


Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(3_600)


async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    for byte in b"HTTP/1.1 101 Switching Protocols\r\n" + b"X: y\r\n" * 1_000:
        writer.write(bytes([byte]))
        await asyncio.sleep(0.5)


async def endless_headers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 101 Switching Protocols\r\n")
    while True:
        writer.write(b"X: " + b"y" * 1_000 + b"\r\n")
        await writer.drain()


async def elsewhere(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    port = writer.get_extra_info("sockname")[1]
    writer.write(f"HTTP/1.1 302 Found\r\nLocation: ws://127.0.0.1:{port}/stolen\r\nContent-Length: 0\r\n\r\n".encode())
    await writer.drain()


async def no_version(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await shaken(reader, writer, " ")


async def rubbish(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(os.urandom(5_000))
    await writer.drain()


HANDSHAKES = {
    "says nothing": (silent, 4_000, "no handshake within 4 s"),
    "sends a byte now and then": (trickle, 4_000, "no handshake within 4 s"),
    "sends headers without end": (endless_headers, 0, ""),
    "sends us elsewhere": (elsewhere, 0, "HTTP 302"),
    "chooses no version": (no_version, 0, "it sent an unreadable message"),
    "sends rubbish": (rubbish, 0, ""),
}


@pytest.mark.parametrize("name", HANDSHAKES)
def test_a_handshake_ends_in_time_and_is_tried_again_after_five_seconds(name: str) -> None:
    talk, ends, why = HANDSHAKES[name]
    connections = []

    async def counted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(now())
        await talk(reader, writer)

    async def main() -> None:
        async with raw_server(counted) as port, watched(port) as (monitor, heard):
            await asyncio.sleep(14.9)
            first = connections[0]
            assert [instant - first for instant in connections] == [0, 5_000, 10_000], "no redirect, no busy loop"
            assert heard.times("disconnected") == [ends, 5_000 + ends, 10_000 + ends]
            assert heard.times("connected") == []
            assert why in monitor.status().why
            assert await are_closed(port)
            with pytest.raises(NodeError):
                await monitor.downscale(LITTLE)

    run(main())


async def pings(write: Callable[[bytes], None]) -> None:
    write(frame(9, b"") * 1_000)


async def empty_fragments(write: Callable[[bytes], None]) -> None:
    write(frame(1, b"", fin=False) + frame(0, b"", fin=False) * 1_000)


async def unknown_types(write: Callable[[bytes], None]) -> None:
    write(frame(1, b'{"type":"Hint","id":3}') * 1_000)


async def unrequested_replies(write: Callable[[bytes], None]) -> None:
    write(frame(1, b'{"type":"DownscaleResult","id":4000,"Ok":true,"Status":""}') * 1_000)


async def requests_for_more(write: Callable[[bytes], None]) -> None:
    write(frame(1, b'{"type":"UpscaleRequest","id":3}') * 1_000)


async def fat_messages(write: Callable[[bytes], None]) -> None:
    write(frame(1, b'{"type":"InvalidMessage","id":3,"error":"' + b"x" * 30_000 + b'"}') * 5)


FLOODS = [pings, empty_fragments, unknown_types, unrequested_replies, requests_for_more, fat_messages]


@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_ends_the_connection_before_it_costs_anything(flood: Callable[..., Awaitable[None]]) -> None:
    taken: list[int] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await shaken(reader, writer)
        await asyncio.sleep(0.01)
        sent = 0

        def write(data: bytes) -> None:
            nonlocal sent
            sent += len(data)
            writer.write(data)

        try:
            while sent < 50_000_000:
                await flood(write)
                await writer.drain()
        finally:
            taken.append(len(await reader.read()))

    async def main() -> None:
        async with raw_server(talk) as port, watched(port) as (monitor, heard):
            await connected(monitor)
            await asyncio.sleep(1)
            assert not monitor.status().connected
            assert len(heard.times("wants memory")) <= 1
            await asyncio.sleep(3)
            assert len(heard.times("connected")) == 1, "and it has to wait for the next try as everybody"
            why = monitor.status().why
            assert "per second" in why or "ended" in why or "lost" in why, why

    run(main())
    assert taken == [] or taken[0] < 20_000, "it gets few answers to a flood"


def test_one_guest_that_floods_takes_nothing_from_the_others() -> None:
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await shaken(reader, writer)
        while True:
            writer.write(frame(9, b"") * 100)
            await writer.drain()

    async def honest(monitor: ScriptedConnection) -> None:
        while True:
            message = await monitor.next(kind="DownscaleRequest")
            await monitor.say({"type": "DownscaleResult", "Ok": True, "Status": "", "id": message["id"]})

    async def main() -> None:
        async with (
            raw_server(flood) as bad,
            scripted_monitor(honest) as good,
            watched(bad),
            watched(good) as (monitor, heard),
        ):
            await connected(monitor)
            for _ in range(12):
                assert (await monitor.downscale(LITTLE)).ok
                await asyncio.sleep(1)
            assert [what for _, what in heard.events] == ["connected"]

    run(main())


def test_a_guest_that_answers_many_steps_at_once_is_no_flood() -> None:
    async def honest(monitor: ScriptedConnection) -> None:
        while True:
            message = await monitor.next(kind="DownscaleRequest")
            await monitor.say({"type": "DownscaleResult", "Ok": True, "Status": "s" * 300, "id": message["id"]})

    async def main() -> None:
        async with scripted_monitor(honest) as port, watched(port) as (monitor, heard):
            await connected(monitor)
            for _ in range(1_000):
                assert (await monitor.downscale(LITTLE)).ok
            assert [what for _, what in heard.events] == ["connected"]

    run(main())


def test_a_guest_that_never_replies_holds_a_request_for_five_seconds_each_time() -> None:
    async def script(monitor: ScriptedConnection) -> None:
        await monitor.next(kind="nothing")

    async def main() -> None:
        async with scripted_monitor(script) as port, watched(port) as (monitor, _):
            await connected(monitor)
            for _ in range(5):
                began = now()
                with pytest.raises(NodeError):
                    await monitor.downscale(LITTLE)
                assert now() - began == 5_000

    run(main())


def test_a_guest_that_forges_replies_cannot_answer_what_is_not_asked_yet() -> None:
    async def script(monitor: ScriptedConnection) -> None:
        for id in range(2, 40, 2):  # all that the agent will mint
            await monitor.say({"type": "DownscaleResult", "Ok": True, "Status": "forged", "id": id})
        await monitor.healthy()

    async def main() -> None:
        async with scripted_monitor(script) as port, watched(port) as (monitor, _):
            await connected(monitor)
            await asyncio.sleep(1)
            with pytest.raises(NodeError):
                await monitor.downscale(LITTLE)

    run(main())


def test_a_guest_that_talks_and_does_not_read_is_given_up() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await shaken(reader, writer)
        writer.get_extra_info("socket").setsockopt(1, 8, 1024)  # SO_RCVBUF
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        while True:
            writer.write(frame(1, b'{"type":"Hint","id":3}') * 15)  # each is answered
            await asyncio.sleep(1)

    async def main() -> None:
        async with raw_server(talk) as port, watched(port) as (monitor, heard):
            await connected(monitor)
            await asyncio.sleep(40.9)
            assert heard.times("disconnected") == [40_000], "its health checks fail, for they are not read"
            with pytest.raises(NodeError):
                await monitor.downscale(LITTLE)

    run(main())


def test_a_half_open_connection_is_noticed_by_its_health() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await shaken(reader, writer)
        await asyncio.sleep(3_600)

    async def main() -> None:
        async with raw_server(talk) as port, watched(port) as (monitor, heard):
            await connected(monitor)
            await asyncio.sleep(40.9)
            # The goodbye has no answer either: the socket is closed a second later, and only then a new one is made.
            assert heard.times("disconnected") == [40_000]
            assert heard.times("connected") == [0]
            await asyncio.sleep(0.5)
            assert heard.times("connected") == [0, 41_000]

    run(main())


def test_a_monitor_that_closes_in_mid_message_is_gone_at_once() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await shaken(reader, writer)
        await asyncio.sleep(1)
        writer.write(frame(1, b'{"type":"UpscaleRequest","id":3}')[:9])

    async def main() -> None:
        async with raw_server(talk) as port, watched(port) as (monitor, heard):
            await connected(monitor)
            with pytest.raises(NodeError, match="ended"):
                await monitor.downscale(LITTLE)
            await asyncio.sleep(0.1)
            assert heard.times("disconnected") == [1_000]
            assert heard.times("wants") == []

    run(main())


def test_a_text_that_is_not_utf8_ends_the_connection_with_1007() -> None:
    codes: list[int] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await shaken(reader, writer)
        writer.write(frame(1, b'{"type":"\xff"}'))
        while True:
            first, second = await reader.readexactly(2)
            mask = await reader.readexactly(4)
            payload = bytes(byte ^ mask[i % 4] for i, byte in enumerate(await reader.readexactly(second & 0x7F)))
            if first == 0x88:
                codes.append(int.from_bytes(payload[:2]))
                return

    async def main() -> None:
        async with raw_server(talk) as port, watched(port) as (monitor, heard):
            await asyncio.sleep(1)
            assert "not UTF-8" in monitor.status().why
            assert len(heard.times("disconnected")) == 1

    run(main())
    assert codes == [1007]


def test_closing_again_and_again_after_five_seconds_is_no_busy_loop() -> None:
    async def script(monitor: ScriptedConnection) -> None:
        end = now() + 5_001
        while now() < end:
            check = await monitor.next()
            await monitor.say({"type": "HealthCheck", "id": check["id"]})
        raise ConnectionClosed(None, None)

    async def main() -> None:
        async with scripted_monitor(script) as port, watched(port) as (_, heard):
            await asyncio.sleep(60)
            assert 6 <= len(heard.times("connected")) <= 12

    run(main())
