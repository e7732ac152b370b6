"""The manifests that a verb gets with -f, and their problems.

Decoding finds most problems. This module also checks annotations of peers, amounts of quotas and CEL expressions
that never compile, and warns about objects that devalloc ignores.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from devalloc.api import virtual_machine
from devalloc.api.cordon import NODE_KIND
from devalloc.api.decode import decode
from devalloc.api.kinds import API_KINDS
from devalloc.api.problems import Problem
from devalloc.cli.command import BadInput, is_recursive
from devalloc.cli.example_files import example_folders
from devalloc.cli.render.output import show_spinner
from devalloc.cli.terminal import print_note
from devalloc.controller.reconcile.stored_claims import ignored_reason, is_foreign, is_left_aside
from devalloc.scaling.config import ANNOTATION, ANNOTATION_PATH, read_config_annotation
from devalloc.scaling.resources import ANNOTATION as BOUNDS
from devalloc.store.errors import Key
from devalloc_solver.dialects.api_groups import RESOURCE_CLAIMS, api_group_of

if TYPE_CHECKING:
    from devalloc.api.manifests import Document
    from devalloc_solver.pipeline.quota import ClassNames

Object = dict[str, Any]
ManifestVerb = Literal["apply", "validate", "solve"]

_MAX_NAMES = 3
"""How many names of objects a line contains."""


def ignored_warnings(documents: Sequence[Document], verb: ManifestVerb, stored: Sequence[Object] = ()) -> Iterator[str]:
    """A warning for each kind that devalloc does not use. ``stored``: objects of the store to which they go."""
    contents = [document.content for document in documents]
    named: set[tuple[str, str]] | None = None
    is_dra = any(api_group_of(content) == RESOURCE_CLAIMS or is_pod_with_claims(content) for content in contents)
    has_pools = any(content["kind"] == "DevicePool" for content in contents)
    names: dict[tuple[str, str], list[str]] = {}
    for content in contents:
        names.setdefault((content["apiVersion"], content["kind"]), []).append(content["metadata"]["name"])
    for (api_version, kind), of_kind in names.items():
        group = api_version.rpartition("/")[0]
        about = f"warning: {kind} {_listed(of_kind)}"
        if is_foreign({"apiVersion": api_version, "kind": kind}):
            if group != RESOURCE_CLAIMS or (
                verb == "apply" and is_left_aside({"apiVersion": api_version, "kind": kind})
            ):
                yield f"{about}: {ignored_reason(group)}"
            continue
        if verb == "solve" and kind == "VirtualMachineReplicaSet":
            why = "the controller creates its machines, so they are not part of the answer"
            yield f"{about}: {why}; write a VirtualMachine with the spec of its template to place one"
            continue
        if _is_read(api_version, kind) or (verb != "apply" and is_dra and (verb == "solve" or not group)):
            continue  # Nodes and Pods go with ResourceClaims; of each object of other kinds their solver warns
        all_contents = (*contents, *stored)
        if (api_version, kind) == ("v1", NODE_KIND) and (
            any(api_group_of(one) == RESOURCE_CLAIMS for one in all_contents) if verb == "apply" else has_pools
        ):
            continue  # they say which slices reach them, and which pools give nothing new
        if named is None:
            named = {*_configs(all_contents)}
        if (api_version, kind) in named:
            continue
        is_built_in = "." not in group or group.endswith(".k8s.io")
        unless = "" if is_built_in else ", unless a class or a claim names the object in its configs"
        yield f"{about}: devalloc does not use this kind{unless}"


def is_pod_with_claims(content: Any) -> bool:
    """Whether it is a Pod that names claims or templates."""
    spec = content.get("spec") if isinstance(content, dict) and content.get("kind") == "Pod" else None
    return isinstance(spec, dict) and bool(spec.get("resourceClaims"))


def _is_read(api_version: str, kind: str) -> bool:
    return (kind in API_KINDS and API_KINDS[kind].api_version == api_version) or (
        api_version == "v1" and kind in ("Namespace", "ResourceQuota")
    )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MAX_NAMES])
    return shown if len(names) <= _MAX_NAMES else f"{shown} and {len(names) - _MAX_NAMES} more"


def _configs(objects: Iterable[Object]) -> Iterator[tuple[str, str]]:
    """The kinds that classes and claims name in their configs."""
    for obj in objects:
        spec = obj.get("spec")
        if obj.get("kind") not in ("DeviceClass", "DeviceClaim") or not isinstance(spec, dict):
            continue
        entries = [spec, *(spec.get("claims") or [])]
        for entry in [
            *entries,
            *(one for each in entries if isinstance(each, dict) for one in each.get("oneOf") or []),
        ]:
            for config in (entry.get("configs") or []) if isinstance(entry, dict) else []:
                if isinstance(config, dict):
                    yield str(config.get("apiVersion")), str(config.get("kind"))


def annotation_problems(document: Document) -> Iterator[Problem]:
    """Problems of a machine's annotations, and warnings about those that are ignored."""
    content, metadata = document.content, document.content["metadata"]
    annotations = metadata.get("annotations") or {}
    if content["kind"] != "VirtualMachine":
        return
    yield from map(document.place, virtual_machine.annotation_problems(content))
    here = document.place(Problem("", ANNOTATION_PATH, content["kind"], metadata.get("namespace"), metadata["name"]))
    if BOUNDS in annotations:
        message = "is ignored: set min and max in spec.cpu and spec.memory instead"
        yield replace(here, message=message, path=f"metadata.annotations[{BOUNDS}]", severity="warning")
    if (text := annotations.get(ANNOTATION)) is None:
        return
    if not content["spec"].get("scaling"):
        yield replace(here, message="is ignored: the machine has no spec.scaling", severity="warning")
    for problem in read_config_annotation(text, path=ANNOTATION_PATH).problems:
        yield replace(here, message=problem.message, path=problem.path, severity=problem.severity)


