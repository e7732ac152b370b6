"""A program that exceeds the memory or process limit of the cgroup it enters."""

from __future__ import annotations

PROGRAM = """
import os, signal, sys
what, *procs = sys.argv[1:]
for file in procs:
    with open(file, "w") as out:
        out.write(str(os.getpid()))
if what == "memory":
    taken = b"x" * (256 << 20)
    print("not bounded")
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
"""Ended by SIGKILL for memory; for processes it says how many it could be, itself included."""
MEMORY, TASKS = 64 << 20, 8
"""Bounds that it can run within."""
