"""The tree of the page: nodes, their cards, and what these are cut into. What is closed is not sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

from devalloc.controller.overview import STATES, CardSummary, DeviceCounts, DeviceSummary, NodeSummary, Overview
from devalloc.controller.overview.model import count_noun
from devalloc.controller.page.components import (
    PageQuery,
    cordon_badge,
    empty_note,
    matches_search,
    more_note,
    scrollable,
    table_head,
)
from devalloc.controller.page.components import name_cell as head_of
from devalloc.controller.page.html import Child, Markup, tag

MAX_NODES = 1000
MAX_DEVICES = 512
"""Of one card."""
MAX_HOLDERS = 64
"""Of one device."""
MAX_SHOWN = 3
"""So many nodes that a search finds something in are opened."""
NETWORK = "(network)"
"""Devices without a node, as `devalloc get pools` has it."""


def render_tree(overview: Overview, query: PageQuery) -> Markup:
    fits = [node for node in overview.nodes if matches_search(query, _node_words(node))]
    shown = fits[:MAX_NODES]
    headers = ("Name", "What", "Devices", "Available", "In use", "State", "Held by, or why not")
    grid = tag(
        "table",
        table_head(headers),
        tag("tbody", *(row for i, node in enumerate(shown, 1) for row in _node_rows(node, i, len(shown), query, fits))),
        role="treegrid",
        id="tree",
        aria_label="Nodes, their cards, and the devices of these",
    )
    return tag(
        "section",
        tag("h2", "Nodes ", tag("small", str(len(fits)))),
        tag("p", "Arrow keys move, right and left expand and collapse, / searches.", class_="quiet keys", id="keys")
        if fits
        else None,
        scrollable(grid) if fits else empty_note("node", query),
        more_note(len(fits), MAX_NODES, "nodes"),
        None
        if overview.nodes
        else tag("p", "A node appears here once devalloc node runs on it and publishes its devices.", class_="quiet"),
        id="nodes",
        tabindex=-1,
    )


def _node_rows(node: NodeSummary, place: int, of: int, query: PageQuery, fits: list[NodeSummary]) -> Iterable[Markup]:
    row, name = f"node:{node.name}", node.name or NETWORK
    needle = query.search.lower()
    within = bool(needle) and needle not in name.lower()
    is_open = row in query.open or (within and len(fits) <= MAX_SHOWN)
    what = f"{count_noun(len(node.cards), 'card')} in {node.published_as}: {_models(node)}"
    yield _row(row, 1, place, of, is_open, query, name, what, node.counts, cordon_badge(node.cordoned))
    if is_open:
        cards = [card for card in node.cards if not within or needle in _card_words(card)]
        for i, card in enumerate(cards, 1):
            yield from _card_rows(card, i, len(cards), query, opened=within and len(fits) <= MAX_SHOWN)


def _card_rows(card: CardSummary, place: int, of: int, query: PageQuery, *, opened: bool) -> Iterable[Markup]:
    row = _card_id(card)
    is_open = row in query.open or opened
    numa = f"NUMA {card.numa}" if card.numa else ""
    what = ", ".join(filter(None, (card.model, card.driver, numa)))
    yield _row(row, 2, place, of, is_open, query, card.name, what, card.counts, _remarks(card))
    if is_open:
        devices = card.devices[:MAX_DEVICES]
        for i, device in enumerate(devices, 1):
            yield _device_row(card, device, i, len(devices))
        if len(devices) < len(card.devices):
            more = f"{len(card.devices) - len(devices)} more devices"
            yield tag("tr", tag("td", more, colspan=7), aria_level=3, role="row", id=f"more:{row}", tabindex=-1)


def _card_id(card: CardSummary) -> str:
    """A node that goes from one dialect to the other may have a card in both."""
    return f"card:{card.name}" if card.dialect == "DevicePool" else f"card:slices:{card.name}"


def _remarks(card: CardSummary) -> Child:
    words = "; ".join(card.remarks)
    return (cordon_badge(card.cordoned), " " if card.cordoned and words else None, words)


def _row(
    row: str, level: int, place: int, of: int, is_open: bool, query: PageQuery, name: str, what: str,
    counts: DeviceCounts, why: Child,
) -> Markup:  # fmt: skip
    return tag(
        "tr",
        head_of(
            name,
            tag("a", name, href=query.toggle_query(row), class_="toggle"),
            role="rowheader",
            class_=f"level{level}",
        ),
        tag("td", what, role="gridcell", class_="long"),
        tag("td", str(counts.devices), role="gridcell", class_="number"),
        tag("td", str(counts.available), role="gridcell", class_="number"),
        tag("td", str(counts.in_use), role="gridcell", class_="number"),
        tag("td", _bar(counts), role="gridcell"),
        tag("td", why, role="gridcell", class_="long"),
        role="row",
        id=row,
        tabindex=-1,
        aria_level=level,
        aria_posinset=place,
        aria_setsize=of,
        aria_expanded="true" if is_open else "false",
    )


def _device_row(card: CardSummary, device: DeviceSummary, place: int, of: int) -> Markup:
    return tag(
        "tr",
        head_of(device.name, role="rowheader", class_=f"level{min(3 + device.level, 5)}"),
        tag("td", device.what, role="gridcell", class_="long"),
        *(tag("td", role="gridcell") for _ in range(3)),
        tag("td", tag("span", device.state, class_=f"badge {device.state}"), role="gridcell"),
        tag("td", _holders(device), role="gridcell", class_="long"),
        role="row",
        id=f"{_card_id(card).replace('card:', 'device:', 1)}/{device.name}",
        tabindex=-1,
        aria_level=3,
        aria_posinset=place,
        aria_setsize=of,
    )


def _holders(device: DeviceSummary) -> Child:
    shown = [each.text for each in device.holders[:MAX_HOLDERS]]
    more = len(device.holders) - len(shown)
    texts = [*shown, *([f"{more} more"] if more else []), *([device.why] if device.why else [])]
    return "; ".join(texts)


@lru_cache(maxsize=4096)
def _bar(counts: DeviceCounts) -> Markup:
    """Devices by state, as a picture with its words."""
    words = ", ".join(f"{number} {state}" for state in STATES if (number := getattr(counts, state)))
    start, parts = 0.0, []
    for state in STATES:
        width = 100 * getattr(counts, state) / max(1, counts.devices)
        if width:
            parts.append(tag("rect", x=f"{start:.2f}", y=0, width=f"{width:.2f}", height=8, class_=state))
        start += width
    title = words or "no devices"
    picture = tag(
        "svg", tag("title", title), *parts, viewBox="0 0 100 8", preserveAspectRatio="none", class_="bar", role="img"
    )
    return picture


@lru_cache(maxsize=8192)
def _node_words(node: NodeSummary) -> str:
    """What a search looks at; kept as long as the node is as it is."""
    return "\n".join([(node.name or NETWORK).lower(), node.cordoned.lower(), *map(_card_words, node.cards)])


@lru_cache(maxsize=8192)
def _card_words(card: CardSummary) -> str:
    devices = (f"{each.name}\n{each.what}\n{each.state}\n{_holders(each)}" for each in card.devices)
    words = (card.name, card.driver, card.model, card.dialect, card.cordoned, card.note)
    return "\n".join([*words, *devices]).lower()


def _models(node: NodeSummary) -> str:
    counted = Counter(card.model or card.driver for card in node.cards)
    named = [f"{number} {model}" if number > 1 else model for model, number in counted.items()]
    return ", ".join(named[:4]) + (f", {len(named) - 4} more" if len(named) > 4 else "")
