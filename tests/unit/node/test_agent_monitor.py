"""The agent's connection to a machine's monitor: over real sockets, on a clock that jumps."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from devalloc.scaling.messages.monitor import DownscaleResult
from devalloc.scaling.resources import Resources
from devalloc_machines.agent.guest_monitor_client import MonitorConnection, MonitorTimeouts
from devalloc_node.errors import Failed, Unknown
from tests.support.guest_monitor_peers import (
    RecordingListener,
    ScriptedConnection,
    are_closed,
    connected,
    now,
    raw_server,
    scripted_monitor,
    watched,
)
from tests.support.node_errors import raises
from tests.support.virtual_time import run

GIB = 2**30


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The codes that connections end with. Only their words go to the listener."""
    codes: list[str] = []
    for step in ("_connect", "_watch"):
        real = getattr(MonitorConnection, step)

        async def noted(self: MonitorConnection, session: Any, real: Any = real) -> None:
            try:
                await real(self, session)
            except Failed as error:
                codes.append(error.code)
                raise

        monkeypatch.setattr(MonitorConnection, step, noted)
    return codes


async def healthy(monitor: ScriptedConnection) -> None:
    await monitor.healthy()


def test_a_whole_conversation_is_as_the_protocol_has_it() -> None:
    async def script(monitor: ScriptedConnection) -> None:
        check = await monitor.next()
        assert check == {"content": {}, "type": "HealthCheck", "id": 2}
        await monitor.say({"type": "HealthCheck", "id": 2})
        grown = await monitor.next()
        assert grown == {"content": {"granted": {"cpu": 2, "mem": 8 * GIB}}, "type": "UpscaleNotification", "id": 4}
        await monitor.say({"type": "UpscaleConfirmation", "id": 4})
        for id, ok in ((6, True), (8, False)):
            request = await monitor.next()
            assert request == {"content": {"target": {"cpu": 0.25, "mem": GIB}}, "type": "DownscaleRequest", "id": id}
            await monitor.say({"type": "DownscaleResult", "Ok": ok, "Status": "as asked", "id": id})
        await monitor.say({"type": "UpscaleRequest", "id": 3})
        await monitor.healthy()

    async def main() -> None:
        async with scripted_monitor(script) as port, watched(port) as (monitor, heard):
            await connected(monitor)
            await monitor.upscale(Resources(2000, 8 * GIB))
            assert await monitor.downscale(Resources(250, GIB)) == DownscaleResult(True, "as asked")
            assert await monitor.downscale(Resources(250, GIB)) == DownscaleResult(False, "as asked")
            await asyncio.sleep(1)
            assert [what for _, what in heard.events] == ["connected", "wants memory"]
            status = monitor.status()
            assert (status.connected, status.why, status.failures, status.dropped) == (True, "", 0, 0)

    run(main())


def test_health_is_checked_every_five_seconds() -> None:
    seen: list[int] = []

    async def script(monitor: ScriptedConnection) -> None:
        while True:
            check = await monitor.next()
            seen.append(now())
            await monitor.say({"type": "HealthCheck", "id": check["id"]})

    async def main() -> None:
        async with scripted_monitor(script) as port, watched(port) as (monitor, _):
            await connected(monitor)
            await asyncio.sleep(21)
            last = monitor.status().last_success
            assert last is not None
            assert now() - last <= 5_000

    run(main())
    assert [after - seen[0] for after in seen] == [0, 5_000, 10_000, 15_000, 20_000]


def test_a_silent_monitor_is_given_up_after_thirty_seconds_of_failures_with_1011(
    caplog: pytest.LogCaptureFixture, ends: list[str]
) -> None:
    codes: list[tuple[int | None, int]] = []

    async def script(monitor: ScriptedConnection) -> None:
        first = now()
        await monitor.socket.wait_closed()
        codes.append((monitor.socket.close_code, now() - first))

    async def main() -> None:
        async with scripted_monitor(script) as port, watched(port) as (monitor, heard):
            await connected(monitor)
            await asyncio.sleep(42)
            (ended,) = heard.times("disconnected")
            assert heard.times("connected")[1] == ended, "a connection that lived longer than 5 s is replaced at once"
            assert "have failed for" in heard.events[1][1]
            assert "no reply to a HealthCheck within 5 s" in heard.events[1][1]

    with caplog.at_level("WARNING"):
        run(main())
    lost, recovered = [record.message for record in caplog.records][:2]
    assert "have failed for" in lost
    assert "connected to the monitor in its guest" in recovered, "who reads the one reads the other"
    # The first failure is known after 5 s, and 30 s later they have failed for no longer than that.
    assert codes[0] == (1011, 40_000)
    assert ends == ["GuestMonitorUnhealthy"]


