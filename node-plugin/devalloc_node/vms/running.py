"""Machines whose CPU time a controller decides: what their objects say of that, and what is in the way."""

from __future__ import annotations

from typing import Protocol

from devalloc.api.virtualmachine import VirtualMachine
from devalloc_node.agent.runners import RunnerAt
from devalloc_node.agent.settings import Network
from devalloc_node.machine.view import Machine
from devalloc_node.vms.outcome import Outcome


class Runners(Protocol):
    """Who listens for controllers; see `devalloc_node.agent.runners`. Safe for threads."""

    @property
    def networks(self) -> tuple[Network, ...]: ...

    def keep(self, at: RunnerAt) -> None:
        """Have this runner listen, from now on or as before."""

    def drop(self, key: str) -> None:
        """Close it."""

    def problem(self, key: str) -> str | None:
        """Why it does not listen."""

    def allows(self, address: str) -> bool:
        """Whether a runner may listen there."""


def offered(runners: Runners | None, vm: VirtualMachine, machine: Machine) -> list[Outcome]:
    """Have its runner listen where its object says, or nowhere; what is in the way."""
    key, runner = "/".join(vm.key), vm.spec.runner
    if runners is None:
        if runner is None:
            return []
        why = "its spec names a runner, and this node has none (--runner-network); it has the CPU time of cpu.use"
        return [Outcome("RunnerOff", why)]
    if runner is None or machine.phase not in ("Running", "Unknown"):
        runners.drop(key)
        return []
    if not runners.allows(runner.address):
        runners.drop(key)
        networks = ", ".join(map(str, runners.networks))
        what = f"runner.address {runner.address} is in none of the networks that runners may listen in ({networks})"
        return [Outcome("RunnerElsewhere", f"{what}; correct it, or have the node's admin add the network")]
    runners.keep(RunnerAt(key, vm.metadata.uid or "", machine.id, runner.address, runner.port))
    problem = runners.problem(key)
    return [] if problem is None else [Outcome("RunnerFailed", problem)]
