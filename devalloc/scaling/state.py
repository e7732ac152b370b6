"""What the agent knows of one machine, and how each event changes it.

Four channels, each with at most one request in flight: the plugin, which gives permits; the machine; and the guest's
monitor, once for more and once for less. Events are functions from a state and an instant to a state; what is to be
done next follows from the state alone (:mod:`devalloc.scaling.actions`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from devalloc.backoff import backoff_delay
from devalloc.scaling.config import ScalingConfig
from devalloc.scaling.goals import DeniedDownscale, RequestedUpscale
from devalloc.scaling.metrics import LfcMetrics, SystemMetrics
from devalloc.scaling.resources import ResourceFlags, Resources, ScalingBounds
from devalloc.scaling.versions import ProtocolEra


@dataclass(frozen=True, slots=True)
class ScalingTiming:
    """How long the agent waits for what, in milliseconds. The defaults are those that are shipped."""

    plugin_tick: int = 15_000
    """The plugin hears of the machine at least this often, from the start of one request to the next."""
    plugin_retry: int = 3_000
    """After a failed request."""
    plugin_denied_retry: int = 2_000
    """From the start of a request that was not permitted in full to the next that asks for more."""
    machine_retry: int = 5_000
    """After a change that failed or fell short."""
    machine_retry_most: int = 30_000
    """The longest wait between tries, as they become less and less frequent while they fail."""
    monitor_retry: int = 3_000
    monitor_denied: int = 5_000
    """How long a denied downscale counts."""
    upscale_valid: int = 10_000
    """How long a requested upscale counts."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 0:
                raise ValueError(f"{name} cannot be negative")


_FAST_RETRIES = 3
"""Changes that fail in a row before they are tried less often."""


@dataclass(frozen=True, slots=True)
class ScalingRules:
    """What is the same for many machines: what is configured, and how to judge what is uncertain.

    Whatever became of a request, no machine uses more than is permitted, and none has less than its guest counts on.
    Agents in use judge otherwise in places; each of these is a method here.
    """

    unit: Resources
    """One compute unit."""
    timing: ScalingTiming = ScalingTiming()
    era: ProtocolEra = ProtocolEra.NEWEST

    def __post_init__(self) -> None:
        if self.unit.cpu == 0 or self.unit.memory == 0:
            raise ValueError("a compute unit has some of each resource")

    def upper_bound(self, using: Resources, machine: MachineChannel) -> Resources:
        """Return the most that a machine may have now or when a change that is in flight ends."""
        most = using if machine.in_flight is None else using.most(machine.in_flight)
        return most if machine.doubt is None else most.most(machine.doubt.most)

    def lower_bound(self, using: Resources, machine: MachineChannel) -> Resources:
        """Return the least that it may have now or then."""
        least = using if machine.in_flight is None else using.least(machine.in_flight)
        return least if machine.doubt is None else least.least(machine.doubt.least)

    def least_permit(self, state: ScalingState) -> Resources:
        """Return what a permit has to cover: what a change in flight is about to use is not given back."""
        return state.upper_bound

    def permit_while_asking(self, permit: Resources, target: Resources) -> Resources:
        """Return what is left of a permit while a request for ``target`` is on its way, which may be heard."""
        return permit.least(target)

    def repeats_at_once(self, plugin: PluginChannel) -> bool:
        """Whether the plugin is asked again before its turn: a request that failed may have been heard, or not."""
        return plugin.failed_at is not None

    def machine_retry(self, failures: int) -> int:
        """Return how long to wait after so many changes of the machine in a row that failed, in milliseconds."""
        timing, late = self.timing, failures - _FAST_RETRIES
        if late < 0:
            return timing.machine_retry
        delay = backoff_delay(late + 2, timing.machine_retry, timing.machine_retry_most)
        return max(timing.machine_retry, round(delay))

    def unconfirmed(self, monitor: MonitorChannel, target: Resources) -> Resources | None:
        """Return what the guest may count on after it did not confirm ``target``, beyond what it approved."""
        return target.most(monitor.told or target)

    def counted_soon(self, monitor: MonitorChannel) -> Resources | None:
        """Return the most that the guest may count on, now or when what it is sent has arrived."""
        in_flight, counted = monitor.in_flight, monitor.counted
        if counted is None or in_flight is None or in_flight.way is Direction.DOWN:
            return counted
        return counted.most(in_flight.target)

    def within(self, current: Resources, low: Resources, high: Resources) -> tuple[Resources, Resources]:
        """Return the bounds of a change: one keeps a change from happening; it never makes one, nor turns one round."""
        return low.least(current), high.most(current)

    def introduces(self) -> bool:
        """Whether a new monitor has to learn what it is taken to count on."""
        return True


@dataclass(frozen=True, slots=True)
class PermitRequestRecord:
    """A request to the plugin: when it began, and for which total."""

    at: int
    resources: Resources


@dataclass(frozen=True, slots=True)
class PluginChannel:
    """The channel to who gives permits."""

    in_flight: bool = False
    last: PermitRequestRecord | None = None
    failed_at: int | None = None
    permit: Resources | None = None
    short_of: Resources | None = None
    """The total of the last request that was answered, if less was permitted."""


