"""What an administrator or a test may set about preparing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """Times are in seconds. The kubelet waits 45 s for a call: prepare and undo together stay below that (T9)."""

    prepare_seconds: float = 32.0
    """The most that preparing or unpreparing takes, whatever the caller would wait."""
    undo_seconds: float = 10.0
    """What undoing gets when preparing failed, also where that used up all of its time."""
    lock_seconds: float = 20.0
    """How long another request for the same claim is waited for."""
    grace_seconds: float = 300.0
    """How long a claim is seen to be gone before reconcile unprepares it."""
    removals: int = 5
    """The most claims that one pass of reconcile unprepares."""
    lasting: frozenset[str] = frozenset({"file"})
    """Kinds of steps that a reboot does not undo. None of them stands in the way of undoing another."""
    cleaning: frozenset[str] = frozenset({"vf-settings"})
    """Kinds of steps which, where they cannot be undone, leave traces of an owner who has let go: the device is
    withheld."""
    outer: frozenset[str] = frozenset({"attachment"})
    """Kinds of steps that may be undone while the device is in use: they are what ends its use."""
