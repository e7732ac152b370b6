"""Watchers: the newest state to each, no queue for the slow, nothing kept for those who left."""

from __future__ import annotations

import threading

import pytest

from devalloc_node.service.watching import Places, Pulse, Told, TooManyWatchers, changes


def test_what_changes_often_is_told_once_as_it_is_last() -> None:
    state, pulse = {"a": 1, "b": 1}, Pulse()
    events = changes(lambda: state, pulse, lambda: True, interval=0)
    assert [next(events) for _ in range(3)] == [(Told.IS, "a", 1), (Told.IS, "b", 1), (Told.SYNCED, None, None)]
    for number in range(1000):
        state["a"] = number
        pulse.beat()
    assert next(events) == (Told.IS, "a", 999)
    state["b"] = 2
    assert next(events) == (Told.IS, "b", 2)


def test_what_came_and_went_unseen_is_not_told_and_what_was_told_goes_with_its_last_value() -> None:
    state, pulse = {"a": 1}, Pulse()
    events = changes(lambda: state, pulse, lambda: True, interval=0)
    assert [next(events)[0] for _ in range(2)] == [Told.IS, Told.SYNCED]
    state["b"] = 1
    del state["b"]
    del state["a"]
    state["c"] = 1
    assert [next(events) for _ in range(2)] == [(Told.GONE, "a", 1), (Told.IS, "c", 1)]


def test_a_change_between_look_and_wait_is_not_missed() -> None:
    state, pulse = {"a": 1}, Pulse()

    def read() -> dict[str, int]:
        found = dict(state)
        if state["a"] == 1:
            state["a"] = 2  # right after the look, before the wait
            pulse.beat()
        return found

    events = changes(read, pulse, lambda: True, interval=3600)
    assert [next(events) for _ in range(3)] == [(Told.IS, "a", 1), (Told.SYNCED, None, None), (Told.IS, "a", 2)]


def test_ends_when_its_reader_has_gone() -> None:
    pulse, active = Pulse(), [True]
    events = changes(dict, pulse, lambda: active[0], interval=3600)
    assert next(events)[0] is Told.SYNCED
    active[0] = False
    threading.Timer(0.05, pulse.beat).start()
    assert list(events) == []


def test_places_are_given_back() -> None:
    places = Places(1)
    with places.one(), pytest.raises(TooManyWatchers, match="1 watch already"), places.one():
        pytest.fail("there was no place")
    with places.one():
        pass
