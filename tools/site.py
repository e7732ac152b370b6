"""What MkDocs calls as it builds the documentation site (``mkdocs.yml``).

Pages link to files beside ``docs/``, as readers of the repository need it; on the site these links lead to the
repository.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

from deploy.package_metadata import repository

_LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
_DOCS = "docs"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page with links to files beside ``docs/`` made absolute."""
    return with_repository_links(markdown, page.file.src_uri)


def on_config(config: Any) -> Any:
    """Name where the source is."""
    config.repo_url = repository()
    return config


def with_repository_links(markdown: str, path: str) -> str:
    """``path``: of the page, below ``docs/``."""
    folder = posixpath.join(_DOCS, posixpath.dirname(path))

    def absolute(match: re.Match[str]) -> str:
        target, hash_, anchor = match["target"].partition("#")
        if not target or "://" in target or target.startswith("mailto:"):
            return match[0]
        place = posixpath.normpath(posixpath.join(folder, target))
        if place == _DOCS or place.startswith(f"{_DOCS}/"):
            return match[0]
        return f"]({repository()}/blob/main/{place}{hash_}{anchor})"

    return _LINK.sub(absolute, markdown)
