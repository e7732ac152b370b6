"""Connections that come just when no server is there to take them any more."""

from __future__ import annotations

import asyncio
import socket

import pytest

from devalloc_node.net.http import wait_for_connection


@pytest.mark.parametrize("turns", range(5))
def test_a_client_that_connects_during_the_cancellation_can_still_be_accepted(turns: int) -> None:
    """Whichever turn of the event loop it is."""

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as door:
            door.setblocking(False)
            waiting = asyncio.create_task(wait_for_connection(door))
            await asyncio.sleep(0)
            with socket.create_connection(door.getsockname()):
                for _ in range(turns):
                    await asyncio.sleep(0)
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
                taken, _ = door.accept()
                taken.close()

    asyncio.run(main())


def test_a_door_that_another_thread_closes_is_left_without_an_error() -> None:
    async def main() -> None:
        door = socket.create_server(("127.0.0.1", 0))
        waiting = asyncio.create_task(wait_for_connection(door))
        await asyncio.sleep(0)
        door.close()
        waiting.cancel()
        (ended,) = await asyncio.gather(waiting, return_exceptions=True)
        assert isinstance(ended, asyncio.CancelledError)

    asyncio.run(main())
