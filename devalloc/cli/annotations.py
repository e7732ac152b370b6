"""Annotations of peers and amounts of quotas that a manifest may have, and that are read only when they count."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from devalloc.api.manifests import Document
    from devalloc.api.problems import Problem


def wrong_annotations(document: Document) -> Iterator[Problem]:
    """What is wrong with how a machine is to be scaled, and what of it is ignored."""
    from devalloc.api.problems import Problem
    from devalloc.scaling.bounds import ANNOTATION as BOUNDS
    from devalloc.scaling.config import ANNOTATION, ANNOTATION_PATH, read_annotation

    content, metadata = document.content, document.content["metadata"]
    annotations = metadata.get("annotations") or {}
    if content["kind"] != "VirtualMachine":
        return
    here = document.place(Problem("", ANNOTATION_PATH, content["kind"], metadata.get("namespace"), metadata["name"]))
    if BOUNDS in annotations:
        message = "is ignored: spec.cpu and spec.memory have a machine's bounds, min and max"
        yield replace(here, message=message, path=f"metadata.annotations[{BOUNDS}]", severity="warning")
    if (text := annotations.get(ANNOTATION)) is None:
        return
    if not content["spec"].get("scaling"):
        yield replace(here, message="is ignored: the machine has no spec.scaling", severity="warning")
    for problem in read_annotation(text, path=ANNOTATION_PATH).problems:
        yield replace(here, message=problem.message, path=problem.path, severity=problem.severity)


def wrong_quotas(document: Document) -> Iterator[Problem]:
    """What is wrong with the amounts of a ResourceQuota."""
    from devalloc_solver import quota

    if quota.is_quota(document.content):
        yield from (document.place(problem) for problem in quota.problems_of(document.content))
