"""Tolerant reading of claims and machines as a store has them: another program, or another version, may have written
them.

``ClaimView`` and ``MachineView`` read plain manifests: what is not there, or has another type than the API's, is empty.
A store guarantees metadata with a name. The one-line summaries, the same in every table and on the page, are less
tolerant: for content that does not match the API, they raise AttributeError, KeyError, TypeError or ValueError.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from devalloc.api import meta
from devalloc.api.conditions import ALLOCATED, DEVICE_LOST, WAITING, find_condition
from devalloc.api.host_pool_names import CPU
from devalloc.api.quantity import count_text

Object = dict[str, Any]
STOPPED_ON_REQUEST, NOT_TO_RUN = "StoppedOnRequest", "it is not to run: spec.running is false"
"""Reason and message of a machine that is not to run."""
Order = tuple[Any, ...]
"""A place in the order in which claims and machines are satisfied."""


def as_mapping(value: object) -> dict[str, Any]:
    """Content as it should be; empty if it is something else."""
    return value if isinstance(value, dict) else {}


def as_mappings(value: object) -> list[dict[str, Any]]:
    """Those entries of a list that are as they should be."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def effective_attributes(pool: Mapping[str, Any], device: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The attributes of a device as pool and device list them, by name: its own, and those of the pool that it does not
    have itself (S3)."""
    of_pool = as_mappings(as_mapping(pool.get("spec")).get("attributes"))
    return {str(entry.get("name")): entry for entry in (*of_pool, *as_mappings(device.get("attributes")))}


@dataclass(slots=True, eq=False)  # not frozen, which would double the time that it takes to make one
class ObjectView:
    """What every object has."""

    content: Object

    @property
    def metadata(self) -> Mapping[str, Any]:
        return as_mapping(self.content.get("metadata"))

    @property
    def spec(self) -> Mapping[str, Any]:
        return as_mapping(self.content.get("spec"))

    @property
    def status(self) -> Mapping[str, Any]:
        return as_mapping(self.content.get("status"))

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name, the namespace never empty."""
        return self.metadata.get("namespace") or "default", self.metadata["name"]

    def annotation(self, name: str) -> str | None:
        """The value of an annotation."""
        value = as_mapping(self.metadata.get("annotations")).get(name)
        return value if isinstance(value, str) else None

    @property
    def is_deleting(self) -> bool:
        """Whether its deletion was requested."""
        return self.metadata.get("deletionTimestamp") is not None

    @property
    def is_held(self) -> bool:
        """Whether a node has something of it, or is about to."""
        return meta.NODE_FINALIZER in (self.metadata.get("finalizers") or ())

    @property
    def is_unsettled(self) -> bool:
        """Whether its latest content may still be taken back: what belongs to it is not written yet."""
        return self.annotation(meta.TRANSACTION) is not None


def order_of(obj: Object) -> Order:
    """S17: priority, creation time (a missing one comes last), namespace and name."""
    view = ObjectView(obj)
    created = view.metadata.get("creationTimestamp")
    return -_priority(view.annotation(meta.PRIORITY)), created is None, str(created or ""), *view.key


def _priority(text: str | None) -> int:
    try:
        return int(text or 0)
    except ValueError:
        return 0


class ClaimView(ObjectView):
    """A DeviceClaim."""

    __slots__ = ()

    @property
    def entries(self) -> list[Any]:
        """The entries of status.allocations, well formed or not; empty for a claim that is not allocated."""
        status = self.content.get("status")  # this is asked of each claim again and again
        entries = status.get("allocations") if isinstance(status, dict) else None
        return entries if isinstance(entries, list) else []

    @property
    def group(self) -> str | None:
        """The claim's group within its namespace; its members are satisfied all or none (S7)."""
        return self.annotation(meta.GROUP) or None

    @property
    def node(self) -> str | None:
        """The node of its devices."""
        return self.annotation(meta.ALLOCATED_NODE)

    @property
    def reason(self) -> str:
        """The code of why it has no devices, or of what is wrong with those it has; empty if nothing is, or without an
        answer."""
        return self._answer("reason", meta.REASON)

    @property
    def message(self) -> str:
        """The same as a sentence."""
        return self._answer("message", meta.MESSAGE)

    def _answer(self, part: str, annotation: str) -> str:
        """Of its condition; without one, as in an embedded store, of the annotation."""
        condition = find_condition(self.status.get("conditions"), ALLOCATED)
        if (reason := condition.get("reason")) and reason != WAITING:
            return "" if reason == ALLOCATED else str(condition.get(part) or "")
        return self.annotation(annotation) or ""

    @property
    def holder(self) -> str | None:
        """The node that put its finalizer on it."""
        return self.annotation(meta.PREPARED_ON)

    def is_on(self, node: str) -> bool:
        """Whether it has devices of a node, or the node has it prepared."""
        return (self.is_held and self.holder == node) or (bool(self.entries) and self.node == node)

    @property
    def has_admin_access(self) -> bool:
        """Whether it got devices by admin access: then it gets them also if they are unavailable."""
        return self.annotation(meta.ADMIN_CLASSES) is not None

    @property
    def wants_release(self) -> bool:
        """Whether its devices must be released, even if they are in use."""
        return self.annotation(meta.RELEASE) is not None


