"""The agent's rules once more, from the specification alone: exact fractions, one resource at a time, and slow.

It shares nothing with ``devalloc.scaling``. A machine's knowledge is a dict, amounts are pairs (CPU, memory), and what
is done follows the prose of the specification sentence by sentence.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

CPU, MEMORY = 0, 1
BOTH = (CPU, MEMORY)
Pair = tuple[int, int]


# -- goals -----------------------------------------------------------------------------------------------------------


def half_away(value: Fraction) -> int:
    """To the nearest whole number; a half goes away from zero."""
    return math.floor(value + Fraction(1, 2))


def working_set(series: list[int], window: int, wait: int, *, largest: bool) -> Fraction | None:
    """Pages that the working set will soon have."""
    offset = wait - 1
    if len(series) < offset + window:
        return None
    lowest = series[-1]
    if not largest:
        for t in range(offset, len(series) - (window - 1)):
            grew_before = max(0, series[t] - series[t - window + 1])
            grows_after = max(0, series[t + window - 1] - series[t])
            if grows_after > 3 * grew_before:
                lowest = series[t]
                break
    cut = [i for i in range(offset, len(series)) if series[i] > lowest]
    uncut = series[: cut[0]] if cut else series
    best = Fraction(uncut[0])
    for i in range(1, len(uncut)):
        x0, x1 = uncut[i - 1], max(uncut[i - 1], uncut[i])
        best = max(best, x1 + Fraction(x1 - x0, 2))
    return best


def goal(unit: Pair, config: dict[str, Any], system: dict[str, Any] | None, lfc: list[int] | None) -> dict[str, Any]:
    """The newest goal computation: each part as an exact fraction, or None."""
    cores = Fraction(unit[CPU], 1000)
    cpu = memory = cache = total = None
    if lfc is not None:
        pages = working_set(
            lfc,
            config["lfcWindowSizeMinutes"],
            config["lfcMinWaitBeforeDownscaleMinutes"],
            largest=config["lfcUseLargestWindow"],
        )
        total = None if pages is None else pages * 8192
        cache = Fraction(0) if total is None else total / Fraction(config["lfcToMemoryRatio"]) / unit[MEMORY]
    if system is not None:
        one, five = Fraction(system["load1"]), Fraction(system["load5"])
        stable = Fraction(config["cpuStableZoneRatio"]) * five
        mixed = stable + Fraction(config["cpuMixedZoneRatio"]) * five
        apart = abs(one - five)
        if apart <= stable:
            weight = Fraction(0)
        elif apart >= mixed:
            weight = Fraction(1)
        else:
            weight = (apart - stable) / (mixed - stable + Fraction(1, 10**6))
        cpu = (weight * one + (1 - weight) * five) / Fraction(config["loadAverageFractionTarget"]) / cores
        usage = Fraction(system["memoryUsageBytes"])
        memory = Fraction(half_away(usage / Fraction(config["memoryUsageFractionTarget"])), unit[MEMORY])
        if total is not None:
            together = min(total, Fraction(system["memoryCachedBytes"])) + usage
            memory = max(memory, together / Fraction(config["memoryTotalFractionTarget"]) / unit[MEMORY])
    return {
        "complete": system is not None and (lfc is not None or not config["enableLFCMetrics"]),
        "cpu": cpu,
        "memory": memory,
        "cache": cache,
        "short": lfc is not None and total is None,
    }


def units(parts: dict[str, Any]) -> int:
    """Whole compute units: CPU rounded, the others as they are, and the largest of them rounded up."""
    return math.ceil(max(half_away(parts["cpu"] or Fraction(0)), parts["memory"] or 0, parts["cache"] or 0))


# -- the agent -------------------------------------------------------------------------------------------------------


def clamp(current: Pair, wanted: Pair, lo: Pair | None, hi: Pair | None) -> Pair:
    result = []
    for r in BOTH:
        value = wanted[r]
        if wanted[r] < current[r] and lo is not None:
            value = max(wanted[r], lo[r])
        if wanted[r] > current[r] and hi is not None:
            value = min(wanted[r], hi[r])
        result.append(value)
    return result[0], result[1]


def some_less(one: Pair, other: Pair) -> bool:
    return one[CPU] < other[CPU] or one[MEMORY] < other[MEMORY]


class OracleAgent:
    """One machine. ``times``, in milliseconds: tick, retry, deniedRetry, machineRetry, monitorRetry, denied, valid."""

    def __init__(self, unit: Pair, least: Pair, most: Pair, config: dict[str, Any], times: dict[str, int]) -> None:
        self.unit, self.least, self.most, self.config, self.times = unit, least, most, config, times
        self.using = least
        self.system: dict[str, Any] | None = None
        self.lfc: list[int] | None = None
        self.last_request: tuple[int, Pair] | None = None
        self.asking = False
        self.ask_failed: int | None = None
        self.permit: Pair | None = None
        self.changing: Pair | None = None
        self.change_failed: int | None = None
        self.disconnect()

    # Events.

    def disconnect(self) -> None:
        self.approved: Pair | None = None
        self.monitor_call: tuple[str, Pair] | None = None
        self.failed: dict[str, int] = {}
        self.wish: tuple[int, Pair, tuple[bool, bool]] | None = None
        self.denial: tuple[int, Pair, Pair] | None = None

    def connect(self) -> None:
        self.disconnect()
        self.approved = self.using

    def ask(self, now: int, target: Pair) -> None:
        self.last_request, self.asking, self.ask_failed = (now, target), True, None

    def answer(self, now: int, permit: Pair) -> bool:
        """Whether the permit is valid."""
        assert self.last_request is not None
        self.asking = False
        ask = self.last_request[1]
        valid = all(permit[r] != 0 and permit[r] <= ask[r] and permit[r] >= self.using[r] for r in BOTH)
        if valid:
            self.permit = permit
        else:
            self.ask_failed = now
        return valid

    def ask_fails(self, now: int) -> None:
        self.asking, self.ask_failed = False, now

    def change(self, target: Pair) -> None:
        self.changing, self.change_failed = target, None

    def changed(self) -> None:
        assert self.changing is not None
        self.using, self.changing = self.changing, None

    def change_fails(self, now: int) -> None:
        self.changing, self.change_failed = None, now

    def tell(self, way: str, target: Pair) -> None:
        self.monitor_call = (way, target)
        self.failed.pop(way, None)

    def agreed(self) -> None:
        assert self.monitor_call is not None
        self.approved, self.monitor_call = self.monitor_call[1], None

    def refused(self, now: int) -> None:
        assert self.monitor_call is not None
        assert self.approved is not None
        self.denial, self.monitor_call = (now, self.approved, self.monitor_call[1]), None

    def tell_fails(self, now: int) -> None:
        assert self.monitor_call is not None
        self.failed[self.monitor_call[0]], self.monitor_call = now, None

    def wishes(self, now: int, cpu: bool, memory: bool) -> None:
        if self.approved is not None:
            self.wish = (now, self.approved, (cpu, memory))

    # What is done next.

    def desired(self, now: int) -> tuple[Pair, int | None, int | None]:
        """The resources; and when the wish and the denial end, if they made a difference."""
        parts = goal(self.unit, self.config, self.system, self.lfc)
        base = wanted = units(parts)
        wish_ends = denial_ends = None
        if self.wish is not None and now < self.wish[0] + self.times["valid"]:
            for r in BOTH:
                if self.wish[2][r]:
                    need = 1 + self.wish[1][r] // self.unit[r]
                    wanted = max(wanted, need)
                    if need > base:
                        wish_ends = self.wish[0] + self.times["valid"]
        live = self.denial is not None and now < self.denial[0] + self.times["denied"]
        if live:
            assert self.denial is not None
            for r in BOTH:
                need = 1 + self.denial[2][r] // self.unit[r]
                wanted = max(wanted, need)
                if need > base:
                    denial_ends = self.denial[0] + self.times["denied"]
        result = [self.unit[r] * wanted for r in BOTH]
        if not parts["complete"]:
            result = [max(result[r], self.using[r]) for r in BOTH]
        result = [max(min(result[r], self.most[r]), self.least[r]) for r in BOTH]
        if live:
            assert self.denial is not None
            for r in BOTH:
                floor = min(self.denial[1][r], self.unit[r] * (1 + self.denial[2][r] // self.unit[r]))
                if floor > result[r]:
                    result[r] = floor
                    denial_ends = self.denial[0] + self.times["denied"]
        return (result[0], result[1]), wish_ends, denial_ends

    def next(self, now: int) -> dict[str, Any]:
        wanted, wish_ends, denial_ends = self.desired(now)
        waits: list[int] = []
        actions: dict[str, Any] = {}
        self._plugin(now, wanted, actions, waits)
        self._machine(now, wanted, actions, waits)
        self._monitor(now, wanted, actions, waits)
        idle = self.monitor_call is None and "down" not in actions
        if denial_ends is not None and idle:
            waits.append(denial_ends - now)
        if wish_ends is not None:
            waits.append(wish_ends - now)
        if waits:
            actions["wait"] = min(waits)
        return actions

    def _plugin(self, now: int, wanted: Pair, actions: dict[str, Any], waits: list[int]) -> None:
        if self.asking:
            return
        if self.ask_failed is not None and now < self.ask_failed + self.times["retry"]:
            waits.append(self.ask_failed + self.times["retry"] - now)
            return
        target = clamp(self.using, wanted, self.using, None)
        report = self.using
        if self.changing is not None:
            report = max(report[CPU], self.changing[CPU]), max(report[MEMORY], self.changing[MEMORY])
        new = False
        again = None
        if self.last_request is not None and self.permit is not None:
            new = target != self.permit
            if some_less(self.permit, self.last_request[1]) and now < self.last_request[0] + self.times["deniedRetry"]:
                new, again = False, self.last_request[0] + self.times["deniedRetry"]
        due = self.last_request is None or now >= self.last_request[0] + self.times["tick"]
        if new or due:
            actions["plugin"] = (self.permit, target if new else report)
            return
        assert self.last_request is not None
        waits.append(self.last_request[0] + self.times["tick"] - now)
        if again is not None:
            waits.append(again - now)

    def _machine(self, now: int, wanted: Pair, actions: dict[str, Any], waits: list[int]) -> None:
        target = clamp(self.using, wanted, self.approved or self.using, self.permit or self.using)
        if target == self.using or self.changing is not None:
            return
        asking = None
        if self.asking:
            assert self.last_request is not None
            asking = self.last_request[1]
        elif "plugin" in actions:
            asking = actions["plugin"][1]
        if asking is not None and some_less(asking, target):
            return
        if self.change_failed is not None and now < self.change_failed + self.times["machineRetry"]:
            waits.append(self.change_failed + self.times["machineRetry"] - now)
            return
        actions["machine"] = (self.using, target)

    def _monitor(self, now: int, wanted: Pair, actions: dict[str, Any], waits: list[int]) -> None:
        if self.approved is None:
            return
        highest = max(wanted[CPU], self.approved[CPU]), max(wanted[MEMORY], self.approved[MEMORY])
        up = clamp(self.approved, self.using, self.approved, highest)
        down = clamp(self.approved, wanted, None, self.approved)
        down = (
            max(down[CPU], self.approved[CPU] - self.unit[CPU]),
            max(down[MEMORY], self.approved[MEMORY] - self.unit[MEMORY]),
        )
        if self.monitor_call is not None:
            return
        for way, target in (("up", up), ("down", down)):
            if target == self.approved or "up" in actions:
                continue
            if way in self.failed and now < self.failed[way] + self.times["monitorRetry"]:
                waits.append(self.failed[way] + self.times["monitorRetry"] - now)
                continue
            actions[way] = (self.approved, target)
