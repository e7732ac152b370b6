"""Manifests in files, folders and streams: what documents there are, and what is wrong with the rest.

A document that cannot be read costs nothing but itself.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import IO, Any

from devalloc.api.jsontext import JsonError, JsonValue, read_json
from devalloc.api.problems import Problem
from devalloc.api.shapes import RAW, Loc, path_of
from devalloc.api.yamldump import dump_yaml as dump_yaml
from devalloc.api.yamltext import YamlError, lines_of, read_yaml

SUFFIXES = (".yaml", ".yml", ".json")
MAX_BYTES = 64 * 2**20
"""The largest file that is read."""
MAX_DOCUMENTS = 250_000
"""Most documents of a file; separators without anything between them count too."""

_SEPARATOR = re.compile(r"^---(?=[ \t\r\n]|\Z)", re.MULTILINE)
_NOTHING = re.compile(r"(?:[ \t]*+(?:#[^\n]*+)?(?:\r?\n|\Z)|%[^\n]*+(?:\n|\Z)|\.\.\.[ \t]*+(?:\r?\n|\Z))*+")
"""Lines without content. Possessive: to be able to go back, a match would keep a state for each of them."""
_STEP = re.compile(r"\[([^\]]*)\]|([^.\[\]]+)")


@dataclass(frozen=True, slots=True)
class _Text:
    """Where a document's text is, to find lines in it later."""

    text: str
    first_line: int
    number: int
    within: Loc = ()


@dataclass(frozen=True, slots=True)
class Document:
    """The content of one object. ``source`` is such as "fleet.yaml, document 2" or "list.json, document 1, item 3"."""

    content: dict[str, Any]
    source: str
    text: _Text | None = field(default=None, repr=False, compare=False)

    def place(self, problem: Problem) -> Problem:
        """The problem of this document with its source, and its line where that can be told."""
        line = self._line(problem.path)
        return replace(problem, source=self.source if line is None else f"{self.source}, line {line}")

    def _line(self, path: str) -> int | None:
        if self.text is None:
            return None
        lines = lines_of(self.text.text, self.text.number)
        steps = (*(str(step) for step in self.text.within), *(a or b for a, b in _STEP.findall(path)))
        for end in range(len(steps), 0, -1):
            if (line := lines.get(steps[:end])) is not None:
                return self.text.first_line + line - 1
        return self.text.first_line + min(lines.values()) - 1 if lines else None


@dataclass(slots=True)
class Manifests:
    """What was read: documents in the order of their files, and a problem for everything that could not be."""

    documents: list[Document] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def load(paths: Iterable[str | Path], stdin: IO[str] | IO[bytes] | None = None, *, recursive: bool = True) -> Manifests:
    """Read files, folders (in the order of names) and "-" for stdin. Never raises for what is in them.

    In folders only names that end in .yaml, .yml or .json are read, and names that start with a dot are not.
    ``recursive``: folders in folders too; otherwise a warning names the folders that have some.
    """
    found = Manifests()
    read: set[tuple[int, int]] = set()
    for path in paths:
        if str(path) == "-":
            _load_bytes(_read_stream(stdin), "stdin", found)
            continue
        for file, source in _files(Path(path), found.problems, recursive=recursive):
            _load_file(file, source, found, read)
    return found


def load_text(text: str, source: str = "text") -> Manifests:
    """Read manifests that are in memory already."""
    found = Manifests()
    _load_bytes(text.encode("utf-8", "surrogatepass"), source, found)
    return found


# -- files -----------------------------------------------------------------------------------------------------------


def _files(path: Path, problems: list[Problem], *, recursive: bool) -> Iterator[tuple[Path, str]]:
    try:
        is_folder = stat.S_ISDIR(path.stat().st_mode)
    except (OSError, ValueError) as error:
        problems.append(Problem(_why(error), source=str(path)))
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
    unread = f"folders in it are not read without -R: {_listed(inner)}" if inner else ""
    if not count and len(problems) == before:
        why = f"has no manifests (files that end in {', '.join(SUFFIXES)})"
        problems.append(Problem(f"{why}; {unread}" if unread else why, source=str(path)))
    elif unread:
        problems.append(Problem(unread, source=str(path), severity="warning"))


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _walk(
    folder: Path, above: tuple[tuple[int, int], ...], problems: list[Problem], inner: list[str] | None
) -> Iterator[Path]:
    """The files of a folder. ``inner`` None: those of folders in it too; otherwise the names of these go there."""
    try:
        status = folder.stat()
        identity = (status.st_dev, status.st_ino)
        if identity in above:
            problems.append(
                Problem("is a link back to a folder above it, skipped", source=str(folder), severity="warning")
            )
            return
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        problems.append(Problem(_why(error), source=str(folder)))
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        path = folder / entry.name
        try:
            mode = path.stat().st_mode
        except OSError as error:
            if entry.name.endswith(SUFFIXES):
                problems.append(Problem(_why(error), source=str(path)))
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
            problems.append(Problem("is no regular file, skipped", source=str(path)))


def _load_file(path: Path, source: str, found: Manifests, read: set[tuple[int, int]]) -> None:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            identity = (status.st_dev, status.st_ino)
            if stat.S_ISREG(status.st_mode) and identity in read:
                return
            read.add(identity)
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        found.problems.append(Problem(_why(error), source=source))
        return
    _load_bytes(data, source, found)


def _read_stream(stream: IO[str] | IO[bytes] | None) -> bytes:
    data = (sys.stdin.buffer if stream is None else stream).read(MAX_BYTES + 1)
    return data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data


