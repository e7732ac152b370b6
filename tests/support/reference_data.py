"""Facts that the tests are judged by, in ``tests/data``: where each is from is in its README.

A file is JSON, compressed as ``.json.xz`` if it is large. ``python -m tests.support.reference_data FILE...`` writes the
same content again in the form that is checked in: `xz --decompress --keep`, change, and call it with the ``.json``.

DEVALLOC_SHARED_CASES names a folder with more cases of the same kinds, for example some that are held back from
development: `prototype.json`, `random.json`, `upstream-dra.json` and `neon/*.json`. Nothing needs it.
"""

from __future__ import annotations

import json
import lzma
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.repository import REPO

DATA = REPO / "tests" / "data"
CLAIMS = ("claims/prototype.json.xz", "claims/random.json.xz")
"""Cases of DeviceClaims with known answers."""
RESOURCE_CLAIMS = "resourceclaims/upstream-dra.json.xz"
"""Cases of Kubernetes' own allocator."""
PUBLIC_REPORTS = "claims/public-reports.json.xz"
"""Situations of public bug reports, of both dialects."""

Case = dict[str, Any]


def read(path: Path) -> Any:
    """The content of a JSON file, compressed or not."""
    content = path.read_bytes()
    return json.loads(lzma.decompress(content) if path.suffix == ".xz" else content)


def claim_cases() -> list[Case]:
    """``name, pools, classes, claims`` (manifests) and ``expect{satisfied, unsatisfied, oneOf, pools, devices}``."""
    return [case for name in CLAIMS for case in _cases(name)]


def resource_claim_cases() -> list[Case]:
    """``name, features, input`` and ``expected{outcome, results, errorIsNodeLocal}``."""
    return [*_cases(RESOURCE_CLAIMS)]


def public_reports() -> list[Case]:
    """``name, source, documents`` and ``expected``: claim -> its devices, or how many; ``together``: not one by one."""
    return [*read(DATA / PUBLIC_REPORTS)["cases"]]


def scaling_tables() -> list[Path]:
    """Files with tables of the scaling protocols, for ``tools.judge_scaling``."""
    tables = [path for path in sorted((DATA / "scaling").iterdir()) if ".json" in path.suffixes]
    return tables + ([*sorted((more / "neon").glob("*.json"))] if (more := _more()) else [])


def documents(case: Case) -> list[Case]:
    """The manifests of a case of DeviceClaims."""
    return [*case["pools"], *case["classes"], *case["claims"]]


def _cases(name: str) -> Iterator[Case]:
    yield from read(DATA / name)["cases"]
    more = _more()
    if more and (path := more / Path(name).stem).is_file():
        yield from read(path)["cases"]


def _more() -> Path | None:
    folder = os.environ.get("DEVALLOC_SHARED_CASES")
    if not folder:
        return None
    if not Path(folder).is_dir():
        raise FileNotFoundError(f"DEVALLOC_SHARED_CASES: no folder {folder!r}")
    return Path(folder)


def packed(content: Any) -> bytes:
    """As it is checked in: the same bytes for the same content."""
    text = json.dumps(content, separators=(",", ":"), sort_keys=True)
    return lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME)


def write(path: Path, content: Any) -> Path:
    """Write a compressed file; returns its path."""
    path.write_bytes(packed(content))
    return path


def main(arguments: list[str]) -> int:
    for name in arguments:
        path = Path(name)
        write(path.with_suffix(".json.xz"), read(path))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
