"""From text to a type-checked tree: the official runtime's parser and type checker.

The runtime is imported and its environment built on the first use (tens of milliseconds), once for each set of gates.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from devalloc_solver.cel.errors import CompileError
from devalloc_solver.cel.kubernetes.checked_expression import CheckedExpression, decode
from devalloc_solver.cel.kubernetes.declarations import GATES, LIST_GATE, environment_text
from devalloc_solver.cel.kubernetes.validation import validate

MAX_LENGTH = 10 * 1024
"""Bytes of an expression."""

MAX_DOUBLINGS = 6
"""Uses of optMap and optFlatMap: each copies what it is applied to, so that a chain of them grows exponentially."""

_DOUBLING = re.compile(r"\.\s*opt(?:Flat)?Map\s*\(")
_POSITION = re.compile(r"ERROR: <input>:(-?\d+):(-?\d+): (.*)")
_STATUS = re.compile(r"^[A-Z_]+: |\s*\[[A-Z_]+\]$")
_WHOLE = re.compile(r"has\s*\(\s*device\s*\.\s*\w+\s*\)")


def parse_and_check(text: str, gates: frozenset[str]) -> CheckedExpression:
    """Parse ``text`` and give every part its type. Raises CompileError."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise CompileError("the expression is not valid Unicode", 1, error.start + 1) from None
    if size > MAX_LENGTH:
        raise CompileError(f"the expression has {size} bytes, at most {MAX_LENGTH} are allowed")
    if len(_DOUBLING.findall(text)) > MAX_DOUBLINGS:
        raise CompileError(f"optMap and optFlatMap may be used {MAX_DOUBLINGS} times")
    whole = _WHOLE.search(text) is not None  # has(device.driver): the checker must see a field, not a variable
    try:
        compiled = _environment(gates & GATES, whole).compile(text)
        checked = decode(compiled.serialize())
        validate(checked, text, gates)
    except RecursionError:
        raise CompileError("the expression is nested too deeply") from None
    except (RuntimeError, ValueError, TypeError) as error:
        if isinstance(error, CompileError):
            raise
        raise _compile_error(str(error), gates) from None
    return checked


@lru_cache(maxsize=8)
def _environment(gates: frozenset[str], whole: bool) -> Any:
    from cel_expr_python import cel

    return cel.NewEnv(config=cel.NewEnvConfigFromYaml(environment_text(gates, whole)))


def _compile_error(report: str, gates: frozenset[str]) -> CompileError:
    """The runtime's report, cut down to its first error; what a gate would allow names that gate."""
    first = _POSITION.search(report)
    message = _STATUS.sub("", first[3] if first else report).strip()
    if "'includes'" in message and LIST_GATE not in gates:
        message += f"; it needs the feature gate {LIST_GATE}"
    if first is None:
        return CompileError(message)
    return CompileError(message, max(1, int(first[1])), max(1, int(first[2])))
