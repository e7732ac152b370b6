"""Remedies in words: what to change, and who is to go."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from devalloc.api.cordon import is_cordon_reason, unschedulable_reasons
from devalloc.api.findings.data import HOLDERS, Finding
from devalloc.api.findings.style import WHOLE, Style, joined
from devalloc.api.quantity import Quantity, readable_texts
from devalloc.printable import printable

_NAMED = 2
"""Changes, and holders, that a remedy names; of more it gives the number."""
_NO_REASON = 24
"""The width of names at which a remedy does not say why a device is unavailable."""
_Step = tuple[str, str]
"""A verb in the imperative, and its object."""


def remedy_of(finding: Finding, style: Style) -> str:
    """What to do, such as "remove spec.claims[0], and release claim default/a"; "" if nothing helps."""
    edits = [each for each in finding.blockers if each["kind"] not in HOLDERS]
    holders = [each for each in finding.blockers if each["kind"] in HOLDERS]
    words = _by_verb([_step(each, style) for each in edits])
    if len(edits) > _NAMED and not style.is_whole:
        words = [several_changes(len(edits))]
    steps = [*words, *([release_of(holders, style)] if holders else [])]
    text = f"{' and '.join(words)}, and {steps[-1]}" if words and holders else " and ".join(steps)
    others = [edit_words(each, style) for each in finding.alternatives[:1]]
    return " or ".join([text, *others]) if text else joined(others)


def several_changes(count: int) -> str:
    """What to do where a sentence cannot name so many changes."""
    return f"make {count} changes (see `devalloc explain`)"


def _by_verb(steps: Sequence[_Step]) -> list[str]:
    """Edits in words; those of one verb have it once: "remove a and b"."""
    by_verb: dict[str, list[str]] = {}
    for verb, what in steps:
        by_verb.setdefault(verb, []).append(what)
    return [f"{verb} {' and '.join(objects)}" for verb, objects in by_verb.items()]


def release_of(holders: Sequence[Mapping[str, Any]], style: Style) -> str:
    """What to do about who holds what is needed: one's own claims are released and machines stopped, others' and what
    is leaving waited for."""
    own = [each for each in holders if each.get("name") is not None and not each.get("leaving")]
    claims, machines = ([each for each in own if each["kind"] == kind] for kind in ("claim", "machine"))
    others = [each for each in holders if each not in own]
    most = len(holders) if style.is_whole else _NAMED
    parts = (("release", claims), ("stop", machines), ("wait for", others))
    steps = [f"{verb} {style.owners(refs, most)}" for verb, refs in parts if refs]
    return " and ".join(steps)


def edit_words(edit: Mapping[str, Any], style: Style | None = None) -> str:
    """What to change, in the imperative. ``edit``: a blocker that holds nothing."""
    return " ".join(_step(edit, style or Style(WHOLE)))


def _step(edit: Mapping[str, Any], style: Style) -> _Step:
    """The verb and its object, which says whose spec it is."""
    verb, what = EDITS.get(edit["kind"], _other_edit)(edit, style)
    if "machine" in edit:
        return verb, f"{what} of machine {style.name(edit['machine'])}"
    of = edit.get("claim") if edit["kind"] in _OF_CLAIMS else None
    return verb, f"{what} of claim {style.name(of)}" if of and of != style.subject else what


_OF_CLAIMS = frozenset(("amount", "limit", "matchAttribute", "constraint", "selector", "capacity", "request", "class"))
"""Kinds of edits of a claim's spec."""


def _other_edit(edit: Mapping[str, Any], style: Style) -> _Step:
    return "change", f"{style.path(edit.get('path') or edit['kind'])}"


def _correction(edit: Mapping[str, Any], style: Style) -> _Step | None:
    """What was most likely meant, where something was mistyped."""
    if "didYouMean" not in edit or "written" not in edit:
        return None
    meant, written = style.name(edit["didYouMean"]), style.name(edit["written"])
    return "write", f"{meant} for {written} in {style.path(edit['path'])}"


def _relax(edit: Mapping[str, Any], style: Style) -> _Step:
    return _correction(edit, style) or ("relax", style.path(edit["path"]))


def _match_attribute(edit: Mapping[str, Any], style: Style) -> _Step:
    if (correction := _correction(edit, style)) is not None:
        return correction
    if "attribute" not in edit:
        return "remove", style.path(edit["path"])
    return "remove", f"{style.code(edit['attribute'])} from {style.path(edit['path'])}"


def _constraint(edit: Mapping[str, Any], style: Style) -> _Step:
    for kind in ("matchAttribute", "distinctAttribute"):
        if kind in edit:
            return "remove", f"{style.path(edit['path'])} ({kind} {style.name(edit[kind])})"
    return _relax(edit, style)


def _amount(edit: Mapping[str, Any], style: Style) -> _Step:
    resource, most = edit.get("resource"), str(edit["most"])
    if "requested" in edit:
        _, most = readable_texts(Quantity.parse(str(edit["requested"])), Quantity.parse(most))
    what = f"{most} {'device' if most == '1' else 'devices'}" if resource in (None, "count") else most
    return "ask for", f"at most {what} in {style.path(edit['path'])}"


def _class(edit: Mapping[str, Any], style: Style) -> _Step:
    if (correction := _correction(edit, style)) is not None:
        return correction
    if "path" not in edit:
        return "name", f"another deviceClassName than {style.code(edit['deviceClassName'])}"
    return "name", f"another {'type' if 'deviceType' in edit else 'class'} in {style.path(edit['path'])}"


