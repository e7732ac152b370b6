"""The resources of a host, and what the admin decides about them: ratios of oversubscription, and limits.

Every unit is binary: a kilobyte has 1024 bytes, whether it is written ``k``, ``kB``, ``KiB`` or ``Ki``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Literal

MAX_BYTES = 2**63 - 1
"""Most bytes, and bytes per second, that an amount may have."""
_MAX_TEXT = 64
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4, "p": 5, "e": 6}
_NAMES = {"kilo": "k", "mega": "m", "giga": "g", "tera": "t", "peta": "p", "exa": "e"}
_UNITS = {
    **dict.fromkeys(("", "b", "byte", "bytes"), 0),
    **{f"{letter}{end}": power for letter, power in _POWERS.items() for end in ("", "b", "i", "ib")},
    **{f"{name}{end}": _POWERS[letter] for name, letter in _NAMES.items() for end in ("", "byte", "bytes")},
}
_SIZE = re.compile(r"([0-9]{1,32})\s*([A-Za-z]*)", re.ASCII)


class AmountError(ValueError):
    """An invalid amount. The message shows the text, what is wrong with it, and how to write it."""


def parse_size(text: str) -> int:
    """Bytes of a size: digits, perhaps blanks, and a unit in any case (``100GB``, ``100 gib``, ``100000``).

    Raises AmountError for anything else: nothing at all, a sign, a fraction, more than 2^63 - 1 bytes.
    """
    match = _SIZE.fullmatch(strip_amount(text))
    if match is None:
        raise AmountError(
            f"invalid size {quote_text(text)}: write digits and a unit, such as 100GB or 512MiB (1KB is 1024 bytes)"
        )
    power = _UNITS.get(match[2].lower())
    if power is None:
        raise AmountError(
            f"invalid size {quote_text(text)}: unknown unit {match[2][:20]!r}; use B, KB, MB, GB, TB, PB or EB"
        )
    return check_range(int(match[1]) << 10 * power, text)


def strip_amount(text: str) -> str:
    """The text without blanks around it. Raises AmountError when nothing is left, or far too much."""
    stripped = text.strip()
    if not stripped:
        raise AmountError("is empty: write an amount, or leave the setting out")
    if len(stripped) > _MAX_TEXT:
        raise AmountError(f"invalid amount {quote_text(stripped)}: it has more than {_MAX_TEXT} characters")
    return stripped


def check_range(amount: int, text: str) -> int:
    """The amount, when it is one that can be. Raises AmountError otherwise."""
    if amount > MAX_BYTES:
        raise AmountError(f"{quote_text(text)} is more than 2^63 - 1 bytes")
    return amount


def quote_text(text: str) -> str:
    """A text inside a message."""
    return repr(text if len(text) <= 40 else text[:39] + "…")


def format_size(size: int) -> str:
    """A size for people: one decimal, a blank and a unit that it is *more* than one of, so 1 GiB is ``1024.0 MB``."""
    for power, unit in ((6, "EB"), (5, "PB"), (4, "TB"), (3, "GB"), (2, "MB"), (1, "KB")):
        if size > 1 << 10 * power:
            whole, rest = divmod(size, 1 << 10 * power)
            return f"{whole + rest / (1 << 10 * power):.1f} {unit}"
    return f"{size} B"


_BITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_NUMBER = re.compile(r"\+?[0-9]{1,32}", re.ASCII)
_AMBIGUOUS = re.compile(r"[0-9]+\s*(?:[KMGTPE]b(?:/s)?|[kmgtpe]?b/s)", re.ASCII)
"""A small b: megabits to who writes carefully, megabytes to who does not."""
_ADVICE = "write bits as 100Mbps or 10Gbps, bytes as 100MBps or 100MB/s"


def parse_bandwidth(text: str) -> int:
    """Bytes per second; what is less than a byte of a number of bits is dropped.

    Raises AmountError for what is empty, negative, no number, ambiguous or more than 2^63 - 1.
    """
    amount = strip_amount(text)
    ending = amount[-3:]
    if ending.lower() == "bps" and ending not in ("bps", "Bps"):
        raise AmountError(f"{quote_text(text)} may be bits or bytes: {_ADVICE}")
    if ending == "bps":
        return check_range(_bits(amount[:-3].strip(), text) // 8, text)
    if _AMBIGUOUS.fullmatch(amount) is not None:
        raise AmountError(f"{quote_text(text)} may be bits or bytes: {_ADVICE}")
    size = amount.removesuffix("/s") if ending != "Bps" else amount[:-2]
    try:
        return parse_size(size)
    except AmountError as error:
        raise AmountError(f"invalid bandwidth {quote_text(text)}: parse as bytes: {error} ({_ADVICE})") from None


def _bits(amount: str, text: str) -> int:
    unit = amount[-1:].lower()
    number = amount[:-1].strip() if unit in ("k", "m", "g") else amount
    if _NUMBER.fullmatch(number) is None:
        advice = "must not be negative" if number.startswith("-") else f"whole numbers only; {_ADVICE}"
        raise AmountError(f"invalid bandwidth {quote_text(text)}: invalid number: {number.lower()[:20]} ({advice})")
    return int(number) * _BITS[unit if unit in _BITS else ""]


Resource = Literal["cpu", "memory", "disk", "network", "disk_io", "hugepages-2Mi", "hugepages-1Gi"]
HUGE_PAGES: dict[Resource, int] = {"hugepages-2Mi": 2 << 20, "hugepages-1Gi": 1 << 30}
"""Bytes of a page, by resource. What is in such pages is no ordinary memory of the host."""
RESOURCES: tuple[Resource, ...] = ("cpu", "memory", "disk", "network", "disk_io", *HUGE_PAGES)
"""In the order in which requests are validated."""
UNITS: dict[Resource, str] = {
    "cpu": "thousandths of a CPU",
    "memory": "bytes",
    "disk": "bytes",
    "network": "bytes per second",
    "disk_io": "bytes per second",
    "hugepages-2Mi": "bytes",
    "hugepages-1Gi": "bytes",
}
MILLI = 1000
"""Thousandths of a CPU in a CPU."""

Source = Literal["detected", "configured", "assumed", "unknown"]
"""``detected`` on the host; ``configured`` by the admin; ``assumed`` where it cannot be detected and a default stands
for it; ``unknown``: the capacity is 0."""


class UnknownResource(LookupError):
    """A name that is none of ``RESOURCES``."""

    def __init__(self, name: str) -> None:
        super().__init__(f"unknown resource type: {name} (there are {', '.join(RESOURCES)})")


@dataclass(frozen=True, slots=True)
class Capacity:
    """How much of one resource a host has, and how much of it may be promised."""

    resource: Resource
    capacity: int
    """What there is, in the unit of the resource: see UNITS."""
    ratio: Fraction
    """Of oversubscription: how much may be promised of each unit that there is. More than zero."""
    source: Source
    """How the capacity is known."""

    def __post_init__(self) -> None:
        if self.capacity < 0 or self.ratio <= 0:
            raise ValueError(f"{self.resource}: capacity and ratio cannot be {self.capacity} and {self.ratio}")

    @property
    def effective_limit(self) -> int:
        """The most that may be promised: capacity times ratio, rounded down; for CPUs to whole ones. Exact."""
        step = MILLI if self.resource == "cpu" else 1
        return self.capacity // step * self.ratio.numerator // self.ratio.denominator * step


def resource_named(name: str) -> Resource:
    """The resource of that name. Raises UnknownResource."""
    for resource in RESOURCES:
        if resource == name:
            return resource
    raise UnknownResource(name)


DEFAULT_RATIOS: dict[Resource, Fraction] = {  # of those that can be oversubscribed: a huge page is there or not
    "cpu": Fraction(4),
    "memory": Fraction(1),
    "disk": Fraction(1),
    "network": Fraction(2),
    "disk_io": Fraction(2),
}
DEFAULT_DISK_IO = 10**9
"""Bytes per second that a host is assumed to have: nothing tells what its disks can do."""
DEFAULT_IMAGE_FRACTION = Fraction(1, 5)
_RATIO = re.compile(r"[+-]?[0-9]{1,9}(?:\.[0-9]{1,9})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class CapacityConfig:
    """Settings of ``discover_capacity``. The defaults take the host as it is found."""

    ratios: Mapping[Resource, Fraction] = field(default_factory=dict)
    """By resource; DEFAULT_RATIOS where nothing is said, 1 for what is not more than zero."""
    disk: int | None = None
    """Bytes of disk for machines, instead of the size of the file system of ``data_dir``."""
    network: int | None = None
    """Bytes per second, instead of the speed of the uplink."""
    disk_io: int | None = None
    """Bytes per second of reading and writing; DEFAULT_DISK_IO where nothing is said."""
    uplink: str | None = None
    """The interface through which machines reach the network; that of the first IPv4 default route otherwise."""
    data_dir: Path | None = None
    """Where machines' disks and images lie: its file system is the disk."""
    image_fraction: Fraction = DEFAULT_IMAGE_FRACTION
    """The part of the disk that images and their cache may take; the default for what is not more than zero."""

    def __post_init__(self) -> None:
        unknown = sorted(self.ratios.keys() - set(DEFAULT_RATIOS))
        if unknown:
            raise ValueError(f"no such resource: {', '.join(unknown)} (there are {', '.join(DEFAULT_RATIOS)})")
        for name in ("disk", "network", "disk_io"):
            limit = getattr(self, name)
            if limit is not None and limit < 0:
                raise ValueError(f"the limit of {name} must not be negative, but is {limit}")

    def ratio(self, resource: str) -> Fraction:
        """The ratio of a resource; 1 for a name that is none."""
        for name, default in DEFAULT_RATIOS.items():
            if name == resource:
                ratio = self.ratios.get(name, default)
                return ratio if ratio > 0 else Fraction(1)
        return Fraction(1)

    def image_limit(self, disk: int) -> int:
        """Bytes of a disk that images and their cache may take: its part of what there is, without oversubscription."""
        part = self.image_fraction if self.image_fraction > 0 else DEFAULT_IMAGE_FRACTION
        return disk * part.numerator // part.denominator


def parse_ratio(text: str) -> Fraction:
    """A ratio or fraction by its decimal text: ``4``, ``1.5``, ``0.2``. Exact. Raises AmountError."""
    stripped = text.strip()
    if _RATIO.fullmatch(stripped) is None:
        raise AmountError(f"invalid ratio {quote_text(text)}: write a decimal number such as 4 or 1.5")
    return Fraction(stripped)
