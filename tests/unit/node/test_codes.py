"""docs/node-codes.md tells every code of the node plugin, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
SELF = Path(__file__)
PAGE = ROOT / "docs" / "node-codes.md"
RAISED = ("Denied", "Failed", "Unknown", "NodeError", "Outcome")
"""Their first argument is a code."""
CODE = re.compile(r"[A-Z][a-z]+(?:[A-Z][a-z]+)*")
PREFIX = re.compile(rf"({CODE.pattern}): ")
ROW = re.compile(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


def words_of(value: ast.expr) -> list[str]:
    """Constants that an expression may be."""
    if isinstance(value, ast.IfExp):
        return words_of(value.body) + words_of(value.orelse)
    if isinstance(value, ast.BoolOp):
        return [word for each in value.values for word in words_of(each)]
    if isinstance(value, ast.Tuple):
        return words_of(value.elts[0])
    return [value.value] if isinstance(value, ast.Constant) and isinstance(value.value, str) else []


def called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def of_call(node: ast.Call) -> Iterator[str]:
    name = called(node)
    if name in RAISED and node.args:
        code = node.args[0]
        passed_on = isinstance(code, ast.Attribute) and code.attr in ("code", "reason")
        chosen = isinstance(code, ast.Name) and code.id == "code"  # its assignment is looked at below
        assert words_of(code) or passed_on or chosen, f"cannot tell the code of: {ast.unparse(node)}"
        yield from words_of(code)
    elif name == "become" and len(node.args) > 1:  # why a machine is as it is
        yield from words_of(node.args[1])
    elif name == "__init__" and node.args:  # of errors that always have the same code
        yield from (word for word in words_of(node.args[0]) if CODE.fullmatch(word))
    elif name == "ClaimError":  # what only the kubelet gets
        texts = (each for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str))
        yield from (match[1] for text in texts if (match := PREFIX.match(str(text.value))))


@cache
def in_the_code() -> set[str]:
    codes: set[str] = set()
    for path in (ROOT / "node-plugin").rglob("*.py"):
        if path.name.endswith(("_pb2.py", "_pb2_grpc.py")):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                codes.update(of_call(node))
            elif isinstance(node, ast.Assign):
                target = node.targets[0].elts[0] if isinstance(node.targets[0], ast.Tuple) else node.targets[0]
                if isinstance(target, ast.Name) and target.id == "code":
                    values = (
                        [node.value] if not isinstance(node.value, ast.IfExp) else [node.value.body, node.value.orelse]
                    )
                    codes.update(word for value in values for word in words_of(value))
    return {code for code in codes if code}


def test_every_code_is_on_the_page_once_with_what_it_means_and_what_to_do() -> None:
    rows = ROW.findall(PAGE.read_text())
    listed = [code for code, _, _ in rows]
    assert len(listed) == len(set(listed)), "one row each"
    assert listed, "the page has rows"
    assert in_the_code() - set(listed) == set(), "not on docs/node-codes.md"
    assert set(listed) - in_the_code() == set(), "no code of the node plugin (any more)"
    assert all(meaning.strip() and remedy.strip() for _, meaning, remedy in rows)


def test_codes_are_collected_from_every_form_of_raising_them() -> None:
    """Were they overlooked, the page could lack them unnoticed."""
    for code in (
        "QemuRefused",
        "GroupShared",
        "RestartNeeded",
        "StartUndone",
        "Unfinished",
        "Internal",
        "MachineEnded",
    ):
        assert code in in_the_code()
    assert len(in_the_code()) > 100


LATER: dict[str, str] = {}
"""Codes that only tests of real machines can provoke, each with the reason. It may become shorter."""


def test_a_test_without_a_machine_names_each_code() -> None:
    """A refusal that no test provokes can go unnoticed."""
    folders = (ROOT / "tests" / "unit", ROOT / "tests" / "conformance")
    tests = "\n".join(path.read_text() for folder in folders for path in folder.rglob("*.py") if path != SELF)
    named = set(re.findall(r"\b[A-Z][A-Za-z]+\b", tests))
    assert in_the_code() - named == LATER.keys()
