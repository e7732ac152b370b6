"""Claims of either dialect: what they want, what they have, or why not; VirtualMachines with the claims that are for
them; ResourceQuotas, as far as they are about devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from devalloc.api import meta, views
from devalloc.api.adopted_pools import is_probe
from devalloc.api.conditions import DEVICE_LOST
from devalloc.api.dedicated_pools import ALLOCATOR_KEY, DEVALLOC, is_for_devalloc
from devalloc.api.quantity import count_text
from devalloc.api.views import ClaimKey, ClaimView, MachineView, ObjectView, as_mapping, as_mappings
from devalloc.controller.reconcile.stored_claims import effective_documents
from devalloc.machines.schedule.machines import (
    virtual_machines_in,
)
from devalloc.store import Object
from devalloc.usage.overview.model import (
    AmountTexts,
    ClaimSummary,
    MachineSummary,
    QuotaSummary,
    safe_text,
    short_annotation,
    shorten,
)
from devalloc_solver.pipeline import quota
from devalloc_solver.problem.ordering import natural_key


def machine_of_claims(documents: Iterable[Object]) -> dict[ClaimKey, str]:
    """The machine of each claim that a machine names; if several do, the first."""
    by_claim: dict[ClaimKey, str] = {}
    for machine in virtual_machines_in(documents):
        namespace, name = MachineView(machine).key
        for claim in MachineView(machine).claim_names:
            by_claim.setdefault((namespace, claim), name)
    return by_claim


def summarize_machine(doc: Object) -> MachineSummary:
    namespace, name = MachineView(doc).key
    status = MachineView(doc).status
    devices = as_mappings(status.get("devices"))
    reason, message = views.machine_reason(doc)
    return MachineSummary(
        namespace=namespace,
        name=name,
        phase=safe_text(views.machine_phase, doc),
        node=safe_text(views.machine_node, doc),
        wanted=_wanted_amounts(doc),
        permitted=_amounts(status.get("permitted")),
        applied=_amounts(status.get("applied")),
        observed=_amounts(status.get("observed")),
        claims=tuple(map(shorten, MachineView(doc).claim_names)),
        devices=tuple(shorten(f"{each.get('pool', '')}/{each.get('device', '')}") for each in devices),
        reason=shorten(reason),
        message=shorten(message),
        created=str(doc["metadata"].get("creationTimestamp", "")),
    )


def _wanted_amounts(machine: Object) -> AmountTexts:
    """What its node says that it wants; before that, what its spec says."""
    reported = _amounts(MachineView(machine).status.get("wanted"))
    spec = MachineView(machine).spec
    cpu, memory = as_mapping(spec.get("cpu")), as_mapping(spec.get("memory"))
    return AmountTexts(
        reported.cpus or shorten(count_text(cpu.get("use", cpu.get("min", "")))),
        reported.memory or shorten(memory.get("use", memory.get("min", ""))),
    )


def _amounts(content: object) -> AmountTexts:
    amounts = as_mapping(content)
    return AmountTexts(shorten(count_text(amounts.get("cpus") or "")), shorten(amounts.get("memory") or ""))


RESOURCE_CLAIM_SUFFIX = ".deviceclass.resource.k8s.io/devices"
"""What Kubernetes' own quota controller counts, of ResourceClaims: `devalloc` only shows it."""


def summarize_quotas(documents: Sequence[Object]) -> tuple[list[QuotaSummary], bool]:
    """Those of DeviceClaims as they are now, those of ResourceClaims as their status says; and whether the status of
    the first says the same."""
    docs = [doc for doc in documents if quota.is_quota(doc)]
    ours = [(doc, bounds) for doc in docs if (bounds := quota.bounds_of(doc))]
    rows = [each for doc in docs for each in _resource_claim_quotas(doc)]
    if ours:
        names = [bound for _, of in ours for bound in of]
        used = quota.count_allocated(effective_documents(documents), names, quota.classes_among(documents))
        rows += [
            QuotaSummary(
                bound[0], bound[1], f"{bound[2]}{quota.SUFFIX}", str(used[bound]), str(most), used[bound] >= most
            )
            for _, of in ours
            for bound, most in of.items()
        ]
    rows.sort(key=lambda each: (each.namespace, each.name, each.resource))
    return rows, not quota.quota_statuses_to_write(effective_documents(documents))


def _resource_claim_quotas(doc: Object) -> Iterable[QuotaSummary]:
    view = ObjectView(doc)
    used = as_mapping(view.status.get("used"))
    for name, most in as_mapping(view.status.get("hard")).items():
        if isinstance(name, str) and name.endswith(RESOURCE_CLAIM_SUFFIX):
            now, hard = shorten(used.get(name, "")), shorten(most)
            is_full = now.isdecimal() and hard.isdecimal() and int(now[:18]) >= int(hard[:18])
            yield QuotaSummary(*view.key, shorten(name), now, hard, is_full)