@dataclass(frozen=True, slots=True)
class UncertainResources:
    """Between which amounts a machine is that has not been seen since a change of it failed."""

    least: Resources
    most: Resources


@dataclass(frozen=True, slots=True)
class MachineChannel:
    """The channel to the machine itself."""

    in_flight: Resources | None = None
    failed_at: int | None = None
    failures: int = 0
    """Changes in a row that failed or fell short."""
    doubt: UncertainResources | None = None
    """A change that failed may have been made all the same, until the machine is seen."""


class Direction(Enum):
    """Which way a request to the monitor goes."""

    UP = "upscale"
    DOWN = "downscale"


@dataclass(frozen=True, slots=True)
class MonitorRequest:
    """A request to the monitor that is in flight."""

    way: Direction
    target: Resources


@dataclass(frozen=True, slots=True)
class MonitorChannel:
    """The channel to the guest's monitor."""

    approved: Resources | None = None
    """What the monitor last agreed to; None as long as it is not connected."""
    in_flight: MonitorRequest | None = None
    upscale_failed_at: int | None = None
    downscale_failed_at: int | None = None
    requested: RequestedUpscale | None = None
    denied: DeniedDownscale | None = None
    told: Resources | None = None
    """What it may count on beyond what it approved: it is not known what became of telling it."""

    @property
    def counted(self) -> Resources | None:
        """The most that the guest may count on; None as long as there is no connection."""
        return self.approved if self.approved is None or self.told is None else self.approved.most(self.told)


@dataclass(frozen=True, slots=True)
class ScalingState:
    """What the agent knows of one machine."""

    rules: ScalingRules
    bounds: ScalingBounds
    config: ScalingConfig
    using: Resources
    """What the machine has, as far as it is known: what was last done, or seen."""
    system: SystemMetrics | None = None
    lfc: LfcMetrics | None = None
    plugin: PluginChannel = PluginChannel()
    machine: MachineChannel = MachineChannel()
    monitor: MonitorChannel = MonitorChannel()
    insisting: bool = False
    """The machine comes down to its maximum whatever its guest says: it had its time to agree."""

    @property
    def upper_bound(self) -> Resources:
        """The most that the machine may have now or when a change that is in flight ends."""
        return self.rules.upper_bound(self.using, self.machine)

    @property
    def lower_bound(self) -> Resources:
        """The least that it may have now or then."""
        return self.rules.lower_bound(self.using, self.machine)


class PermitError(ValueError):
    """A permit that cannot be: it counts as a failed request, and the permit before it stays."""


# -- what is measured and configured ---------------------------------------------------------------------------------


def metrics_received(state: ScalingState, metrics: SystemMetrics) -> ScalingState:
    """Load and memory of the guest are known anew."""
    return replace(state, system=metrics)


def lfc_metrics_received(state: ScalingState, metrics: LfcMetrics) -> ScalingState:
    """The cache metrics of the guest are known anew."""
    return replace(state, lfc=metrics)


def bounds_changed(state: ScalingState, bounds: ScalingBounds, config: ScalingConfig) -> ScalingState:
    """The machine's bounds or its configuration changed. What it is using is not changed by that."""
    return replace(state, bounds=bounds, config=config, lfc=state.lfc if config.enable_lfc_metrics else None)


def maximum_enforced(state: ScalingState, insist: bool) -> ScalingState:
    """Whether the machine comes down to its maximum whatever its guest says."""
    return replace(state, insisting=insist)


def machine_observed(state: ScalingState, using: Resources) -> ScalingState:
    """The machine was seen to have this. While it is being changed, only the end of the change tells."""
    if state.machine.in_flight is not None:
        return state
    return replace(state, using=using, machine=replace(state.machine, doubt=None))


# -- plugin ----------------------------------------------------------------------------------------------------------


def plugin_started(state: ScalingState, now: int, target: Resources) -> ScalingState:
    """A request for this total is on its way. What it gives back is not used any more, whether it is heard or not."""
    permit = state.plugin.permit
    if permit is not None:
        permit = state.rules.permit_while_asking(permit, target)
    last = PermitRequestRecord(now, target)
    return replace(state, plugin=PluginChannel(True, last, permit=permit, short_of=state.plugin.short_of))


def plugin_failed(state: ScalingState, now: int) -> ScalingState:
    """The request failed, or it is not known what became of it."""
    return replace(state, plugin=replace(state.plugin, in_flight=False, failed_at=now))


def plugin_permitted(state: ScalingState, permit: Resources) -> ScalingState:
    """The request was answered. Raises PermitError for a permit that cannot be; see plugin_failed."""
    request = state.plugin.last
    assert request is not None, "a permit answers a request"
    if permit.cpu == 0 or permit.memory == 0:
        raise PermitError(f"the permit must grant some CPU and some memory, not {_shown(permit)}")
    if permit.exceeds(request.resources):
        raise PermitError(f"the permit is more than was asked for: {_shown(permit)}, not {_shown(request.resources)}")
    used = state.rules.least_permit(state)
    if used.exceeds(permit):
        raise PermitError(f"the permit is less than what is in use: {_shown(permit)}, not {_shown(used)}")
    short_of = request.resources if request.resources.exceeds(permit) else None
    return replace(state, plugin=replace(state.plugin, in_flight=False, permit=permit, short_of=short_of))


