"""What the page shows of an overview: values for its templates, narrowed by a search, and bounded; and the tree of
nodes, their cards, and what these are cut into. What is closed is not sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

from devalloc.controller.refusals import Refusal
from devalloc.usage.overview import (
    STATES,
    CardSummary,
    ClaimSummary,
    DeviceCounts,
    DeviceSummary,
    MachineSummary,
    NodeSummary,
    Overview,
    QuotaSummary,
)
from devalloc.usage.overview.model import Alarm, count_noun
from devalloc.usage.overview.picture import CardPicture, card_picture, rack_pictures, rack_text
from devalloc.usage.overview.refusal_cache import NO_REFUSALS, Refusals

MAX_DEVICES = 512
"""Of one card."""
MAX_HOLDERS = 64
"""Of one device."""
MAX_SHOWN = 3
"""So many nodes that a search finds something in are opened."""
NETWORK = "(network)"
"""Devices without a node, as `devalloc get pools` has it."""


@dataclass(frozen=True, slots=True)
class Bar:
    """Devices by state, as a picture with its words."""

    title: str
    parts: tuple[tuple[str, str, str], ...]
    """State, place and width of each; the whole is 100 wide."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A row that can be opened: a node, or a card of one."""

    id: str
    name: str
    what: str
    counts: DeviceCounts
    bar: Bar
    cordoned: str
    remarks: str
    toggle: str
    """The query that has it the other way."""
    is_open: bool
    cards: tuple[Branch, ...] = ()
    """Of an open node."""
    devices: tuple[DeviceSummary, ...] = ()
    """Of an open card."""
    picture: CardPicture | None = None
    """Of an open card with several devices."""
    more: int = 0
    """Devices that are not shown."""


def node_branches(
    nodes: Sequence[NodeSummary], opened: Sequence[str], toggle: Callable[[str], str], needle: str, *, fits: int
) -> tuple[Branch, ...]:
    """The rows of nodes. ``toggle``: of a row's id, the query that has it the other way; ``needle``: what is searched,
    in lower case; ``fits``: how many nodes have it."""

    def branch_of_node(node: NodeSummary) -> Branch:
        row, name = f"node:{node.name}", node.name or NETWORK
        within = bool(needle) and needle not in name.lower()
        is_opened = within and fits <= MAX_SHOWN
        is_open = row in opened or is_opened
        what = f"{count_noun(node.card_count, 'card')} in {node.published_as}: {_models(node)}"
        cards = [card for card in node.cards if not within or needle in _card_words(card)] if is_open else []
        return Branch(
            row, name, what, node.counts, _bar(node.counts), node.cordoned, "", toggle(row), is_open,
            cards=tuple(branch_of_card(card, is_opened=is_opened) for card in cards),
        )  # fmt: skip

    def branch_of_card(card: CardSummary, *, is_opened: bool) -> Branch:
        # A node that goes from one dialect to the other may have a card in both
        row = f"card:{card.name}" if card.dialect == "DevicePool" else f"card:slices:{card.name}"
        is_open = row in opened or is_opened
        what = ", ".join(filter(None, (card.model, card.driver, f"NUMA {card.numa}" if card.numa else "")))
        return Branch(
            row, card.name, what, card.counts, _bar(card.counts), card.cordoned, "; ".join(card.remarks), toggle(row),
            is_open,
            devices=card.devices[:MAX_DEVICES] if is_open else (),
            picture=card_picture(card) if is_open and len(card.devices) > 1 else None,
            more=max(0, len(card.devices) - MAX_DEVICES) if is_open else 0,
        )  # fmt: skip

    return tuple(map(branch_of_node, nodes))


def holders_text(device: DeviceSummary) -> str:
    """Who has a device, or why no claim can."""
    shown = [each.text for each in device.holders[:MAX_HOLDERS]]
    more = len(device.holders) - len(shown)
    return "; ".join([*shown, *([f"{more} more"] if more else []), *([device.why] if device.why else [])])


