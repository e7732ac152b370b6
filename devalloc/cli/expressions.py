"""The CEL expressions of a manifest that can never be evaluated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from devalloc.api.manifests import Document
    from devalloc.api.problems import Problem


def wrong_expressions(document: Document) -> Iterator[Problem]:
    """The CEL expressions that do not compile."""
    from devalloc.api.problems import Problem
    from devalloc_solver.cel import CompileError, compile

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
