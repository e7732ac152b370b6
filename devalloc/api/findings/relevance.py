"""Which causes a sentence tells, and which changes it names first: a remedy belongs to the cause before it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from devalloc.api.findings.data import HOLDERS, MAX_LISTED, Cause, Fact, Finding
from devalloc.api.findings.rules import RuleCode
from devalloc.api.quantity import Quantity, QuantityError, sum_text

_OF_ANY_NAME = frozenset(("class", "request", "member"))
"""Kinds of edits that do not name what is wrong."""
_NO_NAMES = frozenset(("kind", "code", "rule", "path", "claim"))
"""Keys whose texts are devalloc's own, or say whose it is."""
_COMMON_WORDS = frozenset(("device", "attributes", "capacity", "in", "has", "count"))
"""Words of expressions that name nothing."""
_EDITED = {
    Cause.NODE_BARRED: frozenset(("node", "nodeRule")),
    Cause.BOUND: frozenset(("node", "nodeRule")),
    Cause.EXCLUSIVE: frozenset(("poolResource", "counter", "compatibilityGroup")),
    Cause.GROUP: frozenset(("member",)),
    Cause.COMPETITION: frozenset(("amount",)),
}
"""The kinds of changes that a cause is about, whatever it names."""
_SAYS_ITSELF = frozenset(("unavailable", "undefinedResource", "config", "pool", "taint", "feature", "member"))
"""Kinds of edits that say what is wrong, or are of no claim."""
_ABOUT_ALL = frozenset((Cause.GROUP, Cause.MEMBERS, Cause.UNPUBLISHED, Cause.BOUND))
"""Causes that stay first: what the others say follows from them, or is a part of them."""
_IF_EMPTY = frozenset((Cause.APART, Cause.NODE_BARRED))
"""Causes that say something of a fleet where nothing is in use."""
_ABOUT_NAMES = frozenset((Cause.UNKNOWN_NAME, Cause.UNKNOWN_VALUE, Cause.WRONG_TYPE))
"""Causes that are about a name in an expression or a list."""
_OF_CLASS = frozenset((RuleCode.CLASS_CONSTRAINTS, RuleCode.CLASS_SELECTOR))
"""Rules of a class, which asks for what its expression names."""
_IN_USE = frozenset((Cause.UNPUBLISHED, Cause.PARTS_TAKEN, Cause.OUTRANKED))
"""Causes that are that others hold something."""


def relevant(finding: Finding) -> Finding:
    """What a sentence tells of a finding: not what was left out beside what is there, which may not matter."""
    if any("hasOthers" in each for each in finding.causes):
        finding = replace(finding, causes=[each for each in finding.causes if "hasOthers" not in each])
    causes = [*_of_member([_with_lifted(each, finding) for each in _relevant_causes(finding)[:MAX_LISTED]])]
    if causes and causes[0]["code"] == Cause.UNPUBLISHED:  # what is lacking follows from it
        causes = causes[:1]
    if finding.holders:  # it does not follow that nothing must be released
        causes = [{**each, "held": True} if each["code"] in _IF_EMPTY else each for each in causes]
    causes = [*_with_class(_led_by_changed(causes, finding.edits))]
    changes = sorted(finding.blockers, key=lambda each: _rank(each, causes))
    causes = [_with_shortfall(each, changes) for each in causes]
    if not changes or not _is_about_first(changes[0], causes):  # it may be that one device or node gives nothing now
        changes.sort(key=lambda each: each["kind"] != "unavailable")
        if changes and len(causes) > 1 and causes[0]["code"] == Cause.BOUND:  # why it does not fit says more
            causes = causes[1:]
    return replace(finding, causes=causes, blockers=[*_with_untold(changes, causes)])


def _with_class(causes: Sequence[Fact]) -> Iterator[Fact]:
    """The causes; of an attribute that no device has, the class that asks for it."""
    by_class = [(each, {*_names_of(each)}) for each in causes if each.get("rule") in _OF_CLASS]
    for cause in causes:
        names = _forms_of(cause["name"]) if _is_odd_name(cause) and not cause["count"] and "what" not in cause else ()
        asks = next((step["args"]["device_class"] for step, words in by_class if not words.isdisjoint(names)), None)
        yield {**cause, "device_class": asks} if asks else cause


def _with_shortfall(cause: Fact, changes: Sequence[Mapping[str, Any]]) -> Fact:
    """That devices exclude each other, with the first thing of which their pool has too little for them."""
    short = next((each for each in changes if "missing" in each and not {"capacity", "needed"}.isdisjoint(each)), None)
    if cause["code"] != Cause.EXCLUSIVE or short is None:
        return cause
    is_counter = short["kind"] == "counter"
    try:
        missing, given = (Quantity.parse(short[name]) for name in ("missing", "needed" if is_counter else "capacity"))
    except QuantityError:  # such as a sum beyond the largest one
        return cause
    needed = given.nano if is_counter else given.nano + missing.nano
    amounts = {"needed": sum_text(needed, given.format), "there": sum_text(needed - missing.nano, given.format)}
    what = f"{short['counterSet']}/{short['counter']}" if is_counter else short["resource"]
    return {**cause, **amounts, "resource": what, "pool": short["pool"]}


