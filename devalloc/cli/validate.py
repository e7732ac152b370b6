"""``devalloc validate``: are these manifests right?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from devalloc.cli.options import files_option, output_option
from devalloc.cli.verb import verb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from devalloc.api.manifests import Document
    from devalloc.api.problems import Problem


@verb("validate")
@files_option(required=True)
@output_option("table", "json", "yaml")
def validate(files: tuple[str, ...], output: str) -> int:
    """Check manifests without a store: fields, amounts, expressions. Every error is shown, not only the first.

    \b
    devalloc validate -f examples/
    """
    from devalloc.cli.documents import read, show
    from devalloc.cli.output import dump

    documents = read(files)
    expressions = [problem for document in documents.good for problem in _expressions(document)]
    show(expressions)
    problems = [*documents.problems, *expressions]
    bad = len(documents.all) - len(documents.good) + len({problem.source for problem in expressions})
    if output == "table":
        click.echo(
            f"{len(documents.all)} documents, {bad} with errors"
            if bad
            else f"{len(documents.all)} documents, all valid"
        )
    else:
        dump({"documents": len(documents.all), "problems": [problem.to_dict() for problem in problems]}, output)
    return 2 if any(problem.is_error for problem in problems) else 0


def _expressions(document: Document) -> Iterator[Problem]:
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
