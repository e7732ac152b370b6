"""Load in the guest of a machine that is scaled: ``NUMBER FILE [NUMBER FILE] ...``, each until there is such a file.

A kernel counts processes that wait without a signal being able to wake them like those that run. A parent waits so for
a child of vfork, and computes nothing: a guest that computes would keep two CPUs of a host busy with emulating it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time


def wait_in_the_kernel() -> None:
    """Never returns. The child has the memory of its parent, which never goes on: both are killed."""
    libc = ctypes.CDLL(None)
    if libc.vfork() == 0:
        libc.pause()


def main() -> None:
    groups: list[tuple[str, list[int]]] = []
    for number, file in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
        groups.append((file, []))
        for _ in range(int(number)):
            pid = os.fork()
            if not pid:
                os.setpgid(0, 0)
                wait_in_the_kernel()
            groups[-1][1].append(pid)
            os.setpgid(pid, pid)
    while groups:
        time.sleep(0.2)
        for file, pids in [group for group in groups if os.path.exists(group[0])]:
            groups.remove((file, pids))
            for pid in pids:
                os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
