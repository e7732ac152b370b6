"""A function imports only what its module need not pay for: what costs long, or what an extra brings."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.repository import REPO

ROOTS = {"devalloc": REPO} | {
    path.parent.name: path.parents[1]
    for root in ("solver", "node-plugin")
    for path in (REPO / root).glob("*/__init__.py")
}
"""Where each package is."""
COSTLY = {"pydantic", "yaml", "rich", "sqlite3"}
"""Of the packages that each installation has, those that take 10 ms or more. Any other package may be missing."""
CHEAP = {"click", "typing_extensions", *sys.stdlib_module_names}
MANY = 3
"""So many modules of ours cost as much."""
OPTIONS = sorted(path.stem for path in (REPO / "devalloc/cli/options").glob("[a-z]*.py"))
"""Modules that a help loads."""
LIMIT = 183
"""How many such imports there are: lower it, never raise it."""


def path_of(module: str) -> Path | None:
    root = ROOTS.get(module.partition(".")[0])
    if root is None:
        return None
    base = root.joinpath(*module.split("."))
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


def modules_in(package: str) -> Iterator[str]:
    root = ROOTS[package.partition(".")[0]]
    for path in root.joinpath(*package.split(".")).rglob("*.py"):
        yield ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


@cache
def tree(module: str) -> ast.Module:
    path = path_of(module)
    assert path is not None
    return ast.parse(path.read_text())


def named(statement: ast.stmt) -> set[str]:
    """The modules that an import names."""
    if isinstance(statement, ast.Import):
        return {alias.name for alias in statement.names}
    if not isinstance(statement, ast.ImportFrom) or statement.module is None:
        return set()
    below = {f"{statement.module}.{alias.name}" for alias in statement.names}
    return {statement.module} | {module for module in below if path_of(module) is not None}


def top_imports(body: list[ast.stmt]) -> Iterator[str]:
    for statement in body:
        if isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING":
            continue
        yield from named(statement)
        for block in ("body", "orelse", "finalbody"):
            if isinstance(statement, ast.If | ast.Try | ast.With | ast.ClassDef):
                yield from top_imports(getattr(statement, block, []))


@cache
def loaded_by(module: str) -> frozenset[str]:
    """All modules that are imported with one."""
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        parts = name.split(".")
        waiting += [".".join(parts[:count]) for count in range(1, len(parts))]
        if path_of(name) is not None:
            waiting += top_imports(tree(name).body)
    return frozenset(seen)


def local_imports(module: str) -> Iterator[tuple[int, set[str]]]:
    """The imports in functions of a module: line and what they name."""
    for function in ast.walk(tree(module)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in ast.walk(function):
                if isinstance(statement, ast.Import | ast.ImportFrom):
                    yield statement.lineno, named(statement)


def costs(names: set[str], before: frozenset[str]) -> bool:
    new = frozenset[str]().union(*map(loaded_by, names)) - before
    ours = {name for name in new if name.partition(".")[0] in ROOTS}
    roots = {name.partition(".")[0] for name in new - ours}
    lazy = any("__getattr__" in ast.unparse(tree(name)) for name in names if path_of(name) is not None)
    return lazy or len(ours) >= MANY or bool(roots - CHEAP | roots & COSTLY)


def test_what_costs_nothing_is_imported_at_the_top() -> None:
    light = loaded_by("devalloc.cli.main").union(*(loaded_by(f"devalloc.cli.options.{each}") for each in OPTIONS))
    needless = []
    for module in sorted({*modules_in("devalloc.cli")} - light):
        before = light | loaded_by(module)
        for line, names in {(line, frozenset(names)) for line, names in local_imports(module)}:
            if not costs(set(names), before):
                needless.append(f"{module}:{line}: {', '.join(sorted(names))}")
    assert needless == []


@pytest.mark.parametrize("subject", OPTIONS)
def test_a_help_loads_nothing_that_costs(subject: str) -> None:
    loaded = loaded_by("devalloc.cli.main") | loaded_by(f"devalloc.cli.options.{subject}")
    packages = {name.partition(".")[0] for name in loaded}
    assert packages - ROOTS.keys() <= CHEAP
    assert not packages & COSTLY
    assert "devalloc.cli.verbs" not in loaded  # what the verbs do


@pytest.mark.parametrize(
    ("module", "spared"),
    [
        ("devalloc.machines.schedule.what_if", "asyncio"),  # what explain, solve and capacity ask
        ("devalloc.cli.documents", "devalloc.cli.target"),  # what reads manifests
        ("devalloc.cli.solver_input", "devalloc.cli.pod_claims"),  # where manifests have no pods
    ],
)
def test_a_question_about_manifests_loads_only_what_answers_it(module: str, spared: str) -> None:
    assert spared not in loaded_by(module)


def test_there_are_no_more_of_them() -> None:
    counted = {(module, line) for root in ROOTS for module in modules_in(root) for line, _ in local_imports(module)}
    assert len(counted) <= LIMIT
