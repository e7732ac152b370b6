"""Who serves a host for a cluster: of those who would publish its devices in different ways only one.

The pods of a DaemonSet and a service of the host may both be started on a node. One would offer to pods what the other
one offers to machines, and both would run the machines. The locks are the kernel's, so that they go with a process
however that ends, and they lie in a folder that pods have of the host.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Literal

from devalloc_node.errors import Denied, Failed
from devalloc_node.lockfile import holder_of

Way = Literal["slices", "set-aside", "pools"]
"""How the devices are published."""
WAYS: Final[dict[Way, str]] = {
    "slices": "publishes them as ResourceSlices for kube-scheduler",
    "set-aside": "publishes them as ResourceSlices for devalloc's controller",
    "pools": "publishes them as DevicePools and runs machines",
}
SIDE_BY_SIDE: Final = ("slices", "set-aside")
"""Ways of which the old and the new pod of a rolling update may both serve for a while."""
WAIT_SECONDS = 30.0
"""For one that is about to end: pods have that long."""
_LOOK_SECONDS = 0.2


@contextmanager
def taken(folder: Path, way: Way, say: Callable[[str], None], wait: float = WAIT_SECONDS) -> Iterator[None]:
    """While inside, serve the host this way. ``folder``: where all look who would serve it.

    Waits for another one to end. Raises Denied (``NodeServed``) where it does not, Failed where there can be no lock.
    """
    until, told = time.monotonic() + wait, False
    with ExitStack() as stack:
        while (other := _sit_down(folder, way, stack)) is not None:
            if time.monotonic() >= until:
                raise Denied("NodeServed", f"{other}; {_ADVICE}", retryable=True)
            if not told:
                say(f"{other}; waiting {wait:.0f} s for its end")
            told = True
            time.sleep(_LOOK_SECONDS)
        yield


_ADVICE = (
    "a host is served by one. Where that is a pod and a service of the host is to run machines, label the node "
    "devalloc.io/publish=host, so that no such pod comes to it; else end one of the two"
)


def _sit_down(folder: Path, way: Way, stack: ExitStack) -> str | None:
    """Take the lock of a way, until the end of the stack; or who is in the way, for people. Raises Failed."""
    with ExitStack() as door:
        fcntl.flock(_opened(folder, "serving.lock", door), fcntl.LOCK_EX)  # nobody looks while another one sits down
        locks = {each: _opened(folder, f"serving-{each}.lock", door) for each in WAYS}
        for each, descriptor in locks.items():
            if each != way and not _lock(descriptor, fcntl.LOCK_EX):
                return f"{holder_of(descriptor)} has the devices of this host, and {WAYS[each]}"
        kind = fcntl.LOCK_SH if way in SIDE_BY_SIDE else fcntl.LOCK_EX
        if not _lock(locks[way], kind):
            return f"{holder_of(locks[way])} has the devices of this host, and {WAYS[way]}"
        stack.callback(
            os.close, os.dup(locks[way])
        )  # a lock belongs to an open file, and goes with its last descriptor
    return None


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EINTR):
            raise
        return False
    return True


def _opened(folder: Path, name: str, stack: ExitStack) -> int:
    path = folder / name
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Failed("SocketFailed", f"cannot open {path}: {error.strerror}", retryable=False) from error
    stack.callback(os.close, descriptor)
    return descriptor
