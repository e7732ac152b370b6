"""Where machines come from: objects as the ledgers read them, and what is written on them.

Each kind of objects that are machines is a source. devalloc's own VirtualMachines are always one; a server may have
more. Objects may be malformed. What a machine has been given or uses, and cannot be read, counts for all that it could
have, so that a damaged object makes no room for others.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

from devalloc.api import meta
from devalloc.api.conditions import with_condition
from devalloc.api.host_pool_names import CPU, MEMORY
from devalloc.api.machine_reservation import booked_entries, reserved_entries, sum_memory_nano, sum_nano
from devalloc.api.quantity import NANO, Format, Quantity, QuantityError
from devalloc.api.views import MachineView, as_mapping
from devalloc.api.virtual_machine import MEMORY_BLOCK
from devalloc.machines.permits.decide import PermitRecord
from devalloc.machines.permits.ledger import (
    MIGRATING,
    SHOULD_MIGRATE,
    MachineReading,
    SecondReservation,
    VmCondition,
    VmState,
)
from devalloc.machines.permits.runner_usage import RunnerPod
from devalloc.scaling.permits.ledger import MachineKey
from devalloc.scaling.resources import (
    ANNOTATION_BILLING,
    LABEL_ALWAYS_MIGRATE,
    LABEL_MIGRATION,
    LABEL_SCALING,
    NO_RESOURCES,
    OVERCOMMIT,
    USAGE,
    Resources,
)
from devalloc.store import Change, Object, Store
from devalloc.store import Key as ObjectKey

KIND = "VirtualMachine"
_MAX_TEXT = 1024
"""Characters of an annotation that is read."""

_MAX_AMOUNT = 2**62
"""No amount is larger."""
_UNREADABLE = Resources(2**63, 2**63)
"""Another amount than any that is written."""
MAX_BATCH = 512
"""Requests that are decided and written together."""


class MachineSource(Protocol):
    """The objects of one kind that are machines."""

    @property
    def kind(self) -> str:
        """In the store."""

    @property
    def prefix(self) -> str:
        """What the names of its machines begin with here, up to a slash, so that they never coincide with others."""

    @property
    def name(self) -> str:
        """What its machines are called, for messages."""

    @property
    def batch(self) -> int:
        """How many of its machines are written together."""

    @property
    def patience(self) -> float | None:
        """How many seconds a write is waited for; None: until it is done. After that its machines get no permits, and
        count for what the write may have permitted, until ``settle`` says that it cannot be done any more."""

    @property
    def is_settled(self) -> bool:
        """Whether no write of a server before this one may be done late."""

    @property
    def pods(self) -> tuple[Store, str] | None:
        """What has the pods that run its machines, and their kind; None: there are none, or the machines count by their
        objects alone."""

    def read(self, obj: Object) -> MachineReading:
        """Return what an object says."""

    def read_pod(self, pod: Object) -> RunnerPod | None:
        """Return what counts of a pod; None for one that runs no machine of this source."""

    def change(self, obj: Object, record: PermitRecord) -> Change:
        """Return what to write on an object."""

    def settle(self, keys: Sequence[ObjectKey] | None, stop: threading.Event) -> None:
        """Have late writes on these objects refused, unless ``stop`` is set; None: on all. Raises StoreError."""


class MachineSources:
    """All sources of a server: devalloc's own machines, and more."""

    def __init__(self, *more: MachineSource) -> None:
        self.all: tuple[MachineSource, ...] = (VirtualMachines(), *more)
        self._by_kind = {source.kind: source for source in self.all}
        self._by_prefix = {source.prefix: source for source in self.all}

    @property
    def kinds(self) -> frozenset[str]:
        """Of objects that are machines."""
        return frozenset(self._by_kind)

    def of(self, key: MachineKey) -> MachineSource:
        """Return the source of a machine."""
        return self._by_prefix[key[1][: key[1].rfind("/") + 1]]

    def key(self, obj: Object) -> MachineKey:
        """Return the key of a machine by its object."""
        return self.key_of(ObjectKey.of(obj))

    def key_of(self, key: ObjectKey) -> MachineKey:
        """Return the same by the key of its object."""
        return key.namespace or "default", self._by_kind[key.kind].prefix + key.name

    def object_key(self, key: MachineKey) -> ObjectKey:
        """Return the key of a machine's object."""
        source = self.of(key)
        return ObjectKey(source.kind, key[0], key[1].removeprefix(source.prefix))

    def read(self, obj: Object) -> MachineReading:
        """Return what an object says."""
        return self._by_kind[ObjectKey.of(obj).kind].read(obj)

    @property
    def pods(self) -> tuple[Store, str] | None:
        """What has the pods that run machines, and their kind."""
        return next((source.pods for source in self.all if source.pods is not None), None)

    def read_pod(self, pod: Object) -> RunnerPod | None:
        """Return what counts of a pod; None for one that runs no machine."""
        return next(filter(None, (source.read_pod(pod) for source in self.all)), None)


