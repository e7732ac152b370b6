"""The page's HTML, whole as it is first sent, and its ``main`` alone as it is brought up to date.

Elements that last from one version to the next have an id, which says what they are of. What is shown is bounded,
however large the fleet: a search narrows it.
"""

from __future__ import annotations

from collections.abc import Iterable

from devalloc.controller.overview import Claim, Machine, Overview, Quota
from devalloc.controller.overview.facts import users_text
from devalloc.controller.overview.words import many
from devalloc.controller.page.html import Markup, joined, tag
from devalloc.controller.page.parts import MAX_SEARCH, Asked, age, amounts, has, more, name, none, table
from devalloc.controller.page.tree import nodes
from devalloc.version import VERSION

MAX_ROWS = 200
"""Of claims, machines and problems."""


def page(body: Markup, *, signed_in: bool, asked: Asked | None = None) -> Markup:
    """The whole document around what ``view``, ``login_form`` or ``problem`` made."""
    return joined(Markup("<!doctype html>\n"), _document(body, signed_in, asked))


def _document(body: Markup, signed_in: bool, asked: Asked | None) -> Markup:
    is_live = asked is not None
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
                _search(asked) if asked is not None else None,
                tag("p", id="live", class_="live") if is_live else None,
                _sign_out() if signed_in else None,
            ),
            body,
            tag("footer", tag("p", f"devalloc {VERSION}. Read only: nothing can be changed here.")),
        ),
        lang="en",
    )


def view(found: Overview, asked: Asked, trouble: str = "", *, warns: bool = False) -> Markup:
    """The element ``main``. ``warns``: the first note is a warning."""
    return tag(
        "main",
        tag("p", f"Not up to date: the store cannot be read ({trouble}).", id="trouble", class_="warning", role="alert")
        if trouble
        else None,
        _alarms(found),
        tag("p", summary(found), id="news", role="status", class_="unseen"),
        _totals(found),
        *(
            tag("p", note, id=f"note:{i}", class_="warning", role="alert")
            if warns and i == 0
            else tag("p", note, id=f"note:{i}", class_="quiet")
            for i, note in enumerate(found.notes)
        ),
        _claims(found, asked),
        nodes(found, asked),
        _machines(found, asked),
        _quotas(found, asked),
        _problems(found),
        id="view",
    )


def summary(found: Overview) -> str:
    """What is read out when it changes."""
    return (
        f"{many(found.pending, 'claim')} pending, {found.counts.available} of {many(found.counts.devices, 'device')} "
        "available"
    )


