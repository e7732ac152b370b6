"""The manifests that a verb gets with -f, and their problems."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from devalloc.cli.command import BadInput, is_recursive
from devalloc.cli.manifest_checks import annotation_problems, expression_problems, quota_problems
from devalloc.cli.render.output import print_note, show_spinner

if TYPE_CHECKING:
    from devalloc.api.manifests import Document
    from devalloc.api.problems import Problem
    from devalloc.cli.ignored_objects import ManifestVerb


@dataclass(frozen=True, slots=True)
class ManifestDocuments:
    """The documents that were read. Their problems were already shown."""

    all: Sequence[Document]
    good: Sequence[Document]
    """The documents that are valid objects, in devalloc's own spelling: canonical amounts, known field names."""
    problems: Sequence[Problem]

    @property
    def exit_code(self) -> int:
        """2 if something was left out, else 0."""
        return 2 if any(problem.is_error for problem in self.problems) else 0

    def place(self, problem: Problem, number: int = 0) -> Problem:
        """The problem with its object's document; ``number``: which of several objects of that name."""
        matches = [document for document in self.all if is_about(problem, document.content)]
        if problem.group is None and len({_group_of(document) for document in matches}) > 1:
            # If both dialects are read, a problem without a group belongs to our own.
            matches = [document for document in matches if not _is_foreign(document)]
        return matches[number].place(problem) if number < len(matches) else problem

    def is_about(self, problem: Problem) -> bool:
        """Whether a problem is about one of the documents."""
        return any(is_about(problem, document.content) for document in self.all)


def read_manifests(
    files: Sequence[str], namespace: str | None = None, *, verb: ManifestVerb | None = None
) -> ManifestDocuments:
    """Read and decode manifests, and show every problem on stderr.

    With a namespace, objects of namespaced kinds that name none get that one. With ``verb`` (what will be done with the
    objects), these are errors, too: expressions that do not compile, invalid scaling annotations, invalid quota
    amounts, and several objects of one name; and a warning names kinds that devalloc does not use.
    """
    from devalloc.api.decode import decode
    from devalloc.api.manifests import load

    with show_spinner("reading manifests"):
        for file in files:
            if "://" in file:
                command = click.get_current_context().command_path
                raise BadInput(f"{file}: devalloc does not download manifests; use: curl -sSL {file} | {command} -f -")
        manifests = load(files, stdin=sys.stdin.buffer if "-" in files else None, recursive=is_recursive())
        documents = [_with_namespace(document, namespace) for document in manifests.documents]
        problems, good = list(manifests.problems), []
        for document in documents:
            decoded = decode(document.content)
            problems += [document.place(problem) for problem in decoded.problems]
            if decoded.object is None:
                continue
            valid = replace(document, content=decoded.object.to_manifest())
            wrong = [*expression_problems(valid), *annotation_problems(valid), *quota_problems(valid)] if verb else []
            problems += wrong
            if not any(problem.is_error for problem in wrong):
                good.append(valid)
    if verb in ("apply", "validate"):
        twice = _duplicate_problems(good, verb)
        problems += twice.values()
        good = [document for document in good if document.source not in twice]
    print_problems(problems)
    if verb in ("validate", "solve"):
        from devalloc.cli.ignored_objects import ignored_warnings

        for line in ignored_warnings(good, verb):
            print_note(line)
    return ManifestDocuments(documents, good, problems)


def _duplicate_problems(documents: Sequence[Document], verb: ManifestVerb) -> dict[str, Problem]:
    """By source: documents of objects that share one name, so that it is unclear which one is meant."""
    from devalloc.api.problems import Problem
    from devalloc.store.errors import Key

    sources: dict[Key, list[Document]] = {}
    for document in documents:
        sources.setdefault(Key.of(document.content), []).append(document)
    twice = {}
    for key, same in sources.items():
        # Pools on different nodes may share a name (S2), but not in a store.
        if len(same) == 1 or (key.kind == "DevicePool" and verb != "apply"):
            continue
        message = f"{len(same)} objects are named {key}; rename or remove all but one"
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
    from devalloc.controller.reconcile.claims import is_foreign

    return is_foreign(document.content)


def print_problems(problems: Iterable[Problem]) -> None:
    """Print problems on stderr, one line each."""
    for problem in problems:
        print_note(f"error: {problem}" if problem.is_error else str(problem))


def _with_namespace(document: Document, namespace: str | None) -> Document:
    content: Any = document.content
    if namespace is None or not isinstance(content, dict) or not isinstance(content.get("metadata"), dict):
        return document
    from devalloc.api.kinds import KINDS

    kind = KINDS.get(str(content.get("kind")))
    if content["metadata"].get("namespace") or (kind is not None and not kind.namespaced):
        return document
    metadata = {**content["metadata"], "namespace": namespace}
    return replace(document, content={**content, "metadata": metadata})


def print_answer_problems(answer: dict[str, Any], documents: ManifestDocuments) -> None:
    """Print the solver's problems on stderr, each with its document; skip those that were already shown."""
    from devalloc.api.problems import Problem

    seen = {(problem.kind, problem.name, problem.path, problem.message) for problem in documents.problems}
    met: Counter[Problem] = Counter()
    for entry in answer["problems"]:
        if (entry.get("kind"), entry.get("name"), entry.get("path", ""), entry["message"]) in seen:
            continue
        problem = Problem(**entry)
        placed = documents.place(problem, met[problem])
        if not met[problem] or placed.source:
            print_note(f"error: {placed}" if placed.is_error else str(placed))
        met[problem] += 1
