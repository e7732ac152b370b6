"""The screen of ``devalloc top``: tables of the fleet, a row that keys move, and behind a row its picture."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from devalloc.cli.keys import BACKSPACE, ENTER, ESCAPE
from devalloc.cli.layout import fit_lines, wrap_sentence
from devalloc.cli.render.fleet import (
    COUNTS,
    NETWORK,
    TitledTable,
    claim_id,
    node_search_text,
    number_lines,
    overview_tables,
)
from devalloc.cli.render.output import Cell, StyledText, one_line
from devalloc.cli.render.pictures import BAR, claim_lines, counts_bar, node_lines, plain_lines
from devalloc.usage.overview import Overview
from devalloc.usage.overview.cache import CachedOverview, OverviewCache
from devalloc.usage.overview.refusal_cache import Refusals

_T = TypeVar("_T")
_MAX_WIDTH = 40
"""Width of the longest cell that is not shortened."""
_ALARMS = 5
"""How many alarms a terminal shows."""
_MAX_SEARCH = 200
"""Characters of a search."""
_KEYS = "q quits   arrows move   enter explains   / searches"
_KEYS_BEHIND = "q quits   arrows scroll   esc goes back"


@contextmanager
def live_screen() -> Iterator[DrawTop]:
    """A function that draws on the whole terminal, until the end."""
    console = Console()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        yield lambda screen, sight: live.update(screen.draw(sight, *reversed(console.size)), refresh=True)


DrawTop = Callable[["TopScreen", OverviewCache], None]


class TopScreen:
    """What the user looks at."""

    def __init__(self, *, wide: bool = False, has_keys: bool = True) -> None:
        self._wide = wide
        self._has_keys = has_keys
        self._search = ""
        self._types = False
        """The search is being written."""
        self._ids: list[str] = []
        """Of all rows that have more to see, as drawn last."""
        self._selected = ""
        self._behind = ""
        """The row whose picture is shown; "" for the tables."""
        self._scrolled = 0
        self._page = 10

    def press(self, key: str) -> bool:
        """Do what a key says. False: it ends."""
        if self._types:
            self._type(key)
        elif key == "q":
            return False
        elif key == "/":
            self._behind, self._types = "", True
        elif key in (ESCAPE, "left", BACKSPACE):
            self._behind, self._search = "", self._search if self._behind else ""
        elif key in (ENTER, "right") and not self._behind:
            self._behind, self._scrolled = self._selected, 0
        elif step := {"up": -1, "down": 1, "page up": -self._page, "page down": self._page}.get(key):
            self._move(step)
        elif key in ("home", "end"):
            self._move(10**9 if key == "end" else -(10**9))
        return True

    def _type(self, key: str) -> None:
        if key in (ENTER, ESCAPE):
            self._types, self._search = False, self._search if key == ENTER else ""
        elif key == BACKSPACE:
            self._search = self._search[:-1]
        elif len(key) == 1:
            self._search = (self._search + key)[:_MAX_SEARCH]

    def _move(self, step: int) -> None:
        if self._behind:
            self._scrolled = max(0, self._scrolled + step)
        elif self._ids:
            at = self._ids.index(self._selected) + step if self._selected in self._ids else 0
            self._selected = self._ids[max(0, min(at, len(self._ids) - 1))]

    def draw(self, sight: OverviewCache, height: int, width: int) -> RenderableType:
        """What there is to see now, on ``height`` lines of ``width`` characters."""
        return self.content(sight.latest(), sight.refusals, height, width)

    def content(
        self, seen: CachedOverview, refusals: Callable[[CachedOverview], Refusals], height: int, width: int
    ) -> RenderableType:
        """The screen of an overview. ``refusals``: why its claims wait."""
        if not self._has_keys:
            return screen_content(seen, height, width, wide=self._wide)
        keys = Text(_KEYS_BEHIND if self._behind else _KEYS, "dim", no_wrap=True, overflow="ellipsis")
        if self._types or self._search:
            hint = f"/{one_line(self._search)}" + ("_" if self._types else "   esc clears it")
            keys = Text(hint, "bold", no_wrap=True, overflow="ellipsis")
        if self._behind and (lines := self._behind_lines(seen, refusals, width)) is not None:
            room = max(1, height - 2)
            self._page = room
            self._scrolled = min(self._scrolled, max(0, len(lines) - room))
            shown = lines[self._scrolled : self._scrolled + room]
            for line in shown:
                line.no_wrap, line.overflow = True, "ellipsis"
            return Group(Text(one_line(self._title()), "bold"), *shown, keys)
        self._behind = ""
        tables = overview_tables(seen.overview, wide=self._wide)
        if self._search:
            behind = {f"node:{node.name}": node_search_text(node) for node in seen.overview.nodes}
            tables = [_searched(part, self._search.lower(), behind) for part in tables]
            if not any(part.rows for part in tables):
                keys.append("   no match", "not bold")
        tables = [part for part in tables if part.rows]
        self._ids = [each for part in tables for each in part.ids]
        if self._selected not in self._ids:
            self._selected = self._ids[0] if self._ids else ""
        content = _content(seen, tables, height - 1, width, selected=self._selected)
        return Group(content, keys)

    def _title(self) -> str:
        kind, _, name = self._behind.partition(":")
        return f"{kind} {name or NETWORK}"

    def _behind_lines(
        self, seen: CachedOverview, refusals: Callable[[CachedOverview], Refusals], width: int
    ) -> list[Text] | None:
        """The picture of a row; None if what it was about is gone."""
        overview = seen.overview
        kind, _, name = self._behind.partition(":")
        if kind == "node":
            node = next((each for each in overview.nodes if each.name == name), None)
            return None if node is None else list(node_lines(node, width))
        if kind == "machine":
            return _machine_lines(overview, name, width)
        claim = next((each for each in overview.claims if claim_id(each) == self._behind), None)
        if claim is None:
            return None
        refusal = refusals(seen).get((claim.namespace, claim.name)) if kind == "claim" else None
        head = [f"{claim.state}: wants {claim.wants}" + (f"; {claim.reason}" if claim.reason else "")]
        if not claim.is_pending:
            return list(plain_lines([*head, f"has {claim.devices} on node {claim.node or NETWORK}"], width))
        return [
            *plain_lines(head, width),
            *claim_lines(claim, refusal, width),
        ]


def _machine_lines(overview: Overview, name: str, width: int) -> list[Text] | None:
    machine = next((each for each in overview.machines if f"{each.namespace}/{each.name}" == name), None)
    if machine is None:
        return None
    where = f" on node {machine.node}" if machine.node else ""
    lines = [f"{machine.phase}{where}", *filter(None, (machine.reason, machine.message))]
    lines += [f"claims: {', '.join(machine.claims)}"] if machine.claims else []
    lines += [f"devices: {', '.join(machine.devices)}"] if machine.devices else []
    return list(plain_lines([*lines, f"More: devalloc explain vm/{machine.name} -n {machine.namespace}"], width))


def _searched(part: TitledTable, needle: str, behind: Mapping[str, str]) -> TitledTable:
    """The rows of a table that have what is searched. ``behind``: what is behind a row, by its id."""
    texts = [[*map(one_line, row)] for row in part.rows]
    for i, text in enumerate(map(behind.get, part.ids)):
        texts[i].append(text or "")
    fits = [any(needle in text.lower() for text in row) for row in texts]

    def those(items: Sequence[_T]) -> list[_T]:
        return [item for item, does in zip(items, fits, strict=False) if does]

    return replace(part, rows=those(part.rows), ids=those(part.ids), bars=those(part.bars), number=None)


def screen_content(seen: CachedOverview, height: int, width: int = 0, *, wide: bool = False) -> RenderableType:
    """The tables for a terminal of ``height`` lines of ``width`` characters; 0: as many as are needed."""
    return _content(seen, overview_tables(seen.overview, wide=wide), height, width)


def _content(
    seen: CachedOverview, tables: Sequence[TitledTable], height: int, width: int, *, selected: str = ""
) -> RenderableType:
    shown: list[RenderableType] = [*_head(seen, width)]
    rooms = _row_limits([len(part.rows) for part in tables], height - len(shown) - 3 * len(tables))
    for part, room in zip(tables, rooms, strict=True):
        at = part.ids.index(selected) if selected and selected in part.ids else -1
        first = min(max(0, at - room // 2), len(part.rows) - room) if at >= 0 else 0
        shown += [Text(), Text(_title(part, room), style="bold")]
        shown += _table(part, slice(first, first + room), width, marked=at if selected else None)
    return Group(*shown)


def _head(seen: CachedOverview, width: int) -> list[Text]:
    overview = seen.overview

    def lines(text: str, style: str = "") -> list[Text]:
        return [Text(part, style=style) for part in (wrap_sentence(text, width) if width else [text])]

    head = [Text(f"devalloc top   {seen.at.astimezone():%H:%M:%S}", style="bold")]
    if seen.trouble:
        head.append(Text(one_line(f"not up to date: {seen.trouble}"), style="red"))
    head += [Text(one_line(f"ALARM: {alarm.text}"), style="bold red") for alarm in overview.alarms[:_ALARMS]]
    if len(overview.alarms) > _ALARMS:
        head.append(Text(f"and {len(overview.alarms) - _ALARMS} more alarms: devalloc top --once", style="bold red"))
    for numbers in number_lines(overview):
        head += lines(numbers)
    if not overview.is_settled:
        head[-1].append(" The controller is counting.", style="dim")
    for note in overview.notes:
        head += lines(one_line(note), "dim")
    for line in head:
        line.no_wrap, line.overflow = True, "ellipsis"
    return head


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


def _table(part: TitledTable, rows: slice, width: int, *, marked: int | None) -> Iterator[RenderableType]:
    """Lines, cut where the terminal ends, without the columns that do not fit before that. ``marked``: the row that the
    keys moved to; None: there are no keys."""
    headers = part.headers
    before = (0 if marked is None else 2) + (BAR + 2 if part.bars else 0)
    among = part.rows[rows]
    texts = [headers, *([one_line(cell) for cell in row] for row in among)]
    widths = [min(_MAX_WIDTH, max(len(text[i]) for text in texts)) for i in range(len(headers))]
    shown, sizes = fit_lines(headers, widths, width - before) if width else ([*range(len(headers))], widths)
    sizes[-1] = 0  # it may be a long sentence, and gets the rest
    yield Text(" " * before).append_text(
        _line([StyledText(header, "dim") for header in headers], headers, shown, sizes)
    )
    for number, row in enumerate(among, rows.start):
        line = Text(no_wrap=True, overflow="ellipsis")
        if marked is not None:
            line.append("> " if number == marked else "  ", "bold")
        if part.bars:
            line.append_text(counts_bar(part.bars[number])).append("  ")
        line.append_text(_line(row, headers, shown, sizes))
        if number == marked:
            line.stylize("bold")
        yield line


def _line(row: Sequence[Cell], headers: Sequence[str], shown: Sequence[int], sizes: Sequence[int]) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    for i, size in zip(shown, sizes, strict=True):
        cell, text = row[i], one_line(row[i])
        if 0 < size < len(text):
            text = f"{text[: size - 1]}…"
        line.append(
            text.rjust(size) if headers[i] in COUNTS else text.ljust(size),
            cell.style if isinstance(cell, StyledText) else "",
        )
        line.append("  ")
    line.rstrip()
    return line