def _rank(change: Mapping[str, Any], causes: Sequence[Fact]) -> int:
    """The place of a change: those that the most telling cause is about come first, whole requests last of them."""
    return (1 if change["kind"] == "request" else 0) if _is_about_first(change, causes) else 2


def _led_by_changed(causes: list[Fact], edits: Sequence[Mapping[str, Any]]) -> list[Fact]:
    """The causes, with one that something to be changed is about before those that nothing is."""
    if not causes or causes[0]["code"] in _ABOUT_ALL or any(_is_about_first(each, causes) for each in edits):
        return causes
    mended = [each for each in causes if _says_why(each) and any(_is_about_first(edit, [each]) for edit in edits)]
    return [*mended[:1], *(each for each in causes if each not in mended[:1])]


def _with_untold(changes: Sequence[Mapping[str, Any]], causes: Sequence[Fact]) -> Iterator[Mapping[str, Any]]:
    """The changes; of several, those of a claim that no cause is about are marked: a sentence says why each is. Where
    it says that of none, others like the first one need it no more than that, nor do several requests."""
    weighty = [each for each in causes if _says_why(each)]
    first = next((each for each in changes if each["kind"] not in HOLDERS), None)
    says_all = not weighty or first is None or first["kind"] == "unavailable"

    def has_cause(change: Mapping[str, Any]) -> bool:
        return any(_is_about_first(change, [cause]) for cause in weighty)

    alike = first["kind"] if first is not None and (first["kind"] == "request" or not has_cause(first)) else None
    for each in changes:
        is_clear = says_all or each is first or each["kind"] in (*HOLDERS, *_SAYS_ITSELF, alike)
        yield each if is_clear or has_cause(each) else {**each, "untold": True}


def _with_lifted(cause: Fact, finding: Finding) -> Fact:
    """A cause; of a rule that leaves out only some devices, and is lifted by what is to be changed, whether by all of
    that."""
    if "rule" not in cause or cause["count"] == cause["total"]:
        return cause
    lifted_by = RuleCode(cause["rule"]).row.lifted_by
    lifts = [each["kind"] in lifted_by and not _is_of_other_request(each, cause) for each in finding.edits]
    return {**cause, "lifted": all(lifts)} if any(lifts) else cause


def _is_of_other_request(edit: Mapping[str, Any], cause: Fact) -> bool:
    """Whether an edit is of another request than the one that a cause is about."""
    names = [str(each["request"]).partition("/")[0].partition(".")[0] for each in (edit, cause) if "request" in each]
    return len({*names}) > 1


def _is_about_first(change: Mapping[str, Any], causes: Sequence[Fact]) -> bool:
    """Whether the most telling cause is what a change is about."""
    first = next(filter(_says_why, causes), None)
    if first is None:
        return True
    is_amount = first.get("what") == "amount"  # devices match a request for it: it is of another one
    of = next((each for each in causes if each["code"] == Cause.NO_MATCH and "request" in each and not is_amount), {})
    cause = {**of, **first.get("cause", first)}
    is_in_use = bool(cause.get("free")) or cause["code"] in _IN_USE
    if is_in_use or change["kind"] in HOLDERS:
        return is_in_use and change["kind"] in HOLDERS
    is_less = change["kind"] == "amount" and "most" in change
    if _is_of_other_request(change, cause) or (cause.get("most") == "0" and is_less):
        return False  # of the last: however little is wanted
    if change["kind"] == "request" and "request" in cause:
        return True
    if cause["code"] == Cause.TOO_FEW and change.get("resource", "count") == "count" and change["kind"] == "amount":
        return True
    lifted_by = RuleCode(cause["rule"]).row.lifted_by if "rule" in cause else _EDITED.get(cause["code"], ())
    if lifted_by:
        return change["kind"] in lifted_by
    return not ({*_names_of(change)} - _COMMON_WORDS).isdisjoint(_names_of(cause))


def _of_member(causes: Sequence[Fact]) -> Sequence[Fact]:
    """What the first member of a group lacks, as a part of that it does not fit."""
    if len(causes) < 2 or causes[0]["code"] != Cause.MEMBERS:
        return causes
    lacks = next(filter(_says_why, causes[1:]), causes[1])
    return [
        {**causes[0], "cause": lacks},
        *(each for each in causes[1:] if each is not lacks and each["code"] != Cause.NO_MATCH),
    ]


