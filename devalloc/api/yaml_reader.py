"""Reading YAML text as JSON content, like kubectl, with bounds; and writing it.

Differences from PyYAML's YAML 1.1: dates, ``yes``, ``no``, ``on``, ``off`` and ``1:30`` are texts; ``1e3`` is a number;
numbers keep their text; keys are texts; a duplicate key is an error; the result is always JSON content. Aliases and
merge keys work, as long as their expansion stays within the bounds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import yaml

from devalloc.api.fields import ApiModel, quote_value
from devalloc.api.json_content import MAX_DEPTH, MAX_FIELDS, MAX_NODES, DecimalFloat
from devalloc.api.validation.schema import Loc

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEAN = {word: word.lower() == "true" for word in ("true", "True", "TRUE", "false", "False", "FALSE")}
_INTEGER = re.compile(r"[-+]?[0-9][0-9_]*", re.ASCII)
_RADIX = re.compile(r"[-+]?0(?:x[0-9a-fA-F]+|o[0-7]+|b[01]+)", re.ASCII)
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
_NO_NUMBER = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_MAX_DIGITS = 400

_TAG = "tag:yaml.org,2002:"
_TEXT_TAGS = frozenset({_TAG + "str", _TAG + "timestamp", "!"})
_PLAIN_TAGS = frozenset({_TAG + word for word in ("int", "float", "bool", "null")})

_ADVICE = {
    "mapping values are not allowed in this context": "contains a ':' where no field can start; check the indentation, "
    "and quote strings with ': '",
    "could not find expected ':'": "lacks a ':' after a field name",
    "did not find expected key": "is indented differently from the lines before it; line up fields and items of a list",
}


_NO_NAME = "has a list or map as a field name; render a template ({{ ... }}) first, or quote it"
_HEAD = ("apiVersion", "kind")
"""With one of these a manifest begins."""


class YamlError(ValueError):
    """Text that is not YAML, or YAML that is not a manifest; ``line`` counts from the start of the text, from 1."""

    def __init__(self, message: str, line: int | None = None, loc: Loc = ()) -> None:
        super().__init__(message)
        self.message = message
        self.line = line
        self.loc = loc


@dataclass(frozen=True, slots=True)
class YamlNote:
    """A message about one place of a document."""

    message: str
    line: int
    loc: Loc
    is_error: bool = True


@dataclass(slots=True)
class YamlDocument:
    """One document. If the notes contain errors, the content is not what its author meant."""

    content: Any = None
    line: int = 1
    notes: list[YamlNote] = field(default_factory=list)


def read_yaml(text: str, first_line: int = 1) -> Iterator[YamlDocument]:
    """The documents of a text, up to the first unreadable one. Raises YamlError.

    Lines count from 1 in the text; only messages that mention another line count it from ``first_line``.
    """
    try:
        builder = _Builder(first_line)
        for event in yaml.parse(text, Loader=_Loader):
            if isinstance(event, yaml.DocumentStartEvent):
                builder = _Builder(first_line)
            elif isinstance(event, yaml.DocumentEndEvent):
                yield builder.document
            else:
                builder.take(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = error.problem or ""
        if problem.startswith("found character ") and problem.endswith(" that cannot start any token"):
            words = _reserved_character(text, mark)
        else:
            words = _ADVICE.get(problem, f"is not valid YAML: {problem or error.context}")
        raise YamlError(words, None if mark is None else mark.line + 1) from None
    except yaml.YAMLError as error:
        raise YamlError(f"is not valid YAML: {' '.join(str(error).split())}") from None


def _reserved_character(text: str, mark: Any) -> str:
    """Which character cannot begin a value there, in which column, and what to write."""
    character = text.removeprefix("\ufeff")[mark.index : mark.index + 1]
    if character == "\t":
        return f"has a tab in column {mark.column + 1}; indent with spaces"
    return f"has {quote_value(character)} in column {mark.column + 1}, which YAML reserves; quote the string"


@lru_cache(maxsize=4)
def line_numbers(text: str, number: int) -> Mapping[tuple[str, ...], int]:
    """The line of every place in one document of a text (``number`` from 0), as far as it is readable.

    Places are tuples of names, keys and indexes, all as texts.
    """
    lines: dict[Loc, int] = {}
    try:
        builder = _Builder(lines=lines)
        for event in yaml.parse(text, Loader=_Loader):
            if isinstance(event, yaml.DocumentStartEvent):
                lines.clear()
                builder = _Builder(lines=lines)
            elif isinstance(event, yaml.DocumentEndEvent):
                number -= 1
                if number < 0:
                    break
            else:
                builder.take(event)
    except (yaml.YAMLError, YamlError):
        pass  # keep the lines up to the error
    return {tuple(str(step) for step in loc): line for loc, line in lines.items()}


# -- building --------------------------------------------------------------------------------------------------------

_NOTHING: Final = object()
_OPEN: Final = object()
"""The value of an anchor while its node is still being read."""


@dataclass(slots=True)
class _Frame:
    """A list or map that is being filled."""

    value: Any
    anchor: str | None
    nodes_before: int
    key: Any = _NOTHING
    is_merge: bool = False
    merges: list[Any] = field(default_factory=list)
    key_lines: dict[str, int] = field(default_factory=dict)
    fields: int = 0
    is_two: bool = False
    """Two manifests without a line `---` between them: said once, not of each field."""


class _Builder:
    """Builds one document from parser events, without recursion."""

    def __init__(self, first_line: int = 1, lines: dict[Loc, int] | None = None) -> None:
        self.document = YamlDocument()
        self._first_line = first_line
        self._lines = lines
        self._stack: list[_Frame] = []
        self._anchors: dict[str, tuple[Any, int, int]] = {}
        self._nodes = 0

    def take(self, event: Any) -> None:
        match event:
            case yaml.ScalarEvent():
                self._count(1, event)
                wants_key = bool(self._stack) and self._wants_key(self._stack[-1])
                value = event.value if wants_key else self._scalar(event)
                self._remember(event.anchor, value, 1, 0)
                self._put(value, event)
            case yaml.AliasEvent():
                value, nodes, depth = self._alias(event)
                self._count(nodes, event)
                if len(self._stack) + depth > MAX_DEPTH:
                    raise YamlError(f"is nested too deeply (more than {MAX_DEPTH} levels)", _line(event), self._loc())
                self._put(value, event)
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                self._open({} if isinstance(event, yaml.MappingStartEvent) else [], event)
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                self._close(event)

    # -- containers

    def _open(self, container: Any, event: Any) -> None:
        self._count(1, event)
        if event.tag not in (None, "!", _TAG + "map", _TAG + "seq"):
            raise YamlError(
                f"has the tag {quote_value(event.tag)}, which is not allowed in manifests", _line(event), self._loc()
            )
        if len(self._stack) >= MAX_DEPTH:
            raise YamlError(f"is nested too deeply (more than {MAX_DEPTH} levels)", _line(event), self._loc())
        if self._stack and self._wants_key(self._stack[-1]):
            raise YamlError(_NO_NAME, _line(event), self._loc())
        if not self._stack:
            self.document.line = _line(event)
        if self._lines is not None and self._stack and isinstance(self._stack[-1].value, list):
            self._lines[self._loc()] = _line(event)
        if event.anchor is not None:
            self._anchors[event.anchor] = (_OPEN, 0, 0)
        self._stack.append(_Frame(container, event.anchor, self._nodes - 1))

    def _close(self, event: Any) -> None:
        frame = self._stack.pop()
        for merged in frame.merges:
            for key, value in merged.items():
                frame.value.setdefault(key, value)
        if frame.anchor is not None:
            self._remember(frame.anchor, frame.value, self._nodes - frame.nodes_before, _depth(frame.value))
        self._put(frame.value, event)

    def _put(self, value: Any, event: Any) -> None:
        if not self._stack:
            self.document.content = value
            return
        frame = self._stack[-1]
        if isinstance(frame.value, list):
            frame.value.append(value)
            if self._lines is not None and not isinstance(value, (dict, list)):
                self._lines[(*self._loc()[:-1], len(frame.value) - 1)] = _line(event)
        elif frame.key is _NOTHING:
            self._begin_field(frame, value, event)
        else:
            self._end_field(frame, value, event)

    def _begin_field(self, frame: _Frame, key: Any, event: Any) -> None:
        if not isinstance(event, yaml.ScalarEvent):
            raise YamlError("has an alias as a field name", _line(event), self._loc())
        frame.fields += 1
        if frame.fields > MAX_FIELDS:
            raise YamlError(f"has more than {MAX_FIELDS} fields", _line(event), self._loc())
        frame.key = key
        frame.is_merge = key == "<<" and not event.style
        if frame.is_merge:
            return
        if key in frame.key_lines and not frame.is_two:
            first = frame.key_lines[key] + self._first_line - 1
            frame.is_two = key in _HEAD and len(self._loc()) == 1
            hint = "; is `---` missing before this line?" if frame.is_two else ""
            self.document.notes.append(
                YamlNote(f"appears twice, first in line {first}{hint}", _line(event), self._loc())
            )
        frame.key_lines[key] = _line(event)
        if self._lines is not None:
            self._lines[self._loc()] = _line(event)

    def _end_field(self, frame: _Frame, value: Any, event: Any) -> None:
        key, frame.key = frame.key, _NOTHING
        if not frame.is_merge:
            frame.value[key] = value
            return
        merged = value if isinstance(value, list) else [value]
        if not all(isinstance(entry, dict) for entry in merged):
            raise YamlError("can only merge maps", _line(event), (*self._loc(), "<<"))
        frame.merges += merged

    @staticmethod
    def _wants_key(frame: _Frame) -> bool:
        return isinstance(frame.value, dict) and frame.key is _NOTHING

    def _loc(self) -> Loc:
        steps: list[str | int] = []
        for frame in self._stack:
            if isinstance(frame.value, list):
                steps.append(len(frame.value))
            elif frame.key is not _NOTHING:
                steps.append(frame.key)
        return tuple(steps)

    # -- anchors and bounds

    def _alias(self, event: Any) -> tuple[Any, int, int]:
        anchor = self._anchors.get(event.anchor)
        if anchor is None:
            raise YamlError(
                f"uses the anchor {quote_value(event.anchor)}, which does not exist", _line(event), self._loc()
            )
        if anchor[0] is _OPEN:
            raise YamlError(
                f"contains itself through the anchor {quote_value(event.anchor)}", _line(event), self._loc()
            )
        return anchor

    def _remember(self, anchor: str | None, value: Any, nodes: int, depth: int) -> None:
        if anchor is not None:
            self._anchors[anchor] = (value, nodes, depth)

    def _count(self, nodes: int, event: Any) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            raise YamlError(f"is too large (more than {MAX_NODES} values, aliases counted in full)", _line(event))

    # -- scalars

    def _scalar(self, event: Any) -> Any:
        if event.tag in _TEXT_TAGS or (event.tag is None and event.style):
            return event.value
        if event.tag is not None and event.tag not in _PLAIN_TAGS:
            raise YamlError(
                f"has the tag {quote_value(event.tag)}, which is not allowed in manifests", _line(event), self._loc()
            )
        try:
            value = resolve_scalar(event.value)
        except ValueError as error:
            self.document.notes.append(YamlNote(str(error), _line(event), self._loc()))
            return None
        if isinstance(value, int) and not isinstance(value, bool) and _is_old_octal(event.value):
            message = f"is octal because of its leading zero, read as {value}; remove the zero or add quotes"
            self.document.notes.append(YamlNote(message, _line(event), self._loc(), is_error=False))
        return value


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _depth(container: Any) -> int:
    """Levels of a finished container, including itself."""
    depth, level = 0, [container]
    while level and depth <= MAX_DEPTH:
        depth += 1
        below: list[Any] = []
        for container in level:
            entries: Iterable[Any] = container.values() if isinstance(container, dict) else container
            below += [entry for entry in entries if isinstance(entry, (dict, list))]
        level = below
    return depth


def resolve_scalar(text: str) -> Any:
    """The value of a plain scalar: None, bool, int, DecimalFloat or str. Raises ValueError if it is not JSON."""
    if text in _NULL:
        return None
    if text in _BOOLEAN:
        return _BOOLEAN[text]
    if text[0] not in "+-.0123456789":
        return text
    if len(text) > _MAX_DIGITS and (_INTEGER.fullmatch(text) or _FLOAT.fullmatch(text)):
        raise ValueError("is a number that is too long")
    if _RADIX.fullmatch(text):
        return int(text, 0)
    if _INTEGER.fullmatch(text):
        digits = text.replace("_", "")
        return int(digits, 8) if _is_old_octal(text) else int(digits)
    if _FLOAT.fullmatch(text):
        return DecimalFloat(text)
    if _NO_NUMBER.fullmatch(text):
        raise ValueError("must be a finite number")
    return text


def _is_old_octal(text: str) -> bool:
    digits = text.lstrip("+-").replace("_", "")
    return len(digits) > 1 and digits[0] == "0" and digits.isdigit() and set(digits) <= set("01234567")


def dump_yaml(objects: Iterable[ApiModel | dict[str, Any]]) -> str:
    """The objects as YAML documents, with fields in their order."""
    contents = [obj.to_manifest() if isinstance(obj, ApiModel) else obj for obj in objects]
    return "---\n".join(
        yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=120)
        for content in contents
    )


_Base: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Dumper(_Base):  # type: ignore[misc]
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    if "\n" in text and _fits_block(text):
        style: str | None = "|"
    else:
        style = None if _is_plain(text) else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def _fits_block(text: str) -> bool:
    return all(line.isprintable() and line == line.rstrip() for line in text.split("\n"))


def _is_plain(text: str) -> bool:
    """Whether the text needs no quotes. Our own reader accepts more numbers than PyYAML does, such as 1e3."""
    try:
        return not text or isinstance(resolve_scalar(text), str)
    except ValueError:
        return False


def _number(dumper: yaml.SafeDumper, number: DecimalFloat) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:float", number.text)


_Dumper.add_representer(str, _text)
_Dumper.add_representer(DecimalFloat, _number)
