"""The page's HTML, whole as it is first sent, and its ``main`` alone as it is brought up to date.

Elements that last from one version to the next have an id, which says what they are of. What is shown is bounded,
however large the fleet: a search narrows it.
"""

from __future__ import annotations

from collections.abc import Iterable

from devalloc.controller.overview import ClaimSummary, MachineSummary, Overview, QuotaSummary
from devalloc.controller.overview.model import count_noun, format_users
from devalloc.controller.page.components import (
    MAX_SEARCH,
    PageQuery,
    age_element,
    amounts_text,
    empty_note,
    matches_search,
    more_note,
    name_cell,
    table_element,
)
from devalloc.controller.page.html import Markup, join_markup, tag
from devalloc.controller.page.tree import render_tree
from devalloc.version import VERSION

MAX_ROWS = 200
"""Of claims, machines and problems."""


def render_document(body: Markup, *, signed_in: bool, query: PageQuery | None = None) -> Markup:
    """The whole document around what ``render_overview``, ``login_form`` or ``render_problem`` made."""
    return join_markup(Markup("<!doctype html>\n"), _document(body, signed_in, query))


def _document(body: Markup, signed_in: bool, query: PageQuery | None) -> Markup:
    is_live = query is not None
    return tag(
        "html",
        tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", name="color-scheme", content="light dark"),
            tag("title", "devalloc"),
            tag("link", rel="stylesheet", href="static/page.css"),
            tag("link", rel="icon", href="static/icon.svg", type="image/svg+xml"),
            tag("script", src="static/page.js", defer=True) if is_live else None,
        ),
        tag(
            "body",
            tag("nav", *_skips(), aria_label="Skip to", class_="skips") if is_live else None,
            tag(
                "header",
                tag("h1", tag("a", "devalloc", href="./")),
                _search(query) if query is not None else None,
                tag("p", id="live", class_="live") if is_live else None,
                _sign_out() if signed_in else None,
            ),
            body,
            tag("footer", tag("p", f"devalloc {VERSION}. Read only: nothing can be changed here.")),
        ),
        lang="en",
    )


def render_overview(overview: Overview, query: PageQuery, trouble: str = "", *, warns: bool = False) -> Markup:
    """The element ``main``. ``warns``: the first note is a warning."""
    return tag(
        "main",
        tag("p", f"Not up to date: the store cannot be read ({trouble}).", id="trouble", class_="warning", role="alert")
        if trouble
        else None,
        _alarms(overview),
        tag("p", spoken_summary(overview), id="news", role="status", class_="unseen"),
        _totals(overview),
        *(
            tag("p", note, id=f"note:{i}", class_="warning", role="alert")
            if warns and i == 0
            else tag("p", note, id=f"note:{i}", class_="quiet")
            for i, note in enumerate(overview.notes)
        ),
        _claims(overview, query),
        render_tree(overview, query),
        _machines(overview, query),
        _quotas(overview, query),
        _problems(overview),
        id="view",
    )


def spoken_summary(whole: Overview) -> str:
    """What is read out when it changes."""
    return (
        f"{count_noun(whole.pending, 'claim')} pending, "
        f"{whole.counts.available} of {count_noun(whole.counts.devices, 'device')} available"
    )


def login_form(status: int, hint: Markup | None) -> Markup:
    """Asks for a token; ``status``: what became of the last one (200: there was none)."""
    message = {
        401: "This token is unknown or no longer valid.",
        403: "You have no permission to see this page: ask for a role that allows get of the path /devalloc/.",
        429: "Too many wrong tokens, or too many who sign in. Wait some seconds, then try again.",
        503: "Your permission cannot be checked now: the API server does not answer. Try again.",
    }.get(status)
    return tag(
        "main",
        tag("h2", "Sign in"),
        tag("p", message, role="alert", class_="warning") if message else None,
        tag(
            "form",
            tag("label", "Token", for_="token"),
            tag(
                "input", type="password", name="token", id="token", autocomplete="off", required=True, autofocus=True,
                spellcheck="false",
            ),
            tag("button", "Sign in"),
            method="post",
            action="login",
            class_="login",
        ),
        hint,
        class_="narrow",
    )  # fmt: skip


