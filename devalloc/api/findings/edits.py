"""Remedies in words: what to change, and who is to go."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from devalloc.api.cordon import unschedulable_reasons
from devalloc.api.findings.data import HOLDERS, Finding
from devalloc.api.findings.style import WHOLE, Style, joined
from devalloc.api.quantity import Quantity, readable_texts
from devalloc.printable import printable

_NAMED = 2
"""Changes, and holders, that a remedy names; of more it gives the number."""


def remedy_of(finding: Finding, style: Style) -> str:
    """What to do, such as "drop the pin to node n1, and release default/a"; "" if nothing helps."""
    edits = [each for each in finding.blockers if each["kind"] not in HOLDERS]
    holders = [each for each in finding.blockers if each["kind"] in HOLDERS]
    words = _together_said([edit_words(each, style) for each in edits])
    if len(edits) > _NAMED and not style.is_whole:
        words = [f"make {len(edits)} changes (`devalloc explain` lists them)"]
    steps = [*words, *([release_of(holders, style)] if holders else [])]
    text = f"{' and '.join(words)}, and {steps[-1]}" if words and holders else " and ".join(steps)
    others = [edit_words(each, style) for each in finding.alternatives[:1]]
    return " or ".join([text, *others]) if text else joined(others)


def _together_said(words: Sequence[str]) -> list[str]:
    """Edits of one verb said with it once: "drop a and b"."""
    if len(words) > 1 and all(each.startswith("drop ") for each in words):
        return [f"drop {' and '.join(each.removeprefix('drop ') for each in words)}"]
    return [*words]


def release_of(holders: Sequence[Mapping[str, Any]], style: Style) -> str:
    """What to do about who holds what is needed: one's own is released, others' waited for."""
    own = [each for each in holders if each.get("name") is not None]
    foreign = [each for each in holders if each.get("name") is None]
    most = len(holders) if style.is_whole else _NAMED
    steps = [f"{verb} {style.owners(refs, most)}" for verb, refs in (("release", own), ("wait for", foreign)) if refs]
    return " and ".join(steps)


def edit_words(edit: Mapping[str, Any], style: Style | None = None) -> str:
    """What to change, in the imperative. ``edit``: a blocker that holds nothing."""
    style = style or Style(WHOLE)
    text = EDITS.get(edit["kind"], _other_edit)(edit, style)
    if "machine" in edit:
        return f"{text} of machine {style.name(edit['machine'])}"
    of = edit.get("claim") if edit["kind"] in _OF_CLAIMS else None
    return f"{text} of {style.name(of)}" if of and of != style.subject else text


_OF_CLAIMS = frozenset(("amount", "limit", "matchAttribute", "constraint", "selector", "capacity", "request", "class"))
"""Kinds of edits of a claim's spec."""


def _other_edit(edit: Mapping[str, Any], style: Style) -> str:
    return f"change {style.path(edit.get('path') or edit['kind'])}"


def _correction(edit: Mapping[str, Any], style: Style) -> str | None:
    """What was most likely meant, where something was mistyped."""
    if "didYouMean" not in edit or "written" not in edit:
        return None
    return f"write {style.name(edit['didYouMean'])} for {style.name(edit['written'])} in {style.path(edit['path'])}"


def _drop(edit: Mapping[str, Any], style: Style) -> str:
    return _correction(edit, style) or f"change {style.path(edit['path'])}"


def _match_attribute(edit: Mapping[str, Any], style: Style) -> str:
    if (correction := _correction(edit, style)) is not None:
        return correction
    if "attribute" not in edit:
        return f"drop {style.path(edit['path'])}"
    return f"drop {style.code(edit['attribute'])} from {style.path(edit['path'])}"


def _constraint(edit: Mapping[str, Any], style: Style) -> str:
    for kind in ("matchAttribute", "distinctAttribute"):
        if kind in edit:
            return f"drop {style.path(edit['path'])} ({kind} {style.name(edit[kind])})"
    return _drop(edit, style)


def _amount(edit: Mapping[str, Any], style: Style) -> str:
    resource, most = edit.get("resource"), str(edit["most"])
    if "requested" in edit:
        _, most = readable_texts(Quantity.parse(str(edit["requested"])), Quantity.parse(most))
    what = (
        f"{most} {'device' if most == '1' else 'devices'}" if resource in (None, "count") else f"{most} of {resource}"
    )
    return f"ask for at most {what} in {style.path(edit['path'])}"