class MachineView(ObjectView):
    """A VirtualMachine."""

    __slots__ = ()

    @property
    def claim_names(self) -> list[str]:
        """The claims that its spec names, also if the rest of it makes no sense."""
        names = self.spec.get("claims")
        return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []

    @property
    def claims(self) -> list[ClaimKey]:
        """Namespace and name of each claim that its spec names."""
        namespace = self.key[0]
        return [(namespace, name) for name in self.claim_names]

    @property
    def node(self) -> str | None:
        """The node that is to run it: the one its spec names, else the one that was chosen for it."""
        is_chosen = self.is_held or not self.is_unsettled
        for part in (self.spec, self.status if is_chosen else {}):
            if isinstance(name := part.get("nodeName"), str) and name:
                return name
        return None

    def must_leave(self, node: str | None) -> bool:
        """Whether it was evicted from this node, and has not left yet. One whose spec names another node, or that was
        adopted, is not evicted; nor is one that the node has if no one noted that its disks are there."""
        if self.holder == node and self.annotation(meta.LAST_NODE) != node:
            return False
        is_here = self.spec.get("nodeName") in (None, "", node) and self.status.get("nodeName") in (None, "", node)
        return is_here and bool(node) and self.annotation(meta.EVICT) == node and self.spec.get("adopt") is None

    def is_on(self, node: str) -> bool:
        """Whether a node has it, or it is to run there."""
        return node == self.holder or (self.holder is None and node == self.node)

    @property
    def restart_request(self) -> str | None:
        """The text that has it started again if it was started with another one; None if there is none."""
        return self.annotation(meta.RESTART)

    @property
    def handed_over_to(self) -> str | None:
        """The node to which its source has handed it over by a migration, and which has not taken it yet; None if there
        is none. Until the target takes it, the source holds it, paused: it must stay as it was handed over."""
        node = self.status.get("nodeName")
        return node if isinstance(node, str) and node and self.holder not in (None, "", node) else None

    def arrives_on(self, node: str) -> bool:
        """Whether it moves to a node that has not taken it yet: none of its CPUs has run there."""
        is_handed_over = self.handed_over_to == node and self.spec.get("nodeName") in (None, "", node)
        return self.migration_target == node or is_handed_over

    @property
    def holder(self) -> str | None:
        """The node that has something of it; None if no node does. If the name was removed, the node that is to run
        it, or ""."""
        return (self.annotation(meta.PREPARED_ON) or self.node or "") if self.is_held else None

    @property
    def running_node(self) -> str:
        """The node that it is on if it runs."""
        return self.holder or str(self.spec.get("nodeName") or self.status.get("nodeName") or "")

    @property
    def has_ended(self) -> bool:
        """Whether it ended and is not to be started again, so that nothing is kept for it."""
        is_over = self.status.get("phase") == "Stopped" and self.spec.get("restartPolicy") == "Never"
        return is_over and self.status.get("reason") not in (None, "", STOPPED_ON_REQUEST, "NotPlaced")

    @property
    def migration_state(self) -> Mapping[str, Any]:
        """What a migration reserves for it on another node; empty if it is in none."""
        return as_mapping(self.status.get("migrationState"))

    @property
    def migration_target(self) -> str | None:
        """The node to which it is moving."""
        name = self.migration_state.get("targetNode")
        return name if isinstance(name, str) and name else None

    @property
    def booked_claims(self) -> list[dict[str, Any]]:
        """Its claims for which a migration has devices on the target: name, uid and allocations."""
        return as_mappings(self.migration_state.get("claims"))

    @property
    def moved_claims(self) -> list[dict[str, Any]]:
        """Its claims that came along when it moved, and that do not have their new devices yet: name, uid and
        allocations."""
        return as_mappings(self.status.get("movedClaims"))

    def condition(self, name: str) -> Mapping[str, Any]:
        """The condition of this type; empty without it."""
        return find_condition(self.status.get("conditions"), name)


