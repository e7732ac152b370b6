"""Timelines of one machine, in seconds and whole compute units, as people write them down.

A table of ours has ``timelines``, each a list of steps ``[seconds, events, actions]`` with an optional fourth entry:
how a reference tells the step. A table of the reference has ``scenarios`` whose events are prose: the events come from
our timelines of that name, the actions from the table, and bounds and waits from its title. What stands in a sentence
(``sentence``) is the course of our timeline; one with numbers is played by them as well, others must be word for word.
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
from devalloc.scaling.actions import Actions, ResourceChange, next_actions
from devalloc.scaling.metrics import SystemMetrics
from devalloc.scaling.resources import ResourceFlags, Resources, ScalingBounds
from devalloc.scaling.state import ScalingRules, ScalingState, ScalingTiming
from tests.support.peer_rules import PeerRules
from tests.support.tables.table_form import CaseVerdict, Failure, TableForm, differences, each
from tests.support.tables.values import config, number, resources

OWN = Path(__file__).parents[2] / "conformance" / "cases" / "scaling" / "timelines.yaml"
UNIT = Resources(250, 2**30)


@dataclass(frozen=True)
class _Step:
    now: int
    events: list[str]
    expected: str | None
    says: str | None


# -- timelines of ours -----------------------------------------------------------------------------------------------


def _timelines(content: dict[str, Any]) -> Iterator[CaseVerdict]:
    yield from each(content["timelines"], lambda case: _run(case, [_step(step) for step in case["steps"]]))


def _step(content: list[Any]) -> _Step:
    seconds, events, expected, *says = content
    return _Step(_ms(str(seconds)), events, expected, says[0] if says else None)


def _run(case: dict[str, Any], steps: list[_Step]) -> CaseVerdict:
    state, failures = _begin(case), []
    for step in steps:
        where = f"{step.now / 1000} s: {', '.join(step.events) or 'look again'}"
        for event in step.events:
            state = _after(state, step.now, event)
        if step.expected is None:
            continue
        expected = _expected(step.expected)
        got = _actions_dict(next_actions(state, step.now), expected)
        failures += differences(expected, got, where)
    return CaseVerdict(case["name"], failures)


def _begin(case: dict[str, Any]) -> ScalingState:
    low, high = (_whole(units) for units in case.get("bounds", [1, 4]))
    timing = ScalingTiming(
        **{"plugin_tick": 5000, **{name: _ms(str(value)) for name, value in case.get("timing", {}).items()}}
    )
    targets = case.get("targets", {"loadAverageFractionTarget": 0.5, "memoryUsageFractionTarget": 0.5})
    rules = (PeerRules if case.get("asPeers", True) else ScalingRules)(UNIT, timing)
    return ScalingState(
        rules, ScalingBounds(UNIT * low, UNIT * high), config(targets), using=UNIT * _whole(case.get("using", low))
    )


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


_EVENTS: list[tuple[str, Callable[..., ScalingState]]] = [
    (r"load (\S+)", lambda state, now, load: agent.metrics_received(state, SystemMetrics(float(load)))),
    (
        r"load (\S+) mem (\d+)",
        lambda state, now, load, usage: agent.metrics_received(state, SystemMetrics(float(load), 0.0, float(usage))),
    ),
    (
        r"bounds (\d+)\.\.(\d+)",
        lambda state, now, low, high: agent.bounds_changed(
            state, ScalingBounds(_units(low), _units(high)), state.config
        ),
    ),
    (r"plugin start (\S+)", lambda state, now, units: agent.plugin_started(state, now, _units(units))),
    (r"permit (\S+)", lambda state, now, units: agent.plugin_permitted(state, _units(units))),
    (r"plugin failed", lambda state, now: agent.plugin_failed(state, now)),
    (r"machine start (\S+)", lambda state, now, units: agent.machine_started(state, _units(units))),
    (r"machine done", lambda state, now: agent.machine_done(state, now)),
    (r"machine done at (\S+)", lambda state, now, units: agent.machine_done(state, now, _units(units))),
    (r"machine failed", lambda state, now: agent.machine_failed(state, now)),
    (r"machine seen (\S+)", lambda state, now, units: agent.machine_observed(state, _units(units))),
    (r"monitor active", lambda state, now: agent.monitor_connected(state)),
    (r"insist", lambda state, now: agent.maximum_enforced(state, True)),
    (r"monitor lost", lambda state, now: agent.monitor_lost(state)),
    (r"asks memory", lambda state, now: agent.upscale_requested(state, now, ResourceFlags(memory=True))),
    (r"asks cpu", lambda state, now: agent.upscale_requested(state, now, ResourceFlags(cpu=True))),
    (r"up start (\S+)", lambda state, now, units: agent.upscale_started(state, _units(units))),
    (r"up done", lambda state, now: agent.upscale_done(state)),
    (r"up failed", lambda state, now: agent.upscale_failed(state, now)),
    (r"down start (\S+)", lambda state, now, units: agent.downscale_started(state, _units(units))),
    (r"down allowed", lambda state, now: agent.downscale_allowed(state)),
    (r"down denied", lambda state, now: agent.downscale_denied(state, now)),
    (r"down failed", lambda state, now: agent.downscale_failed(state, now)),
]


def _after(state: ScalingState, now: int, event: str) -> ScalingState:
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


def _actions_dict(actions: Actions, expected: dict[str, Any]) -> dict[str, Any]:
    got: dict[str, Any] = {"warnings": len(actions.warnings)}
    if actions.wait is not None:
        got["wait"] = actions.wait
    if actions.plugin is not None:
        got["plugin"] = (actions.plugin.last_permit, actions.plugin.target)
        if "metrics" in expected:
            got["metrics"] = actions.plugin.metrics
    if "desired" in expected:
        got["desired"] = actions.desired
    changes: dict[str, ResourceChange | None] = {
        "machine": actions.machine,
        "up": actions.upscale,
        "down": actions.downscale,
    }
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


_DEFAULTS = {"plugin_tick_s": "plugin_tick", "plugin_retry_s": "plugin_retry", "neonvm_retry_s": "machine_retry"}
_DEFAULTS |= {"plugin_denied_retry_s": "plugin_denied_retry", "monitor_retry_s": "monitor_retry"}
_DEFAULTS |= {"monitor_denied_cooldown_s": "monitor_denied", "requested_upscale_valid_s": "upscale_valid"}


def _by_default(content: dict[str, Any]) -> dict[str, Any]:
    """With what all scenarios of a table begin that say nothing else. Raises ValueError."""
    if "defaults" not in content:
        return {}
    given = content["defaults"]
    if "compute_unit" in given and resources(given["compute_unit"]) != UNIT:
        raise ValueError(f"timelines are in units of {UNIT}, not of {given['compute_unit']}")
    targets = {"loadAverageFractionTarget": given.get("laft", 0.5), "memoryUsageFractionTarget": given.get("muft", 0.5)}
    timing = {name: given[theirs] for theirs, name in _DEFAULTS.items() if theirs in given}
    return {"targets": targets, "timing": timing, "bounds": [given.get("min_cu", 1), given.get("max_cu", 4)]}


def _scenarios(content: dict[str, Any]) -> Iterator[CaseVerdict]:
    default = _by_default(content)
    for title, lines in content["scenarios"].items():
        name, _, more = title.partition(" (")
        timelines = _own().get(name, [])
        if not timelines:
            yield CaseVerdict(title, [Failure("a scenario that has been translated", "prose that is not known")])
        for timeline in timelines:
            try:
                begins = {**default, **timeline, "timing": {**default.get("timing", {}), **timeline.get("timing", {})}}
                yield _scenario(title, _from_title(more.removesuffix(")"), begins), lines)
            except Exception as error:
                yield CaseVerdict(title, [Failure("steps that can be read", f"{type(error).__name__}: {error}")])


def _scenario(title: str, timeline: dict[str, Any], lines: list[list[str]]) -> CaseVerdict:
    """Each line of the table must be one of ours by its prose; what it expects replaces what ours expects."""
    steps = [_step(step) for step in timeline["steps"]]
    ours = [step.says for step in steps if step.says is not None]
    if timeline.get("sentence") and len(lines) == 1 and (failures := _by_numbers(*lines[0])) is not None:
        return CaseVerdict(title, failures or _run(timeline, steps).failures)
    if ours != [says for says, _ in lines]:
        return CaseVerdict(title, [Failure([says for says, _ in lines], ours, "prose that has been translated")])
    if timeline.get("sentence"):
        (_, sentence) = lines[0]
        failures = differences(sentence, timeline["sentence"], "a sentence that has been translated")
        return CaseVerdict(title, failures or _run(timeline, steps).failures)
    expected = iter(lines)
    expected_steps = []
    for step in steps:
        text = next(expected)[1] if step.says is not None else None
        expected_steps.append(replace(step, expected=text) if text else step)
    return _run({**timeline, "name": title}, expected_steps)


_TITLES = {"tick": "plugin_tick", "cooldown": "monitor_denied", "valid": "upscale_valid"}
_TITLES |= {"plugin retry": "plugin_retry", "neonvm retry": "machine_retry"}


def _from_title(text: str, timeline: dict[str, Any]) -> dict[str, Any]:
    """A timeline begins with what stands in brackets behind its title, such as ``HEAD; min1 max8 cur6, tick 7``."""
    (low, high), timing = timeline.get("bounds", [1, 4]), dict(timeline.get("timing", {}))
    begins: dict[str, Any] = {}
    for word, value in re.findall(r"([a-z][a-z ]*?) ?(\d+)", text):
        if word in _TITLES:
            timing[_TITLES[word]] = int(value)
        else:
            begins[word] = int(value)
    if unknown := begins.keys() - {"min", "max", "cur"}:
        raise ValueError(f"no such words of a title: {', '.join(sorted(unknown))}")
    bounds = [begins.get("min", low), begins.get("max", high)]
    using = begins.get("cur", timeline.get("using", bounds[0]))
    return {**timeline, "bounds": bounds, "using": using, "timing": timing}


# -- sentences with numbers ------------------------------------------------------------------------------------------


def _by_numbers(says: str, sentence: str) -> list[Failure] | None:
    """A sentence of either kind that can be played by its own numbers; None where it is of no such kind."""
    if (bounds := re.fullmatch(r"cur (\d+), bounds become (\d+)\.\.(\d+)", says)) is not None:
        current, low, high = map(int, bounds.groups())
        steps = [{**_expected(step), "warnings": 0} for step in re.split(r",\s+then\s+", sentence)]
        return differences(steps, _course(current, f"bounds {low}..{high}"), says)
    steady = re.fullmatch(r"steady state at (\d+) CU, tick ([\d.]+) s, request takes ([\d.]+) ms", says)
    every = re.fullmatch(
        r"request starts exactly every ([\d.]+) s measured from request START; between them wait = ([\d.]+) - elapsed",
        sentence,
    )
    if steady is None or every is None:
        return None
    took = int(Fraction(steady[3]))
    return _ticks(int(steady[1]), _ms(steady[2]), took, _ms(every[1]), _ms(every[2]))


def _course(current: int, event: str) -> list[dict[str, Any]]:
    """What is done from an event on, one after the other, when each request succeeds after 0.1 s."""
    state = _steady(current, {"bounds": [current, current]}, 100)
    now, course = 200, []
    state = _after(state, now, event)
    while len(course) < 20:
        actions = _actions_dict(next_actions(state, now), {})
        actions.pop("wait", None)
        if actions == {"warnings": 0}:
            break
        course.append(actions)
        _, target = actions.get("plugin") or actions.get("machine") or actions.get("up") or actions["down"]
        units = f"{target.cpu // UNIT.cpu}/{target.memory // UNIT.memory}"
        start, end = {
            "plugin": ("plugin start", f"permit {units}"),
            "machine": ("machine start", "machine done"),
            "up": ("up start", "up done"),
            "down": ("down start", "down allowed"),
        }[next(name for name in ("plugin", "machine", "up", "down") if name in actions)]
        state = _after(state, now, f"{start} {units}")
        now += 100
        state = _after(state, now, end)
    return course


def _ticks(units: int, tick: int, took: int, every: int, wait: int) -> list[Failure]:
    """Requests that take so long, one after the other, all in milliseconds: when each begins, and the waits between."""
    state, failures, began = _steady(units, {"timing": {"plugin_tick": tick / 1000}}, took), [], 0
    for _ in range(3):
        for elapsed in (took, (took + wait) // 2, every - 1):
            got = _actions_dict(next_actions(state, began + elapsed), {})
            failures += differences(
                {"warnings": 0, "wait": wait - elapsed}, got, f"{elapsed} ms after the request began"
            )
        began += every
        got = _actions_dict(next_actions(state, began), {})
        failures += differences({"warnings": 0, "plugin": (_units(str(units)),) * 2}, got, f"request at {began} ms")
        state = _after(_after(state, began, f"plugin start {units}"), began + took, f"permit {units}")
    return failures


def _steady(units: int, begins: dict[str, Any], took: int) -> ScalingState:
    """A machine of so many units that wants as many, whose first request began at 0 and took so many milliseconds."""
    state = _begin({"using": units, "bounds": [units, units], **begins})
    for event in ("monitor active", "load 0", f"plugin start {units}"):
        state = _after(state, 0, event)
    return _after(state, took, f"permit {units}")


FORMS = [
    TableForm("timelines", lambda content: isinstance(content.get("timelines"), list), _timelines),
    TableForm("scenarios", lambda content: isinstance(content.get("scenarios"), dict), _scenarios),
]
