"""Reading manifests from files, folders and streams: their documents, and problems of those that cannot be read.

An unreadable document does not affect the others.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import IO, Any

from devalloc.api.json_content import MAX_DEPTH, MAX_FIELDS, DecimalFloat
from devalloc.api.object_lists import is_object_list, own_object
from devalloc.api.problems import Problem
from devalloc.api.validation.schema import RAW, Loc, format_path
from devalloc.api.yaml_reader import YamlError, line_numbers, read_yaml
from devalloc.api.yaml_reader import dump_yaml as dump_yaml

_MAX_DIGITS = 400


class JsonError(ValueError):
    """Text that is not JSON; ``line`` counts from 1."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


@dataclass(frozen=True, slots=True)
class JsonValue:
    """A value, the places of its duplicate keys, and the line in which it starts, from 1."""

    content: Any
    twice: list[Loc]
    line: int


def read_json(text: str) -> Iterator[JsonValue]:
    """The values of a text, up to the first error. Raises JsonError."""
    position = _skip_space(text, 0)
    line, counted = 1, 0
    while position < len(text):
        twice: dict[int, list[str]] = {}
        alive: list[dict[str, Any]] = []

        def hook(
            pairs: list[tuple[str, Any]], twice: dict[int, list[str]] = twice, alive: list[Any] = alive
        ) -> dict[str, Any]:
            if len(pairs) > MAX_FIELDS:
                raise ValueError(f"contains a map with more than {MAX_FIELDS} fields")
            content = dict(pairs)
            if len(content) < len(pairs):
                times = Counter(key for key, _ in pairs)
                twice[id(content)] = [key for key in content if times[key] > 1]
                alive.append(content)  # an id is valid only while its object exists
            return content

        decoder = json.JSONDecoder(
            object_pairs_hook=hook, parse_float=DecimalFloat, parse_int=_integer, parse_constant=_no_constant
        )
        line, counted = line + text.count("\n", counted, position), position
        try:
            content, end = decoder.raw_decode(text, position)
        except json.JSONDecodeError as error:
            raise JsonError(f"is not valid JSON: {error.msg[:1].lower()}{error.msg[1:]}", error.lineno) from None
        except RecursionError:
            raise JsonError(f"is nested too deeply (more than {MAX_DEPTH} levels)", line) from None
        except ValueError as error:
            raise JsonError(str(error), line) from None
        yield JsonValue(content, list(_duplicate_key_locations(content, twice)) if twice else [], line)
        position = _skip_space(text, end)


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


