"""What is told of a machine's scaling: what it should have, may have, was given and has, and why they differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from devalloc.scaling.actions import Actions
from devalloc.scaling.metrics import SystemMetrics
from devalloc.scaling.observed import Observed
from devalloc.scaling.resources import Resources
from devalloc.scaling.scalars import bytes_to_json, cpu_to_json
from devalloc.scaling.state import State, Way
from devalloc.scaling.stuck import Reason


@dataclass(frozen=True, slots=True)
class Report:
    """How far one machine is. The reason is None where it has what it should have."""

    wanted: Resources
    """By its goal, its guest's own words and its bounds."""
    permitted: Resources | None
    """None: nobody has been asked yet."""
    applied: Resources
    """What it was last brought to."""
    observed: Resources | None
    """What was last read back; None: it could not be, since something may have changed it."""
    reason: Reason | None
    stuck: tuple[Reason, ...] = ()
    guest: Observed | None = None
    """What its guest says that it has; None: it has not said so lately."""
    load: SystemMetrics | None = field(default=None, compare=False)
    """What its guest told last. It is always another one, which is no news."""


def report(
    state: State,
    actions: Actions,
    observed: Resources | None,
    errors: Mapping[str, str],
    stuck: list[Reason],
    guest: Observed | None = None,
    behind: Reason | None = None,
) -> Report:
    """``errors``: how the last request of a channel failed (``permits``, ``machine``, ``monitor``), if it did.
    ``behind``: why the guest has not what the machine has."""
    reason = _reason(state, actions.desired, errors) or behind
    permit = state.plugin.permit
    return Report(actions.desired, permit, state.using, observed, reason, tuple(stuck), guest, state.system)


def _reason(state: State, wanted: Resources, errors: Mapping[str, str]) -> Reason | None:
    """The first in the order in which things are done that is not as far as what is wanted."""
    if state.machine.doubt is not None:
        return Reason(
            "MachineUnknown", f"it is not known what the machine has: {errors.get('machine', 'not seen yet')}"
        )
    if wanted.exceeds(state.using):
        return _why_not_more(state, wanted, errors)
    if state.using.exceeds(wanted):
        return _why_not_less(state, wanted, errors)
    if state.plugin.permit is None:
        return Reason("PermitPending", errors.get("permits", "no permit has been given yet"))
    if state.plugin.permit != state.using:
        what = f"the permit is {shown(state.plugin.permit)} and the machine has {shown(state.using)}"
        return Reason("PermitPending", f"{what}: {errors['permits']}" if "permits" in errors else what)
    return None


def _why_not_more(state: State, wanted: Resources, errors: Mapping[str, str]) -> Reason:
    permit, last = state.plugin.permit, state.plugin.last
    if permit is None or wanted.exceeds(permit):
        if state.plugin.failed_at is not None and "permits" in errors:
            return Reason("PermitFailed", errors["permits"])
        if permit is not None and last is not None and not state.plugin.in_flight and last.resources.exceeds(permit):
            what = (
                f"of {shown(last.resources)} that were asked for, {shown(permit)} are permitted: the node has no room"
            )
            return Reason("PermitShort", what)
        return Reason("PermitPending", f"{shown(wanted)} are being asked for")
    return _changing(state, errors)


def _why_not_less(state: State, wanted: Resources, errors: Mapping[str, str]) -> Reason:
    monitor = state.monitor
    if monitor.approved is None and not state.insisting:
        why = errors.get("monitor", "not connected")
        return Reason("GuestMonitorMissing", f"the guest cannot be asked whether it can do with less: {why}")
    if monitor.counted is not None and monitor.counted.exceeds(wanted) and not state.insisting:
        if monitor.in_flight is not None and monitor.in_flight.way is Way.DOWN:
            return Reason("GuestAsked", f"the guest is asked whether it can do with {shown(monitor.in_flight.target)}")
        if monitor.downscale_failed_at is not None and "monitor" in errors:
            return Reason("GuestMonitorFailed", errors["monitor"])
    return _changing(state, errors)


def _changing(state: State, errors: Mapping[str, str]) -> Reason:
    if state.machine.in_flight is not None:
        return Reason("MachineChanging", f"it is being changed to {shown(state.machine.in_flight)}")
    if state.machine.failed_at is not None and "machine" in errors:
        return Reason("MachineFailed", errors["machine"])
    return Reason("MachineChanging", "it is about to be changed")


def shown(amounts: Resources) -> str:
    """Amounts for people."""
    return f"{cpu_to_json(amounts.cpu)} CPU and {bytes_to_json(amounts.memory)}"
