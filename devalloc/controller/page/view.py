"""What the page shows of an overview: values for its templates, narrowed by a search, and bounded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

from devalloc.controller.overview import ClaimSummary, MachineSummary, Overview, QuotaSummary
from devalloc.controller.overview.model import Alarm
from devalloc.controller.page.tree import Branch, node_branches, node_words

T = TypeVar("T")

MAX_OPEN = 64
MAX_SEARCH = 200
MAX_NODES = 1000
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
class OverviewView:
    """An overview as a query wants it."""

    overview: Overview
    query: PageQuery
    tiles: tuple[Tile, ...]
    alarms: Rows[Alarm]
    claims: Rows[ClaimSummary]
    pending: int
    """Of the claims that fit the search."""
    nodes: Rows[Branch]
    machines: Rows[MachineSummary]
    quotas: Rows[QuotaSummary]
    problems: Rows[str]


def overview_view(overview: Overview, query: PageQuery) -> OverviewView:
    """What the page shows of an overview."""
    needle = query.search.lower()

    def fitting(items: Iterable[T], words: Callable[[T], str]) -> list[T]:
        return [item for item in items if not needle or needle in words(item)]

    claims = fitting(overview.claims, _claim_words)
    nodes = fitting(overview.nodes, node_words)
    branches = node_branches(nodes[:MAX_NODES], query.open, query.toggle_query, needle, fits=len(nodes))
    return OverviewView(
        overview,
        query,
        _tiles(overview),
        _first(overview.alarms),
        _first(claims),
        sum(claim.is_pending for claim in claims),
        Rows(branches, len(nodes)),
        _first(fitting(overview.machines, _machine_words)),
        _first(fitting(overview.quotas, _quota_words)),
        _first(overview.problems),
    )


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
    )


def _claim_words(claim: ClaimSummary) -> str:
    words = (claim.kind, claim.state, claim.wants, claim.node, claim.devices, claim.reason, claim.message)
    return "\n".join([f"{claim.namespace}/{claim.name}", *words, claim.machine, *claim.pods]).lower()


def _machine_words(machine: MachineSummary) -> str:
    words = (machine.phase, machine.node, machine.reason, machine.message, *machine.claims, *machine.devices)
    return "\n".join([f"{machine.namespace}/{machine.name}", *words]).lower()


def _quota_words(quota: QuotaSummary) -> str:
    return f"{quota.namespace}/{quota.name}\n{quota.resource}".lower()
