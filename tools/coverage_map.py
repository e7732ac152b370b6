"""Which tests run a line of a module, as one run of the unit and conformance tiers recorded it with coverage.py.

Tests that another process runs (a command that a test starts) are not in it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from coverage import CoverageData

TIERS = ("tests/unit", "tests/conformance")
_SETTINGS = """\
[run]
relative_files = true
core = ctrace
source =
"""
"""Only the tracer in C can say which test runs a line."""


class CoverageMap:
    def __init__(self, file: Path) -> None:
        """Read a recorded one. Raises coverage.exceptions.CoverageException."""
        self._data = CoverageData(str(file))
        self._data.read()

    def tests_of(self, path: str, lines: Iterable[int]) -> list[str]:
        """Those that run one of these lines of a module; of lines that run at import only, those that run any line."""
        by_line = {line: _tests(contexts) for line, contexts in self._data.contexts_by_lineno(path).items()}
        running = set[str]().union(*(by_line.get(line, ()) for line in lines))
        return sorted(running or set[str]().union(*by_line.values()))


def record(tree: Path, file: Path, sources: Sequence[str], jobs: int) -> bool:
    """Run both tiers of a tree; whether all passed. A test that failed is in the map as well."""
    with tempfile.NamedTemporaryFile("w", suffix=".cfg") as settings:
        settings.write(_SETTINGS + "".join(f"    {source}\n" for source in sources))
        settings.flush()
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(jobs), *tiers(tree)),
            *("--cov", f"--cov-config={settings.name}", "--cov-context=test", "--cov-report="),
        ]
        file.parent.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "COVERAGE_FILE": str(file.absolute())}
        return subprocess.run(command, cwd=tree, env=environment, check=False).returncode == 0


def tiers(tree: Path) -> list[str]:
    """Those of ``TIERS`` that a tree has."""
    return [tier for tier in TIERS if (tree / tier).is_dir()]


def _tests(contexts: Iterable[str]) -> set[str]:
    """Of contexts such as ``tests/unit/test_a.py::test_b|run``; the one without a name is an import."""
    return {context.rpartition("|")[0] for context in contexts} - {""}
