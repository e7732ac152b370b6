"""Causes in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from devalloc.api.findings.data import MAX_LISTED, Cause, Fact
from devalloc.api.findings.rules import RuleCode, rule_words
from devalloc.api.findings.style import (
    NARROW,
    WHOLE,
    Style,
    agree_verb,
    count_devices,
    count_parts,
    do_of,
    joined,
    listed,
    plural_of,
)


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
    """whether the text says all that is to be done, too"""
    advises: bool = False
    """whether it says something of that"""
    first: str = ""
    """what is to be done besides what is said otherwise"""
    shorter: Sequence[str] = ()
    """the text with less of it, the longest first"""

    def after(self, text: str) -> Words:
        """The same after another text."""
        return replace(self, text=f"{text}{self.text}", shorter=(self.text, *self.shorter))

    def versions(self) -> Iterator[Words]:
        """The same, and with shorter texts."""
        yield self
        yield from (replace(self, text=text) for text in self.shorter)

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
    text = str(cause["text"])
    path, space, rest = text.partition(" ")
    return f"{style.path(path)}{space}{rest}" if path.startswith("spec.") else text


def _no_driver(cause: Fact, style: Style) -> Words:
    """``drivers`` that have no device, those that are ``there``, and the ``near`` one."""
    text = f"no device of driver {style.listed(cause['drivers'], 'or')} exists"
    text += f" (only of {style.listed(cause['there'])})" if style.width == WHOLE else ""
    if near := cause.get("near"):
        return Words(text, guess=style.name(near))
    if any(driver.endswith(".devalloc.io") for driver in cause["drivers"]):
        return Words(text, "run `devalloc discover` on a host to see why")
    return Words(text, "publish one, or name another class")


_LONGEST_FAULT = 105
"""Characters of what is wrong with a pool: with what to do, a sentence has no room for more."""


def _invalid_pool(cause: Fact, style: Style) -> Words:
    """``why`` a pool counts nothing; the ``drivers`` that have no other; ``by`` whom it is made, if by no user; whether
    others are there (``hasOthers``), so that it may not matter."""
    is_named = cause.get("drivers") and style.width == WHOLE
    of = f" of driver {style.listed(cause['drivers'], 'or')}" if is_named else ""
    why = str(cause["why"])
    if style.width < WHOLE and len(why) > _LONGEST_FAULT:
        why = f"{why[:_LONGEST_FAULT]}…"
    if cause.get("hasOthers"):
        return Words(why)
    remedy = "ask who runs its driver" if cause.get("by") == "driver" else "correct it"
    return Words(f"no valid pool{of} exists: {why}", remedy, shorter=[why])


def _no_match(cause: Fact, style: Style) -> Words:
    """The ``request``, if there are several; in a sentence maybe what ``STEP`` says, too."""
    text = f"no device matches {_request(cause, style)}" if "request" in cause else "no device matches"
    if "rule" in cause:
        return _step(cause, style).after(f"{text}: ")
    return Words(text, obvious="run `devalloc explain` to see which rule leaves out which")


def _request(cause: Fact, style: Style) -> str:
    """The ``request``, or its ``path`` where its name is a number."""
    return style.path(cause["path"]) if "path" in cause else f"request {style.name(cause['request'])}"


def _step(cause: Fact, style: Style) -> Words:
    """The ``rule`` that leaves out most devices, or that is to change, with its ``args``: ``count`` of ``total``, and
    why it leaves out the first one (``example``); the ``others``, and how many devices ``more`` rules leave out. In a
    sentence maybe that it is ``lifted`` by what is to be changed, and leaves out only some devices."""
    others, more = cause.get("others", ()), cause.get("more", 0)
    apart = f", {more} {agree_verb('fail other rules', more)}" if more else ""
    full, *quotes, brief = (
        "".join(f", {each['count']} {_rejects(each, style, quoted)}" for each in others) + apart
        for quoted in (None, *_QUOTES[-2:], 0)
    )
    first = do_of(cause["count"], cause["total"], _rejects(cause, style))
    texts = [first + rest for rest in (full, *quotes, brief)]
    rule = RuleCode(cause["rule"]).row
    alone = rule.alone.format(**cause.get("args", {}), example=style.text(cause.get("example", "")))
    left = more + sum(each["count"] for each in others)
    by_topic, vague = _by_topic(others, more), f", {left} {agree_verb('fail other rules', left)}" if left else ""
    texts += [first + by_topic if others else alone] if alone else []
    widths = [*dict.fromkeys((style.width, *_QUOTES))]
    with_rests = [(brief, widths), (by_topic, widths)]
    last: list[tuple[str, list[int]]] = []
    if style.width <= NARROW:
        with_rests += [(brief, [0]), (by_topic, [0])]
        last = [(vague, [*widths, 0]), ("", [*widths, 0])]

    def counted(rests: Sequence[tuple[str, Sequence[int]]]) -> list[str]:
        head = partial(_rejects, cause, style)
        return [do_of(cause["count"], cause["total"], head(each)) + rest for rest, quotes in rests for each in quotes]

    texts += [*counted(with_rests), *([alone] if alone else [])]
    if cause.get("lifted"):  # the others need not be counted
        texts += (f"devices that pass all else {_rejects({**cause, 'count': 2}, style, each)}" for each in (*widths, 0))
    texts += counted(last)
    text, *shorter = dict.fromkeys(texts)
    return Words(text, obvious=rule.advice, shorter=shorter)


def _by_topic(others: Sequence[Fact], more: int) -> str:
    """How many devices fail on what, such as ", 3 fail on pool and 2 on taint"."""
    counts: Counter[str] = Counter()
    for each in others:
        counts[RuleCode(each["rule"]).row.topic] += each["count"]
    if more:
        counts["others"] = more
    parts = [f"{count} on {topic}" for topic, count in counts.items()]
    if not parts:
        return ""
    number, _, rest = listed(parts).partition(" ")
    return f", {number} {agree_verb(f'fail {rest}', int(number))}"


_QUOTED = {RuleCode.CONSTRAINTS: "fail {}", RuleCode.REQUEST_SELECTOR: "fail a selector ({})"}
"""Brief words of rules that say little without an expression."""
_QUOTES = (60, 40, 24, 16)
"""Characters of the end of that expression, which tells most, that a sentence has while names have room."""


def _rejects(step: Fact, style: Style, quoted: int | None = None) -> str:
    """``quoted``: in brief words, with so many characters of an expression."""
    if quoted and step["rule"] in _QUOTED:
        expression = str(step.get("example") or step["args"]["expression"])
        if len(expression) > quoted:
            expression = "…" + expression[1 - quoted :].lstrip("&|)'\" ")
        return agree_verb(_QUOTED[step["rule"]].format(expression), step["count"])
    example = f" ({style.text(step['example'])})" if "example" in step and quoted is None else ""
    is_brief = quoted is not None
    return f"{style.text(rule_words(step['rule'], step.get('args'), step['count'], is_brief=is_brief))}{example}"


def _unknown_name(cause: Fact, style: Style) -> Words:
    """A ``name`` that ``count`` of ``total`` devices have, the ``near`` one, and ``what`` it is; in a sentence
    maybe the ``device_class`` that asks for it, or names of which the same is true (``also``)."""
    name, is_amount = style.code(cause["name"]), cause.get("what") == "amount"
    names = [name, *map(style.code, cause.get("also", ()))]
    name, every = listed(names, "or"), listed(names)
    what = f"shares of {name}" if is_amount else f"{cause.get('what', 'attribute')} {name}"
    text = f"{_few(cause['count'], cause['total'], *(('offers', 'offer') if is_amount else ()))} {what}"
    shorter = [f"{_few(cause['count'], cause['total'], 'shares', 'share')} {name}"] if is_amount else []
    advice = _SELECT_OTHERS.get(cause.get("what", ""), "select by an attribute that devices have").format(every)
    if "device_class" in cause:
        shorter, advice = [text], "name another class"
        has = _few(cause["count"], cause["total"])
        text = f"class {style.name(cause['device_class'])} asks for {name}, which {has}"
    return Words(text, guess=style.code(cause["near"]) if "near" in cause else "", obvious=advice, shorter=shorter)


_SELECT_OTHERS = {
    "amount": "leave {} out of requests",
    "capacity": "ask for a capacity that devices have",
}
"""What to do about a name of a kind that no device has."""


def _few(count: int, total: int, has: str = "has", have: str = "have") -> str:
    """Such as "none of 3 devices has", or "only 1 of 3 devices has"."""
    if not count:
        return f"no device {has}" if total == 1 else f"none of {total} devices {has}"
    return f"only {count} of {count_devices(total)} {has if count == 1 else have}"


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
    literal = f"the {cause['of']} {style.name(cause['literal'])}"
    brief = f"{style.code(cause['name'])} is {cause['type']}, and is compared with {literal}"
    return Words(f"{there}, and is compared with {literal}", cause.get("advice", ""), shorter=[brief])


def _misplaced(cause: Fact, style: Style) -> Words:
    """``name`` is ``what``: ``write`` it so."""
    return Words(f"{style.code(cause['name'])} {cause['what']}", f"write {cause['write']}")


def _lacks(cause: Fact, style: Style) -> str:
    return f"node {style.name(cause['node'])} does not have" if "node" in cause else "no node has"


def _together(cause: Fact, style: Style) -> str:
    """Such as " with the same `numa` and `root`"."""
    names = cause.get("attributes", ())
    is_any = cause["most"] == "0" or cause.get("devices", cause.get("wanted")) == 1
    return f" with {'' if is_any else 'the same '}{' and '.join(map(style.code, names))}" if names else ""


def _of_request(cause: Fact, style: Style) -> str:
    return f" for {_request(cause, style)}" if "request" in cause else ""


def _too_few(cause: Fact, style: Style) -> Words:
    """``wanted`` devices, and the ``most`` of them on a node, or on ``node``; ``free`` ones, of the same
    ``attributes``, for a ``request``."""
    free, together, of = "free " if cause.get("free") else "", _together(cause, style), _of_request(cause, style)
    if cause["most"] == "0":
        what = f"{free}device{together}{of}" if together or of else f"{free}matching device"
        return _none(cause, style, what, cause["wanted"], _fewer(cause))
    head = f"{_lacks(cause, style)} {count_devices(cause['wanted'], free)}{together}"
    most = f" (at most {cause['most']})"
    return Words(f"{head}{of}{most}", hint=_fewer(cause), shorter=[*([f"{head}{most}"] if of else []), head])


def _none(cause: Fact, style: Style, what: str, wanted: int, advice: str) -> Words:
    """That no node has what is ``wanted``, and be it one."""
    head = f"node {style.name(cause['node'])} has no" if "node" in cause else "no node has a"
    text = f"{head} {what}"
    return Words(f"{text} ({wanted} wanted)" if wanted > 1 else text, hint=advice, shorter=[text] if wanted > 1 else [])


def _fewer(cause: Fact, less: str = "ask for fewer devices") -> str:
    """What to do about too few devices, or too little (``less``), if there are some."""
    if cause.get("free"):
        return "wait until some are released"
    if cause["most"] != "0":
        return less
    return "match another attribute" if cause.get("attributes") else "name another node" if "node" in cause else ""


def _too_little(cause: Fact, style: Style) -> Words:
    """The same for an amount of a ``resource``, on at most so many ``devices``."""
    resource = f"{'free ' if cause.get('free') else ''}{style.name(cause['resource'])}"
    advice, together = _fewer(cause, f"ask for less {style.name(cause['resource'])}"), _together(cause, style)
    what, most = f"{cause['wanted']} of {resource}", f" (at most {cause['most']})"
    of_node = f" of node {style.name(cause['node'])}" if "node" in cause else ""
    device = f"no device{of_node}{together} has"
    if cause["most"] == "0":
        head, name = f"no matching device{of_node}{together}", style.code(cause["resource"])
        text = f"{head} has {resource}" if cause.get("free") else f"{head} offers shares of {name}"
        shorter = [text] if cause.get("free") else [text, f"{head} shares {name}"]
        return Words(f"{text} ({cause['wanted']} wanted)", hint=advice, shorter=shorter)
    if cause.get("devices") == 1:
        return Words(f"{device} {what}{most}", hint=advice, shorter=[f"{device} {what}"])
    on = f" on {count_devices(cause['devices'])}" if "devices" in cause else " on its devices"
    head = f"{_lacks(cause, style)} {what}"
    shorter = [f"{head}{together}{most}", f"{head}{together}"]
    return Words(f"{head}{on}{together}{most}", hint=advice, shorter=shorter)


def _too_few_agree(cause: Fact, style: Style) -> Words:
    """``wanted`` devices with one value of an ``attribute``, or all ``distinct`` in it, the ``most`` on a node, and how
    many of ``total`` are ``without`` it."""
    name, of = style.code(cause["attribute"]), _of_request(cause, style)
    if cause["most"] == "0":
        return _none(cause, style, f"device with {name}{of}", cause["wanted"], "match another attribute")
    what = f"all different in {name}" if cause.get("distinct") else f"with the same {name}"
    what = f"with {name}" if cause["wanted"] == 1 else what
    without = f"; {cause['without']} of {cause['total']} have no {name}" if "without" in cause else ""
    text, most = (
        f"{_lacks(cause, style)} {count_devices(cause['wanted'])} {what}",
        f"(at most {cause['most']}{without})",
    )
    return Words(f"{text}{of} {most}", hint=_fewer(cause), shorter=[f"{text} {most}", text])


def _competition(cause: Fact, style: Style) -> Words:
    """``count`` requests, their names if they are few (``requests``), want ``wanted`` devices, and ``most`` match."""
    names, paths, several = cause.get("requests"), cause.get("paths"), f"{cause['count']} requests"
    who = style.listed([*map(style.path, paths)]) if paths else f"requests {style.listed(names)}" if names else several
    texts = [
        _lack_together(cause, count_devices(cause["wanted"]), each, style) for each in dict.fromkeys((who, several))
    ]
    return Words(texts[0], hint="ask for fewer devices", shorter=texts[1:])


def _amounts(cause: Fact, style: Style) -> Words:
    """The same for amounts of a ``resource``."""
    what = f"{cause['wanted']} of {style.name(cause['resource'])}"
    text = _lack_together(cause, what, f"{cause['count']} requests", style)
    return Words(text, hint=f"ask for less {style.name(cause['resource'])}", shorter=[text.rpartition(" (")[0]])


def _lack_together(cause: Fact, what: str, who: str, style: Style) -> str:
    return f"{_lacks(cause, style)} {what} for {who} together (at most {cause['most']})"


def _no_devices(cause: Fact, style: Style) -> Words:
    """How many ``pools`` there are, of which none has a device."""
    if not (pools := cause.get("pools")):
        return Words("no devices are published", obvious="run a driver that publishes them")
    text = "the only pool has no devices" if pools == 1 else f"none of {pools} pools has a device"
    return Words(text, obvious="see what their nodes lack: `devalloc check-host`")


def _node_unknown(cause: Fact, style: Style) -> Words:
    """The ``node``, and the ``near`` one."""
    near = _quoted(cause["near"], style) if "near" in cause else ""
    return Words(f"no node {_quoted(cause['node'], style)} has devices", guess=near)


def _members(cause: Fact, style: Style) -> Words:
    """The ``members`` of a ``group`` that cannot be satisfied; in a sentence maybe what the first one lacks
    (``cause``)."""
    first, *others = cause["members"]
    more = len(others) + cause.get("more", 0)
    if "cause" in cause:
        why, who = words_of(cause["cause"], style), style.owner(first)
        also = f" (like {more} more)" if more else ""
        of = f"{who} of {_group(cause, style)}"
        shorter = [f"{of}: {why.text}", *(f"{of}: {text}" for text in why.shorter), f"{who}: {why.text}"]
        shorter += [*(f"{who}: {text}" for text in why.shorter), why.text, *why.shorter]
        return replace(why, text=f"{of} does not fit{also}: {why.text}", shorter=shorter)
    who = style.owners(cause["members"], more=cause.get("more", 0))
    fits, its = ("do not fit", "their messages") if more else ("does not fit", "its message")
    waiting = next((f"the {what} waits" for what in ("machine", "pod") if what in cause), "none of it does")
    rest = f", so {waiting}" if style.width == WHOLE else ""
    text = f"{who} of {_group(cause, style)} {fits}"
    return Words(
        f"{text}{rest}",
        obvious=f"see {its}",
        shorter=[text, f"{who} {fits}", f"{style.owners(cause['members'], 1, more)} {fits}"],
    )


def _group(cause: Fact, style: Style) -> str:
    """The ``group``, or the ``machine`` that is one with its claims, or the ``pod`` whose claims are one."""
    what = next(what for what in ("machine", "pod", "group") if what in cause)
    return f"{what} {style.name(cause[what])}"


def _all_of(cause: Fact, style: Style) -> str:
    """All claims of the ``group``, or the ``machine`` and its claims."""
    what = "and its claims" if "machine" in cause else ""
    return f"{_group(cause, style)} {what}" if what else f"all claims of {_group(cause, style)}"


def _unpublished(cause: Fact, style: Style) -> Words:
    """A ``device`` of a ``pool`` that a ``holder`` has, and that is published no longer, or with ``less``; how many
    ``more`` there are."""
    more = f" (and {cause['more']} more such)" if cause.get("more") else ""
    device, holder = f"{style.name(cause['pool'])}/{style.name(cause['device'])}", style.owner(cause["holder"])
    text = f"{holder} holds device {device}, which no longer exists{more}"
    if cause.get("less"):
        text = f"{holder} holds more of device {device} than it has now{more}"
    brief = f"device {device} is held, but {'smaller now' if cause.get('less') else 'no longer exists'}"
    shorter = [*([text.removesuffix(more)] if more else []), brief]
    return Words(text, obvious="ask its owner or an admin to delete it", shorter=shorter)


_EXCLUSIVE = {
    "groups": "the devices are in different compatibility groups",
    "limits": "the devices together need more than their pool has",
    "any": "the devices cannot be used together, as their pool has too little for all of them",
}


def _exclusive(cause: Fact, style: Style) -> Words:
    """What devices exclude each other ``of``; in a sentence maybe how much of a ``resource`` is ``needed`` together,
    and what is ``there`` in their ``pool``."""
    text = _EXCLUSIVE[cause.get("of", "any")]
    if "needed" not in cause:
        return Words(text)
    resource, pool = style.name(cause["resource"]), style.name(cause["pool"])
    has = f"need {cause['needed']} of {resource}, pool {pool} has {cause['there']}"
    return Words(f"the devices together {has}", shorter=[f"devices {has}", text])


_MORE_TIME = "run `devalloc explain --deadline 60s`"
_SOUGHT = {
    "reason": "the reason was found",
    "place": "a place was found",
    "edits": "what to change was found",
    "holders": "the claims that block it were found",
}


def _cut_short(cause: Fact, style: Style) -> Words:
    """What was sought (``of``), and whether the steps of the search ended first (``by``), or its time."""
    is_late = cause.get("by") != "steps"
    ended = "time ran out" if is_late else "the search ended"
    more = _MORE_TIME if is_late else "ask for less"
    text = f"{'it fits, but ' if cause['of'] == 'place' else ''}{ended} before {_SOUGHT[cause['of']]}"
    return Words(text, more if cause["of"] == "reason" else "", hint=more)


def _member_fails(cause: Fact, style: Style) -> Words:
    """The ``member`` of a ``group`` that fails for a ``reason``, and its ``cause``."""
    why = words_of(cause["cause"], style)
    member = style.owner(cause["member"])
    reason = f"{cause['reason']}: " if style.is_whole else ""
    of = f"{member} of {_group(cause, style)}"
    return replace(
        why,
        text=f"{of} fails: {reason}{why.text}",
        shorter=[f"{of} fails: {text}" for text in why.shorter] + [f"{of}: {text}" for text in why.shorter],
    )


def _members_apart(cause: Fact, style: Style) -> Words:
    """The ``nodes`` that members of a ``group`` are bound to, and the annotation that says so (``see``)."""
    nodes = [f"{style.name(each['node'])} ({_names_there(each, style)})" for each in cause["nodes"]]
    more = f" and {cause['more']} more" if cause.get("more") else ""
    text = f"members of {_group(cause, style)} are bound to different nodes: {', '.join(nodes)}{more}"
    brief = f"members of {_group(cause, style)} are bound to different nodes"
    return Words(text, f"give all the same {cause['see']}", shorter=[brief])


def _names_there(place: Mapping[str, Any], style: Style) -> str:
    names = ", ".join(map(style.name, place["members"]))
    return f"{names} and {place['more']} more" if place.get("more") else names


def _held_differ(cause: Fact, style: Style) -> Words:
    """The ``attribute`` in which the devices that members of a ``group`` hold differ, or that they ``lack``, and what
    says that they must not (``see``)."""
    name, must = style.code(cause["attribute"]), "must have one value"
    how = f"have devices without {name}" if cause.get("lack") else f"differ in {name}, which {must}"
    return Words(f"members of {_group(cause, style)} that hold devices already {how}", f"change {cause['see']}")


def _several_owners(cause: Fact, style: Style) -> Words:
    """The ``devices``, and the ``holders``."""
    device, holders = style.name(cause["devices"][0]), _holders(cause, style)
    brief = f"device {device} has {_count_holders(cause)} owners"
    return Words(f"device {device} has several owners: {holders}", "delete all but one of them", shorter=[brief])


def _over_committed(cause: Fact, style: Style) -> Words:
    """The same, and the ``resource`` of which they hold too much."""
    whose = f"{style.name(cause['resource'])} of device {style.name(cause['devices'][0])} than it has"
    return _hold_too_much(cause, style, f"more {whose}")


def _over_drawn(cause: Fact, style: Style) -> Words:
    """The same of devices that draw on their pool."""
    more, most = cause.get("moreDevices", 0), MAX_LISTED if style.is_whole else 1
    devices = "device" if len(cause["devices"]) + more == 1 else "devices"
    pool = f"the pool of {devices} {style.listed(cause['devices'], most=most, more=more)}"
    return _hold_too_much(cause, style, f"more {style.name(cause['resource'])} than {pool} has")


def _hold_too_much(cause: Fact, style: Style, what: str) -> Words:
    count = _count_holders(cause)
    hold, remedy = ("holds", "delete it") if count == 1 else ("hold", "delete some of them")
    brief = f"{count} {plural_of(cause['holders'])} hold {what}"
    return Words(f"{_holders(cause, style)} {hold} {what}", remedy, shorter=[brief] if count > 1 else [])


def _holders(cause: Fact, style: Style) -> str:
    return style.owners(cause["holders"], most=MAX_LISTED, more=cause.get("more", 0))


def _count_holders(cause: Fact) -> int:
    return len(cause["holders"]) + int(cause.get("more", 0))


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
    lacks = " and ".join(str(each["resource"]) for each in nodes[0].get("lacks", ()))
    if not obvious and "why" not in nodes[0]:
        obvious = f"ask for less {lacks}" if lacks else "name another node"
    text = f"{head}: {'; '.join(lines)}"
    first = _room_of_node(nodes[0], style, most=1)
    return Words(f"{text}{more}", obvious=obvious, shorter=[*dict.fromkeys((text if more else lines[0], first))])


def _room_of_node(room: Mapping[str, Any], style: Style, most: int | None = None) -> str:
    """``most``: resources that are named."""
    rows = room.get("lacks", ())
    rest = len(rows) - len(rows[:most])
    node, lacks = style.name(room["node"]), " and ".join(map(_lacking, rows[:most]))
    lacks += f" (and {rest} more)" if rest else ""
    if "why" in room:
        return f"node {node} takes nothing new: {style.text(room['why'])}"
    if "numa" not in room:
        return f"node {node} has {lacks}" if lacks else f"node {node} offers machines no CPU or memory"
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
    Cause.NO_DEVICES: _no_devices,
    Cause.NO_DRIVER: _no_driver,
    Cause.INVALID_POOL: _invalid_pool,
    Cause.UNREACHED: lambda cause, style: Words(_text(cause, style), advises=True),
    Cause.NO_MATCH: _no_match,
    Cause.STEP: _step,
    Cause.PARTS: lambda cause, style: Words(
        f"{count_parts(cause['count'])} {cause['say']} in the constraints",
        hint="add that to get a part",
    ),
    Cause.UNKNOWN_NAME: _unknown_name,
    Cause.UNKNOWN_VALUE: _unknown_value,
    Cause.WRONG_TYPE: _wrong_type,
    Cause.UNKNOWN_TYPE: lambda cause, style: Words(
        f"no class has deviceType {_quoted(cause['type'], style)}", guess=_quoted(cause["near"], style)
    ),
    Cause.ADMIN_TYPE: lambda cause, style: Words(
        f"deviceType {style.name(cause['type'])} leaves out class {style.name(cause['device_class'])},"
        " as it gives admin access",
        f"write deviceClass: {style.name(cause['device_class'])}",
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
        f"no node has enough devices with the same {' and '.join(map(style.code, cause['attributes']))}"
    ),
    Cause.TOO_FEW_AGREE: _too_few_agree,
    Cause.CONSTRAINTS: lambda cause, style: (
        f"no {'free ' if cause.get('free') else ''}devices satisfy the constraints"
        + (f" on {' and '.join(map(style.code, cause['attributes']))}" if "attributes" in cause else "")
    ),
    Cause.EXCLUSIVE: _exclusive,
    Cause.PARTS_TAKEN: lambda cause, style: "each free device needs a part of its card that is in use",
    Cause.APART: lambda cause, style: (
        "no single node has all of it free"
        if cause.get("free")
        else f"no single node has all of it{'' if cause.get('held') else ', even if nothing is in use'}"
    ),
    Cause.BOUND: lambda cause, style: Words(
        f"it is bound to node {style.name(cause['node'])}, where it does not fit",
        shorter=[f"it does not fit on its node {style.name(cause['node'])}"],
    ),
    Cause.NODE_UNKNOWN: _node_unknown,
    Cause.GROUP: lambda cause, style: f"{_all_of(cause, style)} must fit on one node",
    Cause.MEMBERS: _members,
    Cause.OUTRANKED: lambda cause, style: (
        f"claims of priority {cause['by']} come before this one of {cause['priority']}"
    ),
    Cause.UNPUBLISHED: _unpublished,
    Cause.EXPRESSION_FAILED: lambda cause, style: Words(_text(cause, style), advises=True),
    Cause.CUT_SHORT: _cut_short,
    Cause.TEXT: lambda cause, style: Words(_text(cause, style), is_complete=True),
    Cause.ROOM: _room,
    Cause.TIE: _text,
    Cause.NO_NODE: lambda cause, style: (
        Words(f"it may not be on node {style.name(cause['node'])}", obvious="name another node")
        if "node" in cause
        else Words("it may be on no other node", obvious="add one")
    ),
    Cause.NODE_UNSUITED: lambda cause, style: Words(
        "its pod's node selector, affinity or tolerations exclude the nodes where it fits",
        first="allow one of them",
        shorter=["its pod's node rules exclude the nodes where it fits"],
    ),
    Cause.NODE_BARRED: lambda cause, style: Words(
        "no node that it may be on has room" if cause.get("held") else "it fits only on nodes that it may not be on",
        hint="allow one: see devalloc.io/excluded-nodes and its pod's rules",
    ),
    Cause.OTHER_VALUE: lambda cause, style: Words(
        f"only devices with another {' and '.join(map(style.code, cause['attributes']))} would do",
        hint="ask for that value, or publish devices with this one",
    ),
    Cause.RESERVATION_STAYS: lambda cause, style: "its reservation stays as it is",
    Cause.MEMBER_FAILS: _member_fails,
    Cause.MEMBERS_APART: _members_apart,
    Cause.HELD_DIFFER: _held_differ,
    Cause.SEVERAL_OWNERS: _several_owners,
    Cause.OVER_COMMITTED: _over_committed,
    Cause.OVER_DRAWN: _over_drawn,
}
