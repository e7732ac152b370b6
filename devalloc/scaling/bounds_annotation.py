"""Peers' bounds of a machine: the annotation ``autoscaling.neon.tech/bounds``, and what is reasonable.

The annotation is ``{"min": {"cpu": "250m", "mem": "1Gi"}, "max": {"cpu": 4, "mem": "16Gi"}}``. All four amounts are
required; all problems are reported, with their paths.
"""

from __future__ import annotations

from collections.abc import Callable

from devalloc.api.problems import Problem, Read
from devalloc.scaling.peer_json import JsonFields, Unreadable, bytes_to_json, cpu_to_json, decode_text
from devalloc.scaling.resources import Resources, ScalingBounds

MAX_ANNOTATION = 4096
"""Characters of the annotation; more is refused unread."""
MIN_CPU = 50
MAX_CPU = 512_000
"""Thousandths of a CPU. Amounts beyond these are most likely in another unit."""
MAX_SLOTS = 2**16 - 1
"""Memory slots of a machine that peers can count."""


def read_bounds_annotation(text: str, slot_size: int, path: str = "") -> Read[ScalingBounds]:
    """Bounds of a machine with memory slots of so many bytes, from the annotation's text. Never raises for content."""
    if len(text) > MAX_ANNOTATION:
        return Read(None, [Problem(f"must be at most {MAX_ANNOTATION} characters, not {len(text)}", path)])
    problems: list[Problem] = []
    try:
        fields = JsonFields(decode_text(text))
        ends = [_read_end(fields, name, slot_size, path, problems) for name in ("min", "max")]
    except Unreadable as error:
        return Read(None, [Problem(f"is not to be read: {error}", path)])
    return Read(None if problems else ScalingBounds(*ends), problems)


def _read_end(fields: JsonFields, name: str, slot_size: int, path: str, problems: list[Problem]) -> Resources:
    end = fields.inner(name)
    cpu = required_amount(end, "cpu", end.cpu, path, problems)
    memory = required_amount(end, "mem", end.bytes, path, problems)
    if memory % slot_size or memory // slot_size > MAX_SLOTS:
        wanted = f"a multiple of the memory slot size ({bytes_to_json(slot_size)}), at most {MAX_SLOTS} times it"
        problems.append(Problem(f"must be {wanted}, not {bytes_to_json(memory)}", join_path(path, end.path("mem"))))
    return Resources(cpu, memory)


def required_amount(
    fields: JsonFields, name: str, read: Callable[[str], int], path: str, problems: list[Problem]
) -> int:
    """An amount that is required and not zero; 0, with a problem, if there is none."""
    where = join_path(path, fields.path(name))
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
    if MIN_CPU <= resources.cpu <= MAX_CPU:
        return []
    least, most = cpu_to_json(MIN_CPU), cpu_to_json(MAX_CPU)
    return [Problem(f"must be {least} to {most}, not {cpu_to_json(resources.cpu)}", join_path(path, "cpu"))]


def join_path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
