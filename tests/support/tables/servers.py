"""What servers of permits are shipped with, how they spread machines, and how long decisions take to come through."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from devalloc.controller.permits.settings import Settings
from devalloc.scaling.eras import Era
from devalloc.scaling.permits.scoring import Curve, spread
from devalloc.scaling.resources import Resources
from devalloc.scaling.revisions import Revisions
from devalloc.scaling.scalars import bytes_from_json, cpu_from_json
from tests.support.tables.forms import Failure, Form, Verdict, section, unjudged, verdict

_JUDGED = {"provenance", "source", "form", "nodeConfig", "nodeDefaults", "cpu", "memory", "watermark", "scoring"}
_JUDGED |= {"minUsageScore", "maxUsageScore", "scorePeak", "computeUnit", "memBlockSize", "dumpState"}
_JUDGED |= {"startupEventHandlingTimeoutSeconds"}
_NODE = Resources(10_000, 10 * 2**30)
"""A node that the settings are tried on."""


def era_of(content: dict[str, Any]) -> Era:
    """Each era has the settings of nodes elsewhere."""
    if "nodeDefaults" in content:
        return Era.V0_12
    return Era.V0_31 if "nodeConfig" in content else Era.NEWEST


def _server(content: dict[str, Any]) -> Iterator[Verdict]:
    """The settings that devalloc has as well; its limits by watermark are what a node gets."""
    era = era_of(content)
    node = content.get("nodeDefaults") or content.get("nodeConfig") or {}
    scoring = content.get("scoring", node)
    parts = {name: node.get(name) or {"watermark": content.get("watermark")} for name in ("cpu", "memory")}
    system = Resources(cpu_from_json(parts["cpu"].get("system")), bytes_from_json(parts["memory"].get("system")))
    shipped, curve = Settings(era=era, system=system), Curve()
    total, mark = shipped.limits(_NODE)
    for name, part in parts.items():
        left = getattr(_NODE, name) - getattr(system, name)
        yield verdict(f"total of {name}", left, lambda name=name: getattr(total, name))
        if part.get("watermark") is not None:
            expected = int(Fraction(str(part["watermark"])) * left)
            yield verdict(f"watermark of {name}", expected, lambda name=name: getattr(mark, name))
    if "computeUnit" in node:
        unit, slot = node["computeUnit"], bytes_from_json(content["memBlockSize"])
        given = [cpu_from_json(unit["vCPUs"]), bytes_from_json(unit["mem"]) * slot]
        yield verdict("computeUnit", given, lambda: [shipped.unit.cpu, shipped.unit.memory])
    pairs = {"minUsageScore": curve.empty, "maxUsageScore": curve.full, "scorePeak": curve.peak}
    for name, value in pairs.items():
        if name in scoring:
            yield verdict(name, float(scoring[name]), lambda value=value: float(value))
    if "startupEventHandlingTimeoutSeconds" in content:
        theirs = float(content["startupEventHandlingTimeoutSeconds"])
        yield verdict("startupEventHandlingTimeoutSeconds", theirs, lambda: shipped.startup_seconds)
    if "dumpState" in content:
        others = (f"dumpState.{name}" for name in content["dumpState"] if name != "port")
        yield from (Verdict(name, unjudged="devalloc has no such setting") for name in others)
        yield verdict("port of the state", content["dumpState"]["port"], lambda: shipped.dump_port)
    for given in (content, node):
        yield from unjudged(given, (name for name in given if name not in _JUDGED), "devalloc has no such setting")


def _is_server(content: dict[str, Any]) -> bool:
    newest = "watermark" in content and isinstance(content.get("scoring"), dict)
    return newest or any(isinstance(content.get(name), dict) for name in ("nodeConfig", "nodeDefaults"))


def _spread(content: dict[str, Any]) -> Iterator[Verdict]:
    """``score 0`` or ``score s>0`` : ``unchanged``, or ``uniform integer in [1, s]``, each as often as any other."""
    rng = random.Random(1)
    for scores, told in content["normalize_score_random"].items():
        which = re.fullmatch(r"score (?:(\d+)|s>(\d+))", scores)
        says = re.fullmatch(r"unchanged|uniform integer in \[(\d+), s\]", told)
        if which is None or says is None:
            yield Verdict(f"normalize_score_random {scores}", [Failure("words that are known", told)])
            continue
        for score in [int(which[1])] if which[1] else [int(which[2]) + 1, int(which[2]) + 7]:
            drawn = [spread(score, rng.randint) for _ in range(2000)]
            expected = list(range(int(says[1]), score + 1)) if says[1] else [score]
            failures = [] if sorted(set(drawn)) == expected else [Failure(expected, sorted(set(drawn)))]
            counts = [drawn.count(value) for value in expected]
            if min(counts, default=0) < 0.7 * 2000 / max(1, len(expected)):
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
            source = Revisions(row.get("initial", 0))
            return [source.next(0), _seconds(source.observed(row["next"], 1000 * row["observe_after_s"]))]

        return expected, alone
    if "observe same revision twice" in row:

        def twice() -> list[Any]:
            source = Revisions()
            return [_seconds(source.observed(source.next(0), 1000)), source.observed(1, 2000)]

        known = {"second gives nothing": [1, None]}
        return known.get(row["observe same revision twice"], row["observe same revision twice"]), twice
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
    Form("settings of servers of permits", _is_server, _server),
    section("spread scores", "normalize_score_random", _spread),
    section("numbered decisions", "revision_source", _revisions),
]
