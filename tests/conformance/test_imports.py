"""What takes long to import is imported where it is used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def test_discover_as_json_loads_neither_the_solver_nor_the_tables(tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()
    program = (
        "import sys; from devalloc.cli.main import run\n"
        f"run(['discover', '-o', 'json', '--sysfs-root', {str(tmp_path)!r}])\n"
        "costly = {'rich', 'ortools', 'celpy', 'yaml', 'sqlite3', 'numpy'}\n"
        "print(sorted(costly & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert done.stderr.splitlines()[-1] == "[]"


def test_help_does_not_pay_for_grpc() -> None:
    program = (
        "import sys; from devalloc.cli.main import run\n"
        "for words in (['--help'], ['vm', '--help'], ['vm', 'scale', '--help'], ['top', '--help']): run(words)\n"
        "print(sorted({'grpc', 'google.protobuf', 'pydantic', 'yaml'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == "[]"


def test_the_words_for_placement_do_not_cost_the_solver() -> None:
    program = (
        "import sys; from devalloc.cli.main import run\n"
        "run(['solve', '--help-all'])\n"
        "print(sorted(name for name in sys.modules if name.startswith('devalloc_solver.')), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    modules = ("problem", "problem.loads", "problem.placement_policy")
    assert "[pack|spread]" in done.stdout
    assert done.stderr.splitlines()[-1] == str([f"devalloc_solver.{name}" for name in modules])


def test_placement_imports_no_solver() -> None:
    heavy = "{'ortools', 'numpy', 'pandas'}"
    script = f"import sys, devalloc_solver.place; print({{m.partition('.')[0] for m in sys.modules}} & {heavy})"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout == b"set()\n"


def test_the_library_does_without_the_runtime_until_the_dialect_is_used() -> None:
    program = """
import json, sys
import devalloc_solver
before = "cel_expr_python" in sys.modules
import devalloc_solver.cel.kubernetes as cel
matched = cel.compile('device.driver == "d"', frozenset()).matches(cel.CelDevice("d", {}, {}))
print(json.dumps([before, matched, "cel_expr_python" in sys.modules]))
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=_path())
    assert json.loads(result.stdout) == [False, True, True]


def _path() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
