"""Timelines of one machine, in seconds and whole compute units, as people write them down.

A table of ours has ``timelines``, each a list of steps ``[seconds, events, actions]`` with an optional fourth entry:
how a reference tells the step. A table of the reference has ``scenarios`` whose events are prose: the events come from
our timelines of that name, and the actions from the table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from devalloc.scaling import state as agent
from devalloc.scaling.actions import Actions, Change, next_actions
from devalloc.scaling.bounds import Bounds
from devalloc.scaling.metrics import SystemMetrics
from devalloc.scaling.resources import More, Resources
from devalloc.scaling.state import Rules, State, Timing
from tests.support.tables.forms import Failure, Form, Verdict, differences, each
from tests.support.tables.values import config, number

OWN = Path(__file__).parents[2] / "conformance" / "cases" / "scaling" / "timelines.yaml"
UNIT = Resources(250, 2**30)


@dataclass(frozen=True)
class _Step:
    now: int
    events: list[str]
    expected: str | None
    says: str | None


# -- timelines of ours -----------------------------------------------------------------------------------------------


def _timelines(content: dict[str, Any]) -> Iterator[Verdict]:
    yield from each(content["timelines"], lambda case: _run(case, [_step(step) for step in case["steps"]]))


def _step(content: list[Any]) -> _Step:
    seconds, events, expected, *says = content
    return _Step(_ms(str(seconds)), events, expected, says[0] if says else None)


def _run(case: dict[str, Any], steps: list[_Step]) -> Verdict:
    state, failures = _begin(case), []
    for step in steps:
        where = f"{step.now / 1000} s: {', '.join(step.events) or 'look again'}"
        for event in step.events:
            state = _after(state, step.now, event)
        if step.expected is None:
            continue
        expected = _expected(step.expected)
        got = _told(next_actions(state, step.now), expected)
        failures += differences(expected, got, where)
    return Verdict(case["name"], failures)


def _begin(case: dict[str, Any]) -> State:
    low, high = (_whole(units) for units in case.get("bounds", [1, 4]))
    timing = Timing(
        **{"plugin_tick": 5000, **{name: _ms(str(value)) for name, value in case.get("timing", {}).items()}}
    )
    targets = {"loadAverageFractionTarget": 0.5, "memoryUsageFractionTarget": 0.5}
    rules = Rules(UNIT, timing, as_peers=case.get("asPeers", True))
    return State(rules, Bounds(UNIT * low, UNIT * high), config(targets), using=UNIT * _whole(case.get("using", low)))


def _whole(units: object) -> int:
    return int(number(units))


def _ms(seconds: str) -> int:
    value = Fraction(seconds) * 1000
    assert value.denominator == 1, f"{seconds} s is no whole number of milliseconds"
    return int(value)


# -- events ----------------------------------------------------------------------------------------------------------


def _units(text: str) -> Resources:
    cpu, _, memory = text.partition("/")
    return Resources(UNIT.cpu * int(cpu), UNIT.memory * int(memory or cpu))


_EVENTS: list[tuple[str, Callable[..., State]]] = [
    (r"load (\S+)", lambda state, now, load: agent.measured(state, SystemMetrics(float(load)))),
    (
        r"load (\S+) mem (\d+)",
        lambda state, now, load, usage: agent.measured(state, SystemMetrics(float(load), 0.0, float(usage))),
    ),
    (
        r"bounds (\d+)\.\.(\d+)",
        lambda state, now, low, high: agent.bounded(state, Bounds(_units(low), _units(high)), state.config),
    ),
    (r"plugin start (\S+)", lambda state, now, units: agent.plugin_started(state, now, _units(units))),
    (r"permit (\S+)", lambda state, now, units: agent.plugin_permitted(state, _units(units))),
    (r"plugin failed", lambda state, now: agent.plugin_failed(state, now)),
    (r"machine start (\S+)", lambda state, now, units: agent.machine_started(state, _units(units))),
    (r"machine done", lambda state, now: agent.machine_done(state, now)),
    (r"machine done at (\S+)", lambda state, now, units: agent.machine_done(state, now, _units(units))),
    (r"machine failed", lambda state, now: agent.machine_failed(state, now)),
    (r"machine seen (\S+)", lambda state, now, units: agent.observed(state, _units(units))),
    (r"monitor active", lambda state, now: agent.monitor_connected(state)),
    (r"insist", lambda state, now: agent.insisting(state, True)),
    (r"monitor lost", lambda state, now: agent.monitor_lost(state)),
    (r"asks memory", lambda state, now: agent.upscale_requested(state, now, More(memory=True))),
    (r"asks cpu", lambda state, now: agent.upscale_requested(state, now, More(cpu=True))),
    (r"up start (\S+)", lambda state, now, units: agent.upscale_started(state, _units(units))),
    (r"up done", lambda state, now: agent.upscale_done(state)),
    (r"up failed", lambda state, now: agent.upscale_failed(state, now)),
    (r"down start (\S+)", lambda state, now, units: agent.downscale_started(state, _units(units))),
    (r"down allowed", lambda state, now: agent.downscale_allowed(state)),
    (r"down denied", lambda state, now: agent.downscale_denied(state, now)),
    (r"down failed", lambda state, now: agent.downscale_failed(state, now)),
]


def _after(state: State, now: int, event: str) -> State:
    for pattern, apply in _EVENTS:
        if (match := re.fullmatch(pattern, event)) is not None:
            return apply(state, now, *match.groups())
    raise ValueError(f"no such event: {event!r}")


# -- actions ---------------------------------------------------------------------------------------------------------

_CHANGES = {"neonvm": "machine", "machine": "machine", "monitorUpscale": "up", "up": "up"}
_CHANGES |= {"monitorDownscale": "down", "down": "down"}


def _expected(text: str) -> dict[str, Any]:
    """What a text such as ``wait 4.9; neonvm 1->2`` or ``plugin{last:1,target:2} + 1 warning`` says."""
    actions: dict[str, Any] = {"warnings": 0}
    for part in re.split(r"\s*;\s*|\s+\+\s+|,\s+then\s+", text.strip()):
        word = part.removesuffix(" again").strip()
        if word in ("", "nothing"):
            continue
        if (match := re.fullmatch(r"wait ([\d.]+)", word)) is not None:
            actions["wait"] = _ms(match[1])
        elif (match := re.fullmatch(r"plugin\{last:(\S+?),target:(\S+?)(?:,metrics:(null))?\}", word)) is not None:
            last = None if match[1] == "null" else _units(match[1])
            actions["plugin"] = (last, _units(match[2]))
            if match[3]:
                actions["metrics"] = None
        elif (match := re.fullmatch(r"(\w+) (\S+)->(\S+)", word)) is not None:
            actions[_CHANGES[match[1]]] = (_units(match[2]), _units(match[3]))
        elif (match := re.fullmatch(r"desired (\S+)", word)) is not None:
            actions["desired"] = _units(match[1])
        elif (match := re.fullmatch(r"(?:(\d+) )?warnings?\b.*", word)) is not None:
            actions["warnings"] += int(match[1] or 1)
        else:
            raise ValueError(f"no such action: {word!r}")
    return actions


def _told(actions: Actions, expected: dict[str, Any]) -> dict[str, Any]:
    got: dict[str, Any] = {"warnings": len(actions.warnings)}
    if actions.wait is not None:
        got["wait"] = actions.wait
    if actions.plugin is not None:
        got["plugin"] = (actions.plugin.last_permit, actions.plugin.target)
        if "metrics" in expected:
            got["metrics"] = actions.plugin.metrics
    if "desired" in expected:
        got["desired"] = actions.desired
    changes: dict[str, Change | None] = {"machine": actions.machine, "up": actions.upscale, "down": actions.downscale}
    for name, change in changes.items():
        if change is not None:
            got[name] = (change.current, change.target)
    return got


# -- scenarios of the reference --------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _own() -> dict[str, list[dict[str, Any]]]:
    by_name: dict[str, list[dict[str, Any]]] = {}
    for case in yaml.safe_load(OWN.read_text())["timelines"]:
        by_name.setdefault(case.get("of", case["name"]), []).append(case)
    return by_name


def _scenarios(content: dict[str, Any]) -> Iterator[Verdict]:
    for title, lines in content["scenarios"].items():
        name = title.partition(" (")[0]
        timelines = _own().get(name, [])
        if not timelines:
            yield Verdict(title, [Failure("a scenario that has been translated", "prose that is not known")])
        for timeline in timelines:
            try:
                yield _scenario(title, timeline, lines)
            except Exception as error:
                yield Verdict(title, [Failure("steps that can be read", f"{type(error).__name__}: {error}")])


def _scenario(title: str, timeline: dict[str, Any], lines: list[list[str]]) -> Verdict:
    """Each line of the table must be one of ours by its prose; what it expects replaces what ours expects."""
    steps = [_step(step) for step in timeline["steps"]]
    ours = [step.says for step in steps if step.says is not None]
    if ours != [says for says, _ in lines]:
        return Verdict(title, [Failure([says for says, _ in lines], ours, "prose that has been translated")])
    expected = iter(lines)
    told = []
    for step in steps:
        text = next(expected)[1] if step.says is not None else None
        # A sentence about the whole course is told by the timeline's own steps.
        told.append(replace(step, expected=text) if text and not timeline.get("sentence") else step)
    return _run({**timeline, "name": title}, told)


FORMS = [
    Form("timelines", lambda content: isinstance(content.get("timelines"), list), _timelines),
    Form("scenarios", lambda content: isinstance(content.get("scenarios"), dict), _scenarios),
]
