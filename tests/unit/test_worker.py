"""What every loop may rely on: no key is lost, none is worked on twice at once, none starves, and a stop is quick."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devalloc.worker import (
    FAILED,
    MAX_MESSAGES,
    MOST_ROUND_SECONDS,
    UNTRIED,
    Again,
    Pace,
    Why,
    Worker,
    repeat,
    until_set,
)
from tests.support.waiting import until


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Spawned:
    """Threads that run when a test lets them."""

    def __init__(self) -> None:
        self.waiting: deque[Callable[[], None]] = deque()

    def __call__(self, work: Callable[[], None]) -> None:
        self.waiting.append(work)

    def finish(self, number: int = 0) -> None:
        self.waiting.rotate(-number)
        self.waiting.popleft()()


class Failure(Exception):
    """An expected error."""


class Bench:
    """A worker, its keys, and what was done."""

    def __init__(self, *, threads: int = 0, pace: Pace | None = None) -> None:
        self.clock, self.spawned = Clock(), Spawned()
        self.done: list[tuple[str, Why]] = []
        self.results: dict[str, Again | Exception | None] = {}
        self.worker: Worker[str, str] = Worker(
            "cannot work on",
            self._work,
            self._take,
            pace=pace or Pace(first=1.0, most=8.0, threads=threads, expected=(Failure,)),
            overflow="*",
            clock=self.clock,
            spawn=self.spawned,
        )

    def _work(self, key: str, why: Why) -> Again | None:
        self.done.append((key, why))
        result = self.results.get(key)
        if isinstance(result, Exception):
            raise result
        return result

    def _take(self, messages: Sequence[str]) -> None:
        for message in messages:
            self.worker.add(message)

    def keys(self) -> list[str]:
        return [key for key, _ in self.done]

    def at(self, now: float) -> float | None:
        """A round at this time."""
        self.clock.now = now
        return self.worker.round()


class TestKeys:
    def test_one_that_was_added_is_worked_on_once(self) -> None:
        bench = Bench()
        bench.worker.tell("a", "b", "a")
        assert bench.worker.round() is None
        assert bench.done == [("a", Why.ADDED), ("b", Why.ADDED)]
        assert bench.worker.round() is None
        assert len(bench.done) == 2

    def test_one_with_a_pause_is_worked_on_when_its_time_came(self) -> None:
        bench = Bench()
        bench.worker.add("a", 5.0)
        assert (bench.at(4.0), bench.done) == (1.0, [])
        assert (bench.at(5.0), bench.done) == (None, [("a", Why.DUE)])

    def test_the_earliest_time_counts(self) -> None:
        bench = Bench()
        for after in (5.0, 2.0, 9.0):
            bench.worker.add("a", after)
        assert bench.at(1.0) == 1.0
        bench.at(2.0)
        bench.at(20.0)
        assert bench.done == [("a", Why.DUE)]

    def test_one_added_while_it_waits_is_worked_on_at_once(self) -> None:
        bench = Bench()
        bench.worker.add("a", 5.0)
        bench.worker.tell("a")
        bench.worker.round()
        assert bench.done == [("a", Why.ADDED)]
        bench.at(9.0)
        assert len(bench.done) == 1

    def test_one_that_was_added_for_nothing_is_due_when_it_was_before(self) -> None:
        bench = Bench()
        bench.results["a"] = Again(5.0, failed=True)
        bench.worker.add("a")
        bench.worker.round()
        bench.results["a"] = UNTRIED
        for _ in range(2):
            bench.worker.add("a")
            assert bench.at(2.0) == 3.0
        assert bench.worker.failures("a") == 1
        assert (bench.at(5.0), bench.done[-1]) == (None, ("a", Why.DUE))

    def test_one_whose_time_comes_earlier_is_due_and_not_only_added(self) -> None:
        bench = Bench()
        bench.results["a"] = Again(5.0)
        bench.worker.add("a")
        bench.worker.round()
        bench.worker.add("a", 0.0)
        bench.worker.add("a")
        bench.at(1.0)
        assert bench.done == [("a", Why.ADDED), ("a", Why.DUE)]

    def test_one_added_while_it_is_worked_on_is_worked_on_once_more_and_not_twice_at_once(self) -> None:
        bench = Bench(threads=4)
        bench.worker.add("a")
        bench.worker.round()
        assert bench.worker.is_busy("a")
        bench.worker.tell("a", "a")
        bench.worker.round()
        assert len(bench.spawned.waiting) == 1
        bench.spawned.finish()
        bench.worker.round()
        bench.spawned.finish()
        bench.worker.round()
        assert bench.keys() == ["a", "a"]
        assert not bench.spawned.waiting

    def test_one_that_is_due_again_by_itself_does_not_keep_a_round_from_ending(self) -> None:
        bench = Bench()
        bench.results["a"] = Again(0.0)
        bench.worker.add("a")
        assert bench.worker.round() == 0.0
        assert bench.keys() == ["a"]
        bench.worker.round()
        assert bench.keys() == ["a", "a"]

    @pytest.mark.parametrize("is_busy", [False, True])
    def test_one_that_is_forgotten_is_not_worked_on_again(self, is_busy: bool) -> None:
        bench = Bench(threads=1)
        bench.results["a"] = Failure("no")
        bench.worker.add("a")
        if is_busy:
            bench.worker.round()
        bench.worker.forget("a")
        if is_busy:
            bench.spawned.finish()
        bench.at(100.0)
        assert (len(bench.done), len(bench.spawned.waiting)) == (int(is_busy), 0)
        assert bench.worker.failures("a") == 0

    def test_one_that_was_forgotten_and_added_again_is_worked_on(self) -> None:
        bench = Bench(threads=1)
        bench.worker.add("a")
        bench.worker.round()
        bench.worker.forget("a")
        bench.worker.add("a")
        bench.spawned.finish()
        bench.worker.round()
        assert len(bench.spawned.waiting) == 1


class TestFailures:
    def test_the_pause_grows_to_a_maximum_and_a_success_ends_that(self) -> None:
        bench = Bench()
        bench.results["a"] = Failure("no")
        bench.worker.add("a")
        pauses: list[float | None] = []
        for _ in range(6):
            pause = bench.at(bench.clock.now)
            pauses.append(pause)
            bench.clock.now += pause or 0.0
        assert pauses == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
        assert bench.worker.failures("a") == 6
        bench.results["a"] = None
        assert bench.worker.round() is None
        assert bench.worker.failures("a") == 0

    def test_work_may_say_itself_that_it_failed_and_when_to_try_again(self) -> None:
        bench = Bench()
        bench.results["a"] = Again(4.0, failed=True)
        bench.worker.add("a")
        assert bench.worker.round() == 4.0
        assert bench.worker.failures("a") == 1
        bench.results["a"] = Again(60.0)
        assert bench.at(4.0) == 60.0
        assert bench.worker.failures("a") == 0

    def test_work_may_leave_the_pause_to_the_worker(self) -> None:
        bench = Bench()
        bench.results["a"] = FAILED
        bench.worker.add("a")
        assert [bench.worker.round(), bench.at(1.0), bench.at(3.0)] == [1.0, 2.0, 4.0]
        bench.results["a"] = Again(0.5, failed=Failure("busy"))
        assert bench.at(7.0) == 0.5
        bench.results["a"] = FAILED
        bench.worker.reset("a")
        assert bench.at(7.5) == 1.0, "what it failed for has changed"

    def test_an_error_that_stays_the_same_is_logged_once(self, caplog: pytest.LogCaptureFixture) -> None:
        bench = Bench()
        for error in (Failure("disk full"), Failure("disk full"), Failure("gone"), ValueError("a bug")):
            bench.results["a"] = error
            bench.worker.add("a")
            bench.worker.round()
        texts = [(record.getMessage(), record.exc_info is not None) for record in caplog.records]
        assert texts == [
            ("cannot work on: a; next try in 1 s: disk full", False),
            ("cannot work on: a; next try in 4 s: gone", False),
            ("cannot work on: a; next try in 8 s: a bug", True),
        ]

    def test_one_key_that_fails_keeps_no_other(self) -> None:
        bench = Bench()
        bench.results["a"] = ValueError("a bug")
        bench.worker.tell("a", "b")
        bench.worker.round()
        assert bench.keys() == ["a", "b"]

    def test_what_could_not_be_taken_is_taken_in_the_next_round_in_its_order(self) -> None:
        taken: list[list[str]] = []

        def take(messages: Sequence[str]) -> None:
            taken.append(list(messages))
            if len(taken) == 1:
                worker.tell("c")
                raise Failure("the store does not answer")

        worker: Worker[str, str] = Worker("cannot work", lambda key, why: None, take)
        worker.tell("a", "b")
        with pytest.raises(Failure):
            worker.round()
        worker.round()
        assert taken == [["a", "b"], ["a", "b", "c"]]

    def test_more_than_it_can_remember_is_one_message(self) -> None:
        bench = Bench()
        for number in range(MAX_MESSAGES + 2):
            bench.worker.tell(f"k{number}")
        bench.worker.round()
        assert bench.keys() == ["*", f"k{MAX_MESSAGES + 1}"]

    def test_a_thread_that_cannot_begin_loses_no_key(self) -> None:
        bench = Bench(threads=1)

        def none_left(work: Callable[[], None]) -> None:
            raise RuntimeError("can't start new thread")

        bench.worker._spawn = none_left
        bench.worker.add("a")
        with pytest.raises(RuntimeError):
            bench.worker.round()
        bench.worker._spawn = bench.spawned
        bench.worker.round()
        assert len(bench.spawned.waiting) == 1


class TestThreads:
    def test_no_more_keys_at_a_time_than_threads(self) -> None:
        bench = Bench(threads=2)
        bench.worker.tell("a", "b", "c")
        assert bench.worker.round() is None, "the end of one wakes the loop"
        assert len(bench.spawned.waiting) == 2
        bench.spawned.finish()
        bench.worker.round()
        assert len(bench.spawned.waiting) == 2

    def test_one_that_waits_for_something_slow_counts_as_none(self) -> None:
        bench = Bench(threads=1)
        bench.worker.tell("a", "b")
        bench.worker.round()
        with bench.worker.aside():
            bench.worker.round()
            assert len(bench.spawned.waiting) == 2
        bench.worker.add("c")
        bench.worker.round()
        assert len(bench.spawned.waiting) == 2


OUTCOMES: dict[str, Again | Exception | None] = {
    "done": None,
    "again": Again(2.0),
    "error": Failure("no"),
    "failed": FAILED,
    "untried": UNTRIED,
    "bug": ValueError("a bug"),
}
ACTIONS = st.one_of(
    st.tuples(st.just("tell"), st.sampled_from("abc")),
    st.tuples(st.just("add"), st.sampled_from("abc"), st.sampled_from([None, 0.0, 1.0, 3.0])),
    st.tuples(st.just("finish"), st.integers(0, 2), st.sampled_from(sorted(OUTCOMES))),
    st.tuples(st.just("pass"), st.sampled_from([0.5, 1.0, 10.0])),
    st.tuples(st.just("round")),
)


class Checked:
    """A worker of which it is known when each key was last added, and when it last began."""

    def __init__(self, threads: int) -> None:
        self.threads, self.step, self.outcome = threads, 0, "done"
        self.clock, self.spawned = Clock(), Spawned()
        self.running: Counter[str] = Counter()
        self.begun: dict[str, int] = {}
        self.added: dict[str, int] = {}
        self.worker: Worker[str, str] = Worker(
            "cannot work on",
            self._work,
            lambda messages: [self.worker.add(each) for each in messages] and None,
            pace=Pace(threads=threads, expected=(Failure,)),
            clock=self.clock,
            spawn=self._spawn,
        )

    def _work(self, key: str, why: Why) -> Again | None:
        result = OUTCOMES[self.outcome]
        if isinstance(result, Exception):
            raise result
        return result

    def _spawn(self, run: Callable[[], None]) -> None:
        key = run.args[0]  # type: ignore[attr-defined]
        self.running[key] += 1
        self.begun[key] = self.step
        assert self.running[key] == 1
        assert self.running.total() <= self.threads

        def end() -> None:
            self.running[key] -= 1
            run()

        self.spawned(end)

    def act(self, action: tuple[Any, ...]) -> None:
        self.step += 1
        match action:
            case ("tell", key):
                self.worker.tell(key)
                self.added[key] = self.step
            case ("add", key, after):
                self.worker.add(key, after)
                self.added[key] = self.step
            case ("pass", seconds):
                self.clock.now += seconds
            case ("finish", number, self.outcome):
                if self.spawned.waiting:
                    self.spawned.finish(number)
            case _:
                self.worker.round()


@given(st.lists(ACTIONS, max_size=40), st.integers(1, 3))
def test_no_key_is_lost_none_runs_twice_at_once_and_none_starves(actions: list[tuple[Any, ...]], threads: int) -> None:
    """Whatever comes in whatever order: at the end each key was worked on after it was last added."""
    checked = Checked(threads)
    for action in actions:
        checked.act(action)
    for _ in range(2 * len(actions) + 3):
        checked.act(("pass", 100.0))
        checked.act(("round",))
        while checked.spawned.waiting:
            checked.act(("finish", 0, "done"))
    assert checked.worker.round() is None
    assert all(checked.begun[key] >= since for key, since in checked.added.items())
    assert checked.worker.drain(0.0)


class TestRun:
    def test_it_works_until_it_is_stopped_and_ends_at_once(self) -> None:
        done: list[str] = []
        worker: Worker[str, str] = Worker("cannot work", lambda key, why: done.append(key))
        stop = threading.Event()
        loop = threading.Thread(target=worker.run, args=(stop,))
        loop.start()
        worker.add("a")
        until(lambda: done == ["a"])
        worker.add("b", 600.0)
        stop.set()
        until(lambda: not loop.is_alive())

    def test_an_error_that_is_fatal_ends_it(self) -> None:
        def work(key: str, why: Why) -> None:
            raise Failure("unusable")

        for threads in (0, 2):
            worker: Worker[str, str] = Worker("cannot work", work, pace=Pace(threads=threads, fatal=(Failure,)))
            worker.add("a")
            with pytest.raises(Failure):
                worker.run(threading.Event())

    def test_once_it_is_stopped_no_further_key_is_begun(self) -> None:
        stop, done = threading.Event(), []

        def work(key: str, why: Why) -> None:
            done.append(key)
            stop.set()

        worker: Worker[str, str] = Worker("cannot work", work)
        for key in "abc":
            worker.add(key)
        worker.run(stop)
        assert done == ["a"]

    def test_after_an_error_that_is_fatal_no_further_key_is_begun(self) -> None:
        done: list[str] = []

        def work(key: str, why: Why) -> None:
            done.append(key)
            raise Failure("unusable")

        worker: Worker[str, str] = Worker("cannot work", work, pace=Pace(fatal=(Failure,)))
        worker.add("a")
        worker.add("b")
        with pytest.raises(Failure):
            worker.run(threading.Event())
        assert done == ["a"]

    def test_a_round_that_fails_again_and_again_is_tried_again_soon(self) -> None:
        worker: Worker[str, str] = Worker("cannot work", lambda key, why: None, pace=Pace(most=60.0))
        retry = worker._new_retry("", MOST_ROUND_SECONDS)
        assert [retry.count() for _ in range(5)][-1] == MOST_ROUND_SECONDS

    def test_a_round_that_fails_is_tried_again(self) -> None:
        taken: list[Sequence[str]] = []

        def take(messages: Sequence[str]) -> None:
            taken.append(messages)
            if len(taken) < 3:
                raise Failure("the store does not answer")

        stop = threading.Event()
        worker: Worker[str, str] = Worker("cannot work", lambda key, why: None, take, pace=Pace(first=0.01))
        loop = threading.Thread(target=worker.run, args=(stop,))
        loop.start()
        worker.tell("a")
        until(lambda: len(taken) == 3)
        stop.set()
        loop.join()
        assert list(map(list, taken)) == [["a"]] * 3


class TestRepeat:
    def test_it_is_done_again_and_again_and_more_slowly_after_failures(self) -> None:
        times: list[float] = []
        stop = threading.Event()

        def do() -> float | None:
            times.append(time.monotonic())
            if len(times) == 2:
                raise Failure("no")
            if len(times) == 4:
                stop.set()
            return 0.0

        repeat(stop, do, 0.02, "cannot look", most=1.0, expected=(Failure,))
        assert len(times) == 4
        assert times[2] - times[1] >= 0.02

    def test_an_error_that_is_fatal_ends_it(self) -> None:
        def do() -> None:
            raise Failure("unusable")

        with pytest.raises(Failure):
            repeat(threading.Event(), do, 0.01, "cannot look", fatal=(Failure,))


def test_who_waits_in_an_event_loop_leaves_no_thread_for_each_wait() -> None:
    stop = threading.Event()

    async def wait(seconds: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(until_set(stop), seconds)
            return True
        return False

    before = threading.active_count()
    assert [asyncio.run(wait(0.001)) for _ in range(10)] == [False] * 10
    assert threading.active_count() <= before + 1
    threading.Timer(0.05, stop.set).start()
    assert asyncio.run(wait(10.0))
    assert asyncio.run(wait(10.0)), "it is set already"
    until(lambda: threading.active_count() <= before)
