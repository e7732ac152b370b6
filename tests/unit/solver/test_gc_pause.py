"""The pause of the garbage collector: nothing is collected inside, and what was built is looked at once."""

from __future__ import annotations

import gc
import weakref

import pytest

from devalloc_solver import gc_pause
from devalloc_solver.gc_pause import gc_paused


class _Node:
    def __init__(self) -> None:
        self.itself = self


def test_garbage_that_was_built_is_collected_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc_pause, "COLLECTION_THRESHOLD", -1_000_000)
    with gc_paused(settle=True):
        assert not gc.isenabled()
        garbage = weakref.ref(_Node())
        assert garbage() is not None
    assert gc.isenabled()
    assert garbage() is None


def test_what_was_there_before_is_left_to_later_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc_pause, "COLLECTION_THRESHOLD", -1_000_000)
    gc.unfreeze()  # the test session freezes its own modules
    gc.collect()  # the collector counts from here, and too little follows for it to start by itself
    older = weakref.ref(_Node())
    with gc_paused(settle=True):
        pass
    assert older() is not None
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert older() is None


def test_what_a_program_froze_stays_frozen() -> None:
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with gc_paused(settle=True):
            pass
        assert gc.get_freeze_count() == frozen
    finally:
        gc.unfreeze()


def test_a_collector_that_is_switched_off_stays_off() -> None:
    gc.unfreeze()
    gc.disable()
    try:
        with gc_paused(settle=True):
            assert gc.get_freeze_count() == 0
        assert not gc.isenabled()
    finally:
        gc.enable()
