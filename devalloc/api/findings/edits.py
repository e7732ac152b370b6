"""Blockers, what must change for a claim to be satisfied, and remedies in words: what to change, and who is to go."""

# No `from __future__ import annotations`: with it, Python does not know at runtime which keys of blockers are required.

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict

from devalloc.api.cordon import is_cordon_reason, unschedulable_reasons
from devalloc.api.findings.data import HOLDERS, MAX_LISTED, Finding, holder_of
from devalloc.api.findings.style import WHOLE, Style, joined
from devalloc.api.quantity import Quantity, readable_texts
from devalloc.printable import one_line, printable


class ObjectName(TypedDict):
    namespace: str
    name: str


BlockerKind = Literal[
    "amount",
    "capacity",
    "claim",
    "class",
    "compatibilityGroup",
    "config",
    "constraint",
    "counter",
    "device",
    "feature",
    "limit",
    "matchAttribute",
    "member",
    "node",
    "nodeRule",
    "pool",
    "poolResource",
    "request",
    "selector",
    "taint",
    "unavailable",
    "undefinedResource",
]


class Blocker(TypedDict):
    """What must change for a claim to be satisfied. Which of the other keys it has depends on ``kind``
    (docs/reasons.md)."""

    kind: BlockerKind
    leaving: NotRequired[bool]
    """Whether a claim is being deleted or released."""

    # where it is written
    claim: NotRequired[str]
    """NAMESPACE/NAME of the member of the group, or of the claim of the call."""
    request: NotRequired[str]
    path: NotRequired[str]
    """The field of the claim."""
    annotation: NotRequired[str]
    written: NotRequired[str]
    didYouMean: NotRequired[str]

    # what it asks for
    attribute: NotRequired[str]
    matchAttribute: NotRequired[str]
    distinctAttribute: NotRequired[str]
    expression: NotRequired[str]
    expressions: NotRequired[list[str]]
    resource: NotRequired[str]
    requested: NotRequired[str]
    most: NotRequired[str]
    """The largest amount that fits."""
    whole: NotRequired[bool]
    """Whether whole devices are given without the amount."""
    limit: NotRequired[str]
    deviceClass: NotRequired[str]
    deviceClassName: NotRequired[str]
    deviceType: NotRequired[str]
    feature: NotRequired[str]

    # what it names
    namespace: NotRequired[str]
    name: NotRequired[str]
    priority: NotRequired[int]
    apiVersion: NotRequired[str]
    configKind: NotRequired[str]
    pod: NotRequired[str]
    boundBy: NotRequired[list[ObjectName]]
    pinned: NotRequired[list[ObjectName]]

    # the devices
    node: NotRequired[str | None]
    otherNodes: NotRequired[list[str]]
    """Other nodes, each of which could replace ``node``."""
    driver: NotRequired[str]
    pool: NotRequired[str]
    device: NotRequired[str]
    devices: NotRequired[list[str]]
    state: NotRequired[str]
    why: NotRequired[str]
    capacity: NotRequired[str]
    missing: NotRequired[str]
    needed: NotRequired[str]
    counterSet: NotRequired[str]
    counter: NotRequired[str]
    key: NotRequired[str]
    value: NotRequired[str]
    effect: NotRequired[str]


_NAMED = 2
"""Changes, and holders, that a remedy names; of more it gives the number."""
_NO_REASON = 24
"""The width of names at which a remedy does not say why a device is unavailable, or which node an annotation names."""
_LONGEST_EXPRESSION = 40
"""Characters of an expression that a remedy quotes."""
_REPAIRS = {"reserved: ": "free", "in use": "free", "unhealthy": "repair", "reset failed": "repair"}
"""Beginnings of why a device is unavailable, and what to do about it."""
_Step = tuple[str, str]
"""A verb in the imperative, and its object."""


