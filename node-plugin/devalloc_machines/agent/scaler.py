"""Keep one machine at the amounts it should have: its state and the requests that follow from it.

A scaler is a task of an event loop that all machines of the node share, and whose clock is the only one. It decides
nothing: `devalloc.scaling.actions` does. It begins what is to be done on each channel, tells the state how that ended,
and asks again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from devalloc.scaling import state as now_known
from devalloc.scaling.actions import PluginRequest, ResourceChange, next_actions
from devalloc.scaling.agent_config import AgentConfig
from devalloc.scaling.config import ScalingConfig
from devalloc.scaling.health import HealthLimits, ScalingReport, StuckReason
from devalloc.scaling.resources import ResourceFlags, Resources, ScalingBounds
from devalloc.scaling.state import PermitError, ScalingRules, ScalingState
from devalloc_machines.agent.channels import ChangeRefused, Channels
from devalloc_machines.agent.metrics import ScalingMetrics
from devalloc_machines.agent.progress import GuestLag, Metrics, ScalerProgress
from devalloc_machines.agent.report import amounts_text, scaling_report, state_dump
from devalloc_node.errors import NodeError, Unknown

_Result = TypeVar("_Result")
JITTER = 100
"""Milliseconds."""


@dataclass(frozen=True, slots=True)
class ScalerTimeouts:
    """All in milliseconds."""

    plugin_timeout: int = 2_000
    metrics_interval: int = 5_000
    metrics_timeout: int = 2_000
    lfc_interval: int = 15_000
    lfc_timeout: int = 5_000
    look_interval: int = 30_000
    """The machine is looked at this often even if nothing changed it,"""
    look_retry: int = 2_000
    """and again after this when it could not be."""
    look_timeout: int = 10_000
    patience: int = 300_000
    """How long a guest may keep more than the machine's maximum by not agreeing to less."""
    guest_patience: int = 60_000
    """How long a guest may take to bring online what its machine has before it is reported as behind."""
    stuck: HealthLimits = field(default_factory=HealthLimits)


def scaler_timeouts(config: AgentConfig) -> ScalerTimeouts:
    """Take what of an agent's configuration is for each of its scalers."""
    return ScalerTimeouts(
        plugin_timeout=config.plugin_timeout,
        metrics_interval=config.system_interval,
        metrics_timeout=config.system_timeout,
        lfc_interval=config.lfc_interval,
        lfc_timeout=config.lfc_timeout,
        stuck=config.limits,
    )