def login_form(status: int, hint: Markup | None) -> Markup:
    """Asks for a token; ``status``: what became of the last one (200: there was none)."""
    said = {
        401: "This token is not known, or it is no longer valid.",
        403: "You are known, and may not see this page: ask for a role that allows get of the path /devalloc/.",
        429: "Too many wrong tokens, or too many who sign in. Wait some seconds, then try again.",
        503: "Whether you may see this page cannot be told now: the API server does not answer. Try again.",
    }.get(status)
    return tag(
        "main",
        tag("h2", "Sign in"),
        tag("p", said, role="alert", class_="warning") if said else None,
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


def problem(title: str, text: str) -> Markup:
    """Something that is in the way of everything else."""
    return tag("main", tag("h2", title), tag("p", text, class_="warning", role="alert"), class_="narrow")


# -- parts -----------------------------------------------------------------------------------------------------------


def _skips() -> Iterable[Markup]:
    for target, what in (("claims", "Claims"), ("nodes", "Nodes"), ("machines", "Machines"), ("q", "Search")):
        yield tag("a", what, href=f"#{target}")


def _search(asked: Asked) -> Markup:
    return tag(
        "form",
        tag("label", "Search", for_="q", class_="unseen"),
        tag(
            "input", type="search", name="q", id="q", value=asked.search, maxlength=MAX_SEARCH, autocomplete="off",
            placeholder="Search nodes, devices, claims, machines", aria_keyshortcuts="/",
        ),
        tag("kbd", "/", aria_hidden="true"),
        role="search",
        id="search",
    )  # fmt: skip


def _sign_out() -> Markup:
    return tag("form", tag("button", "Sign out", class_="quiet"), method="post", action="logout")


def _totals(found: Overview) -> Markup:
    counts = found.counts
    tiles: list[tuple[str, int, str]] = [
        ("Nodes", sum(bool(node.name) for node in found.nodes), ""),
        ("Cards", found.cards, ""),
        ("Devices", counts.devices, ""),
        ("Available", counts.available, "free"),
        ("In use", counts.in_use, "held"),
        ("Unavailable", counts.unavailable, "unavailable"),
        ("Excluded", counts.excluded, "excluded"),
        ("Claims allocated", found.allocated, ""),
        ("Claims pending", found.pending, "pending" if found.pending else ""),
        ("Machines", len(found.machines), ""),
    ]
    words = f"{many(counts.shared, 'device')} in use, and available too: more of what is shared can be had."
    shared = tag("p", words, id="shared", class_="quiet") if counts.shared else None
    settled = None if found.is_settled else tag("p", "The controller is counting.", id="settling", class_="quiet")
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


def _alarms(found: Overview) -> Markup | None:
    if not found.alarms:
        return None
    return tag(
        "section",
        tag("h2", "Alarms ", tag("small", str(len(found.alarms))), class_="warning"),
        tag("ul", *(tag("li", alarm.text) for alarm in found.alarms[:MAX_ROWS]), class_="warning"),
        more(len(found.alarms), MAX_ROWS, "alarms"),
        id="alarms",
        role="alert",
    )


def _claims(found: Overview, asked: Asked) -> Markup:
    fits = [claim for claim in found.claims if has(asked, _claim_words(claim))]
    waiting = sum(claim.is_pending for claim in fits)
    return tag(
        "section",
        tag("h2", "Claims ", tag("small", f"{waiting} pending, {len(fits) - waiting} others")),
        table(
            "claims-table",
            ("Claim", "State", "Wants", "Node", "Devices, or why not", "Age"),
            [_claim_row(claim) for claim in fits[:MAX_ROWS]],
        )
        if fits
        else none("claim", asked),
        more(len(fits), MAX_ROWS, "claims"),
        id="claims",
        tabindex=-1,
    )


def _claim_row(claim: Claim) -> Markup:
    why = (
        (tag("b", claim.reason) if claim.reason else None, " " if claim.message else None, claim.message)
        if claim.is_pending or not claim.devices
        else claim.devices
    )
    full, is_theirs = f"{claim.namespace}/{claim.name}", claim.kind == "ResourceClaim"
    return tag(
        "tr",
        name(full, full, _kind(claim.kind) if is_theirs else None),
        tag("td", tag("span", claim.state, class_=f"badge {'pending' if claim.is_pending else 'held'}")),
        tag("td", claim.wants, class_="short"),
        tag("td", claim.node, class_="short"),
        tag("td", why, users_text(claim.machine, claim.pods), class_="long"),
        tag("td", age(claim.created)),
        id=f"{'resourceclaim' if is_theirs else 'claim'}:{claim.namespace}/{claim.name}",
    )


def _kind(kind: str) -> Markup:
    return tag("small", kind, class_="kind")


def _quotas(found: Overview, asked: Asked) -> Markup | None:
    fits = [quota for quota in found.quotas if has(asked, f"{quota.namespace}/{quota.name}\n{quota.resource}".lower())]
    if not fits:
        return None
    return tag(
        "section",
        tag("h2", "Quotas ", tag("small", str(len(fits)))),
        table(
            "quotas-table", ("Quota", "Resource", "Used", "Hard", ""), [_quota_row(quota) for quota in fits[:MAX_ROWS]]
        ),
        more(len(fits), MAX_ROWS, "quotas"),
        id="quotas",
        tabindex=-1,
    )


def _quota_row(quota: Quota) -> Markup:
    return tag(
        "tr",
        name(f"{quota.namespace}/{quota.name}"),
        tag("td", quota.resource, class_="long"),
        tag("td", quota.used or "-", class_="number"),
        tag("td", quota.hard, class_="number"),
        tag("td", tag("span", "full", class_="badge pending") if quota.is_full else None),
        id=f"quota:{quota.namespace}/{quota.name}/{quota.resource}",
    )


def _machines(found: Overview, asked: Asked) -> Markup:
    fits = [machine for machine in found.machines if has(asked, _machine_words(machine))]
    headers = ("Machine", "Phase", "Node", "Wanted", "Permitted", "Applied", "Observed", "Devices", "Reason", "Age")
    return tag(
        "section",
        tag("h2", "Machines ", tag("small", str(len(fits)))),
        table("machines-table", headers, [_machine_row(machine) for machine in fits[:MAX_ROWS]])
        if fits
        else none("machine", asked),
        more(len(fits), MAX_ROWS, "machines"),
        id="machines",
        tabindex=-1,
    )


def _machine_row(machine: Machine) -> Markup:
    told = (machine.wanted, machine.permitted, machine.applied, machine.observed)
    style = {"Running": "free", "Failed": "unavailable", "Unknown": "unavailable"}.get(machine.phase, "pending")
    return tag(
        "tr",
        name(f"{machine.namespace}/{machine.name}"),
        tag("td", tag("span", machine.phase, class_=f"badge {style}")),
        tag("td", machine.node, class_="short"),
        *(tag("td", amounts(each), class_="short") for each in told),
        tag("td", ", ".join(machine.devices) or "-", class_="long"),
        tag("td", tag("b", machine.reason) if machine.reason else None, " ", machine.message, class_="long"),
        tag("td", age(machine.created)),
        id=f"machine:{machine.namespace}/{machine.name}",
    )


def _problems(found: Overview) -> Markup | None:
    if not found.problems:
        return None
    return tag(
        "section",
        tag("h2", "Objects with problems ", tag("small", str(len(found.problems)))),
        tag("ul", *(tag("li", each) for each in found.problems[:MAX_ROWS])),
        more(len(found.problems), MAX_ROWS, "objects"),
        id="problems",
    )


def _claim_words(claim: Claim) -> str:
    words = (claim.kind, claim.state, claim.wants, claim.node, claim.devices, claim.reason, claim.message)
    return "\n".join([f"{claim.namespace}/{claim.name}", *words, claim.machine, *claim.pods]).lower()


def _machine_words(machine: Machine) -> str:
    words = (machine.phase, machine.node, machine.reason, machine.message, *machine.claims, *machine.devices)
    return "\n".join([f"{machine.namespace}/{machine.name}", *words]).lower()
