"""All functions of the library, but for those whose outcome depends on how a dialect compares (``lists``)."""

from __future__ import annotations

from devalloc_solver.cel.library import (
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
from devalloc_solver.cel.registry import Overload

FUNCTIONS: tuple[Overload, ...] = (
    *operators.FUNCTIONS,
    *conversions.FUNCTIONS,
    *strings.FUNCTIONS,
    *formatting.FUNCTIONS,
    *lists.FUNCTIONS,
    *quantities.FUNCTIONS,
    *versions.FUNCTIONS,
    *addresses.FUNCTIONS,
    *urls.FUNCTIONS,
    *formats.FUNCTIONS,
)
