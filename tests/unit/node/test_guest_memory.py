"""When the guest wants more memory, when it agrees to less, and how large its cache is."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devalloc.scaling.messages.monitor import DownscaleResult
from devalloc_machines.guest.memory import APART, MIB, MemoryPolicy, MemorySamples, cache_size, threshold, usable

GIB = 2**30


class Cache:
    def __init__(self, works: bool = True) -> None:
        self.works = works
        self.sizes: list[int] = []

    async def fit(self, memory: int) -> str:
        if not self.works:
            raise OSError("the cache is stuck")
        self.sizes.append(memory)
        return f"cache for {memory // MIB} MiB"


class Guest:
    """A guard, and what it measures. ``used`` None: measuring fails."""

    def __init__(self, *, memory: int = 4 * GIB, used: int = GIB, cache: Cache | None = None) -> None:
        self.used: int | None = used
        self.now = 0
        self.guard = MemoryPolicy(self._measure, memory, cache)

    def _measure(self) -> int:
        if self.used is None:
            raise OSError("gone")
        return self.used

    def sample(self, times: int = 5) -> None:
        for _ in range(times):
            self.now += 100
            try:
                self.guard.sample(self.now)
            except OSError:
                assert self.used is None

    def shrink(self, memory: int) -> DownscaleResult:
        return asyncio.run(self.guard.shrink(memory, self.now))


def test_a_hundred_mebibytes_are_the_systems_and_the_threshold_is_85_percent_of_the_rest() -> None:
    assert [usable(memory) for memory in (0, 100 * MIB, 101 * MIB, GIB)] == [0, 0, MIB, 924 * MIB]
    assert threshold(1100 * MIB) == 850 * MIB
    assert threshold(50 * MIB) == 0


def test_cache_sizes() -> None:
    sizes = {
        (256 * MIB, "disk"): 0,
        (640 * MIB, "memory"): 0,
        (512 * MIB, "disk"): 232 * MIB,  # 256 / 1.1, in whole mebibytes
        (2 * GIB, "disk"): 1536 * MIB,  # three quarters
        (2 * GIB, "memory"): 1280 * MIB,
        (GIB, "memory"): 349 * MIB,
        (0, "disk"): 0,
    }
    assert {(memory, where): cache_size(memory, where) for memory, where in sizes} == sizes


def test_use_is_the_mean_of_the_last_five_samples() -> None:
    samples = MemorySamples()
    for instant, used in enumerate((900, 10, 20, 30, 40, 50)):
        samples.add(instant * 100, used)
    assert (len(samples), samples.used, samples.age(700)) == (5, 30, 200)
    assert (MemorySamples().used, MemorySamples().age(5)) == (0, None)


def test_a_downscale_is_agreed_to_where_a_hundred_mebibytes_are_left_below_the_new_threshold() -> None:
    guest = Guest(used=1000 * MIB)
    guest.sample()
    edge = next(memory for memory in range(GIB, 2 * GIB, MIB) if threshold(memory) >= 1100 * MIB)
    assert not guest.shrink(edge - MIB).ok
    assert guest.guard.threshold == threshold(4 * GIB), "what is denied changes nothing"
    assert guest.shrink(edge).ok
    assert guest.guard.threshold == threshold(edge)


def test_a_downscale_to_exactly_that_threshold_is_agreed_to() -> None:
    for more, is_agreed in ((0, True), (MIB, False)):
        guest = Guest(used=threshold(2 * GIB) - 100 * MIB + more)
        guest.sample()
        assert guest.shrink(2 * GIB).ok is is_agreed


def test_a_denial_says_what_is_in_use_and_what_would_be_needed() -> None:
    guest = Guest(used=1000 * MIB)
    guest.sample()
    status = "1000 MiB are in use: the threshold would be 785 MiB, and must be at least 1100 MiB"
    assert guest.shrink(GIB) == DownscaleResult(False, status)


def test_one_sample_is_too_few_to_agree_and_too_old_a_one_is_an_error() -> None:
    guest = Guest(used=MIB)
    assert not guest.shrink(GIB).ok, "none"
    guest.sample(1)
    assert not guest.shrink(GIB).ok
    guest.sample(1)
    assert guest.shrink(GIB).ok
    guest.now += 5_000
    assert guest.shrink(GIB).ok
    guest.now += 1
    with pytest.raises(OSError, match=r"last measured 5\.001 s ago"):
        guest.shrink(GIB)


def test_a_measure_that_fails_becomes_an_error_when_the_samples_are_old() -> None:
    guest = Guest(used=MIB)
    guest.sample()
    guest.used = None
    guest.sample(60)
    with pytest.raises(OSError, match="last measured 6 s ago"):
        guest.shrink(GIB)


def test_a_policy_without_measure_and_cache_agrees_to_everything() -> None:
    guard = MemoryPolicy(None, GIB, None)
    guard.sample(0)
    assert not guard.wants_more(0)
    assert asyncio.run(guard.shrink(0, 10**9)).ok


def test_a_cache_is_resized_before_a_downscale_is_agreed_to_and_when_there_is_more() -> None:
    cache = Cache()
    guest = Guest(used=100 * MIB, cache=cache)
    guest.sample()
    assert guest.shrink(GIB) == DownscaleResult(True, "cache for 1024 MiB; the monitor requests more at 785 MiB in use")
    asyncio.run(guest.guard.grew(3 * GIB))
    assert cache.sizes == [GIB, 3 * GIB]
    guest.used = 3 * GIB
    guest.sample()
    assert not guest.shrink(GIB).ok
    assert cache.sizes == [GIB, 3 * GIB], "a downscale that is denied leaves it alone"


def test_a_cache_that_does_not_follow_is_an_error_and_nothing_is_agreed_to() -> None:
    guest = Guest(used=100 * MIB, cache=Cache(works=False))
    guest.sample()
    before = guest.guard.threshold
    with pytest.raises(OSError, match="stuck"):
        guest.shrink(GIB)
    assert guest.guard.threshold == before


def test_more_is_wanted_from_the_threshold_on_once_a_second_while_it_holds() -> None:
    guest = Guest(memory=GIB, used=threshold(GIB) - 1)
    times = []
    for _ in range(10):
        guest.sample(1)
        assert not guest.guard.wants_more(guest.now)
    guest.used = threshold(GIB) + 4
    for _ in range(32):
        guest.sample(1)
        if guest.guard.wants_more(guest.now):
            times.append(guest.now)
    assert times == [1_100, 2_100, 3_100, 4_100], "the first sample above makes the mean just that"
    asyncio.run(guest.guard.grew(2 * GIB))
    guest.sample(20)
    assert not guest.guard.wants_more(guest.now)


@settings(max_examples=80)
@given(st.integers(0, 2**40), st.integers(0, 2**40), st.integers(0, 2**40))
def test_what_was_agreed_to_leaves_room(memory: int, used: int, target: int) -> None:
    guest = Guest(memory=memory, used=used)
    guest.sample()
    result = guest.shrink(target)
    assert result.ok == (threshold(target) >= used + APART)
    if result.ok:
        assert used < usable(target) <= target
        assert not guest.guard.wants_more(guest.now), "less is never agreed to where more is wanted at once"


@given(st.integers(0, 2**44), st.sampled_from(["disk", "memory"]))
def test_a_cache_leaves_the_reserve_and_a_quarter(memory: int, where: str) -> None:
    size = cache_size(memory, where)
    assert 0 <= size <= memory * 3 // 4
    assert size % MIB == 0
    assert size == 0 or size + (256 if where == "disk" else 640) * MIB <= memory
