"""Machines that are scaled by what their guests do: what their objects say of that, and what there is to tell."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Protocol

from devalloc.api.machinescaling import MachineScaling
from devalloc.api.problems import Problem
from devalloc.api.quantity import NANO, Format, Quantity, QuantityError
from devalloc.api.virtualmachine import VirtualMachine
from devalloc.scaling.bounds import Bounds
from devalloc.scaling.config import (
    ANNOTATION,
    ANNOTATION_PATH,
    Overrides,
    ScalingConfig,
    merge,
    overridden,
    read_annotation,
)
from devalloc.scaling.resources import Resources
from devalloc.scaling.stuck import Reason
from devalloc.store import Object
from devalloc_node.agent.body import whole_memory
from devalloc_node.agent.report import Report
from devalloc_node.agent.scaled import Scaled
from devalloc_node.agent.settings import ScalingSettings
from devalloc_node.errors import Denied
from devalloc_node.host.routes import Way
from devalloc_node.machine.spec import MachineSpec, Nic, whole_cpus
from devalloc_node.machine.translate import spec_of
from devalloc_node.machine.view import Amounts, Machine


class Scaling(Protocol):
    """Who scales machines; see `devalloc_node.agent.scalers`. Safe for threads."""

    @property
    def settings(self) -> ScalingSettings: ...

    def keep(self, scaled: Scaled) -> None:
        """Scale this machine, from now on or as before. Raises Denied (``GuestAddressInUse``) where an older one has
        its guest's address."""

    def drop(self, key: str) -> None:
        """Leave the machine as it is."""

    def report(self, key: str) -> Report | None:
        """How far it is; None while that is not known."""

    def way_to(self, address: str) -> Way:
        """How this host gets there. Raises OSError."""


def scaled_of(vm: VirtualMachine, scaling: MachineScaling, machine: Machine, who: Scaling) -> Scaled:
    """Raises Denied: its guest cannot be where its object says (``GuestElsewhere``), or nobody could compute a goal as
    it says (``ScalingConfigInvalid``)."""
    settings = who.settings
    _check_address(scaling.address, machine, who)
    return Scaled(
        "/".join(vm.key),
        vm.metadata.uid or "",
        machine.id,
        _bounds(vm, machine.started),
        _config(vm, scaling, settings),
        scaling.address,
        scaling.monitor_port,
        scaling.metrics_port,
        scaling.lfc_metrics_port,
        scaling.protocol,
        vm.metadata.creation_timestamp or "",
    )


def _check_address(address: str, machine: Machine, who: Scaling) -> None:
    """Whether the plugin, which has rights and reaches networks that the author of an object has not, may be sent
    there: behind a TAP interface of the machine, or where the admin says that guests are. Raises Denied."""
    try:
        way = who.way_to(address)
    except OSError as error:
        raise Denied(
            "GuestElsewhere", f"how this node gets to scaling.address {address} cannot be told: {error}", retryable=True
        ) from None
    if way.is_own:
        raise Denied("GuestElsewhere", f"scaling.address {address} is this node's own address, and no guest's")
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
            f"scaling.address {address} is not behind a TAP interface of the machine, nor in a network of this node's "
            f"guests (these are: {networks}); correct it, or have the node's admin add the network (--guest-network)",
        )


def as_permitted(vm: VirtualMachine, held: Object) -> VirtualMachine:
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
        whole = Quantity(whole_memory(memory.nano // NANO, spec) * NANO, Format.BINARY_SI)
        amounts = vm.spec.memory.model_copy(update={"use": whole})
        vm = vm.model_copy(update={"spec": vm.spec.model_copy(update={"memory": amounts})})
    return vm


def no_more(asked: Amounts, has: Amounts, permit: Amounts) -> Amounts:
    """What is asked for, as far as it has that or is permitted it; whole CPUs carry a part of one."""
    cpu = max(has.cpu_milli or 0, permit.cpu_milli or 0)
    memory = max(has.memory_bytes or 0, permit.memory_bytes or 0)
    return Amounts(
        min(asked.cpu_milli or 0, cpu),
        min(asked.vcpus or 0, max(has.vcpus or 0, whole_cpus(permit.cpu_milli or 0))),
        min(asked.memory_bytes or 0, memory),
    )


def amounts_of(resources: Resources) -> Amounts:
    return Amounts(resources.cpu, None, resources.memory)


def guest_of(report: Report) -> Amounts | None:
    """What its guest says that it has."""
    return None if report.guest is None else Amounts(None, report.guest.cpus, report.guest.memory)


def why_of(report: Report) -> Reason | None:
    """Why it has not what it should have; None where it has."""
    told = [reason for reason in (report.reason, *report.stuck) if reason is not None]
    return Reason(told[0].code, "; ".join(dict.fromkeys(reason.message for reason in told))) if told else None


def _bounds(vm: VirtualMachine, started: MachineSpec | None) -> Bounds:
    """Of its object, as far as it was started with room for that."""
    least = Resources(_cpu(vm.spec.cpu.min), _bytes(vm.spec.memory.min))
    most = Resources(_cpu(vm.spec.cpu.max), _bytes(vm.spec.memory.max))
    if started is not None:
        low = Resources(started.cpus.least, started.memory.least)
        high = Resources(started.cpus.most, started.memory.most)
        least, most = least.most(low).least(high), most.least(high).most(low)
    return Bounds(least, most)


def _config(vm: VirtualMachine, scaling: MachineScaling, settings: ScalingSettings) -> ScalingConfig:
    """The node's, with what the machine's annotation says otherwise, and then with what its spec says."""
    config, problems = settings.config, list[Problem]()
    if (text := vm.metadata.annotations.get(ANNOTATION)) is not None:
        read = read_annotation(text, settings.era, ANNOTATION_PATH)
        problems += read.problems
        config = config if read.overrides is None else overridden(config, read.overrides)
    said = _overrides(scaling)
    of_spec = said.lfc_window_size_minutes is not None or said.lfc_min_wait_before_downscale_minutes is not None
    merged = merge(config, said, "spec.scaling" if of_spec else ANNOTATION_PATH)
    problems += merged.problems
    wrong = [f"{problem.path} {problem.message}" for problem in problems if problem.is_error]
    if merged.config is None or wrong:
        raise Denied("ScalingConfigInvalid", f"no goal can be computed as its object says: {'; '.join(wrong)}")
    return merged.config


def _overrides(scaling: MachineScaling) -> Overrides:
    said: dict[str, Any] = {each.name: getattr(scaling, each.name) for each in fields(Overrides)}
    said |= {name: value.nano / NANO for name, value in said.items() if isinstance(value, Quantity)}
    return Overrides(**said)


def _cpu(amount: Quantity) -> int:
    return -(-amount.nano * 1000 // NANO)


def _bytes(amount: Quantity) -> int:
    return -(-amount.nano // NANO)
