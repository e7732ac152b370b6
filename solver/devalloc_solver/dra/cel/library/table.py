"""All functions by name."""

from __future__ import annotations

from devalloc_solver.dra.cel.library import (
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
from devalloc_solver.dra.cel.library.registry import Function, collect

FUNCTIONS: dict[str, Function] = collect(
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
