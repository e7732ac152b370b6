"""``make mutants``: what is changed, which tests must notice, and that no working tree is touched."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support.repository import REPO
from tools.coverage_map import CoverageMap
from tools.mutants import changed, mutants, of_each_kind, unit_tests_of

ADD = '''"""Sums."""

import logging


def add(one: int, other: int = 0) -> int:
    logging.info("adding")
    if one < 0:
        raise ValueError("negative")
    return one + other
'''
UNHEARD = """

def unheard(one: int) -> bool:
    return one > 1
"""
SUMS = ADD + UNHEARD
TESTS = """import pytest
from devalloc.math.sums import add


def test_sums() -> None:
    assert (add(0), add(2, 3)) == (0, 5)
    with pytest.raises(ValueError):
        add(-1)
"""
SURVIVORS = """devalloc/math/sums.py:14: return one > 1 -> return None
devalloc/math/sums.py:14: return one > 1 -> return (one >= 1)
devalloc/math/sums.py:14: return one > 1 -> return (one <= 1)
devalloc/math/sums.py:14: return one > 1 -> return one > 0
"""


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = a == b", ["x = (a != b)"]),
        ("x = a < b", ["x = (a <= b)", "x = (a >= b)"]),
        ("x = a >= b", ["x = (a > b)", "x = (a < b)"]),
        ("x = time.monotonic() >= b", ["x = (time.monotonic() < b)"]),  # no test meets the instant
        ("x = a is not None", ["x = (a is None)"]),
        ("x = a not in b", ["x = (a in b)"]),
        ("x = a <= b < c", ["x = (a < b < c)", "x = (a > b < c)", "x = (a <= b <= c)", "x = (a <= b >= c)"]),
        ("x = a and b", ["x = (a or b)"]),
        ("x = not (a or b)", ["x = (a or b)", "x = not ((a and b))"]),
        (
            "x = f((0, 1, True, 7))",
            [f"x = f(({values}))" for values in ("1, 1, True, 7", "0, 0, True, 7", "0, 1, False, 7", "0, 1, True, 8")],
        ),
        ("x = f(a, b, *c)", ["x = f(b, a, *c)"]),
        ("x = f(a, a)", []),
        ("x = min(a)", ["x = max(a)"]),
        ("x = min(a, b)", ["x = max(a, b)"]),  # whose order does not matter
        ("x = min(a, b, key=f)", ["x = max(a, b, key=f)", "x = min(b, a, key=f)"]),
        ("x = any(a)", ["x = all(a)"]),
        ("x = sorted(a)", ["x = list(a)"]),
        ("x = a - b * c", ["x = (a + b * c)", "x = a - (b // c)"]),
        ("x = 'a' + b", []),
        ("f(\n    a,\n    b,\n)", ["pass", "f(b, a)"]),
        ("await f(a)", ["pass"]),
        ("raise E", ["pass"]),
        ("def f():\n    return a", ["return None"]),
        ("def f(a=1):\n    return None", ["def f(a=0):"]),
        ("if a:\n    b", ["if not a:"]),
        ("x = b if a.c else d", ["x = b if not a.c else d"]),
        ("while f():\n    b", ["while not f():"]),
        ("a.b = c", ["pass"]),
        ("a[b] += c", ["pass"]),
        ("a = b", []),
        ("PAUSE_SECONDS = 5", []),
        ("MAX_TRIES = 5", []),
        ("MAX_BYTES = 1 << 20", []),
        ("_MAX_NAME: int = 4 * 1000", []),
        ("_MAX_NAME = 15", ["_MAX_NAME = 16"]),
        ("MAX_ROWS = 500 + x", ["MAX_ROWS = (500 - x)", "MAX_ROWS = 501 + x"]),
        ("PORT = 10301", ["PORT = 10302"]),
        ("x = wait(s * 2 / 15 * random.uniform(0, 1))", []),
        ("time.sleep(0)", []),
        ("@lru_cache(maxsize=64)\ndef f(): ...", []),
        ("sys.stderr.flush()", []),
        ("sys.stdout.flush()", ["pass"]),
        ("x = zip(a, strict=True)", []),
        ("x = field(repr=False, compare=False)", ["x = field(repr=False, compare=True)"]),
        ("log.info(0)", []),
        ("assert a is not None", []),
        ("def f(a: Literal[0]) -> Literal[1]: ...", []),
        ("if TYPE_CHECKING:\n    f()", []),
        ('x = "ü", 0', ['x = "ü", 1']),
    ],
)
def test_each_kind_of_code_has_its_mutants(source: str, expected: list[str]) -> None:
    made = [*mutants("m.py", source.encode())]
    assert [one.change.partition(" -> ")[2] for one in made] == expected
    for one in made:
        compile(one.source, "m.py", "exec", flags=0x2000)  # await outside functions, too


def test_a_mutant_is_run_by_what_runs_its_statement() -> None:
    source = (
        "@f(1)\ndef g(\n    a=2,\n):\n    if a in (\n        3,\n    ):\n        return [\n            4,\n        ]\n"
    )
    of = {one.change: one.statement for one in mutants("m.py", source.encode()) if one.kind == "number"}
    assert [*of.values()] == [range(1, 5), range(1, 5), range(5, 8), range(8, 11)]


def test_as_many_of_each_kind_are_drawn_as_there_are() -> None:
    """Not as many as the tree has: arguments the wrong way round are easy to notice, and all over the place."""
    source = "f(a, b)\n" * 50 + "x = min(a)\n" * 3 + "x = a < b\n" * 3
    every = [*mutants("m.py", source.encode())]

    def kinds(count: int, seed: int) -> Counter[str]:
        return Counter(one.kind for one in of_each_kind(every, count, seed))

    assert kinds(10, 1) == {"function": 2, "boundary": 2, "comparison": 2, "no call": 2, "order of arguments": 2}
    assert kinds(25, 1) == {"function": 3, "boundary": 3, "comparison": 3, "no call": 8, "order of arguments": 8}
    assert len(of_each_kind(every, 1000, 1)) == len(every)

    def drawn(seed: int) -> list[tuple[int, str]]:
        return [(one.line, one.change) for one in of_each_kind(every, 10, seed)]

    assert drawn(1) == drawn(1) != drawn(2)


@pytest.mark.parametrize(
    ("module", "test"),
    [
        ("devalloc/api/quantity.py", "tests/unit/api/test_quantity.py"),
        ("devalloc/machines/permits/writer.py", "tests/unit/machines/permits/test_leader.py"),
        ("devalloc/store/kubernetes/informer_cache.py", "tests/unit/store/test_kubernetes.py"),
        ("solver/devalloc_solver/check/detail.py", "tests/unit/solver/test_check.py"),
        ("solver/devalloc_solver/exact/model.py", "tests/unit/solver/test_model.py"),
        ("node-plugin/devalloc_node/journal/state_folder.py", "tests/unit/node/test_journal.py"),
    ],
)
def test_which_tests_must_notice(module: str, test: str) -> None:
    assert test in unit_tests_of(REPO, module, {})
    assert "tests/unit/cli/test_top.py" not in unit_tests_of(REPO, module, {})
    assert "tests/unit/cli/test_top.py" in unit_tests_of(REPO, module, {module: ["tests/unit/cli/test_top.py"]})


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with one module and its tests."""
    for name, text in {
        "devalloc/__init__.py": "",
        "devalloc/math/__init__.py": "",
        "devalloc/math/sums.py": SUMS,
        "tests/unit/math/test_sums.py": TESTS,
        "tools/mutants.toml": "",
        "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["."]\naddopts = "--import-mode=importlib"\n',
        ".gitignore": "__pycache__\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    git(tmp_path, "init", "--quiet", "--initial-branch", "main")
    git(tmp_path, "add", ".")
    git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message", "one")
    return tmp_path


def git(tree: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=tree, check=True, capture_output=True, text=True).stdout


_SCRIPT = """
import sys
from tools import mutants

mutants.LIBRARIES = ("pytest", "hypothesis", "xdist")  # all that the tests of these trees import
sys.exit(mutants.main(sys.argv[1:]))
"""
COMMAND = ("-c", _SCRIPT)


def run(tree: Path, *words: str) -> tuple[int, str]:
    environment = {**os.environ, "PYTHONPATH": str(REPO)}
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


ONE = (*COMMAND, "devalloc/math/sums.py", "--jobs", "1")


def survivors(output: str) -> list[str]:
    lines = (line.removesuffix(" (no test of these tiers runs it)") for line in output.splitlines())
    return sorted(line for line in lines if line.startswith("devalloc/"))


SURVEY = (*COMMAND, "--map", "build/map", "--jobs", "1", "--survey")


def test_survivors_are_shown_and_fail_until_they_are_accepted(tree: Path) -> None:
    code, output = run(tree, "-m", "tools.mutants", "devalloc/math/sums.py")
    assert (code, output.startswith(SURVIVORS)) == (1, True), output
    assert "11 of 11 mutants, 4 survived, 0 accepted, 0 undecided; 1 test modules" in output
    assert git(tree, "status", "--porcelain") == "", "all of it is done in copies"

    (tree / "devalloc/math/sums.py").write_text(UNHEARD)
    (tree / "tests/unit/math/test_sums.py").write_text("import devalloc.math.sums\n\n\ndef test_nothing(): ...\n")
    reasons = "".join(f"'{line.partition(': ')[2]}' = 'it has no caller'\n" for line in SURVIVORS.splitlines())
    (tree / "tools/mutants.toml").write_text(f'[accepted."devalloc/math/sums.py"]\n{reasons}')
    code, output = run(tree, *ONE)
    assert (code, "0 survived, 4 accepted" in output) == (0, True), output


def test_tests_that_fail_anyhow_and_tests_that_are_not_there_tell_nothing(tree: Path) -> None:
    tests = tree / "tests/unit/math/test_sums.py"
    tests.write_text(TESTS.replace("== (0, 5)", "== (0, 6)"))
    code, output = run(tree, *ONE)
    assert (code, "its tests fail without a mutant" in output, "assert (0, 5) == (0, 6)" in output) == (
        2,
        True,
        True,
    ), output
    tests.unlink()
    code, output = run(tree, *ONE)
    assert (code, "no unit tests have its name or import it" in output) == (2, True), output


def test_a_run_that_hangs_is_ended(tree: Path) -> None:
    (tree / "tests/unit/math/test_sums.py").write_text(
        "import subprocess\n\n\ndef test_sums():\n    subprocess.run(['sleep', '1000'])\n"
    )
    script = (
        "import pathlib, tempfile; from tools.mutants import *; folder = pathlib.Path(tempfile.mkdtemp());"
        "copy = Copy(pathlib.Path.cwd(), folder);"
        "copy.start(['tests'], 'devalloc/math/sums.py', b'', 3.0, keep=False);"
        "print(copy.wait() == HUNG); shutil.rmtree(folder)"
    )
    assert run(tree, "-c", script) == (0, "True\n")


def test_changed_modules_are_those_since_the_branch_began(tree: Path) -> None:
    git(tree, "switch", "--quiet", "--create", "mine")
    (tree / "devalloc/math/sums.py").write_text(SUMS + "\n\nZERO = 0\n")
    (tree / "devalloc/math/new.py").write_text("ONE = 1\n")
    (tree / "tests/unit/math/test_new.py").write_text("")
    assert changed(tree, "main") == ["devalloc/math/new.py", "devalloc/math/sums.py"]


def test_a_survey_draws_mutants_of_all_modules_and_asks_the_tests_that_run_their_lines(tree: Path) -> None:
    """These have neither its name nor import it, and one of them fails without a mutant too."""
    tests = TESTS.replace("from devalloc.math.sums", "from devalloc.math") + "\n\ndef test_broken() -> None:\n"
    (tree / "tests/unit/math/test_sums.py").unlink()
    (tree / "tests/unit/test_all.py").write_text(f"{tests}    assert add(1) == 2\n")
    (tree / "devalloc/math/__init__.py").write_text("from devalloc.math.sums import add\n")
    code, output = run(tree, *SURVEY, "100")
    assert code == 1, output
    assert survivors(output) == sorted(SURVIVORS.splitlines())
    assert output.count("no test of these tiers runs it") == 4
    assert "| devalloc/math | 11 | 7 | 0 | 4 | 0 |\n| all | 11 | 7 | 0 | 4 | 0 |" in output
    assert "| boundary | 2 | 1 | 0 | 1 | 0 |\n" in output
    assert "4 of 11 decided ones survived (36%); 0 are accepted" in output


def test_what_the_type_check_refuses_does_not_survive(tree: Path) -> None:
    settings = (tree / "pyproject.toml").read_text()
    (tree / "pyproject.toml").write_text(f'{settings}\n[tool.mypy]\nstrict = true\npackages = ["devalloc"]\n')
    (tree / "devalloc/math/sums.py").write_text(UNHEARD)
    (tree / "tests/unit/math/test_sums.py").write_text("import devalloc.math.sums\n\n\ndef test_nothing(): ...\n")
    code, output = run(tree, *SURVEY, "100", "--allow", "76")
    assert code == 0, output
    lines = (line.replace(":14:", ":4:") for line in SURVIVORS.splitlines() if "return None" not in line)
    assert survivors(output) == sorted(lines)
    assert "| return None | 1 | 0 | 1 | 0 | 0 |\n" in output
    assert "3 of 4 decided ones survived (75%)" in output


def test_tests_of_another_process_run_a_line_as_well(tree: Path) -> None:
    (tree / "tests/unit/math/test_sums.py").unlink()
    (tree / "tests/unit/test_command.py").write_text(
        "import subprocess, sys\n\n\ndef test_command():\n"
        "    script = 'from devalloc.math.sums import add; print(add(1, 2))'\n"
        "    done = subprocess.run([sys.executable, '-c', script], capture_output=True, check=True)\n"
        "    assert done.stdout == b'3\\n'\n"
    )
    assert run(tree, *SURVEY, "1")[0] in (0, 1)
    tests = CoverageMap(tree / "build/map").tests_of("devalloc/math/sums.py", [10])
    assert tests == ["tests/unit/test_command.py::test_command"]
    assert CoverageMap(tree / "build/map").tests_of("devalloc/math/sums.py", [14]) == [], "no test runs it"


def test_a_test_that_takes_too_long_anyhow_tells_nothing(tree: Path) -> None:
    script = (
        "import pathlib, tempfile; from tools.mutants import *; folder = pathlib.Path(tempfile.mkdtemp());"
        "copy = Copy(pathlib.Path.cwd(), folder); path = 'devalloc/math/sums.py';"
        "hangs = b'import time\\ndef add(*_): time.sleep(1000)';"
        "trials = [Trial(Mutant('', path, 1, range(1, 2), '', source), ['tests']) for source in (hangs, b'')];"
        "print(outcomes([copy], trials[:1], 15.0));"
        "(folder / 'tests/unit/math/test_sums.py').write_text('import time; time.sleep(1000)');"
        "print(outcomes([copy], trials[1:], 3.0)); shutil.rmtree(folder)"
    )
    assert run(tree, "-c", script) == (0, "['noticed']\n['undecided']\n")