DRIVER = "devalloc.io"
"""The node plugin's, unless it was given another name."""
_MAX_DRIVERS = 3
_MAX_DEVICES = 8
"""Pods and devices of a claim that are named."""
NO_EVENT_YET = "devalloc's controller gives it devices when a pod waits for it"
WAITS_FOR_SCHEDULER = "kube-scheduler gives it devices when a pod uses it"


def summarize_device_claim(doc: Object, users: Mapping[ClaimKey, str]) -> ClaimSummary:
    namespace, name = ClaimView(doc).key
    return ClaimSummary(
        namespace=namespace,
        name=name,
        state=safe_text(views.claim_state, doc),
        wants=safe_text(views.request_summary, doc),
        node=short_annotation(doc, meta.ALLOCATED_NODE),
        devices=safe_text(lambda claim: views.format_devices(ClaimView(claim).entries, limit=_MAX_DEVICES), doc),
        reason=shorten(ClaimView(doc).reason),
        message=shorten(ClaimView(doc).message),
        machine=users.get((namespace, name), ""),
        created=str(doc["metadata"].get("creationTimestamp", "")),
        is_pending=not ClaimView(doc).entries and not ObjectView(doc).is_deleting,
        lost=tuple(map(shorten, views.lost_devices(doc))),
    )


def claim_order(claim: ClaimSummary) -> tuple[Any, ...]:
    return not claim.is_pending, claim.namespace, natural_key(claim.name), claim.kind


# -- of resource.k8s.io ----------------------------------------------------------------------------------------------


def resource_claims_in(documents: Iterable[Object]) -> list[Object]:
    """Those that wait, and those that have devices of ours: before it has any, it is unknown whose devices a claim
    gets."""
    candidates = (doc for doc in documents if doc["kind"] == "ResourceClaim" and not is_probe(doc))
    return [doc for doc in candidates if not is_allocated(doc) or allocated_results(doc)]


def is_allocated(doc: Object) -> bool:
    return as_mapping(doc.get("status")).get("allocation") is not None


def allocated_results(doc: Object) -> list[Mapping[str, Any]]:
    """The devices of ours that a ResourceClaim has, as its allocation names them."""
    return [each for each in results_of_drivers(doc) if each.get("driver") == DRIVER]


def results_of_drivers(doc: Object) -> list[Mapping[str, Any]]:
    """The devices of every driver that a ResourceClaim has."""
    allocation = as_mapping(as_mapping(doc.get("status")).get("allocation"))
    return list(as_mappings(as_mapping(allocation.get("devices")).get("results")))


def reserved_for(doc: Object) -> tuple[str, ...]:
    """Whom it is reserved for."""
    reserved = as_mappings(as_mapping(doc.get("status")).get("reservedFor"))
    names = [shorten(each.get("name", "")) for each in reserved if each.get("resource") == "pods"]
    return tuple(
        names if len(names) <= _MAX_DEVICES else [*names[: _MAX_DEVICES - 1], f"{len(names) - _MAX_DEVICES + 1} more"]
    )


def needs_namespaces(documents: Iterable[Object]) -> bool:
    """Whether among ResourceClaims one waits without a label of its own."""
    pending = (doc for doc in documents if not is_allocated(doc))
    return any(ALLOCATOR_KEY not in as_mapping(doc["metadata"].get("labels")) for doc in pending)


def needs_events(documents: Iterable[Object]) -> bool:
    """Whether among ResourceClaims one waits for devalloc's controller, which says why not on no object but Events."""
    return any(is_for_devalloc(doc) and not is_allocated(doc) and not is_probe(doc) for doc in documents)


def dedicated_note(aside: int, devices: int, adopted: Sequence[str] = ()) -> str:
    """The text about devices that kube-scheduler does not allocate; "" if there are none. ``adopted``: other drivers.

    Whether a claim could use them depends on its selectors, which are not evaluated for a page.
    """
    label = f"{ALLOCATOR_KEY}={DEVALLOC}"
    notes = []
    if aside:
        number = f"all {devices}" if aside == devices else f"{aside} of {devices}"
        notes.append(f"{number} devices of devalloc are set aside for claims with the label {label}")
    if adopted:
        names = ", ".join(adopted[:_MAX_DRIVERS]) + (
            f" and {len(adopted) - _MAX_DRIVERS} more" if adopted[_MAX_DRIVERS:] else ""
        )
        notes.append(f"adopted: {names}; to get their devices, label the claim {label}")
    return "; ".join(notes)


