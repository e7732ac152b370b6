"""A process that keeps a fleet is not held up by the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from weakref import ref

import pytest

from devalloc_solver import Fleet, gc_pause
from devalloc_solver.gc_pause import freeze_objects
from tests.support.fleet_manifests import gpu_claim, gpu_class, gpu_pool


class Circle:
    """Refers to itself, so that only the collector frees it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Other tests of the process may keep fleets that freeze objects; here no collection does so yet."""
    callbacks = [*gc.callbacks]
    gc.callbacks[:] = [each for each in callbacks if getattr(each, "__module__", "") != gc_pause.__name__]
    gc.unfreeze()
    yield
    gc.callbacks[:] = callbacks
    gc.unfreeze()


@pytest.mark.parametrize(("threshold", "freeze", "is_exempt"), [(0, True, True), (0, False, False), (1e9, True, False)])
def test_a_large_fleet_is_exempt_from_collections_on_request(
    monkeypatch: pytest.MonkeyPatch, threshold: float, freeze: bool, is_exempt: bool
) -> None:
    gc.unfreeze()
    monkeypatch.setattr(gc_pause, "COLLECTION_THRESHOLD", threshold)
    Fleet.from_manifests([gpu_class(), gpu_pool("p", node="n")], freeze=freeze)
    assert (gc.get_freeze_count() > 1000) == is_exempt


@pytest.mark.parametrize(
    ("is_exempt", "threshold", "is_settled"), [(True, -1e9, True), (True, 1e9, False), (False, -1e9, False)]
)
def test_what_a_call_leaves_is_looked_at_in_that_call_if_it_is_much_and_all_else_is_exempt(
    monkeypatch: pytest.MonkeyPatch, is_exempt: bool, threshold: float, is_settled: bool
) -> None:
    """Else a small call later takes as long as that."""
    fleet = Fleet.from_manifests([gpu_class(), gpu_pool("p", node="n")])
    if is_exempt:
        freeze_objects()
    collected: list[int] = []
    gc.callbacks.append(lambda phase, info: collected.append(info["generation"]))
    monkeypatch.setattr(gc_pause, "COLLECTION_THRESHOLD", threshold)
    fleet.allocate_all([gpu_claim("a"), gpu_claim("b")])
    assert (2 in collected) == is_settled


def test_the_next_fleet_frees_what_is_garbage_of_the_last() -> None:
    circle = Circle()
    gone = ref(circle)
    freeze_objects()
    del circle
    gc.collect()
    assert gone() is not None
    freeze_objects()
    assert gone() is None


def test_what_a_long_collection_leaves_is_exempt_too(monkeypatch: pytest.MonkeyPatch) -> None:
    freeze_objects()
    monkeypatch.setattr(gc_pause, "LONG_COLLECTION", 1e9)
    before, later = gc.get_freeze_count(), [[n] for n in range(1000)]
    gc.collect()
    assert gc.get_freeze_count() < before + len(later)
    monkeypatch.setattr(gc_pause, "LONG_COLLECTION", 0)
    gc.collect(1)
    assert gc.get_freeze_count() < before + len(later), "only of a look at all objects"
    gc.collect()
    assert gc.get_freeze_count() >= before + len(later)


def test_a_small_fleet_that_stays_is_not_looked_at_again_either_once_that_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It grows with the claims that come, and so does what else the process keeps."""
    gc.unfreeze()
    fleet = Fleet("pack")
    fleet.sync([gpu_class(), gpu_pool("p", node="n")])
    assert gc.get_freeze_count() < 1000
    monkeypatch.setattr(gc_pause, "LONG_COLLECTION", 0)
    gc.collect()
    assert gc.get_freeze_count() > 1000


def test_it_is_noted_once_only() -> None:
    freeze_objects()
    callbacks = [*gc.callbacks]
    freeze_objects()
    Fleet.from_manifests([gpu_class()], freeze=True)
    assert gc.callbacks == callbacks
