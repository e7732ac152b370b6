"""A program that exceeds the limit of memory, processes or huge pages of the cgroup it enters."""

from __future__ import annotations

PROGRAM = """
import mmap, os, signal, sys
what, *procs = sys.argv[1:]
for file in procs:
    with open(file, "w") as out:
        out.write(str(os.getpid()))
if what == "memory":
    taken = b"x" * (256 << 20)
    print("not bounded")
elif what == "pages":
    pages = []
    try:
        while len(pages) < 5:
            pages.append(mmap.mmap(-1, 2 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000))
        print("not bounded")
    except OSError:
        print(len(pages))
else:
    children = []
    try:
        while len(children) < 50:
            child = os.fork()
            if not child:
                signal.pause()
            children.append(child)
        print("not bounded")
    except BlockingIOError:
        print(1 + len(children))
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
"""
"""Ended by SIGKILL for memory; for processes it says how many it could be, itself included, and for huge pages of 2 MiB
how many it could have of five."""
MEMORY, TASKS, HUGE_PAGES = 64 << 20, 8, 3
"""Bounds that it can run within."""