def _integer(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError("contains a number that is too long")
    return int(text)


def _no_constant(text: str) -> Any:
    raise ValueError(f"contains {text}, which is not a JSON number")


def _duplicate_key_locations(content: Any, twice: dict[int, list[str]]) -> Iterator[Loc]:
    stack: list[tuple[Loc, Any]] = [((), content)]
    while stack:
        loc, value = stack.pop()
        if isinstance(value, dict):
            yield from ((*loc, key) for key in twice.get(id(value), ()))
            stack += [((*loc, key), entry) for key, entry in value.items()]
        elif isinstance(value, list):
            stack += [((*loc, i), entry) for i, entry in enumerate(value)]


SUFFIXES = (".yaml", ".yml", ".json")
MAX_BYTES = 64 * 2**20
"""Maximum size of a file."""
MAX_DOCUMENTS = 250_000
"""Maximum documents of a file; separators without anything between them count, too."""

_SEPARATOR = re.compile(r"^---(?=[ \t\r\n]|\Z)", re.MULTILINE)
_EMPTY_LINES = re.compile(r"(?:[ \t]*+(?:#[^\n]*+)?(?:\r?\n|\Z)|%[^\n]*+(?:\n|\Z)|\.\.\.[ \t]*+(?:\r?\n|\Z))*+")
"""Lines without content. Possessive, because backtracking would keep a state for each line."""
_STEP = re.compile(r"\[([^\]]*)\]|([^.\[\]]+)")


@dataclass(frozen=True, slots=True)
class _SourceText:
    """The location of a document's text, to find lines in it later."""

    text: str
    first_line: int
    number: int
    within: Loc = ()


@dataclass(frozen=True, slots=True)
class Document:
    """The content of one object. ``source``: such as "fleet.yaml, document 2" or "list.json, document 1, item 3"."""

    content: dict[str, Any]
    source: str
    text: _SourceText | None = field(default=None, repr=False, compare=False)

    def place(self, problem: Problem) -> Problem:
        """The problem of this document with its source, and its line if that is known."""
        line = self._line(problem.path)
        return replace(problem, source=self.source if line is None else f"{self.source}, line {line}")

    def _line(self, path: str) -> int | None:
        if self.text is None:
            return None
        lines = line_numbers(self.text.text, self.text.number)
        steps = (*(str(step) for step in self.text.within), *(a or b for a, b in _STEP.findall(path)))
        for end in range(len(steps), 0, -1):
            if (line := lines.get(steps[:end])) is not None:
                return self.text.first_line + line - 1
        return self.text.first_line + min(lines.values()) - 1 if lines else None


@dataclass(slots=True)
class Manifests:
    """The documents in the order of their files, and a problem for everything that could not be read."""

    documents: list[Document] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def load(paths: Iterable[str | Path], stdin: IO[str] | IO[bytes] | None = None, *, recursive: bool = True) -> Manifests:
    """Read files, folders (in the order of names) and "-" for stdin. Never raises for their content.

    In folders, it reads only names that end in .yaml, .yml or .json and do not start with a dot. ``recursive``:
    also read subfolders; otherwise a warning names them.
    """
    manifests = Manifests()
    read: set[tuple[int, int]] = set()
    for path in paths:
        if str(path) == "-":
            _load_bytes(_read_stream(stdin), "stdin", manifests)
            continue
        for file, source in _files(Path(path), manifests.problems, recursive=recursive):
            _load_file(file, source, manifests, read)
    return manifests


def load_text(text: str, source: str = "text") -> Manifests:
    """Read manifests from memory."""
    manifests = Manifests()
    _load_bytes(text.encode("utf-8", "surrogatepass"), source, manifests)
    return manifests


# -- files -----------------------------------------------------------------------------------------------------------


def _files(path: Path, problems: list[Problem], *, recursive: bool) -> Iterator[tuple[Path, str]]:
    try:
        is_folder = stat.S_ISDIR(path.stat().st_mode)
    except (OSError, ValueError) as error:
        problems.append(Problem(_error_reason(error), source=str(path)))
        return
    if not is_folder:
        yield path, str(path)
        return
    before = len(problems)
    count = 0
    inner: list[str] | None = None if recursive else []
    for file in _walk(path, (), problems, inner):
        count += 1
        yield file, str(file)
    unread = f"subfolders are not read without -R: {_format_names(inner)}" if inner else ""
    if not count and len(problems) == before:
        why = f"contains no manifests (files that end in {', '.join(SUFFIXES)})"
        problems.append(Problem(f"{why}; {unread}" if unread else why, source=str(path)))
    elif unread:
        problems.append(Problem(unread, source=str(path), severity="warning"))


def _format_names(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _walk(
    folder: Path, above: tuple[tuple[int, int], ...], problems: list[Problem], inner: list[str] | None
) -> Iterator[Path]:
    """The files of a folder. ``inner`` None: also those of subfolders; otherwise it receives the subfolders' names."""
    try:
        status = folder.stat()
        identity = (status.st_dev, status.st_ino)
        if identity in above:
            problems.append(Problem("is a link to a parent folder, skipped", source=str(folder), severity="warning"))
            return
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        problems.append(Problem(_error_reason(error), source=str(folder)))
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        path = folder / entry.name
        try:
            mode = path.stat().st_mode
        except OSError as error:
            if entry.name.endswith(SUFFIXES):
                problems.append(Problem(_error_reason(error), source=str(path)))
            continue
        if stat.S_ISDIR(mode) and inner is not None:
            inner.append(entry.name)
        elif stat.S_ISDIR(mode):
            yield from _walk(path, (*above, identity), problems, None)
        elif not entry.name.endswith(SUFFIXES):
            continue
        elif stat.S_ISREG(mode):
            yield path
        else:
            problems.append(Problem("is not a regular file, skipped", source=str(path)))


def _load_file(path: Path, source: str, manifests: Manifests, read: set[tuple[int, int]]) -> None:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            identity = (status.st_dev, status.st_ino)
            if stat.S_ISREG(status.st_mode) and identity in read:
                return
            read.add(identity)
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        manifests.problems.append(Problem(_error_reason(error), source=source))
        return
    _load_bytes(data, source, manifests)


def _read_stream(stream: IO[str] | IO[bytes] | None) -> bytes:
    data = (sys.stdin.buffer if stream is None else stream).read(MAX_BYTES + 1)
    return data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data


def _error_reason(error: OSError | ValueError) -> str:
    match error:
        case FileNotFoundError():
            return "no such file or folder"
        case PermissionError():
            return "cannot be read: permission denied"
        case OSError() if error.strerror:
            return f"cannot be read: {error.strerror}"
    return f"cannot be read: {error}"


def _load_bytes(data: bytes, source: str, manifests: Manifests) -> None:
    if len(data) > MAX_BYTES:
        manifests.problems.append(Problem(f"is larger than {MAX_BYTES // 2**20} MiB; split it", source=source))
        return
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"is not UTF-8 text (byte {data[error.start]:#04x})"
        manifests.problems.append(Problem(message, source=f"{source}, line {line}"))
        return
    _load_text(text, source, manifests)


# -- documents -------------------------------------------------------------------------------------------------------


def _load_text(text: str, source: str, manifests: Manifests) -> None:
    before = len(manifests.documents), len(manifests.problems)
    number = 0
    try:
        for part, first_line in _parts(text):
            number += _load_part(part, first_line, source, number, manifests)
    except _TooMany:
        message = f"contains more than {MAX_DOCUMENTS} documents; the rest is left out: split it"
        manifests.problems.append(Problem(message, source=source))
    if before == (len(manifests.documents), len(manifests.problems)):
        manifests.problems.append(Problem("contains no documents", source=source, severity="warning"))


class _TooMany(Exception):
    """A file has more than MAX_DOCUMENTS documents."""


def _parts(text: str) -> Iterator[tuple[str, int]]:
    """The text between document separators, with the line in which it starts; parts without content are left out.

    Raises _TooMany after MAX_DOCUMENTS.
    """
    starts = [0, *(match.start() for match in islice(_SEPARATOR.finditer(text), MAX_DOCUMENTS + 1))]
    line = 1
    for number, (start, end) in enumerate(zip(starts, [*starts[1:], len(text)], strict=True)):
        if number > MAX_DOCUMENTS:
            raise _TooMany
        part = text[start:end]
        body = _SEPARATOR.sub("", part, count=1)
        blank = _EMPTY_LINES.match(body)
        if blank is None or blank.end() < len(body):
            yield part, line
        line += part.count("\n")


def _load_part(part: str, first_line: int, source: str, number: int, manifests: Manifests) -> int:
    """Read one part; returns the number of documents in it."""
    body = _SEPARATOR.sub("   ", part, count=1)
    if body.lstrip()[:1] in ("{", "["):
        values, error = _json_values(body)
        if error is None or source.endswith(".json"):
            return _load_json(values, error, first_line, source, number, manifests)
    return _load_yaml(part, first_line, source, number, manifests)


def _load_yaml(part: str, first_line: int, source: str, number: int, manifests: Manifests) -> int:
    count = 0
    try:
        for document in read_yaml(part, first_line):
            if number + count >= MAX_DOCUMENTS:
                raise _TooMany
            here = f"{source}, document {number + count + 1}"
            for note in document.notes:
                manifests.problems.append(
                    Problem(
                        note.message,
                        format_path(RAW, note.loc),
                        source=f"{here}, line {first_line + note.line - 1}",
                        severity="error" if note.is_error else "warning",
                    )
                )
            if not any(note.is_error for note in document.notes):
                _add(document.content, here, _SourceText(part, first_line, count), manifests)
            count += 1
    except YamlError as error:
        here = f"{source}, document {number + count + 1}"
        if error.line is not None:
            here += f", line {first_line + error.line - 1}"
        manifests.problems.append(Problem(error.message, format_path(RAW, error.loc), source=here))
        count += 1
    return count


def _json_values(text: str) -> tuple[list[JsonValue], JsonError | None]:
    """The values before the first error, and the error. It is unclear where JSON continues after an error."""
    values: list[JsonValue] = []
    try:
        for value in islice(read_json(text), MAX_DOCUMENTS + 1):
            values.append(value)
    except JsonError as error:
        return values, error
    return values, None


def _load_json(
    values: list[JsonValue], error: JsonError | None, first_line: int, source: str, number: int, manifests: Manifests
) -> int:
    for i, value in enumerate(values, start=1):
        if number + i > MAX_DOCUMENTS:
            raise _TooMany
        here = f"{source}, document {number + i}"
        for loc in value.twice:
            line = first_line + value.line - 1
            manifests.problems.append(Problem("appears twice", format_path(RAW, loc), source=f"{here}, line {line}"))
        if not value.twice:
            _add(value.content, here, None, manifests)
    if error is None:
        return len(values)
    here = f"{source}, document {number + len(values) + 1}, line {first_line + error.line - 1}"
    manifests.problems.append(Problem(error.message, source=here))
    return len(values) + 1


def _add(content: Any, source: str, text: _SourceText | None, manifests: Manifests) -> None:
    """Add one document, or the items of a list of objects."""
    if content is None:
        return
    if not is_object_list(content):
        _add_object(content, source, text, manifests)
        return
    for i, item in enumerate(content["items"]):
        within = None if text is None else replace(text, within=("items", i))
        _add_object(own_object(item, content), f"{source}, item {i + 1}", within, manifests)


def _add_object(content: Any, source: str, text: _SourceText | None, manifests: Manifests) -> None:
    if isinstance(content, dict):
        manifests.documents.append(Document(content, source, text))
    else:
        message = "is not an object: a manifest is a map with apiVersion, kind and metadata"
        if isinstance(content, list):
            message = "is a list: separate the objects with ---, or wrap them in {kind: List, items: […]}"
        manifests.problems.append(Problem(message, source=source))
