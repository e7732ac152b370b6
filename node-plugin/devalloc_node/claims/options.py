"""What an administrator or a test may set about preparing."""

from __future__ import annotations

from dataclasses import dataclass

from devalloc_node.model.step import ATTACHMENT


@dataclass(frozen=True, slots=True)
class PrepareOptions:
    """Times are in seconds."""

    prepare_seconds: float = 40.0
    """What preparing or unpreparing gets whose caller does not say by when it wants an answer."""
    undo_seconds: float = 10.0
    """What undoing gets when preparing failed: of the caller's time, a quarter of it at most, and beyond it where that
    is all used up."""
    grace_seconds: float = 300.0
    """How long a claim is seen to be gone before reconcile unprepares it."""
    removals: int = 5
    """The most claims that one pass of reconcile unprepares."""
    persistent_kinds: frozenset[str] = frozenset({"file"})
    """Kinds of steps that a reboot does not undo. None of them stands in the way of undoing another."""
    cleaning: frozenset[str] = frozenset({"vf-settings"})
    """Kinds of steps which, where they cannot be undone, leave traces of an owner who has let go: the device is
    withheld."""
    outer: frozenset[str] = frozenset({ATTACHMENT})
    """Kinds of steps that may be undone while the device is in use: they are what ends its use."""
