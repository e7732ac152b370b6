"""Components that the sections of the page share: the query, tables and texts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from devalloc.controller.overview import AmountTexts
from devalloc.controller.page.html import Child, Markup, tag

MAX_OPEN = 64
MAX_SEARCH = 200
LONG_NAME = 40


@dataclass(frozen=True, slots=True)
class PageQuery:
    """What somebody wants to see."""

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


def name_cell(text: str, *more: Child, **attributes: str) -> Markup:
    """The head of a row. A long name is broken, a short one never."""
    style = " ".join(filter(None, [attributes.pop("class_", ""), "named" if len(text) > LONG_NAME else ""]))
    return tag("th", more or text, scope="row", class_=style or None, **attributes)


def matches_search(query: PageQuery, words: str) -> bool:
    return not query.search or query.search.lower() in words


def amounts_text(amounts: AmountTexts) -> str:
    return f"{amounts.cpus or '-'} / {amounts.memory or '-'}" if amounts.cpus or amounts.memory else "-"


def cordon_badge(why: str) -> Child:
    return (tag("span", "cordoned", class_="badge unavailable"), " ", why.removeprefix("cordoned: ")) if why else None


def age_element(created: str) -> Child:
    """A time; how long ago it was is the script's, which goes on."""
    return tag("time", created, datetime=created) if created else None


def table_element(name: str, headers: Iterable[str], rows: Iterable[Markup]) -> Markup:
    return scrollable(tag("table", table_head(headers), tag("tbody", *rows), id=name))


def scrollable(table: Markup) -> Markup:
    return tag("div", table, class_="scroll")


def table_head(headers: Iterable[str]) -> Markup:
    return tag("thead", tag("tr", *(tag("th", header, scope="col") for header in headers)))


def empty_note(what: str, query: PageQuery) -> Markup:
    return tag("p", f"No {what} matches {query.search!r}." if query.search else f"There is no {what}.", class_="quiet")


def more_note(total: int, most: int, what: str) -> Markup | None:
    if total <= most:
        return None
    return tag("p", f"{total - most} more {what}: search to see them.", class_="warning")
