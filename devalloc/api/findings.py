"""Why a claim or machine waits, as data, and the sentence that a reader gets of it.

A finding has causes and blockers. Both are JSON: maps with a ``code`` or a ``kind``, numbers and names. No sentence
exists before ``message_of`` is called with its reader, and what the reader may not see is taken out before that
(``visible``). So nothing searches or edits sentences.

A sentence is a cause, then a remedy, in ``MAX_MESSAGE`` characters. Counts, lists and what does not fit are in the
data, which `devalloc explain` shows whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

from devalloc.api.cordon import unschedulable_reasons
from devalloc.api.quantity import Quantity, readable_texts
from devalloc.printable import printable

MAX_MESSAGE = 120
"""Characters of a sentence: what a terminal and a column show of it."""
Fact = Mapping[str, Any]
"""A cause: ``code`` (a ``Cause``), and what its words need."""
HOLDERS = frozenset(("claim", "machine"))
"""Kinds of blockers that hold devices."""
_WHOLE = 1 << 30
_WIDTHS = (_WHOLE, 64, 48, 32, 24, 16, 10)
"""To how many characters each name is shortened until a sentence fits."""
_NAMED = 2
"""Changes, and holders, that a remedy names; of more it gives the number."""


class Cause(StrEnum):
    """What stands in the way. The docstrings of the words below say what each needs."""

    NO_POOLS = "noPools"
    NO_DEVICES = "noDevices"
    NO_DRIVER = "noDriver"
    INVALID_POOL = "invalidPool"
    UNREACHED = "unreached"
    NO_MATCH = "noMatch"
    STEP = "step"
    PARTS = "parts"
    UNKNOWN_NAME = "unknownName"
    UNKNOWN_VALUE = "unknownValue"
    WRONG_TYPE = "wrongType"
    UNKNOWN_TYPE = "unknownType"
    ADMIN_TYPE = "adminType"
    MISPLACED = "misplaced"
    TOO_FEW = "tooFew"
    TOO_LITTLE = "tooLittle"
    TOO_MANY = "tooMany"
    COMPETITION = "competition"
    AMOUNTS = "amountsTogether"
    DIFFER = "differ"
    TOO_FEW_AGREE = "tooFewAgree"
    CONSTRAINTS = "constraints"
    EXCLUSIVE = "exclusive"
    PARTS_TAKEN = "partsTaken"
    APART = "apart"
    BOUND = "boundToNode"
    NODE_UNKNOWN = "unknownNode"
    GROUP = "group"
    MEMBERS = "members"
    OUTRANKED = "outranked"
    UNPUBLISHED = "unpublished"
    EXPRESSION_FAILED = "expressionFailed"
    CUT_SHORT = "cutShort"
    TEXT = "text"
    MEMBER_FAILS = "memberFails"
    MEMBERS_APART = "membersApart"
    HELD_DIFFER = "heldDiffer"
    SEVERAL_OWNERS = "severalOwners"
    OVER_COMMITTED = "overCommitted"
    OVER_DRAWN = "overDrawn"
    ROOM = "room"
    TIE = "tie"
    NO_NODE = "noNode"
    NODE_BARRED = "nodeBarred"
    NODE_UNSUITED = "nodeUnsuited"
    RESERVATION_STAYS = "reservationStays"


_WEAK = (Cause.NO_MATCH, Cause.STEP)
"""Causes that say little if there are others, the least telling first."""
_ADVISING = frozenset((Cause.UNKNOWN_NAME, Cause.UNKNOWN_VALUE, Cause.WRONG_TYPE, Cause.MISPLACED, Cause.UNKNOWN_TYPE))
"""Causes that are most likely why there are the others: something was mistyped."""


def fact(code: Cause, **content: Any) -> Fact:
    """A cause with what its words need, without what is None, False or an empty tuple; 0 stays."""
    given = {name: value for name, value in content.items() if value is not None and value is not False and value != ()}
    return {
        "code": code.value,
        **{name: [*value] if isinstance(value, tuple) else value for name, value in given.items()},
    }


def claim_ref(key: tuple[str, str], kind: str = "claim", title: str | None = None) -> dict[str, str]:
    """A claim or machine that a cause names; ``title``: its kind in words, where several could be meant."""
    return {"kind": kind, "namespace": key[0], "name": key[1]} | ({"title": title} if title else {})


@dataclass(frozen=True, slots=True)
class Reader:
    """Who reads a sentence."""

    namespace: str | None = None
    """of a tenant, who sees no name of another namespace; None: an admin, or the user of the library"""
    width: int | None = MAX_MESSAGE
    """of a sentence, in characters; None: as long as it is"""


ADMIN = Reader()
AT_LENGTH = Reader(width=None)


@dataclass(frozen=True, slots=True)
class Finding:
    """What a sentence is made of, whether of an answer of the solver or of a decision of the controller."""

    causes: Sequence[Fact]
    """the most telling first"""
    blockers: Sequence[Mapping[str, Any]] = ()
    """what would have to change: edits, and holders to release. All of them, and they suffice."""
    alternatives: Sequence[Mapping[str, Any]] = ()
    """edits of which each would do instead"""
    caveats: Sequence[str] = ()
    """what is not certain (``CAVEATS``)"""
    subject: str = ""
    """whose it is, as NAMESPACE/NAME: edits of its own spec do not name it"""


CAVEATS = {
    "notSmallest": "fewer changes may suffice",
    "othersUnknown": "other claims may block it too",
    "nothingLeft": "",
}
"""What is not certain of the blockers, and its words; ``nothingLeft``: they leave out all that is requested, so that no
sentence advises them."""


def text_fact(text: str) -> Fact:
    """A cause that is found before any search: what is wrong with a field, or what an expression exceeded."""
    return fact(Cause.TEXT, text=text)


def finding_of(answer: Mapping[str, Any]) -> Finding:
    """The finding of an answer of the solver as JSON; of one without causes, its message is the cause."""
    causes = answer.get("causes") or ([text_fact(answer["message"])] if answer.get("message") else [])
    return Finding(
        causes,
        answer.get("blockers") or (),
        answer.get("alternatives") or (),
        answer.get("caveats") or (),
        f"{answer.get('namespace')}/{answer.get('name')}",
    )


def with_refs(content: Any, renamed: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Any:
    """Causes or blockers with each claim and machine in them as ``renamed`` says."""
    if isinstance(content, Mapping):
        shown = {name: with_refs(value, renamed) for name, value in content.items()}
        return renamed(shown) if shown.get("kind") in HOLDERS else shown
    return [with_refs(each, renamed) for each in content] if isinstance(content, list | tuple) else content


def as_json(finding: Finding, reader: Reader = ADMIN) -> dict[str, Any]:
    """A finding as an answer has it, with its sentence. What there is nothing of is left out, but blockers."""
    parts = {"causes": finding.causes, "alternatives": finding.alternatives, "caveats": finding.caveats}
    lists = {name: [*part] for name, part in parts.items() if part}
    return {"message": message_of(finding, reader), **lists, "blockers": [*finding.blockers]}


# -- what a reader may see ---------------------------------------------------------------------------------------------


def visible(finding: Finding, reader: Reader) -> Finding:
    """What a reader may see of a finding: claims and machines of other namespaces have no name any more."""
    if reader.namespace is None:
        return finding

    def hidden(ref: Mapping[str, Any]) -> Mapping[str, Any]:
        is_own = ref.get("namespace") in (None, reader.namespace)
        return ref if is_own else {"kind": ref["kind"], "namespace": None, "name": None}

    return Finding(
        with_refs(finding.causes, hidden),
        with_refs(finding.blockers, hidden),
        with_refs(finding.alternatives, hidden),
        finding.caveats,
        finding.subject,
    )


# -- a sentence --------------------------------------------------------------------------------------------------------


def message_of(finding: Finding, reader: Reader = ADMIN) -> str:
    """The sentence of a finding for a reader: cause, then remedy."""
    seen = visible(finding, reader)
    parts = [[*each] for each in (seen.causes, seen.blockers, seen.alternatives, seen.caveats)]
    is_of_edits = any("claim" in each for each in (*seen.blockers, *seen.alternatives))
    return _fitted(json.dumps(parts), seen.subject if is_of_edits else "", reader.width)


@lru_cache(maxsize=1024)
def _fitted(content: str, subject: str, width: int | None) -> str:
    """The sentence, once for claims of which the same is found: many can wait for one thing."""
    causes, blockers, alternatives, caveats = json.loads(content)
    return _fitting(Finding(causes, blockers, alternatives, caveats, subject), width)


def _fitting(finding: Finding, width: int | None) -> str:
    if width is None:
        return next(_sentences(finding, _Style(_WHOLE, finding.subject, is_whole=True)))
    for sentences, widths in ((_sentences, _WIDTHS[:5]), (_short_sentences, _WIDTHS)):
        for names in widths:
            for text in sentences(finding, _Style(names, finding.subject)):
                if len(text) <= width:
                    return text
    *_, text = _short_sentences(finding, _Style(_WIDTHS[1], finding.subject))
    return _cut(text, width)


def _cut(text: str, width: int) -> str:
    """Its beginning and, where that is short, its last part: what to do."""
    cause, _, remedy = text.rpartition("; ")
    end = f"…; {remedy}" if cause and len(remedy) <= width // 3 else "…"
    return f"{text[: width - len(end)].rstrip()}{end}"


def _sentences(finding: Finding, style: _Style) -> Iterator[str]:
    """The sentence, and the same with fewer causes."""
    changes = _remedy(finding, style)
    corrects = any("didYouMean" in each for each in finding.blockers)
    for causes in _fewer(finding.causes):
        words = [_words(each, style) for each in causes]
        own = next((each.remedy for each in words if each.remedy), "")
        is_complete = "nothingLeft" in finding.caveats or any(each.is_complete for each in words[:1])
        release = _release([each for each in finding.blockers if each["kind"] in HOLDERS], style)
        remedy = _joined([own, release]) if own and not corrects else "" if is_complete else changes
        notes = [CAVEATS[each] for each in finding.caveats if CAVEATS[each]] if remedy else []
        texts = [*(each.text for each in words), remedy]
        yield from ([_joined([*texts, *notes])] if notes else [])
        yield _joined(texts)
    if corrects and finding.causes:  # the change names what is written, too
        yield _joined([_words(finding.causes[0], style).text, changes])


def _fewer(causes: Sequence[Fact]) -> Iterator[Sequence[Fact]]:
    """All causes, then without those that say little if others say more, then without the last ones."""
    yield causes
    says_more = any(each["code"] not in _WEAK for each in causes)
    for weak in reversed(_WEAK) if says_more else _WEAK:
        if (rest := [each for each in causes if each["code"] != weak]) and len(rest) < len(causes):
            yield (causes := rest)
    for advice in (each for each in causes[1:] if each["code"] in _ADVISING):
        yield from ([causes[0], advice], [advice])
    yield from (causes[:count] for count in range(len(causes) - 1, 0, -1))


def _short_sentences(finding: Finding, style: _Style) -> Iterator[str]:
    """The first cause, and where the remedy is to be found."""
    *_, causes = _fewer(finding.causes)
    words = next((_words(each, style) for each in causes), _Words(""))
    count = 0 if "nothingLeft" in finding.caveats or words.is_complete else len(finding.blockers)
    changes = "the change it needs" if count == 1 else f"the {count} changes it needs"
    yield _joined([words.text, f"`devalloc explain` lists {changes}" if count else ""])
    yield words.text


def _joined(parts: Sequence[str]) -> str:
    return "; ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class _Style:
    """How names are written."""

    width: int
    """of a name, in characters"""
    subject: str = ""
    """whose finding it is"""
    is_whole: bool = False
    """whether all changes are named, however many there are"""

    def path(self, path: str) -> str:
        """A field; of a short one, without what every claim has."""
        if self.width < _WHOLE:
            path = path.removeprefix("spec.").removeprefix("devices.").replace(".exactly", "")
        return self.name(path)

    def name(self, name: object) -> str:
        """A name that a user chose, shortened in its middle."""
        text = printable(str(name))
        if len(text) <= self.width:
            return text
        return f"{text[: self.width // 2]}…{text[len(text) - (self.width - self.width // 2 - 1) :]}"

    def text(self, text: object) -> str:
        """A text that a user or driver wrote, cut at its end."""
        shown, most = printable(str(text)), self.width + 20
        return shown if len(shown) <= most else f"{shown[: most - 1]}…"

    def code(self, name: object) -> str:
        return f"`{self.name(name)}`"

    def listed(self, names: Sequence[object], last: str = "and", most: int = 3) -> str:
        """Such as "a, b and c", or "a, b, c and 2 more"."""
        return _listed([self.name(each) for each in names], last, most)

    def owner(self, ref: Mapping[str, Any]) -> str:
        """A claim or machine; one that has no name is of another namespace."""
        if ref.get("name") is None:
            return f"a {ref['kind']} of another namespace"
        title = ref.get("title") or ("machine" if ref["kind"] == "machine" else "")
        idle = f" (not running: {ref['idle']})" if "idle" in ref and self.width == _WHOLE else ""
        return f"{f'{title} ' if title else ''}{self.name(ref['namespace'])}/{self.name(ref['name'])}{idle}"

    def owners(self, refs: Sequence[Mapping[str, Any]], most: int = 3, more: int = 0) -> str:
        """Claims and machines, and ``more`` of them; those without a name are counted."""
        names = [self.owner(each) for each in refs if each.get("name") is not None]
        foreign = [each for each in refs if each.get("name") is None]
        if len(foreign) > 1:
            names.append(f"{len(foreign)} {_plural(foreign)} of other namespaces")
        names += map(self.owner, foreign) if len(foreign) == 1 else ()
        return _listed([*names, f"{more} more"], most=most + 1) if more else _listed(names, most=most)


def _listed(texts: Sequence[str], last: str = "and", most: int = 3) -> str:
    if len(texts) > most:
        return f"{', '.join(texts[:most])} {last} {len(texts) - most} more"
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} {last} {texts[-1]}"


# -- remedies ----------------------------------------------------------------------------------------------------------


def _remedy(finding: Finding, style: _Style) -> str:
    """What to do, such as "drop the pin to node n1, and release default/a"; "" if nothing helps."""
    edits = [each for each in finding.blockers if each["kind"] not in HOLDERS]
    holders = [each for each in finding.blockers if each["kind"] in HOLDERS]
    words = _together_said([edit_words(each, style) for each in edits])
    if len(edits) > _NAMED and not style.is_whole:
        words = [f"make {len(edits)} changes (`devalloc explain` lists them)"]
    steps = [*words, *([_release(holders, style)] if holders else [])]
    text = f"{' and '.join(words)}, and {steps[-1]}" if words and holders else " and ".join(steps)
    others = [edit_words(each, style) for each in finding.alternatives[:1]]
    return " or ".join([text, *others]) if text else _joined(others)


def _together_said(words: Sequence[str]) -> list[str]:
    """Edits of one verb said with it once: "drop a and b"."""
    if len(words) > 1 and all(each.startswith("drop ") for each in words):
        return [f"drop {' and '.join(each.removeprefix('drop ') for each in words)}"]
    return [*words]


def _release(holders: Sequence[Mapping[str, Any]], style: _Style) -> str:
    """What to do about who holds what is needed: one's own is released, others' waited for."""
    own = [each for each in holders if each.get("name") is not None]
    foreign = [each for each in holders if each.get("name") is None]
    most = len(holders) if style.is_whole else _NAMED
    steps = [f"{verb} {style.owners(refs, most)}" for verb, refs in (("release", own), ("wait for", foreign)) if refs]
    return " and ".join(steps)


def _plural(holders: Sequence[Mapping[str, Any]]) -> str:
    kinds = {each["kind"] for each in holders}
    return "machines" if kinds == {"machine"} else "claims" if kinds == {"claim"} else "claims and machines"


def edit_words(edit: Mapping[str, Any], style: _Style | None = None) -> str:
    """What to change, in the imperative. ``edit``: a blocker that holds nothing."""
    style = style or _Style(_WHOLE)
    text = _EDITS.get(edit["kind"], _other_edit)(edit, style)
    if "machine" in edit:
        return f"{text} of machine {style.name(edit['machine'])}"
    of = edit.get("claim") if edit["kind"] in _OF_CLAIMS else None
    return f"{text} of {style.name(of)}" if of and of != style.subject else text


_OF_CLAIMS = frozenset(("amount", "limit", "matchAttribute", "constraint", "selector", "capacity", "request", "class"))
"""Kinds of edits of a claim's spec."""