def _class(edit: Mapping[str, Any], style: Style) -> str:
    if (correction := _correction(edit, style)) is not None:
        return correction
    if "deviceClassName" in edit:
        return f"use another class than {style.name(edit['deviceClassName'])}"
    what = "type" if "deviceType" in edit else "class"
    return f"use another {what} than {style.name(edit.get('deviceType') or edit.get('deviceClass'))}"


def _request(edit: Mapping[str, Any], style: Style) -> str:
    name = str(edit.get("request", ""))
    if not name or name.isdecimal():  # a number that no field has
        return f"drop {style.path(edit['path'])}" if "path" in edit else _other_edit(edit, style)
    return f"drop request {style.name(name)}"


def _node(edit: Mapping[str, Any], style: Style) -> str:
    node = style.name(edit["node"])
    if "pool" in edit:
        return f"add node {node} to the node selector of pool {style.name(edit['driver'])}/{style.name(edit['pool'])}"
    if bound := edit.get("boundBy"):
        names = [f"{style.name(each['namespace'])}/{style.name(each['name'])}" for each in bound]
        return f"release {style.listed(names)}, which {'holds' if len(names) == 1 else 'hold'} the group on node {node}"
    if "path" in edit:
        return f"drop {style.path(edit['path'])}"
    names = [f"{style.name(each['namespace'])}/{style.name(each['name'])}" for each in edit.get("pinned", ())]
    return f"drop the annotation devalloc.io/node={node}{f' of {style.listed(names)}' if names else ''}"


def _pool_resource(edit: Mapping[str, Any], style: Style) -> str:
    if "missing" not in edit:
        return "give the pools more resources"
    return f"give pool {style.name(edit['pool'])} {edit['missing']} more of {style.name(edit['resource'])}"


def _counter(edit: Mapping[str, Any], style: Style) -> str:
    if "missing" not in edit:
        return "raise the counters"
    which = f"{style.name(edit['counterSet'])}/{style.name(edit['counter'])}"
    return f"raise counter {which} of pool {style.name(edit['driver'])}/{style.name(edit['pool'])} by {edit['missing']}"


def _unavailable(edit: Mapping[str, Any], style: Style) -> str:
    if "device" in edit:
        why = f" ({printable(edit['why'])})" if edit.get("why") and style.width == WHOLE else ""
        return f"make {style.name(edit['pool'])}/{style.name(edit['device'])} available{why}"
    if "node" not in edit:
        return "make the unavailable devices available"
    reasons = unschedulable_reasons(edit["why"])
    remedies = dict.fromkeys(reason.remedy.format(node=style.name(edit["node"])) for reason in reasons)
    why = f" ({printable('; '.join(reason.why for reason in reasons))})" if style.width == WHOLE else ""
    return f"{' and '.join(remedies)}{why}"


def _taint(edit: Mapping[str, Any], style: Style) -> str:
    if "key" not in edit:
        return "tolerate the taints"
    taint = f"{edit['key']}{'=' + edit['value'] if edit.get('value') else ''}:{edit.get('effect', '')}"
    where = "/".join(style.name(edit[part]) for part in ("driver", "pool", "device") if part in edit)
    return f"tolerate the taint {style.name(taint)} of {where}"


def _pool(edit: Mapping[str, Any], style: Style) -> str:
    return f"complete pool {style.name(edit['driver'])}/{style.name(edit['pool'])}"


EDITS: dict[str, Callable[[Mapping[str, Any], Style], str]] = {
    "amount": _amount,
    "capacity": lambda edit, style: f"drop {style.path(edit['path'])}",
    "class": _class,
    "compatibilityGroup": lambda edit, style: f"let pool {style.name(edit['pool'])} mix compatibility groups",
    "config": lambda edit, style: (
        f"create {edit['configKind']} {style.name(edit['namespace'])}/{style.name(edit['name'])}"
    ),
    "constraint": _constraint,
    "counter": _counter,
    "device": lambda edit, style: (
        f"free device {style.name(edit['driver'])}/{style.name(edit['pool'])}/{style.name(edit['device'])}"
    ),
    "feature": lambda edit, style: f"switch on feature {style.name(edit['feature'])}",
    "limit": lambda edit, style: f"drop {style.path(edit['path'])}",
    "matchAttribute": _match_attribute,
    "member": lambda edit, style: f"take {style.name(edit['namespace'])}/{style.name(edit['name'])} out of the group",
    "node": _node,
    "pool": _pool,
    "poolResource": _pool_resource,
    "request": _request,
    "selector": _drop,
    "taint": _taint,
    "unavailable": _unavailable,
    "undefinedResource": lambda edit, style: (
        f"define {style.name(edit['resource'])} in pool {style.name(edit['pool'])}"
    ),
}
