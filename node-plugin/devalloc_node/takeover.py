"""Places that one process can have at a time, such as a socket: in a rolling update the new one waits for the old."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from devalloc_node.errors import Denied

log = logging.getLogger(__name__)

Give = Callable[[], None]
_PAUSE_SECONDS = 0.5


@contextmanager
def taken(what: str, take: Callable[[], Give], *, wait: bool, say: Callable[[str], None]) -> Iterator[None]:
    """While inside, have a place. ``take`` takes it and returns how to give it back.

    Where somebody else has it (Denied ``SocketInUse``, OSError EADDRINUSE) that is raised, or with ``wait`` it is tried
    again and again, in a thread, until the place is free.
    """
    over = threading.Event()
    given: list[Give] = []

    def attempt() -> bool:
        try:
            given.append(take())
        except (Denied, OSError) as error:
            if not _is_taken(error):
                raise
            return False
        return True

    def go_on() -> None:
        while not over.wait(_PAUSE_SECONDS):
            try:
                if attempt():
                    say(f"serving {what} from here on")
                    return
            except Exception:
                log.exception("could not serve %s", what)
                return

    waiting: threading.Thread | None = None
    try:
        given.append(take())
    except (Denied, OSError) as error:
        if not (wait and _is_taken(error)):
            raise
        say(f"another instance serves {what}; this one will when that ends")
        waiting = threading.Thread(target=go_on, name="takeover", daemon=True)
        waiting.start()
    else:
        say(f"serving {what}")
    try:
        yield
    finally:
        over.set()
        if waiting is not None:
            waiting.join()
        for give in given:
            give()


def _is_taken(error: Exception) -> bool:
    if isinstance(error, Denied):
        return error.code == "SocketInUse"
    return isinstance(error, OSError) and error.errno == errno.EADDRINUSE
