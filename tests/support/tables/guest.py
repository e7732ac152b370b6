"""Inside the machine: lists of CPUs, bringing them on- and offline; counting failures; equal amounts of memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from devalloc.net.rate import SlidingWindowCount
from devalloc_machines.guest import system
from tests.support.fake_guest_tree import GuestTree
from tests.support.fake_tree import memory_folder
from tests.support.tables.table_form import CaseVerdict, Failure, TableForm, section, verdict

_COUNTER = re.compile(r"recent_counter_window_(\d+)s")
_STEP = re.compile(r"(?:(?P<adds>inc(?:,inc)*) at )?(?:read )?t0(?:\+(?P<seconds>\d+))?")


def _lists(content: dict[str, Any]) -> Iterator[CaseVerdict]:
    for text, expected in content["cpu_range_parse"]:
        yield verdict(f"cpu_range_parse {text}", expected, lambda text=text: system.parse_cpus(text))


def _scaler(content: dict[str, Any]) -> Iterator[CaseVerdict]:
    for case in content["cpu_scaler"]:
        count = case["cpus"]
        if count not in range(1, 1025):
            raise ValueError(f"cpus must be 1 to 1024, not {count!r}")
        goals = case.get("set") or _one_at_a_time(case.get("note"), count)
        expected = case.get("active", goals)
        yield verdict(f"cpu_scaler {count} CPUs", expected, lambda case=case, goals=goals: _active(case, goals))


def _one_at_a_time(note: str | None, count: int) -> list[int]:
    """What a note says is asked for, and that CPU 0 stays; all CPUs, up and down, where there is none."""
    match = re.fullmatch(
        r"up (\d+)\.\.(\d+) then down (\d+)\.\.(\d+) one at a time; CPU 0 is never offlined",
        note or f"up 2..{count} then down {count - 1}..1 one at a time; CPU 0 is never offlined",
    )
    if match is None:
        raise ValueError(f"no such course: {note!r}")
    low, high, first, last = (min(int(number), 1025) for number in match.groups())
    if high != count:
        raise ValueError(f"up to {high} of {count} CPUs")
    return [*range(low, high + 1), *range(first, last - 1, -1)]


def _active(case: dict[str, Any], goals: list[int]) -> list[int]:
    """How many CPUs are online after each step, by the guest's own list; -1 where CPU 0 is not."""
    with memory_folder() as folder:
        guest = GuestTree(Path(folder), cpus=case["cpus"], online=case.get("start", 1))
        active = []
        for count in goals:
            system.scale_cpus(guest, count)
            online = system.online_cpus(guest)
            active.append(len(online) if 0 in online else -1)
        return active


def _counters(content: dict[str, Any]) -> Iterator[CaseVerdict]:
    for key in content:
        if match := _COUNTER.fullmatch(key):
            yield _counter(key, int(match[1]), content[key])


def _counter(name: str, window: int, rows: list[list[Any]]) -> CaseVerdict:
    """One counter through all rows, each an event or more, and what it then counts."""
    counter, failures = SlidingWindowCount(window * 1000), []
    for text, expected in rows:
        now = 0
        for part in text.split(";"):
            step = _STEP.fullmatch(part.strip())
            if step is None:
                failures.append(Failure("a step such as `inc,inc at t0+2` or `read t0+5`", part, text))
                continue
            now = int(step["seconds"] or 0) * 1000
            for _ in (step["adds"] or "").split(",") if step["adds"] else ():
                counter.add(now)
        if counter.count(now) != expected:
            failures.append(Failure(expected, counter.count(now), text))
    return CaseVerdict(name, failures)


def is_similar_memory(one: int, other: int) -> bool:
    """Whether two amounts of memory are less than an eighth, and less than a block of 128 MiB, apart."""
    apart = abs(one - other)
    return apart * 8 < min(one, other) and apart < 128 * 2**20


def _similarity(content: dict[str, Any]) -> Iterator[CaseVerdict]:
    for one, other, expected in content["monitor_memory_similarity"]["examples"]:
        both = lambda one=one, other=other: [is_similar_memory(one, other), is_similar_memory(other, one)]  # noqa: E731
        yield verdict(f"monitor_memory_similarity {one} {other}", [expected, expected], both)


FORMS = [
    section("lists of CPUs", "cpu_range_parse", _lists),
    section("CPUs brought on- and offline", "cpu_scaler", _scaler),
    TableForm(
        "counts over a window",
        lambda content: any(_COUNTER.fullmatch(key) for key in content),
        _counters,
        sections=lambda section: _COUNTER.fullmatch(section) is not None,
    ),
    section("amounts of memory that count as equal", "monitor_memory_similarity", _similarity),
]