def _other_edit(edit: Mapping[str, Any], style: _Style) -> str:
    return f"change {style.path(edit.get('path') or edit['kind'])}"


def _correction(edit: Mapping[str, Any], style: _Style) -> str | None:
    """What was most likely meant, where something was mistyped."""
    if "didYouMean" not in edit or "written" not in edit:
        return None
    return f"write {style.name(edit['didYouMean'])} for {style.name(edit['written'])} in {style.path(edit['path'])}"


def _drop(edit: Mapping[str, Any], style: _Style) -> str:
    return _correction(edit, style) or f"change {style.path(edit['path'])}"


def _match_attribute(edit: Mapping[str, Any], style: _Style) -> str:
    if (correction := _correction(edit, style)) is not None:
        return correction
    if "attribute" not in edit:
        return f"drop {style.path(edit['path'])}"
    return f"drop {style.code(edit['attribute'])} from {style.path(edit['path'])}"


def _constraint(edit: Mapping[str, Any], style: _Style) -> str:
    for kind in ("matchAttribute", "distinctAttribute"):
        if kind in edit:
            return f"drop {style.path(edit['path'])} ({kind} {style.name(edit[kind])})"
    return _drop(edit, style)


def _amount(edit: Mapping[str, Any], style: _Style) -> str:
    resource, most = edit.get("resource"), str(edit["most"])
    if "requested" in edit:
        _, most = readable_texts(Quantity.parse(str(edit["requested"])), Quantity.parse(most))
    what = (
        f"{most} {'device' if most == '1' else 'devices'}" if resource in (None, "count") else f"{most} of {resource}"
    )
    return f"ask for at most {what} in {style.path(edit['path'])}"


