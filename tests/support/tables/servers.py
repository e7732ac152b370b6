"""What servers of permits are shipped with, how they spread machines, and how long decisions take to come through."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from devalloc.machines.permits.settings import Settings
from devalloc.scaling.health import DecisionRevisions
from devalloc.scaling.peer_json import bytes_from_json, cpu_from_json
from devalloc.scaling.resources import Resources
from devalloc.scaling.versions import ProtocolEra
from tests.support.node_scoring import Curve, spread
from tests.support.tables.table_form import CaseVerdict, Failure, TableForm, section, unjudged, verdict

_JUDGED = {"provenance", "source", "form", "nodeConfig", "cpu", "memory", "watermark", "scoring"}
_JUDGED |= {"minUsageScore", "maxUsageScore", "scorePeak", "computeUnit", "memBlockSize", "dumpState"}
_JUDGED |= {"startupEventHandlingTimeoutSeconds"}
_NODE = Resources(10_000, 10 * 2**30)
"""A node that the settings are tried on."""


def era_of(content: dict[str, Any]) -> ProtocolEra:
    """Each era has the settings of nodes elsewhere."""
    return ProtocolEra.V0_31 if "nodeConfig" in content else ProtocolEra.NEWEST


def _server(content: dict[str, Any]) -> Iterator[CaseVerdict]:
    """The settings that devalloc has as well; its limits by watermark are what a node gets."""
    era = era_of(content)
    node = content.get("nodeConfig") or {}
    scoring = content.get("scoring", node)
    parts = {name: node.get(name) or {"watermark": content.get("watermark")} for name in ("cpu", "memory")}
    shipped, curve = Settings(era=era), Curve()
    total, mark = shipped.limits(_NODE)
    for name, part in parts.items():
        left = getattr(_NODE, name)
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
        yield from (CaseVerdict(name, unjudged="devalloc has no such setting") for name in others)
        yield verdict("port of the state", content["dumpState"]["port"], lambda: shipped.dump_port)
    for given in (content, node):
        yield from unjudged(given, (name for name in given if name not in _JUDGED), "devalloc has no such setting")


def _is_server(content: dict[str, Any]) -> bool:
    newest = "watermark" in content and isinstance(content.get("scoring"), dict)
    return newest or isinstance(content.get("nodeConfig"), dict)


def _spread(content: dict[str, Any]) -> Iterator[CaseVerdict]:
    """``score 0`` or ``score s>0`` : ``unchanged``, or ``uniform integer in [1, s]``, each as often as any other."""
    rng = random.Random(1)
    for scores, words in content["normalize_score_random"].items():
        which = re.fullmatch(r"score (?:(\d+)|s>(\d+))", scores)
        says = re.fullmatch(r"unchanged|uniform integer in \[(\d+), s\]", words)
        if which is None or says is None:
            yield CaseVerdict(f"normalize_score_random {scores}", [Failure("words that are known", words)])
            continue
        for score in [int(which[1])] if which[1] else [int(which[2]) + 1, int(which[2]) + 7]:
            drawn = [spread(score, rng.randint) for _ in range(2000)]
            expected = list(range(int(says[1]), score + 1)) if says[1] else [score]
            failures = [] if sorted(set(drawn)) == expected else [Failure(expected, sorted(set(drawn)))]
            counts = [drawn.count(value) for value in expected]
            if min(counts, default=0) < 0.7 * 2000 / max(1, len(expected)):
                failures.append(Failure("each as often as any other", counts))
            yield CaseVerdict(f"normalize_score_random {score}", failures)


def _revisions(content: dict[str, Any]) -> Iterator[CaseVerdict]:
    for number, row in enumerate(content["revision_source"]):
        yield verdict(f"revision_source {number}", *_revision_row(row))


def _revision_row(row: dict[str, Any]) -> tuple[Any, Any]:
    """What a row expects, and how to find out."""
    if "next" in row:
        expected = [row["next"], row["latency_s"]]

        def alone() -> list[Any]:
            source = DecisionRevisions(row.get("initial", 0))
            return [source.next(0), _seconds(source.observed(row["next"], 1000 * row["observe_after_s"]))]

        return expected, alone
    if "observe same revision twice" in row:

        def twice() -> list[Any]:
            source = DecisionRevisions()
            return [_seconds(source.observed(source.next(0), 1000)), source.observed(1, 2000)]

        meanings = {"second gives nothing": [1, None]}
        return meanings.get(row["observe same revision twice"], row["observe same revision twice"]), twice
    if (initial := next((re.fullmatch(r"initial (\d+)", key) for key in row), None)) is not None:
        expected_next = int(re.fullmatch(r"next is (\d+)", row[initial[0]])[1])  # type: ignore[index]
        return expected_next, lambda: DecisionRevisions(int(initial[1])).next(0)
    return _latency_row(row)


def _latency_row(row: dict[str, str]) -> tuple[Any, Any]:
    """``rev1 at 0, rev2 at 5, observe rev1 at 10`` : ``latency 10``, and on with the same source."""
    expected, steps = [], []
    for text, answer in row.items():
        for part in text.split(", "):
            match = re.fullmatch(r"(observe )?rev(\d+) at (\d+)", part)
            assert match is not None, part
            steps.append((bool(match[1]), int(match[2]), int(match[3])))
        latency = re.fullmatch(r"latency (\d+)", answer)
        expected.append(int(latency[1]) if latency else None)

    def course() -> list[Any]:
        source, got = DecisionRevisions(), []
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
    TableForm("settings of servers of permits", _is_server, _server),
    section("spread scores", "normalize_score_random", _spread),
    section("numbered decisions", "revision_source", _revisions),
]
