"""The fleet as a picture, for the page and for `devalloc top`: racks of nodes with what is free, and each card as a bar
of its parts with who holds what. Texts are those of the overview: printable, and not escaped for HTML."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from devalloc.usage.overview.model import (
    CardSummary,
    DeviceCounts,
    DeviceState,
    DeviceSummary,
    NodeSummary,
    count_noun,
)
from devalloc_solver.problem.ordering import natural_key

MAX_PIECES = 32
"""Of one card; the last one stands for all others."""


_FULL = 0.999


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a card: what a claim has of it, or what is left."""

    name: str
    state: DeviceState
    holder: str
    """Who has it, or why no claim can; "" if a claim can get it."""
    start: float
    width: float
    """Of the card, which is 1."""


@dataclass(frozen=True, slots=True)
class CardPicture:
    """A card as a bar."""

    pieces: tuple[Piece, ...]
    left: str
    """What can still be had, such as "2g.10gb or 3 x 1g.5gb"; "" if each piece says it."""

    @property
    def title(self) -> str:
        """All of it in words."""
        words = [f"{each.name} {each.holder or each.state}" for each in self.pieces]
        return "; ".join([*words, *([f"left: {self.left}"] if self.left else [])])


@dataclass(frozen=True, slots=True)
class RackPicture:
    """Nodes that are beside each other; name "" for those that do not say where."""

    name: str
    nodes: tuple[NodeSummary, ...]
    counts: DeviceCounts


def rack_pictures(nodes: Iterable[NodeSummary]) -> tuple[RackPicture, ...]:
    """Nodes by their racks, as the attribute `rack` of their devices names them."""
    by_rack: dict[str, list[NodeSummary]] = defaultdict(list)
    for node in nodes:
        by_rack[node.rack].append(node)
    named = sorted(by_rack, key=lambda rack: (not rack, natural_key(rack)))
    return tuple(
        RackPicture(rack, tuple(by_rack[rack]), sum((node.counts for node in by_rack[rack]), DeviceCounts()))
        for rack in named
    )


@lru_cache(maxsize=4096)
def card_picture(card: CardSummary) -> CardPicture:
    """A card as a bar. If its devices draw on what they share, such as partitions of a GPU do, each one in use is as
    wide as the part that it draws, and the rest is one piece; else all devices are of one width."""
    if not any(each.share for each in card.devices):
        return CardPicture(_side_by_side([(each, 1 / len(card.devices)) for each in card.devices]), "")
    pieces = _side_by_side([(each, each.share) for each in card.devices if each.state in ("held", "shared")])
    start = pieces[-1].start + pieces[-1].width if pieces else 0.0
    if start < _FULL:
        pieces = (*pieces, _rest(card.devices, start))
    return CardPicture(pieces, _can_be_had(card.devices))


def _rest(devices: Sequence[DeviceSummary], start: float) -> Piece:
    """What no claim has of a card."""
    if any(each.state == "free" for each in devices):
        return Piece("free", "free", "", start, 1 - start)
    if (broken := next((each for each in devices if each.state == "unavailable"), None)) is not None:
        return Piece("out of use", "unavailable", broken.why, start, 1 - start)
    return Piece("left over", "excluded", "too little for any device", start, 1 - start)


def _side_by_side(drawn: list[tuple[DeviceSummary, float]]) -> tuple[Piece, ...]:
    scale = 1 / max(1.0, sum(width for _, width in drawn))  # more than there is, if an alarm says so
    pieces: list[Piece] = []
    start = 0.0
    for device, width in drawn[: MAX_PIECES - 1]:
        pieces.append(Piece(device.name, device.state, _holder(device), start, width * scale))
        start += width * scale
    others = drawn[MAX_PIECES - 1 :]
    if len(others) == 1:
        pieces.append(Piece(others[0][0].name, others[0][0].state, _holder(others[0][0]), start, others[0][1] * scale))
    elif others:
        states = Counter(device.state for device, _ in others)
        words = ", ".join(f"{number} {state}" for state, number in states.most_common())
        width = sum(width for _, width in others) * scale
        pieces.append(Piece(f"{len(others)} more", states.most_common(1)[0][0], words, start, width))
    return tuple(pieces)


def _holder(device: DeviceSummary) -> str:
    if not device.holders:
        return device.why
    more = len(device.holders) - 1
    return device.holders[0].text + (f" and {more} more" if more else "")


def _can_be_had(devices: Iterable[DeviceSummary]) -> str:
    """Devices that are free, by kind. They may exclude each other: it is any one of these kinds, not all together."""
    kinds = Counter(each.what or each.name for each in devices if each.state == "free")
    return " or ".join(f"{number} x {kind}" if number > 1 else kind for kind, number in kinds.items())


def rack_text(rack: RackPicture) -> str:
    """A rack in words: "rack r1: 2 nodes, 3 of 16 devices available"."""
    name = f"rack {rack.name}: " if rack.name else ""
    devices = count_noun(rack.counts.devices, "device")
    return f"{name}{count_noun(len(rack.nodes), 'node')}, {rack.counts.available} of {devices} available"
