"""The overview of a fleet on a terminal, as lines, and as content for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from devalloc.cli.columns import elapsed
from devalloc.cli.output import Cell, Styled, lines, plain
from devalloc.controller.overview import STATES, Counts, Overview
from devalloc.controller.overview.words import many

if TYPE_CHECKING:
    from rich.console import RenderableType

    from devalloc.controller.overview import Amounts, Card, Claim, Device, Machine, Quota
    from devalloc.controller.sight import Seen

NETWORK = "(network)"
"""Devices without a node, as `devalloc get pools` has it."""
_COUNTS = ("DEVICES", "AVAILABLE", "IN USE", "UNAVAILABLE", "EXCLUDED")
_STYLES = {"free": "green", "shared": "cyan", "held": "blue", "unavailable": "red", "excluded": "bright_black"}
_WIDEST = 40
"""Columns of a cell that is not shortened."""
_ALARMS = 5
"""Alarms that a terminal shows."""
_MESSAGE = 300
"""Characters of a message in a table; `devalloc explain` has all."""


@dataclass(frozen=True, slots=True)
class Part:
    """A table with its title."""

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[Cell]]


def content(found: Overview) -> dict[str, Any]:
    """All of it as JSON has it."""
    return asdict(found, dict_factory=_named)


def _named(items: list[tuple[str, Any]]) -> dict[str, Any]:
    named = {_camel(name): value for name, value in items}
    if named.keys() == set(STATES):
        counts = Counts(**named)
        named = {"devices": counts.devices, "available": counts.available, "inUse": counts.in_use, **named}
    return named


def _camel(name: str) -> str:
    first, *rest = name.removeprefix("is_").split("_")
    return first + "".join(word.title() for word in rest)


def summary(found: Overview) -> str:
    """All numbers in one line."""
    return " ".join(_numbers(found))


def _numbers(found: Overview) -> tuple[str, str]:
    counts = found.counts
    nodes = sum(bool(node.name) for node in found.nodes)
    both = f" ({counts.shared} of these are both)" if counts.shared else ""
    return (
        f"{many(nodes, 'node')}, {many(found.cards, 'card')}, {many(counts.devices, 'device')}: "
        f"{counts.available} available, "
        f"{counts.in_use} in use{both}, {counts.unavailable} unavailable, {counts.excluded} excluded.",
        f"Claims: {found.allocated} allocated, {found.pending} pending. Machines: {len(found.machines)}.",
    )


def parts(found: Overview, *, wide: bool) -> list[Part]:
    """Its tables; those that would be empty are left out."""
    nodes = Part("Nodes", ("NODE", "CARDS", *_COUNTS, "PUBLISHED AS", "CORDONED"), list(_nodes(found)))
    if wide:
        headers = ("NODE", "CARD, DEVICE", "WHAT", *_COUNTS, "STATE", "HELD BY, OR WHY NOT")
        nodes = Part("Nodes, cards, devices that are not free", headers, list(_cards(found)))
    claims = [claim for claim in found.claims if claim.is_pending]
    every = [
        nodes,
        Part("Claims that wait", ("CLAIM", "WANTS", "REASON", "MESSAGE"), [_claim(claim) for claim in claims]),
        Part(
            "Machines",
            ("MACHINE", "PHASE", "NODE", "WANTED", "PERMITTED", "APPLIED", "OBSERVED", "DEVICES", "REASON", "AGE"),
            [_machine(machine) for machine in found.machines],
        ),
        Part(
            "Quotas",
            ("QUOTA", "USED", "HARD", "RESOURCE"),
            [[f"{each.namespace}/{each.name}", each.used, _hard(each), each.resource] for each in found.quotas],
        ),
        Part("Objects with problems", ("OBJECT",), [[problem] for problem in found.problems]),
    ]
    return [part for part in every if part.rows]


def lines_of(found: Overview, *, wide: bool) -> Iterator[str]:
    """As text without colours."""
    yield summary(found)
    yield from (plain(f"ALARM: {alarm.text}") for alarm in found.alarms)
    yield from map(plain, found.notes)
    for part in parts(found, wide=wide):
        yield ""
        yield from lines(part.headers, part.rows)


@contextmanager
def watched(*, wide: bool) -> Iterator[Callable[[Seen], None]]:
    """A function that shows what is seen on the whole terminal, until the end."""
    from rich.console import Console
    from rich.live import Live

    console = Console()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        yield lambda seen: live.update(picture(seen, console.size.height, wide=wide), refresh=True)


def picture(seen: Seen, height: int, *, wide: bool = False) -> RenderableType:
    """What a terminal of so many lines shows of it."""
    from rich.console import Group
    from rich.text import Text

    found = seen.overview
    told = [Text(f"devalloc top   {seen.at.astimezone():%H:%M:%S}", style="bold")]
    if seen.trouble:
        told.append(Text(plain(f"not up to date: {seen.trouble}"), style="red"))
    told += [Text(plain(f"ALARM: {alarm.text}"), style="bold red") for alarm in found.alarms[:_ALARMS]]
    if len(found.alarms) > _ALARMS:
        told.append(Text(f"and {len(found.alarms) - _ALARMS} more alarms: devalloc top --once", style="bold red"))
    told += map(Text, _numbers(found))
    if not found.is_settled:
        told[-1].append(" The controller is counting.", style="dim")
    told += [Text(plain(note), style="dim") for note in found.notes]
    for line in told:
        line.no_wrap, line.overflow = True, "ellipsis"
    shown: list[RenderableType] = [*told]
    tables = parts(found, wide=wide)
    rooms = _rooms([len(part.rows) for part in tables], height - len(shown) - 3 * len(tables))
    for part, room in zip(tables, rooms, strict=True):
        shown += [Text(), Text(_title(part, room), style="bold"), *_table(part.headers, part.rows[:room])]
    return Group(*shown)


def _rooms(sizes: Sequence[int], lines: int) -> list[int]:
    """How many rows of each table are shown; what one does not need is the others'."""
    rooms = [0] * len(sizes)
    for others, i in enumerate(sorted(range(len(sizes)), key=lambda i: sizes[i])):
        rooms[i] = min(sizes[i], max(1, lines // (len(sizes) - others)))
        lines -= rooms[i]
    return rooms


def _title(part: Part, shown: int) -> str:
    more = len(part.rows) - shown
    return f"{part.title}: {len(part.rows)}" + (f", of which {more} do not fit" if more else "")


def _table(headers: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Iterator[RenderableType]:
    """Lines, cut where the terminal ends."""
    from rich.text import Text

    texts = [headers, *([plain(cell) for cell in row] for row in rows)]
    widths = [min(_WIDEST, max(len(text[i]) for text in texts)) for i in range(len(headers))]
    widths[-1] = 0  # it may be a long sentence, and has what is left
    for row in [[Styled(header, "dim") for header in headers], *rows]:
        line = Text(no_wrap=True, overflow="ellipsis")
        for header, cell, width in zip(headers, row, widths, strict=True):
            text = plain(cell)
            if 0 < width < len(text):
                text = f"{text[: width - 1]}…"
            line.append(
                text.rjust(width) if header in _COUNTS else text.ljust(width),
                cell.style if isinstance(cell, Styled) else "",
            )
            line.append("  ")
        line.rstrip()
        yield line


def _nodes(found: Overview) -> Iterator[list[Cell]]:
    for node in found.nodes:
        yield [node.name or NETWORK, str(len(node.cards)), *_counts(node.counts), node.published_as, node.cordoned]


def _cards(found: Overview) -> Iterator[list[Cell]]:
    for node in found.nodes:
        yield [node.name or NETWORK, "", node.published_as, *_counts(node.counts), "", node.cordoned]
        for card in node.cards:
            yield ["", card.name, card.model or card.driver, *_counts(card.counts), "", _remarks(card)]
            for device in card.devices:
                if device.state != "free":
                    name = "  " * (device.level + 1) + device.name
                    state = Styled(device.state, _STYLES[device.state])
                    yield ["", name, device.what, "", "", "", "", "", state, _held_by(device)]


def _counts(counts: Counts) -> list[Cell]:
    return [
        str(counts.devices),
        Styled(str(counts.available), "green" if counts.available else "yellow"),
        str(counts.in_use),
        Styled(str(counts.unavailable), "red") if counts.unavailable else "0",
        str(counts.excluded),
    ]


def _held_by(device: Device) -> str:
    return "; ".join([*(each.text for each in device.holders), *([device.why] if device.why else [])])


def _remarks(card: Card) -> str:
    return "; ".join([*([card.cordoned] if card.cordoned else []), *card.remarks])


def _hard(quota: Quota) -> Cell:
    return Styled(quota.hard, "yellow") if quota.is_full else quota.hard


def _claim(claim: Claim) -> list[Cell]:
    short = claim.message if len(claim.message) <= _MESSAGE else f"{claim.message[:_MESSAGE]}..."
    kind = "resourceclaim " if claim.kind == "ResourceClaim" else ""
    return [f"{kind}{claim.namespace}/{claim.name}", claim.wants, Styled(claim.reason, "yellow"), short]


def _machine(machine: Machine) -> list[Cell]:
    return [
        f"{machine.namespace}/{machine.name}",
        machine.phase,
        machine.node,
        *map(_amounts, (machine.wanted, machine.permitted, machine.applied, machine.observed)),
        str(len(machine.devices)),
        machine.reason,
        _age(machine.created),
    ]


def _amounts(amounts: Amounts) -> str:
    return f"{amounts.cpus or '-'} {amounts.memory or '-'}" if amounts.cpus or amounts.memory else "-"


def _age(created: str) -> str:
    from devalloc.api.meta import parse_time

    try:
        return elapsed(parse_time(created))
    except ValueError:
        return ""
