"""A lease on the clocks of those who look: processes that stand still, answers that are late or lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from devalloc.controller.leader.lease import Lease, LeaseLost, LeaseTerm
from devalloc.store import Listing, Object, Unavailable
from devalloc.store.sqlite import SQLiteStore
from tests.support.virtual_time import Clock

NAMESPACE = "devalloc-system"


class Slow:
    """A store, with something that happens while an answer is on its way."""

    def __init__(self, store: SQLiteStore) -> None:
        self.store = store
        self.on_get: Callable[[], None] = lambda: None
        self.loses_answers = False
        self.writes = 0

    def get(self, kind: str, namespace: str | None, name: str) -> Object:
        self.on_get()
        return self.store.get(kind, namespace, name)

    def list(self, kinds: str, namespace: str | None) -> Listing:
        raise AssertionError("a lease without rivals is asked for by its name: there may be one for each node")

    def create(self, obj: Object) -> Object:
        return self._written(self.store.create(obj))

    def replace(self, obj: Object) -> Object:
        return self._written(self.store.replace(obj))

    def _written(self, obj: Object) -> Object:
        self.writes += 1
        if self.loses_answers:
            raise Unavailable("the answer was lost")
        return obj


@pytest.fixture
def store(store: SQLiteStore) -> Slow:
    return Slow(store)


def lease(store: Slow, holder: str, clock: Clock) -> Lease:
    return Lease(store, holder, "devalloc-controller", namespace=NAMESPACE, term=LeaseTerm(15, 10), clock=clock)


def test_its_holder_takes_it_for_lost_before_another_takes_it(store: Slow) -> None:
    one, two = Clock(), Clock(5000.0)  # hosts that started at another time
    first, second = lease(store, "first", one), lease(store, "second", two)
    assert first.take()
    assert not second.take()
    one.now, two.now = 9.9, 5009.9
    assert first.is_valid
    one.now, two.now = 10.0, 5010.0
    assert not first.is_valid
    two.now = 5015.0
    assert not second.take(), "15 s are over when they are over"
    two.now = 5015.1
    assert second.take()
    assert (first.transitions, second.transitions) == (0, 1)
    with pytest.raises(LeaseLost, match="devalloc-system/devalloc-controller"):
        first.renew()
    assert not first.is_valid


@pytest.mark.parametrize("stood", [10.0, 14.9, 3600.0])
def test_a_holder_that_stood_still_does_not_act_before_it_has_renewed(store: Slow, stood: float) -> None:
    clock = Clock()
    first = lease(store, "first", clock)
    assert first.take()
    clock.now += stood
    assert not first.is_valid, "by its clock alone, whatever the store says"
    first.renew()
    assert first.is_valid, "no other had taken it"


def test_a_renewal_counts_from_its_request_if_the_holder_stood_still(store: Slow) -> None:
    clock = Clock()
    first = lease(store, "first", clock)

    def stand_still() -> None:
        clock.now += 30

    store.on_get = stand_still
    store.store.create(first._object({}, 0, "2026-01-01T00:00:00Z"))
    assert first.take()
    assert first.is_valid, "the write began after that"
    replace = store.store.replace

    def stands_still(obj: Object) -> Object:
        clock.now += 30
        return replace(obj)

    store.store.replace = stands_still  # type: ignore[method-assign]
    first.renew()
    assert not first.is_valid


def test_a_waiter_counts_from_the_answer_and_not_from_its_request(store: Slow) -> None:
    """A holder that renews while the answer is on its way has all its time."""
    holders, waiters = Clock(), Clock()
    first, second = lease(store, "first", holders), lease(store, "second", waiters)
    assert first.take()

    def late() -> None:
        holders.now = waiters.now = 8.0
        first.renew()
        store.on_get = lambda: None

    store.on_get = late
    assert not second.take()
    holders.now = waiters.now = 17.0  # 17 s after it asked, 9 after what it saw
    assert first.is_valid
    assert not second.take()
    waiters.now = 23.1
    assert second.take()


def test_a_renewal_whose_answer_was_lost_is_made_again(store: Slow) -> None:
    clock = Clock()
    first, second = lease(store, "first", clock), lease(store, "second", clock)
    assert first.take()
    store.loses_answers, clock.now = True, 5.0
    with pytest.raises(Unavailable):
        first.renew()
    store.loses_answers, clock.now = False, 6.0
    first.renew()
    clock.now = 15.9
    assert first.is_valid
    assert not second.take()


def test_a_lease_whose_answer_was_lost_is_taken_again(store: Slow) -> None:
    clock = Clock()
    first = lease(store, "first", clock)
    store.loses_answers = True
    with pytest.raises(Unavailable):
        first.take()
    assert not first.is_valid
    store.loses_answers = False
    assert first.take()
    assert first.transitions == 0, "it did not change hands"


def test_a_label_on_the_lease_does_not_end_it(store: Slow) -> None:
    first = lease(store, "first", Clock())
    assert first.take()
    current = store.store.get("Lease", NAMESPACE, "devalloc-controller")
    store.store.replace({**current, "metadata": {**current["metadata"], "labels": {"team": "a"}}})
    first.renew()
    renewed = store.store.get("Lease", NAMESPACE, "devalloc-controller")
    assert renewed["metadata"]["labels"] == {"team": "a"}
    assert renewed["spec"]["acquireTime"] <= renewed["spec"]["renewTime"]


def test_a_renewal_is_one_write_and_no_read(store: Slow) -> None:
    first = lease(store, "first", Clock())
    assert first.take()
    store.writes = 0
    store.on_get = lambda: pytest.fail("read")
    first.renew()
    assert store.writes == 1


def test_a_deleted_lease_is_lost_and_can_be_taken(store: Slow) -> None:
    clock = Clock()
    first, second = lease(store, "first", clock), lease(store, "second", clock)
    assert first.take()
    store.store.delete("Lease", NAMESPACE, "devalloc-controller")
    with pytest.raises(LeaseLost):
        first.renew()
    assert second.take()


def test_a_lease_deleted_under_its_holder_is_taken_only_after_its_duration(store: Slow) -> None:
    clock = Clock()
    first, second = lease(store, "first", clock), lease(store, "second", clock)
    assert first.take()
    assert not second.take()
    store.store.delete("Lease", NAMESPACE, "devalloc-controller")
    for clock.now in (0.0, 9.9, 15.0):
        assert not second.take(), "the first may not have heard of it"
    assert second.held_by is not None
    assert "deleted" in second.held_by
    assert not first.is_valid
    clock.now = 15.1
    assert second.take()


def test_a_released_lease_is_taken_at_once_and_never_released_twice(store: Slow) -> None:
    clock = Clock()
    first, second = lease(store, "first", clock), lease(store, "second", clock)
    assert first.take()
    first.give()
    assert not first.is_valid
    assert second.take()
    first.give()
    second.renew()
    assert second.is_valid


def test_many_processes_that_stand_still_at_random_are_never_two_at_once(store: Slow) -> None:
    """Each has its own clock, with its own offset; a holder can stand still at any step."""
    import random

    rng = random.Random(7)
    clocks = [Clock(rng.uniform(0, 1e6)) for _ in range(4)]
    leases = [lease(store, f"p{number}", clock) for number, clock in enumerate(clocks)]
    due = [0.0] * 4
    now, held = 0.0, set()
    for _ in range(4000):
        step = rng.choice((0.1, 0.5, 1.0))
        now += step
        for clock in clocks:
            clock.now += step
        valid = [each.holder for each in leases if each.is_valid]
        assert len(valid) <= 1, now
        held |= {*valid}
        for number, each in enumerate(leases):
            if now < due[number]:
                continue
            due[number] = now + rng.choice((1.0, 4.0, 5.0, 5.0, 5.0, 40.0))
            if each.is_valid:
                each.renew()
            else:
                each.take()
    assert len(held) == 4, "else this shows nothing"
