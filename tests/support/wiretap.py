"""What real parties say to each other over TCP, read off the wires of a private network: no proxy is in between, so
nothing is changed by being read. HTTP with lengths, and the text of WebSockets. Needs root."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass

SO_TIMESTAMPNS = 35
ETH_P_ALL, ETH_P_IP, TCP = 3, 0x0800, 6
"""What goes out is reported only to those who want all."""
FIN, SYN = 1, 2
LARGEST = 1 << 17


@dataclass(frozen=True, slots=True)
class WireMessage:
    """One message, when its last byte was seen (seconds since 1970, the kernel's own time)."""

    at: float
    port: int
    """Of the server, which says what is spoken."""
    by_server: bool
    first: str
    """Of HTTP the first line; empty of a WebSocket."""
    text: str


@contextmanager
def wiretap(ports: frozenset[int], heard: Callable[[WireMessage], None]) -> Iterator[None]:
    """While inside, ``heard`` gets (in a thread of its own) what servers at these ports and their clients say, on
    all interfaces of the network that this thread is in."""
    tap = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL))
    tap.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    tap.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
    tap.settimeout(0.2)
    over = threading.Event()
    with ThreadPoolExecutor(1, "wiretap") as executor, closing(tap):
        listening = executor.submit(_listen, tap, ports, heard, over)
        try:
            yield
        finally:
            over.set()
            listening.result()


def _listen(
    tap: socket.socket, ports: frozenset[int], heard: Callable[[WireMessage], None], over: threading.Event
) -> None:
    streams: dict[tuple[bytes, bytes, int, int], _Stream] = {}
    while not over.is_set():
        try:
            packet, ancillary, _, sender = tap.recvmsg(LARGEST, 64)
        except TimeoutError:
            continue
        if sender[1] != ETH_P_IP or packet[9] != TCP:
            continue
        seconds, nanoseconds = struct.unpack("qq", ancillary[0][2])
        head = (packet[0] & 15) * 4
        segment = packet[head : struct.unpack_from("!H", packet, 2)[0]]
        source, target, number = struct.unpack_from("!HHI", segment)
        if not ports & {source, target}:
            continue
        key = (packet[12:16], packet[16:20], source, target)
        if segment[13] & SYN:
            streams[key] = _Stream(number + 1)
        if key in streams:
            for first, text in streams[key].more(number, segment[(segment[12] >> 4) * 4 :]):
                at = seconds + nanoseconds / 1e9
                heard(WireMessage(at, source if source in ports else target, source in ports, first, text))


class _Stream:
    """One direction of a connection. A packet may come twice (as on lo, where it goes and comes), or late."""

    def __init__(self, number: int) -> None:
        self._next = number & 0xFFFFFFFF
        self._early: dict[int, bytes] = {}
        self._bytes = b""
        self._is_websocket = False

    def more(self, number: int, payload: bytes) -> Iterator[tuple[str, str]]:
        """The messages that are whole with this segment."""
        if not payload:
            return
        self._early[number] = payload
        while (chunk := self._in_order()) is not None:
            self._bytes += chunk
        while (message := self._websocket() if self._is_websocket else self._http()) is not None:
            yield message

    def _in_order(self) -> bytes | None:
        for number, payload in list(self._early.items()):
            overlap = (self._next - number) & 0xFFFFFFFF
            if overlap < 1 << 31:  # not ahead of what is known
                del self._early[number]
                if overlap < len(payload):
                    self._next = (number + len(payload)) & 0xFFFFFFFF
                    return payload[overlap:]
        return None

    def _http(self) -> tuple[str, str] | None:
        head, end, rest = self._bytes.partition(b"\r\n\r\n")
        if not end:
            return None
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", 0))
        if len(rest) < length:
            return None
        self._is_websocket = headers.get("upgrade", "").lower() == "websocket"
        self._bytes = rest[length:]
        return first, rest[:length].decode(errors="replace")

    def _websocket(self) -> tuple[str, str] | None:
        """Whole frames, as neither side sends others; what is not text is passed over."""
        while len(self._bytes) >= 2:
            kind, length, at = self._bytes[0] & 15, self._bytes[1] & 127, 2
            if length > 125:
                size = 2 if length == 126 else 8
                length, at = int.from_bytes(self._bytes[2 : 2 + size], "big"), 2 + size
            mask = self._bytes[at : at + 4] if self._bytes[1] & 128 else b""
            end = at + len(mask) + length
            if len(self._bytes) < end:
                return None
            content, self._bytes = self._bytes[at + len(mask) : end], self._bytes[end:]
            if mask:
                content = bytes(byte ^ mask[number % 4] for number, byte in enumerate(content))
            if kind == 1:
                return "", content.decode(errors="replace")
        return None