def render_problem(title: str, text: str) -> Markup:
    """Something that is in the way of everything else."""
    return tag("main", tag("h2", title), tag("p", text, class_="warning", role="alert"), class_="narrow")


# -- parts -----------------------------------------------------------------------------------------------------------


def _skips() -> Iterable[Markup]:
    for target, what in (("claims", "Claims"), ("nodes", "Nodes"), ("machines", "Machines"), ("q", "Search")):
        yield tag("a", what, href=f"#{target}")


def _search(query: PageQuery) -> Markup:
    return tag(
        "form",
        tag("label", "Search", for_="q", class_="unseen"),
        tag(
            "input", type="search", name="q", id="q", value=query.search, maxlength=MAX_SEARCH, autocomplete="off",
            placeholder="Search nodes, devices, claims, machines", aria_keyshortcuts="/",
        ),
        tag("kbd", "/", aria_hidden="true"),
        role="search",
        id="search",
    )  # fmt: skip


def _sign_out() -> Markup:
    return tag("form", tag("button", "Sign out", class_="quiet"), method="post", action="logout")


def _totals(overview: Overview) -> Markup:
    counts = overview.counts
    tiles: list[tuple[str, int, str]] = [
        ("Nodes", sum(bool(node.name) for node in overview.nodes), ""),
        ("Cards", overview.cards, ""),
        ("Devices", counts.devices, ""),
        ("Available", counts.available, "free"),
        ("In use", counts.in_use, "held"),
        ("Unavailable", counts.unavailable, "unavailable"),
        ("Excluded", counts.excluded, "excluded"),
        ("Claims allocated", overview.allocated, ""),
        ("Claims pending", overview.pending, "pending" if overview.pending else ""),
        ("Machines", len(overview.machines), ""),
    ]
    words = f"{count_noun(counts.shared, 'device')} in use and still available: they can be shared further."
    shared = tag("p", words, id="shared", class_="quiet") if counts.shared else None
    settled = None if overview.is_settled else tag("p", "The controller is counting.", id="settling", class_="quiet")
    return tag(
        "section",
        tag("h2", "In all", class_="unseen"),
        tag(
            "dl",
            *(
                tag("div", tag("dt", what), tag("dd", str(number)), id=f"total:{what}", class_=f"tile {style}".strip())
                for what, number, style in tiles
            ),
        ),
        shared,
        settled,
        id="totals",
    )


def _alarms(overview: Overview) -> Markup | None:
    if not overview.alarms:
        return None
    return tag(
        "section",
        tag("h2", "Alarms ", tag("small", str(len(overview.alarms))), class_="warning"),
        tag("ul", *(tag("li", alarm.text) for alarm in overview.alarms[:MAX_ROWS]), class_="warning"),
        more_note(len(overview.alarms), MAX_ROWS, "alarms"),
        id="alarms",
        role="alert",
    )


def _claims(overview: Overview, query: PageQuery) -> Markup:
    fits = [claim for claim in overview.claims if matches_search(query, _claim_words(claim))]
    waiting = sum(claim.is_pending for claim in fits)
    return tag(
        "section",
        tag("h2", "Claims ", tag("small", f"{waiting} pending, {len(fits) - waiting} others")),
        table_element(
            "claims-table",
            ("Claim", "State", "Wants", "Node", "Devices, or why not", "Age"),
            [_claim_row(claim) for claim in fits[:MAX_ROWS]],
        )
        if fits
        else empty_note("claim", query),
        more_note(len(fits), MAX_ROWS, "claims"),
        id="claims",
        tabindex=-1,
    )


def _claim_row(claim: ClaimSummary) -> Markup:
    why = (
        (tag("b", claim.reason) if claim.reason else None, " " if claim.message else None, claim.message)
        if claim.is_pending or not claim.devices
        else claim.devices
    )
    full, is_theirs = f"{claim.namespace}/{claim.name}", claim.kind == "ResourceClaim"
    return tag(
        "tr",
        name_cell(full, full, _kind(claim.kind) if is_theirs else None),
        tag("td", tag("span", claim.state, class_=f"badge {'pending' if claim.is_pending else 'held'}")),
        tag("td", claim.wants, class_="short"),
        tag("td", claim.node, class_="short"),
        tag("td", why, format_users(claim.machine, claim.pods), class_="long"),
        tag("td", age_element(claim.created)),
        id=f"{'resourceclaim' if is_theirs else 'claim'}:{claim.namespace}/{claim.name}",
    )


