"""The resources of a host, and what the admin decides about them: ratios of oversubscription, and limits.

Every unit is binary: a kilobyte has 1024 bytes, whether it is written ``k``, ``kB``, ``KiB`` or ``Ki``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Literal, Self

from devalloc.api.quantity import parse_cpu_and_memory
from devalloc.settings import EXISTING_FOLDER, BadSetting, Setting, declared, setting

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


def parse_ratio(text: str) -> Fraction:
    """A ratio or fraction by its decimal text: ``4``, ``1.5``, ``0.2``. Exact. Raises AmountError."""
    stripped = text.strip()
    if _RATIO.fullmatch(stripped) is None:
        raise AmountError(f"invalid ratio {quote_text(text)}: write a decimal number such as 4 or 1.5")
    return Fraction(stripped)


def _fraction(text: str) -> Fraction:
    """A ratio between 0 and 1. 0 means the default, as in the program whose settings these are."""
    part = parse_ratio(text)
    if not 0 <= part <= 1:
        raise AmountError(f"invalid part of the disk {text}: write 0.2 for a fifth, at most 1")
    return part


def _room(text: str) -> tuple[int, int]:
    return parse_cpu_and_memory(text, "8,32Gi")


def _ratio(what: str, resource: Resource) -> Setting:
    return Setting(
        f"How many times devalloc may promise the host's {what} to machines.",
        type=parse_ratio,
        metavar="RATIO",
        env=f"DEVALLOC_OVERSUB_{resource.upper()}",
        unset=str(DEFAULT_RATIOS[resource]),
    )


@dataclass(frozen=True, slots=True)
class CapacityConfig:
    """How much of the host devalloc promises to machines.

    The defaults take the host as it is found. A ratio that is not more than zero counts as 1.
    """

    oversub_cpu: Fraction | None = declared(_ratio("CPUs", "cpu"))
    oversub_memory: Fraction | None = declared(_ratio("memory", "memory"))
    oversub_disk: Fraction | None = declared(_ratio("disk", "disk"))
    oversub_network: Fraction | None = declared(_ratio("bandwidth", "network"))
    oversub_disk_io: Fraction | None = declared(_ratio("disk bandwidth", "disk_io"))
    for_others: tuple[int, int] | None = setting(
        "Of the CPUs and memory that devalloc may promise, those that placement leaves free: room for machines that "
        "others start, such as NeonVM's. Permits may give it.",
        flag="--room-for-others",
        type=_room,
        metavar="CPU,MEMORY",
        env="DEVALLOC_ROOM_FOR_OTHERS",
        unset="0,0",
    )
    """Thousandths of a CPU, and bytes."""
    disk: int | None = setting(
        "Disk for machines, such as 500GB (1GB is 2^30 bytes).",
        flag="--disk-limit",
        type=parse_size,
        metavar="SIZE",
        env="DEVALLOC_DISK_LIMIT",
        unset="all of the data folder's file system",
    )
    network: int | None = setting(
        "Bandwidth for machines, such as 10Gbps (bits, decimal) or 125MB/s (bytes, binary).",
        flag="--network-limit",
        type=parse_bandwidth,
        metavar="RATE",
        env="DEVALLOC_NETWORK_LIMIT",
        unset="the speed of the uplink",
    )
    disk_io: int | None = setting(
        "Bandwidth of the disks, such as 500MB/s.",
        flag="--disk-io-limit",
        type=parse_bandwidth,
        metavar="RATE",
        env="DEVALLOC_DISK_IO_LIMIT",
        unset="10^9 bytes per second",
    )
    uplink: str | None = setting(
        "Interface through which machines reach the network.",
        metavar="INTERFACE",
        env="DEVALLOC_UPLINK",
        unset="the one of the first IPv4 default route",
    )
    data_dir: Path | None = setting(
        "Folder of machines' disks and images. What is below images, oci-cache and volumes in it counts.",
        type=EXISTING_FOLDER,
        metavar="DIR",
        env="DEVALLOC_DATA_DIR",
        unset="the store's folder",
    )
    image_fraction: Fraction = setting(
        "Part of the disk that images and their cache may use, at most 1: no more of them may be pulled then.",
        flag="--max-image-storage",
        type=_fraction,
        default=DEFAULT_IMAGE_FRACTION,
        metavar="FRACTION",
        env="DEVALLOC_MAX_IMAGE_STORAGE",
        unset="0.2",
    )

    def __post_init__(self) -> None:
        for name in ("disk", "network", "disk_io"):
            limit = getattr(self, name)
            if limit is not None and limit < 0:
                raise ValueError(f"the limit of {name} must not be negative, but is {limit}")

    def checked(self, data_dir: Path | None) -> Self:
        """As an administrator may set it, with this data folder, if it is there, where none is set. Raises
        BadSetting."""
        for name in DEFAULT_RATIOS:
            ratio = getattr(self, f"oversub_{name}")
            if ratio is not None and ratio <= 0:
                raise BadSetting(f"--oversub-{name.replace('_', '-')}", f"must be more than 0, not {ratio}")
        return replace(
            self, data_dir=self.data_dir or (data_dir if data_dir is not None and data_dir.is_dir() else None)
        )

    def ratio(self, resource: str) -> Fraction:
        """The ratio of a resource; 1 for a name that is none."""
        for name, default in DEFAULT_RATIOS.items():
            if name == resource:
                given: Fraction | None = getattr(self, f"oversub_{name}")
                ratio = default if given is None else given
                return ratio if ratio > 0 else Fraction(1)
        return Fraction(1)

    def image_limit(self, disk: int) -> int:
        """Bytes of a disk that images and their cache may take: its part of what there is, without oversubscription."""
        part = self.image_fraction if self.image_fraction > 0 else DEFAULT_IMAGE_FRACTION
        return disk * part.numerator // part.denominator
