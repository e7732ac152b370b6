"""Machines whose CPU time is set by a controller: start their runner where the object says."""

from __future__ import annotations

from typing import Protocol

from devalloc.api.virtual_machine import VirtualMachine
from devalloc_node.agent.runner import RunnerAddress
from devalloc_node.machine.records import MachineView
from devalloc_node.settings import Network
from devalloc_node.vms.outcome import Outcome


class RunnerControl(Protocol):
    """Who listens for controllers; see `devalloc_node.agent.runner`. Safe for threads."""

    @property
    def networks(self) -> tuple[Network, ...]: ...

    def keep(self, at: RunnerAddress) -> None:
        """Have this runner listen, from now on or as before."""

    def drop(self, key: str) -> None:
        """Close it."""

    def problem(self, key: str) -> str | None:
        """Why it does not listen."""

    def allows(self, address: str) -> bool:
        """Whether a runner may listen there."""


def offer_cpu_control(runners: RunnerControl | None, vm: VirtualMachine, machine: MachineView) -> list[Outcome]:
    """Have its runner listen where its object says, or nowhere; what is in the way."""
    key, runner = "/".join(vm.key), vm.spec.runner
    if runners is None:
        if runner is None:
            return []
        why = "its spec names a runner, but this node has none (--runner-network); it has the CPU time of cpu.use"
        return [Outcome("RunnerOff", why)]
    if runner is None or machine.phase not in ("Running", "Unknown"):
        runners.drop(key)
        return []
    if not runners.allows(runner.address):
        runners.drop(key)
        networks = ", ".join(map(str, runners.networks))
        what = f"runner.address {runner.address} is in none of the networks that runners may listen in ({networks})"
        return [Outcome("RunnerElsewhere", f"{what}; correct it, or have the node's admin add the network")]
    runners.keep(RunnerAddress(key, vm.metadata.uid or "", machine.id, runner.address, runner.port))
    problem = runners.problem(key)
    return [] if problem is None else [Outcome("RunnerFailed", problem)]