def _shown(resources: Resources) -> str:
    return f"{resources.cpu}m CPU and {resources.memory} bytes"


# -- machine ---------------------------------------------------------------------------------------------------------


def machine_started(state: ScalingState, target: Resources) -> ScalingState:
    """The machine is being changed to have this."""
    return replace(state, machine=replace(state.machine, in_flight=target, failed_at=None))


def machine_done(state: ScalingState, now: int, reached: Resources | None = None) -> ScalingState:
    """The change ended, and this was read back (None: what was asked for). Short of it, the next try has to wait."""
    target = state.machine.in_flight
    assert target is not None, "a change that ends has begun"
    short = reached is not None and reached != target
    using = reached or target
    machine = MachineChannel(failed_at=now, failures=state.machine.failures + 1) if short else MachineChannel()
    return replace(_override_guest(state, using), using=using, machine=machine)


def _override_guest(state: ScalingState, using: Resources) -> ScalingState:
    """What was taken from a guest that did not agree is not what it approves or refuses any more."""
    monitor = state.monitor
    if not state.insisting or monitor.counted is None or not monitor.counted.exceeds(using):
        return state
    approved = monitor.approved
    approved = None if approved is None else approved.least(using)
    return replace(state, monitor=replace(monitor, approved=approved, told=None, denied=None))


def machine_failed(state: ScalingState, now: int) -> ScalingState:
    """The change failed, or it is not known what became of it. Only a look at the machine tells: see observed."""
    doubt = UncertainResources(state.lower_bound, state.upper_bound)
    return replace(state, machine=MachineChannel(failed_at=now, failures=state.machine.failures + 1, doubt=doubt))


# -- monitor ---------------------------------------------------------------------------------------------------------


def monitor_connected(state: ScalingState) -> ScalingState:
    """A new connection to the monitor: nothing of an earlier one counts, and what is in use is what it approves."""
    machine = replace(state.machine, failures=0)  # a guest that has begun may do now what it could not
    return replace(state, monitor=MonitorChannel(approved=state.lower_bound), machine=machine)


def monitor_lost(state: ScalingState) -> ScalingState:
    """There is no connection to the monitor any more."""
    return replace(state, monitor=MonitorChannel())


def upscale_requested(state: ScalingState, now: int, more: ResourceFlags) -> ScalingState:
    """The guest asks for more. Without a connection it cannot ask."""
    approved = state.monitor.approved
    if approved is None:
        return state
    return replace(state, monitor=replace(state.monitor, requested=RequestedUpscale(now, approved, more)))


def upscale_started(state: ScalingState, target: Resources) -> ScalingState:
    """The monitor is being told that it has more."""
    request = MonitorRequest(Direction.UP, target)
    return replace(state, monitor=replace(state.monitor, in_flight=request, upscale_failed_at=None))


def upscale_done(state: ScalingState) -> ScalingState:
    """The monitor confirmed what it was told."""
    approved = _in_flight(state, Direction.UP)
    return replace(state, monitor=replace(state.monitor, approved=approved, in_flight=None, told=None))


def upscale_failed(state: ScalingState, now: int) -> ScalingState:
    """The monitor did not confirm, or it is not known what became of it."""
    monitor, target = state.monitor, _in_flight(state, Direction.UP)
    told = state.rules.unconfirmed(monitor, target)
    return replace(state, monitor=replace(monitor, in_flight=None, upscale_failed_at=now, told=told))


def downscale_started(state: ScalingState, target: Resources) -> ScalingState:
    """The monitor is being asked whether it can do with less."""
    request = MonitorRequest(Direction.DOWN, target)
    return replace(state, monitor=replace(state.monitor, in_flight=request, downscale_failed_at=None))


def downscale_allowed(state: ScalingState) -> ScalingState:
    """The monitor agrees to have less."""
    approved = _in_flight(state, Direction.DOWN)
    return replace(state, monitor=replace(state.monitor, approved=approved, in_flight=None, told=None))


def downscale_denied(state: ScalingState, now: int) -> ScalingState:
    """The monitor refuses to have less, which is no failure."""
    target, current = _in_flight(state, Direction.DOWN), state.monitor.counted
    assert current is not None, "who refuses is connected"
    denied = DeniedDownscale(now, current, target)
    return replace(state, monitor=replace(state.monitor, in_flight=None, denied=denied))


def downscale_failed(state: ScalingState, now: int) -> ScalingState:
    """The monitor did not answer, or it is not known what became of the request."""
    return replace(state, monitor=replace(state.monitor, in_flight=None, downscale_failed_at=now))


def _in_flight(state: ScalingState, way: Direction) -> Resources:
    request = state.monitor.in_flight
    assert request is not None, "what is answered was asked"
    assert request.way is way, "what is answered was asked"
    return request.target