class VirtualMachines:
    """``MachineSource`` of devalloc's own machines."""

    kind = KIND
    prefix = ""
    name = "VirtualMachines"
    batch = MAX_BATCH
    patience = None
    is_settled = True
    pods = None

    def read(self, obj: Object) -> MachineReading:
        return MachineReading(read_vm(obj), second_reservation(obj))

    def read_pod(self, pod: Object) -> None:
        """No pods run them."""

    def change(self, obj: Object, record: PermitRecord) -> Change:
        """Return what to write on an object: its permit is in its status."""
        status = dict(MachineView(obj).status)
        permit, previous = record.permit, record.previous
        if permit is None:
            if as_mapping(status.get("permitted")).get("givenBy"):
                del status["permitted"]
        elif (permit, previous) != (_permit(status, _UNREADABLE), _previous_amounts(status, _UNREADABLE)):
            of_run = {"machineID": machine_id} if (machine_id := _text(status.get("machineID"))) else {}
            status["permitted"] = permit_content(permit, previous, record.given_by, **of_run)
        for name, (is_true, reason, message) in record.conditions.items():
            content = "True" if is_true else "False", reason, message
            generation = obj["metadata"].get("generation")
            status["conditions"] = with_condition(status.get("conditions"), name, content, record.now, generation)
        return Change.of(obj, status)

    def settle(self, keys: Sequence[ObjectKey] | None, stop: threading.Event) -> None:
        """Do nothing: the store settles by itself what it is in doubt of."""


def permit_content(permit: Resources, previous: Resources, given_by: str, **of_run: str) -> dict[str, Any]:
    """Return a permit as it is written down. ``of_run``: says for which run of the machine it holds."""
    content: dict[str, Any] = {"cpus": cpus_text(permit.cpu), "memory": bytes_text(permit.memory), "givenBy": given_by}
    content |= of_run
    if previous != NO_RESOURCES:
        content["kept"] = {"cpus": cpus_text(previous.cpu), "memory": bytes_text(previous.memory)}
    return content


def read_vm(obj: Object) -> VmState | None:
    """Return what counts of an object; None for one that is on no node, or is not to run and does not."""
    view = MachineView(obj)
    spec, status, labels = view.spec, view.status, as_mapping(view.metadata.get("labels"))
    placed = _text(status.get("nodeName")) if status.get("allocations") else ""  # admitted there, and not begun yet
    # What it has is its node's as of the write by which a migration hands it over, and its holder changes after that.
    node = placed or view.annotation(meta.PREPARED_ON) or _text(spec.get("nodeName"))
    phase = status.get("phase", "Pending")
    # One that is started and waits with stopped CPUs is Pending, and has what it has.
    has = phase not in ("Stopped", "Failed") and (phase != "Pending" or bool(as_mapping(status.get("observed"))))
    if not node or (spec.get("running") is False and not has):
        return None
    cpu, memory = as_mapping(spec.get("cpu")), as_mapping(spec.get("memory"))
    has_huge_pages = bool(memory.get("hugePages"))
    if has_huge_pages:  # they are none of the memory that permits are about
        memory = {}
    least = Resources(_cpus(cpu.get("min")), _bytes(memory.get("min")))
    most = least.most(Resources(_cpus(cpu.get("max")), _bytes(memory.get("max"))))
    runs = phase not in ("Pending", "Stopped", "Failed")
    scaled = labels.get(LABEL_SCALING) == "true" or spec.get("scaling") is not None
    use = NO_RESOURCES
    if has:
        # What QEMU was told and has not done yet may still come.
        for amounts in (as_mapping(status.get("observed")), as_mapping(status.get("applied"))):
            use = use.most(Resources(_cpus(amounts.get("cpus"), most.cpu), _bytes(amounts.get("memory"), most.memory)))
        use = use.most(read_usage(view.annotation(USAGE), most))
        use = Resources(use.cpu, 0) if has_huge_pages else use
    begins = Resources(_cpus(cpu.get("use")), _bytes(memory.get("use")))
    ceiling = spec.get("reserveMax") is True
    if (
        placed and (reservation := _reserved_for(obj)) is not None
    ):  # what its spec asks for beyond that is not its own yet
        least, begins, ceiling = (
            least.least(reservation),
            begins.least(reservation),
            ceiling and reservation == reservation.most(most),
        )
    if not scaled or not runs:  # what it has, or will be started with: placing keeps as much for it
        use = use.most(begins)
    pod = _text(status.get("runnerPod"))
    conditions = status.get("conditions")
    by_type = (
        {_text(c.get("type")): c for c in conditions if isinstance(c, dict)} if isinstance(conditions, list) else {}
    )
    return VmState(
        key=view.key,
        node=node,
        least=least,
        most=most,
        use=use,
        permit=_permit(status, most),
        previous=_previous_amounts(status, most),
        slot=_bytes(memory.get("slotSize")) or MEMORY_BLOCK,
        runs=runs,
        scaled=scaled,
        movable=labels.get(LABEL_MIGRATION) == "true",
        must_move=labels.get(LABEL_ALWAYS_MIGRATE) == "true",
        reserve_max=ceiling,
        # Half a surrogate pair can be spelled and nothing can show it.
        billed_to=(view.annotation(ANNOTATION_BILLING) or "")[:_MAX_TEXT].encode("utf-8", "replace").decode(),
        overcommit=read_overcommit(view.annotation(OVERCOMMIT)),
        runner_pod=_pod(pod, view.key[0]) if pod else None,
        created=_text(view.metadata.get("creationTimestamp")),
        migrating=_condition(by_type.get(MIGRATING)),
        should_migrate=_condition(by_type.get(SHOULD_MIGRATE)),
        machine_id=_text(status.get("machineID")),
        wire_slot=_bytes(memory.get("slotSize")) or None,
        is_moving=view.migration_target is not None,
    )


