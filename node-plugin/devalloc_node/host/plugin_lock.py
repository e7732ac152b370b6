"""Ensure that only one plugin serves this host for a cluster.

The pods of a DaemonSet and a service of the host may both be started on a node. One would offer to pods what the other
one offers to machines, and both would run the machines. The locks are the kernel's, so that they go with a process
however that ends, and they lie in a folder that pods have of the host.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Literal

from devalloc.file_lock import FileLock
from devalloc_node.errors import Denied, Failed

PublishMode = Literal["slices", "set-aside", "pools"]
"""How the devices are published."""
PUBLISH_MODES: Final[dict[PublishMode, str]] = {
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
def exclusive_host(
    folder: Path, way: PublishMode, say: Callable[[str], None], wait: float = WAIT_SECONDS
) -> Iterator[None]:
    """While inside, serve the host this way. ``folder``: where all look who would serve it.

    Waits for another one to end. Raises Denied (``NodeServed``) where it does not, Failed where there can be no lock.
    """
    until, announced = time.monotonic() + wait, False
    with ExitStack() as stack:
        while (other := _acquire(folder, way, stack)) is not None:
            if time.monotonic() >= until:
                raise Denied("NodeServed", f"{other}; {_ADVICE}", retryable=True)
            if not announced:
                say(f"{other}; waiting {wait:.0f} s for it to end")
            announced = True
            time.sleep(_LOOK_SECONDS)
        yield


_ADVICE = (
    "only one plugin can serve a host. If one is a pod and a service of the host must run machines, label the node "
    "devalloc.io/publish=host, so that the pod leaves it; else stop one of the two"
)


def _acquire(folder: Path, way: PublishMode, stack: ExitStack) -> str | None:
    """Take the lock of a mode until the end of the stack, or return who excludes it, for people. Raises Failed."""
    with _open_lock_file(folder, "serving.lock") as door:
        door.lock()  # one process at a time looks at the locks and takes its own
        for other in PUBLISH_MODES:
            if other != way:
                with _open_lock_file(folder, f"serving-{other}.lock") as probe:
                    if not probe.try_lock():
                        return _holder(probe, other)
        lock = _open_lock_file(folder, f"serving-{way}.lock")
        if not lock.try_lock(shared=way in SIDE_BY_SIDE):
            with lock:
                return _holder(lock, way)
        stack.enter_context(lock)
    return None


def _holder(lock: FileLock, mode: PublishMode) -> str:
    return f"{lock.holder()} serves the devices of this host, and {PUBLISH_MODES[mode]}"


def _open_lock_file(folder: Path, name: str) -> FileLock:
    path = folder / name
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return FileLock(path)
    except OSError as error:
        raise Failed("SocketFailed", f"cannot open {path}: {error.strerror}", retryable=False) from error
