"""The sentence of a finding for a reader: cause, then remedy."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from devalloc.api.findings.causes import Words, words_of
from devalloc.api.findings.data import ADMIN, CAVEATS, Cause, Fact, Finding, Reader, visible
from devalloc.api.findings.edits import (
    and_more,
    changes_in_explain,
    edit_words,
    or_wait,
    release_of,
    remedy_of,
    withheld_of,
)
from devalloc.api.findings.style import WHOLE, Style, joined

_WIDTHS = (WHOLE, 64, 48, 32, 24, 16, 10)
"""To how many characters each name is shortened until a sentence fits."""
_WEAK = (Cause.NO_MATCH, Cause.CUT_SHORT, Cause.STEP)
"""Causes that say little if there are others, the least telling first."""
_ADVISING = frozenset((Cause.UNKNOWN_NAME, Cause.UNKNOWN_VALUE, Cause.WRONG_TYPE, Cause.MISPLACED, Cause.UNKNOWN_TYPE))
"""Causes that are most likely why there are the others: something was mistyped."""


_OF_ANY_NAME = frozenset(("class", "request", "member"))
"""Kinds of edits that do not name what is wrong."""
_NO_NAMES = frozenset(("kind", "code", "rule", "path"))
"""Keys whose texts are devalloc's own."""
MAX_CACHED = 4096
"""Characters of a finding whose sentence is cached."""


def as_json(finding: Finding, reader: Reader = ADMIN) -> dict[str, Any]:
    """A finding as an answer has it, with its sentence. What there is nothing of is left out, but blockers."""
    parts = {"causes": finding.causes, "alternatives": finding.alternatives, "caveats": finding.caveats}
    lists = {name: [*part] for name, part in parts.items() if part}
    return {"message": message_of(finding, reader), **lists, "blockers": [*finding.blockers]}


def message_of(finding: Finding, reader: Reader = ADMIN) -> str:
    """The sentence of a finding for a reader: cause, then remedy."""
    seen = visible(finding, reader)
    parts = [[*each] for each in (seen.causes, seen.blockers, seen.alternatives, seen.caveats)]
    is_of_edits = any("claim" in each for each in (*seen.blockers, *seen.alternatives))
    content = json.dumps(parts)
    # Long content is of one claim's own expressions: cached, it would let a tenant fill the memory.
    fitted = _fitted if len(content) <= MAX_CACHED else _fitted.__wrapped__
    return fitted(content, seen.subject if is_of_edits else "", reader.width)


@lru_cache(maxsize=1024)
def _fitted(content: str, subject: str, width: int | None) -> str:
    """The sentence, once for claims of which the same is found: many can wait for one thing."""
    causes, blockers, alternatives, caveats = json.loads(content)
    return _fitting(Finding(causes, blockers, alternatives, caveats, subject), width)


def _fitting(finding: Finding, width: int | None) -> str:
    if width is None:
        return next(_sentences(finding, Style(WHOLE, finding.subject, is_whole=True)))
    finding = replace(finding, causes=_relevant(finding))
    for sentences in (_sentences, _single_edits, _single_releases, _pointers, _short_sentences):
        for names in _WIDTHS[:-1] if sentences in (_sentences, _single_edits) else _WIDTHS:
            for text in sentences(finding, Style(names, finding.subject)):
                if len(text) <= width:
                    return text
    (text,) = _short_sentences(finding, Style(_WIDTHS[1], finding.subject))
    return _cut(text, width)


def _cut(text: str, width: int) -> str:
    """Its beginning and, where that is short, its last part: what to do."""
    cause, _, remedy = text.rpartition("; ")
    end = f"…; {remedy}" if cause and len(remedy) <= width // 3 else "…"
    return f"{text[: width - len(end)].rstrip()}{end}"


def _sentences(finding: Finding, style: Style) -> Iterator[str]:
    """The sentence, and the same with less of it."""
    uncertain = [CAVEATS[each] for each in finding.caveats if CAVEATS[each]]
    if withheld := _withheld(finding, style):
        texts = [withheld, remedy_of(finding, replace(style, says_why=False))]
        yield joined([*texts, *uncertain])
        if not _is_open(finding):
            yield joined(texts)
    changes, wait = remedy_of(finding, style), or_wait(finding)
    corrects = any("didYouMean" in each for each in finding.blockers)
    leaves_nothing = "nothingLeft" in finding.caveats
    yield from _advised(finding, style)
    for causes in _fewer(finding.causes):
        words = [words_of(each, style) for each in causes]
        own = next((each for each in words if each.remedy or each.guess), None)
        is_complete = leaves_nothing or any(each.is_complete for each in words[:1])
        remedy = "" if is_complete else changes
        if own and not corrects:
            remedy = own.then(release_of(finding.holders, style) if own.guess else "")
        text = joined([*(each.text for each in words), remedy])
        if wait and remedy == changes:
            yield joined([f"{text}{wait}", *uncertain])
        if remedy and uncertain:
            yield joined([text, *uncertain])
        if not remedy and (hint := _hint(words, leaves_nothing=leaves_nothing)):
            yield joined([text, hint])
        if not (remedy and _is_open(finding)):
            yield text
    if corrects and finding.causes:  # the change names what is written, too
        yield joined([words_of(finding.causes[0], style).text, changes])


