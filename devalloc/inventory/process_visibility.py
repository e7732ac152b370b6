"""Whether this process can see the open files of all others. Without that, nobody knows whether a device is in use."""

from __future__ import annotations

from devalloc.inventory.sysfs import Tree

_INIT_NAMESPACE = "pid:[4026531836]"
"""The number that Linux gives the machine's own process namespace (PROC_PID_INIT_INO)."""


def visibility_problem(tree: Tree) -> str | None:
    """Why not all descriptors on this machine can be seen; None when they can (T8)."""
    proc = tree.proc
    if proc is None:
        return "there is no /proc"
    own = proc.folder("self", "ns")
    if own is None or own.link("pid") != _INIT_NAMESPACE:
        return "only the processes of this container can be seen (run it with the host's process namespace)"
    first = proc.folder("1", "fd")
    if first is None:
        return "process 1 cannot be seen (is /proc mounted with hidepid?)"
    if not first.names():  # process 1 always has some open
        return "the descriptors of other users' processes cannot be read (requires CAP_SYS_PTRACE)"
    return None
