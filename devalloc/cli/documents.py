"""Manifests that a verb is given with -f, and what is wrong with them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from devalloc.cli.output import note, working
from devalloc.cli.verb import BadInput

if TYPE_CHECKING:
    from devalloc.api.manifests import Document
    from devalloc.api.problems import Problem
    from devalloc.cli.unread import Verb


@dataclass(frozen=True, slots=True)
class Documents:
    """What was read. The problems were shown already."""

    all: Sequence[Document]
    good: Sequence[Document]
    """Those that are valid objects by themselves, as devalloc writes them: canonical amounts, known spellings."""
    problems: Sequence[Problem]

    @property
    def exit_code(self) -> int:
        """2 when something was left out, else 0."""
        return 2 if any(problem.is_error for problem in self.problems) else 0

    def place(self, problem: Problem, number: int = 0) -> Problem:
        """The problem with the document of its object; ``number``: of several objects of that name, which one."""
        found = [document for document in self.all if is_about(problem, document.content)]
        if problem.group is None and len({_group_of(document) for document in found}) > 1:
            # Where both dialects meet, a problem that names no group is of our own.
            found = [document for document in found if not _is_foreign(document)]
        return found[number].place(problem) if number < len(found) else problem

    def is_about(self, problem: Problem) -> bool:
        """Whether a problem is about one of the documents."""
        return any(is_about(problem, document.content) for document in self.all)


def read(files: Sequence[str], namespace: str | None = None, *, verb: Verb | None = None) -> Documents:
    """Read and decode manifests, and show every problem on stderr.

    With a namespace, objects of namespaced kinds that name none get that one. With ``verb``, what is to be done with
    the objects, one with an expression that does not compile is not good either, nor one with an annotation that nobody
    could scale a machine by, nor a quota with an amount that is none, nor two of one name; and kinds that devalloc does
    nothing with are named.
    """
    from devalloc.api.decode import decode
    from devalloc.api.manifests import load
    from devalloc.cli.annotations import wrong_annotations, wrong_quotas
    from devalloc.cli.expressions import wrong_expressions
    from devalloc.cli.options import is_recursive

    with working("reading manifests"):
        for file in files:
            if "://" in file:
                command = click.get_current_context().command_path
                raise BadInput(f"{file}: manifests are not fetched; write: curl -sSL {file} | {command} -f -")
        manifests = load(files, stdin=sys.stdin.buffer if "-" in files else None, recursive=is_recursive())
        documents = [_placed(document, namespace) for document in manifests.documents]
        problems, good = list(manifests.problems), []
        for document in documents:
            decoded = decode(document.content)
            problems += [document.place(problem) for problem in decoded.problems]
            if decoded.object is None:
                continue
            valid = replace(document, content=decoded.object.to_manifest())
            wrong = [*wrong_expressions(valid), *wrong_annotations(valid), *wrong_quotas(valid)] if verb else []
            problems += wrong
            if not any(problem.is_error for problem in wrong):
                good.append(valid)
    if verb in ("apply", "validate"):
        twice = _twice(good, verb)
        problems += twice.values()
        good = [document for document in good if document.source not in twice]
    show(problems)
    if verb in ("validate", "solve"):
        from devalloc.cli.unread import unread

        for line in unread(good, verb):
            note(line)
    return Documents(documents, good, problems)


def _twice(documents: Sequence[Document], verb: Verb) -> dict[str, Problem]:
    """By source: documents of several objects with one name, of which nobody can tell which is meant."""
    from devalloc.api.problems import Problem
    from devalloc.store.key import Key

    sources: dict[Key, list[Document]] = {}
    for document in documents:
        sources.setdefault(Key.of(document.content), []).append(document)
    twice = {}
    for key, same in sources.items():
        # On different nodes pools may have one name (S2), and in a store they may not.
        if len(same) == 1 or (key.kind == "DevicePool" and verb != "apply"):
            continue
        message = f"{len(same)} objects are named {key}; rename all but one, or leave it out"
        for document in same:
            problem = Problem(message, "metadata.name", document.content["kind"], key.namespace, key.name)
            twice[document.source] = document.place(problem)
    return twice


def is_about(problem: Problem, content: Any) -> bool:
    """Whether a problem is about an object."""
    metadata = content.get("metadata") if isinstance(content, dict) else None
    if not isinstance(metadata, dict) or content.get("kind") != problem.kind or metadata.get("name") != problem.name:
        return False
    if problem.group is not None and str(content.get("apiVersion")).rpartition("/")[0] != problem.group:
        return False
    return problem.namespace is None or (metadata.get("namespace") or "default") == problem.namespace


def _group_of(document: Document) -> str:
    content: Any = document.content
    return str(content.get("apiVersion")).rpartition("/")[0] if isinstance(content, dict) else ""


def _is_foreign(document: Document) -> bool:
    from devalloc.controller.foreign import is_foreign

    return is_foreign(document.content)


def show(problems: Iterable[Problem]) -> None:
    """Print problems on stderr, one line each."""
    for problem in problems:
        note(f"error: {problem}" if problem.is_error else str(problem))


def _placed(document: Document, namespace: str | None) -> Document:
    content: Any = document.content
    if namespace is None or not isinstance(content, dict) or not isinstance(content.get("metadata"), dict):
        return document
    from devalloc.api.kinds import KINDS

    kind = KINDS.get(str(content.get("kind")))
    if content["metadata"].get("namespace") or (kind is not None and not kind.namespaced):
        return document
    metadata = {**content["metadata"], "namespace": namespace}
    return replace(document, content={**content, "metadata": metadata})
