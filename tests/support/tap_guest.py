"""A guest that is only its network card: it speaks ARP and ICMP on the TAP interface of a setup.

A test makes it send more.
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from devalloc_machines.warm.setup import Setup
from devalloc_node.host.network_namespace import inside
from devalloc_node.model.network_address import NetworkAddress

BROADCAST = "ff:ff:ff:ff:ff:ff"
ARP, IPV4, IPV6, VLAN = 0x0806, 0x0800, 0x86DD, 0x8100
_TUNSETIFF, _TAP_NO_PI = 0x400454CA, 0x1002
SECONDS = 30.0
"""How long an answer may take that is to come."""
QUIET = 0.6
"""How long is waited for one that is not to come."""


def packed(address: str) -> bytes:
    return ipaddress.IPv4Address(address).packed


def mac_bytes(mac: str) -> bytes:
    return bytes.fromhex(mac.replace(":", ""))


def checksum(data: bytes) -> int:
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF


def frame(target: str, source: str, kind: int, content: bytes) -> bytes:
    return mac_bytes(target) + mac_bytes(source) + struct.pack("!H", kind) + content


def arp(mac: str, sender: str, target: str, *, reply_to: str | None = None) -> bytes:
    """A question who has ``target``; with ``reply_to`` the answer to that MAC, that ``sender`` is at ``mac``."""
    operation, receiver = (1, "00:00:00:00:00:00") if reply_to is None else (2, reply_to)
    fixed = struct.pack("!HHBBH", 1, IPV4, 6, 4, operation)
    return fixed + mac_bytes(mac) + packed(sender) + mac_bytes(receiver) + packed(target)


def ipv4(source: str, target: str, protocol: int, content: bytes) -> bytes:
    header = struct.pack(
        "!BBHHHBBH4s4s", 0x45, 0, 20 + len(content), 1, 0, 64, protocol, 0, packed(source), packed(target)
    )
    return header[:10] + struct.pack("!H", checksum(header)) + header[12:] + content


def udp(source: str, target: str, port: int, content: bytes) -> bytes:
    return ipv4(source, target, 17, struct.pack("!HHHH", 5000, port, 8 + len(content), 0) + content)


def echo(kind: int, number: int) -> bytes:
    content = struct.pack("!BBHHH", kind, 0, 0, 7, number) + b"devalloc"
    return content[:2] + struct.pack("!H", checksum(content)) + content[4:]


class TapGuest:
    """Answers who it is, and echoes; keeps all that it gets."""

    is_answered = True
    """Whether answers to what it asks are to come: else none is waited for long."""

    def __init__(self, descriptor: int, who: NetworkAddress) -> None:
        self.who = who
        self.received: list[bytes] = []
        self._descriptor = descriptor
        self._stopped = False
        self._pings = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopped = True
        self._thread.join()
        os.close(self._descriptor)

    def send(self, content: bytes) -> None:
        os.write(self._descriptor, content)

    def mac_of(self, address: str) -> str | None:
        """By ARP; None without an answer."""

        def answered() -> str | None:
            for each in list(self.received):
                if each[12:14] == b"\x08\x06" and each[20:22] == b"\0\x02" and each[28:32] == packed(address):
                    return each[22:28].hex(":")
            return None

        return self._awaited(answered, lambda: self.send(frame(BROADCAST, self.who.mac, ARP, self._question(address))))

    def _question(self, address: str) -> bytes:
        return arp(self.who.mac, self.who.address, address)

    def pings(self, address: str, by: str | None = None) -> bool:
        """Whether an echo comes back; ``by``: the router on the way."""
        mac = self.mac_of(by or address)
        if mac is None:
            return False

        self._pings += 1
        number = self._pings

        def answered() -> bool | None:
            back = (packed(address), 1, 0, number.to_bytes(2, "big"))
            return (
                any(
                    each[12:14] == b"\x08\0" and (each[26:30], each[23], each[34], each[40:42]) == back
                    for each in list(self.received)
                )
                or None
            )

        packet = ipv4(self.who.address, address, 1, echo(8, number))
        return self._awaited(answered, lambda: self.send(frame(mac, self.who.mac, IPV4, packet))) is True

    def _awaited(self, answered: Callable[[], str | bool | None], ask: Callable[[], None]) -> str | bool | None:
        due = time.monotonic() + (SECONDS if self.is_answered else QUIET)
        while time.monotonic() < due:
            ask()
            soon = time.monotonic() + 0.2
            while time.monotonic() < soon:
                if (answer := answered()) is not None:
                    return answer
                time.sleep(0.005)
        return None

    def got(self, part: bytes) -> bool:
        """Whether a frame with this in it came."""
        return any(part in each for each in list(self.received))

    def _serve(self) -> None:
        own, mac = packed(self.who.address), mac_bytes(self.who.mac)
        while not self._stopped:
            if not select.select([self._descriptor], [], [], 0.05)[0]:
                continue
            content = os.read(self._descriptor, 4096)
            self.received.append(content)
            if content[12:14] == b"\x08\x06" and content[20:22] == b"\0\x01" and content[38:42] == own:
                asker, address = content[22:28].hex(":"), str(ipaddress.IPv4Address(content[28:32]))
                self.send(frame(asker, self.who.mac, ARP, arp(self.who.mac, self.who.address, address, reply_to=asker)))
            elif content[:6] == mac and content[12:14] == b"\x08\0" and content[23] == 1 and content[34] == 8:
                back = str(ipaddress.IPv4Address(content[26:30]))
                packet = ipv4(self.who.address, back, 1, echo(0, int.from_bytes(content[40:42], "big")))
                self.send(frame(content[6:12].hex(":"), self.who.mac, IPV4, packet))


@contextmanager
def tap_guest(setup: Setup) -> Iterator[TapGuest]:
    """The guest of a setup, while inside."""
    assert setup.network is not None

    def opened() -> int:
        tap = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
        fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", setup.tap.encode(), _TAP_NO_PI))
        return tap

    guest = TapGuest(inside(setup.namespace, opened), setup.network)
    try:
        yield guest
    finally:
        guest.close()


def host_pings(address: str, *, is_expected: bool = True) -> bool:
    """Whether an echo comes back to this host. Needs root."""
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as line:
        due = time.monotonic() + (SECONDS if is_expected else QUIET)
        line.settimeout(0.2)
        while time.monotonic() < due:
            try:
                line.sendto(echo(8, 9), (address, 0))
                while True:
                    content, (sender, _) = line.recvfrom(2048)
                    if sender == address and content[20] == 0:
                        return True
            except OSError:
                continue
    return False