class Scaler:
    """One machine. `run` works until it is cancelled; the other methods are called in its event loop."""

    def __init__(
        self,
        machine: str,
        rules: ScalingRules,
        bounds: ScalingBounds,
        config: ScalingConfig,
        channels: Callable[[Scaler], Channels],
        waits: ScalerTimeouts | None = None,
        rng: random.Random | None = None,
        meter: ScalingMetrics | None = None,
    ) -> None:
        """``machine``: its name in log lines. ``channels`` gets the scaler, which listens to its monitor."""
        self._machine = machine
        self._bounds, self._config = bounds, config
        self._limit: ChangeRefused | None = None
        """Why this run of the machine can have no more CPUs than it has."""
        self._waits = waits or ScalerTimeouts()
        self._rng = rng or random.Random()
        # A little sooner than it has to, so that machines that came together do not ask together for ever.
        tick = rules.timing.plugin_tick
        sooner = self._rng.randint(0, min(JITTER, tick // 10))
        self._rules = replace(rules, timing=replace(rules.timing, plugin_tick=tick - sooner))
        self._channels = channels(self)
        self._state: ScalingState | None = None
        self._changed = asyncio.Event()
        self._connection = 0
        """Which connection to the monitor it is: what became of a request counts only while that stands."""
        self._connected = False
        self._greeted = False
        """Whether the state knows of the connection: a monitor that is new may be in a machine that is new, which is
        looked at first."""
        self._introduced = False
        """Whether the monitor was told what the machine has: it may have grown while the monitor was not there."""
        self._changes = 0
        """Changes of the machine that were begun: a look that began before one tells nothing."""
        self._looking = False
        self._look_again = 0
        self._seen: Resources | None = None
        self._over_since: int | None = None
        self._track = ScalerProgress(machine, self._waits.stuck, meter)
        self._guest = GuestLag(self._waits.guest_patience, self._waits.stuck.silence)

    async def run(self) -> None:
        """Look at the machine, and scale it until cancelled."""
        self._track.since = self._now()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._channels.guest.run())
            self._state = await self._begin()
            tasks.create_task(self._measure_system())
            tasks.create_task(self._measure_lfc())
            while True:
                wait = self._act(tasks)
                await self._wait(wait)

    async def _begin(self) -> ScalingState:
        """The state of a machine of which nothing is known but what it has."""
        while True:
            try:
                using = await self._bounded(self._channels.body.look(), self._waits.look_timeout)
            except NodeError as error:
                self._track.ended("look", error)
                self._track.ill("machine", error.message)
                await asyncio.sleep(self._waits.look_retry / 1000)
                continue
            self._seen = using
            self._track.ended("look")
            self._track.well("machine")
            self._look_again = 0 if self._connected else self._now() + self._waits.look_interval
            return ScalingState(self._rules, self._within, self._config, using)

    # -- what others tell --------------------------------------------------------------------------------------------

    def monitor_connected(self) -> None:
        """A new connection to the monitor stands."""
        self._connection += 1
        self._connected, self._greeted = True, False
        self._track.well("monitor")
        self._look_again = 0
        self._changed.set()

    def monitor_disconnected(self, why: str) -> None:
        """There is none any more, or still none."""
        self._connection += 1
        self._connected = False
        self._track.ill("monitor", why)
        self._become(now_known.monitor_lost)

    def upscale_requested(self, more: ResourceFlags) -> None:
        """The guest wants more."""
        self._become(lambda state: now_known.upscale_requested(state, self._now(), more))

    def bounded(self, bounds: ScalingBounds, config: ScalingConfig) -> None:
        """The machine's bounds or configuration changed."""
        self._bounds, self._config = bounds, config
        self._become(lambda state: now_known.bounds_changed(state, self._within, config))

    def report(self) -> ScalingReport | None:
        """How far it is; None as long as the machine has not been seen."""
        if self._state is None:
            return None
        now = self._now()
        actions = next_actions(self._state, now)
        wanted, limited = actions.desired, None
        if self._limit is not None:
            wanted = next_actions(replace(self._state, bounds=self._bounds), now).desired
            limited = StuckReason(self._limit.code, self._limit.why) if wanted != actions.desired else None
        guest, behind = self._guest.observed(now), self._guest.behind(now)
        stuck = self._track.stuck(self._channels.guest.status(), now)
        progress = scaling_report(self._state, actions, self._seen, self._track.errors, stuck, guest, limited or behind)
        return replace(progress, wanted=wanted)

    def dump(self) -> dict[str, Any]:
        """All that is known, as JSON."""
        return state_dump(self._state, self.report(), self._track.errors, self._now())

    # -- one turn ----------------------------------------------------------------------------------------------------

    def _act(self, tasks: asyncio.TaskGroup) -> int | None:
        """Begin all that is to be done now; milliseconds until to look again, None: when something happens."""
        now = self._now()
        waits = [self._insist(now), self._look(tasks, now)]
        self._introduce(tasks)
        actions = next_actions(self._current_state, now)
        self._track.warned(actions.warnings)
        self._track.decided(actions.desired, self._current_state.using, now)
        if actions.plugin is not None:
            self._state = now_known.plugin_started(self._current_state, now, actions.plugin.target)
            tasks.create_task(self._ask(actions.plugin))
        if actions.machine is not None:
            self._state = now_known.machine_started(self._current_state, actions.machine.target)
            self._changes += 1
            self._seen = None
            tasks.create_task(self._change(actions.machine))
        if actions.upscale is not None:
            self._state = now_known.upscale_started(self._current_state, actions.upscale.target)
            tasks.create_task(self._upscale(actions.upscale, self._connection))
        if actions.downscale is not None:
            self._state = now_known.downscale_started(self._current_state, actions.downscale.target)
            tasks.create_task(self._downscale(actions.downscale, self._connection))
        return min((wait for wait in (*waits, actions.wait) if wait is not None), default=None)

    def _insist(self, now: int) -> int | None:
        """A guest that keeps more than the maximum has some time to agree to less, and then is not asked any more."""
        over = self._current_state.using.exceeds(self._current_state.bounds.max)
        self._over_since = (now if self._over_since is None else self._over_since) if over else None
        left = None if self._over_since is None else self._over_since + self._waits.patience - now
        insist = left is not None and left <= 0
        if insist is not self._current_state.insisting:
            self._state = now_known.maximum_enforced(self._current_state, insist)
        return left if left is not None and left > 0 else None

    def _look(self, tasks: asyncio.TaskGroup, now: int) -> int | None:
        if self._looking or self._current_state.machine.in_flight is not None:
            return None
        if now < self._look_again:
            return self._look_again - now
        self._looking = True
        tasks.create_task(self._observe())
        return None

    async def _wait(self, wait: int | None) -> None:
        try:
            async with asyncio.timeout(None if wait is None else wait / 1000):
                await self._changed.wait()
        except TimeoutError:
            return
        self._changed.clear()

    # -- requests ----------------------------------------------------------------------------------------------------

    async def _ask(self, request: PluginRequest) -> None:
        asking = self._channels.permits.ask(request.last_permit, request.target, request.metrics)
        try:
            permit = await self._bounded(asking, self._waits.plugin_timeout)
            self._become(lambda state: now_known.plugin_permitted(state, permit))
        except (NodeError, PermitError) as error:
            self._track.ended("permit", error if isinstance(error, NodeError) else "failed")
            self._track.failed("permits", str(error), self._now())
            self._become(lambda state: now_known.plugin_failed(state, self._now()))
            return
        self._track.well("permits")
        short = request.target.exceeds(permit)
        self._track.ended("permit", "short" if short else "done")
        if short:
            self._track.denied(self._now())

    async def _change(self, change: ResourceChange) -> None:
        try:
            came = await self._channels.body.change(change.target)
        except NodeError as error:
            self._track.ended("change", error)
            self._track.failed("machine", error.message, self._now())
            self._look_again = 0
            self._become(lambda state: now_known.machine_failed(state, self._now()))
            return
        refused = came if isinstance(came, ChangeRefused) else None
        reached = came.reached if isinstance(came, ChangeRefused) else came
        self._seen = reached
        self._track.ended("change", "done" if reached == change.target else "short")
        if reached == change.target:
            self._track.well("machine")
        else:
            why = f"it came to {amounts_text(reached)}, not to {amounts_text(change.target)}"
            self._track.failed("machine", why if refused is None else f"{why}: {refused.why}", self._now())
        self._become(lambda state: now_known.machine_done(state, self._now(), reached))
        if refused is not None and refused.max_cpu is not None:
            self._limited(refused)

    async def _observe(self) -> None:
        changes, connection = self._changes, self._connection
        try:
            seen = await self._bounded(self._channels.body.look(), self._waits.look_timeout)
        except NodeError as error:
            self._track.unseen(error.message)
            self._track.ended("look", error)
            if self._current_state.machine.doubt is not None:
                self._track.ill("machine", error.message)
            self._look_again = self._now() + self._waits.look_retry
        else:
            self._track.unseen(None)
            self._track.ended("look")
            if changes == self._changes:
                self._seen = seen
                self._become(lambda state: now_known.machine_observed(state, seen))
                if self._limit is not None and seen.cpu > (self._limit.max_cpu or 0):
                    self._limited(None)
                if connection == self._connection:
                    self._look_again = self._now() + self._waits.look_interval
                    self._greet()
        finally:
            self._looking = False
        self._changed.set()

    def _limited(self, by: ChangeRefused | None) -> None:
        """Ask for no more than can be plugged, so that no capacity is held for the rest."""
        self._limit = by
        self._become(lambda state: now_known.bounds_changed(state, self._within, self._config))

    @property
    def _within(self) -> ScalingBounds:
        """The machine's bounds, as far as this run of it can come."""
        if self._limit is None or self._limit.max_cpu is None:
            return self._bounds
        least, most = self._bounds.min, self._bounds.max
        cpu = self._limit.max_cpu
        return ScalingBounds(replace(least, cpu=min(least.cpu, cpu)), replace(most, cpu=min(most.cpu, cpu)))

    def _greet(self) -> None:
        """The machine has been seen since the connection to its monitor stands."""
        if self._connected and not self._greeted:
            self._greeted, self._introduced = True, not self._rules.introduces()
            self._become(now_known.monitor_connected)

    def _introduce(self, tasks: asyncio.TaskGroup) -> None:
        """Tell a monitor that is new here what it is taken to count on."""
        approved = self._current_state.monitor.approved
        if not self._introduced and approved is not None:
            self._introduced = True
            self._state = now_known.upscale_started(self._current_state, approved)
            tasks.create_task(self._upscale(ResourceChange(approved, approved), self._connection))

    async def _upscale(self, change: ResourceChange, connection: int) -> None:
        try:
            await self._channels.guest.upscale(change.target)
        except NodeError as error:
            self._track.ended("upscale", error)
            self._track.ill("monitor", error.message)
            self._become_if(connection, lambda state: now_known.upscale_failed(state, self._now()))
            return
        self._track.ended("upscale")
        self._track.well("monitor")
        self._become_if(connection, now_known.upscale_done)

    async def _downscale(self, change: ResourceChange, connection: int) -> None:
        try:
            result = await self._channels.guest.downscale(change.target)
        except NodeError as error:
            self._track.ended("downscale", error)
            self._track.ill("monitor", error.message)
            self._become_if(connection, lambda state: now_known.downscale_failed(state, self._now()))
            return
        self._track.ended("downscale", "done" if result.ok else "short")
        self._track.well("monitor")
        if result.ok:
            self._become_if(connection, now_known.downscale_allowed)
        else:
            self._become_if(connection, lambda state: now_known.downscale_denied(state, self._now()))

    # -- metrics -----------------------------------------------------------------------------------------------------

    async def _measure_system(self) -> None:
        waits = self._waits

        async def measure() -> None:
            metrics = await self._bounded(self._channels.metrics.system(), waits.metrics_timeout)
            self._track.measured("metrics", self._now())
            self._guest.says(metrics.guest, self._current_state.using, self._now())
            self._become(lambda state: now_known.metrics_received(state, metrics))

        await self._measure("metrics", waits.metrics_interval, measure)

    async def _measure_lfc(self) -> None:
        waits = self._waits

        async def measure() -> None:
            if self._config.enable_lfc_metrics:
                metrics = await self._bounded(self._channels.metrics.lfc(), waits.lfc_timeout)
                self._track.measured("lfc", self._now())
                self._become(lambda state: now_known.lfc_metrics_received(state, metrics))

        await self._measure("lfc", waits.lfc_interval, measure)

    async def _measure(self, what: Metrics, interval: int, measure: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Every so often, beginning at a random instant, so that machines that come together are not asked together."""
        await asyncio.sleep(self._rng.uniform(0, interval) / 1000)
        while True:
            began = self._now()
            try:
                await measure()
            except NodeError as error:
                self._track.unmeasured(what, error)
            await asyncio.sleep(max(0, began + interval - self._now()) / 1000)

    # -- small things ------------------------------------------------------------------------------------------------

    @property
    def _current_state(self) -> ScalingState:
        assert self._state is not None, "the machine has been observed"
        return self._state

    def _become(self, change: Callable[[ScalingState], ScalingState]) -> None:
        if self._state is not None:
            self._state = change(self._state)
            self._changed.set()

    def _become_if(self, connection: int, change: Callable[[ScalingState], ScalingState]) -> None:
        """Where the connection to the monitor ended meanwhile, its end has told the state already."""
        if connection == self._connection:
            self._become(change)

    async def _bounded(self, request: Awaitable[_Result], milliseconds: int) -> _Result:
        try:
            async with asyncio.timeout(milliseconds / 1000):
                return await request
        except TimeoutError:
            raise Unknown("NoAnswer", f"no answer within {milliseconds / 1000:g} s") from None

    @staticmethod
    def _now() -> int:
        return int(asyncio.get_running_loop().time() * 1000)
