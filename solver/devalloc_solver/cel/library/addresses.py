"""IP addresses and networks: ``cidr("10.0.0.0/8").containsIP(device.attributes["d"].address)``."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import ClassVar

from devalloc_solver.cel.errors import EvaluationError
from devalloc_solver.cel.registry import STRING, Overload
from devalloc_solver.cel.values import CHARACTERS_PER_UNIT, PARSING_COST, Frame


@dataclass(frozen=True, slots=True)
class IP:
    """An address."""

    type_name: ClassVar[str] = "net.IP"
    address: IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class CIDR:
    """An address (not necessarily the lowest of the network) and the length of the prefix."""

    type_name: ClassVar[str] = "net.CIDR"
    address: IPv4Address | IPv6Address
    length: int


def parse_ip(text: str) -> IP:
    """Read an address; neither zones nor IPv4 in IPv6 are allowed. Raises EvaluationError."""
    try:
        address = IPv6Address(text) if ":" in text else IPv4Address(text)
    except AddressValueError:
        raise EvaluationError(f"{text[:60]!r} is not an IP address") from None
    if isinstance(address, IPv6Address) and (address.scope_id is not None or "%" in text):
        raise EvaluationError(f"IP address {text[:60]!r} with zone value is not allowed")
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        raise EvaluationError(f"IPv4-mapped IPv6 address {text[:60]!r} is not allowed")
    return IP(address)


def parse_cidr(text: str) -> CIDR:
    """Read an address and a prefix length. Raises EvaluationError."""
    base, slash, length = text.rpartition("/")
    if not slash or not (length.isascii() and length.isdigit()) or len(length) > 3 or str(int(length)) != length:
        raise EvaluationError(f"{text[:60]!r} is not a network address")
    address = parse_ip(base).address
    if int(length) > address.max_prefixlen:
        raise EvaluationError(f"{text[:60]!r} is not a network address: the prefix is too long")
    return CIDR(address, int(length))


def _ip(frame: Frame, text: str) -> IP:
    frame.spend(PARSING_COST + len(text) // CHARACTERS_PER_UNIT)
    return parse_ip(text)


def _cidr(frame: Frame, text: str) -> CIDR:
    frame.spend(PARSING_COST + len(text) // CHARACTERS_PER_UNIT)
    return parse_cidr(text)


def _is_ip(frame: Frame, text: str) -> bool:
    try:
        _ip(frame, text)
    except EvaluationError:
        return False
    return True


def _is_cidr(frame: Frame, text: str) -> bool:
    try:
        _cidr(frame, text)
    except EvaluationError:
        return False
    return True


def _contains_ip(_: Frame, network: CIDR, ip: IP) -> bool:
    address, base = ip.address, network.address
    shift = base.max_prefixlen - network.length
    return address.version == base.version and int(address) >> shift == int(base) >> shift


def _contains_cidr(frame: Frame, network: CIDR, other: CIDR) -> bool:
    return network.length <= other.length and _contains_ip(frame, network, IP(other.address))


def _masked(_: Frame, network: CIDR) -> CIDR:
    base = network.address
    shift = base.max_prefixlen - network.length
    return CIDR(type(base)(int(base) >> shift << shift), network.length)


def _is_link_local_multicast(_: Frame, ip: IP) -> bool:
    packed = ip.address.packed
    return packed[:3] == b"\xe0\x00\x00" if len(packed) == 4 else packed[0] == 0xFF and packed[1] & 0xF == 2


def _is_link_local(_: Frame, ip: IP) -> bool:
    packed = ip.address.packed
    return packed[:2] == b"\xa9\xfe" if len(packed) == 4 else packed[0] == 0xFE and packed[1] & 0xC0 == 0x80


def _is_loopback(_: Frame, ip: IP) -> bool:
    packed = ip.address.packed
    return packed[0] == 127 if len(packed) == 4 else int(ip.address) == 1


def _is_global_unicast(frame: Frame, ip: IP) -> bool:
    address = ip.address
    broadcast = address.version == 4 and int(address) == 2**32 - 1
    special = address.is_unspecified or address.is_multicast or _is_loopback(frame, ip) or _is_link_local(frame, ip)
    return not (broadcast or special)


FUNCTIONS: tuple[Overload, ...] = (
    ("ip", (STRING,), _ip),
    ("ip", (CIDR,), lambda _, network: IP(network.address)),
    ("isIP", (STRING,), _is_ip),
    ("ip.isCanonical", (STRING,), lambda frame, text: str(_ip(frame, text).address) == text),
    ("family", (IP,), lambda _, ip: ip.address.version),
    ("isUnspecified", (IP,), lambda _, ip: int(ip.address) == 0),
    ("isLoopback", (IP,), _is_loopback),
    ("isLinkLocalMulticast", (IP,), _is_link_local_multicast),
    ("isLinkLocalUnicast", (IP,), _is_link_local),
    ("isGlobalUnicast", (IP,), _is_global_unicast),
    ("string", (IP,), lambda _, ip: str(ip.address)),
    ("cidr", (STRING,), _cidr),
    ("isCIDR", (STRING,), _is_cidr),
    ("containsIP", (CIDR, STRING), lambda frame, network, text: _contains_ip(frame, network, _ip(frame, text))),
    ("containsIP", (CIDR, IP), _contains_ip),
    ("containsCIDR", (CIDR, STRING), lambda frame, network, text: _contains_cidr(frame, network, _cidr(frame, text))),
    ("containsCIDR", (CIDR, CIDR), _contains_cidr),
    ("masked", (CIDR,), _masked),
    ("prefixLength", (CIDR,), lambda _, network: network.length),
    ("string", (CIDR,), lambda _, network: f"{network.address}/{network.length}"),
)
