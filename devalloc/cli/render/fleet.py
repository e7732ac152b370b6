"""Print the overview of a fleet: as lines, live on a terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from devalloc.cli.layout import fit_lines, wrap_sentence
from devalloc.cli.render.columns import format_elapsed
from devalloc.cli.render.output import Cell, StyledText, one_line, print_table, table_lines
from devalloc.cli.terminal import print_line
from devalloc.controller.overview import STATES, DeviceCounts, Overview
from devalloc.controller.overview.model import count_noun

if TYPE_CHECKING:
    from rich.console import RenderableType

    from devalloc.controller.overview import (
        AmountTexts,
        CardSummary,
        ClaimSummary,
        DeviceSummary,
        MachineSummary,
        QuotaSummary,
    )
    from devalloc.controller.overview.cache import CachedOverview

NETWORK = "(network)"
"""Devices without a node, as in `devalloc get pools`."""
_COUNTS = ("DEVICES", "AVAILABLE", "IN USE", "UNAVAILABLE", "EXCLUDED")
_STYLES = {"free": "green", "shared": "cyan", "held": "blue", "unavailable": "red", "excluded": "bright_black"}
_MAX_WIDTH = 40
"""Width of the longest cell that is not shortened."""
_ALARMS = 5
"""How many alarms a terminal shows."""
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
    return " ".join(_numbers(overview))


def _numbers(overview: Overview) -> tuple[str, str]:
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


def overview_tables(overview: Overview, *, wide: bool) -> list[TitledTable]:
    """Its tables, without empty ones."""
    number = sum(bool(node.name) for node in overview.nodes)
    nodes = TitledTable(
        "Nodes", ("NODE", "CARDS", *_COUNTS, "PUBLISHED AS", "CORDONED"), list(_nodes(overview)), number
    )
    if wide:
        headers = ("NODE", "CARD, DEVICE", "WHAT", *_COUNTS, "STATE", "HELD BY, OR WHY NOT")
        nodes = TitledTable("Nodes, cards, devices that are not free", headers, list(_cards(overview)))
    claims = [claim for claim in overview.claims if claim.is_pending]
    every = [
        nodes,
        TitledTable(
            "Claims whose devices are gone",
            ("CLAIM", "STATE", "NODE", "GONE"),
            [_losing_claim(claim) for claim in overview.claims if claim.lost],
        ),
        TitledTable("Claims that wait", ("CLAIM", "WANTS", "REASON", "MESSAGE"), [_claim(claim) for claim in claims]),
        TitledTable(
            "Machines",
            ("MACHINE", "PHASE", "NODE", "WANTED", "PERMITTED", "APPLIED", "OBSERVED", "DEVICES", "REASON", "AGE"),
            [_machine(machine) for machine in overview.machines],
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


def overview_lines(overview: Overview, *, wide: bool) -> Iterator[str]:
    """As text without colours."""
    yield summary_line(overview)
    yield from (one_line(f"ALARM: {alarm.text}") for alarm in overview.alarms)
    yield from map(one_line, overview.notes)
    for part in overview_tables(overview, wide=wide):
        yield ""
        yield from table_lines(part.headers, part.rows)


@contextmanager
def live_screen(*, wide: bool) -> Iterator[Callable[[CachedOverview], None]]:
    """A function that shows each snapshot on the whole terminal, until the end."""
    from rich.console import Console
    from rich.live import Live

    console = Console()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        yield lambda seen: live.update(screen_content(seen, *reversed(console.size), wide=wide), refresh=True)


def screen_content(seen: CachedOverview, height: int, width: int = 0, *, wide: bool = False) -> RenderableType:
    """The picture for a terminal of ``height`` lines of ``width`` characters; 0: as many as are needed."""
    from rich.console import Group
    from rich.text import Text

    overview = seen.overview

    def lines(text: str, style: str = "") -> list[Text]:
        return [Text(part, style=style) for part in (wrap_sentence(text, width) if width else [text])]

    head = [Text(f"devalloc top   {seen.at.astimezone():%H:%M:%S}", style="bold")]
    if seen.trouble:
        head.append(Text(one_line(f"not up to date: {seen.trouble}"), style="red"))
    head += [Text(one_line(f"ALARM: {alarm.text}"), style="bold red") for alarm in overview.alarms[:_ALARMS]]
    if len(overview.alarms) > _ALARMS:
        head.append(Text(f"and {len(overview.alarms) - _ALARMS} more alarms: devalloc top --once", style="bold red"))
    for numbers in _numbers(overview):
        head += lines(numbers)
    if not overview.is_settled:
        head[-1].append(" The controller is counting.", style="dim")
    for note in overview.notes:
        head += lines(one_line(note), "dim")
    for line in head:
        line.no_wrap, line.overflow = True, "ellipsis"
    shown: list[RenderableType] = [*head]
    tables = overview_tables(overview, wide=wide)
    rooms = _row_limits([len(part.rows) for part in tables], height - len(shown) - 3 * len(tables))
    for part, room in zip(tables, rooms, strict=True):
        shown += [Text(), Text(_title(part, room), style="bold"), *_table(part.headers, part.rows[:room], width)]
    return Group(*shown)


def _row_limits(sizes: Sequence[int], lines: int) -> list[int]:
    """How many rows of each table are shown; space that one table does not need goes to the others."""
    rooms = [0] * len(sizes)
    for others, i in enumerate(sorted(range(len(sizes)), key=lambda i: sizes[i])):
        rooms[i] = min(sizes[i], max(1, lines // (len(sizes) - others)))
        lines -= rooms[i]
    return rooms


def _title(part: TitledTable, shown: int) -> str:
    more = len(part.rows) - shown
    return f"{part.title}: {len(part.rows) if part.number is None else part.number}" + (
        f", of which {more} do not fit" if more else ""
    )


def _table(headers: Sequence[str], rows: Sequence[Sequence[Cell]], width: int) -> Iterator[RenderableType]:
    """Lines, cut where the terminal ends, without the columns that do not fit before that."""
    from rich.text import Text

    texts = [headers, *([one_line(cell) for cell in row] for row in rows)]
    widths = [min(_MAX_WIDTH, max(len(text[i]) for text in texts)) for i in range(len(headers))]
    shown, sizes = fit_lines(headers, widths, width) if width else ([*range(len(headers))], widths)
    sizes[-1] = 0  # it may be a long sentence, and gets the rest
    for row in [[StyledText(header, "dim") for header in headers], *rows]:
        line = Text(no_wrap=True, overflow="ellipsis")
        for i, size in zip(shown, sizes, strict=True):
            cell, text = row[i], one_line(row[i])
            if 0 < size < len(text):
                text = f"{text[: size - 1]}…"
            line.append(
                text.rjust(size) if headers[i] in _COUNTS else text.ljust(size),
                cell.style if isinstance(cell, StyledText) else "",
            )
            line.append("  ")
        line.rstrip()
        yield line


def _nodes(overview: Overview) -> Iterator[list[Cell]]:
    for node in overview.nodes:
        yield [node.name or NETWORK, str(len(node.cards)), *_counts(node.counts), node.published_as, node.cordoned]


def _cards(overview: Overview) -> Iterator[list[Cell]]:
    for node in overview.nodes:
        yield [node.name or NETWORK, "", node.published_as, *_counts(node.counts), "", node.cordoned]
        for card in node.cards:
            yield ["", card.name, card.model or card.driver, *_counts(card.counts), "", _remarks(card)]
            for device in card.devices:
                if device.state != "free":
                    name = "  " * (device.level + 1) + device.name
                    state = StyledText(device.state, _STYLES[device.state])
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
        machine.phase,
        machine.node,
        *map(_amounts, (machine.wanted, machine.permitted, machine.applied, machine.observed)),
        str(len(machine.devices)),
        machine.reason,
        _age(machine.created),
    ]


def _amounts(amounts: AmountTexts) -> str:
    return f"{amounts.cpus or '-'} {amounts.memory or '-'}" if amounts.cpus or amounts.memory else "-"


def _age(created: str) -> str:
    from devalloc.api.meta import parse_time

    try:
        return format_elapsed(parse_time(created))
    except ValueError:
        return ""