def test_one_answered_check_begins_the_thirty_seconds_anew() -> None:
    async def script(monitor: ScriptedConnection) -> None:
        for number in range(20):
            check = await monitor.next(kind="HealthCheck")
            if number % 5 == 4:
                await monitor.say({"type": "HealthCheck", "id": check["id"]})

    async def main() -> None:
        async with scripted_monitor(script) as port, watched(port) as (monitor, heard):
            await connected(monitor)
            await asyncio.sleep(55)
            assert [what for _, what in heard.events] == ["connected"]
            assert monitor.status().failures == 9

    run(main())


def test_a_monitor_that_closes_at_once_is_tried_every_five_seconds_and_no_sooner() -> None:
    async def script(monitor: ScriptedConnection) -> None:
        await asyncio.sleep(0.01)
        await monitor.socket.close(1000, "not now")

    async def main() -> None:
        async with scripted_monitor(script) as port, watched(port) as (_, heard):
            await asyncio.sleep(22)
            assert heard.times("connected") == [0, 5_000, 10_000, 15_000, 20_000]
            assert "closed by the peer with 1000" in heard.events[1][1]

    run(main())


def test_a_closed_port_is_reported_and_tried_again_every_five_seconds(ends: list[str]) -> None:
    async def main() -> None:
        async with raw_server(lambda reader, writer: asyncio.sleep(0)) as port:
            pass  # closed again
        async with watched(port) as (monitor, heard):
            await asyncio.sleep(11)
            assert heard.times("disconnected") == [0, 5_000, 10_000]
            assert ends == ["GuestMonitorUnreachable"] * 3
            assert monitor.status().why.endswith("Connection refused"), monitor.status().why
            with raises(Failed, "GuestMonitorNotConnected", match="Connection refused"):
                await monitor.upscale(Resources(250, GIB))

    run(main())


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ('{"error":"no version is shared"}', "it refuses v1.0"),
        ('{"version":2}', "it chose version <unknown = v1.0 + 1>, and was offered v1.0"),
        ("what?", "it sent an unreadable message"),
        ('{"version":-1}', "it sent an unreadable message"),
    ],
)
def test_a_handshake_that_fails_leaves_no_socket(answer: str, why: str) -> None:
    async def main() -> None:
        async with scripted_monitor(healthy, answer) as port, watched(port) as (monitor, heard):
            await asyncio.sleep(51)
            assert len(heard.times("disconnected")) == 11
            assert why in monitor.status().why
            assert await are_closed(port)

    run(main())


def test_a_late_reply_gets_an_invalid_message_with_its_id_and_changes_nothing() -> None:
    async def script(monitor: ScriptedConnection) -> None:
        request = await monitor.next(kind="DownscaleRequest")
        await asyncio.sleep(5.5)
        await monitor.say({"type": "DownscaleResult", "Ok": True, "Status": "", "id": request["id"]})
        reply = await monitor.next(kind="InvalidMessage")
        assert reply["id"] == request["id"]
        assert "too late" in reply["content"]["error"]
        await monitor.healthy()

    async def main() -> None:
        async with scripted_monitor(script) as port, watched(port) as (monitor, heard):
            await connected(monitor)
            began = now()
            with raises(Unknown, "GuestMonitorSilent", match="no reply to a DownscaleRequest within 5 s"):
                await monitor.downscale(Resources(250, GIB))
            assert now() - began == 5_000
            await asyncio.sleep(8)
            assert [what for _, what in heard.events] == ["connected"]

    run(main())