def _class(edit: Mapping[str, Any], style: _Style) -> str:
    if (correction := _correction(edit, style)) is not None:
        return correction
    if "deviceClassName" in edit:
        return f"use another class than {style.name(edit['deviceClassName'])}"
    what = "type" if "deviceType" in edit else "class"
    return f"use another {what} than {style.name(edit.get('deviceType') or edit.get('deviceClass'))}"


def _request(edit: Mapping[str, Any], style: _Style) -> str:
    name = str(edit.get("request", ""))
    if not name or name.isdecimal():  # a number that no field has
        return f"drop {style.path(edit['path'])}" if "path" in edit else _other_edit(edit, style)
    return f"drop request {style.name(name)}"


def _node(edit: Mapping[str, Any], style: _Style) -> str:
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


def _pool_resource(edit: Mapping[str, Any], style: _Style) -> str:
    if "missing" not in edit:
        return "give the pools more resources"
    return f"give pool {style.name(edit['pool'])} {edit['missing']} more of {style.name(edit['resource'])}"


def _counter(edit: Mapping[str, Any], style: _Style) -> str:
    if "missing" not in edit:
        return "raise the counters"
    which = f"{style.name(edit['counterSet'])}/{style.name(edit['counter'])}"
    return f"raise counter {which} of pool {style.name(edit['driver'])}/{style.name(edit['pool'])} by {edit['missing']}"


