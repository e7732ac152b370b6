"""Manifests that a verb is given with -f, and what is wrong with them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from devalloc.cli.output import note, working

if TYPE_CHECKING:
    from devalloc.api.manifests import Document
    from devalloc.api.problems import Problem


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
        return found[number].place(problem) if number < len(found) else problem


def read(files: Sequence[str], namespace: str | None = None, *, expressions: bool = False) -> Documents:
    """Read and decode manifests, and show every problem on stderr.

    With a namespace, objects of namespaced kinds that name none get that one. With ``expressions``, an object with an
    expression that does not compile is not good either (the solver finds those by itself), nor one with an annotation
    that nobody could scale a machine by.
    """
    from devalloc.api.decode import decode
    from devalloc.api.manifests import load
    from devalloc.cli.annotations import wrong_annotations
    from devalloc.cli.expressions import wrong_expressions

    with working("reading manifests"):
        manifests = load(files, stdin=sys.stdin.buffer if "-" in files else None)
        documents = [_placed(document, namespace) for document in manifests.documents]
        problems, good = list(manifests.problems), []
        for document in documents:
            decoded = decode(document.content)
            problems += [document.place(problem) for problem in decoded.problems]
            if decoded.object is None:
                continue
            valid = replace(document, content=decoded.object.to_manifest())
            wrong = [*wrong_expressions(valid), *wrong_annotations(valid)] if expressions else []
            problems += wrong
            if not any(problem.is_error for problem in wrong):
                good.append(valid)
    show(problems)
    return Documents(documents, good, problems)


def is_about(problem: Problem, content: Any) -> bool:
    """Whether a problem is about an object."""
    metadata = content.get("metadata") if isinstance(content, dict) else None
    if not isinstance(metadata, dict) or content.get("kind") != problem.kind or metadata.get("name") != problem.name:
        return False
    return problem.namespace is None or (metadata.get("namespace") or "default") == problem.namespace


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
