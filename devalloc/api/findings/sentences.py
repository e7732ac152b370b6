"""The sentence of a finding for a reader: cause, then remedy."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from devalloc.api.findings.causes import Words, words_of
from devalloc.api.findings.data import (
    ADMIN,
    CAVEATS,
    HOLDERS,
    MAX_AT_LENGTH,
    MAX_LISTED,
    Cause,
    Fact,
    Finding,
    Reader,
    visible,
)
from devalloc.api.findings.edits import (
    and_more,
    changes_in_explain,
    edit_words,
    merged,
    or_wait,
    release_of,
    remedy_of,
    withheld_of,
)
from devalloc.api.findings.relevance import relevant
from devalloc.api.findings.style import NARROW, WHOLE, Style, joined
from devalloc.printable import printable

_WIDTHS = (WHOLE, 64, 48, 32, 24, 16, 10)
"""To how many characters each name is shortened until a sentence fits."""
_WEAK = (Cause.NO_MATCH, Cause.CUT_SHORT, Cause.STEP)
"""Causes that say little if there are others, the least telling first."""
_WEAK_CODES = frozenset(each.value for each in _WEAK)
_ADVISING = frozenset((Cause.UNKNOWN_NAME, Cause.UNKNOWN_VALUE, Cause.WRONG_TYPE, Cause.MISPLACED, Cause.UNKNOWN_TYPE))
"""Causes that are most likely why there are the others: something was mistyped."""


_SHOWS_ALL = "run `devalloc explain` to see all that is in the way"
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
    """The first of the sentences that fits, whatever the names and texts in it are: none acts on a terminal."""
    if width is None:
        text = next(_sentences(finding, Style(WHOLE, finding.subject, is_whole=True)))
        return _cut(printable(text), MAX_AT_LENGTH)
    finding = relevant(finding)
    finding = replace(finding, blockers=merged(finding.blockers))
    for sentences, widths in _SENTENCES:
        for names in widths:
            for text in map(printable, sentences(finding, Style(names, finding.subject))):
                if len(text) <= width:
                    return text
    (text,) = _short_sentences(finding, Style(_WIDTHS[1], finding.subject))
    return _cut(printable(text), width)


def _cut(text: str, width: int) -> str:
    """It, or its beginning and, where that is short, its last part: what to do."""
    if len(text) <= width:
        return text
    cause, _, remedy = text.rpartition("; ")
    end = f"…; {remedy}" if cause and len(remedy) <= width // 3 else "…"
    return f"{text[: width - len(end)].rstrip()}{end}"


def _sentences(finding: Finding, style: Style) -> Iterator[str]:
    """The sentence, and the same with less of it."""
    uncertain = [CAVEATS[each] for each in finding.caveats if CAVEATS[each]]
    if withheld := _withheld(finding, style):
        texts = [withheld, remedy_of(finding, replace(style, says_why=False, is_named=len(finding.edits) == 1))]
        yield joined([*texts, *uncertain])
        if not _is_open(finding):
            yield joined(texts)
    yield from _advised(finding, style)
    if withheld and not finding.causes:
        return
    yield from _with_changes(finding, style, uncertain)


def _with_changes(finding: Finding, style: Style, uncertain: Sequence[str]) -> Iterator[str]:
    """Causes, and all that is to be changed; where names are short, only if the causes are of all of it."""
    if style.width < NARROW and any("untold" in each for each in finding.edits):
        return
    wait, corrects = or_wait(finding), any("didYouMean" in each for each in finding.blockers)
    remedies = dict.fromkeys(remedy_of(finding, replace(style, says_why=says_why)) for says_why in (True, False))
    leaves_nothing = "nothingLeft" in finding.caveats
    for words in _versions(finding.causes, style):
        own = next((each for each in words if each.remedy or each.guess), None)
        is_complete = leaves_nothing or any(each.is_complete for each in words[:1])
        first = next((each.first for each in words if each.first), "")
        for changes in remedies:
            changes = f"{first}, and {changes}" if first and changes else first or changes
            remedy = "" if is_complete else changes
            if own and (leaves_nothing or not corrects):
                remedy = own.then(release_of(finding.holders, style) if own.guess else "")
            instead = "or " if remedy and any(each.advises for each in words[-1:]) else ""
            text = joined([*(each.text for each in words), f"{instead}{remedy}"])
            if wait and remedy == changes and not first:
                yield joined([f"{text}{wait}", *uncertain])
            if remedy and uncertain:
                yield joined([text, *uncertain])
            if not remedy and (hint := _hint(words, leaves_nothing=leaves_nothing)):
                yield joined([text, hint])
            says_all = remedy or style.is_whole or any(each.is_complete or each.advises for each in words)
            if text and not says_all:
                yield joined([text, _SHOWS_ALL])
            if says_all and not (remedy and _is_open(finding)):
                yield text
    if corrects and finding.causes:  # the change names what is written, too
        first_cause = next((each for each in finding.causes if each["code"] not in _WEAK), finding.causes[0])
        yield from (joined([words_of(first_cause, style).text, changes]) for changes in remedies)
        yield from (joined([words_of(finding.causes[0], style).text, changes]) for changes in remedies)


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


def _versions(causes: Sequence[Fact], style: Style) -> Iterator[list[Words]]:
    """The causes in words: all of them, without those that say little, then with shorter texts, and fewer of them."""
    weighty = [*_weighty(causes)]
    yield from ([words_of(each, style) for each in some] for some in weighty)
    if style.width == WHOLE:
        return
    for some in (weighty[-1], *_first(weighty[-1])):
        words = [words_of(each, style) for each in some]
        yield words
        if len(words) == 1:
            yield from ([each] for each in words[0].versions())
        elif any(each.shorter for each in words):
            yield [[*each.versions()][-1] for each in words]


def _hint(words: Sequence[Words], *, leaves_nothing: bool) -> str:
    """General advice on the most special of the causes that have any."""
    hints = [each.obvious or ("" if leaves_nothing else each.hint) for each in words]
    return next(filter(None, reversed(hints)), "")


def _withheld(finding: Finding, style: Style) -> str:
    """What would do and is unavailable, where no cause says more than that."""
    is_weak = all(each["code"] in (*_WEAK, Cause.MEMBERS) and "cause" not in each for each in finding.causes)
    return withheld_of(finding, style) if is_weak else ""


def _fewer(causes: Sequence[Fact]) -> Iterator[Sequence[Fact]]:
    """All causes, then without those that say little if others say more, then without the last ones."""
    weighty = [*_weighty(causes)]
    yield from weighty
    yield from _first(weighty[-1])


def _weighty(causes: Sequence[Fact]) -> Iterator[Sequence[Fact]]:
    """All causes, then without those that say little if others say more."""
    yield causes
    says_more = any(each["code"] not in _WEAK for each in causes)
    for weak in reversed(_WEAK) if says_more else _WEAK:
        if (rest := [each for each in causes if each["code"] != weak]) and len(rest) < len(causes):
            yield (causes := rest)


def _first(causes: Sequence[Fact]) -> Iterator[Sequence[Fact]]:
    """Causes without the last ones."""
    for advice in (each for each in causes[1:] if each["code"] in _ADVISING):
        yield [causes[0], advice]
        if causes[0]["code"] not in _ADVISING and ("near" in advice or advice.get("what") != "amount"):
            yield [advice]
    yield from (causes[:count] for count in range(len(causes) - 1, 0, -1))


def _single_edits(finding: Finding, style: Style) -> Iterator[str]:
    """The first cause, and one of the changes."""
    return _with_one_of(finding, style, finding.blockers[:MAX_LISTED])


def _first_edits(finding: Finding, style: Style) -> Iterator[str]:
    """The same with the change that belongs to it."""
    return _with_one_of(finding, style, finding.blockers[:1])


def _single_releases(finding: Finding, style: Style) -> Iterator[str]:
    """The same with one of those that hold something."""
    return _with_one_of(finding, style, finding.holders[:MAX_LISTED])


def _with_one_of(finding: Finding, style: Style, changes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for cause, step in _steps(finding, style, changes):
        if _is_open(finding):
            yield joined([cause, step, CAVEATS["notEnough"]])
        else:
            yield joined([cause, and_more(step, len(finding.blockers))])


def _counted_edits(finding: Finding, style: Style) -> Iterator[str]:
    """The first cause, and one of the changes, with a short word on where the others are."""
    count, changes = len(finding.blockers) - 1, finding.blockers[:MAX_LISTED]
    if count and not _is_open(finding):
        rest = f"({count} more: `explain`)"
        yield from (joined([cause, f"{step} {rest}"]) for cause, step in _steps(finding, style, changes))


def _steps(finding: Finding, style: Style, changes: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """The first cause, at length and shorter, with one of the changes each."""
    words = _first_words(finding, style)
    if not _advises(finding, words):
        return
    withheld = _withheld(finding, style)
    texts = [withheld] if withheld else [each.text for each in words.versions()]
    styles = [*([] if withheld else [style]), replace(style, says_why=False, is_named=bool(withheld))]
    for each in changes:
        for own in styles:
            step = release_of([each], own) if each["kind"] in HOLDERS else edit_words(each, own)
            step = f"{words.first}, and {step}" if words.first else step
            yield from ((text, step) for text in texts)


def _pointers(finding: Finding, style: Style) -> Iterator[str]:
    """The first cause, and where the remedy is to be found."""
    words = _first_words(finding, style)
    if not words.is_complete:
        where = changes_in_explain(len(finding.blockers)) if _advises(finding, words) else _SHOWS_ALL
        yield from (joined([each.text, where]) for each in words.versions())


def _advises(finding: Finding, words: Words) -> bool:
    """Whether a sentence says what to change after its first cause."""
    return bool(finding.blockers) and "nothingLeft" not in finding.caveats and not words.is_complete


def _short_sentences(finding: Finding, style: Style) -> Iterator[str]:
    """The first cause."""
    yield _first_words(finding, style).text


def _first_words(finding: Finding, style: Style) -> Words:
    *_, causes = _fewer(finding.causes)
    return next((words_of(each, style) for each in causes), Words(""))


_SENTENCES = (
    (_sentences, _WIDTHS[:-1]),
    (_first_edits, _WIDTHS[:5]),
    (_single_edits, _WIDTHS[:-1]),
    (_single_releases, _WIDTHS[:-1]),
    (_counted_edits, _WIDTHS[:-1]),
    (_pointers, _WIDTHS),
    (_short_sentences, _WIDTHS),
)
"""What a sentence says, with names of which widths: the first one that fits is it."""