def _unavailable(edit: Mapping[str, Any], style: _Style) -> str:
    if "device" in edit:
        why = f" ({printable(edit['why'])})" if edit.get("why") and style.width == _WHOLE else ""
        return f"make {style.name(edit['pool'])}/{style.name(edit['device'])} available{why}"
    if "node" not in edit:
        return "make the unavailable devices available"
    reasons = unschedulable_reasons(edit["why"])
    remedies = dict.fromkeys(reason.remedy.format(node=style.name(edit["node"])) for reason in reasons)
    why = f" ({printable('; '.join(reason.why for reason in reasons))})" if style.width == _WHOLE else ""
    return f"{' and '.join(remedies)}{why}"


def _taint(edit: Mapping[str, Any], style: _Style) -> str:
    if "key" not in edit:
        return "tolerate the taints"
    taint = f"{edit['key']}{'=' + edit['value'] if edit.get('value') else ''}:{edit.get('effect', '')}"
    where = "/".join(style.name(edit[part]) for part in ("driver", "pool", "device") if part in edit)
    return f"tolerate the taint {style.name(taint)} of {where}"


def _pool(edit: Mapping[str, Any], style: _Style) -> str:
    return f"complete pool {style.name(edit['driver'])}/{style.name(edit['pool'])}"


_EDITS: dict[str, Callable[[Mapping[str, Any], _Style], str]] = {
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


# -- causes ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Words:
    """A cause in words, and what to do about it if nothing else is said."""

    text: str
    remedy: str = ""
    is_complete: bool = False
    """whether the text says what to do, too"""


def _words(cause: Fact, style: _Style) -> _Words:
    words = _CAUSES[Cause(cause["code"])](cause, style)
    return _Words(words) if isinstance(words, str) else words


def _text(cause: Fact, style: _Style) -> str:
    """A ``text`` of what is read before any search: a field and what is wrong with it, or an error of an expression."""
    text = printable(str(cause["text"]))
    path, space, rest = text.partition(" ")
    return f"{style.path(path)}{space}{rest}" if path.startswith("spec.") else text


def _no_driver(cause: Fact, style: _Style) -> _Words:
    """``drivers`` that have no device, those that are ``there``, and the ``near`` one."""
    text = f"no device of driver {style.listed(cause['drivers'], 'or')} exists"
    text += f" (there are {style.listed(cause['there'])})" if style.width == _WHOLE else ""
    if near := cause.get("near"):
        return _Words(text, f"did you mean {style.name(near)}?")
    if any(driver.endswith(".devalloc.io") for driver in cause["drivers"]):
        return _Words(text, "`devalloc discover` shows why a card is not offered")
    return _Words(text, "publish one, or correct the class")


def _invalid_pool(cause: Fact, style: _Style) -> _Words:
    """``why`` a pool counts nothing; the ``drivers`` that have no other."""
    is_named = cause.get("drivers") and style.width == _WHOLE
    of = f" of driver {style.listed(cause['drivers'], 'or')}" if is_named else ""
    return _Words(f"no device{of} counts: {style.text(cause['why'])}", "correct it")


def _no_match(cause: Fact, style: _Style) -> str:
    """The ``request``, if there are several."""
    return f"no device matches request {style.name(cause['request'])}" if "request" in cause else "no device matches"


def _step(cause: Fact, style: _Style) -> str:
    """The rule that leaves out most devices: ``count`` of ``total``, ``what`` they do, and why the first one does
    (``example``)."""
    example = f" ({style.text(cause['example'])})" if "example" in cause else ""
    what = style.text(agree_verb(cause["what"], cause["count"]))
    return f"{cause['count']} of {count_devices(cause['total'])} {what}{example}"


def _unknown_name(cause: Fact, style: _Style) -> _Words:
    """A ``name`` that ``count`` of ``total`` devices have, the ``near`` one, and ``what`` it is."""
    what = f"{cause['what']} " if "what" in cause else ""
    text = f"{what}{style.code(cause['name'])} exists on {cause['count']} of {count_devices(cause['total'])}"
    return _Words(text, f"did you mean {style.code(cause['near'])}?" if "near" in cause else "")


def _unknown_value(cause: Fact, style: _Style) -> _Words:
    """A ``value`` of ``name`` that none of ``total`` devices has; the ``near`` one, or a longer one that contains it
    (``whole``), and the expression that finds that (``write``)."""
    text = f"{style.code(cause['name'])} is {_quoted(cause['value'], style)} on 0 of {count_devices(cause['total'])}"
    if "near" in cause:
        return _Words(text, f"did you mean {_quoted(cause['near'], style)}?")
    return _Words(f"{text}, and part of {_quoted(cause['whole'], style)}", f"write {cause['write']}")


def _quoted(text: str, style: _Style) -> str:
    return repr(style.name(text))


def _wrong_type(cause: Fact, style: _Style) -> _Words:
    """``name`` has values of ``type`` on ``count`` devices and is compared with ``literal`` of type ``of``: the
    ``fault`` of its form, or the ``advice``."""
    there = f"{style.code(cause['name'])} is {cause['type']} on {count_devices(cause['count'])}"
    if "fault" in cause:
        return _Words(f"{there}, and {style.name(cause['literal'])} {cause['fault']}")
    text = f"{there}, and is compared with the {cause['of']} {style.name(cause['literal'])}"
    return _Words(text, cause.get("advice", ""))


def _misplaced(cause: Fact, style: _Style) -> _Words:
    """``name`` is ``what``: ``write`` it so."""
    return _Words(f"{style.code(cause['name'])} {cause['what']}", f"write {cause['write']}")


def _lacks(cause: Fact, style: _Style) -> str:
    return f"node {style.name(cause['node'])} does not have" if "node" in cause else "no node has"


def _together(cause: Fact, style: _Style) -> str:
    """Such as " with the same `numa` and `root`"."""
    names = cause.get("attributes", ())
    has = "a value of" if cause.get("wanted") == 1 else "the same"
    return f" with {has} {' and '.join(style.code(name) for name in names)}" if names else ""


def _of_request(cause: Fact, style: _Style) -> str:
    return f" for request {style.name(cause['request'])}" if "request" in cause else ""


def _too_few(cause: Fact, style: _Style) -> str:
    """``wanted`` devices, and the ``most`` of them on a node, or on ``node``; ``free`` ones, of the same
    ``attributes``, for a ``request``."""
    wanted = count_devices(cause["wanted"], "free " if cause.get("free") else "")
    of = f"{_together(cause, style)}{_of_request(cause, style)}"
    return f"{_lacks(cause, style)} {wanted}{of} (at most {cause['most']})"


def _too_little(cause: Fact, style: _Style) -> str:
    """The same for an amount of a ``resource``, on at most so many ``devices``."""
    on = f" on {count_devices(cause['devices'])}" if "devices" in cause else ""
    what = f"{cause['wanted']} of {'free ' if cause.get('free') else ''}{style.name(cause['resource'])}"
    on = on or " on its devices"
    return f"{_lacks(cause, style)} {what}{on}{_together(cause, style)} (at most {cause['most']})"


def _too_few_agree(cause: Fact, style: _Style) -> str:
    """``wanted`` devices with one value of an ``attribute``, or all ``distinct`` in it, the ``most`` on a node, and how
    many of ``total`` are ``without`` it."""
    name = style.code(cause["attribute"])
    what = f"all different in {name}" if cause.get("distinct") else f"with the same {name}"
    what = f"with a value of {name}" if cause["wanted"] == 1 else what
    without = f"; {cause['without']} of {cause['total']} have no {name}" if "without" in cause else ""
    wanted = f"{count_devices(cause['wanted'])} {what}{_of_request(cause, style)}"
    return f"{_lacks(cause, style)} {wanted} (at most {cause['most']}{without})"


def _competition(cause: Fact, style: _Style) -> str:
    """``count`` requests, their names if they are few (``requests``), want ``wanted`` devices, and ``most`` match."""
    names = cause.get("requests")
    who = f"requests {style.listed(names)}" if names else f"{cause['count']} requests"
    where = f"node {style.name(cause['node'])} has" if "node" in cause else "no node has more than"
    return f"{who} want {cause['wanted']} devices together, and {where} {cause['most']} that match"


def _amounts(cause: Fact, style: _Style) -> str:
    """The same for amounts of a ``resource``."""
    where = f"node {style.name(cause['node'])} has" if "node" in cause else "no node has more than"
    what = f"{cause['wanted']} of {style.name(cause['resource'])}"
    return f"{cause['count']} requests want {what} together, and {where} {cause['most']}"


def _node_unknown(cause: Fact, style: _Style) -> _Words:
    """The ``node``, and the ``near`` one."""
    near = f"did you mean {_quoted(cause['near'], style)}?" if "near" in cause else ""
    return _Words(f"no node {_quoted(cause['node'], style)} has devices", near)


def _members(cause: Fact, style: _Style) -> str:
    """The ``members`` of a ``group`` that cannot be satisfied."""
    names = [f"{style.name(each['namespace'])}/{style.name(each['name'])}" for each in cause["members"]]
    return f"{_group(cause, style)} is all-or-nothing, and {style.listed(names)} cannot be satisfied"


def _group(cause: Fact, style: _Style) -> str:
    """The ``group``, or the ``machine`` that is one with its claims."""
    return f"machine {style.name(cause['machine'])}" if "machine" in cause else f"group {style.name(cause['group'])}"


def _unpublished(cause: Fact, style: _Style) -> str:
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


def _member_fails(cause: Fact, style: _Style) -> _Words:
    """The ``member`` of a ``group`` that fails for a ``reason``, and its ``cause``."""
    why = _words(cause["cause"], style)
    member = style.owner(cause["member"])
    return _Words(f"member {member} of {_group(cause, style)} fails: {cause['reason']}: {why.text}", why.remedy)


def _members_apart(cause: Fact, style: _Style) -> _Words:
    """The ``nodes`` that members of a ``group`` are bound to, and the annotation that says so (``see``)."""
    nodes = [f"{style.name(each['node'])} ({', '.join(map(style.name, each['members']))})" for each in cause["nodes"]]
    text = f"members of {_group(cause, style)} are bound to different nodes: {', '.join(nodes)}"
    return _Words(text, f"see the annotation {cause['see']}")


def _held_differ(cause: Fact, style: _Style) -> _Words:
    """The ``attribute`` in which the devices that members of a ``group`` hold differ, or that they ``lack``, and what
    says that they must not (``see``)."""
    name, must = style.code(cause["attribute"]), "must have one value"
    how = f"have devices without {name}" if cause.get("lack") else f"differ in {name}, which {must}"
    return _Words(f"members of {_group(cause, style)} that hold devices already {how}", f"see {cause['see']}")


def _several_owners(cause: Fact, style: _Style) -> _Words:
    """The ``devices``, and the ``holders``."""
    text = f"device {style.name(cause['devices'][0])} has several owners: {_holders(cause, style)}"
    return _Words(text, "release all but one of them")


def _over_committed(cause: Fact, style: _Style) -> _Words:
    """The same, and the ``resource`` of which they hold too much."""
    hold = "holds" if len(cause["holders"]) == 1 else "hold"
    what = f"{_holders(cause, style)} {hold} more of its {style.name(cause['resource'])} than it has"
    return _Words(f"device {style.name(cause['devices'][0])} is over-committed: {what}", "release some of them")


def _over_drawn(cause: Fact, style: _Style) -> _Words:
    """The same of devices that draw on their pool."""
    hold = "holds" if len(cause["holders"]) == 1 else "hold"
    more = cause.get("moreDevices", 0)
    which = style.listed([*cause["devices"], *([f"{more} more"] if more else [])], most=9)
    what = f"draw more {style.name(cause['resource'])} than their pool has"
    return _Words(f"devices {which} {what}: {_holders(cause, style)} {hold} them", "release some of them")


def _holders(cause: Fact, style: _Style) -> str:
    return style.owners(cause["holders"], most=8, more=cause.get("more", 0))


def _room(cause: Fact, style: _Style) -> str:
    """The ``nodes`` without room for a machine, each with its ``node``, maybe ``numa``, and ``why`` it takes nothing
    new, or what it ``lacks``: ``resource``, what it ``has``, what of it is ``free``, and what is ``wanted``. ``large``:
    some node is large enough."""
    nodes = cause["nodes"]
    lines = [_room_of_node(each, style) for each in (nodes if style.is_whole else nodes[:1])]
    rest = len(nodes) - len(lines)
    more = f" (and {rest} more {'node' if rest == 1 else 'nodes'})" if rest else ""
    head = "there is no room for it" if cause.get("large") else "no node is large enough"
    return f"{head}: {'; '.join(lines)}{more}"


def _room_of_node(room: Mapping[str, Any], style: _Style) -> str:
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


_CAUSES: dict[Cause, Callable[[Fact, _Style], str | _Words]] = {
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
    Cause.UNKNOWN_TYPE: lambda cause, style: _Words(
        f"no class has deviceType {_quoted(cause['type'], style)}", f"did you mean {_quoted(cause['near'], style)}?"
    ),
    Cause.ADMIN_TYPE: lambda cause, style: _Words(
        f"class {style.name(cause['device_class'])} of type {style.name(cause['type'])} gives admin access",
        "name the class",
    ),
    Cause.MISPLACED: _misplaced,
    Cause.TOO_FEW: _too_few,
    Cause.TOO_LITTLE: _too_little,
    Cause.TOO_MANY: lambda cause, style: _Words(
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
    Cause.TEXT: lambda cause, style: _Words(_text(cause, style), is_complete=True),
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


def count_parts(count: int) -> str:
    """Such as "1 part is", or "2 parts are"."""
    return "1 part is" if count == 1 else f"{count} parts are"


def count_devices(count: int, free: str = "") -> str:
    """Such as "1 device", or "2 free devices"; ``free`` is the word before it."""
    return f"{count} {free}{'device' if count == 1 else 'devices'}"


def agree_verb(what: str, count: int) -> str:
    """ "are unavailable" -> "is unavailable" for one device."""
    if count != 1:
        return what
    forms: Mapping[str, str] = {
        "are": "is",
        "have": "has",
        "fail": "fails",
        "differ": "differs",
        "belong": "belongs",
        "do": "does",
        "skip": "skips",
        "use": "uses",
        "consume": "consumes",
    }
    first, _, rest = what.partition(" ")
    return f"{forms.get(first, first)} {rest}"
