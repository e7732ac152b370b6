"""What to do about a code of the node plugin, by the table of docs/node-codes.md, which the wheel brings along."""

from __future__ import annotations

import re
from functools import cache

from devalloc.packaged_files import packaged_path

PACKAGED = "data/node-codes.md"
"""Where the wheel has the table."""
_ROW = re.compile(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|$", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")


def node_code_advice(code: str) -> str:
    """What a user can do about a code; empty for one that the table does not have."""
    return _table().get(code, "")


@cache
def _table() -> dict[str, str]:
    try:
        text = packaged_path(PACKAGED, "docs/node-codes.md").read_text(encoding="utf-8")
    except OSError:
        return {}
    return {code: _LINK.sub(r"\1", advice).strip() for code, advice in _ROW.findall(text)}
