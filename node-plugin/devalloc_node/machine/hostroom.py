"""Whether this host has room for one more machine beside those that it has, by what it may promise of itself."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from devalloc.api.virtualmachine import VirtualMachine
from devalloc.inventory.capacity import HostCapacity
from devalloc.inventory.capacity.admission import Admission, Insufficient, Request
from devalloc.inventory.capacity.machines import MachineUse, floor_of
from devalloc.inventory.capacity.usage import UsageUnknown
from devalloc_node.errors import Denied, Failed, NodeError
from devalloc_node.machine.amounts import asked_of, at_start, wanted
from devalloc_node.machine.records import MACHINES, MachineRecord, Records, record_of
from devalloc_node.machine.spec import CPU, MachineSpec
from devalloc_node.machine.view import UNKNOWN, Amounts

_TAKES = ("starting", "running", "stopping")
"""States in which a machine has what it was given: from before QEMU is started until it is known to have ended."""


class HostRoom:
    """Asked under the lock that starts take turns by, across processes, so that who is admitted is recorded before the
    next one is looked at."""

    def __init__(
        self,
        host: HostCapacity,
        records: Records,
        beside: Callable[[], Iterable[MachineUse]] = tuple,
        permitted: Callable[[], Mapping[str, Amounts]] = dict,
    ) -> None:
        """``beside``: what runs here and is none of the machines that are kept. ``permitted``: by key what machines may
        have by now, whether or not they were told already; raises Failed."""
        self._records = records
        self._beside = beside
        self._permitted = permitted
        self._admission = Admission(host, self._uses)

    def check(self, machine: VirtualMachine, spec: MachineSpec) -> None:
        """Whether there is room for a machine as it is to be started by ``spec``, and for what it reserves.

        Raises Denied (``HostFull``), which may pass; Failed where the records cannot be read."""
        request = Request(*takes(machine, spec))
        self._check(spec.key, request, f"machine {spec.key} does not fit on this host now")

    def check_more(self, before: MachineRecord, after: MachineRecord) -> None:
        """Whether there is room for what is asked of a machine that runs. What it is permitted has its room already.

        Raises as ``check``."""
        key = after.spec.key
        had, asked = _use(key, before), _use(key, after)
        if asked.cpu <= had.cpu and asked.memory <= had.memory:
            return
        had = _use(key, before, self._permitted().get(key, UNKNOWN))
        more = Request(asked.cpu if asked.cpu > had.cpu else 0, asked.memory if asked.memory > had.memory else 0)
        self._check(key, more, f"machine {key} cannot have more on this host now")

    def _check(self, key: str, request: Request, what: str) -> None:
        try:
            self._admission.validate(request, key)
        except Insufficient as error:
            raise Denied("HostFull", f"{what}: {error}", retryable=True) from None
        except UsageUnknown as error:
            if isinstance(error.__cause__, NodeError):
                raise error.__cause__ from None
            raise

    def _uses(self) -> Iterator[MachineUse]:
        permitted = self._permitted()
        for key, content in self._records.records(MACHINES).items():
            with suppress(Failed):  # what it is cannot be read, nor what it takes
                record = record_of(key, content)
                if record.state in _TAKES:
                    yield _use(key, record, permitted.get(key, UNKNOWN))
        yield from self._beside()


def takes(machine: VirtualMachine, spec: MachineSpec) -> tuple[int, int]:
    """Thousandths of a CPU and bytes that a machine takes that is started by ``spec``."""
    return _most(floor_of(machine), asked_of(spec))


def _use(key: str, record: MachineRecord, permitted: Amounts = UNKNOWN) -> MachineUse:
    """What a machine was given or asked for since it was started, or is permitted, whichever is more."""
    told, asked = record.applied if record.applied != UNKNOWN else at_start(record), wanted(record)
    has = (told.vcpus or 0) * CPU
    if (asked.vcpus or 0) * CPU > has and (told.cpu_milli or has) >= has:
        # Nothing but their number bounds the time of its CPUs, so that more of them have more.
        asked = replace(asked, cpu_milli=max(asked.cpu_milli or 0, (asked.vcpus or 0) * CPU))
    return MachineUse(key, key, "Running", *_most(floor_of(record.machine), told.usable, asked.usable, permitted))


def without_object(records: Records, gone: Container[str]) -> Iterator[MachineUse]:
    """What those machines take that no VirtualMachine speaks for. ``gone``: UIDs of those that are not there."""
    for key, content in records.records(MACHINES).items():
        with suppress(Failed):
            record = record_of(key, content)
            uid = record.machine.metadata.uid
            if record.state in _TAKES and (not uid or uid in gone):
                yield _use(key, record)


def _most(floor: tuple[int, int], *amounts: Amounts) -> tuple[int, int]:
    """Thousandths of a CPU and bytes: the largest of each."""
    cpus, memory = floor
    for each in amounts:
        # All of its vCPUs' time where nothing bounds that.
        cpus = max(cpus, each.cpu_milli or (each.vcpus or 0) * CPU)
        memory = max(memory, each.memory_bytes or 0)
    return cpus, memory
