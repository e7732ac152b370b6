"""Whether this host has room for one more machine beside those that it has, by what it may promise of itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from devalloc.api.virtualmachine import VirtualMachine
from devalloc.inventory.capacity import HostCapacity
from devalloc.inventory.capacity.admission import Admission, Insufficient, Request
from devalloc.inventory.capacity.machines import MachineUse, floor_of
from devalloc.inventory.capacity.usage import UsageUnknown
from devalloc_node.errors import Denied, Failed, NodeError
from devalloc_node.machine.amounts import asked_of, wanted
from devalloc_node.machine.records import MACHINES, MachineRecord, Records, record_of
from devalloc_node.machine.spec import CPU, MachineSpec
from devalloc_node.machine.view import UNKNOWN, Amounts

_TAKES = ("starting", "running", "stopping")
"""States in which a machine has what it was given: from before QEMU is started until it is known to have ended."""


class HostRoom:
    """Asked under the lock that starts take turns by, across processes, so that who is admitted is recorded before the
    next one is looked at."""

    def __init__(
        self, host: HostCapacity, records: Records, beside: Callable[[], Iterable[MachineUse]] = tuple
    ) -> None:
        """``beside``: what runs here and is none of the machines that are kept."""
        self._records = records
        self._beside = beside
        self._admission = Admission(host, self._uses)

    def check(self, machine: VirtualMachine, spec: MachineSpec) -> None:
        """Whether there is room for a machine as it is to be started by ``spec``, and for what it reserves.

        Raises Denied (``HostFull``), which may pass; Failed where the records cannot be read."""
        request = Request(*takes(machine, spec))
        try:
            self._admission.validate(request, spec.key)
        except Insufficient as error:
            why = f"machine {spec.key} does not fit on this host now: {error}"
            raise Denied("HostFull", why, retryable=True) from None
        except UsageUnknown as error:
            if isinstance(error.__cause__, NodeError):
                raise error.__cause__ from None
            raise

    def _uses(self) -> Iterator[MachineUse]:
        for key, content in self._records.records(MACHINES).items():
            with suppress(Failed):  # what it is cannot be read, nor what it takes
                record = record_of(key, content)
                if record.state in _TAKES:
                    yield _use(key, record)
        yield from self._beside()


def takes(machine: VirtualMachine, spec: MachineSpec) -> tuple[int, int]:
    """Thousandths of a CPU and bytes that a machine takes that is started by ``spec``."""
    return _most(floor_of(machine), asked_of(spec))


def _use(key: str, record: MachineRecord) -> MachineUse:
    """What a machine was given or asked for since it was started, whichever is more."""
    told = record.applied if record.applied != UNKNOWN else asked_of(record.spec)
    return MachineUse(key, key, "Running", *_most(floor_of(record.machine), told, wanted(record)))


def _most(floor: tuple[int, int], *amounts: Amounts) -> tuple[int, int]:
    """Thousandths of a CPU and bytes: the largest of each."""
    cpus, memory = floor
    for each in amounts:
        # All of its vCPUs' time where nothing bounds that.
        cpus = max(cpus, each.cpu_milli or (each.vcpus or 0) * CPU)
        memory = max(memory, each.memory_bytes or 0)
    return cpus, memory
