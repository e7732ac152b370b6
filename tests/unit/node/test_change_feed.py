"""Watchers: the newest state to each, no queue for the slow, nothing kept for those who left."""

from __future__ import annotations

import threading

import pytest

from devalloc_node.operations.change_feed import (
    ChangeKind,
    ChangeNotifier,
    TooManyWatchers,
    WatcherSlots,
    watch_changes,
)


def test_a_value_that_changes_often_is_one_event_with_its_last_state() -> None:
    state, notifier = {"a": 1, "b": 1}, ChangeNotifier()
    events = watch_changes(lambda: state, notifier, lambda: True, interval=0)
    assert [next(events) for _ in range(3)] == [
        (ChangeKind.IS, "a", 1),
        (ChangeKind.IS, "b", 1),
        (ChangeKind.SYNCED, None, None),
    ]
    for number in range(1000):
        state["a"] = number
        notifier.beat()
    assert next(events) == (ChangeKind.IS, "a", 999)
    state["b"] = 2
    assert next(events) == (ChangeKind.IS, "b", 2)


def test_an_unseen_value_is_no_event_and_a_seen_one_goes_with_its_last_value() -> None:
    state, notifier = {"a": 1}, ChangeNotifier()
    events = watch_changes(lambda: state, notifier, lambda: True, interval=0)
    assert [next(events)[0] for _ in range(2)] == [ChangeKind.IS, ChangeKind.SYNCED]
    state["b"] = 1
    del state["b"]
    del state["a"]
    state["c"] = 1
    assert [next(events) for _ in range(2)] == [(ChangeKind.GONE, "a", 1), (ChangeKind.IS, "c", 1)]


def test_a_change_between_look_and_wait_is_not_missed() -> None:
    state, notifier = {"a": 1}, ChangeNotifier()

    def read() -> dict[str, int]:
        snapshot = dict(state)
        if state["a"] == 1:
            state["a"] = 2  # right after the look, before the wait
            notifier.beat()
        return snapshot

    events = watch_changes(read, notifier, lambda: True, interval=3600)
    assert [next(events) for _ in range(3)] == [
        (ChangeKind.IS, "a", 1),
        (ChangeKind.SYNCED, None, None),
        (ChangeKind.IS, "a", 2),
    ]


def test_ends_when_its_reader_has_gone() -> None:
    notifier, active = ChangeNotifier(), [True]
    events = watch_changes(dict, notifier, lambda: active[0], interval=3600)
    assert next(events)[0] is ChangeKind.SYNCED
    active[0] = False
    threading.Timer(0.05, notifier.beat).start()
    assert list(events) == []


def test_places_are_given_back() -> None:
    places = WatcherSlots(1)
    with places.one(), pytest.raises(TooManyWatchers, match="1 watches are open"), places.one():
        pytest.fail("there was no place")
    with places.one():
        pass
