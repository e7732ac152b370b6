"""The examples, which come with the command."""

from __future__ import annotations

import re
from pathlib import Path

_PACKAGED = Path(__file__).parent / "data" / "examples"
"""Where the wheel has them (``force-include`` in pyproject.toml)."""
_REPOSITORY = Path(__file__).parents[2]
_EXAMPLE = re.compile(r"^\| \[(.+?)\]\(.+?\) \| ([^|]+) \|$", re.MULTILINE)


def _folder() -> Path:
    return _PACKAGED if _PACKAGED.is_dir() else _REPOSITORY / "examples"


def is_repository() -> bool:
    """Whether the command runs from a checkout, which has a Makefile."""
    return not _PACKAGED.is_dir() and (_REPOSITORY / "Makefile").is_file()


def example_folders() -> list[Path]:
    """The folders of the examples, by name."""
    return sorted(folder for folder in _folder().iterdir() if folder.is_dir())


def about_examples() -> dict[str, str]:
    """What each example shows, by name, as the README of all says."""
    return {name: text.replace("`", "") for name, text in _EXAMPLE.findall((_folder() / "README.md").read_text())}


def manifest_files(folder: Path) -> list[Path]:
    """The manifests of an example."""
    return sorted(folder.glob("*.yaml"))
