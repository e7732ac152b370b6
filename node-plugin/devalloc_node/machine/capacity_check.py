"""Whether this host has capacity for one more machine."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from devalloc.api.virtual_machine import VirtualMachine
from devalloc.inventory.capacity import HostCapacity
from devalloc.inventory.capacity.admission import Admission, Insufficient, Request
from devalloc.inventory.capacity.machines import MachineUsage, minimum_usage
from devalloc.inventory.capacity.status import UsageUnknown
from devalloc_node.errors import Denied, Failed, NodeError
from devalloc_node.machine.records import (
    MACHINES,
    UNKNOWN_AMOUNTS,
    MachineAmounts,
    MachineRecord,
    MachineRecords,
    record_of,
)
from devalloc_node.machine.resources import requested_in_spec, resources_at_start, wanted_while_running
from devalloc_node.machine.spec import CPU, MachineSpec

_COUNTED_STATES = ("starting", "running", "stopping")
"""States in which a machine has what it was given: from before QEMU is started until it is known to have ended."""


class CapacityCheck:
    """Asked under the lock that starts take turns by, across processes, so that who is admitted is recorded before the
    next one is looked at."""

    def __init__(
        self,
        host: HostCapacity,
        records: MachineRecords,
        others: Callable[[], Iterable[MachineUsage]] = tuple,
        permitted: Callable[[], Mapping[str, MachineAmounts]] = dict,
    ) -> None:
        """``others``: what runs here and is none of the machines that are kept. ``permitted``: by key what machines may
        have by now, whether or not they were told already; raises Failed."""
        self._records = records
        self._others = others
        self._permitted = permitted
        self._admission = Admission(host, self._uses)

    def check(self, machine: VirtualMachine, spec: MachineSpec) -> None:
        """Whether there is room for a machine as it is to be started by ``spec``, and for what it reserves.

        Raises Denied (``HostFull``), which may pass; Failed where the records cannot be read."""
        request = Request(*resources_taken(machine, spec))
        self._check(spec.key, request, f"machine {spec.key} does not fit on this host now")

    def check_more(self, before: MachineRecord, after: MachineRecord) -> None:
        """Whether there is room for what is asked of a machine that runs. What it is permitted has its room already.

        Raises as ``check``."""
        key = after.spec.key
        had, requested = _use(key, before), _use(key, after)
        if requested.cpu <= had.cpu and requested.memory <= had.memory:
            return
        had = _use(key, before, self._permitted().get(key, UNKNOWN_AMOUNTS))
        more = Request(
            requested.cpu if requested.cpu > had.cpu else 0, requested.memory if requested.memory > had.memory else 0
        )
        self._check(key, more, f"machine {key} cannot grow on this host now")

    def _check(self, key: str, request: Request, what: str) -> None:
        try:
            self._admission.validate(request, key)
        except Insufficient as error:
            raise Denied("HostFull", f"{what}: {error}", retryable=True) from None
        except UsageUnknown as error:
            if isinstance(error.__cause__, NodeError):
                raise error.__cause__ from None
            raise

    def _uses(self) -> Iterator[MachineUsage]:
        permitted = self._permitted()
        for key, content in self._records.records(MACHINES).items():
            with suppress(Failed):  # what it is cannot be read, nor what it takes
                record = record_of(key, content)
                if record.state in _COUNTED_STATES:
                    yield _use(key, record, permitted.get(key, UNKNOWN_AMOUNTS))
        yield from self._others()


def resources_taken(machine: VirtualMachine, spec: MachineSpec) -> tuple[int, int]:
    """Thousandths of a CPU and bytes that a machine takes that is started by ``spec``."""
    return _elementwise_max(minimum_usage(machine), requested_in_spec(spec))


def _use(key: str, record: MachineRecord, permitted: MachineAmounts = UNKNOWN_AMOUNTS) -> MachineUsage:
    """What a machine was given or asked for since it was started, or is permitted, whichever is more."""
    applied, requested = (
        record.applied if record.applied != UNKNOWN_AMOUNTS else resources_at_start(record),
        wanted_while_running(record),
    )
    has = (applied.vcpus or 0) * CPU
    if (requested.vcpus or 0) * CPU > has and (applied.cpu_milli or has) >= has:
        # Nothing but their number bounds the time of its CPUs, so that more of them have more.
        requested = replace(requested, cpu_milli=max(requested.cpu_milli or 0, (requested.vcpus or 0) * CPU))
    return MachineUsage(
        key,
        key,
        "Running",
        *_elementwise_max(minimum_usage(record.machine), applied.usable, requested.usable, permitted),
    )


def without_object(records: MachineRecords, gone: Container[str]) -> Iterator[MachineUsage]:
    """What those machines take that no VirtualMachine speaks for. ``gone``: UIDs of those that are not there."""
    for key, content in records.records(MACHINES).items():
        with suppress(Failed):
            record = record_of(key, content)
            uid = record.machine.metadata.uid
            if record.state in _COUNTED_STATES and (not uid or uid in gone):
                yield _use(key, record)


def _elementwise_max(floor: tuple[int, int], *amounts: MachineAmounts) -> tuple[int, int]:
    """Thousandths of a CPU and bytes: the largest of each."""
    cpus, memory = floor
    for each in amounts:
        # All of its vCPUs' time where nothing bounds that.
        cpus = max(cpus, each.cpu_milli or (each.vcpus or 0) * CPU)
        memory = max(memory, each.memory_bytes or 0)
    return cpus, memory
