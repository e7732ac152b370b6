"""The guest's memory policy: sample the usage, ask for more, and accept or reject a decrease."""

from __future__ import annotations

from devalloc.scaling.messages.monitor import DownscaleResult
from devalloc_node.guest.cache import Cache
from devalloc_node.guest.memory import MemoryMeasure
from devalloc_node.guest.memory_rules import APART, MIB, MemorySamples, threshold

_STALE = 5_000  # milliseconds after which a sample says nothing of now
_AGAIN = 1_000  # milliseconds from one request for more to the next


class MemoryPolicy:
    """The state of it. Instants are milliseconds of any one clock."""

    def __init__(self, measure: MemoryMeasure | None, memory: int, cache: Cache | None) -> None:
        """``memory``: what the guest has now, in bytes. Without ``measure`` nothing is wanted, and nothing denied."""
        self._measure = measure
        self._cache = cache
        self._samples = MemorySamples()
        self._requested_at: int | None = None
        self.has(memory)

    @property
    def threshold(self) -> int:
        """At which use more is wanted."""
        return self._threshold

    @property
    def used(self) -> int:
        """Memory in use, as it is judged by."""
        return self._samples.used

    def sample(self, now: int) -> None:
        """Measure. Raises OSError, ValueError."""
        if self._measure is not None:
            self._samples.add(now, self._measure())

    def wants_more(self, now: int) -> bool:
        """Whether to ask for more now; it is then taken as asked."""
        if self._measure is None or not len(self._samples) or self._samples.used < self._threshold:
            return False
        if self._requested_at is not None and now - self._requested_at < _AGAIN:
            return False
        self._requested_at = now
        return True

    def has(self, memory: int) -> None:
        """The guest has so much memory, as it sees itself: what an agent that is gone said of it is void."""
        self._threshold = threshold(memory)

    async def grew(self, memory: int) -> None:
        """The machine has so much memory now. Raises OSError where the cache does not follow."""
        self.has(memory)
        if self._cache is not None:
            await self._cache.fit(memory)

    async def shrink(self, memory: int, now: int) -> DownscaleResult:
        """Whether the machine may have so little. What is agreed to is prepared. Raises OSError: nobody can tell."""
        done = []
        if self._measure is not None:
            age = self._samples.age(now)
            if age is not None and age > _STALE:
                raise OSError(f"memory was last measured {age / 1000:g} s ago")
            if len(self._samples) <= 1:
                return DownscaleResult(False, "memory was not measured for long enough; ask again")
            needed = self._samples.used + APART
            if threshold(memory) < needed:
                used, then, least = (amount // MIB for amount in (self._samples.used, threshold(memory), needed))
                status = f"{used} MiB are in use: the threshold would be {then} MiB, and must be at least {least} MiB"
                return DownscaleResult(False, status)
        if self._cache is not None:
            done.append(await self._cache.fit(memory))
        if self._measure is not None:
            self._threshold = threshold(memory)
            done.append(f"the monitor requests more at {self._threshold // MIB} MiB in use")
        return DownscaleResult(True, "; ".join(done) or "memory is not measured, and there is no cache")
