"""Watch a store until what a verb waits for is there."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from devalloc.store.protocol import Store

LOOK_SECONDS = 1.0
"""How long to wait for a change, where something else counts, too, that is not watched."""
PAUSE_SECONDS = 0.05
"""From one look to the next, at least: changes come together, and a look may read everything."""


def follow(store: Store, kinds: Collection[str], look: Callable[[], float | None], timeout: float) -> bool:
    """Look, and again after changes of such objects, until the time is up; whether the wait ended before that.

    ``look`` returns None to end the wait, else after how many seconds there may be something new though nothing
    changes. There is always one look, and one at the end. Raises what the store does.
    """
    until = time.monotonic() + timeout
    while True:
        since = store.list(()).resource_version  # what changes while it looks is seen by the next look
        if (pause := look()) is None:
            return True
        if (left := until - time.monotonic()) <= 0:
            return False
        next(store.watch(kinds, since, timeout=min(left, pause)), None)
        time.sleep(min(left, PAUSE_SECONDS))
