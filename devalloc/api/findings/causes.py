"""Causes in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from devalloc.api.findings.data import MAX_LISTED, Cause, Fact
from devalloc.api.findings.rules import RuleCode, rule_words
from devalloc.api.findings.style import WHOLE, Style, count_devices, count_of, count_parts, joined
from devalloc.printable import printable


@dataclass(frozen=True, slots=True)
class Words:
    """A cause in words, and what to do about it if nothing else is said."""

    text: str
    remedy: str = ""
    guess: str = ""
    """what was most likely meant"""
    hint: str = ""
    """what to do if no change is known"""
    obvious: str = ""
    """what to do, which the text says almost"""
    is_complete: bool = False
    """whether the text says what to do, too"""

    def after(self, text: str) -> Words:
        """The same after another text."""
        return replace(self, text=f"{text}{self.text}")

    def then(self, step: str) -> str:
        """What to do about it, and after that."""
        if self.guess:
            return f"did you mean {self.guess}?{f' Then {step}' if step else ''}"
        return joined([self.remedy, step])


def words_of(cause: Fact, style: Style) -> Words:
    words = CAUSES[Cause(cause["code"])](cause, style)
    return Words(words) if isinstance(words, str) else words


def _text(cause: Fact, style: Style) -> str:
    """A ``text`` of what is read before any search: a field and what is wrong with it, or an error of an expression."""
    text = printable(str(cause["text"]))
    path, space, rest = text.partition(" ")
    return f"{style.path(path)}{space}{rest}" if path.startswith("spec.") else text


def _no_driver(cause: Fact, style: Style) -> Words:
    """``drivers`` that have no device, those that are ``there``, and the ``near`` one."""
    text = f"no device of driver {style.listed(cause['drivers'], 'or')} exists"
    text += f" (only of {style.listed(cause['there'])})" if style.width == WHOLE else ""
    if near := cause.get("near"):
        return Words(text, guess=style.name(near))
    if any(driver.endswith(".devalloc.io") for driver in cause["drivers"]):
        return Words(text, "`devalloc discover` shows why a card is not offered")
    return Words(text, "publish one, or name another class")


def _invalid_pool(cause: Fact, style: Style) -> Words:
    """``why`` a pool counts nothing; the ``drivers`` that have no other."""
    is_named = cause.get("drivers") and style.width == WHOLE
    of = f" of driver {style.listed(cause['drivers'], 'or')}" if is_named else ""
    return Words(f"no valid pool{of} exists: {style.text(cause['why'])}", "correct it")


def _no_match(cause: Fact, style: Style) -> Words:
    """The ``request``, if there are several; in a sentence maybe what ``STEP`` says, too."""
    text = f"no device matches {_request(cause, style)}" if "request" in cause else "no device matches"
    if "rule" in cause:
        return _step(cause, style).after(f"{text}: ")
    return Words(text, obvious="`devalloc explain` shows why not")


def _request(cause: Fact, style: Style) -> str:
    """The ``request``, or its ``path`` where its name is a number."""
    return style.path(cause["path"]) if "path" in cause else f"request {style.name(cause['request'])}"


def _step(cause: Fact, style: Style) -> Words:
    """The ``rule`` that leaves out most devices, with its ``args``: ``count`` of ``total``, and why it leaves out the
    first one (``example``)."""
    example = f" ({style.text(cause['example'])})" if "example" in cause else ""
    what = style.text(rule_words(cause["rule"], cause.get("args"), cause["count"]))
    return Words(f"{count_of(cause['count'], cause['total'])} {what}{example}", obvious=RuleCode(cause["rule"]).advice)


def _unknown_name(cause: Fact, style: Style) -> Words:
    """A ``name`` that ``count`` of ``total`` devices have, the ``near`` one, and ``what`` it is."""
    name = style.code(cause["name"])
    what = {"amount": f"shares of {name}", "capacity": f"capacity {name}"}.get(
        cause.get("what", ""), f"attribute {name}"
    )
    text = f"{_few(cause['count'], cause['total'])} {what}"
    advice = "ask for an amount that devices have" if cause.get("what") else "use one that devices have"
    return Words(text, guess=style.code(cause["near"]) if "near" in cause else "", obvious=advice)


def _few(count: int, total: int) -> str:
    """Such as "none of 3 devices has", or "only 1 of 3 devices has"."""
    if not count:
        return "no device has" if total == 1 else f"none of {total} devices has"
    return f"only {count} of {count_devices(total)} {'has' if count == 1 else 'have'}"


def _unknown_value(cause: Fact, style: Style) -> Words:
    """A ``value`` of ``name`` that none of ``total`` devices has; the ``near`` one, or a longer one that contains it
    (``whole``), and the expression that finds that (``write``)."""
    text = f"{_few(0, cause['total'])} {style.code(cause['name'])} {_quoted(cause['value'], style)}"
    if "near" in cause:
        return Words(text, guess=_quoted(cause["near"], style))
    return Words(f"{text}, but there is {_quoted(cause['whole'], style)}", f"write {cause['write']}")


def _quoted(text: str, style: Style) -> str:
    return repr(style.name(text))


def _wrong_type(cause: Fact, style: Style) -> Words:
    """``name`` has values of ``type`` on ``count`` devices and is compared with ``literal`` of type ``of``: the
    ``fault`` of its form, or the ``advice``."""
    there = f"{style.code(cause['name'])} is {cause['type']} on {count_devices(cause['count'])}"
    if "fault" in cause:
        return Words(f"{there}, and {style.name(cause['literal'])} {cause['fault']}")
    text = f"{there}, and is compared with the {cause['of']} {style.name(cause['literal'])}"
    return Words(text, cause.get("advice", ""))


def _misplaced(cause: Fact, style: Style) -> Words:
    """``name`` is ``what``: ``write`` it so."""
    return Words(f"{style.code(cause['name'])} {cause['what']}", f"write {cause['write']}")


def _lacks(cause: Fact, style: Style) -> str:
    return f"node {style.name(cause['node'])} does not have" if "node" in cause else "no node has"


def _together(cause: Fact, style: Style) -> str:
    """Such as " with the same `numa` and `root`"."""
    names = cause.get("attributes", ())
    has = "a value of" if cause.get("devices", cause.get("wanted")) == 1 else "the same"
    return f" with {has} {' and '.join(style.code(name) for name in names)}" if names else ""


def _of_request(cause: Fact, style: Style) -> str:
    return f" for {_request(cause, style)}" if "request" in cause else ""


def _too_few(cause: Fact, style: Style) -> Words:
    """``wanted`` devices, and the ``most`` of them on a node, or on ``node``; ``free`` ones, of the same
    ``attributes``, for a ``request``."""
    wanted = count_devices(cause["wanted"], "free " if cause.get("free") else "")
    of = f"{_together(cause, style)}{_of_request(cause, style)}"
    return Words(f"{_lacks(cause, style)} {wanted}{of} (at most {cause['most']})", hint=_fewer(cause))


def _fewer(cause: Fact, less: str = "ask for fewer") -> str:
    """What to do about too few devices, if there are some, or too little (``less``)."""
    return "" if cause["most"] == "0" else "wait until some are released" if cause.get("free") else less


def _too_little(cause: Fact, style: Style) -> Words:
    """The same for an amount of a ``resource``, on at most so many ``devices``."""
    on = f" on {count_devices(cause['devices'])}" if "devices" in cause else ""
    what = f"{cause['wanted']} of {'free ' if cause.get('free') else ''}{style.name(cause['resource'])}"
    on = on or " on its devices"
    advice = _fewer(cause, "ask for less")
    return Words(f"{_lacks(cause, style)} {what}{on}{_together(cause, style)} (at most {cause['most']})", hint=advice)


def _too_few_agree(cause: Fact, style: Style) -> Words:
    """``wanted`` devices with one value of an ``attribute``, or all ``distinct`` in it, the ``most`` on a node, and how
    many of ``total`` are ``without`` it."""
    name = style.code(cause["attribute"])
    what = f"all different in {name}" if cause.get("distinct") else f"with the same {name}"
    what = f"with a value of {name}" if cause["wanted"] == 1 else what
    without = f"; {cause['without']} of {cause['total']} have no {name}" if "without" in cause else ""
    wanted = f"{count_devices(cause['wanted'])} {what}{_of_request(cause, style)}"
    return Words(f"{_lacks(cause, style)} {wanted} (at most {cause['most']}{without})", hint=_fewer(cause))


def _competition(cause: Fact, style: Style) -> str:
    """``count`` requests, their names if they are few (``requests``), want ``wanted`` devices, and ``most`` match."""
    names, paths = cause.get("requests"), cause.get("paths")
    who = style.listed([*map(style.path, paths)]) if paths else ""
    who = who or (f"requests {style.listed(names)}" if names else f"{cause['count']} requests")
    where = f"node {style.name(cause['node'])} has" if "node" in cause else "no node has more than"
    return f"{who} want {cause['wanted']} devices together, and {where} {cause['most']}"


def _amounts(cause: Fact, style: Style) -> str:
    """The same for amounts of a ``resource``."""
    where = f"node {style.name(cause['node'])} has" if "node" in cause else "no node has more than"
    what = f"{cause['wanted']} of {style.name(cause['resource'])}"
    return f"{cause['count']} requests want {what} together, and {where} {cause['most']}"


def _node_unknown(cause: Fact, style: Style) -> Words:
    """The ``node``, and the ``near`` one."""
    near = _quoted(cause["near"], style) if "near" in cause else ""
    return Words(f"no node {_quoted(cause['node'], style)} has devices", guess=near)


def _members(cause: Fact, style: Style) -> Words:
    """The ``members`` of a ``group`` that cannot be satisfied."""
    who = style.owners(cause["members"], more=cause.get("more", 0))
    is_one = len(cause["members"]) == 1 and not cause.get("more")
    fits, its = ("does not fit", "its message") if is_one else ("do not fit", "their messages")
    rest = f", so {'the machine waits' if 'machine' in cause else 'none of it does'}" if style.width == WHOLE else ""
    return Words(f"{who} of {_group(cause, style)} {fits}{rest}", obvious=f"see {its}")


def _group(cause: Fact, style: Style) -> str:
    """The ``group``, or the ``machine`` that is one with its claims."""
    return f"machine {style.name(cause['machine'])}" if "machine" in cause else f"group {style.name(cause['group'])}"


def _all_of(cause: Fact, style: Style) -> str:
    """All claims of the ``group``, or the ``machine`` and its claims."""
    what = "and its claims" if "machine" in cause else ""
    return f"{_group(cause, style)} {what}" if what else f"all claims of {_group(cause, style)}"


def _unpublished(cause: Fact, style: Style) -> Words:
    """A ``device`` of a ``pool`` that a ``holder`` has, and that is published no longer, or with ``less``; how many
    ``more`` there are."""
    how = "now has less than that" if cause.get("less") else "is published no longer"
    more = f" (and {cause['more']} more such)" if cause.get("more") else ""
    device = f"{style.name(cause['pool'])}/{style.name(cause['device'])}"
    text = f"{style.owner(cause['holder'])} holds {device}, which {how}{more}"
    return Words(text, obvious="ask its owner or an admin to delete it")


_EXCLUSIVE = {
    "groups": "no pool mixes the compatibility groups of the devices",
    "limits": "the devices need more of their pool than it has",
    "any": "the devices cannot be used together: their pool has too little for all of them",
}
_MORE_TIME = "give it more time (--deadline)"
_CUT_SHORT = {
    "reason": "the search ended before it found the reason",
    "place": "it fits, but the search ended before it found where",
    "edits": "the search ended before it found what would have to change",
    "holders": "the search ended before it found the claims that block it",
}


def _member_fails(cause: Fact, style: Style) -> Words:
    """The ``member`` of a ``group`` that fails for a ``reason``, and its ``cause``."""
    why = words_of(cause["cause"], style)
    member = style.owner(cause["member"])
    reason = f"{cause['reason']}: " if style.is_whole else ""
    text = f"{member} of {_group(cause, style)} fails: {reason}{why.text}"
    return Words(text, why.remedy, why.guess)


def _members_apart(cause: Fact, style: Style) -> Words:
    """The ``nodes`` that members of a ``group`` are bound to, and the annotation that says so (``see``)."""
    nodes = [f"{style.name(each['node'])} ({_names_there(each, style)})" for each in cause["nodes"]]
    more = f" and {cause['more']} more" if cause.get("more") else ""
    text = f"members of {_group(cause, style)} are bound to different nodes: {', '.join(nodes)}{more}"
    return Words(text, f"see the annotation {cause['see']}")


def _names_there(place: Mapping[str, Any], style: Style) -> str:
    names = ", ".join(map(style.name, place["members"]))
    return f"{names} and {place['more']} more" if place.get("more") else names


def _held_differ(cause: Fact, style: Style) -> Words:
    """The ``attribute`` in which the devices that members of a ``group`` hold differ, or that they ``lack``, and what
    says that they must not (``see``)."""
    name, must = style.code(cause["attribute"]), "must have one value"
    how = f"have devices without {name}" if cause.get("lack") else f"differ in {name}, which {must}"
    return Words(f"members of {_group(cause, style)} that hold devices already {how}", f"see {cause['see']}")


def _several_owners(cause: Fact, style: Style) -> Words:
    """The ``devices``, and the ``holders``."""
    text = f"device {style.name(cause['devices'][0])} has several owners: {_holders(cause, style)}"
    return Words(text, "delete all but one of them")


def _over_committed(cause: Fact, style: Style) -> Words:
    """The same, and the ``resource`` of which they hold too much."""
    hold = "holds" if len(cause["holders"]) == 1 else "hold"
    what = f"{_holders(cause, style)} {hold} more of its {style.name(cause['resource'])} than it has"
    return Words(f"device {style.name(cause['devices'][0])} is over-committed: {what}", "delete some of them")


def _over_drawn(cause: Fact, style: Style) -> Words:
    """The same of devices that draw on their pool."""
    hold = "holds" if len(cause["holders"]) == 1 else "hold"
    which = style.listed(cause["devices"], most=MAX_LISTED, more=cause.get("moreDevices", 0))
    is_one = len(cause["devices"]) == 1 and not cause.get("moreDevices")
    draw, them = ("device {} draws", "it") if is_one else ("devices {} draw", "them")
    what = f"{draw.format(which)} more {style.name(cause['resource'])} than {'its' if is_one else 'their'} pool has"
    return Words(f"{what}: {_holders(cause, style)} {hold} {them}", "delete some of them")


def _holders(cause: Fact, style: Style) -> str:
    return style.owners(cause["holders"], most=MAX_LISTED, more=cause.get("more", 0))


def _room(cause: Fact, style: Style) -> Words:
    """The ``nodes`` without room for a machine, each with its ``node``, maybe ``numa``, and ``why`` it takes nothing
    new, or what it ``lacks``: ``resource``, what it ``has``, what of it is ``free``, and what is ``wanted``. ``large``:
    some node is large enough; ``fields``: of the machine, that ask for too much; ``policy``: the field that wants
    NUMA nodes."""
    nodes = cause["nodes"]
    lines = [_room_of_node(each, style) for each in (nodes if style.is_whole else nodes[:1])]
    rest = len(nodes) - len(lines) + cause.get("more", 0)
    more = f" (and {rest} more {'node' if rest == 1 else 'nodes'})" if rest else ""
    head = "no node has room" if cause.get("large") else "no node is large enough"
    fields = " and ".join(cause.get("fields", ()))
    obvious = f"lower {fields}" if fields else f"change {cause['policy']}" if "policy" in cause else ""
    return Words(f"{head}: {'; '.join(lines)}{more}", obvious=obvious)


def _room_of_node(room: Mapping[str, Any], style: Style) -> str:
    node, lacks = style.name(room["node"]), " and ".join(map(_lacking, room.get("lacks", ())))
    if "why" in room:
        return f"node {node} takes nothing new: {style.text(room['why'])}"
    if "numa" not in room:
        return f"node {node} has {lacks}" if lacks else f"node {node} offers no room for machines"
    numa = room["numa"]
    return f"NUMA node {numa} of node {node} has {lacks}" if lacks else f"node {node} has no NUMA node {numa}"


def _lacking(row: Mapping[str, Any]) -> str:
    of = f"{row['has']} {row['resource']}"
    has = f"{row['free']} of {of} free" if "free" in row else of
    return f"{has}, {row['wanted']}{' more' if row.get('grows') else ''} wanted"


CAUSES: dict[Cause, Callable[[Fact, Style], str | Words]] = {
    Cause.NO_POOLS: lambda cause, style: Words(
        "no valid DevicePool exists", "publish devices (`devalloc discover` shows those of a host)"
    ),
    Cause.NO_DEVICES: lambda cause, style: Words("no devices are published", hint="let a driver publish some"),
    Cause.NO_DRIVER: _no_driver,
    Cause.INVALID_POOL: _invalid_pool,
    Cause.UNREACHED: _text,
    Cause.NO_MATCH: _no_match,
    Cause.STEP: _step,
    Cause.PARTS: lambda cause, style: f"{count_parts(cause['count'])} only to claims with {cause['say']}",
    Cause.UNKNOWN_NAME: _unknown_name,
    Cause.UNKNOWN_VALUE: _unknown_value,
    Cause.WRONG_TYPE: _wrong_type,
    Cause.UNKNOWN_TYPE: lambda cause, style: Words(
        f"no class has deviceType {_quoted(cause['type'], style)}", guess=_quoted(cause["near"], style)
    ),
    Cause.ADMIN_TYPE: lambda cause, style: Words(
        f"class {style.name(cause['device_class'])} of type {style.name(cause['type'])} gives admin access",
        "name the class",
    ),
    Cause.MISPLACED: _misplaced,
    Cause.TOO_FEW: _too_few,
    Cause.TOO_LITTLE: _too_little,
    Cause.TOO_MANY: lambda cause, style: Words(
        f"a claim can have {cause['limit']} devices, and this one would get {cause['count']}",
        "ask for a count, select fewer, or split it",
    ),
    Cause.COMPETITION: _competition,
    Cause.AMOUNTS: _amounts,
    Cause.DIFFER: lambda cause, style: (
        f"no node has enough devices that agree in {' and '.join(map(style.code, cause['attributes']))}"
    ),
    Cause.TOO_FEW_AGREE: _too_few_agree,
    Cause.CONSTRAINTS: lambda cause, style: (
        f"no {'free ' if cause.get('free') else ''}devices satisfy the constraints"
        + (f" on {' and '.join(map(style.code, cause['attributes']))}" if "attributes" in cause else "")
    ),
    Cause.EXCLUSIVE: lambda cause, style: _EXCLUSIVE[cause.get("of", "any")],
    Cause.PARTS_TAKEN: lambda cause, style: "each free device needs a part of its card that devices in use have taken",
    Cause.APART: lambda cause, style: (
        "no single node has all of it free"
        if cause.get("free")
        else "no single node has all of it, even if nothing is in use"
    ),
    Cause.BOUND: lambda cause, style: f"it is bound to node {style.name(cause['node'])}, where it does not fit",
    Cause.NODE_UNKNOWN: _node_unknown,
    Cause.GROUP: lambda cause, style: f"{_all_of(cause, style)} must fit on one node",
    Cause.MEMBERS: _members,
    Cause.OUTRANKED: lambda cause, style: (
        f"claims of priority {cause['by']} come before this one of {cause['priority']}"
    ),
    Cause.UNPUBLISHED: _unpublished,
    Cause.EXPRESSION_FAILED: _text,
    Cause.CUT_SHORT: lambda cause, style: Words(_CUT_SHORT[cause["of"]], _MORE_TIME if cause["of"] == "reason" else ""),
    Cause.TEXT: lambda cause, style: Words(_text(cause, style), is_complete=True),
    Cause.ROOM: _room,
    Cause.TIE: _text,
    Cause.NO_NODE: lambda cause, style: (
        f"it may not be on node {style.name(cause['node'])}" if "node" in cause else "it may be on no other node"
    ),
    Cause.NODE_UNSUITED: lambda cause, style: Words(
        "it fits only on nodes that do not suit its pod", obvious="see its node selector, affinity and tolerations"
    ),
    Cause.NODE_BARRED: lambda cause, style: "it fits only on nodes that it may not be on",
    Cause.OTHER_VALUE: lambda cause, style: f"only devices with another {joined(cause['attributes'])} would do",
    Cause.RESERVATION_STAYS: lambda cause, style: "its reservation stays as it is",
    Cause.MEMBER_FAILS: _member_fails,
    Cause.MEMBERS_APART: _members_apart,
    Cause.HELD_DIFFER: _held_differ,
    Cause.SEVERAL_OWNERS: _several_owners,
    Cause.OVER_COMMITTED: _over_committed,
    Cause.OVER_DRAWN: _over_drawn,
}