def _kind(kind: str) -> Markup:
    return tag("small", kind, class_="kind")


def _quotas(overview: Overview, query: PageQuery) -> Markup | None:
    fits = [
        quota
        for quota in overview.quotas
        if matches_search(query, f"{quota.namespace}/{quota.name}\n{quota.resource}".lower())
    ]
    if not fits:
        return None
    return tag(
        "section",
        tag("h2", "Quotas ", tag("small", str(len(fits)))),
        table_element(
            "quotas-table", ("Quota", "Resource", "Used", "Hard", ""), [_quota_row(quota) for quota in fits[:MAX_ROWS]]
        ),
        more_note(len(fits), MAX_ROWS, "quotas"),
        id="quotas",
        tabindex=-1,
    )


def _quota_row(quota: QuotaSummary) -> Markup:
    return tag(
        "tr",
        name_cell(f"{quota.namespace}/{quota.name}"),
        tag("td", quota.resource, class_="long"),
        tag("td", quota.used or "-", class_="number"),
        tag("td", quota.hard, class_="number"),
        tag("td", tag("span", "full", class_="badge pending") if quota.is_full else None),
        id=f"quota:{quota.namespace}/{quota.name}/{quota.resource}",
    )


def _machines(overview: Overview, query: PageQuery) -> Markup:
    fits = [machine for machine in overview.machines if matches_search(query, _machine_words(machine))]
    headers = ("Machine", "Phase", "Node", "Wanted", "Permitted", "Applied", "Observed", "Devices", "Reason", "Age")
    return tag(
        "section",
        tag("h2", "Machines ", tag("small", str(len(fits)))),
        table_element("machines-table", headers, [_machine_row(machine) for machine in fits[:MAX_ROWS]])
        if fits
        else empty_note("machine", query),
        more_note(len(fits), MAX_ROWS, "machines"),
        id="machines",
        tabindex=-1,
    )


def _machine_row(machine: MachineSummary) -> Markup:
    columns = (machine.wanted, machine.permitted, machine.applied, machine.observed)
    style = {"Running": "free", "Failed": "unavailable", "Unknown": "unavailable"}.get(machine.phase, "pending")
    return tag(
        "tr",
        name_cell(f"{machine.namespace}/{machine.name}"),
        tag("td", tag("span", machine.phase, class_=f"badge {style}")),
        tag("td", machine.node, class_="short"),
        *(tag("td", amounts_text(each), class_="short") for each in columns),
        tag("td", ", ".join(machine.devices) or "-", class_="long"),
        tag("td", tag("b", machine.reason) if machine.reason else None, " ", machine.message, class_="long"),
        tag("td", age_element(machine.created)),
        id=f"machine:{machine.namespace}/{machine.name}",
    )


def _problems(overview: Overview) -> Markup | None:
    if not overview.problems:
        return None
    return tag(
        "section",
        tag("h2", "Objects with problems ", tag("small", str(len(overview.problems)))),
        tag("ul", *(tag("li", each) for each in overview.problems[:MAX_ROWS])),
        more_note(len(overview.problems), MAX_ROWS, "objects"),
        id="problems",
    )


def _claim_words(claim: ClaimSummary) -> str:
    words = (claim.kind, claim.state, claim.wants, claim.node, claim.devices, claim.reason, claim.message)
    return "\n".join([f"{claim.namespace}/{claim.name}", *words, claim.machine, *claim.pods]).lower()


def _machine_words(machine: MachineSummary) -> str:
    words = (machine.phase, machine.node, machine.reason, machine.message, *machine.claims, *machine.devices)
    return "\n".join([f"{machine.namespace}/{machine.name}", *words]).lower()
