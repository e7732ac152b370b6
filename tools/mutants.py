"""Mutants: a module is changed in one place at a time, and its unit tests must notice. ``make mutants`` runs this.

What survives shows a rule that no test holds, or code that nothing needs. Each is printed as ``file:line: original ->
mutant``; ``mutants.toml`` beside this file names those that are accepted, each with its reason.

The libraries for this do not fit this tree. mutmut (3.8) derives the names of modules from folders called ``.``,
``src`` or ``source``, and so does not find the packages in ``solver`` and ``node-plugin``. cosmic-ray (8.7) changes the
files of the working tree, starts a new interpreter for each mutant, which costs seconds of imports, and has one test
command for all modules; it removes no statements and has no list of accepted mutants. Here each run is a fork, in a
copy of the tree, of a process that has the libraries imported.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import gc
import importlib
import importlib.metadata
import itertools
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.coverage_map import CoverageMap, record, tiers

ROOTS = {
    "devalloc": "devalloc",
    "solver/devalloc_solver": "solver",
    "node-plugin/devalloc_node": "node",
    "node-plugin/devalloc_machines": "node",
    "node-plugin/devalloc_neon": "neon",
}
"""Where a package is, and the folder of its tests in tests/unit; of ``devalloc`` the next folder names it."""
PATHS = (".", "solver", "node-plugin")
LIBRARIES = (
    "pytest",
    "hypothesis",
    "xdist",
    "pydantic",
    "yaml",
    "click",
    "rich",
    "numpy",
    "re2",
    "ortools.sat.python.cp_model",
)
"""What is imported before the fork: slow, and without threads."""
SETTINGS = "tools/mutants.toml"
MAP = Path("build/coverage-map")
Settings = Mapping[str, Mapping[str, Any]]
FACTOR, SLACK = 3, 20
"""A run may take so many times as long as one without a mutant, and so many seconds more; then it hangs."""
HUNG = -1000
"""Instead of an exit code."""
NOT_RUN = " (no test of these tiers runs it)"
MOST_TESTS, MOST_SECONDS = 400, 300
"""Of a mutant, with a coverage map: so many tests, those of the module first, and so much time."""
NOTICED, REFUSED, SURVIVED, UNDECIDED = "noticed", "refused by types", "survived", "undecided"
_COMPARED = {
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,), ast.NotIn: (ast.In,), ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
}  # fmt: skip
_BOUNDARIES = {(ast.Lt, ast.LtE), (ast.LtE, ast.Lt), (ast.Gt, ast.GtE), (ast.GtE, ast.Gt)}
_CALLED = {"min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list"}
"""Functions, and what is called in place of each."""
_CALCULATED = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
}  # fmt: skip
_CLOCK = re.compile(r"\btime\.(monotonic|time)\(")
"""The clock of the host, where no test can give an instant."""
_LOGS = ("log", "_log", "LOG", "LOGGER", "logging")
_SAME = {"strict", "slots", "frozen", "eq", "kw_only", "repr"}
"""Arguments that change nothing which a right program does."""
_WAIT = re.compile(r"(.*_)?(SECONDS|PAUSES?|TRIES|ATTEMPTS)")
"""Names of constants that say how long, or how often, something is tried: one more is as right."""
_BOUND = re.compile(r"_?(MAX|MOST|SPARE)(_.*)?|.*_(BYTES|LIMIT|MAX|MOST)")
_LARGE = 1000
"""From here on one more or less of a bound decides nothing; what compares with the bound has mutants of its own."""


@dataclass(frozen=True, slots=True)
class Mutant:
    kind: str
    path: str
    line: int
    statement: range
    """the lines of the statement that changes, without its body"""
    change: str
    """for people: the lines as they were, and as they are"""
    source: bytes
    """of the whole module"""


def mutants(path: str, source: bytes) -> Iterator[Mutant]:
    """All mutants of a module, in the order of its lines."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    changes, tree = [], ast.parse(source)
    statements = [_lines(node) for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    for kind, node, other in _changes(tree):
        first, last = node.lineno, node.end_lineno or node.lineno
        begin, end = starts[first - 1] + node.col_offset, starts[last - 1] + (node.end_col_offset or 0)
        text = ast.unparse(other).encode()
        text = b"(%s)" % text if isinstance(other, ast.BoolOp | ast.Compare | ast.BinOp) else text
        before, after = source[starts[first - 1] : begin], source[end : starts[last]]
        original, mutant = (" ".join((before + part + after).decode().split()) for part in (source[begin:end], text))
        statement = min((lines for lines in statements if first in lines), key=len, default=range(first, last + 1))
        source_of_mutant = source[:begin] + text + source[end:]
        changes.append(Mutant(kind, path, first, statement, f"{original} -> {mutant}", source_of_mutant))
    yield from sorted(changes, key=lambda one: one.line)


def _lines(node: ast.stmt) -> range:
    """From its first decorator to where its body begins."""
    body = node.body if isinstance(node, _WITH_BODY) else ()
    begin = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
    return range(begin, max(begin + 1, body[0].lineno) if body else (node.end_lineno or node.lineno) + 1)


_WITH_BODY = (
    ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.For | ast.AsyncFor | ast.While | ast.If | ast.With
    | ast.AsyncWith | ast.Try
)  # fmt: skip

Change = tuple[str, ast.expr | ast.stmt, ast.expr | ast.stmt]
"""Its kind, a part of a program, and what takes its place."""


def _changes(tree: ast.AST) -> Iterator[Change]:
    """Annotations, assertions, the log, and what no test can or should notice are left alone."""
    for node in _children(tree):
        if isinstance(node, ast.Assert | ast.JoinedStr) or _is_logging(node) or _is_typing(node) or _is_rough(node):
            continue
        if isinstance(node, ast.Compare):
            yield from _comparisons(node)
        elif isinstance(node, ast.BoolOp):
            yield "and, or", node, ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield "negation", node, node.operand
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield "True, False", node, ast.Constant(not node.value)
        elif isinstance(node, ast.Constant) and isinstance(node.value, int):
            yield "number", node, ast.Constant(1 - node.value if node.value in (0, 1) else node.value + 1)
        elif isinstance(node, ast.BinOp) and type(node.op) in _CALCULATED and not _is_text(node):
            yield "arithmetic", node, ast.BinOp(node.left, _CALCULATED[type(node.op)](), node.right)
        elif isinstance(node, ast.Call):
            yield from _calls(node)
        elif isinstance(node, ast.stmt):
            yield from _statements(node)
        if isinstance(node, ast.If | ast.IfExp | ast.While) and isinstance(node.test, _PLAIN):
            yield "negation", node.test, ast.UnaryOp(ast.Not(), node.test)
        yield from _changes(node)


_PLAIN = ast.Name | ast.Attribute | ast.Call | ast.Subscript
"""Conditions that have no other mutant which turns them round."""


def _comparisons(node: ast.Compare) -> Iterator[Change]:
    for position, operator in enumerate(node.ops):
        for kind in _COMPARED[type(operator)]:
            ops = [*node.ops[:position], kind(), *node.ops[position + 1 :]]
            is_boundary = (type(operator), kind) in _BOUNDARIES
            if is_boundary and any(_CLOCK.search(ast.unparse(side)) for side in (node.left, *node.comparators)):
                continue
            yield "boundary" if is_boundary else "comparison", node, ast.Compare(node.left, ops, node.comparators)


def _statements(node: ast.stmt) -> Iterator[Change]:
    match node:
        case ast.Return(value) if value is not None and ast.unparse(value) != "None":
            yield "return None", node, ast.Return(ast.Constant(None))
        case ast.Raise():
            yield "no raise", node, ast.Pass()
        case ast.Expr(ast.Call() | ast.Await()):
            yield "no call", node, ast.Pass()
        case ast.Assign([ast.Attribute() | ast.Subscript()]) | ast.AugAssign(ast.Attribute() | ast.Subscript()):
            yield "no assignment", node, ast.Pass()


def _calls(node: ast.Call) -> Iterator[Change]:
    """Another function, and the first two arguments the other way round."""
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if name in _CALLED:
        yield "function", node, ast.Call(ast.Name(_CALLED[name]), node.args, node.keywords)
    is_symmetric = name in ("min", "max") and not node.keywords
    if len(node.args) > 1 and not is_symmetric and not any(isinstance(each, ast.Starred) for each in node.args[:2]):
        first, second, *others = node.args
        if ast.dump(first) != ast.dump(second):
            yield "order of arguments", node, ast.Call(node.func, [second, first, *others], node.keywords)


def _is_text(node: ast.BinOp) -> bool:
    """Whether a side is a text, of which an operator makes no other one."""
    return any(
        isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in (node.left, node.right)
    )


def _children(node: ast.AST) -> Iterator[ast.AST]:
    for name, value in ast.iter_fields(node):
        for part in value if isinstance(value, list) else [value]:
            is_same = isinstance(part, ast.keyword) and part.arg in _SAME
            if isinstance(part, ast.AST) and name not in ("annotation", "returns") and not is_same:
                yield part


def _is_rough(node: ast.AST) -> bool:
    """Whether it is a constant of waiting, a large bound, a pause with some chance in it, or the size of a cache; or
    flushes the output of errors, which has no buffer."""
    match node:
        case ast.Assign([ast.Name(name)], value) | ast.AnnAssign(ast.Name(name), _, value) if value is not None:
            return bool(_WAIT.fullmatch(name) or (_BOUND.fullmatch(name) and _is_large(value)))
        case ast.BinOp():
            return any(isinstance(part, ast.Attribute) and part.attr == "uniform" for part in ast.walk(node))
        case ast.Call(ast.Attribute(ast.Name("time" | "random"), "sleep" | "uniform")) | ast.Call(
            ast.Name("lru_cache")
        ):
            return True
        case ast.Expr(value):
            return ast.unparse(value) in ("sys.stderr.flush()", "time.sleep(0)")
    return False


def _is_large(value: ast.expr) -> bool:
    """Whether a number, or a sum or product of numbers, is."""
    if not all(isinstance(part, ast.Constant | ast.BinOp | ast.operator) for part in ast.walk(value)):
        return False
    number = eval(compile(ast.Expression(value), "", "eval"), {})
    return isinstance(number, int) and number >= _LARGE


def _is_logging(node: ast.AST) -> bool:
    called = node.value.func if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None
    return isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id in _LOGS


def _is_typing(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


# -- which modules, and which tests ----------------------------------------------------------------------------------


def is_ours(path: str) -> bool:
    return path.endswith(".py") and "_pb2" not in path and any(path.startswith(f"{root}/") for root in ROOTS)


def changed(tree: Path, base: str) -> list[str]:
    """The modules of ours that differ from where this branch left ``base``, uncommitted changes included."""
    began = _git(tree, "merge-base", base, "HEAD")[0]
    paths = {*_git(tree, "diff", "--name-only", began), *_git(tree, "ls-files", "--others", "--exclude-standard")}
    return sorted(path for path in paths if is_ours(path) and (tree / path).exists())


def every_module(tree: Path) -> list[str]:
    return [path for path in _git(tree, "ls-files") if is_ours(path) and (tree / path).is_file()]


def unit_tests_of(tree: Path, path: str, more: Mapping[str, Sequence[str]]) -> list[str]:
    """The unit tests of a module: those of its package that have its name or its folder's, those that import it, and
    those that ``mutants.toml`` names."""
    root = next(root for root in ROOTS if path.startswith(f"{root}/"))
    parts = Path(path).relative_to(root).with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    if root == "devalloc":
        folder, names = tree / "tests/unit" / "/".join(parts[:1]), parts[1:][-2:]
    else:
        folder, names = tree / "tests/unit" / ROOTS[root], parts[-2:]
    package, _, name = (dotted := ".".join((Path(root).name, *parts))).rpartition(".")
    whole, part = rf"(from|import) {re.escape(dotted)}\b(?!\.)", rf"from {re.escape(package)} import .*\b{name}\b"
    imported = re.compile(rf"^ *({whole}|{part})", re.MULTILINE)
    tests = set(more.get(path, ()))
    for test in (tree / "tests/unit").rglob("test_*.py"):
        words = "_".join(test.relative_to(folder).with_suffix("").parts) if folder in test.parents else ""
        if any(f"_{name}_" in f"_{words}_" for name in names) or imported.search(test.read_text()):
            tests.add(test.relative_to(tree).as_posix())
    return sorted(tests)


def _git(tree: Path, *words: str) -> list[str]:
    return subprocess.run(["git", *words], cwd=tree, check=True, capture_output=True, text=True).stdout.splitlines()


# -- runs ------------------------------------------------------------------------------------------------------------


def _prepare_forks() -> None:
    """Import what each run needs, and leave it out of garbage collections, which would copy its memory."""
    for library in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(library)
    for plugin in importlib.metadata.entry_points(group="pytest11"):
        plugin.load()
    gc.freeze()


class Copy:
    """A copy of the tree, in which one run at a time goes on."""

    def __init__(self, tree: Path, folder: Path) -> None:
        self.folder = folder
        self._child = 0
        self._changed: tuple[str, bytes] | None = None
        """A module that is not as it was, and what it was."""
        for name in _git(tree, "ls-files", "--cached", "--others", "--exclude-standard"):
            if (tree / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(tree / name, folder / name)

    def start(self, tests: Sequence[str], path: str, source: bytes, limit: float = math.inf, *, keep: bool) -> None:
        """Run tests with a module of this source. ``keep``: the bytecode, of which an old one may be taken for new."""
        if self._changed is not None and self._changed[0] != path:
            self._write(*self._changed)
        if self._changed is None or self._changed[0] != path:
            self._changed = path, (self.folder / path).read_bytes()
        self._write(path, source)
        (self.folder / "tests-to-run").write_text("\n".join(tests))  # may be too many for a command line
        self._ends = time.monotonic() + limit
        self._child = os.fork()
        if not self._child:
            self._test(keep)

    def start_without_mutant(self, tests: Sequence[str], limit: float = math.inf) -> None:
        """Run tests with the module of the last ``start`` as it was."""
        assert self._changed is not None
        self.start(tests, *self._changed, limit, keep=False)

    def checked(self, cache: Path, mutant: Mutant | None = None) -> int:
        """The exit code of the type check, with a mutant or without one."""
        if self._changed is not None:
            self._write(*self._changed)
        if mutant is not None:
            self._changed = mutant.path, (self.folder / mutant.path).read_bytes()
            self._write(mutant.path, mutant.source)
        command = [sys.executable, "-m", "mypy", "--cache-dir", str(cache)]
        return subprocess.run(command, cwd=self.folder, capture_output=True, check=False).returncode

    def _write(self, path: str, source: bytes) -> None:
        file = self.folder / path
        file.write_bytes(source)
        for old in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
            old.unlink()

    @property
    def output(self) -> str:
        """Of the last run."""
        return (self.folder / "output").read_text(errors="replace")

    def poll(self) -> int | None:
        """The exit code of pytest, HUNG, or None as long as it runs. What it has started ends with it."""
        pid, status = os.waitpid(self._child, os.WNOHANG)
        if not pid and time.monotonic() < self._ends:
            return None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child, signal.SIGKILL)
        if not pid:
            os.waitpid(self._child, 0)
        return os.waitstatus_to_exitcode(status) if pid else HUNG

    def wait(self) -> int:
        while (code := self.poll()) is None:
            time.sleep(0.02)
        return code

    def _test(self, keep: bool) -> None:
        """In the child."""
        code = 3
        try:
            os.setsid()
            os.chdir(self.folder)
            output = os.open("output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for descriptor in (1, 2):
                os.dup2(output, descriptor)
            sys.dont_write_bytecode = not keep
            os.environ |= {} if keep else {"PYTHONDONTWRITEBYTECODE": "1"}
            sources = [str(self.folder / path) for path in PATHS]
            os.environ["PYTHONPATH"] = os.pathsep.join(sources)
            sys.path[:0] = sources
            for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
                del sys.modules[name]
            pytest = importlib.import_module("pytest")
            code = int(pytest.main(["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "@tests-to-run"]))
            sys.stdout.flush()
        finally:
            os._exit(code)


@dataclass(frozen=True, slots=True)
class Trial:
    mutant: Mutant
    tests: Sequence[str]
    """that may notice it"""


def outcomes(
    copies: Sequence[Copy],
    trials: Sequence[Trial],
    limit: float,
    decided: Callable[[int, Mutant, str], None] = lambda number, mutant, result: None,
) -> list[str]:
    """What became of each mutant. One that hangs is noticed. ``decided``: called with each, and how many are."""
    results, left = dict[int, str](), [*enumerate(trials)]
    running = dict[Copy, tuple[int, Generator[None, None, str]]]()
    while left or running:
        for copy in copies:
            if copy not in running and left:
                number, trial = left.pop(0)
                running[copy] = number, _deciding(copy, trial, limit)
            if copy in running:
                number, steps = running[copy]
                try:
                    next(steps)
                except StopIteration as end:
                    results[number] = end.value
                    del running[copy]
                    decided(len(results), trials[number].mutant, end.value)
        time.sleep(0.02)
    return [results[number] for number in range(len(trials))]


def _deciding(copy: Copy, trial: Trial, limit: float) -> Generator[None, None, str]:
    """Goes on at each ``next``. A test that fails without the mutant too has noticed nothing."""
    mutant, tests = trial.mutant, trial.tests
    if not tests:
        return SURVIVED
    for _ in range(3):
        if not tests:
            break
        copy.start(tests, mutant.path, mutant.source, limit, keep=False)
        while (code := copy.poll()) is None:
            yield
        if code == 0:
            return SURVIVED
        if code == 4:  # there is no such test
            return UNDECIDED
        if code == HUNG:  # or they take so long without it, too
            copy.start_without_mutant(tests, limit / FACTOR)
            while (code := copy.poll()) is None:
                yield
            return UNDECIDED if code == HUNG else NOTICED
        if code not in (1, 2):  # it crashes; these are tests that failed, or could not be collected
            return NOTICED
        failed = re.findall(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", copy.output, re.MULTILINE)
        copy.start_without_mutant(failed or tests, limit)
        while (code := copy.poll()) is None:
            yield
        if code == 0:
            return NOTICED
        tests = [test for test in tests if test not in failed] if failed else ()
    return UNDECIDED


def judge(tree: Path, path: str, copies: Sequence[Copy], settings: Settings, most: int, seed: int = 0) -> bool | None:
    """Whether all mutants of a module are noticed or accepted, with the others printed. None: unknown. Of more than
    ``most``, some are drawn by the seed."""
    tests, source = unit_tests_of(tree, path, settings.get("tests", {})), (tree / path).read_bytes()
    chosen, count = _drawn_mutants(path, source, most, seed)
    if not chosen:
        return True
    if not tests:
        print(f"{path}: no unit tests have its name or import it; name them in {SETTINGS}", flush=True)
        return None
    began = time.monotonic()
    for copy in copies:
        copy.start(tests, path, source, keep=True)
    if any(code != 0 for code in [copy.wait() for copy in copies]):
        print(f"{path}: its tests fail without a mutant:", copies[0].output[-3000:], sep="\n")
        return None
    limit = FACTOR * (time.monotonic() - began) + SLACK
    results = outcomes(copies, [Trial(one, tests) for one in chosen], limit)
    notice_by_types(tree, copies[0], chosen, results)
    left, accepted = _left(chosen, results, settings)
    print(
        f"{path}: {len(chosen)} of {count} mutants, {len(left)} survived, {accepted} accepted, "
        f"{results.count(UNDECIDED)} undecided; {len(tests)} test modules, {time.monotonic() - began:.0f} s",
        flush=True,
    )
    return not left


def _drawn_mutants(path: str, source: bytes, most: int, seed: int) -> tuple[list[Mutant], int]:
    """At most so many of a module, and of how many."""
    every = [*mutants(path, source)]
    draw = random.Random(f"{seed or ''}{path}")
    few = every if len(every) <= most else sorted(draw.sample(every, most), key=lambda one: one.line)
    return few, len(every)


def of_each_kind(every: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """So many, as many of each kind as there are. Otherwise four in ten would be swapped arguments and ``return None``,
    of which nearly all end in a TypeError: easy to notice."""
    draw, kinds = random.Random(seed), defaultdict[str, list[Mutant]](list)
    for one in draw.sample(every, len(every)):
        kinds[one.kind].append(one)
    turns = itertools.chain.from_iterable(itertools.zip_longest(*(kinds[kind] for kind in sorted(kinds))))
    return sorted(itertools.islice(filter(None, turns), count), key=lambda one: (one.path, one.line, one.change))


def notice_by_types(tree: Path, copy: Copy, chosen: Sequence[Mutant], results: list[str]) -> None:
    """Let the type check have a look at what survived: nothing that it refuses is merged."""
    alive = [number for number, result in enumerate(results) if result == SURVIVED]
    cache = copy.folder.with_name("types")
    if (tree / ".mypy_cache").is_dir():
        shutil.copytree(tree / ".mypy_cache", cache)
    if not alive or copy.checked(cache) != 0:
        return
    for number in alive:
        if copy.checked(cache, chosen[number]) == 1:  # 2: the program is none
            results[number] = REFUSED


def _left(
    chosen: Sequence[Mutant],
    results: Sequence[str],
    settings: Settings,
    is_run: Callable[[Mutant], bool] = lambda mutant: True,
) -> tuple[list[Mutant], int]:
    """Print and return the mutants that survived, and how many others are accepted. ``is_run``: by any test."""
    alive = [one for one, result in zip(chosen, results, strict=True) if result == SURVIVED]
    left = [one for one in alive if one.change not in settings.get("accepted", {}).get(one.path, {})]
    for one in left:
        print(f"{one.path}:{one.line}: {one.change}{'' if is_run(one) else NOT_RUN}", flush=True)
    return left, len(alive) - len(left)


def survey(
    tree: Path,
    paths: Iterable[str],
    copies: Sequence[Copy],
    settings: Settings,
    seen: CoverageMap,
    *,
    count: int,
    seed: int,
    allowed: float = 0.0,
) -> bool:
    """Whether of all modules' mutants together, of which so many are drawn, no more than this part survives that is not
    accepted. Prints those that do, and two tables."""
    every = [one for path in paths for one in mutants(path, (tree / path).read_bytes())]
    chosen = of_each_kind(every, count, seed)
    if not chosen:
        return True
    for copy in copies:  # without a mutant, to have the bytecode of all modules
        copy.start([*tiers(tree), "--collect-only"], chosen[0].path, (tree / chosen[0].path).read_bytes(), keep=True)
    for copy in copies:
        copy.wait()
    trials = [Trial(one, _tests_of(tree, one, settings, seen, seed)) for one in chosen]

    def show(number: int, one: Mutant, result: str) -> None:
        print(f"{number} of {len(chosen)}: {result}: {one.path}:{one.line}", file=sys.stderr, flush=True)

    results = outcomes(copies, trials, MOST_SECONDS, show)
    notice_by_types(tree, copies[0], chosen, results)
    left, accepted = _left(chosen, results, settings, lambda one: bool(_running(one, seen)))
    for title, of in (("kind", lambda one: one.kind), ("folder", lambda one: "/".join(one.path.split("/")[:-1][:3]))):
        _print_table(title, [of(one) for one in chosen], results)
    decided = results.count(NOTICED) + results.count(REFUSED) + len(left)
    share = len(left) / max(1, decided)
    print(f"{len(left)} of {decided} decided ones survived ({share:.0%}); {accepted} are accepted")
    return share <= allowed


def _print_table(title: str, names: Sequence[str], results: Sequence[str]) -> None:
    rows = defaultdict[str, Counter[str]](Counter)
    for name, result in zip(names, results, strict=True):
        rows[name][result] += 1
    columns = (NOTICED, REFUSED, SURVIVED, UNDECIDED)
    print(f"| {title} | mutants | {' | '.join(columns)} |", "|---" * 6 + "|", sep="\n")
    for name, row in (*sorted(rows.items()), ("all", Counter(results))):
        print("|", " | ".join(map(str, (name, row.total(), *(row[column] for column in columns)))), "|")
    print()


def _running(mutant: Mutant, seen: CoverageMap) -> list[str]:
    return seen.tests_of(mutant.path, mutant.statement)


def _tests_of(tree: Path, mutant: Mutant, settings: Settings, seen: CoverageMap, seed: int) -> list[str]:
    """What runs it, at most MOST_TESTS, of which half can be those of its module, all that have its name before others,
    and three quarters with those of its package. Each test module gives one in turn: tests of one module are alike. The
    quick ones come first."""
    own = unit_tests_of(tree, mutant.path, settings.get("tests", {}))
    named = [module for module in own if Path(module).stem == f"test_{Path(mutant.path).stem}"]
    running = _running(mutant, seen)
    if not running:
        return own
    draw, by_module = random.Random(seed), defaultdict[str, list[str]](list)
    for test in draw.sample(running, len(running)):
        by_module[test.partition("::")[0]].append(test)
    package = _tests_of_package(mutant.path)
    chosen = list[str]()
    for most, concerned in (
        (MOST_TESTS // 2, [module for module in named if module in by_module]),
        (MOST_TESTS // 2, [module for module in own if module in by_module]),
        (MOST_TESTS * 3 // 4, [module for module in by_module if module.startswith(f"{package}/")]),
        (MOST_TESTS, [*by_module]),
    ):
        turns = itertools.chain.from_iterable(
            itertools.zip_longest(*(by_module.pop(module) for module in concerned if module in by_module))
        )
        some = itertools.islice(filter(None, turns), max(0, most - len(chosen)))
        chosen += sorted(some, key=lambda test: (not test.startswith("tests/unit/"), test))
    return chosen


def _tests_of_package(path: str) -> str:
    """The folder of the unit tests of a module's package."""
    root = next(root for root in ROOTS if path.startswith(f"{root}/"))
    return f"tests/unit/{Path(path).relative_to(root).parts[0] if root == 'devalloc' else ROOTS[root]}"


def main(arguments: Sequence[str]) -> int:
    """0: no mutant survived; 1: some did; 2: of a module it could not be told."""
    parser = argparse.ArgumentParser(
        description="Change modules in one place at a time, and see their unit tests fail."
    )
    parser.add_argument("modules", nargs="*", help="files; without any those that differ from BASE")
    parser.add_argument("--base", help="a branch or commit (default: main; with --survey: all modules)")
    parser.add_argument(
        "--most", type=int, default=60, help="mutants of a module, drawn; the same each time (default: 60)"
    )
    parser.add_argument("--seed", type=int, default=0, help="draws other mutants")
    parser.add_argument("--survey", type=int, metavar="N", help="N mutants of all modules together, by a coverage map")
    parser.add_argument(
        "--allow", type=float, default=0, metavar="PERCENT", help="of --survey: so many may survive (default: 0)"
    )
    parser.add_argument("--map", type=Path, default=MAP, help=f"of --survey: recorded if it is not there ({MAP})")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time (default: 2)")
    chosen = parser.parse_args(arguments)
    tree = Path.cwd()
    if others := [path for path in chosen.modules if not (is_ours(path) and (tree / path).is_file())]:
        parser.error(f"{others[0]} is not a module of {', '.join(ROOTS)}")
    _prepare_forks()
    settings = tomllib.loads((tree / SETTINGS).read_text())
    with tempfile.TemporaryDirectory(prefix="devalloc-mutants-") as folder:
        if chosen.survey is not None and not chosen.map.exists():
            record(tree, chosen.map, [root for root in ROOTS if (tree / root).is_dir()], chosen.jobs)
        copies = [Copy(tree, Path(folder) / str(number)) for number in range(chosen.jobs)]
        if chosen.modules:
            paths = chosen.modules
        elif chosen.survey is not None and not chosen.base:
            paths = every_module(tree)
        else:
            paths = changed(tree, chosen.base or "main")
        if chosen.survey is not None:
            seen = CoverageMap(chosen.map)
            limits = {"count": chosen.survey, "seed": chosen.seed, "allowed": chosen.allow / 100}
            return int(not survey(tree, paths, copies, settings, seen, **limits))
        results = [judge(tree, path, copies, settings, chosen.most, chosen.seed) for path in paths]
    return 2 if None in results else int(False in results)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
