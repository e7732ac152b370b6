"""The examples, which come with the command."""

from __future__ import annotations

import re
from pathlib import Path

from devalloc.packaged_files import REPOSITORY, packaged_path

PACKAGED = "cli/data/examples"
"""Where the wheel has them."""
_EXAMPLE = re.compile(r"^\| \[(.+?)\]\(.+?\) \| ([^|]+) \|$", re.MULTILINE)


def _folder() -> Path:
    return packaged_path(PACKAGED, "examples")


def is_repository() -> bool:
    """Whether the command runs from a checkout, which has a Makefile."""
    return _folder().parent == REPOSITORY and (REPOSITORY / "Makefile").is_file()


def example_folders() -> list[Path]:
    """The folders of the examples, by name."""
    return sorted(folder for folder in _folder().iterdir() if folder.is_dir())


def about_examples() -> dict[str, str]:
    """What each example shows, by name, as the README of all says."""
    return {name: text.replace("`", "") for name, text in _EXAMPLE.findall((_folder() / "README.md").read_text())}


def manifest_files(folder: Path) -> list[Path]:
    """The manifests of an example."""
    return sorted(folder.glob("*.yaml"))
