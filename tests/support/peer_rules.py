"""The rules of agents in use, where they use more than is permitted, or less than the guest agreed to.

Histories that were recorded from them are replayed by these rules; devalloc's own worlds show what they break.
"""

from __future__ import annotations

from dataclasses import dataclass

from devalloc.scaling.resources import Resources
from devalloc.scaling.state import MachineChannel, MonitorChannel, PluginChannel, ScalingRules, ScalingState


@dataclass(frozen=True, slots=True)
class PeerRules(ScalingRules):
    """``ScalingRules`` of who takes a request that is not answered for one that was not heard."""

    def upper_bound(self, using: Resources, machine: MachineChannel) -> Resources:
        return using if machine.in_flight is None else using.most(machine.in_flight)

    def lower_bound(self, using: Resources, machine: MachineChannel) -> Resources:
        return using

    def least_permit(self, state: ScalingState) -> Resources:
        return state.using

    def permit_while_asking(self, permit: Resources, target: Resources) -> Resources:
        return permit

    def repeats_at_once(self, plugin: PluginChannel) -> bool:
        return False

    def machine_retry(self, failures: int) -> int:
        return self.timing.machine_retry

    def unconfirmed(self, monitor: MonitorChannel, target: Resources) -> Resources | None:
        return monitor.told

    def counted_soon(self, monitor: MonitorChannel) -> Resources | None:
        return monitor.counted

    def within(self, current: Resources, low: Resources, high: Resources) -> tuple[Resources, Resources]:
        return low, high

    def introduces(self) -> bool:
        return False
