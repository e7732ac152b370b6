"""Endpoints that one process holds at a time, such as a socket: in a rolling update, the new process waits.

An endpoint can be lost: if the file of a socket is deleted, no client finds the process that listens there. The process
then creates it again, which ends the connections that were open.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from devalloc_node.errors import Denied

log = logging.getLogger(__name__)

_PAUSE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class ExclusiveEndpoint:
    """A place that is taken."""

    what: str
    """For people: ``metrics on 127.0.0.1:9180``."""
    give: Callable[[], None]
    """Give it back."""
    is_lost: Callable[[], bool] = lambda: False
    """Whether others do not find us there any more."""


@contextmanager
def hold_endpoint(
    what: str, take: Callable[[], ExclusiveEndpoint], *, wait: bool, say: Callable[[str], None]
) -> Iterator[None]:
    """While inside, have a place. ``take`` takes it.

    If another process has it (Denied ``SocketInUse``, OSError EADDRINUSE), that is raised, or with ``wait`` it is tried
    again and again, in a thread, until the place is free.
    """
    over = threading.Event()
    places: list[ExclusiveEndpoint] = []
    logged: set[str] = set()

    def attempt() -> None:
        try:
            places.append(take())
        except (Denied, OSError) as error:
            if not _is_in_use(error):
                raise
        else:
            say(f"now serving {places[0].what}")

    def give() -> None:
        while places:
            places.pop().give()

    def keep() -> None:
        while not over.wait(_PAUSE_SECONDS):
            try:
                if places and places[0].is_lost():
                    log.warning("the endpoint of %s was removed; serving it again", what)
                    give()
                if not places:
                    attempt()
            except Exception as error:
                if (text := f"{type(error).__name__}: {error}") not in logged:
                    log.exception("cannot serve %s; trying again", what)
                logged.add(text)

    try:
        places.append(take())
    except (Denied, OSError) as error:
        if not (wait and _is_in_use(error)):
            raise
        say(f"another process serves {what}; this one takes over when that ends")
    else:
        say(f"serving {places[0].what}")
    keeping = threading.Thread(target=keep, name="takeover", daemon=True)
    keeping.start()
    try:
        yield
    finally:
        over.set()
        keeping.join()
        give()


def _is_in_use(error: Exception) -> bool:
    if isinstance(error, Denied):
        return error.code in ("SocketInUse", "PoolInUse")
    return isinstance(error, OSError) and error.errno == errno.EADDRINUSE
