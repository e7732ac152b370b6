"""Places that one process can have at a time, such as a socket: in a rolling update the new one waits for the old.

A place can be lost: somebody deletes the file of a socket, and nobody finds the process that listens there. It is taken
anew then, which cuts off whoever was served.
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
class Place:
    """A place that is taken."""

    what: str
    """For people: ``metrics on 127.0.0.1:9180``."""
    give: Callable[[], None]
    """Give it back."""
    is_lost: Callable[[], bool] = lambda: False
    """Whether others do not find us there any more."""


@contextmanager
def taken(what: str, take: Callable[[], Place], *, wait: bool, say: Callable[[str], None]) -> Iterator[None]:
    """While inside, have a place. ``take`` takes it.

    Where somebody else has it (Denied ``SocketInUse``, OSError EADDRINUSE) that is raised, or with ``wait`` it is tried
    again and again, in a thread, until the place is free.
    """
    over = threading.Event()
    places: list[Place] = []
    said: set[str] = set()

    def attempt() -> None:
        try:
            places.append(take())
        except (Denied, OSError) as error:
            if not _is_taken(error):
                raise
        else:
            say(f"serving {places[0].what} from here on")

    def give() -> None:
        while places:
            places.pop().give()

    def keep() -> None:
        while not over.wait(_PAUSE_SECONDS):
            try:
                if places and places[0].is_lost():
                    log.warning("somebody took away where %s was served; serving it anew", what)
                    give()
                if not places:
                    attempt()
            except Exception as error:
                if (text := f"{type(error).__name__}: {error}") not in said:
                    log.exception("could not serve %s; trying again", what)
                said.add(text)

    try:
        places.append(take())
    except (Denied, OSError) as error:
        if not (wait and _is_taken(error)):
            raise
        say(f"another process serves {what}; this one will when that ends")
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


def _is_taken(error: Exception) -> bool:
    if isinstance(error, Denied):
        return error.code in ("SocketInUse", "PoolInUse")
    return isinstance(error, OSError) and error.errno == errno.EADDRINUSE
