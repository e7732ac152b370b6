"""Which tests run a line of a module, as one run of the unit and conformance tiers recorded it with coverage.py.

Processes that a test starts are in it, unless they end by force, or start without the environment of the test. This
module is the plugin of pytest that hands them the test's name.
"""

from __future__ import annotations

import os
import re
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
disable_warnings = no-data-collected, module-not-imported, module-not-measured
source =
{sources}
[paths]
"""
"""Only the tracer in C can say which test runs a line."""
_OF_A_PROCESS = """\
parallel = true
sigterm = true
data_file = {file}
context = ${{PYTEST_CURRENT_TEST-}}
"""
_SETTINGS_FILE = "DEVALLOC_COVERAGE_SETTINGS"
_PHASE = re.compile(r"(\|[a-z]+| \([a-z]+\))$")
"""What coverage.py, or pytest in the environment, adds to the name of a test."""


class CoverageMap:
    def __init__(self, file: Path) -> None:
        """Read a recorded one. Raises coverage.exceptions.CoverageException."""
        self._data = CoverageData(str(file))
        self._data.read()

    def tests_of(self, path: str, lines: Iterable[int]) -> list[str]:
        """Those that run one of these lines of a module; of lines that run at import only, those that run any line."""
        by_line = {line: _tests(contexts) for line, contexts in self._data.contexts_by_lineno(path).items()}
        running = set[str]().union(*(by_line.get(line, ()) for line in lines))
        is_imported = any(line in by_line for line in lines)
        return sorted(running if running or not is_imported else set[str]().union(*by_line.values()))


def record(tree: Path, file: Path, sources: Sequence[str], jobs: int) -> bool:
    """Run both tiers of a tree; whether all passed. A test that failed is in the map as well."""
    with tempfile.TemporaryDirectory() as folder:
        whole, process = Path(folder) / "whole.cfg", Path(folder) / "process.cfg"
        places = [tree.absolute() / source for source in sources]
        text = _SETTINGS.format(sources="\n".join(f"    {place}" for place in places))
        text += "".join(f"_{i} =\n    {source}\n    {places[i]}\n" for i, source in enumerate(sources))
        whole.write_text(text)
        process.write_text(text.replace("[run]\n", "[run]\n" + _OF_A_PROCESS.format(file=file.absolute())))
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", __name__, "-n", str(jobs)),
            *(*tiers(tree), "--cov", f"--cov-config={whole}", "--cov-context=test", "--cov-report="),
        ]
        file.parent.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "COVERAGE_FILE": str(file.absolute()), _SETTINGS_FILE: str(process)}
        return subprocess.run(command, cwd=tree, env=environment, check=False).returncode == 0


def pytest_runtest_setup() -> None:
    """Only now: the processes of pytest itself have their own settings."""
    os.environ["COVERAGE_PROCESS_START"] = os.environ[_SETTINGS_FILE]


def tiers(tree: Path) -> list[str]:
    """Those of ``TIERS`` that a tree has."""
    return [tier for tier in TIERS if (tree / tier).is_dir()]


def _tests(contexts: Iterable[str]) -> set[str]:
    """Of contexts such as ``tests/unit/test_a.py::test_b|run``; the one without a name is an import."""
    return {_PHASE.sub("", context) for context in contexts} - {""}