def quota_problems(document: Document, classes: ClassNames | None = None) -> Iterator[Problem]:
    """Problems of a ResourceQuota, such as a class that is not among ``classes``."""
    from devalloc_solver.pipeline import quota

    if quota.is_quota(document.content):
        names = quota.NO_CLASSES if classes is None else classes
        yield from (document.place(problem) for problem in quota.problems_of(document.content, names))


def quota_warnings(documents: ManifestDocuments, stored: Iterable[Object]) -> Iterator[Problem]:
    """What is wrong with quotas that only the classes beside them show: those of the manifests, and of the store."""
    classes = _class_names(documents.good, stored)
    for document in documents.good:
        yield from (one for one in quota_problems(document, classes) if one not in documents.problems)


def _class_names(documents: Iterable[Document], stored: Iterable[Object] = ()) -> ClassNames:
    from devalloc_solver.pipeline.quota import ClassNames

    return ClassNames.among([*(document.content for document in documents), *stored])


def resource_problems(document: Document) -> Iterator[Problem]:
    """Problems of an object of resource.k8s.io that the solver reads, with the feature gates that are on by default,
    and of a template of such objects."""
    if _group_of(document) != RESOURCE_CLAIMS:
        return
    from devalloc_solver.cel.kubernetes import CompileError, compile
    from devalloc_solver.dialects.resource_k8s.feature_gates import DEFAULT_GATES
    from devalloc_solver.dialects.resource_k8s.fields import FieldError
    from devalloc_solver.dialects.resource_k8s.manifests import KINDS, TEMPLATE, read_documents
    from devalloc_solver.dialects.resource_k8s.templates import check_template, claim_of_template

    content: dict[str, Any] = document.content
    kind, metadata, within = content.get("kind"), content["metadata"], ""
    if kind == TEMPLATE:
        try:
            check_template(content)
        except FieldError as error:
            yield document.place(Problem(error.message, error.path, kind, metadata.get("namespace"), metadata["name"]))
            return
        content, within = claim_of_template(content), "spec."
    elif kind not in KINDS:
        return
    cluster = read_documents([content], DEFAULT_GATES)
    yield from (document.place(problem) for problem in cluster.problems)
    selectors = [("spec", one.selectors) for one in cluster.classes.values()]
    requests = (request for claim in cluster.claims for request in claim.requests)
    selectors += [(one.path, one.selectors) for request in requests for one in request.subrequests]
    for path, texts in selectors:
        for number, text in enumerate(texts):
            try:
                compile(text, DEFAULT_GATES)
            except CompileError as error:
                where = f"{within}{path}.selectors[{number}].cel.expression"
                what = f"line {error.line}, column {error.column}: {error.message}"
                yield document.place(Problem(what, where, kind, metadata.get("namespace"), metadata["name"]))