def second_reservation(obj: Object) -> SecondReservation | None:
    """What the other node keeps on which a machine that moves counts: its target, or once it is handed over, its
    source, which has it paused until the target takes it. None for one that does not move."""
    view = MachineView(obj)
    if (node := view.migration_target) is not None:
        entries, is_leaving = booked_entries(obj), False
    elif view.handed_over_to is not None and view.holder:
        node, entries, is_leaving = view.holder, reserved_entries(obj), True
    else:
        return None
    cpu, memory = -(-sum_nano(entries, CPU) // (NANO // 1000)), -(-sum_nano(entries, MEMORY) // NANO)
    return SecondReservation(node, Resources(cpu, memory), is_leaving)


def cpus_text(milli: int) -> str:
    """Thousandths of a CPU as manifests have them."""
    return str(Quantity(milli * (NANO // 1000)))


def bytes_text(count: int) -> str:
    """Bytes as manifests have them."""
    return str(Quantity(count * NANO, Format.BINARY_SI))


def _permit(status: Mapping[str, Any], most: Resources) -> Resources | None:
    permit = as_mapping(status.get("permitted"))
    if not permit.get("givenBy") or permit.get("machineID", "") not in ("", status.get("machineID", "")):
        return None
    return read_amounts(permit, most)


def _reserved_for(obj: Object) -> Resources | None:
    """What its node keeps for a machine; None if that cannot be read in full."""
    entries = reserved_entries(obj)
    cpu, memory = sum_nano(entries, CPU) // (NANO // 1000), sum_nano(entries, MEMORY) // NANO
    is_whole = cpu and sum_memory_nano(entries) and len(entries) == len(obj["status"]["allocations"])
    return Resources(cpu, memory) if is_whole else None


def _previous_amounts(status: Mapping[str, Any], most: Resources) -> Resources:
    if _permit(status, most) is None:
        return NO_RESOURCES
    previous = as_mapping(as_mapping(status.get("permitted")).get("kept"))
    return read_amounts(previous, most)


def _condition(entry: object) -> VmCondition | None:
    if not isinstance(entry, dict):
        return None
    return VmCondition(
        entry.get("status") == "True", _text(entry.get("reason")), _text(entry.get("lastTransitionTime"))
    )


def read_amounts(content: Mapping[str, Any], most: Resources) -> Resources:
    """``cpus`` and ``memory``: nothing if one is missing, and ``most`` of it if it cannot be read."""
    return Resources(_cpus(content.get("cpus"), most.cpu), _bytes(content.get("memory"), most.memory))


def read_overcommit(text: object) -> Resources | None:
    """The annotation of an overcommit, in thousandths: 1 for what it leaves out. None without one that is readable."""
    content = annotated_json(text)
    if content is None:
        return None
    factors = [
        1000 if content.get(name) is None else _amount(content[name], NANO // 1000, 0) for name in ("cpu", "memory")
    ]
    return Resources(*factors) if min(factors) >= 1 else None


def read_usage(text: object, most: Resources) -> Resources:
    """The annotation of a usage; ``most`` if it cannot be read."""
    content = annotated_json(text)
    if content is None:
        return NO_RESOURCES if text is None else most
    return Resources(_cpus(content.get("cpu"), most.cpu), _bytes(content.get("memory"), most.memory))


def annotated_json(text: object) -> dict[str, Any] | None:
    """The JSON object of an annotation; None without one that can be read."""
    if not isinstance(text, str) or len(text) > _MAX_TEXT:
        return None
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _pod(text: str, namespace: str) -> MachineKey:
    first, slash, rest = text.partition("/")
    return (first, rest) if slash else (namespace, text)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _cpus(value: object, unread: int = 0) -> int:
    return _amount(value, NANO // 1000, unread)


def _bytes(value: object, unread: int = 0) -> int:
    return _amount(value, NANO, unread)


def _amount(value: object, unit: int, unread: int) -> int:
    """Rounded up to whole units; 0 for none, and ``unread`` if it is not an amount."""
    if value is None:
        return 0
    nano = _nano(value) if isinstance(value, str) else _parsed(value)
    return unread if nano is None else min(_MAX_AMOUNT, -(-nano // unit))


def _parsed(value: object) -> int | None:
    try:
        nano = Quantity.parse(value).nano
    except QuantityError:
        return None
    return None if nano < 0 else nano


_nano = lru_cache(maxsize=8192)(_parsed)
"""The same amounts come again and again: each write of an object is read back."""