@lru_cache(maxsize=4096)
def _bar(counts: DeviceCounts) -> Bar:
    words = ", ".join(f"{number} {state}" for state in STATES if (number := getattr(counts, state)))
    start, parts = 0.0, []
    for state in STATES:
        width = 100 * getattr(counts, state) / max(1, counts.devices)
        if width:
            parts.append((state, f"{start:.2f}", f"{width:.2f}"))
        start += width
    return Bar(words or "no devices", tuple(parts))


@lru_cache(maxsize=8192)
def node_words(node: NodeSummary) -> str:
    """What a search looks at; kept as long as the node is as it is."""
    return "\n".join([(node.name or NETWORK).lower(), node.cordoned.lower(), *map(_card_words, node.cards)])


@lru_cache(maxsize=8192)
def _card_words(card: CardSummary) -> str:
    devices = (f"{each.name}\n{each.what}\n{each.state}\n{holders_text(each)}" for each in card.devices)
    words = (card.name, card.driver, card.model, card.dialect, card.cordoned, card.note)
    return "\n".join([*words, *devices]).lower()


def _models(node: NodeSummary) -> str:
    counted = Counter(card.model or card.driver for card in node.cards)
    named = [f"{number} {model}" if number > 1 else model for model, number in counted.items()]
    return ", ".join(named[:4]) + (f", {len(named) - 4} more" if len(named) > 4 else "")


T = TypeVar("T")

MAX_OPEN = 64
MAX_SEARCH = 200
MAX_NODES = 1000
MAX_WITH_WORDS = 60
"""Nodes of the picture of the fleet that have their names in it."""
MAX_ROWS = 200
"""Of claims, machines and problems."""


@dataclass(frozen=True, slots=True)
class PageQuery:
    """What the user wants to see."""

    search: str = ""
    open: tuple[str, ...] = ()
    """Ids of rows that are open."""

    @classmethod
    def of(cls, query: Any) -> PageQuery:
        """Of a query such as ``?q=train&open=node:a``."""
        return cls(query.get("q", "").strip()[:MAX_SEARCH], tuple(query.getall("open", ()))[:MAX_OPEN])

    def toggle_query(self, row: str) -> str:
        """The query that has a row the other way."""
        others = [each for each in self.open if each != row]
        opened = others if row in self.open else [*others, row]
        return "?" + urlencode([*([("q", self.search)] if self.search else []), *(("open", each) for each in opened)])


@dataclass(frozen=True, slots=True)
class Rows(Generic[T]):
    """The first of ``total`` rows."""

    shown: tuple[T, ...]
    total: int

    @property
    def more(self) -> int:
        """How many are not shown."""
        return self.total - len(self.shown)


@dataclass(frozen=True, slots=True)
class Tile:
    """A number at the top, and its colour."""

    name: str
    number: int
    style: str = ""


@dataclass(frozen=True, slots=True)
class ClaimRow:
    """A claim, and if it is open, what is in its way."""

    id: str
    claim: ClaimSummary
    toggle: str
    """The query that has it the other way; "" if there is nothing to open."""
    is_open: bool
    refusal: Refusal | None
    """None: not open, or not known."""


@dataclass(frozen=True, slots=True)
class NodeTile:
    """A node in the picture of the fleet."""

    row: str
    """Of the tree, where the rest is."""
    name: str
    counts: DeviceCounts
    bar: Bar
    level: int
    """How much of it is available, from 0, for nothing, to 4, for all."""


@dataclass(frozen=True, slots=True)
class RackTiles:
    """Nodes beside each other."""

    title: str
    """ "" if there are no racks."""
    tiles: tuple[NodeTile, ...]


@dataclass(frozen=True, slots=True)
class OverviewView:
    """An overview as a query wants it."""

    overview: Overview
    query: PageQuery
    tiles: tuple[Tile, ...]
    alarms: Rows[Alarm]
    claims: Rows[ClaimRow]
    pending: int
    """Of the claims that fit the search."""
    racks: tuple[RackTiles, ...]
    is_dense: bool
    """So many nodes that each is a square without words."""
    named_nodes: int
    """Without the devices that no node has."""
    nodes: Rows[Branch]
    scales: bool
    """A machine has been permitted or given an amount."""
    machines: Rows[MachineSummary]
    quotas: Rows[QuotaSummary]
    problems: Rows[str]


