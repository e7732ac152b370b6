"""What to do about a code of the node plugin, by the table of docs/node-codes.md, which the wheel brings along."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_PACKAGED = Path(__file__).parents[1] / "data" / "node-codes.md"
_IN_CHECKOUT = Path(__file__).parents[2] / "docs" / "node-codes.md"
_ROW = re.compile(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|$", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")


def node_code_advice(code: str) -> str:
    """What a user can do about a code; empty for one that the table does not have."""
    return _table().get(code, "")


@cache
def _table() -> dict[str, str]:
    page = _PACKAGED if _PACKAGED.is_file() else _IN_CHECKOUT
    try:
        text = page.read_text(encoding="utf-8")
    except OSError:
        return {}
    return {code: _LINK.sub(r"\1", advice).strip() for code, advice in _ROW.findall(text)}
