"""VirtualMachine objects as the ledgers read them, and what the server writes on them.

Objects may be malformed. What a machine has been given or uses, and cannot be read,
counts for all that it could have, so that a damaged object makes no room for others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from devalloc.api import meta
from devalloc.api.conditions import with_condition
from devalloc.api.host_pool_names import CPU, MEMORY
from devalloc.api.machine_reservation import booked_entries, reserved_entries, sum_memory_nano, sum_nano
from devalloc.api.quantity import NANO, Format, Quantity, QuantityError
from devalloc.api.views import MachineView, as_mapping
from devalloc.api.virtual_machine import MEMORY_BLOCK
from devalloc.scaling.permits.ledger import NO_RESOURCES, MachineKey
from devalloc.scaling.resources import Resources
from devalloc.scaling.vm_info import LABEL_ALWAYS_MIGRATE, LABEL_MIGRATION, LABEL_SCALING
from devalloc.store import Change, Object
from devalloc.store import Key as ObjectKey

KIND = "VirtualMachine"
OVERCOMMIT = "vm.neon.tech/overcommit"
"""An annotation: JSON with ``cpu`` and ``memory``, times 1 if one is missing."""
USAGE = "vm.neon.tech/usage"
"""An annotation: JSON with ``cpu`` and ``memory``, what the machine has, as those tell who run it by other means."""
_MAX_TEXT = 1024
"""Characters of an annotation that is read."""

MIGRATING = "Migrating"
SHOULD_MIGRATE = "ShouldMigrate"
ANNOTATION_BILLING = "autoscaling.neon.tech/billing-endpoint-id"
_MAX_AMOUNT = 2**62
"""No amount is larger."""
_UNREADABLE = Resources(2**63, 2**63)
"""Another amount than any that is written."""


@dataclass(frozen=True, slots=True)
class VmCondition:
    """What a condition of a machine says."""

    is_true: bool
    reason: str
    since: str
    """RFC 3339; empty if that is not known."""


@dataclass(frozen=True, slots=True)
class VmState:
    """One VirtualMachine."""

    key: MachineKey
    node: str
    least: Resources
    most: Resources
    use: Resources
    """The largest of what was read back, what it was told to take, and ``vm.neon.tech/usage``. What its spec says if it
    is not scaled."""
    permit: Resources | None
    """What is written down that it may have in this run."""
    previous: Resources
    """What it was told before and may go by still, if that is more: it is unconfirmed that it knows its permit."""
    slot: int
    """Bytes in which its memory changes."""
    runs: bool
    scaled: bool
    movable: bool
    """Its owner allows that it is migrated."""
    must_move: bool
    reserve_max: bool
    billed_to: str
    overcommit: Resources | None
    runner_pod: MachineKey | None
    created: str
    migrating: VmCondition | None
    should_migrate: VmCondition | None
    machine_id: str
    is_own: bool = True
    """It is devalloc's, not NeonVM's: its conditions are written here."""
    wire_slot: int | None = None
    """Bytes of one of its memory slots, as its object says; None: it says none, so the server's own counts."""
    is_moving: bool = False
    """A migration moves it to another node; until that is over it gets nothing else."""
    withdrawn: Resources | None = None
    """What it may have in this run if that was written down, and was taken off."""


def read_vm(obj: Object) -> VmState | None:
    """What counts of an object; None for one that is on no node, or is not to run and does not."""
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


@dataclass(frozen=True, slots=True)
class SecondReservation:
    """What a second node keeps for a machine that moves."""

    node: str
    amounts: Resources
    is_leaving: bool
    """Whether that node is its source, which gets it back when the target takes the machine."""


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


def has_devices(obj: Object) -> bool:
    """Whether devices are bound to the machine, or are to be."""
    return bool(MachineView(obj).spec.get("claims")) or bool(MachineView(obj).status.get("devices"))


def permit_change(
    obj: Object,
    *,
    permit: Resources | None,
    previous: Resources = NO_RESOURCES,
    given_by: str,
    conditions: Mapping[str, tuple[bool, str, str]],
    now: str,
) -> Change:
    """What to write on an object. ``permit``: None takes the record of one away.

    ``conditions``: by type whether it is true, its reason and its message. ``now``: RFC 3339.
    """
    status = dict(MachineView(obj).status)
    if permit is None:
        if as_mapping(status.get("permitted")).get("givenBy"):
            del status["permitted"]
    elif (permit, previous) != (_permit(status, _UNREADABLE), _previous_amounts(status, _UNREADABLE)):
        status["permitted"] = {
            "cpus": cpus_text(permit.cpu),
            "memory": bytes_text(permit.memory),
            "givenBy": given_by,
            **({"machineID": status["machineID"]} if _text(status.get("machineID")) else {}),
            **(
                {}
                if previous == NO_RESOURCES
                else {"kept": {"cpus": cpus_text(previous.cpu), "memory": bytes_text(previous.memory)}}
            ),
        }
    for name, (is_true, reason, message) in conditions.items():
        content = "True" if is_true else "False", reason, message
        generation = obj["metadata"].get("generation")
        status["conditions"] = with_condition(status.get("conditions"), name, content, now, generation)
    return Change(ObjectKey.of(obj), obj["metadata"]["resourceVersion"], status)


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
