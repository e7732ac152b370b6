"""``devalloc crds``: the CustomResourceDefinitions."""

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
def crds(directory: Path | None) -> int:
    """Print the CustomResourceDefinitions of all kinds, generated from the models.

    \b
    devalloc crds | kubectl apply -f -
    """
    from devalloc.api.crds import render

    files = render()
    if directory is None:
        click.echo("---\n".join(text.removeprefix("---\n") for text in files.values()), nl=False)
        return 0
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name).write_text(text)
        click.echo(directory / name)
    return 0
