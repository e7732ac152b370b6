"""``devalloc crds``: the definitions of all kinds."""

from __future__ import annotations

from pathlib import Path

from devalloc.api import crds as definitions
from devalloc.api import reference as editors
from devalloc.cli.terminal import print_data, print_line


def crds(directory: Path | None, json_schema: bool) -> int:
    files = {editors.FILE: editors.render()} if json_schema else definitions.render()
    if directory is None:
        print_data("---\n".join(text.removeprefix("---\n") for text in files.values()))
        return 0
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name).write_text(text)
        print_line(str(directory / name))
    return 0
