"""A WebSocket to an untrusted peer: bounded in message size and rate, and unable to block its owner.

The library's protocol without its I/O does the parsing; this is the I/O, as callbacks of the event loop: no task and no
queue for a connection, so that hundreds cost little, and no more is parsed than is allowed. Text frames only, no
compression. Everything happens in one event loop, whose clock is the only one.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from websockets.exceptions import InvalidStatus, PayloadTooBig
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import OPEN
from websockets.protocol import Protocol as Parser

from devalloc.net.rate import TokenBucket

_log = logging.getLogger(__name__)

_REPLY = 1024  # bytes that a reply has as a rule
_SLICE = 4096  # bytes that are parsed before frames are counted: two make the smallest frame
LIBRARY_LOGGER = logging.getLogger("devalloc.websocket.library")
LIBRARY_LOGGER.setLevel(logging.CRITICAL)  # we log a peer's errors ourselves, once


@dataclass(frozen=True, slots=True)
class WebSocketLimits:
    """What one connection may cost."""

    message: int = 32 * 1024
    """Bytes of a message, in however many frames."""
    bytes_a_second: int = 16 * 1024
    bytes_burst: int = 96 * 1024
    frames_a_second: int = 20
    frames_burst: int = 100
    unread: int = 64 * 1024
    """Bytes that may wait here for the peer to read them."""
    closing: float = 1.0
    """Seconds that a peer has to close when it is asked to."""


WEBSOCKET_LIMITS = WebSocketLimits()


class WebSocketPeer(Protocol):
    """Callbacks of a connection: `opened`, then `received` any number of times, then `closed`, once in any case."""

    def opened(self) -> None:
        """The WebSocket stands: messages can be sent."""

    def received(self, text: str) -> None:
        """A whole message came."""

    def closed(self, why: str) -> None:
        """Nothing comes any more. ``why`` is a clause for people."""


class WebSocket(asyncio.Protocol):
    """One end of a connection. Which end, and how it greets, is for its subclasses: `_begin` and `_greet`."""

    def __init__(self, parser: Parser, peer: WebSocketPeer, limits: WebSocketLimits = WEBSOCKET_LIMITS) -> None:
        self._loop = asyncio.get_running_loop()
        self._parser = parser
        self._peer = peer
        self._limits = limits
        self._bytes = TokenBucket(limits.bytes_a_second, limits.bytes_burst)
        self._frames = TokenBucket(limits.frames_a_second, limits.frames_burst)
        self._transport: asyncio.Transport | None = None
        self._parts: list[bytes] = []
        self._has_reported = False
        self._closing: asyncio.TimerHandle | None = None
        self._gone: asyncio.Future[None] = self._loop.create_future()

    # For the owner

    @property
    def is_open(self) -> bool:
        return not self._has_reported and self._parser.state is OPEN

    def send(self, text: str) -> None:
        """Send a message. Where the connection has ended nothing happens: `WebSocketPeer.closed` says so."""
        if self.is_open:
            self._parser.send_text(text.encode())
            self._flush()

    def expect_reply(self) -> None:
        """A request was sent: its reply is not counted as what the peer says unasked."""
        self._frames.add(1)
        self._bytes.add(_REPLY)

    def fail(self, code: int, why: str) -> None:
        """End it for a reason, with that status. `WebSocketPeer.closed` is called before this returns."""
        if self._parser.state is OPEN:
            self._parser.fail(code, _clause(why))
            self._flush()
            self._tell(why)
            self._hurry()
        else:
            self.abort(why)

    def abort(self, why: str) -> None:
        """End it now, without a word to the peer."""
        self._tell(why)
        if self._transport is not None:
            self._transport.abort()

    async def gone(self) -> None:
        """Wait until the socket is closed: at most `WebSocketLimits.closing` after the end."""
        if self._transport is not None:
            await asyncio.shield(self._gone)

    # For the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=self._limits.unread)
        if self._has_reported:  # given up meanwhile
            transport.abort()
            return
        self._begin()
        self._flush()

    def data_received(self, data: bytes) -> None:
        now = round(self._loop.time() * 1000)
        if not self._bytes.take(len(data), now):
            self.abort(f"it sends more than {self._limits.bytes_a_second} bytes per second")
        for start in range(0, len(data), _SLICE):
            if self._has_reported:
                return
            self._parser.receive_data(data[start : start + _SLICE])
            events = self._parser.events_received()
            if not self._frames.take(len(events), now):
                self.abort(f"it sends more than {self._limits.frames_a_second} frames per second")
                return
            self._flush()
            for event in events:
                self._take(event)
            self._judge()

    def eof_received(self) -> None:
        self._parser.receive_eof()
        self._flush()
        self._tell(self._reason())

    def pause_writing(self) -> None:
        self.abort("it does not read its messages")

    def connection_lost(self, exc: Exception | None) -> None:
        if self._closing is not None:
            self._closing.cancel()
        self._tell(f"connection lost: {exc}" if exc else self._reason())
        if not self._gone.done():
            self._gone.set_result(None)

    # For its subclasses

    def _begin(self) -> None:
        """TCP stands."""

    def _greet(self, event: object) -> None:
        """An HTTP request or response came; `_peer` is called once the WebSocket is open."""
        raise NotImplementedError

    # Inside

    def _take(self, event: object) -> None:
        if self._has_reported:
            return
        match event:
            case Frame(opcode=Opcode.TEXT | Opcode.CONT):
                self._parts.append(bytes(event.data))
                if event.fin:
                    self._message()
            case Frame(opcode=Opcode.BINARY):
                self.fail(CloseCode.UNSUPPORTED_DATA, "it sent a frame that is not text")
            case Frame():
                pass  # the parser answers pings, and sees to the end
            case _:
                self._greet(event)

    def _message(self) -> None:
        data, self._parts = b"".join(self._parts), []
        try:
            text = data.decode()
        except UnicodeDecodeError:
            self.fail(CloseCode.INVALID_DATA, "it sent text that is not UTF-8")
        else:
            self._peer.received(text)

    def _judge(self) -> None:
        """Whether what was parsed was the end."""
        if self._parser.handshake_exc is not None or self._parser.close_expected():
            self._tell(self._reason())
            self._hurry()

    def _flush(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        for data in self._parser.data_to_send():
            if data:
                self._transport.write(data)
            elif self._transport.can_write_eof():
                with suppress(OSError):  # the peer was faster
                    self._transport.write_eof()

    def _hurry(self) -> None:
        if self._closing is None and self._transport is not None:
            self._closing = self._loop.call_later(self._limits.closing, self._transport.abort)

    def _reason(self) -> str:
        parser = self._parser
        error = parser.handshake_exc or parser.parser_exc
        if parser.close_rcvd is not None:
            _log.debug("closed by the peer: %s", _clause(parser.close_rcvd.reason))
            return f"closed by the peer with {parser.close_rcvd.code}"
        # Not the peer's own text: a user who only names its address must not read it.
        if isinstance(error, InvalidStatus):
            return f"it answers the handshake with HTTP {error.response.status_code}"
        if isinstance(error, PayloadTooBig):  # has two numbers, and nothing else
            return _clause(str(error))
        if error is not None and not isinstance(error, EOFError):
            _log.debug("no WebSocket: %s: %s", error, error.__cause__)
            return f"it does not speak WebSocket ({type(error).__name__})"
        return "the connection ended"

    def _tell(self, why: str) -> None:
        if not self._has_reported:
            self._has_reported = True
            self._parts = []
            self._peer.closed(why)


def one_line(text: str, most: int) -> str:
    """At most so many bytes of it, on one line, and nothing that a terminal or a log would obey."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line.encode("utf-8", "replace")[:most].decode("utf-8", "ignore")


def _clause(text: str) -> str:
    """What a close frame holds of it."""
    return one_line(text, 120)


def loop_ms() -> int:
    """Milliseconds of the running event loop's clock."""
    return round(asyncio.get_running_loop().time() * 1000)
