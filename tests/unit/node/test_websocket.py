"""A WebSocket with a peer that does not read: what waits for it is bounded."""

from __future__ import annotations

import asyncio

from websockets.protocol import SERVER
from websockets.protocol import Protocol as Parser

from devalloc_node.net.websocket import WebSocket, WebSocketLimits


class Listener:
    def __init__(self) -> None:
        self.why: list[str] = []

    def opened(self) -> None:
        raise AssertionError("there is no handshake here")

    def received(self, text: str) -> None:
        raise AssertionError("nothing is sent")

    def closed(self, why: str) -> None:
        self.why.append(why)


class Stuffed(asyncio.Transport):
    """A transport whose peer takes nothing, as the event loop's own is when the kernel's buffers are full."""

    def __init__(self) -> None:
        super().__init__()
        self.protocol: asyncio.Protocol | None = None
        self.waiting = 0
        self.high = 0
        self.is_aborted = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high or 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        was, self.waiting = self.waiting, self.waiting + len(data)
        if was <= self.high < self.waiting and self.protocol is not None:
            self.protocol.pause_writing()

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True


def test_what_a_peer_does_not_read_is_kept_up_to_a_limit_and_then_the_connection_ends() -> None:
    async def main() -> None:
        listener, transport = Listener(), Stuffed()
        socket = WebSocket(Parser(SERVER), listener, WebSocketLimits(unread=10_000))
        transport.protocol = socket
        socket.connection_made(transport)
        for _ in range(100):
            socket.send("x" * 1_000)
        assert listener.why == ["it does not read its messages"]
        assert transport.is_aborted
        assert 10_000 < transport.waiting < 12_000
        assert not socket.is_open

    asyncio.run(main())
