"""The guest monitor as agents meet it: over real sockets, in a guest of files, on a clock that jumps."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidMessage, InvalidStatus

from devalloc.scaling.resources import Resources
from devalloc_machines.guest import memory
from devalloc_machines.guest.memory import threshold
from devalloc_machines.guest.monitor import GuestMonitor
from devalloc_machines.guest.settings import settings_from
from tests.support.fake_guest_tree import GIB, MIB, GuestTree
from tests.support.guest_monitor_peers import connected, now, watched
from tests.support.virtual_time import run


class Running:
    """A monitor that runs, and its ports."""

    def __init__(self, monitor: GuestMonitor, port: int, metrics: int) -> None:
        self.monitor, self.port, self.metrics = monitor, port, metrics

    @property
    def uri(self) -> str:
        return f"ws://127.0.0.1:{self.port}/monitor"


@asynccontextmanager
async def running(guest: GuestTree, **given: str) -> AsyncIterator[Running]:
    """A monitor in that guest."""
    here = {"listen": "127.0.0.1:0", "metrics_listen": "127.0.0.1:0", "root": str(guest.folder)}
    monitor = GuestMonitor(settings_from(here | given), guest)
    ports: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(monitor.run(lambda port, metrics: ports.set_result((port, metrics or 0))))
    try:
        yield Running(monitor, *await ports)
    finally:
        task.cancel()
        await asyncio.wait([task])


@asynccontextmanager
async def agent(uri: str, offer: str = '{"min":1,"max":1}') -> AsyncIterator[ClientConnection]:
    """An agent of another make that has shaken hands."""
    async with connect(uri, ping_interval=None, compression=None, proxy=None, close_timeout=0.5) as socket:
        await socket.send(offer)
        assert json.loads(await socket.recv()) == {"version": 1}
        yield socket


async def next_message(socket: ClientConnection) -> Any:
    return json.loads(await socket.recv())


async def drained(socket: ClientConnection) -> None:
    """Read until the connection ends. Raises ConnectionClosed."""
    while True:
        await socket.recv()


async def flooding(socket: ClientConnection, sends: str) -> None:
    """Send far too much, until the connection ends. Raises ConnectionClosed."""
    padding = " " * (30_000 if sends == "bytes" else 0)
    for number in range(20_000):
        if sends == "pings":
            await socket.ping(str(number))
        else:
            await socket.send('{"content":{},"type":"Resize","id":2}' + padding)
        await asyncio.sleep(0)


def downscale(memory: int, id: int, cpu: float = 0.25) -> str:
    return json.dumps({"content": {"target": {"cpu": cpu, "mem": memory}}, "type": "DownscaleRequest", "id": id})


def test_a_whole_conversation_is_as_the_protocol_has_it(tmp_path: Path) -> None:
    guest = GuestTree(tmp_path, memory=4 * GIB, used=100 * MIB)

    async def main() -> None:
        async with running(guest) as here, agent(here.uri) as socket:
            await asyncio.sleep(1)
            await socket.send('{"content":{},"type":"HealthCheck","id":2}')
            assert await socket.recv() == '{"type":"HealthCheck","id":2}'
            await socket.send('{"content":{"target":{"cpu":0.25,"mem":1073741824}},"type":"DownscaleRequest","id":4}')
            status = "the monitor requests more at 785 MiB in use"
            assert await socket.recv() == f'{{"type":"DownscaleResult","Ok":true,"Status":"{status}","id":4}}'
            guest.set_memory(GIB, 800 * MIB)
            began = now()
            assert await socket.recv() == '{"type":"UpscaleRequest","id":3}'
            assert await socket.recv() == '{"type":"UpscaleRequest","id":5}'
            assert now() - began < 1_600
            await socket.send('{"content":{"granted":{"cpu":1,"mem":2147483648}},"type":"UpscaleNotification","id":6}')
            assert await socket.recv() == '{"type":"UpscaleConfirmation","id":6}'
            await socket.send(downscale(GIB, 8))
            denied = await next_message(socket)
            assert (denied["type"], denied["Ok"], denied["id"]) == ("DownscaleResult", False, 8)
            assert "are in use" in denied["Status"]
            await socket.send('{"content":{"error":"?"},"type":"InvalidMessage","id":99}')
            await socket.send('{"content":{},"type":"HealthCheck","id":10}')
            assert await next_message(socket) == {"type": "HealthCheck", "id": 10}, "an error has no answer"

    run(main())


def test_both_ends_of_devalloc_understand_each_other(tmp_path: Path) -> None:
    guest = GuestTree(tmp_path, memory=4 * GIB, used=GIB)

    async def main() -> None:
        async with running(guest) as here, watched(here.port) as (connection, heard):
            await connected(connection)
            await asyncio.sleep(1)
            denied = await connection.downscale(Resources(250, GIB))
            assert not denied.ok
            assert (await connection.downscale(Resources(250, 2 * GIB))).ok
            guest.set_memory(2 * GIB, 1800 * MIB)
            await asyncio.sleep(3)
            assert len(heard.times("wants memory")) == 3
            await connection.upscale(Resources(250, 4 * GIB))
            assert here.monitor.guard.threshold == threshold(4 * GIB)
            for memory in range(4 * GIB, 3 * GIB, -5 * MIB):  # as fast as it goes: hundreds of steps
                assert (await connection.downscale(Resources(250, memory))).ok
            await asyncio.sleep(6)
            assert [what for _, what in heard.events] == ["connected", *["wants memory"] * 3]

    run(main())


def test_a_new_agent_finds_the_guest_as_it_is_not_as_an_earlier_one_left_it(tmp_path: Path) -> None:
    guest = GuestTree(tmp_path, memory=4 * GIB, used=100 * MIB)

    async def main() -> None:
        async with running(guest) as here:
            async with agent(here.uri) as socket:
                await asyncio.sleep(1)
                await socket.send(downscale(GIB, 4))
                assert (await next_message(socket))["Ok"]
                assert here.monitor.guard.threshold == threshold(GIB)
            async with agent(here.uri):  # nothing was unplugged: the first agent had ended before
                assert here.monitor.guard.threshold == threshold(4 * GIB)

    run(main())


def test_a_stale_measure_is_an_internal_error_and_the_connection_stays(tmp_path: Path) -> None:
    guest = GuestTree(tmp_path, memory=4 * GIB, used=GIB)

    async def main() -> None:
        async with running(guest) as here, agent(here.uri) as socket:
            await asyncio.sleep(1)
            guest.put("proc/meminfo", "")
            await asyncio.sleep(6)
            await socket.send(downscale(3 * GIB, 4))
            failed = await next_message(socket)
            assert (failed["type"], failed["id"]) == ("InternalError", 4)
            assert "last measured" in failed["error"]
            guest.set_memory(4 * GIB, GIB)
            await asyncio.sleep(1)
            await socket.send(downscale(3 * GIB, 6))
            assert (await next_message(socket))["Ok"] is True

    run(main())


@pytest.mark.parametrize(
    ("offer", "why"),
    [
        ('{"min":2,"max":3}', "versions 2 to 3 were offered; this monitor supports 1"),
        ('{"min":0,"max":0}', "versions 0 to 0 were offered; this monitor supports 1"),
        ('{"min":3,"max":1}', "versions 3 to 1 were offered; this monitor supports 1"),
    ],
)
def test_versions_that_are_not_shared_are_refused_and_the_connection_closed(
    tmp_path: Path, offer: str, why: str
) -> None:
    async def main() -> None:
        async with running(GuestTree(tmp_path)) as here, connect(here.uri, proxy=None, ping_interval=None) as socket:
            await socket.send(offer)
            assert await next_message(socket) == {"error": why}
            with pytest.raises(ConnectionClosed):
                await socket.recv()

    run(main())


def test_the_newest_connection_wins_and_the_old_one_is_dropped(tmp_path: Path) -> None:
    guest = GuestTree(tmp_path, memory=GIB, used=900 * MIB)

    async def main() -> None:
        async with running(guest) as here, agent(here.uri) as old, agent(here.uri) as new:
            with pytest.raises(ConnectionClosed) as closed:
                await drained(old)
            assert closed.value.rcvd is not None
            assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (
                1000, "a newer connection took this one's place",
            )  # fmt: skip
            assert await next_message(new) == {"type": "UpscaleRequest", "id": 3}, "ids begin anew"
            await new.close()
            async with agent(here.uri) as third:
                assert (await next_message(third))["type"] == "UpscaleRequest"

    run(main())


def test_a_stranger_that_says_nothing_does_not_push_the_agent_out_and_goes_after_four_seconds(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(GuestTree(tmp_path)) as here, agent(here.uri) as socket:
            strangers = [await asyncio.open_connection("127.0.0.1", here.port) for _ in range(20)]
            strangers[-1][1].write(b"GET /monitor HTTP/1.1\r\nHost: x\r\n")
            began = now()
            ends = [asyncio.create_task(reader.read()) for reader, _ in strangers]
            await asyncio.sleep(1)
            assert sum(end.done() for end in ends) == 12, "the oldest had to go: eight may be about to say something"
            await asyncio.gather(*ends, return_exceptions=True)
            assert now() - began in range(4_000, 5_100)
            await socket.send('{"content":{},"type":"HealthCheck","id":2}')
            assert await next_message(socket) == {"type": "HealthCheck", "id": 2}
            for _, writer in strangers:
                writer.close()

    run(main())


def test_an_agent_that_is_slow_to_offer_versions_is_closed_after_four_seconds(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(GuestTree(tmp_path)) as here, connect(here.uri, proxy=None, ping_interval=None) as socket:
            began = now()
            with pytest.raises(ConnectionClosed, match="no handshake within 4 s"):
                await socket.recv()
            assert now() - began == 4_000

    run(main())


HOSTILE: list[tuple[str | bytes, int]] = [
    ("gibberish", 1011),
    ('{"content":null,"type":"HealthCheck","id":2}', 1011),
    ('{"type":"HealthCheck","id":2}', 1011),
    ('{"content":{"target":{"cpu":-1,"mem":1}},"type":"DownscaleRequest","id":4}', 1011),
    ('{"content":{"target":{"cpu":NaN,"mem":1}},"type":"DownscaleRequest","id":4}', 1011),
    ('{"content":{"granted":{"cpu":1,"mem":-1}},"type":"UpscaleNotification","id":4}', 1011),
    ('{"content":{"granted":{"cpu":1,"mem":1e400}},"type":"UpscaleNotification","id":4}', 1011),
    ('{"content":{},"type":"HealthCheck","id":9007199254740992}', 1011),
    ("[" * 30_000, 1011),
    (b"\x00", 1003),
    ("x" * 33_000, 1009),
]


def test_what_cannot_be_understood_ends_the_connection_and_never_the_monitor(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(GuestTree(tmp_path)) as here:
            for text, code in HOSTILE:
                async with agent(here.uri) as socket:
                    await socket.send(text)
                    with pytest.raises(ConnectionClosed) as closed:
                        await socket.recv()
                    assert closed.value.rcvd is not None
                    assert closed.value.rcvd.code == code, text[:60]
            async with agent(here.uri) as socket:
                await socket.send('{"content":{},"type":"Resize","id":2}')
                invalid = {"type": "InvalidMessage", "error": "unknown message type 'Resize'", "id": 2}
                assert await next_message(socket) == invalid, "a type of another version is no offence"
                await socket.send('{"content":{},"type":"HealthCheck","id":2}')
                assert await next_message(socket) == {"type": "HealthCheck", "id": 2}

    run(main())


def test_floods_end_the_connection_and_the_next_agent_is_served(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(GuestTree(tmp_path)) as here:
            for sends in ("pings", "messages", "bytes"):
                async with agent(here.uri) as socket:
                    with pytest.raises(ConnectionClosed):
                        await flooding(socket, sends)
            async with agent(here.uri) as socket:
                await socket.send('{"content":{},"type":"HealthCheck","id":2}')
                assert await next_message(socket) == {"type": "HealthCheck", "id": 2}

    run(main())


def test_messages_are_handled_one_at_a_time_and_not_many_may_wait(tmp_path: Path) -> None:
    program = tmp_path / "cache"
    program.write_text("#!/bin/sh\necho $1 >> " + str(tmp_path / "sizes") + "\n")
    program.chmod(0o755)
    guest = GuestTree(tmp_path / "guest", memory=4 * GIB, used=MIB)

    async def main() -> None:
        async with running(guest, cache_program=str(program)) as here, agent(here.uri) as socket:
            await asyncio.sleep(1)
            for number in range(4):
                await socket.send(downscale(3 * GIB - number * GIB // 2, 2 + 2 * number))
            replies = [await next_message(socket) for _ in range(4)]
            assert [reply["id"] for reply in replies] == [2, 4, 6, 8]
            assert all("cache set to" in reply["Status"] and reply["Ok"] for reply in replies)
            for number in range(40):
                await socket.send(downscale(GIB, 10 + 2 * number))
            with pytest.raises(ConnectionClosed, match="more than 16 messages wait"):
                await drained(socket)

    run(main())
    sizes = [int(line) // MIB for line in (tmp_path / "sizes").read_text().split()]
    assert sizes[:4] == [2304, 1920, 1536, 1152], "three quarters of 3, 2.5, 2 and 1.5 GiB"


def test_a_cache_program_has_its_time_on_a_slow_machine(tmp_path: Path) -> None:
    """The clock of these tests jumps while nothing happens, but not while a process runs."""
    program = tmp_path / "cache"
    program.write_text("#!/bin/sh\nexec sleep 0.5\n")
    program.chmod(0o755)
    guest = GuestTree(tmp_path / "guest", memory=4 * GIB, used=MIB)

    async def main() -> None:
        async with running(guest, cache_program=str(program)) as here, agent(here.uri) as socket:
            await asyncio.sleep(1)
            await socket.send(downscale(3 * GIB, 2))
            reply = await next_message(socket)
            assert "cache set to" in reply.get("Status", reply)

    run(main())


def test_a_cache_program_that_fails_is_an_internal_error(tmp_path: Path) -> None:
    guest = GuestTree(tmp_path, memory=4 * GIB, used=MIB)

    async def main() -> None:
        async with running(guest, cache_program="/bin/false") as here, agent(here.uri) as socket:
            await asyncio.sleep(1)
            await socket.send(downscale(2 * GIB, 4))
            failed = await next_message(socket)
            assert failed == {
                "type": "InternalError",
                "error": "/bin/false could not set the cache to 1536 MiB: exit code 1",
                "id": 4,
            }
            assert here.monitor.guard.threshold == threshold(4 * GIB)

    run(main())


def test_what_is_plugged_is_brought_online_within_a_second(tmp_path: Path) -> None:
    guest = GuestTree(tmp_path, cpus=2, online=1)
    guest.plug_block(8)

    async def main() -> None:
        async with running(guest, memory="movable"):
            await asyncio.sleep(0.5)
            assert guest.online_cpus == {0, 1}
            guest.plug_cpu(2)
            guest.plug_block(9)
            await asyncio.sleep(1.1)
            assert guest.online_cpus == {0, 1, 2}
            assert guest.states() == {8: "online", 9: "online"}

    run(main())
    assert {value for name, value in guest.written if name.endswith("state")} == {"online_movable"}


def test_as_many_cpus_as_are_granted_are_online_where_that_is_wanted(tmp_path: Path) -> None:
    guest = GuestTree(tmp_path, cpus=4, online=4, memory=4 * GIB, used=MIB)

    async def main() -> None:
        async with running(guest, cpus="granted") as here, agent(here.uri) as socket:
            await asyncio.sleep(1)
            assert guest.online_cpus == {0, 1, 2, 3}, "nothing is known yet"
            for cpu, online in ((2, {0, 1}), (0.25, {0}), (2.5, {0, 1, 2})):
                await socket.send(downscale(2 * GIB, 4, cpu))
                assert (await next_message(socket))["Ok"]
                await asyncio.sleep(0.2)
                assert guest.online_cpus == online
            guest.set_memory(4 * GIB, 3 * GIB)
            await asyncio.sleep(1)
            await socket.send(downscale(GIB, 6, 1))
            while (reply := await next_message(socket))["type"] == "UpscaleRequest":
                pass
            assert not reply["Ok"]
            await asyncio.sleep(1.5)
            assert guest.online_cpus == {0, 1, 2}, "a downscale that is denied changes nothing"

    run(main())


def test_other_paths_and_plain_http_are_answered(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(GuestTree(tmp_path)) as here:
            with pytest.raises(InvalidStatus, match="404"):
                await connect(f"ws://127.0.0.1:{here.port}/other", proxy=None)
            assert (await http(here.port, b"GET /monitor HTTP/1.1\r\nHost: x\r\n\r\n")).startswith(b"HTTP/1.1 4")

    run(main())


async def http(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer


HANDSHAKE = (
    b" HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


@pytest.mark.parametrize("path", [b"/monitor", b"/other"])
@pytest.mark.parametrize("behind", [b"\xff" * 8, b"{}", b"\x81\xfe\xff\xff", b"\x81\x05hello"])
def test_what_comes_with_a_request_and_is_no_frame_ends_the_connection_without_an_error(
    tmp_path: Path, path: bytes, behind: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A stranger could otherwise fill the log: a traceback for each connection."""

    async def main() -> None:
        async with running(GuestTree(tmp_path)) as here:
            with suppress(ConnectionError):
                await asyncio.wait_for(http(here.port, b"GET " + path + HANDSHAKE + behind), 30)
            async with agent(here.uri):
                pass

    run(main())
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


