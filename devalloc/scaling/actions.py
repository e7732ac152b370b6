"""What the agent does next for one machine: a pure function of its state and the time.

Up goes: permit, machine, monitor told. Down goes: monitor asked, machine, plugin told. Neither is written down as a
sequence: each channel is bounded by what the one before it has agreed to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from devalloc.scaling.goals import DesiredResources, ScalingGoal, compute_goal, desired_resources
from devalloc.scaling.metrics import SystemMetrics
from devalloc.scaling.resources import Resources
from devalloc.scaling.state import Direction, ScalingState


@dataclass(frozen=True, slots=True)
class PluginRequest:
    """Ask for a total, or tell that it is less now, or just tell."""

    last_permit: Resources | None
    target: Resources
    metrics: SystemMetrics | None


@dataclass(frozen=True, slots=True)
class ResourceChange:
    """From what there is to what there should be."""

    current: Resources
    target: Resources


@dataclass(frozen=True, slots=True)
class Actions:
    """What to begin now on each channel, and when to look again (milliseconds; None: not before an event)."""

    wait: int | None
    plugin: PluginRequest | None
    machine: ResourceChange | None
    upscale: ResourceChange | None
    downscale: ResourceChange | None
    goal: ScalingGoal
    desired: Resources
    warnings: tuple[str, ...] = ()


_Action = TypeVar("_Action", PluginRequest, ResourceChange)


@dataclass(frozen=True, slots=True)
class _ChannelPlan(Generic[_Action]):
    """What one channel does: an action, or how long it has to wait, or neither; and what kept it from acting."""

    action: _Action | None = None
    wait: int | None = None
    warning: str | None = None


def next_actions(state: ScalingState, now: int) -> Actions:
    """What to do now. Asked again after each event and after the wait."""
    rules = state.rules
    wish = compute_goal(rules.unit, state.config, state.system, state.lfc, rules.era)
    wanted = _desired(state, now, wish)
    plugin = _plugin(state, now, wanted.resources)
    machine = _machine(state, now, wanted.resources, _announced_to_plugin(state, plugin.action))
    upscale = _upscale(state, now, wanted.resources)
    downscale = _downscale(state, now, wanted.resources, upscale.action is not None)
    waits = [plugin.wait, machine.wait, upscale.wait, downscale.wait, *_expiries(state, now, wanted, downscale)]
    warnings = (planned.warning for planned in (plugin, machine, upscale, downscale))
    return Actions(
        wait=min((wait for wait in waits if wait is not None), default=None),
        plugin=plugin.action,
        machine=machine.action,
        upscale=upscale.action,
        downscale=downscale.action,
        goal=wish,
        desired=wanted.resources,
        warnings=(*wanted.warnings, *(warning for warning in warnings if warning is not None)),
    )


# -- what is desired -------------------------------------------------------------------------------------------------


def _desired(state: ScalingState, now: int, wish: ScalingGoal) -> DesiredResources:
    monitor, rules, bounds = state.monitor, state.rules, state.bounds
    upscale = monitor.requested if _remaining_time(now, _requested_at(state), rules.timing.upscale_valid) else None
    refused = _remaining_time(now, _denied_at(state), rules.timing.monitor_denied) is not None and not state.insisting
    denied = monitor.denied if refused else None
    return desired_resources(rules.unit, bounds.min, bounds.max, state.using, wish, upscale, denied, rules.era)


def _expiries(
    state: ScalingState, now: int, wanted: DesiredResources, downscale: _ChannelPlan[ResourceChange]
) -> list[int | None]:
    """When a denial or a request that counts now does not any more. Who is about to ask for less is answered first."""
    timing = state.rules.timing
    asks = downscale.action is not None or state.monitor.in_flight is not None
    return [
        _remaining_time(now, _denied_at(state), timing.monitor_denied) if wanted.by_denial and not asks else None,
        _remaining_time(now, _requested_at(state), timing.upscale_valid) if wanted.by_request else None,
    ]


def _requested_at(state: ScalingState) -> int | None:
    return None if state.monitor.requested is None else state.monitor.requested.at


def _denied_at(state: ScalingState) -> int | None:
    return None if state.monitor.denied is None else state.monitor.denied.at


def _remaining_time(now: int, since: int | None, duration: int) -> int | None:
    """What is left of a duration; None when it is over or never began."""
    left = 0 if since is None else since + duration - now
    return left if left > 0 else None


# -- the four channels -----------------------------------------------------------------------------------------------


def _plugin(state: ScalingState, now: int, wanted: Resources) -> _ChannelPlan[PluginRequest]:
    plugin, rules, report = state.plugin, state.rules, state.upper_bound
    timing = rules.timing
    # A decrease is made first and told afterwards; an increase is asked for first.
    asking = _clamped(state, state.using, wanted, lowest=state.using).most(rules.least_permit(state))
    last, permit = plugin.last, plugin.permit
    news = last is not None and permit is not None and asking != permit
    denied = last is not None and permit is not None and not plugin.in_flight and last.resources.exceeds(permit)
    denied_left = _remaining_time(now, last.at, timing.plugin_denied_retry) if last is not None and denied else None
    ask = news and denied_left is None
    target = asking if ask else report
    if plugin.in_flight:
        assert last is not None
        other = "a plugin request for something else is in flight" if last.resources != target else None
        return _ChannelPlan(warning=other)
    if (left := _remaining_time(now, plugin.failed_at, timing.plugin_retry)) is not None:
        return _ChannelPlan(wait=left, warning="a plugin request failed too recently to make another")
    tick_left = None
    if last is not None and not rules.repeats_at_once(plugin):
        tick_left = _remaining_time(now, last.at, timing.plugin_tick)
    if tick_left is not None and not ask:
        warning = "the plugin permitted less than was asked for too recently to ask again" if news else None
        return _ChannelPlan(wait=min(tick_left, denied_left or tick_left), warning=warning)
    return _ChannelPlan(PluginRequest(permit, target, state.system))


def _announced_to_plugin(state: ScalingState, planned: PluginRequest | None) -> Resources | None:
    """What the plugin is or will be told that the machine has."""
    if state.plugin.in_flight:
        assert state.plugin.last is not None
        return state.plugin.last.resources
    return None if planned is None else planned.target


def _machine(
    state: ScalingState, now: int, wanted: Resources, asking: Resources | None
) -> _ChannelPlan[ResourceChange]:
    machine = state.machine
    agreed = state.rules.counted_soon(state.monitor) or state.using
    target = _clamped(
        state,
        state.using,
        wanted,
        lowest=agreed.least(state.bounds.max) if state.insisting else agreed,
        highest=state.using if state.plugin.permit is None else state.plugin.permit,
    )
    if target == state.using:
        return _ChannelPlan()
    if machine.in_flight is not None:
        other = "another change of the machine is in flight" if machine.in_flight != target else None
        return _ChannelPlan(warning=other)
    if asking is not None and target.exceeds(asking):
        return _ChannelPlan(warning="the plugin is being told of less than the machine should have")
    if (left := _remaining_time(now, machine.failed_at, state.rules.machine_retry(machine.failures))) is not None:
        return _ChannelPlan(wait=left, warning="a change of the machine failed too recently to try another")
    return _ChannelPlan(ResourceChange(state.using, target))


def _upscale(state: ScalingState, now: int, wanted: Resources) -> _ChannelPlan[ResourceChange]:
    monitor = state.monitor
    approved = monitor.approved
    if approved is None:
        return _ChannelPlan()
    # What a change in flight is about to take away is not given to the guest.
    target = _clamped(state, approved, state.lower_bound, lowest=approved, highest=wanted.most(approved))
    if target == approved:
        return _ChannelPlan()
    if monitor.in_flight is not None:
        return _ChannelPlan(warning=_busy(state, Direction.UP, target))
    if (left := _remaining_time(now, monitor.upscale_failed_at, state.rules.timing.monitor_retry)) is not None:
        return _ChannelPlan(wait=left, warning="telling the monitor of more failed too recently to try again")
    return _ChannelPlan(ResourceChange(approved, target))


def _downscale(state: ScalingState, now: int, wanted: Resources, upscale_planned: bool) -> _ChannelPlan[ResourceChange]:
    monitor, counted = state.monitor, state.monitor.counted
    if counted is None:
        return _ChannelPlan(warning="the monitor has no active connection" if state.using.exceeds(wanted) else None)
    target = counted.least(wanted).most(counted.excess_over(state.rules.unit))
    if target == counted:
        return _ChannelPlan()
    if upscale_planned:
        return _ChannelPlan(warning="the monitor is to be told of more before it is asked for less")
    if monitor.in_flight is not None:
        return _ChannelPlan(warning=_busy(state, Direction.DOWN, target))
    if (left := _remaining_time(now, monitor.downscale_failed_at, state.rules.timing.monitor_retry)) is not None:
        return _ChannelPlan(wait=left, warning="asking the monitor for less failed too recently to try again")
    return _ChannelPlan(ResourceChange(counted, target))


def _busy(state: ScalingState, way: Direction, target: Resources) -> str | None:
    in_flight = state.monitor.in_flight
    if in_flight is None or (in_flight.way, in_flight.target) == (way, target):
        return None
    return f"another {in_flight.way.value} of the monitor is in flight"


_NO_RESOURCES = Resources(0, 0)
_UNLIMITED = Resources(2**63, 2**63)


def _clamped(
    state: ScalingState,
    current: Resources,
    wanted: Resources,
    *,
    lowest: Resources | None = None,
    highest: Resources | None = None,
) -> Resources:
    """What is wanted of each resource, but not below ``lowest`` where it is less, not above ``highest`` where more."""
    low, high = state.rules.within(current, lowest or _NO_RESOURCES, highest or _UNLIMITED)
    return Resources(
        _clamp(current.cpu, wanted.cpu, low.cpu, high.cpu),
        _clamp(current.memory, wanted.memory, low.memory, high.memory),
    )


def _clamp(current: int, wanted: int, lowest: int, highest: int) -> int:
    if wanted < current:
        return max(wanted, lowest)
    return min(wanted, highest) if wanted > current else wanted
