"""Pause Python's cyclic garbage collector while many objects are built, and keep it off those that stay."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

COLLECTION_THRESHOLD = 200_000
"""Blocks of memory, about 20 MB: what takes the collector long enough to be noticed."""


@contextmanager
def gc_paused(*, settle: bool = False, freeze: bool | None = None) -> Iterator[None]:
    """No cyclic collection inside; afterwards as it was before.

    A fleet is millions of objects that live on, and next to none of what a solve throws away is cyclic. The collector
    would walk all of them every so often, which takes longer than the solve itself.

    With ``settle`` the collector looks at what was built before this returns, if that is much. It does so once in any
    case, and else makes some small call later take as long as that. With ``freeze`` too, it leaves that alone for good
    (``freeze_objects``), and however much it is, what stays after a later collection that takes long. None: it looks
    only in a process where that is so, and so at nothing else.
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
                if freeze:
                    freeze_objects()
                elif freeze is False or _freeze_after_long_collection in gc.callbacks:
                    gc.collect()
            elif freeze and _freeze_after_long_collection not in gc.callbacks:
                gc.callbacks.append(_freeze_after_long_collection)


LONG_COLLECTION = 0.01
"""Seconds of a collection after which what it left is exempt from the next ones."""


def freeze_objects() -> None:
    """Exempt all objects that there are now in the process from garbage collections: a look at all of a large fleet
    takes half a second, whatever call it happens in.

    What has stayed after a later collection that took long is exempt, too. Objects are still freed with the last
    reference to them. Of those that refer to each other in a circle, this frees what earlier calls exempted; the first
    call frees none: a load leaves less than a hundred, and to look for them takes 0.9 s with 140,000 devices.
    """
    if _freeze_after_long_collection in gc.callbacks:
        gc.unfreeze()
        gc.collect()
    else:
        gc.callbacks.append(_freeze_after_long_collection)
    gc.freeze()
    gc.collect()  # of nothing: the collector looks again once there is much more than it last left


_began = 0.0


def _freeze_after_long_collection(phase: str, info: dict[str, Any]) -> None:
    global _began
    if phase == "start":
        _began = time.perf_counter()
    elif info["generation"] == 2 and time.perf_counter() - _began > LONG_COLLECTION:
        gc.freeze()
