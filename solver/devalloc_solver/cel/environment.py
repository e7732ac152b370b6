"""What makes a dialect: its variables and functions, how its values compare, and the wording of its errors.

The syntax tree, the closures, the values and the budget are the same for every dialect.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from devalloc_solver.cel.errors import EvaluationError
from devalloc_solver.cel.registry import Function
from devalloc_solver.cel.syntax_tree import Node
from devalloc_solver.cel.values import Frame

Run = Callable[[Frame], Any]
"""Evaluates a part of an expression. Raises EvaluationError."""


@dataclass(frozen=True, slots=True, eq=False)
class Environment:
    """One dialect. All functions raise EvaluationError for what has no answer."""

    functions: Mapping[str, Function]
    """by name; operators have the names of the syntax tree, such as ``_+_``"""
    variables: Mapping[str, Run]
    direct: Callable[[Node, Collection[str]], Run | None]
    """the closure of a node that reads a place in the device, without going through maps; the names are those of local
    variables, which hide the device"""
    equal: Callable[[Frame, Any, Any], bool]
    """``==``"""
    unequal: Callable[[Frame, Any, Any], bool]
    """``!=``"""
    contains: Callable[[Frame, Iterable[Any], Any], bool]
    """whether a list has an element that equals a value"""
    order_keys: Callable[[Frame, str, Any, Any], tuple[Any, Any]]
    """two keys that order as the two values do; the name is that of the operator, for its error"""
    get: Callable[[Any, Any], Any]
    """``container[key]`` and ``container.field``"""
    has: Callable[[Any, str], bool]
    """``has(container.field)``"""
    map_key: Callable[[Any], Any]
    """the form in which a ``dict`` holds a key; ``values.from_key`` gives the key back"""
    unique_keys: bool
    """whether a key that stands twice in a map is an error; otherwise the last one counts"""
    no_overload: Callable[..., EvaluationError]
    """the error for a function, by its name, that does not take the values that follow"""