def expression_problems(document: Document) -> Iterator[Problem]:
    """The CEL expressions that do not compile."""
    from devalloc_solver.cel.device_claims import CompileError, compile

    content: dict[str, Any] = document.content
    for path, text in _constraints(content):
        try:
            compile(text)
        except CompileError as error:
            metadata = content["metadata"]
            what = f"line {error.line}, column {error.column}: {error.message}"
            yield document.place(Problem(what, path, content["kind"], metadata.get("namespace"), metadata["name"]))


def _constraints(content: dict[str, Any]) -> Iterator[tuple[str, str]]:
    spec = content.get("spec") or {}
    if content["kind"] == "DeviceClass" and spec.get("constraints"):
        yield "spec.constraints", spec["constraints"]
    if content["kind"] != "DeviceClaim":
        return
    for i, entry in enumerate(spec["claims"]):
        details = [(f"spec.claims[{i}]", entry)]
        details += [(f"spec.claims[{i}].oneOf[{j}]", detail) for j, detail in enumerate(entry.get("oneOf") or [])]
        for path, detail in details:
            if detail.get("constraints"):
                yield f"{path}.constraints", detail["constraints"]


@dataclass(frozen=True, slots=True)
class ManifestDocuments:
    """The documents that were read. Their problems were already shown."""

    all: Sequence[Document]
    good: Sequence[Document]
    """The documents that are valid objects, in devalloc's own spelling: canonical amounts, known field names."""
    problems: Sequence[Problem]
    _named: dict[tuple[Any, Any], list[Document]] = field(default_factory=dict, init=False, repr=False, compare=False)
    """kind and name -> the documents of these"""

    def __post_init__(self) -> None:
        for document in self.all:
            content: Any = document.content
            metadata = content.get("metadata") if isinstance(content, dict) else None
            name = metadata.get("name") if isinstance(metadata, dict) else None
            if isinstance(name, str) and isinstance(content.get("kind"), str):
                self._named.setdefault((content["kind"], name), []).append(document)

    @property
    def exit_code(self) -> int:
        """2 if something was left out, else 0."""
        return 2 if any(problem.is_error for problem in self.problems) else 0

    def place(self, problem: Problem, number: int = 0) -> Problem:
        """The problem with its object's document; ``number``: which of several objects of that name."""
        named = self._named.get((problem.kind, problem.name), ())
        matches = [document for document in named if is_about(problem, document.content)]
        if problem.group is None and len({_group_of(document) for document in matches}) > 1:
            # If both dialects are read, a problem without a group belongs to our own.
            matches = [document for document in matches if not _is_foreign(document)]
        return matches[number].place(problem) if number < len(matches) else problem

    def is_about(self, problem: Problem) -> bool:
        """Whether a problem is about one of the documents."""
        return any(
            is_about(problem, document.content) for document in self._named.get((problem.kind, problem.name), ())
        )


