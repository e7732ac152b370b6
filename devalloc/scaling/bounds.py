"""Between which amounts a machine is scaled: the annotation ``autoscaling.neon.tech/bounds``, and what is reasonable.

The annotation is ``{"min": {"cpu": "250m", "mem": "1Gi"}, "max": {"cpu": 4, "mem": "16Gi"}}``. All four amounts are
required; every problem is told with its path, never only the first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from devalloc.api.problems import Problem
from devalloc.scaling.peerjson import Fields, Unreadable, only_value
from devalloc.scaling.resources import Resources
from devalloc.scaling.scalars import bytes_to_json, cpu_to_json

ANNOTATION = "autoscaling.neon.tech/bounds"
MAX_ANNOTATION = 4096
"""Characters of the annotation; more is refused unread."""
LEAST_CPU = 50
MOST_CPU = 512_000
"""Beyond these, in thousandths of a CPU, somebody has most likely mistaken the unit."""
MAX_SLOTS = 2**16 - 1
"""Memory slots of a machine that peers can count."""


@dataclass(frozen=True, slots=True)
class Bounds:
    min: Resources
    max: Resources


@dataclass(frozen=True, slots=True)
class ReadBounds:
    """Bounds, or None with at least one problem."""

    bounds: Bounds | None
    problems: list[Problem]


def read_annotation(text: str, slot_size: int, path: str = "") -> ReadBounds:
    """Bounds of a machine with memory slots of so many bytes, from the annotation's text. Never raises for content."""
    if len(text) > MAX_ANNOTATION:
        return ReadBounds(None, [Problem(f"must be at most {MAX_ANNOTATION} characters, not {len(text)}", path)])
    problems: list[Problem] = []
    try:
        fields = Fields(only_value(text))
        ends = [_read_end(fields, name, slot_size, path, problems) for name in ("min", "max")]
    except Unreadable as error:
        return ReadBounds(None, [Problem(f"is not to be read: {error}", path)])
    return ReadBounds(None if problems else Bounds(*ends), problems)


def _read_end(fields: Fields, name: str, slot_size: int, path: str, problems: list[Problem]) -> Resources:
    end = fields.inner(name)
    cpu = amount(end, "cpu", end.cpu, path, problems)
    memory = amount(end, "mem", end.bytes, path, problems)
    if memory % slot_size or memory // slot_size > MAX_SLOTS:
        wanted = f"a multiple of the memory slot size ({bytes_to_json(slot_size)}), at most {MAX_SLOTS} times it"
        problems.append(Problem(f"must be {wanted}, not {bytes_to_json(memory)}", join(path, end.path("mem"))))
    return Resources(cpu, memory)


def amount(fields: Fields, name: str, read: Callable[[str], int], path: str, problems: list[Problem]) -> int:
    """An amount that is required and not zero; 0, with a problem, where it is not to be had."""
    where = join(path, fields.path(name))
    try:
        value = read(name)
    except Unreadable as error:
        problems.append(Problem(str(error).removeprefix(fields.path(name)).lstrip(), where))
        return 0
    if not fields.has(name):
        problems.append(Problem("is required", where))
    elif value == 0:
        problems.append(Problem("must not be zero", where))
    return value


def size_problems(resources: Resources, path: str = "") -> list[Problem]:
    """Whether the CPU is within what is reasonable, both ends included. Memory is not looked at."""
    if LEAST_CPU <= resources.cpu <= MOST_CPU:
        return []
    least, most = cpu_to_json(LEAST_CPU), cpu_to_json(MOST_CPU)
    return [Problem(f"must be {least} to {most}, not {cpu_to_json(resources.cpu)}", join(path, "cpu"))]


def join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
