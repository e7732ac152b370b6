"""Templates of ``-o jsonpath=``, as in kubectl: ``{.items[*].metadata.name}``, ``{range …}…{end}``, filters."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from devalloc.cli.command import BadInput

_STEP = re.compile(
    r"""\.\.(?P<deep>[\w-]+|\*)
      | \.(?P<name>(?:\\.|[\w/-])+|\*)
      | \[\?\(\s*(?P<filter>.+?)\s*\)\]
      | \[\s*(?:'(?P<quoted>[^']*)'|"(?P<double>[^"]*)")\s*\]
      | \[\s*(?P<star>\*)\s*\]
      | \[\s*(?P<start>-?\d+)?\s*(?P<colon>:)\s*(?P<end>-?\d+)?\s*\]
      | \[\s*(?P<index>-?\d+)\s*\]""",
    re.VERBOSE,
)
_FILTER = re.compile(r"@(?P<path>[^=!<>\s]*)\s*(?:(?P<operator>==|!=|<=|>=|<|>)\s*(?P<value>.+))?")
_TEXTS = {"n": "\n", "t": "\t", '"': '"', "'": "'", "\\": "\\"}


@dataclass(frozen=True, slots=True)
class _Part:
    """Literal text, an expression, or a part that is repeated for each value of an expression."""

    text: str | None = None
    expression: str = ""
    inner: Sequence[_Part] = ()
    is_range: bool = False


def render_template(template: str, content: Any) -> str:
    """Apply the template to the content. A missing path gives nothing. Raises BadInput."""
    parts, rest = _parse_parts(_tokens(template if "{" in template else f"{{{template}}}"))
    if rest:
        raise BadInput("jsonpath: {end} without {range …}")
    return "".join(_render_parts(parts, content))


def _tokens(template: str) -> list[tuple[bool, str]]:
    """(is it an expression, its text)"""
    tokens, at = [], 0
    for match in re.finditer(r"""\{((?:"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[^{}"'])*)\}""", template):
        tokens += [(False, template[at : match.start()]), (True, match[1].strip())]
        at = match.end()
    rest = template[at:]
    if "{" in rest or "}" in rest:
        raise BadInput(f"jsonpath: unclosed brace in {template!r}")
    return [token for token in (*tokens, (False, rest)) if token[1]]


def _parse_parts(tokens: list[tuple[bool, str]], *, inside: bool = False) -> tuple[list[_Part], list[tuple[bool, str]]]:
    parts: list[_Part] = []
    while tokens:
        (is_expression, text), tokens = tokens[0], tokens[1:]
        if not is_expression:
            parts.append(_Part(text=text))
        elif text == "end":
            return parts, tokens if inside else [(True, "end")]
        elif text.startswith("range "):
            inner, tokens = _parse_parts(tokens, inside=True)
            parts.append(_Part(expression=text.removeprefix("range ").strip(), inner=inner, is_range=True))
        elif text[0] in "\"'":
            parts.append(_Part(text=re.sub(r"\\(.)", lambda match: _TEXTS.get(match[1], match[1]), text[1:-1])))
        else:
            parts.append(_Part(expression=text))
    if inside:
        raise BadInput("jsonpath: {range …} without {end}")
    return parts, []


def _render_parts(parts: Sequence[_Part], content: Any) -> Iterator[str]:
    for part in parts:
        if part.text is not None:
            yield part.text
        elif part.is_range:
            for value in _values(part.expression, content):
                yield from _render_parts(part.inner, value)
        else:
            yield " ".join(map(_value_text, _values(part.expression, content)))


def _value_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _values(expression: str, content: Any) -> list[Any]:
    """The values at a path."""
    path = expression.removeprefix("$").removeprefix("@")
    path = path if not path or path[0] in ".[" else f".{path}"
    values, at = [content], 0
    while at < len(path):
        if path[at:] == ".":
            break
        match = _STEP.match(path, at)
        if match is None:
            raise BadInput(f"jsonpath: invalid path {expression!r} at {path[at:]!r}")
        values = [inner for value in values for inner in _step(match, value)]
        at = match.end()
    return values


def _step(match: re.Match[str], value: Any) -> Iterator[Any]:
    name = match["name"] or match["quoted"] or match["double"]
    if match["deep"] is not None:
        yield from _deep(match["deep"], value)
    elif match["filter"] is not None:
        yield from (entry for entry in _entries(value) if _passes(match["filter"], entry))
    elif match["star"] is not None or name == "*":
        yield from _entries(value)
    elif name is not None:
        key = re.sub(r"\\(.)", r"\1", name)
        if isinstance(value, dict) and key in value:
            yield value[key]
    elif isinstance(value, list) and match["colon"] is not None:
        start, end = (None if match[part] is None else int(match[part]) for part in ("start", "end"))
        yield from value[start:end]
    elif isinstance(value, list) and match["index"] is not None and -len(value) <= int(match["index"]) < len(value):
        yield value[int(match["index"])]


def _entries(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _deep(name: str, value: Any) -> Iterator[Any]:
    if isinstance(value, dict) and name in value:
        yield value[name]
    for entry in _entries(value):
        if name == "*":
            yield entry
        yield from _deep(name, entry)


def _passes(text: str, entry: Any) -> bool:
    match = _FILTER.fullmatch(text)
    if match is None:
        raise BadInput(f"jsonpath: invalid filter {text!r}; write it like [?(@.name=='x')]")
    values = _values(match["path"], entry)
    if match["operator"] is None:
        return bool(values)
    literal = match["value"].strip()
    try:
        wanted = literal[1:-1] if literal[0] in "\"'" else json.loads(literal)
    except ValueError:
        raise BadInput(f"jsonpath: {literal} is neither a number nor a quoted string") from None
    return any(_compares(match["operator"], value, wanted) for value in values)


def _compares(operator: str, value: Any, wanted: Any) -> bool:
    if operator in ("==", "!="):
        return bool(value == wanted) is (operator == "==")
    try:
        return bool({"<": value < wanted, "<=": value <= wanted, ">": value > wanted, ">=": value >= wanted}[operator])
    except TypeError:
        return False


def sort_key(path: str, content: Any) -> tuple[int, int | float, str]:
    """Sort key of an object by the value at a path: missing values first, then numbers, then texts."""
    values = _values(path.strip("{}"), content)
    if not values:
        return 0, 0.0, ""
    value = values[0]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return (1, value, "") if is_number else (2, 0.0, _value_text(value))
