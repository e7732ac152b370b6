"""``devalloc validate``: are these manifests right?"""

from __future__ import annotations

import click

from devalloc.cli.options import files_option, output_option
from devalloc.cli.verb import verb


@verb("validate")
@files_option(required=True)
@output_option("table", "json", "yaml")
def validate(files: tuple[str, ...], output: str) -> int:
    """Check manifests without a store: fields, amounts, expressions. Every error is shown, not only the first.

    \b
    devalloc validate -f examples/
    """
    from devalloc.cli.documents import read
    from devalloc.cli.output import dump

    documents = read(files, expressions=True)
    problems = documents.problems
    bad = len(documents.all) - len(documents.good)
    if output == "table":
        click.echo(
            f"{len(documents.all)} documents, {bad} with errors"
            if bad
            else f"{len(documents.all)} documents, all valid"
        )
    else:
        dump({"documents": len(documents.all), "problems": [problem.to_dict() for problem in problems]}, output)
    return 2 if any(problem.is_error for problem in problems) else 0