def remedy_of(finding: Finding, style: Style) -> str:
    """What to do, such as "remove spec.claims[0], and delete claim default/a"; "" if nothing helps."""
    is_release_first = bool(finding.blockers) and finding.blockers[0]["kind"] in HOLDERS
    if len(finding.edits) > _NAMED and not style.is_whole:
        first = release_of(finding.blockers[:1], style) if is_release_first else edit_words(finding.edits[0], style)
        return and_more(first, len(finding.blockers))
    rest = len(finding.edits) - MAX_LISTED
    words = " and ".join(_by_verb([_step(each, style) for each in finding.edits[:MAX_LISTED]]))
    words += f" and {rest} more" if rest > 0 else ""
    release = release_of(finding.holders, style)
    text = ", and ".join(filter(None, [release, words] if is_release_first else [words, release]))
    others = [edit_words(each, style) for each in finding.alternatives[:1]]
    return " or ".join([text, *others]) if text else joined(others)


def merged(changes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Changes, with one for those that are one to who makes them: to ask for fewer or smaller devices, whatever their
    pool lacks, and to take attributes out of one list."""
    by_place: dict[object, Mapping[str, Any]] = {}
    for number, each in enumerate(changes):
        if each["kind"] in _OF_LIMITS:
            by_place.setdefault(_OF_LIMITS, each)
        elif (one := _ONE_OF.get(each["kind"])) and one.same in each and "didYouMean" not in each:
            place = tuple(each.get(name) for name in ("kind", one.same, *_PLACE))
            listed = by_place[place][one.listed] if place in by_place else []
            listed.append(each.get(one.by, ""))
            by_place[place] = {**each, one.listed: listed}
        else:
            by_place[number] = each
    return [*by_place.values()]


class _Merge(NamedTuple):
    """Edits that are one if they have the ``same``, and one place; what they differ ``by`` is ``listed``."""

    same: str
    by: str
    listed: str


_ONE_OF = {
    "matchAttribute": _Merge("path", "attribute", "attributes"),
    "amount": _Merge("most", "path", "paths"),
    "taint": _Merge("key", "effect", "effects"),
}
_PLACE = ("claim", "machine", "driver", "pool", "device", "value", "untold")
_OF_LIMITS = frozenset(("poolResource", "counter"))
"""Kinds of edits by which fewer or smaller devices are asked for."""


def or_wait(finding: Finding) -> str:
    """That to wait will do, too, where all that is to be done is to delete or stop one's own."""
    holders = finding.holders
    if finding.edits or finding.alternatives or not all(map(_is_own, holders)):
        return ""
    return f", or wait for {'it' if len(holders) == 1 else 'them'}" if holders else ""


def and_more(step: str, count: int) -> str:
    """One of so many changes, and where the others are."""
    return f"{step}, and {count - 1} more (`devalloc explain`)" if count > 1 else step


def changes_in_explain(count: int) -> str:
    """Where to find what to do that a sentence cannot name."""
    what = f"which {count} changes help" if count > 1 else "what to change"
    return f"run `devalloc explain` to see {what}"


def withheld_of(finding: Finding, style: Style) -> str:
    """The node or device that would do and gives nothing now; "" if it is not one that is to be changed."""
    edit = finding.edits[0] if finding.edits else {}
    if edit.get("kind") == "node" and "pool" in edit:
        pool = f"{style.name(edit['driver'])}/{style.name(edit['pool'])}"
        return f"pool {pool} is not published for node {style.name(edit['node'])}"
    if edit.get("kind") != "unavailable" or not edit.get("why"):
        return ""
    does = "" if "notEnough" in finding.caveats else "would do, but "
    if "device" in edit:
        device = f"device {style.name(edit['pool'])}/{style.name(edit['device'])}"
        return f"{device} {does}is {style.text(edit['why'])}"
    why = "; ".join(reason.why for reason in unschedulable_reasons(edit["why"]))
    return f"node {style.name(edit['node'])} {does}{style.text(_predicate(why))}"


def _predicate(why: str) -> str:
    """What a node is or has: "cordoned: a fan" -> "is cordoned: a fan"."""
    return why.removeprefix("node ") if why.startswith("node ") else f"is {why}"


def _by_verb(steps: Sequence[_Step]) -> list[str]:
    """Edits in words; those of one verb have it once, if their objects are single words: "remove a and b"."""
    by_verb: dict[tuple[str, bool], list[str]] = {}
    for verb, what in steps:
        by_verb.setdefault((verb, " " in what), []).append(what)
    return [
        f" and {verb} ".join(["", *objects]).removeprefix(" and ") if is_long else f"{verb} {' and '.join(objects)}"
        for (verb, is_long), objects in by_verb.items()
    ]


def release_of(holders: Sequence[Mapping[str, Any]], style: Style) -> str:
    """What to do about who holds what is needed: one's own claims are deleted and machines stopped, others' and what
    is leaving waited for."""
    own = [each for each in holders if _is_own(each)]
    claims, machines = ([each for each in own if each["kind"] == kind] for kind in ("claim", "machine"))
    others = [each for each in holders if not _is_own(each)]
    most = MAX_LISTED if style.is_whole else _NAMED
    parts = (("delete", claims), ("stop", machines), ("wait for", others))
    return " and ".join(f"{verb} {style.owners(refs, most)}" for verb, refs in parts if refs)


def _is_own(holder: Mapping[str, Any]) -> bool:
    """Whether the reader may make it go, and it does not go by itself."""
    return holder.get("name") is not None and not holder.get("leaving")


def edit_words(edit: Mapping[str, Any], style: Style | None = None) -> str:
    """What to change, in the imperative. ``edit``: a blocker that holds nothing."""
    return printable(" ".join(_step(edit, style or Style(WHOLE))))


def _step(edit: Mapping[str, Any], style: Style) -> _Step:
    """The verb and its object, which says whose spec it is, and why it is changed where no cause says that."""
    verb, what = EDITS.get(edit["kind"], _other_edit)(edit, style)
    to = f" to {_amount_of(edit)}" if edit["kind"] == "amount" and "most" in edit else ""
    to += f" ({_why_too(edit)})" if "untold" in edit else ""
    if "machine" in edit:
        return verb, f"{what} of machine {style.name(edit['machine'])}{to}"
    of = edit.get("claim")
    return verb, f"{what} of claim {style.name(of)}{to}" if of and of != style.subject else f"{what}{to}"


def _why_too(edit: Mapping[str, Any]) -> str:
    """Why a change is needed besides others, in a few words."""
    if edit["kind"] == "amount" and "most" not in edit:
        return "none shares it"
    part = next(each for each in ("distinctAttribute", "matchAttribute", "kind") if each in edit)
    return _WHY_TOO.get(edit["kind"] if part == "kind" else part, "it is in the way")


_WHY_TOO = {
    "amount": "the most that fits",
    "capacity": "too few have it",
    "class": "too few are of it",
    "constraint": "too few pass",
    "distinctAttribute": "too few differ",
    "limit": "too few are within it",
    "matchAttribute": "too few agree",
    "node": "no room there",
    "nodeRule": "too few nodes are left",
    "request": "it does not fit",
    "selector": "too few pass",
}
"""The same by the kind of change."""


def _other_edit(edit: Mapping[str, Any], style: Style) -> _Step:
    return "change", f"{style.path(edit.get('path') or edit['kind'])}"


def _correction(edit: Mapping[str, Any], style: Style) -> _Step | None:
    """What was most likely meant, where something was mistyped."""
    if "didYouMean" not in edit or "written" not in edit:
        return None
    meant, written = style.name(edit["didYouMean"]), style.name(edit["written"])
    return "write", f"{meant} for {written} in {style.path(edit['path'])}"


def _relax(edit: Mapping[str, Any], style: Style) -> _Step:
    if (correction := _correction(edit, style)) is not None:
        return correction
    expressions = [*map(one_line, edit.get("expressions") or ([edit["expression"]] if "expression" in edit else []))]
    if style.says_why and len(expressions) == 1 and len(expressions[0]) <= min(style.width, _LONGEST_EXPRESSION):
        return "relax", f"{expressions[0]} in {style.path(edit['path'])}"
    return "relax", style.path(edit["path"])


def _match_attribute(edit: Mapping[str, Any], style: Style) -> _Step:
    if (correction := _correction(edit, style)) is not None:
        return correction
    if "attribute" not in edit:
        return "remove", style.path(edit["path"])
    names = " and ".join(map(style.code, edit.get("attributes", [edit["attribute"]])))
    return "remove", f"{names} from {style.path(edit['path'])}"


def _constraint(edit: Mapping[str, Any], style: Style) -> _Step:
    for kind in ("matchAttribute", "distinctAttribute"):
        if kind in edit:
            named = f" ({kind} {style.name(edit[kind])})" if style.says_why else ""
            return "remove", f"{style.path(edit['path'])}{named}"
    return _relax(edit, style)


def _amount(edit: Mapping[str, Any], style: Style) -> _Step:
    if "most" not in edit:
        how = " to get whole devices" if style.says_why and "whole" in edit and "untold" not in edit else ""
        return "remove", f"{style.path(edit['path'])}{how}"
    return "lower", " and ".join(map(style.path, edit.get("paths", [edit["path"]])))


def _amount_of(edit: Mapping[str, Any]) -> str:
    """What an amount is to be lowered to."""
    if "requested" not in edit:
        return str(edit["most"])
    return readable_texts(Quantity.parse(str(edit["requested"])), Quantity.parse(str(edit["most"])))[1]


def _limit(edit: Mapping[str, Any], style: Style) -> _Step:
    why = " to use several devices" if style.says_why and edit["path"].endswith(".limits.count") else ""
    return "remove", f"{style.path(edit['path'])}{why}"


def _class(edit: Mapping[str, Any], style: Style) -> _Step:
    if (correction := _correction(edit, style)) is not None:
        return correction
    if "path" not in edit:
        return "name", f"another deviceClassName than {style.code(edit['deviceClassName'])}"
    if not style.says_why:
        return "change", style.path(edit["path"])
    what = "type" if "deviceType" in edit else "class"
    return "name", f"another {what} in {style.path(edit['path'])}"


def _request(edit: Mapping[str, Any], style: Style) -> _Step:
    name = str(edit.get("request", ""))
    if not name or name.isdecimal():  # a number that no field has
        return ("remove", style.path(edit["path"])) if "path" in edit else _other_edit(edit, style)
    return "remove", f"request {style.name(name)}"


def _node(edit: Mapping[str, Any], style: Style) -> _Step:
    node = style.name(edit["node"])
    if "pool" in edit:
        pool = f"{style.name(edit['driver'])}/{style.name(edit['pool'])}"
        what = "it for that node" if style.is_named else f"pool {pool} for node {node}"
        says_how = style.is_named or (style.says_why and not style.is_whole)
        how = " (nodeSelector or allNodes of its ResourceSlices)" if says_how else ""
        return "publish", f"{what}{how}"
    if bound := edit.get("boundBy"):
        held = release_of([*map(holder_of, bound)], style)
        verb, _, what = held.partition(" ")
        return verb, f"{what}, which {'holds' if len(bound) == 1 else 'hold'} the group on node {node}"
    if "path" in edit:
        return "remove", style.path(edit["path"])
    pinned = [*map(holder_of, edit.get("pinned", ()))]
    of = f" of {style.owners(pinned)}" if pinned else ""
    value = f"={node}" if style.width > _NO_REASON else ""
    what = "" if "untold" in edit else "the annotation "
    return "remove", f"{what}devalloc.io/node{value}{of}"


def _pool_resource(edit: Mapping[str, Any], style: Style) -> _Step:
    return _draw_less(edit, style.name(edit["resource"]), style.name(edit["pool"]), style)


def _counter(edit: Mapping[str, Any], style: Style) -> _Step:
    which = style.name(f"{edit['counterSet']}/{edit['counter']}")
    return _draw_less(edit, f"counter {which}", style.name(f"{edit['driver']}/{edit['pool']}"), style)


def _draw_less(edit: Mapping[str, Any], what: str, pool: str, style: Style) -> _Step:
    if style.width <= _NO_REASON:
        return "ask", "for fewer or smaller devices"
    lacks = f" (pool {pool} lacks {edit['missing']})" if "missing" in edit and style.says_why else ""
    return "ask", f"for fewer devices, or ones that use less {what}{lacks}"


def _unavailable(edit: Mapping[str, Any], style: Style) -> _Step:
    if "device" in edit:
        says_why = style.says_why and edit.get("why") and style.width > _NO_REASON
        why = f" ({style.text(edit['why'])})" if says_why else ""
        device = f"device {style.name(edit['pool'])}/{style.name(edit['device'])}"
        device = "it" if style.is_named else device
        if is_cordon_reason(str(edit.get("why"))):
            return "uncordon", f"{device}{why}"
        parts = str(edit.get("why")).split("; ")
        verbs = {next((_REPAIRS[start] for start in _REPAIRS if part.startswith(start)), "") for part in parts}
        return (verbs.pop() if len(verbs) == 1 else "") or "free or repair", f"{device}{why}"
    if "node" not in edit:
        return "free or repair", "the unavailable devices"
    reasons, node = unschedulable_reasons(edit["why"]), style.name(edit["node"])
    why = f" ({'; '.join(reason.why for reason in reasons)})" if style.says_why and style.width == WHOLE else ""
    (verb, what), *others = dict.fromkeys((reason.verb, reason.remedy.format(node=node)) for reason in reasons)
    return verb, f"{''.join([what, *(f' and {also} {of}' for also, of in others)])}{why}"


def _taint(edit: Mapping[str, Any], style: Style) -> _Step:
    if "key" not in edit:
        return "tolerate", "the taints"
    effects = " and ".join(edit.get("effects", [edit.get("effect", "")]))
    taint = f"{style.name(edit['key'])}{'=' + style.name(edit['value']) if edit.get('value') else ''}:{effects}"
    where = "/".join(style.name(edit[part]) for part in ("driver", "pool", "device") if part in edit)
    return "tolerate", f"taint {taint}{f' of device {where}' if style.says_why else ''}"


def _pool(edit: Mapping[str, Any], style: Style) -> _Step:
    pool = f"pool {style.name(edit['driver'])}/{style.name(edit['pool'])}"
    is_invalid = edit.get("state") == "invalid"
    state = f" (it is {'invalid' if is_invalid else 'incomplete'})" if style.says_why else ""
    return ("correct", f"{pool}{state}") if is_invalid else ("publish", f"all ResourceSlices of {pool}{state}")


EDITS: dict[str, Callable[[Mapping[str, Any], Style], _Step]] = {
    "amount": _amount,
    "capacity": lambda edit, style: ("remove", style.path(edit["path"])),
    "class": _class,
    "compatibilityGroup": lambda edit, style: (
        "select",
        f"devices of one compatibility group of pool {style.name(edit['pool'])}",
    ),
    "config": lambda edit, style: (
        "create",
        f"{edit['configKind']} {style.name(edit['namespace'])}/{style.name(edit['name'])}",
    ),
    "constraint": _constraint,
    "counter": _counter,
    "device": lambda edit, style: (
        "delete",
        f"the claim that holds device {'/'.join(style.name(edit[part]) for part in ('driver', 'pool', 'device'))}",
    ),
    "feature": lambda edit, style: ("enable", f"feature gate {style.name(edit['feature'])}"),
    "limit": _limit,
    "matchAttribute": _match_attribute,
    "member": lambda edit, style: (
        "take",
        f"{style.owner(holder_of(edit))} out of the {'pod' if 'pod' in edit else 'group'}",
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