def summarize_resource_claim(
    doc: Object,
    events: Mapping[str, tuple[str, str]],
    aside: str = "",
    is_lost: Callable[[str, str, str], bool] = lambda *device: False,
    unanswered: str = "",
) -> ClaimSummary:
    """``events``: reason and message of the last Event of each claim, by UID. ``aside``: of ``dedicated_note``.
    ``is_lost``: whether a device, by driver, pool and name, no longer exists. ``unanswered``: why devalloc's controller
    answers no ResourceClaims."""
    metadata = doc["metadata"]
    named = [tuple(str(one.get(part, "")) for part in ("driver", "pool", "device")) for one in allocated_results(doc)]
    lost = tuple(shorten("/".join(one[1:])) for one in dict.fromkeys(named) if is_lost(*one))
    is_pending = not is_allocated(doc) and not ObjectView(doc).is_deleting
    reason, message = _why(doc, events) if is_pending else ("", "")
    if is_pending and aside and not is_for_devalloc(doc):
        message = f"{message}; {aside}"
    if is_pending and unanswered and is_for_devalloc(doc):
        reason, message = "", unanswered
    return ClaimSummary(
        namespace=metadata.get("namespace") or "default",
        name=metadata["name"],
        state=DEVICE_LOST if lost and not ObjectView(doc).is_deleting else _state(doc),
        wants=safe_text(_wanted, doc),
        node=safe_text(_node, doc),
        devices=safe_text(_devices, doc),
        reason=reason,
        message=message,
        machine="",
        created=str(metadata.get("creationTimestamp", "")),
        is_pending=is_pending,
        kind="ResourceClaim",
        pods=reserved_for(doc),
        lost=lost,
    )


def last_reasons(documents: Iterable[Object]) -> dict[str, tuple[str, str]]:
    """Of Events what each ResourceClaim was told last, by its UID."""
    last: dict[str, tuple[str, Object]] = {}
    for doc in documents:
        if doc["kind"] != "Event":
            continue
        uid = str(as_mapping(doc.get("regarding")).get("uid", ""))
        at = str(as_mapping(doc.get("series")).get("lastObservedTime") or doc.get("eventTime") or "")
        if uid not in last or at >= last[uid][0]:
            last[uid] = at, doc
    return {
        uid: (shorten(doc.get("reason", "")), shorten(doc.get("note", "")))
        for uid, (_, doc) in last.items()
        if doc.get("type") == "Warning"
    }


def _why(doc: Object, events: Mapping[str, tuple[str, str]]) -> tuple[str, str]:
    if (event := events.get(str(doc["metadata"].get("uid", "")))) is not None:
        return event
    if reason := ClaimView(doc).reason:  # in a store that is no cluster
        return shorten(reason), shorten(ClaimView(doc).message)
    owner = next(
        (each for each in as_mappings(doc["metadata"].get("ownerReferences")) if each.get("kind") == "Pod"), None
    )
    who = NO_EVENT_YET if is_for_devalloc(doc) else WAITS_FOR_SCHEDULER
    return "", who if owner is None else shorten(f"{who}: kubectl describe pod {owner.get('name', '')}")


def _state(doc: Object) -> str:
    if ObjectView(doc).is_deleting:
        return "Deleting"
    if not is_allocated(doc):
        return "Pending"
    return "Reserved" if as_mappings(as_mapping(doc.get("status")).get("reservedFor")) else "Allocated"


def _wanted(doc: Object) -> str:
    requests = doc["spec"].get("devices", {}).get("requests", [])
    return ", ".join(_request(each) for each in requests)


def _request(request: Mapping[str, Any]) -> str:
    if "firstAvailable" in request:
        return " or ".join(_exact(each) for each in request["firstAvailable"])
    return _exact(request["exactly"])


def _exact(request: Mapping[str, Any]) -> str:
    number = "all" if request.get("allocationMode") == "All" else request.get("count", 1)
    amounts = " ".join(f"{n} {name}" for name, n in (request.get("capacity") or {}).get("requests", {}).items())
    return f"{number} {request['deviceClassName']}" + (f" with {amounts}" if amounts else "")


def _node(doc: Object) -> str:
    """The one node that its allocation names."""
    allocation = as_mapping(as_mapping(doc.get("status")).get("allocation"))
    terms = as_mappings(as_mapping(allocation.get("nodeSelector")).get("nodeSelectorTerms"))
    fields = as_mappings(terms[0].get("matchFields")) if len(terms) == 1 else []
    named = [each["values"] for each in fields if each.get("key") == "metadata.name" and each.get("operator") == "In"]
    return str(named[0][0]) if len(named) == 1 and len(named[0]) == 1 else ""


def _devices(doc: Object) -> str:
    entries: list[Object] = [
        {
            "devicePoolName": each["pool"],
            "deviceName": each["device"],
            "allocations": [{"name": n, "allocation": a} for n, a in (each.get("consumedCapacity") or {}).items()],
        }
        for each in allocated_results(doc)
    ]
    return views.format_devices(entries, limit=_MAX_DEVICES)
