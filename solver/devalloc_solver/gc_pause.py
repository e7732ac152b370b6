"""Pause Python's cyclic garbage collector while many objects are built."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

COLLECTION_THRESHOLD = 200_000
"""Blocks of memory, about 20 MB: what takes the collector long enough to be noticed."""


@contextmanager
def gc_paused(*, settle: bool = False) -> Iterator[None]:
    """No cyclic collection inside; afterwards as it was before.

    A fleet is millions of objects that live on, and next to none of what a solve throws away is cyclic. The collector
    would walk all of them every so often, which takes longer than the solve itself.

    With ``settle`` the collector looks at what was built before this returns, if that is much. It does so once in any
    case, and else makes some small call later take as long as that.
    """
    was_enabled = gc.isenabled()
    before = sys.getallocatedblocks() if settle else 0  # which goes through the whole heap
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
            if settle and sys.getallocatedblocks() - before > COLLECTION_THRESHOLD:
                gc.collect()