def _why(error: OSError | ValueError) -> str:
    match error:
        case FileNotFoundError():
            return "there is no such file or folder"
        case PermissionError():
            return "may not be read (permission denied)"
        case OSError() if error.strerror:
            return f"cannot be read: {error.strerror}"
    return f"cannot be read: {error}"


def _load_bytes(data: bytes, source: str, found: Manifests) -> None:
    if len(data) > MAX_BYTES:
        found.problems.append(Problem(f"is larger than {MAX_BYTES // 2**20} MiB; split it", source=source))
        return
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"is not UTF-8 text (byte {data[error.start]:#04x})"
        found.problems.append(Problem(message, source=f"{source}, line {line}"))
        return
    _load_text(text, source, found)


# -- documents -------------------------------------------------------------------------------------------------------


def _load_text(text: str, source: str, found: Manifests) -> None:
    before = len(found.documents), len(found.problems)
    number = 0
    try:
        for part, first_line in _parts(text):
            number += _load_part(part, first_line, source, number, found)
    except _TooMany:
        told = f"has more than {MAX_DOCUMENTS} documents; the rest is left out: split it"
        found.problems.append(Problem(told, source=source))
    if before == (len(found.documents), len(found.problems)):
        found.problems.append(Problem("has no documents", source=source, severity="warning"))


class _TooMany(Exception):
    """There are more documents than MAX_DOCUMENTS."""


def _parts(text: str) -> Iterator[tuple[str, int]]:
    """The text between document separators, with the line it starts in; parts that say nothing are left out.

    Raises _TooMany after so many.
    """
    starts = [0, *(match.start() for match in islice(_SEPARATOR.finditer(text), MAX_DOCUMENTS + 1))]
    line = 1
    for number, (start, end) in enumerate(zip(starts, [*starts[1:], len(text)], strict=True)):
        if number > MAX_DOCUMENTS:
            raise _TooMany
        part = text[start:end]
        body = _SEPARATOR.sub("", part, count=1)
        blank = _NOTHING.match(body)
        if blank is None or blank.end() < len(body):
            yield part, line
        line += part.count("\n")


def _load_part(part: str, first_line: int, source: str, number: int, found: Manifests) -> int:
    """Read one part; the number of documents in it."""
    body = _SEPARATOR.sub("   ", part, count=1)
    if body.lstrip()[:1] in ("{", "["):
        values, error = _json_values(body)
        if error is None or source.endswith(".json"):
            return _load_json(values, error, first_line, source, number, found)
    return _load_yaml(part, first_line, source, number, found)


def _load_yaml(part: str, first_line: int, source: str, number: int, found: Manifests) -> int:
    count = 0
    try:
        for document in read_yaml(part, first_line):
            if number + count >= MAX_DOCUMENTS:
                raise _TooMany
            here = f"{source}, document {number + count + 1}"
            for note in document.notes:
                found.problems.append(
                    Problem(
                        note.message,
                        path_of(RAW, note.loc),
                        source=f"{here}, line {first_line + note.line - 1}",
                        severity="error" if note.is_error else "warning",
                    )
                )
            if not any(note.is_error for note in document.notes):
                _add(document.content, here, _Text(part, first_line, count), found)
            count += 1
    except YamlError as error:
        here = f"{source}, document {number + count + 1}"
        if error.line is not None:
            here += f", line {first_line + error.line - 1}"
        found.problems.append(Problem(error.message, path_of(RAW, error.loc), source=here))
        count += 1
    return count


def _json_values(text: str) -> tuple[list[JsonValue], JsonError | None]:
    """The values before the first error, and the error: where JSON goes on after it cannot be told."""
    values: list[JsonValue] = []
    try:
        for value in islice(read_json(text), MAX_DOCUMENTS + 1):
            values.append(value)
    except JsonError as error:
        return values, error
    return values, None


def _load_json(
    values: list[JsonValue], error: JsonError | None, first_line: int, source: str, number: int, found: Manifests
) -> int:
    for i, value in enumerate(values, start=1):
        if number + i > MAX_DOCUMENTS:
            raise _TooMany
        here = f"{source}, document {number + i}"
        for loc in value.twice:
            line = first_line + value.line - 1
            found.problems.append(Problem("is there twice", path_of(RAW, loc), source=f"{here}, line {line}"))
        if not value.twice:
            _add(value.content, here, None, found)
    if error is None:
        return len(values)
    here = f"{source}, document {number + len(values) + 1}, line {first_line + error.line - 1}"
    found.problems.append(Problem(error.message, source=here))
    return len(values) + 1


def _add(content: Any, source: str, text: _Text | None, found: Manifests) -> None:
    """One document, or the items of a list of objects."""
    if content is None:
        return
    if not _is_list(content):
        _add_object(content, source, text, found)
        return
    for i, item in enumerate(content["items"]):
        within = None if text is None else replace(text, within=("items", i))
        _add_object(item, f"{source}, item {i + 1}", within, found)


def _add_object(content: Any, source: str, text: _Text | None, found: Manifests) -> None:
    if isinstance(content, dict):
        found.documents.append(Document(content, source, text))
    else:
        message = "is no object: a manifest is a map with apiVersion, kind and metadata"
        if isinstance(content, list):
            message = "is a list: separate the objects with ---, or wrap them as {kind: List, items: […]}"
        found.problems.append(Problem(message, source=source))


def _is_list(content: Any) -> bool:
    if not isinstance(content, dict) or not isinstance(content.get("items"), list):
        return False
    kind = content.get("kind")
    return kind is None or (isinstance(kind, str) and kind.endswith("List"))
