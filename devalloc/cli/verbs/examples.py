"""``devalloc examples``: manifests to copy, which come with the command."""

from __future__ import annotations

import shutil
from pathlib import Path

from devalloc.api.problems import closest_match
from devalloc.cli.command import BadInput, CommandFailed
from devalloc.cli.example_files import about_examples, example_folders, manifest_files
from devalloc.cli.render.output import print_table
from devalloc.cli.terminal import print_data, print_line


def examples(name: str | None, directory: Path | None) -> int:
    folders = example_folders()
    if name is not None:
        folders = [_folder_of(name, folders)]
    if directory is not None:
        _write(folders, directory)
    elif name is not None:
        texts = (path.read_text() for path in manifest_files(folders[0]))
        print_data("---\n".join(text.removeprefix("---\n").rstrip("\n") + "\n" for text in texts))
    else:
        about = about_examples()
        print_table(["NAME", "SHOWS"], [[folder.name, about.get(folder.name, "")] for folder in folders])
        print_line("", "Try one: devalloc examples NAME | devalloc solve -f -", "Edit it: devalloc examples NAME -d .")
    return 0


def _folder_of(name: str, folders: list[Path]) -> Path:
    bare = name.rstrip("/").rpartition("/")[2]  # `examples/NAME`, as the documents write it
    for folder in folders:
        if folder.name == bare:
            return folder
    near = closest_match(bare, [folder.name for folder in folders])
    hint = f"did you mean {near}?" if near else "`devalloc examples` lists all"
    raise BadInput(f"there is no example {name!r}; {hint}")


def _write(folders: list[Path], directory: Path) -> None:
    """Copy the folders into the directory. Raises CommandFailed before the first copy if a file would be replaced."""
    copies = [(path, directory / folder.name / path.name) for folder in folders for path in sorted(folder.iterdir())]
    changed = [to for path, to in copies if to.exists() and to.read_bytes() != path.read_bytes()]
    if changed:
        raise CommandFailed(f"{changed[0]} exists and differs; name another folder, or remove it")
    for path, to in copies:
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, to)
    for folder in folders:
        print_line(str(directory / folder.name))
