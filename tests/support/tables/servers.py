"""What servers of permits are shipped with, how they spread machines, and how long decisions take to come through."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

from devalloc.controller.permits.settings import PORT, Settings
from devalloc.scaling.permits.scoring import Curve, spread
from devalloc.scaling.revisions import Revisions
from tests.support.tables.forms import Failure, Form, Verdict, verdict

_MARKS = {"cpu": "cpu_watermark", "memory": "memory_watermark"}


def _server(content: dict[str, Any]) -> Iterator[Verdict]:
    """The settings that devalloc has as well; its limits by watermark are what a node of 1,000 of each gets."""
    node, shipped, curve = content["nodeConfig"], Settings(), Curve()
    for name, attribute in _MARKS.items():
        if (mark := node.get(name, {}).get("watermark")) is not None:
            ours = getattr(shipped, attribute)
            yield verdict(f"watermark of {name}", mark, lambda ours=ours: 0.9 if ours is None else ours)
    pairs = {"minUsageScore": curve.empty, "maxUsageScore": curve.full, "scorePeak": curve.peak}
    for name, value in pairs.items():
        if name in node:
            yield verdict(name, float(node[name]), lambda value=value: float(value))
    if "startupEventHandlingTimeoutSeconds" in content:
        theirs = float(content["startupEventHandlingTimeoutSeconds"])
        yield verdict("startupEventHandlingTimeoutSeconds", theirs, lambda: shipped.startup_seconds)
    if "dumpState" in content:
        yield verdict("port of the state", content["dumpState"]["port"], lambda: shipped.dump_port)
    yield verdict("port", PORT, lambda: shipped.port)


def _spread(content: dict[str, Any]) -> Iterator[Verdict]:
    """As told: 0 stays 0, and any other score becomes each whole number from 1 to itself, as often as any other."""
    rng = random.Random(1)
    for score in (0, 1, 7):
        drawn = [spread(score, rng.randint) for _ in range(2000)]
        expected = list(range(1, score + 1)) or [0]
        failures = [] if sorted(set(drawn)) == expected else [Failure(expected, sorted(set(drawn)))]
        counts = [drawn.count(value) for value in expected]
        if min(counts) < 0.7 * 2000 / len(expected):
            failures.append(Failure("each as often as any other", counts))
        yield Verdict(f"normalize_score_random {score}", failures)


def _revisions(content: dict[str, Any]) -> Iterator[Verdict]:
    for number, row in enumerate(content["revision_source"]):
        yield verdict(f"revision_source {number}", *_asked(row))


def _asked(row: dict[str, Any]) -> tuple[Any, Any]:
    """What a row expects, and how to find out."""
    if "next" in row:
        expected = [row["next"], row["latency_s"]]

        def alone() -> list[Any]:
            source = Revisions(row["next"] - 1)
            return [source.next(0), _seconds(source.observed(row["next"], 1000 * row["observe_after_s"]))]

        return expected, alone
    if "observe same revision twice" in row:

        def twice() -> list[Any]:
            source = Revisions()
            return [_seconds(source.observed(source.next(0), 1000)), source.observed(1, 2000)]

        return [1, None], twice
    if (initial := next((re.fullmatch(r"initial (\d+)", key) for key in row), None)) is not None:
        expected_next = int(re.fullmatch(r"next is (\d+)", row[initial[0]])[1])  # type: ignore[index]
        return expected_next, lambda: Revisions(int(initial[1])).next(0)
    return _told(row)


def _told(row: dict[str, str]) -> tuple[Any, Any]:
    """``rev1 at 0, rev2 at 5, observe rev1 at 10`` : ``latency 10``, and on with the same source."""
    expected, steps = [], []
    for text, answer in row.items():
        for part in text.split(", "):
            found = re.fullmatch(r"(observe )?rev(\d+) at (\d+)", part)
            assert found is not None, part
            steps.append((bool(found[1]), int(found[2]), int(found[3])))
        latency = re.fullmatch(r"latency (\d+)", answer)
        expected.append(int(latency[1]) if latency else None)

    def course() -> list[Any]:
        source, got = Revisions(), []
        for observes, revision, seconds in steps:
            if observes:
                got.append(_seconds(source.observed(revision, seconds * 1000)))
            else:
                assert source.next(seconds * 1000) == revision
        return got

    return expected, course


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


FORMS = [
    Form("settings of servers of permits", lambda content: isinstance(content.get("nodeConfig"), dict), _server),
    Form(
        "spread scores",
        lambda content: "normalize_score_random" in content,
        _spread,
        sections=lambda name: name == "normalize_score_random",
    ),
    Form(
        "numbered decisions",
        lambda content: "revision_source" in content,
        _revisions,
        sections=lambda name: name == "revision_source",
    ),
]
