"""What a machine should have: its goal, what its guest asked for and refused, and its bounds."""

from __future__ import annotations

from dataclasses import dataclass

from devalloc.scaling.goals import MAX_UNITS, ScalingGoal
from devalloc.scaling.resources import ResourceFlags, Resources
from devalloc.scaling.versions import ProtocolEra


@dataclass(frozen=True, slots=True)
class RequestedUpscale:
    """The guest asked for more at an instant, when ``base`` was what it had been told that it has."""

    at: int
    base: Resources
    more: ResourceFlags


@dataclass(frozen=True, slots=True)
class DeniedDownscale:
    """The guest, told that it has ``current``, refused at an instant to go down to ``requested``."""

    at: int
    current: Resources
    requested: Resources


@dataclass(frozen=True, slots=True)
class DesiredResources:
    """What a machine should have, and which of the guest's own words made it so."""

    resources: Resources
    by_request: bool = False
    """Without the requested upscale it would be (or come from) less."""
    by_denial: bool = False
    """Without the denied downscale it would be (or come from) less."""
    warnings: tuple[str, ...] = ()


def desired_resources(
    unit: Resources,
    minimum: Resources,
    maximum: Resources,
    using: Resources,
    goal: ScalingGoal,
    upscale: RequestedUpscale | None = None,
    denied: DeniedDownscale | None = None,
    era: ProtocolEra = ProtocolEra.NEWEST,
) -> DesiredResources:
    """What the machine should have. ``upscale`` and ``denied`` are given only as long as they count."""
    warnings = list(goal.warnings)
    requested = 0 if upscale is None else units_for_upscale(unit, upscale)
    refused = 0 if denied is None else units_for_denial(unit, denied)
    units = min(max(goal.units, requested, refused), MAX_UNITS)
    wanted = unit * units
    if era is ProtocolEra.NEWEST:
        if not goal.complete:
            wanted = wanted.most(using)
            # Before the first metrics there is nothing to decide, and nothing to warn of.
            if goal.cpu is not None or goal.lfc is not None:
                warnings.append("deciding without all required metrics, so nothing goes down")
    elif not goal.complete and units == 0:
        wanted = using
    result = wanted.least(maximum).most(minimum)
    by_denial = refused > goal.units
    if denied is not None:
        if not result.exceeds(denied.requested):
            warnings.append("cannot decrease to within the machine's maximum because of a denied downscale")
        raised = result.most(minimum_after_denial(unit, denied))
        by_denial, result = by_denial or raised != result, raised
    return DesiredResources(result, by_request=requested > goal.units, by_denial=by_denial, warnings=tuple(warnings))


def units_for_upscale(unit: Resources, upscale: RequestedUpscale) -> int:
    """The fewest units that are more than the guest had, of each resource that it asked for."""
    cpu = 1 + upscale.base.cpu // unit.cpu if upscale.more.cpu else 0
    memory = 1 + upscale.base.memory // unit.memory if upscale.more.memory else 0
    return max(cpu, memory)


def units_for_denial(unit: Resources, denied: DeniedDownscale) -> int:
    """The fewest units that are more than what was refused, of both resources."""
    return 1 + max(denied.requested.cpu // unit.cpu, denied.requested.memory // unit.memory)


def minimum_after_denial(unit: Resources, denied: DeniedDownscale) -> Resources:
    """Each resource by itself: one unit more than what was refused, and no more than there was."""
    cpu = unit.cpu * (1 + denied.requested.cpu // unit.cpu)
    memory = unit.memory * (1 + denied.requested.memory // unit.memory)
    return Resources(cpu, memory).least(denied.current)
