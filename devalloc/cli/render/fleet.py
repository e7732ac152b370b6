"""Print the overview of a fleet: as lines, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from devalloc.cli.render.cells import ago, amounts_cell, state_cell
from devalloc.cli.render.output import Cell, StyledText, print_table
from devalloc.cli.render.pictures import STYLES
from devalloc.cli.terminal import print_line
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
from devalloc.usage.overview.model import count_noun
from devalloc.usage.overview.picture import rack_pictures

NETWORK = "(network)"
"""Devices without a node, as in `devalloc get pools`."""
COUNTS = ("DEVICES", "AVAILABLE", "IN USE", "UNAVAILABLE", "EXCLUDED")
_MESSAGE = 300
"""Characters of a message in a table; `devalloc explain` shows all of it."""


@dataclass(frozen=True, slots=True)
class TitledTable:
    """A table with its title."""

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    number: int | None = None
    """How many things they are about; by default, as many as rows."""
    ids: Sequence[str] = ()
    """What each row is about, such as "claim:default/train"; empty if there is no more to see of it."""
    bars: Sequence[DeviceCounts] = ()
    """What a live screen draws before each row."""


def overview_json(overview: Overview) -> dict[str, Any]:
    """All of it, for JSON."""
    return asdict(overview, dict_factory=_camel_fields)


def _camel_fields(items: list[tuple[str, Any]]) -> dict[str, Any]:
    named = {_camel(name): value for name, value in items}
    if named.keys() == set(STATES):
        counts = DeviceCounts(**named)
        named = {"devices": counts.devices, "available": counts.available, "inUse": counts.in_use, **named}
    return named


def _camel(name: str) -> str:
    first, *rest = name.removeprefix("is_").split("_")
    return first + "".join(word.title() for word in rest)


def summary_line(overview: Overview) -> str:
    """All numbers in one line."""
    return " ".join(number_lines(overview))


def number_lines(overview: Overview) -> tuple[str, str]:
    """All numbers in two lines: of devices, and of claims and machines."""
    counts = overview.counts
    nodes = sum(bool(node.name) for node in overview.nodes)
    both = f" ({counts.shared} of these {'is' if counts.shared == 1 else 'are'} both)" if counts.shared else ""
    claims = (
        f"Claims: {overview.allocated} allocated, {overview.pending} pending{_lost(overview)}. "
        f"Machines: {len(overview.machines)}."
    )
    if overview.hides_devices:
        return "Nodes, cards and devices: not shown.", claims
    return (
        f"{count_noun(nodes, 'node')}, {count_noun(overview.cards, 'card')}, {count_noun(counts.devices, 'device')}: "
        f"{counts.available} available, "
        f"{counts.in_use} in use{both}, {counts.unavailable} unavailable, {counts.excluded} excluded.",
        claims,
    )


def _lost(overview: Overview) -> str:
    return f"; {count_noun(overview.lost, 'lost device')}" if overview.lost else ""


def node_search_text(node: NodeSummary) -> str:
    """Return what a search of a node looks at: its name, its cards, their devices, and who holds them."""
    words = [node.name]
    for card in node.cards:
        words += (card.name, card.model, card.driver)
        for device in card.devices:
            words += (
                device.name,
                device.what,
                *(f"{one.namespace}/{one.name} {one.machine}" for one in device.holders),
            )
    return "\n".join(words)


def overview_tables(overview: Overview, *, wide: bool) -> list[TitledTable]:
    """Its tables, without empty ones."""
    number = sum(bool(node.name) for node in overview.nodes)
    nodes = TitledTable(
        "Nodes",
        ("NODE", "CARDS", *COUNTS, "PUBLISHED AS", "CORDONED"),
        list(_nodes(overview)),
        number,
        [f"node:{node.name}" for node in overview.nodes],
        [node.counts for node in overview.nodes],
    )
    if wide:
        headers = ("NODE", "CARD, DEVICE", "WHAT", *COUNTS, "STATE", "HELD BY, OR WHY NOT")
        nodes = TitledTable("Nodes, cards, devices that are not free", headers, list(_cards(overview)))
    racks = rack_pictures(overview.nodes) if any(node.rack for node in overview.nodes) else ()
    claims = [claim for claim in overview.claims if claim.is_pending]
    every = [
        TitledTable(
            "Racks",
            ("RACK", "NODES", *COUNTS),
            [[rack.name or "(none)", str(len(rack.nodes)), *_counts(rack.counts)] for rack in racks],
            sum(bool(rack.name) for rack in racks),
            bars=[rack.counts for rack in racks],
        ),
        nodes,
        TitledTable(
            "Claims whose devices are gone",
            ("CLAIM", "STATE", "NODE", "GONE"),
            [_losing_claim(claim) for claim in overview.claims if claim.lost],
        ),
        TitledTable(
            "Claims that wait",
            ("CLAIM", "WANTS", "REASON", "MESSAGE"),
            [_claim(claim) for claim in claims],
            ids=[claim_id(claim) for claim in claims],
        ),
        TitledTable(
            "Machines",
            ("MACHINE", "PHASE", "NODE", "WANTED", "PERMITTED", "APPLIED", "OBSERVED", "DEVICES", "REASON", "AGE"),
            [_machine(machine) for machine in overview.machines],
            ids=[f"machine:{machine.namespace}/{machine.name}" for machine in overview.machines],
        ),
        TitledTable(
            "Quotas",
            ("QUOTA", "USED", "HARD", "RESOURCE"),
            [
                [f"{each.namespace}/{each.name}", each.used, _limit_cell(each), each.resource]
                for each in overview.quotas
            ],
        ),
        TitledTable("Objects with problems", ("OBJECT",), [[problem] for problem in overview.problems]),
    ]
    return [part for part in every if part.rows]


def print_overview(overview: Overview, *, wide: bool) -> None:
    """Print it once. On a terminal its tables fit, in colours."""
    print_line(summary_line(overview), *(f"ALARM: {alarm.text}" for alarm in overview.alarms), *overview.notes)
    for part in overview_tables(overview, wide=wide):
        print_line()
        print_table(part.headers, part.rows, wide=wide)


def _nodes(overview: Overview) -> Iterator[list[Cell]]:
    for node in overview.nodes:
        yield [node.name or NETWORK, str(node.card_count), *_counts(node.counts), node.published_as, node.cordoned]


def _cards(overview: Overview) -> Iterator[list[Cell]]:
    for node in overview.nodes:
        yield [node.name or NETWORK, "", node.published_as, *_counts(node.counts), "", node.cordoned]
        for card in node.cards:
            yield ["", card.name, card.model or card.driver, *_counts(card.counts), "", _remarks(card)]
            for device in card.devices:
                if device.state != "free":
                    name = "  " * (device.level + 1) + device.name
                    state = StyledText(device.state, STYLES[device.state])
                    yield ["", name, device.what, "", "", "", "", "", state, _held_by(device)]


def _counts(counts: DeviceCounts) -> list[Cell]:
    return [
        str(counts.devices),
        StyledText(str(counts.available), "green" if counts.available else "yellow"),
        str(counts.in_use),
        StyledText(str(counts.unavailable), "red") if counts.unavailable else "0",
        str(counts.excluded),
    ]


def _held_by(device: DeviceSummary) -> str:
    return "; ".join([*(each.text for each in device.holders), *([device.why] if device.why else [])])


def _remarks(card: CardSummary) -> str:
    return "; ".join([*([card.cordoned] if card.cordoned else []), *card.remarks])


def _limit_cell(quota: QuotaSummary) -> Cell:
    return StyledText(quota.hard, "yellow") if quota.is_full else quota.hard


def claim_id(claim: ClaimSummary) -> str:
    """What names its row, as on the page."""
    return f"{'resourceclaim' if claim.kind == 'ResourceClaim' else 'claim'}:{claim.namespace}/{claim.name}"


def _losing_claim(claim: ClaimSummary) -> list[Cell]:
    kind = "resourceclaim " if claim.kind == "ResourceClaim" else ""
    name = f"{kind}{claim.namespace}/{claim.name}"
    return [name, StyledText(claim.state, "red"), claim.node, StyledText(", ".join(claim.lost), "red")]


def _claim(claim: ClaimSummary) -> list[Cell]:
    short = claim.message if len(claim.message) <= _MESSAGE else f"{claim.message[:_MESSAGE]}..."
    kind = "resourceclaim " if claim.kind == "ResourceClaim" else ""
    return [f"{kind}{claim.namespace}/{claim.name}", claim.wants, StyledText(claim.reason, "yellow"), short]


def _machine(machine: MachineSummary) -> list[Cell]:
    return [
        f"{machine.namespace}/{machine.name}",
        state_cell(machine.phase),
        machine.node,
        *(
            amounts_cell(each.cpus, each.memory)
            for each in (machine.wanted, machine.permitted, machine.applied, machine.observed)
        ),
        str(len(machine.devices)),
        machine.reason,
        ago(machine.created),
    ]
