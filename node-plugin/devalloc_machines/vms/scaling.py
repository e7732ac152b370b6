"""Machines that are scaled by their load: read the settings from their objects, and report the state. If a controller
sets the CPU time of a machine, its runner starts where the object says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Protocol

from devalloc.api.problems import Problem
from devalloc.api.quantity import NANO, Format, Quantity, QuantityError
from devalloc.api.virtual_machine import MachineScaling, VirtualMachine
from devalloc.scaling.config import (
    ANNOTATION,
    ANNOTATION_PATH,
    ScalingConfig,
    ScalingOverrides,
    apply_overrides,
    merge_overrides,
    read_config_annotation,
)
from devalloc.scaling.health import ScalingReport, StuckReason
from devalloc.scaling.resources import Resources, ScalingBounds
from devalloc.settings import Network
from devalloc.store import Object
from devalloc_machines.agent.actuator import memory_rounded_down
from devalloc_machines.agent.channels import RunnerAddress, ScaledMachine
from devalloc_machines.agent.settings import ScalingSettings
from devalloc_machines.qemu.rates import of_running
from devalloc_machines.qemu.records import MachineAmounts, MachineView, State
from devalloc_machines.qemu.resources import requested_in_spec
from devalloc_machines.qemu.spec import MachineSpec, Nic, RateLimits, spec_of, whole_cpus
from devalloc_machines.service.operations import MachineOperations
from devalloc_machines.vms.machine_claims import CALLER
from devalloc_machines.vms.objects import Outcome
from devalloc_machines.vms.status import permit_of
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, NodeError

if TYPE_CHECKING:
    from devalloc_machines.agent.agent_thread import AgentThread

SCALE_SECONDS = 10.0
"""For one amount, or the rates: a guest that boots, or refuses, is asked again later."""
_AMOUNTS = {"vcpus": "vcpus", "cpu": "cpu_milli", "memory": "memory_bytes"}
"""What is scaled, in order, and the field of MachineAmounts for it."""


class RunnerControl(Protocol):
    """Who listens for controllers. Safe for threads."""

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
    if runner is None or not (machine.is_active or machine.state is State.SILENT):
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


def scaled_machine(
    vm: VirtualMachine, scaling: MachineScaling, machine: MachineView, who: AgentThread, runner_pod: str = ""
) -> ScaledMachine:
    """``runner_pod``: as its status names it. Raises Denied: its guest cannot be where its object says
    (``GuestElsewhere``), or no goal can be computed as it says (``ScalingConfigInvalid``)."""
    settings = who.settings
    address = scaling.address or machine.network_address
    if not address:
        raise Denied(
            "GuestElsewhere",
            "scaling.address is missing, and this node's warm setups have no network that gives the guest an address; "
            "set it, or have the node's admin use --warm-network",
            retryable=True,
        )
    _check_address(address, machine, who)
    return ScaledMachine(
        "/".join(vm.key),
        vm.metadata.uid or "",
        machine.id,
        _bounds(vm, machine.started),
        _config(vm, scaling, settings),
        address,
        scaling.monitor_port,
        scaling.metrics_port,
        scaling.lfc_metrics_port,
        scaling.protocol,
        vm.metadata.creation_timestamp or "",
        runner_pod,
    )


def scale_by_load(
    who: AgentThread, operations: MachineOperations, vm: VirtualMachine, machine: MachineView, runner_pod: str = ""
) -> list[Outcome]:
    """Have a machine that runs scaled by its load; what is in the way. ``runner_pod``: as of ``scaled_machine``."""
    if vm.spec.scaling is None:
        return []
    try:
        who.keep(scaled_machine(vm, vm.spec.scaling, machine, who, runner_pod))
    except NodeError as error:
        who.drop(machine.key)
        return [Outcome(error.code, error.message)]
    if (report := who.report(machine.key)) is None:
        return []
    operations.want(machine.key, amounts_of(report.wanted))
    why_not = scaling_reason(report)
    return [] if why_not is None else [Outcome(why_not.code, why_not.message)]


def scale_to_spec(
    operations: MachineOperations,
    vm: VirtualMachine,
    held: Object,
    may_grow: Callable[[], bool],
    *,
    is_controlled: bool,
) -> tuple[list[Outcome], bool]:
    """Scale each amount of a machine that runs on its own; what did not work, and whether it may not have more that its
    spec asks for. ``held``: its object as it is now; ``is_controlled``: a controller decides on its CPU time."""
    key, uid = "/".join(vm.key), vm.metadata.uid or ""
    machine = operations.machine(key)
    if not machine.is_active:
        return [], False
    problems = []
    requested, is_kept = requested_in_spec(spec_of(vm)), True
    if vm.spec.scaling is not None and (permit := permit_of(held, machine.id)) is not None:
        requested = capped_by_permit(requested, machine.observed, permit)  # no agent asks for more of it now
    ours = {what: name for what, name in _AMOUNTS.items() if not (is_controlled and what == "cpu")}
    if any(_is_more(requested, machine.observed, name) for name in ours.values()):
        is_kept = may_grow()
    for what, name in ours.items():
        wanted = getattr(requested, name)
        # As it is now: with the number of vCPUs changes what they may use together.
        observed = operations.machine(key).observed
        if getattr(observed, name) in (None, wanted) or (not is_kept and _is_more(requested, observed, name)):
            continue
        try:
            operations.scale(key, what, wanted, Deadline.after(SCALE_SECONDS), owner=uid, caller=CALLER)
        except NodeError as error:
            problems.append(Outcome(error.code, error.message))
    return problems, not is_kept


def _is_more(requested: MachineAmounts, observed: MachineAmounts, name: str) -> bool:
    has = getattr(observed, name)
    return has is not None and getattr(requested, name) > has


def limit_to_spec(operations: MachineOperations, vm: VirtualMachine, *, is_admitted: bool) -> list[Outcome]:
    """Limit a machine that runs to the rates of its spec; if its node has no room for a rate, to the rate that it
    had."""
    machine, wanted = operations.machine("/".join(vm.key)), spec_of(vm)
    running = machine.started
    if not machine.is_active or running is None:
        return []
    if not any(rates.is_limited for rates in (running.rates, machine.rates, wanted.rates)):
        return []
    return hold_to_rates(operations, machine, of_running(running, wanted, machine.rates, is_admitted=is_admitted))


def hold_to_rates(operations: MachineOperations, machine: MachineView, rates: RateLimits) -> list[Outcome]:
    """Limit a machine that runs, also if another program has removed a limit since; what is not enforced."""
    try:
        missing = operations.limit_rates(machine.key, rates, Deadline.after(SCALE_SECONDS), owner=machine.uid)
    except NodeError as error:
        return [Outcome(error.code, error.message)]
    return [Outcome("LimitNotEnforced", "; ".join(missing))] if missing else []


def _check_address(address: str, machine: MachineView, who: AgentThread) -> None:
    """Whether the plugin, which has rights and reaches networks that the author of an object has not, may be sent
    there: to the address that the machine has in the network of warm setups, behind a TAP interface of the machine, or
    where the admin says that guests are. Raises Denied."""
    if address == machine.network_address:
        return
    try:
        way = who.way_to(address)
    except OSError as error:
        raise Denied(
            "GuestElsewhere", f"cannot find the route to scaling.address {address}: {error}", retryable=True
        ) from None
    if way.is_own:
        raise Denied("GuestElsewhere", f"scaling.address {address} belongs to this node, not to a guest")
    nics = [*(() if machine.started is None else machine.started.nics)]
    nics += [each.what for each in machine.plain if isinstance(each.what, Nic)]
    own = {nic.interface for nic in nics if nic.interface is not None and not nic.warm}  # those are elsewhere
    if way.is_tap and not way.by_gateway:
        if way.interface in own:
            return
        raise Denied(
            "GuestElsewhere", f"scaling.address {address} is behind the TAP interface of another machine of this node"
        )
    if not who.settings.reaches(address):
        networks = ", ".join(map(str, who.settings.guests)) or "none"
        raise Denied(
            "GuestElsewhere",
            f"scaling.address {address} is not behind a TAP interface of the machine, nor in a network of this "
            f"node's guests ({networks}); correct it, or have the node's admin add the network (--guest-network)",
        )


def limited_to_permit(vm: VirtualMachine, held: Object) -> VirtualMachine:
    """With no more to begin with than its last run was permitted: the rest may be others' by now. Its load asks for it
    anew. ``held``: its object as it is now."""
    permit = (held.get("status") or {}).get("permitted")
    if vm.spec.scaling is None or not isinstance(permit, dict) or not permit.get("givenBy"):
        return vm
    spec = spec_of(vm)
    try:
        cpu, memory = Quantity.parse(permit["cpus"]), Quantity.parse(permit["memory"])
    except (KeyError, QuantityError, TypeError):
        return vm
    if vm.spec.cpu.wanted > cpu:
        bounds = vm.spec.cpu.model_copy(update={"use": max(cpu, vm.spec.cpu.min)})
        vm = vm.model_copy(update={"spec": vm.spec.model_copy(update={"cpu": bounds})})
    if vm.spec.memory.wanted > memory:
        whole = Quantity(memory_rounded_down(memory.nano // NANO, spec) * NANO, Format.BINARY_SI)
        amounts = vm.spec.memory.model_copy(update={"use": whole})
        vm = vm.model_copy(update={"spec": vm.spec.model_copy(update={"memory": amounts})})
    return vm


def capped_by_permit(requested: MachineAmounts, has: MachineAmounts, permit: MachineAmounts) -> MachineAmounts:
    """What is asked for, as far as it has that or is permitted it; whole CPUs carry a part of one."""
    cpu = max(has.cpu_milli or 0, permit.cpu_milli or 0)
    memory = max(has.memory_bytes or 0, permit.memory_bytes or 0)
    return MachineAmounts(
        min(requested.cpu_milli or 0, cpu),
        min(requested.vcpus or 0, max(has.vcpus or 0, whole_cpus(permit.cpu_milli or 0))),
        min(requested.memory_bytes or 0, memory),
    )


def amounts_of(resources: Resources) -> MachineAmounts:
    return MachineAmounts(resources.cpu, None, resources.memory)


def guest_amounts(report: ScalingReport) -> MachineAmounts | None:
    """What its guest says that it has."""
    return None if report.guest is None else MachineAmounts(None, report.guest.cpus, report.guest.memory)


def scaling_reason(report: ScalingReport) -> StuckReason | None:
    """Why it does not have what it should have; None if it has."""
    reasons = [reason for reason in (report.reason, *report.stuck) if reason is not None]
    return (
        StuckReason(reasons[0].code, "; ".join(dict.fromkeys(reason.message for reason in reasons)))
        if reasons
        else None
    )


def _bounds(vm: VirtualMachine, started: MachineSpec | None) -> ScalingBounds:
    """Of its object, as far as it was started with room for that."""
    least = Resources(_cpu(vm.spec.cpu.min), _bytes(vm.spec.memory.min))
    most = Resources(_cpu(vm.spec.cpu.max), _bytes(vm.spec.memory.max))
    if started is not None:
        low = Resources(started.cpus.least, started.memory.least)
        high = Resources(started.cpus.most, started.memory.most)
        least, most = least.most(low).least(high), most.least(high).most(low)
    return ScalingBounds(least, most)


def _config(vm: VirtualMachine, scaling: MachineScaling, settings: ScalingSettings) -> ScalingConfig:
    """The node's, with what the machine's annotation says otherwise, and then with what its spec says."""
    config, problems = settings.config, list[Problem]()
    if (text := vm.metadata.annotations.get(ANNOTATION)) is not None:
        read = read_config_annotation(text, settings.era, ANNOTATION_PATH)
        problems += read.problems
        config = config if read.value is None else apply_overrides(config, read.value)
    overrides = _overrides(scaling)
    of_spec = (
        overrides.lfc_window_size_minutes is not None or overrides.lfc_min_wait_before_downscale_minutes is not None
    )
    merged = merge_overrides(config, overrides, "spec.scaling" if of_spec else ANNOTATION_PATH)
    problems += merged.problems
    wrong = [f"{problem.path} {problem.message}" for problem in problems if problem.is_error]
    if merged.value is None or wrong:
        raise Denied("ScalingConfigInvalid", f"cannot compute a goal from its object: {'; '.join(wrong)}")
    return merged.value


def _overrides(scaling: MachineScaling) -> ScalingOverrides:
    values: dict[str, Any] = {each.name: getattr(scaling, each.name) for each in fields(ScalingOverrides)}
    values |= {name: value.nano / NANO for name, value in values.items() if isinstance(value, Quantity)}
    return ScalingOverrides(**values)


def _cpu(amount: Quantity) -> int:
    return -(-amount.nano * 1000 // NANO)


def _bytes(amount: Quantity) -> int:
    return -(-amount.nano // NANO)
