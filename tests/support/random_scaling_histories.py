"""Random histories of one machine: what a careless world does to an agent, in the order in which it can happen."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from devalloc.scaling import state as agent
from devalloc.scaling.actions import Actions, next_actions
from devalloc.scaling.config import read_defaults
from devalloc.scaling.metrics import LfcMetrics, SystemMetrics
from devalloc.scaling.resources import ResourceFlags, Resources, ScalingBounds
from devalloc.scaling.state import ScalingState, ScalingTiming
from tests.support.peer_rules import PeerRules
from tests.support.scaling_config_json import defaults_to_json
from tests.support.scaling_oracle import OracleAgent

UNITS = [Resources(250, 2**30), Resources(1000, 4 * 2**30), Resources(300, 3 * 2**28)]


def random_config(rng: random.Random) -> dict[str, Any]:
    """A scaling configuration, as JSON."""
    window = rng.randint(2, 6)
    return {
        "loadAverageFractionTarget": rng.choice([0.5, 0.7, 0.9, 1, 1.9]),
        "memoryUsageFractionTarget": rng.choice([0.5, 0.75, 0.99]),
        "enableLFCMetrics": rng.random() < 0.4,
        "memoryTotalFractionTarget": rng.choice([0.7, 0.9]),
        "lfcToMemoryRatio": rng.choice([0.6, 0.75]),
        "lfcWindowSizeMinutes": window,
        "lfcMinWaitBeforeDownscaleMinutes": rng.randint(window, 12),
        "lfcUseLargestWindow": rng.random() < 0.3,
        "cpuStableZoneRatio": rng.choice([0, 0, 0.25, 0.5]),
        "cpuMixedZoneRatio": rng.choice([0, 0, 0.25, 0.5]),
    }


def random_system(rng: random.Random, unit: Resources, units: int) -> dict[str, Any]:
    """Load and memory of a guest that would like to have up to so many units."""
    cores = unit.cpu / 1000 * units
    load1 = round(rng.uniform(0, cores), 3)
    return {
        "load1": load1,
        "load5": round(max(0.0, load1 * rng.uniform(0.5, 1.5)), 3) if rng.random() < 0.8 else load1,
        "memoryUsageBytes": rng.randrange(unit.memory * units),
        "memoryCachedBytes": rng.randrange(unit.memory * units),
    }


def random_series(rng: random.Random, unit: Resources, units: int) -> list[int]:
    """Working sets that grow in steps, now and then short or falling."""
    value, series = rng.randrange(1000), []
    for _ in range(rng.choice([3, 20, 60])):
        series.append(value)
        value = max(
            0, value + rng.choice([0, 0, rng.randrange(50), rng.randrange(unit.memory * units // 8192 // 20), -5])
        )
    return series


def system_metrics(content: dict[str, Any]) -> SystemMetrics:
    return SystemMetrics(content["load1"], content["load5"], content["memoryUsageBytes"], content["memoryCachedBytes"])


@dataclass
class ScalingHistory:
    """The same history given to devalloc's agent and to the oracle."""

    state: ScalingState
    oracle: OracleAgent
    now: int = 0

    @classmethod
    def begin(cls, rng: random.Random) -> ScalingHistory:
        unit = rng.choice(UNITS)
        low = rng.randint(1, 2)
        ragged = rng.random() < 0.2
        least = Resources(unit.cpu * low + 50 * ragged, unit.memory * low)
        most = (unit * rng.randint(low + 1, 8)).most(least)
        content = random_config(rng)
        config = read_defaults(content).value
        assert config is not None
        assert defaults_to_json(config) == content
        timing = ScalingTiming(plugin_tick=rng.choice([5000, 15000]), monitor_denied=rng.choice([4000, 5000]))
        times = {
            "tick": timing.plugin_tick,
            "retry": timing.plugin_retry,
            "deniedRetry": timing.plugin_denied_retry,
            "machineRetry": timing.machine_retry,
            "monitorRetry": timing.monitor_retry,
            "denied": timing.monitor_denied,
            "valid": timing.upscale_valid,
        }
        state = ScalingState(PeerRules(unit, timing), ScalingBounds(least, most), config, using=least)
        return cls(state, OracleAgent(_pair(unit), _pair(least), _pair(most), content, times))

    def actions(self) -> Actions:
        return next_actions(self.state, self.now)

    def step(self, rng: random.Random) -> str:
        """Let one thing happen that can happen now, and tell which."""
        self.now += rng.choice([0, 100, 500, 1000, 2000, 3000, 5000])
        state, oracle, now = self.state, self.oracle, self.now
        todo, monitor = next_actions(state, now), state.monitor
        can = ["system", "system", "wait", "connect"]
        can += ["lfc"] * state.config.enable_lfc_metrics
        can += ["ask"] * 3 * (todo.plugin is not None) + ["answer"] * 4 * state.plugin.in_flight
        can += ["change"] * 3 * (todo.machine is not None) + ["changed"] * 3 * (state.machine.in_flight is not None)
        can += ["tell"] * 3 * (todo.upscale is not None or todo.downscale is not None)
        can += ["told"] * 3 * (monitor.in_flight is not None) + ["wish"] * (monitor.approved is not None)
        event = rng.choice(can)
        good = rng.random() < 0.75
        if event == "system":
            metrics = random_system(rng, state.rules.unit, 8)
            self.state, oracle.system = agent.metrics_received(state, system_metrics(metrics)), metrics
        elif event == "lfc":
            series = random_series(rng, state.rules.unit, 8)
            self.state, oracle.lfc = agent.lfc_metrics_received(state, LfcMetrics(0, 0, 0, tuple(series))), series
        elif event == "connect" and rng.random() < 0.3:
            self.state = agent.monitor_lost(state)
            oracle.disconnect()
        elif event == "connect":
            self.state = agent.monitor_connected(state)
            oracle.connect()
        elif event == "ask" and todo.plugin is not None:
            self.state = agent.plugin_started(state, now, todo.plugin.target)
            oracle.ask(now, _pair(todo.plugin.target))
        elif event == "answer":
            self._answer(rng, good)
        elif event == "change" and todo.machine is not None:
            self.state = agent.machine_started(state, todo.machine.target)
            oracle.change(_pair(todo.machine.target))
        elif event == "changed" and good:
            self.state = agent.machine_done(state, now)
            oracle.changed()
        elif event == "changed":
            self.state = agent.machine_failed(state, now)
            oracle.change_fails(now)
        elif event == "tell" and todo.upscale is not None:
            self.state = agent.upscale_started(state, todo.upscale.target)
            oracle.tell("up", _pair(todo.upscale.target))
        elif event == "tell" and todo.downscale is not None:
            self.state = agent.downscale_started(state, todo.downscale.target)
            oracle.tell("down", _pair(todo.downscale.target))
        elif event == "told":
            self._monitor_answered(rng, good)
        elif event == "wish":
            more = ResourceFlags(rng.random() < 0.3, rng.random() < 0.8)
            self.state = agent.upscale_requested(state, now, more)
            oracle.wishes(now, more.cpu, more.memory)
        return event

    def _answer(self, rng: random.Random, good: bool) -> None:
        state, oracle, now = self.state, self.oracle, self.now
        request = state.plugin.last
        assert request is not None
        if not good and rng.random() < 0.5:
            self.state = agent.plugin_failed(state, now)
            oracle.ask_fails(now)
            return
        permit = request.resources
        if rng.random() < 0.3:
            permit = permit.least(state.using.most(Resources(permit.cpu - permit.cpu // 3, permit.memory)))
        if not good:
            permit = rng.choice([permit + Resources(1, 0), Resources(0, permit.memory), Resources(permit.cpu, 1)])
        valid = oracle.answer(now, _pair(permit))
        try:
            self.state = agent.plugin_permitted(state, permit)
            assert valid, permit
        except agent.PermitError:
            self.state = agent.plugin_failed(state, now)
            assert not valid, permit

    def _monitor_answered(self, rng: random.Random, good: bool) -> None:
        state, oracle, now = self.state, self.oracle, self.now
        in_flight = state.monitor.in_flight
        assert in_flight is not None
        up = in_flight.way is agent.Direction.UP
        if not good:
            self.state = agent.upscale_failed(state, now) if up else agent.downscale_failed(state, now)
            oracle.tell_fails(now)
        elif not up and rng.random() < 0.4:
            self.state = agent.downscale_denied(state, now)
            oracle.refused(now)
        else:
            self.state = agent.upscale_done(state) if up else agent.downscale_allowed(state)
            oracle.agreed()


def _pair(amounts: Resources) -> tuple[int, int]:
    return amounts.cpu, amounts.memory


def actions_as_oracle(actions: Actions) -> dict[str, Any]:
    """Actions as the oracle tells them."""
    content: dict[str, Any] = {}
    if actions.wait is not None:
        content["wait"] = actions.wait
    if actions.plugin is not None:
        permit = actions.plugin.last_permit
        content["plugin"] = (None if permit is None else _pair(permit), _pair(actions.plugin.target))
    for name, change in (("machine", actions.machine), ("up", actions.upscale), ("down", actions.downscale)):
        if change is not None:
            content[name] = (_pair(change.current), _pair(change.target))
    return content
