"""Finding CEL expressions of a manifest that can never be evaluated.

Checks that decoding does not make: annotations of peers, amounts of quotas, CEL expressions that never compile.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from devalloc.api.manifests import Document
    from devalloc.api.problems import Problem


def annotation_problems(document: Document) -> Iterator[Problem]:
    """Problems of a machine's scaling annotations, and warnings about those that are ignored."""
    from devalloc.api.problems import Problem
    from devalloc.scaling.config import ANNOTATION, ANNOTATION_PATH, read_config_annotation
    from devalloc.scaling.resources import ANNOTATION as BOUNDS

    content, metadata = document.content, document.content["metadata"]
    annotations = metadata.get("annotations") or {}
    if content["kind"] != "VirtualMachine":
        return
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


def quota_problems(document: Document) -> Iterator[Problem]:
    """Problems of the amounts of a ResourceQuota."""
    from devalloc_solver.pipeline import quota

    if quota.is_quota(document.content):
        yield from (document.place(problem) for problem in quota.problems_of(document.content))


def expression_problems(document: Document) -> Iterator[Problem]:
    """The CEL expressions that do not compile."""
    from devalloc.api.problems import Problem
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
