"""Following objects of a store: list them, watch them, and list them again after a gap.

client-go calls this a reflector. It keeps nothing: who hears of objects keeps what it needs of them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass

from devalloc.backoff import Retry
from devalloc.store.errors import Expired, Object, StoreError, Unusable
from devalloc.store.protocol import Event, Store
from devalloc.worker import when_set

log = logging.getLogger(__name__)

RETRY_SECONDS, MAX_RETRY_SECONDS = 2.0, 60.0
"""The pause after the first failure in a row; twice as long after each further one, but not longer."""


@dataclass(frozen=True, slots=True)
class Listed:
    """Changes may have been missed, so that all is reported anew."""

    objects: Sequence[Object] = ()
    """All objects of the kinds, as they were at one moment; none if the watcher does not list them."""


class Watcher:
    """Tells what becomes of objects of some kinds. ``run`` it in a thread of its own."""

    def __init__(
        self,
        store: Store,
        kinds: str | Iterable[str],
        hear: Callable[[Listed | Event], None],
        what: str,
        *,
        lists: bool = True,
        since: str | None = None,
        relist: float | None = None,
    ) -> None:
        """``hear`` is called in the watcher's thread: first with ``Listed``, then with each change after it. Whatever
        it raises, it hears ``Listed`` next. ``what`` cannot be done if something fails, for the log, such as "cannot
        watch the pools". ``lists``: read the objects for ``Listed``; else it says no more than that changes may have
        been missed. ``since``: the place in the store's history up to which who hears has all: it begins there, without
        ``Listed``. ``relist``: seconds after which all is reported anew; None: only after a failure."""
        self._store, self._hear, self._what = store, hear, what
        self._kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds)
        self._lists, self._since, self._relist = lists, since, relist

    def run(self, stop: threading.Event) -> None:
        """Until ``stop`` is set. Raises Unusable; all else is logged, and tried again after a growing pause."""
        retry = Retry(log, self._what, RETRY_SECONDS, MAX_RETRY_SECONDS, expected=(StoreError,), quiet=(Expired,))
        while not stop.is_set():
            try:
                for _ in self._watch(stop):
                    retry.succeeded()
            except Unusable:
                raise
            except Exception as error:
                if stop.is_set():  # a store that is being closed, or another process that leads by now
                    return
                stop.wait(retry.failed(error))

    def _watch(self, stop: threading.Event) -> Iterable[None]:
        """Tell all, and then each change, until the watch ends; yields after each that did not fail."""
        since, self._since = self._since, None
        if since is None:
            listing = self._store.list(self._kinds if self._lists else ())
            self._hear(Listed(listing.objects if self._lists else ()))
            since = listing.resource_version
        with closing(self._store.watch(self._kinds, since, timeout=self._relist, stop=stop)) as events:
            for event in events:
                self._hear(event)
                yield
        yield


def run_with_watchers(
    loop: Callable[[threading.Event], None], watchers: Iterable[Watcher], stop: threading.Event
) -> None:
    """Run a loop, and the watchers that tell it what changes in threads of their own, until ``stop`` is set. If one
    ends, all end. Raises what the loop or a watcher raised."""
    over, errors = threading.Event(), []

    def run(one: Callable[[threading.Event], None]) -> None:
        try:
            one(over)
        except BaseException as error:
            errors.append(error)
        finally:
            over.set()

    threads = [threading.Thread(target=run, args=(each.run,), name="watch", daemon=True) for each in watchers]
    when_set(stop, over.set)
    for thread in threads:
        thread.start()
    run(loop)
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
