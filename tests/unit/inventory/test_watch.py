"""The watch loop on a virtual clock: what is published follows the host, whatever comes in between.

`World` is host, event source and clock in one. Time passes only in `wait` and in discoveries: schedules are exact.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devalloc.api.pool import DevicePool
from devalloc.api.problems import Problem
from devalloc.inventory.discover import Discovery
from devalloc.inventory.watch import InventoryWatcher, UdevMonitor, UdevSource, WatchSettings, diff_pools
from tests.support.examples import examples

SETTINGS = WatchSettings(quiet=0.2, longest_delay=2, min_interval=1, resync=60, retry=5)


def pool(name: str, state: int = 0) -> DevicePool:
    return DevicePool.model_validate(
        {
            "metadata": {"name": name},
            "spec": {
                "nodeName": "n",
                "driver": "nic.devalloc.io",
                "attributes": [{"name": "state", "intValue": state}],
                "devices": [],
            },
        }
    )


class Step(NamedTuple):
    """At `time` something happens; `news` when the source then reports an event."""

    time: float
    act: Callable[[], None]
    news: bool


@dataclass
class World:
    """A host with one card whose state is a number."""

    state: int = 0
    took: float = 0.0
    """Seconds that a discovery takes."""
    now: float = 0.0
    steps: list[Step] = field(default_factory=list)
    discoveries: list[float] = field(default_factory=list)
    """When each discovery began."""
    published: list[tuple[float, int]] = field(default_factory=list)
    failing: dict[str, int] = field(default_factory=dict)
    """How many more times "discover" and "publish" fail."""
    error: type[Exception] = RuntimeError
    """What they fail with."""
    failures: int = 0
    """How many there were, as the watcher tells."""
    problems: list[Problem] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.watcher = InventoryWatcher(
            self.discover,
            self.publish,
            source=self,
            settings=SETTINGS,
            clock=lambda: self.now,
            failed=self.count,
            expected=(FileNotFoundError,),
        )

    def count(self) -> None:
        self.failures += 1

    # What happens.

    def at(self, time: float, act: Callable[[], None] = lambda: None, *, news: bool = True) -> None:
        self.steps.append(Step(time, act, news))

    def change(self) -> None:
        self.state += 1

    def run(self, until: float) -> None:
        self.at(until, self.stop.set, news=False)
        self.steps.sort(key=lambda step: step.time)
        self.watcher.run(self.stop)

    # What the loop calls.

    def wait(self, timeout: float) -> bool:
        assert timeout >= 0
        until = self.now + timeout
        if not self.steps or self.steps[0].time > until:
            self.now = until
            return False
        step = self.steps.pop(0)
        self.now = max(self.now, step.time)
        step.act()
        return step.news

    def wake(self) -> None:
        pass

    def discover(self) -> Discovery:
        self.discoveries.append(self.now)
        self._maybe_fail("discover")
        pools = [pool("n-card", self.state)]
        self.now += self.took
        while self.steps and self.steps[0].time <= self.now and not self.stop.is_set():
            step = self.steps.pop(0)  # the world does not stand still; its event waits in the source
            step.act()
            if step.news:
                self.steps.insert(0, Step(self.now, lambda: None, True))
                break
        return Discovery(pools=pools, problems=list(self.problems))

    def publish(self, discovery: Discovery) -> None:
        self._maybe_fail("publish")
        value = discovery.pools[0].spec.attributes[0].value
        assert isinstance(value, int)
        self.published.append((round(self.now, 6), value))

    def _maybe_fail(self, what: str) -> None:
        if self.failing.get(what, 0) > 0:
            self.failing[what] -= 1
            raise self.error(f"{what} fails")


@pytest.fixture
def world() -> World:
    return World()


class TestDebounce:
    def test_the_first_look_is_at_once_and_is_published(self, world: World) -> None:
        world.run(until=10)
        assert (world.discoveries, world.published) == ([0.0], [(0.0, 0)])

    def test_a_change_is_published_when_its_events_are_over(self, world: World) -> None:
        for tenth in range(4):
            world.at(20 + tenth / 10, world.change)
        world.run(until=30)
        assert world.published[1:] == [(20.5, 4)]

    def test_thousands_of_events_are_one_look(self, world: World) -> None:
        for event in range(5000):
            world.at(20 + event / 1e5, world.change)
        world.run(until=30)
        assert (len(world.discoveries), world.published[-1][1]) == (2, 5000)

    def test_an_endless_storm_delays_news_but_does_not_stop_it(self, world: World) -> None:
        for event in range(1000):
            world.at(20 + event / 10, world.change)  # never quiet for 0.2 s
        world.run(until=115)
        gaps = [b - a for a, b in pairwise(world.discoveries[1:])]
        assert max(gaps) < 2.2
        assert min(gaps) >= 1

    def test_events_without_a_change_publish_nothing(self, world: World) -> None:
        world.at(20)
        world.run(until=30)
        assert (len(world.discoveries), len(world.published)) == (2, 1)


class TestResyncAndRescan:
    def test_a_change_without_an_event_is_found_by_the_resync(self, world: World) -> None:
        world.at(20, world.change, news=False)
        world.run(until=130)
        assert world.discoveries == [0, 60, 120]
        assert world.published == [(0, 0), (60, 1)]

    def test_a_rescan_looks_now(self, world: World) -> None:
        world.at(20, world.change, news=False)
        world.at(21, world.watcher.rescan, news=False)
        world.run(until=30)
        assert world.published[1:] == [(21, 1)]

    def test_a_rescan_during_a_look_is_for_the_next_look(self, world: World) -> None:
        world.took = 3
        world.at(1, world.change, news=False)
        world.at(2, world.watcher.rescan, news=False)
        world.run(until=10)
        assert (world.discoveries, world.published[-1]) == ([0, 3], (6, 1))

    def test_many_rescans_keep_to_the_interval(self, world: World) -> None:
        for i in range(100):
            world.at(20 + i / 50, world.watcher.rescan, news=False)
        world.run(until=30)
        assert world.discoveries == [0, 20, 21, 22]

    def test_a_rescan_publishes_only_changes_unless_it_republishes(self, world: World) -> None:
        world.at(20, world.watcher.rescan, news=False)
        world.at(25, lambda: world.watcher.rescan(republish=True), news=False)
        world.run(until=30)
        assert world.published == [(0, 0), (25, 0)]

    def test_a_republication_that_failed_is_still_owed(self, world: World) -> None:
        def fail_then_rescan() -> None:
            world.failing["publish"] = 2
            world.watcher.rescan(republish=True)

        world.at(20, fail_then_rescan, news=False)
        world.run(until=50)
        assert world.published == [(0, 0), (20 + 5 + 10, 0)]


class TestFailures:
    @pytest.mark.parametrize("what", ["discover", "publish"])
    def test_a_failure_is_logged_and_tried_again_ever_later(
        self, world: World, what: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        world.failing[what] = 5
        world.run(until=200)
        assert world.discoveries[:6] == [0, 5, 15, 35, 75, 135]  # 5, 10, 20, 40, then the resync of 60
        assert world.published == [(135, 0)]
        assert [r.levelno for r in caplog.records].count(logging.ERROR) == 5
        assert world.failures == 5

    def test_an_expected_failure_is_one_line_until_something_was_published(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        world.error = FileNotFoundError
        world.failing["publish"] = 2
        world.at(50, lambda: world.failing.update(publish=1))
        world.at(50, world.change)
        world.run(until=200)
        errors = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert [record.exc_info for record in errors] == [None, None]

    def test_an_event_after_a_failure_tries_again_at_once(self, world: World) -> None:
        world.failing["publish"] = 1
        world.at(2, world.change)
        world.run(until=4)
        assert world.published == [(2.2, 1)]

    def test_a_publication_that_failed_is_not_taken_as_published(self, world: World) -> None:
        def change_and_fail() -> None:
            world.change()
            world.failing["publish"] = 1

        world.at(20, change_and_fail)
        world.run(until=30)
        assert world.published == [(0, 0), (25.2, 1)]

    def test_a_problem_is_logged_when_it_comes_and_not_at_every_look(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        world.problems.append(Problem("0000:41:00.0 has no IOMMU group", severity="warning"))
        world.at(100, lambda: world.problems.append(Problem("0000:42:00.0: unreadable class")), news=False)
        world.run(until=200)
        records = [(r.levelname, r.message) for r in caplog.records if r.levelno >= logging.WARNING]
        assert records == [
            ("WARNING", "0000:41:00.0 has no IOMMU group"),
            ("ERROR", "0000:42:00.0: unreadable class"),
        ]


class TestRandomSchedules:
    HAPPENINGS = ("change", "event", "silent change", "rescan", "discover fails", "publish fails")

    @settings(max_examples=examples(45, 0.375), deadline=None)
    @given(
        happenings=st.lists(
            st.tuples(st.floats(0, 20).map(lambda t: round(t, 2)), st.sampled_from(HAPPENINGS)), max_size=30
        ),
        took=st.sampled_from([0.0, 0.3, 3.0]),
    )
    def test_what_is_published_ends_as_the_host_is(self, happenings: list[tuple[float, str]], took: float) -> None:
        world = World(took=took)

        def fail(what: str) -> None:
            world.failing[what] = world.failing.get(what, 0) + 1

        acts: dict[str, tuple[Callable[[], None], bool]] = {
            "change": (world.change, True),
            "event": (lambda: None, True),
            "silent change": (world.change, False),
            "rescan": (world.watcher.rescan, False),
            "discover fails": (lambda: fail("discover"), False),
            "publish fails": (lambda: fail("publish"), False),
        }
        for time, what in happenings:
            act, news = acts[what]
            world.at(time, act, news=news)
        world.run(until=20 + 61 * 35)  # a resync after every possible failure
        assert world.published[-1][1] == world.state
        values = [value for _, value in world.published]
        assert all(a != b for a, b in pairwise(values)), "published twice without a change"
        starts = world.discoveries
        assert all(b - a >= SETTINGS.min_interval - 1e-9 for a, b in pairwise(starts))

    @settings(max_examples=examples(30, 0.25), deadline=None)
    @given(times=st.lists(st.floats(3, 20).map(lambda t: round(t, 2)), min_size=1), took=st.sampled_from([0.0, 0.3, 3]))
    def test_news_is_never_older_than_the_longest_delay(self, times: list[float], took: float) -> None:
        world = World(took=took)
        for time in times:
            world.at(time, world.change)
        world.run(until=40)
        states = sorted(times)
        for count, time in enumerate(states, start=1):
            seen = min(when for when, value in world.published if value >= count)
            assert seen - time <= SETTINGS.longest_delay + 2 * took + SETTINGS.min_interval


class TestStop:
    def test_a_set_stop_ends_the_loop_before_any_look(self, world: World) -> None:
        world.stop.set()
        world.watcher.run(world.stop)
        assert world.discoveries == []

    def test_it_ends_a_wait_that_would_last(self) -> None:
        def no_monitor() -> UdevMonitor:
            raise ImportError("no pyudev")

        source, stop, looked = UdevSource(no_monitor), threading.Event(), threading.Event()
        watcher = InventoryWatcher(lambda: Discovery([], []), lambda discovery: looked.set(), source=source)
        thread = threading.Thread(target=watcher.run, args=(stop,))
        thread.start()
        assert looked.wait(60)
        stop.set()  # the resync is a minute away
        thread.join(50)
        assert not thread.is_alive()
        source.close()

    @pytest.mark.parametrize("bad", [0, -1.0])
    def test_settings_must_be_positive(self, bad: float) -> None:
        with pytest.raises(ValueError, match="resync must be more than 0 seconds"):
            WatchSettings(resync=bad)


class TestDiff:
    def test_it_names_what_came_what_changed_and_what_went(self) -> None:
        changes = diff_pools([pool("a"), pool("b"), pool("c")], [pool("b"), pool("c", 1), pool("d")])
        assert str(changes) == "added d; changed c; removed a"
        assert changes.changed == (pool("c", 1),)

    @given(
        old=st.dictionaries(st.sampled_from("abcd"), st.integers(0, 2)),
        new=st.dictionaries(st.sampled_from("abcd"), st.integers(0, 2)),
    )
    @settings(max_examples=examples(15, 0.125), deadline=None)
    def test_applied_to_the_old_pools_it_gives_the_new_ones(self, old: dict[str, int], new: dict[str, int]) -> None:
        changes = diff_pools([pool(*p) for p in old.items()], [pool(*p) for p in new.items()])
        pools = {name: pool(name, state) for name, state in old.items()}
        for gone in changes.removed:
            del pools[gone.metadata.name]
        pools |= {p.metadata.name: p for p in (*changes.added, *changes.changed)}
        assert pools == {name: pool(name, state) for name, state in new.items()}
        assert bool(changes) == (old != new)