@pytest.mark.parametrize("kind", ["InternalError", "InvalidMessage"])
def test_an_error_with_the_id_of_a_request_fails_it_and_only_it(kind: str) -> None:
    async def script(monitor: ScriptedConnection) -> None:
        request = await monitor.next(kind="DownscaleRequest")
        await monitor.say({"type": kind, "error": "unknown id", "id": 999})
        await monitor.say({"type": kind, "error": "cgroup is gone", "id": request["id"]})
        await monitor.healthy()

    async def main() -> None:
        async with scripted_monitor(script) as port, watched(port) as (monitor, heard):
            await connected(monitor)
            with pytest.raises(Failed, match=f"it reports {kind}$"):
                await monitor.downscale(Resources(250, GIB))
            await asyncio.sleep(6)
            assert [what for _, what in heard.events] == ["connected"], "the connection stays, and no reply was sent"
            assert monitor.status().failures == 1

    run(main())


def test_what_a_guest_says_is_for_the_log_alone_on_one_line_and_not_at_length(caplog: pytest.LogCaptureFixture) -> None:
    """Errors are in the object's status, and the object's author chose the server that the node asks."""
    caplog.set_level(logging.INFO)
    words = "no\n2026-01-01 ERROR the host is on fire \x1b[31m" + "x" * 5_000

    async def script(monitor: ScriptedConnection) -> None:
        await monitor.say({"type": "InvalidMessage", "error": words, "id": 999})
        request = await monitor.next(kind="DownscaleRequest")
        await monitor.say({"type": "InternalError", "error": words, "id": request["id"]})
        await monitor.socket.close(1000, "on fire")

    async def main() -> None:
        async with scripted_monitor(script) as port, watched(port) as (monitor, _):
            await connected(monitor)
            with pytest.raises(Failed) as failed:
                await monitor.downscale(Resources(250, GIB))
            assert failed.value.message.endswith("it reports InternalError")
            await asyncio.sleep(1)
            assert "on fire" not in monitor.status().why

    run(main())
    (line,) = (record.getMessage() for record in caplog.records if "on fire" in record.getMessage())
    assert "no 2026-01-01 ERROR the host is on fire [31mxxx" in line
    assert line.isprintable()
    assert len(line) < 400


def test_a_reply_of_another_kind_fails_the_request() -> None:
    async def script(monitor: ScriptedConnection) -> None:
        request = await monitor.next(kind="DownscaleRequest")
        await monitor.say({"type": "UpscaleConfirmation", "id": request["id"]})
        assert (await monitor.next(kind="InvalidMessage"))["id"] == request["id"]

    async def main() -> None:
        async with scripted_monitor(script) as port, watched(port) as (monitor, _):
            await connected(monitor)
            with pytest.raises(Failed, match="replies with a UpscaleConfirmation"):
                await monitor.downscale(Resources(250, GIB))

    run(main())


def test_an_unknown_type_is_answered_and_the_connection_stays() -> None:
    answers: list[object] = []

    async def script(monitor: ScriptedConnection) -> None:
        await monitor.say({"type": "UpscaleHint", "id": 17, "more": [1, 2]})
        answers.append(await monitor.next(kind="InvalidMessage"))
        await monitor.healthy()

    async def main() -> None:
        async with scripted_monitor(script) as port, watched(port) as (monitor, heard):
            await connected(monitor)
            await asyncio.sleep(7)
            assert [what for _, what in heard.events] == ["connected"]

    run(main())
    content = {"error": "unknown message type 'UpscaleHint'"}
    assert answers == [{"content": content, "type": "InvalidMessage", "id": 17}]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("gibberish", 1011),
        ('{"type":7,"id":3}', 1011),
        ('{"type":"HealthCheck"}', 1011),
        ('{"type":"HealthCheck","id":NaN}', 1011),
        ('{"type":"UpscaleRequest","id":-1}', 1011),
        ('{"type":"UpscaleRequest","id":9007199254740993}', 1011),
        ('{"type":"DownscaleResult","id":4,"Ok":"yes"}', 1011),
        ("[" * 30_000, 1011),
        (b"\x01\x02", 1003),
        ("x" * 40_000, 1009),
    ],
)
def test_what_cannot_be_understood_ends_the_connection_and_requests_are_unknown(text: str | bytes, code: int) -> None:
    codes: list[int | None] = []

    async def script(monitor: ScriptedConnection) -> None:
        await monitor.next(kind="DownscaleRequest")
        await monitor.say(text)
        await monitor.socket.wait_closed()
        codes.append(monitor.socket.close_code)

    async def main() -> None:
        async with scripted_monitor(script) as port, watched(port) as (monitor, heard):
            await connected(monitor)
            with raises(Unknown, "GuestMonitorLost", match="ended before it answered"):
                await monitor.downscale(Resources(250, GIB))
            assert heard.times("disconnected") == [], "the request is reported first"
            await asyncio.sleep(0.5)
            assert len(heard.times("disconnected")) == 1

    run(main())
    assert codes == [code]