def _relevant_causes(finding: Finding) -> list[Fact]:
    """The causes without those that have nothing to do with what is to be changed, or that another one says better. A
    name that few devices have, and that is near no other, may be what was mistyped, or may not matter."""
    first_of_each: dict[str, Fact] = {}
    for each in finding.causes:  # of one name, two may say different things: they are of different requests
        is_of_name = each["code"] in _ABOUT_NAMES
        first_of_each.setdefault(each["name"] if is_of_name else json.dumps(each, sort_keys=True), each)
    causes = _with_the_rule([*first_of_each.values()])
    causes = [*_with_what_fits(causes, finding.edits)]
    unknown = [each for each in causes if _is_odd_name(each)]
    if not unknown:
        return causes
    others = [each for each in causes if not _is_odd_name(each)]
    edits = finding.edits
    # An edit of a whole class or request does not say which names it is about.
    named = {*_names_of(edits), *(_names_of(others) if all(each["kind"] in _OF_ANY_NAME for each in edits) else ())}
    has_none = [each for each in unknown if not each["count"] and not named.isdisjoint(_forms_of(each["name"]))]
    lacking = {each["name"] for each in has_none}
    remaining = [each for each in others if each["code"] != Cause.TOO_LITTLE or each["resource"] not in lacking]
    if "nothingLeft" in finding.caveats and not has_none:  # they are why all is left out
        has_none = [each for each in unknown if not each["count"]]
    is_withheld = bool(edits) and edits[0]["kind"] == "unavailable"
    says_enough = has_none or is_withheld or any(map(_says_why, remaining))
    shown = [*remaining, *_amounts_as_one(has_none)]  # a rule says less than a name, so a sentence leaves it out first
    return sorted(shown, key=lambda each: each["code"] == Cause.STEP) if says_enough else causes


def _amounts_as_one(unknown: Sequence[Fact]) -> Iterator[Fact]:
    """Names that no device has, with one cause for the amounts that none of so many devices offers: what is to be
    changed is of all of them."""
    names: dict[object, list[str]] = {}
    for each in unknown:
        names.setdefault(each["total"] if each.get("what") == "amount" else id(each), []).append(each["name"])
    for each in unknown:
        name, *also = names[each["total"] if each.get("what") == "amount" else id(each)]
        if each["name"] == name:
            yield {**each, "also": also} if also else each


def _with_what_fits(causes: Sequence[Fact], edits: Sequence[Mapping[str, Any]]) -> Iterator[Fact]:
    """The causes; if less of a resource would do, devices have some of it, be it on other nodes."""
    amounts = [each for each in edits if each["kind"] == "amount" and {"resource", "most"} <= each.keys()]
    most = {each["resource"]: each["most"] for each in amounts}
    for each in causes:
        if (
            each["code"] == Cause.TOO_LITTLE
            and each["most"] == "0"
            and not each.get("free")
            and each["resource"] in most
        ):
            yield {name: each[name] for name in ("code", "resource", "wanted")} | {"most": most[each["resource"]]}
        elif each["code"] != Cause.UNKNOWN_NAME or each.get("what") != "amount" or each["name"] not in most:
            yield each


def _says_why(cause: Fact) -> bool:
    """Whether a cause says more than that nothing matches."""
    return cause["code"] != Cause.NO_MATCH or "rule" in cause


def _is_odd_name(cause: Fact) -> bool:
    """Whether a cause is a name that few devices have, and that is near no other."""
    return cause["code"] == Cause.UNKNOWN_NAME and "near" not in cause


def _forms_of(name: str) -> tuple[str, str]:
    """How an expression may read a name: whole, or without its domain."""
    return name, name.rpartition("/")[2]


def _names_of(content: Any) -> Iterator[str]:
    """The names in data: its texts, and the words of expressions. A number names nothing."""
    if isinstance(content, str):
        words = "".join(each if each.isalnum() or each in "_-" else " " for each in content).split()
        yield from (each for each in (content, *words) if not each.isdecimal())
    elif isinstance(content, Mapping):
        yield from (name for key, value in content.items() if key not in _NO_NAMES for name in _names_of(value))
    elif isinstance(content, list):
        yield from (name for each in content for name in _names_of(each))


def _with_the_rule(causes: Sequence[Fact]) -> list[Fact]:
    """That no device matches, and the rule that leaves out most of them, as one cause, where the rule does not say
    it."""
    none = next((each for each in causes if each["code"] == Cause.NO_MATCH), None)
    step = next((each for each in causes if each["code"] == Cause.STEP and each["count"] < each["total"]), None)
    if none is None or step is None:
        return [*causes]
    return [{**step, **none} if each is none else each for each in causes if each is not step]
