"""Python's cyclic garbage collector, kept quiet while much is built."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_collector() -> Iterator[None]:
    """No cyclic collection inside; afterwards as it was before.

    A fleet is millions of objects that live on, and next to none of what a solve throws away is cyclic. The collector
    would walk all of them every so often, which takes longer than the solve itself.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