def claim_views(objects: Iterable[Object]) -> list[ClaimView]:
    """Return the DeviceClaims among objects."""
    return [ClaimView(obj) for obj in objects if obj["kind"] == "DeviceClaim"]


def machine_views(objects: Iterable[Object]) -> list[MachineView]:
    """Return the VirtualMachines among objects."""
    return [MachineView(obj) for obj in objects if obj["kind"] == "VirtualMachine"]


MIGRATION_ENDS = ("Succeeded", "Failed")
"""Phases of migrations that are over."""


class MigrationView(ObjectView):
    """A VirtualMachineMigration."""

    __slots__ = ()

    @property
    def uid(self) -> str:
        """Its identity; empty if it has none yet."""
        return str(self.metadata.get("uid") or "")

    @property
    def machine(self) -> tuple[str, str] | None:
        """The key of the machine that moves; None if it names none."""
        name = self.spec.get("vmName")
        return (self.key[0], name) if isinstance(name, str) and name else None

    @property
    def phase(self) -> str:
        """Its phase; Pending before anyone has seen it."""
        phase = self.status.get("phase")
        return phase if isinstance(phase, str) and phase else "Pending"

    @property
    def is_over(self) -> bool:
        """Whether it succeeded or failed."""
        return self.phase in MIGRATION_ENDS

    def is_booked_on(self, machine: MachineView) -> bool:
        """Whether the machine's status has what this migration reserves: then it can still move by it."""
        return bool(self.uid) and machine.migration_state.get("migrationUID") == self.uid


def amount_text(resource: str, amount: object) -> str:
    """A resource and how much of it, for people: "memory 3Gi", "cpu 1000"."""
    return f"{resource} {count_text(amount) if resource == CPU else amount}"


def format_devices(entries: Sequence[Object] | Object, *, limit: int | None = 4) -> str:
    """Allocation entries, or those of an AllocationResult, as "pool/device (memory 3Gi)", at most ``limit`` of them.

    Consecutive devices of a pool name the pool once.
    """
    if isinstance(entries, Mapping):
        entries = [_allocation_entry(one) for one in entries.get("devices", {}).get("results", [])]
    shown = entries if limit is None or len(entries) <= limit else entries[: limit - 1]
    texts, last = [], None
    for entry in shown:
        pool = entry["devicePoolName"]
        amounts = ", ".join(amount_text(one["name"], one["allocation"]) for one in entry.get("allocations", []))
        name = entry["deviceName"] if pool == last else f"{pool}/{entry['deviceName']}"
        texts.append(f"{name} ({amounts})" if amounts else name)
        last = pool
    if len(shown) < len(entries):
        texts.append(f"{len(entries) - len(shown)} more")
    return ", ".join(texts)


def _allocation_entry(result: Object) -> Object:
    """A device of an AllocationResult in the form of an allocation entry."""
    amounts = [{"name": name, "allocation": amount} for name, amount in result.get("consumedCapacity", {}).items()]
    pool = f"{result['driver']}/{result['pool']}"
    return {"devicePoolName": pool, "deviceName": result["device"], "allocations": amounts}


def attribute_text(device_or_spec: Object, name: str) -> str:
    """The value of an attribute as text; "" if there is none."""
    for entry in device_or_spec.get("attributes", []):
        if entry["name"] == name:
            return next(str(value) for key, value in entry.items() if key != "name")
    return ""


def lost_devices(claim: Object) -> list[str]:
    """The devices of a DeviceClaim that no longer exist, as pool/device: what the controller notes in its status."""
    held = {_device_title(entry) for entry in as_mappings(ClaimView(claim).entries)}
    lost = []
    for status in as_mappings(ClaimView(claim).status.get("deviceStatuses")):
        conditions = as_mappings(status.get("conditions"))
        if any(c.get("type") == DEVICE_LOST and c.get("status") == "True" for c in conditions):
            lost.append(_device_title(status))
    return [title for title in lost if title in held]


def _device_title(entry: Mapping[str, Any]) -> str:
    return f"{entry.get('devicePoolName')}/{entry.get('deviceName')}"


def claim_state(claim: Object) -> str:
    """Allocated, Prepared (its node has bound the devices), DeviceLost, Pending, Releasing or Deleting."""
    if claim["metadata"].get("deletionTimestamp"):
        return "Deleting"
    is_prepared = meta.NODE_FINALIZER in claim["metadata"].get("finalizers", [])
    holds = bool(claim.get("status", {}).get("allocations"))
    if annotation_text(claim, meta.RELEASE) and (holds or is_prepared):
        return "Releasing"
    if holds and lost_devices(claim):
        return DEVICE_LOST
    if is_prepared:
        return "Prepared"
    return "Allocated" if holds else "Pending"


