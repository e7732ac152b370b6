"""All functions by name."""

from __future__ import annotations

from devalloc_solver.cel.kubernetes.library import (
    addresses,
    conversions,
    formats,
    formatting,
    lists,
    operators,
    quantities,
    strings,
    urls,
    versions,
)
from devalloc_solver.cel.kubernetes.library.registry import Function, functions_by_name

FUNCTIONS: dict[str, Function] = functions_by_name(
    operators.FUNCTIONS,
    conversions.FUNCTIONS,
    strings.FUNCTIONS,
    formatting.FUNCTIONS,
    lists.FUNCTIONS,
    quantities.FUNCTIONS,
    versions.FUNCTIONS,
    addresses.FUNCTIONS,
    urls.FUNCTIONS,
    formats.FUNCTIONS,
)