def test_requests_for_more_are_passed_on_twice_a_second_at_most() -> None:
    async def script(monitor: ScriptedConnection) -> None:
        for number in range(60):
            await monitor.say({"type": "UpscaleRequest", "id": 3 + 2 * number})
            await asyncio.sleep(0.1)
        await monitor.healthy()

    async def main() -> None:
        async with scripted_monitor(script) as port, watched(port) as (monitor, heard):
            await connected(monitor)
            await asyncio.sleep(7)
            wanted = heard.times("wants memory")
            assert wanted == list(range(0, 6_000, 500))
            assert monitor.status().dropped == 60 - len(wanted)

    run(main())


def test_a_name_is_no_address_of_a_guest() -> None:
    async def main() -> None:
        with pytest.raises(ValueError, match="localhost"):
            MonitorConnection("default/vm-1", "localhost", 10301, RecordingListener())

    run(main())


def test_ending_the_agent_closes_the_connection_and_says_so() -> None:
    codes: list[int | None] = []

    async def script(monitor: ScriptedConnection) -> None:
        await monitor.socket.wait_closed()
        codes.append(monitor.socket.close_code)

    async def main() -> None:
        async with scripted_monitor(script) as port:
            async with watched(port) as (monitor, heard):
                await connected(monitor)
                waiting = asyncio.create_task(monitor.downscale(Resources(250, GIB)))
                await asyncio.sleep(0.1)
            with pytest.raises(Unknown):
                await waiting
            assert heard.events[-1][1].startswith("disconnected")

    run(main())
    assert codes == [1001]


def test_many_machines_share_a_loop_and_its_clock() -> None:
    async def main() -> None:
        async with scripted_monitor(healthy) as port:
            ends = [watched(port) for _ in range(60)]
            pairs = [await end.__aenter__() for end in ends]
            await asyncio.sleep(12)
            assert all(monitor.status().connected for monitor, _ in pairs)
            results = await asyncio.gather(
                *(monitor.downscale(Resources(250, GIB)) for monitor, _ in pairs), return_exceptions=True
            )
            assert all(isinstance(result, Unknown) for result in results)
            for end in ends:
                await end.__aexit__(None, None, None)

    run(main())


def test_all_timers_can_be_set() -> None:
    async def main() -> None:
        timers = MonitorTimeouts(connect=100, response=200, health_check=300, unhealthy=1_000, reconnect=2_000)
        async with (
            raw_server(lambda reader, writer: asyncio.sleep(3_600)) as port,
            watched(port, timers) as (monitor, heard),
        ):
            await asyncio.sleep(5)
            assert heard.times("disconnected") == [100, 2_100, 4_100]
            assert "no handshake within 0.1 s" in monitor.status().why

    run(main())


def test_the_status_tells_since_when() -> None:
    async def script(monitor: ScriptedConnection) -> None:
        check = await monitor.next()
        await monitor.say(json.dumps({"type": "HealthCheck", "id": check["id"]}))
        await asyncio.sleep(2)

    async def main() -> None:
        async with scripted_monitor(script) as port, watched(port) as (monitor, heard):
            await connected(monitor)
            assert monitor.status().since == heard.began
            await asyncio.sleep(3)
            assert not monitor.status().connected
            assert monitor.status().since - heard.began == 2_000
            assert monitor.status().last_success == heard.began

    run(main())
