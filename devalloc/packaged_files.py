"""Files of the repository that the wheel brings along (``force-include`` in pyproject.toml)."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parent
REPOSITORY = PACKAGE.parent
"""The checkout that this runs from; of an installed package only the folder around it."""


def packaged_path(in_package: str, in_repository: str) -> Path:
    """A file or folder, by its path in the installed package, or else in the checkout."""
    packaged = PACKAGE / in_package
    return packaged if packaged.exists() else REPOSITORY / in_repository