def test_gauges_are_served_to_a_few_at_once(tmp_path: Path) -> None:
    guest = GuestTree(tmp_path)

    async def main() -> None:
        async with running(guest) as here:
            answer = await http(here.metrics, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4")
            assert b"\nhost_memory_total_bytes 1073741824\n" in answer
            for request, status in ((b"POST /metrics HTTP/1.1\r\n\r\n", b"405"), (b"GET / HTTP/1.1\r\n\r\n", b"404")):
                assert (await http(here.metrics, request)).split(b" ")[1] == status
            silent = [await asyncio.open_connection("127.0.0.1", here.metrics) for _ in range(8)]
            with pytest.raises(ConnectionError):
                await http(here.metrics, b"GET /metrics HTTP/1.1\r\n\r\n")
            await asyncio.sleep(6)
            assert b" 200 " in await http(here.metrics, b"GET /metrics HTTP/1.1\r\n\r\n"), "they were ended"
            for _, writer in silent:
                writer.close()
            (long,) = await asyncio.gather(http(here.metrics, b"GET /" + b"x" * 9_000), return_exceptions=True)
            assert long == b"" or isinstance(long, ConnectionError)
            guest.put("proc/loadavg", "\n")
            assert b" 503 " in await http(here.metrics, b"GET /metrics HTTP/1.1\r\n\r\n"), "half of it is nothing"

    run(main())


def test_only_those_who_are_allowed_may_connect(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(GuestTree(tmp_path), allow="10.0.0.0/8,192.168.1.1") as here:
            with pytest.raises((InvalidMessage, ConnectionError)):  # the socket is closed without a word
                await connect(here.uri, proxy=None)
        async with running(GuestTree(tmp_path), allow="127.0.0.0/8") as here, agent(here.uri):
            pass

    run(main())


def test_ending_it_says_goodbye_and_leaves_no_socket(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))

    async def main() -> None:
        async with running(GuestTree(tmp_path)) as here:
            socket = await connect(here.uri, proxy=None, ping_interval=None)
            await socket.send('{"min":1,"max":1}')
            await socket.recv()
        with pytest.raises(ConnectionClosed, match="the guest monitor ends"):
            await socket.recv()

    run(main())
    assert len(os.listdir("/proc/self/fd")) == before


def test_settings_tell_every_mistake() -> None:
    with pytest.raises(ValueError, match="--listen") as error:
        settings_from({"listen": "here", "allow": "x", "memory": "all", "movable_ratio": "0", "cache_where": "tape"})
    assert [line.partition(":")[0] for line in str(error.value).splitlines()] == [
        "--listen", "--allow", "--memory", "--movable-ratio", "--cache-where",
    ]  # fmt: skip
    assert settings_from({"listen": "[::]:1"}).listen == ("::", 1)
    assert settings_from({"metrics_listen": "off"}).metrics_listen is None


def test_what_can_be_set_is_what_is_known_of_memory() -> None:
    """The settings do not import it: the help of each program would load it."""
    for parameter, words in (("memory", (*memory._STATES, "leave")), ("cache_where", (*memory._RESERVES,))):
        for word in words:
            assert getattr(settings_from({parameter: word}), parameter) == word
        with pytest.raises(ValueError, match=f"is not one of {', '.join(words)}"):
            settings_from({parameter: "other"})


@pytest.mark.parametrize("program", ["/nope", "bin/true", "/etc/passwd", "/bin"])
def test_a_cache_program_that_cannot_start_is_refused_at_once(program: str) -> None:
    with pytest.raises(ValueError, match=r"--cache-program: not an executable file: "):
        settings_from({"cache_program": program})


def test_what_cannot_be_measured_names_the_option(tmp_path: Path) -> None:
    for what in ("foo", "cgroup:nope"):
        with pytest.raises(ValueError, match=r"^--measure: "):
            GuestMonitor(settings_from({"measure": what, "root": str(tmp_path)}))


def test_each_wrong_setting_is_a_problem_and_no_other_follows_from_it() -> None:
    with pytest.raises(ValueError, match=r"\A--listen: [^\n]*\n--cache-where: [^\n]*\Z"):
        settings_from({"listen": "nowhere", "cache_where": "tape", "informant": "0.0.0.0:10301"})
