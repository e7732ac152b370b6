"""The loop that all allocators share, and sets of claims that belong together."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from devalloc.controller.reconcile.claims import DisjointSets
from devalloc.controller.reconcile.loop import AllocatorSettings, ReconcileLoop
from devalloc.store import Expired


class _Stop(threading.Event):
    """Counts pauses, and is set after some of them; no test waits."""

    def __init__(self, pauses: int) -> None:
        super().__init__()
        self.left, self.delays = pauses, list[float]()

    def wait(self, timeout: float | None = None) -> bool:
        self.delays.append(timeout or 0.0)
        if len(self.delays) >= self.left:
            self.set()
        return self.is_set()


def test_a_store_that_always_forgets_is_read_again_with_growing_pauses() -> None:
    rounds = 0

    def act() -> None:
        nonlocal rounds
        rounds += 1

    def wait() -> None:
        raise Expired("list again")

    stop = _Stop(4)
    _loop().run(stop, act, wait)
    assert (rounds, stop.delays) == (4, [1.0, 2.0, 4.0, 8.0])


def test_after_a_wait_that_ended_well_the_pause_is_short_again() -> None:
    waits = iter([True, True, False, True])

    def wait() -> None:
        if next(waits):
            raise Expired("list again")

    stop = _Stop(3)
    _loop().run(stop, lambda: None, wait)
    assert stop.delays == [1.0, 2.0, 1.0]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=20))
def test_what_is_joined_is_one_set_and_nothing_else_is(pairs: list[tuple[int, int]]) -> None:
    joined: DisjointSets[int] = DisjointSets()
    for one, other in pairs:
        joined.join(one, other)
    members = {number for pair in pairs for number in pair}
    expected = sorted({tuple(sorted(_reach(number, pairs))) for number in members})
    assert sorted(tuple(sorted(each)) for each in joined.sets()) == expected
    assert all(joined.set_of(n) == _reach(n, pairs) for n in members)
    assert joined.set_of(10) is None


def _reach(start: int, pairs: Iterable[tuple[int, int]]) -> set[int]:
    reached, before = {start}, set[int]()
    while reached != before:
        before = set(reached)
        reached |= {end for pair in pairs if reached & set(pair) for end in pair}
    return reached


def _loop() -> ReconcileLoop:
    nothing: Any = None
    return ReconcileLoop("could not answer", nothing, AllocatorSettings(retry=1.0, resync=60.0), nothing, lambda: 0.0)
