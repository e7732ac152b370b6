"""Causes in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from devalloc.api.findings.data import MAX_LISTED, Cause, Fact
from devalloc.api.findings.rules import rule_words
from devalloc.api.findings.style import WHOLE, Style, count_devices, count_parts
from devalloc.printable import printable


@dataclass(frozen=True, slots=True)
class Words:
    """A cause in words, and what to do about it if nothing else is said."""

    text: str
    remedy: str = ""
    is_complete: bool = False
    """whether the text says what to do, too"""


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
    text += f" (there are {style.listed(cause['there'])})" if style.width == WHOLE else ""
    if near := cause.get("near"):
        return Words(text, f"did you mean {style.name(near)}?")
    if any(driver.endswith(".devalloc.io") for driver in cause["drivers"]):
        return Words(text, "`devalloc discover` shows why a card is not offered")
    return Words(text, "publish one, or correct the class")


def _invalid_pool(cause: Fact, style: Style) -> Words:
    """``why`` a pool counts nothing; the ``drivers`` that have no other."""
    is_named = cause.get("drivers") and style.width == WHOLE
    of = f" of driver {style.listed(cause['drivers'], 'or')}" if is_named else ""
    return Words(f"no device{of} counts: {style.text(cause['why'])}", "correct it")


def _no_match(cause: Fact, style: Style) -> str:
    """The ``request``, if there are several."""
    return f"no device matches request {style.name(cause['request'])}" if "request" in cause else "no device matches"


def _step(cause: Fact, style: Style) -> str:
    """The ``rule`` that leaves out most devices, with its ``args``: ``count`` of ``total``, and why it leaves out the
    first one (``example``)."""
    example = f" ({style.text(cause['example'])})" if "example" in cause else ""
    what = style.text(rule_words(cause["rule"], cause.get("args"), cause["count"]))
    return f"{cause['count']} of {count_devices(cause['total'])} {what}{example}"


def _unknown_name(cause: Fact, style: Style) -> Words:
    """A ``name`` that ``count`` of ``total`` devices have, the ``near`` one, and ``what`` it is."""
    what = f"{cause['what']} " if "what" in cause else ""
    text = f"{what}{style.code(cause['name'])} exists on {cause['count']} of {count_devices(cause['total'])}"
    return Words(text, f"did you mean {style.code(cause['near'])}?" if "near" in cause else "")


def _unknown_value(cause: Fact, style: Style) -> Words:
    """A ``value`` of ``name`` that none of ``total`` devices has; the ``near`` one, or a longer one that contains it
    (``whole``), and the expression that finds that (``write``)."""
    text = f"{style.code(cause['name'])} is {_quoted(cause['value'], style)} on 0 of {count_devices(cause['total'])}"
    if "near" in cause:
        return Words(text, f"did you mean {_quoted(cause['near'], style)}?")
    return Words(f"{text}, and part of {_quoted(cause['whole'], style)}", f"write {cause['write']}")


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
    has = "a value of" if cause.get("wanted") == 1 else "the same"
    return f" with {has} {' and '.join(style.code(name) for name in names)}" if names else ""


def _of_request(cause: Fact, style: Style) -> str:
    return f" for request {style.name(cause['request'])}" if "request" in cause else ""


def _too_few(cause: Fact, style: Style) -> str:
    """``wanted`` devices, and the ``most`` of them on a node, or on ``node``; ``free`` ones, of the same
    ``attributes``, for a ``request``."""
    wanted = count_devices(cause["wanted"], "free " if cause.get("free") else "")
    of = f"{_together(cause, style)}{_of_request(cause, style)}"
    return f"{_lacks(cause, style)} {wanted}{of} (at most {cause['most']})"


def _too_little(cause: Fact, style: Style) -> str:
    """The same for an amount of a ``resource``, on at most so many ``devices``."""
    on = f" on {count_devices(cause['devices'])}" if "devices" in cause else ""
    what = f"{cause['wanted']} of {'free ' if cause.get('free') else ''}{style.name(cause['resource'])}"
    on = on or " on its devices"
    return f"{_lacks(cause, style)} {what}{on}{_together(cause, style)} (at most {cause['most']})"


def _too_few_agree(cause: Fact, style: Style) -> str:
    """``wanted`` devices with one value of an ``attribute``, or all ``distinct`` in it, the ``most`` on a node, and how
    many of ``total`` are ``without`` it."""
    name = style.code(cause["attribute"])
    what = f"all different in {name}" if cause.get("distinct") else f"with the same {name}"
    what = f"with a value of {name}" if cause["wanted"] == 1 else what
    without = f"; {cause['without']} of {cause['total']} have no {name}" if "without" in cause else ""
    wanted = f"{count_devices(cause['wanted'])} {what}{_of_request(cause, style)}"
    return f"{_lacks(cause, style)} {wanted} (at most {cause['most']}{without})"


def _competition(cause: Fact, style: Style) -> str:
    """``count`` requests, their names if they are few (``requests``), want ``wanted`` devices, and ``most`` match."""
    names = cause.get("requests")
    who = f"requests {style.listed(names)}" if names else f"{cause['count']} requests"
    where = f"node {style.name(cause['node'])} has" if "node" in cause else "no node has more than"
    return f"{who} want {cause['wanted']} devices together, and {where} {cause['most']} that match"


def _amounts(cause: Fact, style: Style) -> str:
    """The same for amounts of a ``resource``."""
    where = f"node {style.name(cause['node'])} has" if "node" in cause else "no node has more than"
    what = f"{cause['wanted']} of {style.name(cause['resource'])}"
    return f"{cause['count']} requests want {what} together, and {where} {cause['most']}"


def _node_unknown(cause: Fact, style: Style) -> Words:
    """The ``node``, and the ``near`` one."""
    near = f"did you mean {_quoted(cause['near'], style)}?" if "near" in cause else ""
    return Words(f"no node {_quoted(cause['node'], style)} has devices", near)


def _members(cause: Fact, style: Style) -> str:
    """The ``members`` of a ``group`` that cannot be satisfied."""
    names = [f"{style.name(each['namespace'])}/{style.name(each['name'])}" for each in cause["members"]]
    who = style.listed(names, more=cause.get("more", 0))
    return f"{_group(cause, style)} is all-or-nothing, and {who} cannot be satisfied"


def _group(cause: Fact, style: Style) -> str:
    """The ``group``, or the ``machine`` that is one with its claims."""
    return f"machine {style.name(cause['machine'])}" if "machine" in cause else f"group {style.name(cause['group'])}"


def _unpublished(cause: Fact, style: Style) -> str:
    """A ``device`` of a ``pool`` that a ``holder`` has, and that is published no longer, or with ``less``; how many
    ``more`` there are."""
    how = "with less than it drew" if cause.get("less") else "no longer"
    more = f" (and {cause['more']} more such)" if "more" in cause else ""
    device = f"{style.name(cause['pool'])}/{style.name(cause['device'])}"
    return f"{style.owner(cause['holder'])} has {device}, which is published {how}{more}"


_CUT_SHORT = {
    "reason": "the search ended before it found the reason",
    "place": "it fits, but the search ended before it found where",
    "edits": "time ran out before the solver found what would have to change",
    "holders": "time ran out before the solver found the claims that block it",
}


def _member_fails(cause: Fact, style: Style) -> Words:
    """The ``member`` of a ``group`` that fails for a ``reason``, and its ``cause``."""
    why = words_of(cause["cause"], style)
    member = style.owner(cause["member"])
    return Words(f"member {member} of {_group(cause, style)} fails: {cause['reason']}: {why.text}", why.remedy)


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
    return Words(text, "release all but one of them")


def _over_committed(cause: Fact, style: Style) -> Words:
    """The same, and the ``resource`` of which they hold too much."""
    hold = "holds" if len(cause["holders"]) == 1 else "hold"
    what = f"{_holders(cause, style)} {hold} more of its {style.name(cause['resource'])} than it has"
    return Words(f"device {style.name(cause['devices'][0])} is over-committed: {what}", "release some of them")


def _over_drawn(cause: Fact, style: Style) -> Words:
    """The same of devices that draw on their pool."""
    hold = "holds" if len(cause["holders"]) == 1 else "hold"
    which = style.listed(cause["devices"], most=MAX_LISTED, more=cause.get("moreDevices", 0))
    what = f"draw more {style.name(cause['resource'])} than their pool has"
    return Words(f"devices {which} {what}: {_holders(cause, style)} {hold} them", "release some of them")


def _holders(cause: Fact, style: Style) -> str:
    return style.owners(cause["holders"], most=MAX_LISTED, more=cause.get("more", 0))


def _room(cause: Fact, style: Style) -> str:
    """The ``nodes`` without room for a machine, each with its ``node``, maybe ``numa``, and ``why`` it takes nothing
    new, or what it ``lacks``: ``resource``, what it ``has``, what of it is ``free``, and what is ``wanted``. ``large``:
    some node is large enough."""
    nodes = cause["nodes"]
    lines = [_room_of_node(each, style) for each in (nodes if style.is_whole else nodes[:1])]
    rest = len(nodes) - len(lines) + cause.get("more", 0)
    more = f" (and {rest} more {'node' if rest == 1 else 'nodes'})" if rest else ""
    head = "there is no room for it" if cause.get("large") else "no node is large enough"
    return f"{head}: {'; '.join(lines)}{more}"


def _room_of_node(room: Mapping[str, Any], style: Style) -> str:
    node, lacks = style.name(room["node"]), " and ".join(map(_lacking, room.get("lacks", ())))
    if "why" in room:
        return f"node {node}: {style.text(room['why'])}"
    if "numa" not in room:
        return f"node {node}: {lacks}"
    numa = room["numa"]
    return f"node {node}, NUMA node {numa}: {lacks}" if lacks else f"node {node}: it has no NUMA node {numa}"


def _lacking(row: Mapping[str, Any]) -> str:
    of = f"{row['has']} {row['resource']}"
    has = f"{row['free']} of {of} free" if "free" in row else of
    return f"{has}, {row['wanted']}{' more' if row.get('grows') else ''} wanted"


CAUSES: dict[Cause, Callable[[Fact, Style], str | Words]] = {
    Cause.NO_POOLS: lambda cause, style: "no valid DevicePool exists",
    Cause.NO_DEVICES: lambda cause, style: "there are no devices",
    Cause.NO_DRIVER: _no_driver,
    Cause.INVALID_POOL: _invalid_pool,
    Cause.UNREACHED: _text,
    Cause.NO_MATCH: _no_match,
    Cause.STEP: _step,
    Cause.PARTS: lambda cause, style: f"{count_parts(cause['count'])} only for claims that say {cause['say']}",
    Cause.UNKNOWN_NAME: _unknown_name,
    Cause.UNKNOWN_VALUE: _unknown_value,
    Cause.WRONG_TYPE: _wrong_type,
    Cause.UNKNOWN_TYPE: lambda cause, style: Words(
        f"no class has deviceType {_quoted(cause['type'], style)}", f"did you mean {_quoted(cause['near'], style)}?"
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
        f"the devices needed together differ in {' and '.join(map(style.code, cause['attributes']))} on every node"
    ),
    Cause.TOO_FEW_AGREE: _too_few_agree,
    Cause.CONSTRAINTS: lambda cause, style: (
        "no combination of devices satisfies the constraints"
        + (f" on {' and '.join(map(style.code, cause['attributes']))}" if "attributes" in cause else "")
    ),
    Cause.EXCLUSIVE: lambda cause, style: (
        "the devices exclude each other: they need more of their pool than it has, or are of different groups"
    ),
    Cause.PARTS_TAKEN: lambda cause, style: "what is free needs parts of cards that devices in use have taken",
    Cause.APART: lambda cause, style: (
        "no single node has everything free that is requested together"
        if cause.get("free")
        else "no single node has everything that is requested together, even when nothing is in use"
    ),
    Cause.BOUND: lambda cause, style: f"it would fit on another node, but is bound to node {style.name(cause['node'])}",
    Cause.NODE_UNKNOWN: _node_unknown,
    Cause.GROUP: lambda cause, style: f"all of {_group(cause, style)} must fit on one node",
    Cause.MEMBERS: _members,
    Cause.OUTRANKED: lambda cause, style: (
        f"claims of priority {cause['by']} come before this one of {cause['priority']}"
    ),
    Cause.UNPUBLISHED: _unpublished,
    Cause.EXPRESSION_FAILED: _text,
    Cause.CUT_SHORT: lambda cause, style: _CUT_SHORT[cause["of"]],
    Cause.TEXT: lambda cause, style: Words(_text(cause, style), is_complete=True),
    Cause.ROOM: _room,
    Cause.TIE: _text,
    Cause.NO_NODE: lambda cause, style: (
        f"node {style.name(cause['node'])} is not one of them" if "node" in cause else "there is no other such node"
    ),
    Cause.NODE_UNSUITED: lambda cause, style: "it fits only on nodes that do not suit its pod",
    Cause.NODE_BARRED: lambda cause, style: "it fits only on nodes that may not take it",
    Cause.RESERVATION_STAYS: lambda cause, style: "its reservation stays as it is",
    Cause.MEMBER_FAILS: _member_fails,
    Cause.MEMBERS_APART: _members_apart,
    Cause.HELD_DIFFER: _held_differ,
    Cause.SEVERAL_OWNERS: _several_owners,
    Cause.OVER_COMMITTED: _over_committed,
    Cause.OVER_DRAWN: _over_drawn,
}
