"""``devalloc validate``: check manifests."""

from __future__ import annotations

import click

from devalloc.cli.command import verb
from devalloc.cli.documents import read_manifests
from devalloc.cli.options.common import manifests_option, output_option
from devalloc.cli.render.output import print_content


@verb("validate")
@manifests_option(required=True)
@output_option("table", "json", "yaml")
def validate(files: tuple[str, ...], output: str) -> int:
    """Check manifests without a store: fields, amounts, expressions. Reports every error, not only the first.

    Of an object of resource.k8s.io it reports the first wrong field, and every selector that does not compile.

    \b
    devalloc validate -f examples/whole-gpu
    """

    documents = read_manifests(files, verb="validate")
    problems = documents.problems
    bad = len(documents.all) - len(documents.good)
    if output == "table":
        number = "1 document" if len(documents.all) == 1 else f"{len(documents.all)} documents"
        if bad:
            click.echo(f"{number}, {bad} with errors")
        elif not any(problem.is_error for problem in problems):
            click.echo(f"{number}, {'valid' if len(documents.all) == 1 else 'all valid'}")
    else:
        print_content(
            {"documents": len(documents.all), "problems": [problem.to_dict() for problem in problems]}, output
        )
    return 2 if any(problem.is_error for problem in problems) else 0
