"""How names, lists and counts are written in sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from devalloc.printable import printable

WHOLE = 320
"""The width of names that are not shortened: no valid one is longer, nor is the path of a field."""
NARROW = 32
"""The width of names at which a sentence says rather little than leave something out."""
_PATH = 25
"""Characters of a field's path that are always shown: with fewer it does not say which field is meant."""


@dataclass(frozen=True, slots=True)
class Style:
    """How names are written."""

    width: int
    """of a name, in characters"""
    subject: str = ""
    """whose finding it is"""
    is_whole: bool = False
    """whether all changes are named, however many there are"""
    is_named: bool = False
    """whether the cause names the device that is unavailable"""
    says_why: bool = True
    """whether a remedy says why: the reason of what is unavailable, what a pool lacks, and what a field says"""

    def path(self, path: str) -> str:
        """A field; of a short one, without what every claim has."""
        if self.width < WHOLE:
            inner = path.removeprefix("spec.")
            path = inner.removeprefix("devices.").replace(".exactly", "") if "." in inner or "[" in inner else path
        text, width = printable(path), max(self.width, _PATH)
        return text if len(text) <= width else replace(self, width=width).name(_without_middle(text, width))

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
        """The name of an attribute, class or resource; of one with a domain, the last segment tells most."""
        text = printable(str(name))
        domain, slash, last = text.rpartition("/")
        room = self.width - len(last) - len("…/")
        if slash and len(text) > self.width and room >= 0:
            text = f"{domain[:room]}…/{last}"
        return f"`{self.name(text)}`"

    def listed(self, names: Sequence[object], last: str = "and", most: int = 3, more: int = 0) -> str:
        """Such as "a, b and c", or "a, b, c and 2 more"; ``more``: that are not among the names."""
        return listed([self.name(each) for each in names], last, most, more)

    def owner(self, ref: Mapping[str, Any]) -> str:
        """A claim or machine; one that has no name is of another namespace."""
        if ref.get("name") is None:
            return f"a {ref['kind']} of another namespace"
        return f"{_title(ref)} {self._own_name(ref)}"

    def _own_name(self, ref: Mapping[str, Any]) -> str:
        idle = f" (not running: {ref['idle']})" if "idle" in ref and self.width == WHOLE else ""
        return f"{self.name(ref['namespace'])}/{self.name(ref['name'])}{idle}"

    def owners(self, refs: Sequence[Mapping[str, Any]], most: int = 3, more: int = 0) -> str:
        """Claims and machines, and ``more`` of them; those without a name are counted."""
        own = [each for each in refs if each.get("name") is not None]
        shown, titles = own[:most], {*map(_title, own)}
        names = [self.owner(each) for each in shown]
        if len(own) > 1 and len(titles) == 1:
            names = [f"{titles.pop()}s {self._own_name(shown[0])}", *map(self._own_name, shown[1:])]
        foreign = [each for each in refs if each.get("name") is None]
        if foreign and len(names) < most:
            several = f"{count_holders(foreign)} of other namespaces"
            return listed([*names, several if len(foreign) > 1 else self.owner(foreign[0])], most=most, more=more)
        return listed(names, most=most, more=more + len(refs) - len(shown))


def listed(texts: Sequence[str], last: str = "and", most: int = 3, more: int = 0) -> str:
    """Join texts as "a, b and c", or "a, b, c and 2 more"."""
    if rest := max(0, len(texts) - most) + more:
        return f"{', '.join(texts[:most])} {last} {rest} more"
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} {last} {texts[-1]}"


def joined(parts: Sequence[str]) -> str:
    """Join the parts that say something to a sentence."""
    return "; ".join(part for part in parts if part)


def _without_middle(path: str, width: int) -> str:
    """The first segment of a field's path, and as many of the last ones as fit."""
    first, *others = path.split(".")
    shown = ""
    while others and len(first) + len("…") + len(f"{others[-1]}.{shown}".removesuffix(".")) <= width:
        shown = f"{others.pop()}.{shown}".removesuffix(".")
    return f"{first}…{shown}" if shown else path


def _title(ref: Mapping[str, Any]) -> str:
    return str(ref.get("objectKind") or ref["kind"])


def plural_of(holders: Sequence[Mapping[str, Any]]) -> str:
    """Name the kinds of several holders."""
    kinds = {each["kind"] for each in holders}
    return "machines" if kinds == {"machine"} else "claims" if kinds == {"claim"} else "claims and machines"


def count_holders(holders: Sequence[Mapping[str, Any]]) -> str:
    """Such as "2 claims", or "1 claim and 2 machines"."""
    counts = Counter(each["kind"] for each in holders)
    return " and ".join(f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in sorted(counts.items()))


def count_parts(count: int) -> str:
    """Such as "1 part needs", or "2 parts need"."""
    return "1 part needs" if count == 1 else f"{count} parts need"


def count_of(count: int, total: int) -> str:
    """Such as "2 of 3 devices", "all 3 devices" or "the only device"."""
    if total == 1:
        return "the only device" if count else "0 of 1 device"
    if count == total == 2:
        return "both devices"
    return f"all {total} devices" if count == total else f"{count} of {count_devices(total)}"


def do_of(count: int, total: int, what: str) -> str:
    """What so many of all devices do, such as "2 of 3 devices fail" or "none of 3 devices is"."""
    for lacks, none in (("are not ", "is "), ("have no ", "has "), ("cannot ", "can "), ("offer no ", "offers ")):
        if count == total > 1 and what.startswith(lacks):
            return f"none of {total} devices {none}{what.removeprefix(lacks)}"
    return f"{count_of(count, total)} {what}"


def count_devices(count: int, free: str = "") -> str:
    """Such as "1 device", or "2 free devices"; ``free`` is the word before it."""
    return f"{count} {free}{'device' if count == 1 else 'devices'}"


def agree_verb(what: str, count: int) -> str:
    """ "are unavailable" -> "is unavailable" for one device."""
    if count != 1:
        return what
    forms: Mapping[str, str] = {
        "draw": "draws",
        "lack": "lacks",
        "offer": "offers",
        "cause": "causes",
        "need": "needs",
        "are": "is",
        "have": "has",
        "fail": "fails",
        "differ": "differs",
        "belong": "belongs",
        "do": "does",
        "go": "goes",
        "skip": "skips",
        "use": "uses",
        "consume": "consumes",
    }
    first, _, rest = what.partition(" ")
    return f"{forms.get(first, first)} {rest}"