def overview_view(overview: Overview, query: PageQuery, refusals: Refusals = NO_REFUSALS) -> OverviewView:
    """What the page shows of an overview. ``refusals``: why claims wait, as far as it is known."""
    needle = query.search.lower()

    def fitting(items: Iterable[T], words: Callable[[T], str]) -> list[T]:
        return [item for item in items if not needle or needle in words(item)]

    def row_of_claim(claim: ClaimSummary) -> ClaimRow:
        name = f"{claim.namespace}/{claim.name}"
        row = f"{'resourceclaim' if claim.kind == 'ResourceClaim' else 'claim'}:{name}"
        can_be_opened = claim.is_pending and claim.kind == "DeviceClaim"
        is_open = can_be_opened and row in query.open
        refusal = refusals.get((claim.namespace, claim.name)) if is_open else None
        return ClaimRow(row, claim, query.toggle_query(row) if can_be_opened else "", is_open, refusal)

    claims = fitting(overview.claims, _claim_words)
    nodes = fitting(overview.nodes, node_words)
    machines = fitting(overview.machines, _machine_words)
    branches = node_branches(nodes[:MAX_NODES], query.open, query.toggle_query, needle, fits=len(nodes))
    return OverviewView(
        overview,
        query,
        _tiles(overview),
        _first(overview.alarms),
        Rows(tuple(map(row_of_claim, claims[:MAX_ROWS])), len(claims)),
        sum(claim.is_pending for claim in claims),
        _racks(nodes[:MAX_NODES]),
        len(nodes) > MAX_WITH_WORDS,
        sum(bool(node.name) for node in nodes),
        Rows(branches, len(nodes)),
        any(each.cpus or each.memory for one in machines for each in (one.permitted, one.applied, one.observed)),
        _first(machines),
        _first(fitting(overview.quotas, _quota_words)),
        _first(overview.problems),
    )


def _racks(nodes: Sequence[NodeSummary]) -> tuple[RackTiles, ...]:
    racks = rack_pictures(nodes)
    return tuple(
        RackTiles(rack_text(rack) if rack.name or len(racks) > 1 else "", tuple(map(_node_tile, rack.nodes)))
        for rack in racks
    )


def _node_tile(node: NodeSummary) -> NodeTile:
    counts = node.counts
    level = -(-4 * counts.available // max(1, counts.devices))
    return NodeTile(f"node:{node.name}", node.name or NETWORK, counts, _bar(counts), level)


def _first(items: list[T] | tuple[T, ...]) -> Rows[T]:
    return Rows(tuple(items[:MAX_ROWS]), len(items))


def _tiles(overview: Overview) -> tuple[Tile, ...]:
    counts = overview.counts
    return (
        Tile("Nodes", sum(bool(node.name) for node in overview.nodes)),
        Tile("Cards", overview.cards),
        Tile("Devices", counts.devices),
        Tile("Available", counts.available, "free"),
        Tile("In use", counts.in_use, "held"),
        Tile("Unavailable", counts.unavailable, "unavailable"),
        Tile("Excluded", counts.excluded, "excluded"),
        Tile("Claims allocated", overview.allocated),
        Tile("Claims pending", overview.pending, "pending" if overview.pending else ""),
        Tile("Machines", len(overview.machines)),
        *([Tile("Devices lost", overview.lost, "unavailable")] if overview.lost else []),
    )


def _claim_words(claim: ClaimSummary) -> str:
    words = (claim.kind, claim.state, claim.wants, claim.node, claim.devices, claim.reason, claim.message)
    return "\n".join([f"{claim.namespace}/{claim.name}", *words, claim.machine, *claim.pods]).lower()


def _machine_words(machine: MachineSummary) -> str:
    words = (machine.phase, machine.node, machine.reason, machine.message, *machine.claims, *machine.devices)
    return "\n".join([f"{machine.namespace}/{machine.name}", *words]).lower()


def _quota_words(quota: QuotaSummary) -> str:
    return f"{quota.namespace}/{quota.name}\n{quota.resource}".lower()
