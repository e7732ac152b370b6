"""``devalloc crds``: the CustomResourceDefinitions, or a JSON Schema of the same kinds for editors."""

from __future__ import annotations

from pathlib import Path

import click

from devalloc.cli.command import verb


@verb("crds")
@click.option(
    "-d",
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write one file per kind to this folder instead of printing all.",
)
@click.option(
    "--json-schema",
    is_flag=True,
    help="Print one JSON Schema of all kinds, for editors, instead of CustomResourceDefinitions.",
)
def crds(directory: Path | None, json_schema: bool) -> int:
    """Print the CustomResourceDefinitions of all kinds, generated from the models.

    \b
    devalloc crds | kubectl apply -f -
    devalloc crds --json-schema > devalloc.schema.json

    Editors with the YAML language server then check manifests that begin with
    `# yaml-language-server: $schema=devalloc.schema.json`.
    """
    from devalloc.api import crds as definitions
    from devalloc.api import reference as editors

    files = {editors.FILE: editors.render()} if json_schema else definitions.render()
    if directory is None:
        click.echo("---\n".join(text.removeprefix("---\n") for text in files.values()), nl=False)
        return 0
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name).write_text(text)
        click.echo(directory / name)
    return 0
