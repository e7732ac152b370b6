"""What the package says of itself that depends on where its source is published: links, and the README with absolute
ones, because a registry shows it without the files beside it.

The build backend calls this. DEVALLOC_REPOSITORY names the repository; without it, links lead to a domain that no one
can own.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

REPOSITORY = "https://git.example/devalloc/devalloc"
"""A name of RFC 2606, for as long as the source has no home."""
_LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
_ABSOLUTE = ("http://", "https://", "mailto:")


class PackageMetadata(MetadataHookInterface):
    """The dynamic part of the project's metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the README and the links."""
        where = repository()
        version = _version(Path(self.root))
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": with_absolute_links(text, where, version)}
        metadata["urls"] = urls(where, version)


def repository() -> str:
    """Where the source is published."""
    return os.environ.get("DEVALLOC_REPOSITORY", "").rstrip("/") or REPOSITORY


def urls(where: str, version: str) -> dict[str, str]:
    """The links of the project."""
    return {
        "Source": where,
        "Documentation": f"{where}/blob/v{version}/docs/index.md",
        "Changelog": f"{where}/blob/v{version}/CHANGELOG.md",
        "Issues": f"{where}/issues",
        "Security": f"{where}/blob/v{version}/SECURITY.md",
    }


def with_absolute_links(text: str, where: str, version: str) -> str:
    """Markdown whose links and pictures lead to this version in the repository."""

    def absolute(match: re.Match[str]) -> str:
        target = match["target"]
        if target.startswith(_ABSOLUTE):
            return match[0]
        if target.startswith("#"):
            target = f"README.md{target}"
        kind = "raw" if match["picture"] else "blob"
        return f"{match['picture']}[{match['text']}]({where}/{kind}/v{version}/{target})"

    return _LINK.sub(absolute, text)


def _version(root: Path) -> str:
    match = re.search(r'^VERSION = "(.+)"$', (root / "devalloc" / "version.py").read_text(), re.MULTILINE)
    assert match is not None
    return match[1]