def read_manifests(
    files: Sequence[str], namespace: str | None = None, *, verb: ManifestVerb | None = None
) -> ManifestDocuments:
    """Read and decode manifests, and show every problem on stderr.

    With a namespace, objects of namespaced kinds that name none get that one. With ``verb`` (what will be done with the
    objects), these are errors, too: expressions that do not compile, invalid scaling annotations, invalid quota
    amounts, and several objects of one name; and a warning names kinds that devalloc does not use. To apply and to
    validate, also what is wrong with objects of resource.k8s.io; the solver reports that itself.
    """
    from devalloc.api.manifests import load

    with show_spinner("reading manifests"):
        for file in files:
            if "://" in file:
                command = click.get_current_context().command_path
                raise BadInput(f"{file}: devalloc does not download manifests; use: curl -sSL {file} | {command} -f -")
            _print_example_hint(file)
        manifests = load(files, stdin=sys.stdin.buffer if "-" in files else None, recursive=is_recursive())
        documents = [_with_namespace(document, namespace) for document in manifests.documents]
        classes = _class_names(documents) if verb == "validate" else None
        problems, good = list(manifests.problems), []
        for document in documents:
            decoded = decode(document.content)
            problems += [document.place(problem) for problem in decoded.problems]
            if decoded.object is None:
                continue
            valid = replace(document, content=decoded.object.to_manifest())
            wrong = [*expression_problems(valid), *annotation_problems(valid)] if verb else []
            wrong += quota_problems(valid, classes) if verb else []
            is_template = valid.content.get("kind") == "ResourceClaimTemplate"
            wrong += resource_problems(valid) if verb in ("apply", "validate") or (verb and is_template) else []
            problems += wrong
            if not any(problem.is_error for problem in wrong):
                good.append(valid)
    if verb in ("apply", "validate"):
        twice = _duplicate_problems(good, verb)
        problems += twice.values()
        good = [document for document in good if document.source not in twice]
    print_problems(problems)
    if verb in ("validate", "solve"):
        for line in ignored_warnings(good, verb):
            print_note(line)
    return ManifestDocuments(documents, good, problems)


def _print_example_hint(file: str) -> None:
    """Say how to get an example that is named as in the documents, but is not there: after `pip install`."""
    path = Path(file)
    if "examples" in path.parts and not path.exists():
        name = path.name if path.suffix == "" else path.parent.name
        if name in {folder.name for folder in example_folders()}:
            command = click.get_current_context().command_path
            print_note(f"the example comes with the command: devalloc examples {name} | {command} -f -")


def _duplicate_problems(documents: Sequence[Document], verb: ManifestVerb) -> dict[str, Problem]:
    """By source: documents of objects that share one name, so that it is unclear which one is meant."""
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
    return is_foreign(document.content)


def print_problems(problems: Iterable[Problem]) -> None:
    """Print problems on stderr, one line each."""
    for problem in problems:
        print_note(f"error: {problem}" if problem.is_error else str(problem))


def _with_namespace(document: Document, namespace: str | None) -> Document:
    content: Any = document.content
    if namespace is None or not isinstance(content, dict) or not isinstance(content.get("metadata"), dict):
        return document
    kind = API_KINDS.get(str(content.get("kind")))
    if content["metadata"].get("namespace") or (kind is not None and not kind.namespaced):
        return document
    metadata = {**content["metadata"], "namespace": namespace}
    return replace(document, content={**content, "metadata": metadata})


def print_answer_problems(
    answer: dict[str, Any], documents: ManifestDocuments, is_asked: Callable[[Problem], bool] | None = None
) -> None:
    """Print the solver's problems on stderr, each with its document; skip those that were already shown.

    ``is_asked``: whether a problem of an object outside the documents answers the question; by default all do. Of those
    that do not, only the number is printed.
    """
    others: Counter[str] = Counter()
    seen = {(problem.kind, problem.name, problem.path, problem.message) for problem in documents.problems}
    met: Counter[Problem] = Counter()
    for entry in answer["problems"]:
        if (entry.get("kind"), entry.get("name"), entry.get("path", ""), entry["message"]) in seen:
            continue
        problem = Problem(**entry)
        is_of_another = is_asked is not None and problem.name is not None and not documents.is_about(problem)
        if is_of_another and is_asked is not None and not is_asked(problem):
            others[problem.severity] += 1
            continue
        placed = documents.place(problem, met[problem])
        if not met[problem] or placed.source:
            print_note(f"error: {placed}" if placed.is_error else str(placed))
        met[problem] += 1
    if others:
        print_note(f"{_counted_severities(others)} about other objects: devalloc solve")


def _counted_severities(numbers: Counter[str]) -> str:
    texts = (f"{number} {severity}{'' if number == 1 else 's'}" for severity, number in sorted(numbers.items()))
    return " and ".join(texts)
