"""The page's HTML, whole as it is first sent, and its ``main`` alone as it is brought up to date.

The templates escape every value that is not ``Markup``: names and messages come from anybody. Elements that last from
one version to the next have an id, which says what they are of.
"""

from __future__ import annotations

import re
from importlib import resources

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from devalloc.controller.overview import AmountTexts, Overview
from devalloc.controller.overview.model import count_noun, format_users
from devalloc.controller.page.tree import holders_text
from devalloc.controller.page.view import MAX_SEARCH, PageQuery, overview_view
from devalloc.version import VERSION

_PHASE_STYLES = {"Running": "free", "Failed": "unavailable", "Unknown": "unavailable"}
_REFUSALS = {
    401: "This token is unknown or no longer valid.",
    403: "You have no permission to see this page: ask for a role that allows get of the path /devalloc/.",
    429: "Too many wrong tokens, or too many who sign in. Wait some seconds, then try again.",
    503: "Your permission cannot be checked now: the API server does not answer. Try again.",
}


def render_document(body: Markup, *, signed_in: bool, query: PageQuery | None = None) -> Markup:
    """The whole document around what ``render_overview``, ``login_form`` or ``render_problem`` made."""
    return _render("document", body=body, signed_in=signed_in, query=query)


def render_overview(overview: Overview, query: PageQuery, trouble: str = "", *, warns: bool = False) -> Markup:
    """The element ``main``. ``warns``: the first note is a warning."""
    return _render("overview", view=overview_view(overview, query), trouble=trouble, warns=warns)


def login_form(status: int, hint: Markup | None) -> Markup:
    """Asks for a token; ``status``: what became of the last one (200: there was none)."""
    return _render("login", message=_REFUSALS.get(status), hint=hint)


def render_problem(title: str, text: str) -> Markup:
    """Something that is in the way of everything else."""
    return _render("problem", title=title, text=text)


def _source(name: str) -> str:
    """A template. A line break before a tag or a statement is for its readers only, and is not sent."""
    path = resources.files("devalloc.controller.page").joinpath("templates", f"{name}.html.j2")
    return re.sub(r"\s*\n\s*(?=[<{]|$)", "", path.read_text(encoding="utf-8"))


def _amounts(amounts: AmountTexts) -> str:
    return f"{amounts.cpus or '-'} / {amounts.memory or '-'}" if amounts.cpus or amounts.memory else "-"


def _phase_style(phase: str) -> str:
    return _PHASE_STYLES.get(phase, "pending")


_TEMPLATES = Environment(loader=FunctionLoader(_source), autoescape=True, undefined=StrictUndefined, auto_reload=False)
_TEMPLATES.filters.update(
    amounts=_amounts, count_noun=count_noun, holders=holders_text, phase_style=_phase_style, repr=repr
)
_TEMPLATES.globals.update(VERSION=VERSION, MAX_SEARCH=MAX_SEARCH, format_users=format_users)


def _render(name: str, **values: object) -> Markup:
    return Markup(_TEMPLATES.get_template(name).render(values))