def _request(edit: Mapping[str, Any], style: Style) -> _Step:
    name = str(edit.get("request", ""))
    if not name or name.isdecimal():  # a number that no field has
        return ("remove", style.path(edit["path"])) if "path" in edit else _other_edit(edit, style)
    return "remove", f"request {style.name(name)}"


def _node(edit: Mapping[str, Any], style: Style) -> _Step:
    node = style.name(edit["node"])
    if "pool" in edit:
        pool = f"{style.name(edit['driver'])}/{style.name(edit['pool'])}"
        return "add", f"node {node} to the node selector of the ResourceSlices of pool {pool}"
    if bound := edit.get("boundBy"):
        names = [f"{style.name(each['namespace'])}/{style.name(each['name'])}" for each in bound]
        return (
            "release",
            f"claim {style.listed(names)}, which {'holds' if len(names) == 1 else 'hold'} the group on node {node}"
            if len(names) == 1
            else f"claims {style.listed(names)}, which hold the group on node {node}",
        )
    if "path" in edit:
        return "remove", style.path(edit["path"])
    names = [f"{style.name(each['namespace'])}/{style.name(each['name'])}" for each in edit.get("pinned", ())]
    of = f" of {'claim' if len(names) == 1 else 'claims'} {style.listed(names)}" if names else ""
    return "remove", f"the annotation devalloc.io/node={node}{of}"


def _pool_resource(edit: Mapping[str, Any], style: Style) -> _Step:
    if "missing" not in edit:
        return "ask", "for smaller or fewer devices"
    lacks = f"pool {style.name(edit['pool'])} has {edit['missing']} {style.name(edit['resource'])} too little"
    return "ask", f"for smaller or fewer devices: {lacks}"


def _counter(edit: Mapping[str, Any], style: Style) -> _Step:
    if "missing" not in edit:
        return "ask", "for smaller or fewer devices"
    which = f"{style.name(edit['counterSet'])}/{style.name(edit['counter'])}"
    pool = f"{style.name(edit['driver'])}/{style.name(edit['pool'])}"
    return "ask", f"for smaller or fewer devices: pool {pool} has {edit['missing']} of counter {which} too little"


def _unavailable(edit: Mapping[str, Any], style: Style) -> _Step:
    if "device" in edit:
        why = f" ({style.text(edit['why'])})" if edit.get("why") and style.width > _NO_REASON else ""
        device = f"device {style.name(edit['pool'])}/{style.name(edit['device'])}"
        if is_cordon_reason(str(edit.get("why"))):
            return "uncordon", f"{device}{why}"
        return "make", f"{device} available{why}"
    if "node" not in edit:
        return "make", "the unavailable devices available"
    reasons, node = unschedulable_reasons(edit["why"]), style.name(edit["node"])
    why = f" ({printable('; '.join(reason.why for reason in reasons))})" if style.width == WHOLE else ""
    (verb, what), *others = dict.fromkeys((reason.verb, reason.remedy.format(node=node)) for reason in reasons)
    return verb, f"{''.join([what, *(f' and {also} {of}' for also, of in others)])}{why}"


def _taint(edit: Mapping[str, Any], style: Style) -> _Step:
    if "key" not in edit:
        return "tolerate", "the taints"
    taint = f"{edit['key']}{'=' + edit['value'] if edit.get('value') else ''}:{edit.get('effect', '')}"
    where = "/".join(style.name(edit[part]) for part in ("driver", "pool", "device") if part in edit)
    return "tolerate", f"taint {style.name(taint)} of device {where}"


def _pool(edit: Mapping[str, Any], style: Style) -> _Step:
    pool = f"pool {style.name(edit['driver'])}/{style.name(edit['pool'])}"
    return ("correct", pool) if edit.get("state") == "invalid" else ("publish", f"all ResourceSlices of {pool}")


EDITS: dict[str, Callable[[Mapping[str, Any], Style], _Step]] = {
    "amount": _amount,
    "capacity": lambda edit, style: ("remove", style.path(edit["path"])),
    "class": _class,
    "compatibilityGroup": lambda edit, style: (
        "choose",
        f"devices of one compatibility group of pool {style.name(edit['pool'])}",
    ),
    "config": lambda edit, style: (
        "create",
        f"{edit['configKind']} {style.name(edit['namespace'])}/{style.name(edit['name'])}",
    ),
    "constraint": _constraint,
    "counter": _counter,
    "device": lambda edit, style: (
        "release",
        f"device {style.name(edit['driver'])}/{style.name(edit['pool'])}/{style.name(edit['device'])}",
    ),
    "feature": lambda edit, style: ("enable", f"feature gate {style.name(edit['feature'])}"),
    "limit": lambda edit, style: ("remove", style.path(edit["path"])),
    "matchAttribute": _match_attribute,
    "member": lambda edit, style: (
        "take",
        f"claim {style.name(edit['namespace'])}/{style.name(edit['name'])} out of the group",
    ),
    "node": _node,
    "nodeRule": lambda edit, style: ("remove", f"the annotation {edit['annotation']}"),
    "pool": _pool,
    "poolResource": _pool_resource,
    "request": _request,
    "selector": _relax,
    "taint": _taint,
    "unavailable": _unavailable,
    "undefinedResource": lambda edit, style: (
        "define",
        f"resource {style.name(edit['resource'])} in DevicePool {style.name(edit['pool'])}",
    ),
}
