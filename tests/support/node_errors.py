"""Errors of a node by their codes, which tell programs what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from devalloc_node.errors import NodeError

Error = TypeVar("Error", bound=NodeError)


@contextmanager
def raises(
    error: type[Error], code: str, *, retryable: bool | None = None, match: str | None = None
) -> Iterator[pytest.ExceptionInfo[Error]]:
    """As ``pytest.raises``, of an error with this code. ``retryable``: whether the same request may succeed later."""
    __tracebackhide__ = True
    with pytest.raises(error, match=match) as raised:
        yield raised
    seen = (raised.value.code, None if retryable is None else raised.value.retryable)
    assert seen == (code, retryable), f"{seen} is not {(code, retryable)}: {raised.value.message}"