def annotation_text(obj: Object, name: str) -> str:
    """The value of an annotation; "" if there is none."""
    return str(obj["metadata"].get("annotations", {}).get(name, ""))


def request_summary(claim: Object) -> str:
    """The devices that a claim requests: "4 gpu, 1 vf"."""
    return ", ".join(_detail_summary(entry) for entry in claim.get("spec", {}).get("claims", []))


def _detail_summary(detail: Object) -> str:
    if detail.get("oneOf"):
        return " or ".join(_detail_summary(alternative) for alternative in detail["oneOf"])
    what = detail.get("deviceClass") or detail.get("deviceType") or "any device"
    requests = dict(detail.get("requests", {}))
    count = requests.pop("count", None)
    amounts = " ".join(f"{amount} {name}" for name, amount in requests.items())
    if amounts and count is None:
        return f"{amounts} of {what}"
    return f"{count or 1} {what}" + (f" with {amounts}" if amounts else "")


def machine_node(machine: Object) -> str:
    """The node of its spec, or else the node on which it was placed."""
    return str(machine["spec"].get("nodeName") or machine.get("status", {}).get("nodeName") or "")


def rests_on_request(machine: Object) -> bool:
    """Whether a machine is not to run, and no node has begun it: so no node says of it that it is stopped."""
    view = MachineView(machine)
    is_idle = view.status.get("phase", "Pending") in ("Pending", "Failed")
    is_idle = is_idle and not view.status.get("machineID") and not view.status.get("pid")
    return view.spec.get("running") is False and (is_idle or view.holder is None)


def machine_phase(machine: Object) -> str:
    """Its phase as people should see it: Deleting once its deletion was requested, Pending until a node reports its
    status, Stopped if it waits for nothing because it is not to run."""
    if machine["metadata"].get("deletionTimestamp"):
        return "Deleting"
    phase = str(machine.get("status", {}).get("phase", "Pending"))
    return "Stopped" if phase == "Pending" and rests_on_request(machine) else phase


def machine_reason(machine: Object) -> tuple[str, str]:
    """Why it is as ``machine_phase`` says: code and message, each of which may be empty."""
    status = MachineView(machine).status
    if status.get("phase", "Pending") == "Pending" and machine_phase(machine) == "Stopped":
        return STOPPED_ON_REQUEST, NOT_TO_RUN
    return str(status.get("reason") or ""), str(status.get("message") or "")


def machine_amount(machine: Object, name: str) -> str:
    """The actual and the wanted amount: "2/4"."""
    bounds = machine["spec"]["cpu" if name == "cpus" else name]
    text = count_text if name == "cpus" else str
    requested = text(bounds.get("use", bounds["min"]))
    observed = machine.get("status", {}).get("observed", {}).get(name)
    return requested if observed is None or text(observed) == requested else f"{text(observed)}/{requested}"


def pool_model(pool: Object) -> str:
    """The card's model; its virtual functions, which follow in the list, often have another one."""
    spec = pool.get("spec", {})
    models = [attribute_text(spec, "model"), *(attribute_text(device, "model") for device in spec.get("devices", []))]
    return next((model for model in models if model), "")


def pool_numa_nodes(pool: Object) -> str:
    """The NUMA nodes of its devices: "0,1"."""
    spec = pool.get("spec", {})
    values = [attribute_text(spec, "numa"), *(attribute_text(device, "numa") for device in spec.get("devices", []))]
    return ",".join(dict.fromkeys(value for value in values if value))


ClaimKey = tuple[str, str]
"""Namespace and name, the namespace never empty, as the solver answers."""
MachineKey = tuple[str, str]
"""The same of a VirtualMachine."""


def device_claims_in(documents: Iterable[Object]) -> list[Object]:
    """The DeviceClaims among documents."""
    return [doc for doc in documents if doc.get("kind") == "DeviceClaim" and doc.get("apiVersion") == meta.DEVMGMT]


def admin_class_names(documents: Iterable[Object]) -> frozenset[str]:
    """Names of the classes that have admin access."""
    return frozenset(
        doc["metadata"]["name"]
        for doc in documents
        if doc.get("kind") == "DeviceClass" and isinstance(spec := doc.get("spec"), dict) and spec.get("adminAccess")
    )
