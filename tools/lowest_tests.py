"""The unit tests that a library's lowest version can break: ``python -m tools.lowest_tests base`` prints their paths.

``tools/lowest.toml`` names them by library.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

TABLE = Path(__file__).with_name("lowest.toml")


def paths_by_library() -> dict[str, dict[str, list[str]]]:
    """For each environment: library -> paths below ``tests/unit``."""
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))


def paths(environment: str) -> list[str]:
    """What to give to pytest. A folder includes its files."""
    names = sorted({name for names in paths_by_library()[environment].values() for name in names})
    folders = {name for name in names if not name.endswith(".py")}
    return [
        f"tests/unit/{name}" for name in names if name in folders or not name.startswith((*(f"{f}/" for f in folders),))
    ]


if __name__ == "__main__":
    print(*paths(sys.argv[1]))