def _is_open(finding: Finding) -> bool:
    """Whether what is to be changed may not suffice: a sentence that names it has to say so."""
    return "notEnough" in finding.caveats


def _advised(finding: Finding, style: Style) -> Iterator[str]:
    """The same with general advice, where no change is known: the causes that say more are left as they are."""
    leaves_nothing = "nothingLeft" in finding.caveats
    if finding.blockers and not leaves_nothing:
        return
    for causes in _fewer(finding.causes):
        words = [words_of(each, style) for each in causes]
        if any(each.remedy or each.guess or each.is_complete for each in words):
            return
        if hint := _hint(words, leaves_nothing=leaves_nothing):
            yield joined([*(each.text for each in words), hint])
        if not any(each["code"] in _WEAK for each in causes):
            return


def _hint(words: Sequence[Words], *, leaves_nothing: bool) -> str:
    """General advice on the most special of the causes that have any."""
    hints = [each.obvious or ("" if leaves_nothing else each.hint) for each in words]
    return next(filter(None, reversed(hints)), "")


def _withheld(finding: Finding, style: Style) -> str:
    """What would do and is unavailable, where no cause says more than that."""
    return withheld_of(finding, style) if all(each["code"] in _WEAK for each in finding.causes) else ""


def _relevant(finding: Finding) -> list[Fact]:
    """The causes without those that have nothing to do with what is to be changed, or that another one says better. A
    name that few devices have, and that is near no other, may be what was mistyped, or may not matter."""
    causes = _with_the_rule([each for n, each in enumerate(finding.causes) if each not in finding.causes[:n]])
    unknown = [each for each in causes if each["code"] == Cause.UNKNOWN_NAME and "near" not in each]
    if not unknown:
        return causes
    others = [each for each in causes if each not in unknown]
    edits = finding.edits
    # An edit of a whole class or request does not say which names it is about.
    named = {*_names_of(edits), *(_names_of(others) if all(each["kind"] in _OF_ANY_NAME for each in edits) else ())}
    has_none = [each for each in unknown if not each["count"] and not named.isdisjoint(_forms_of(each["name"]))]
    lacking = {each["name"] for each in has_none}
    remaining = [each for each in others if each["code"] != Cause.TOO_LITTLE or each["resource"] not in lacking]
    says_enough = has_none or any(each["code"] != Cause.NO_MATCH for each in remaining)
    return [*remaining, *has_none] if says_enough else causes


def _forms_of(name: str) -> tuple[str, str]:
    """How an expression may read a name: whole, or without its domain."""
    return name, name.rpartition("/")[2]


def _names_of(content: Any) -> Iterator[str]:
    """The names in data: its texts, and the words of expressions."""
    if isinstance(content, str):
        yield content
        yield from "".join(each if each.isalnum() or each in "_-" else " " for each in content).split()
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
    rule = {name: step[name] for name in ("rule", "args", "count", "total", "example") if name in step}
    return [{**none, **rule} if each is none else each for each in causes if each is not step]


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


def _single_edits(finding: Finding, style: Style) -> Iterator[str]:
    """The first cause, and one of the changes."""
    says_why = not _withheld(finding, style)
    return _single_steps(
        finding, style, [edit_words(each, replace(style, says_why=says_why)) for each in finding.edits]
    )


def _single_releases(finding: Finding, style: Style) -> Iterator[str]:
    """The same with one of those that hold something."""
    return _single_steps(finding, style, [release_of([each], style) for each in finding.holders])


def _single_steps(finding: Finding, style: Style, steps: Sequence[str]) -> Iterator[str]:
    words, count = _first_words(finding, style), len(finding.blockers)
    if _advises(finding, words):
        cause = _withheld(finding, style) or words.text
        if _is_open(finding):
            yield from (joined([cause, step, CAVEATS["notEnough"]]) for step in steps)
            return
        yield from (joined([cause, and_more(step, count)]) for step in steps)
        if count > 1:
            rest = f"(and {count - 1} more {'change' if count == 2 else 'changes'})"
            yield from (joined([cause, f"{step} {rest}"]) for step in steps)


def _pointers(finding: Finding, style: Style) -> Iterator[str]:
    """The first cause, and where the remedy is to be found."""
    words = _first_words(finding, style)
    if _advises(finding, words):
        yield joined([words.text, changes_in_explain(len(finding.blockers))])


def _advises(finding: Finding, words: Words) -> bool:
    """Whether a sentence says what to change after its first cause."""
    return bool(finding.blockers) and "nothingLeft" not in finding.caveats and not words.is_complete


def _short_sentences(finding: Finding, style: Style) -> Iterator[str]:
    """The first cause."""
    yield _first_words(finding, style).text


def _first_words(finding: Finding, style: Style) -> Words:
    *_, causes = _fewer(finding.causes)
    return next((words_of(each, style) for each in causes), Words(""))
