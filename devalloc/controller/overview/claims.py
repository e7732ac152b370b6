"""Claims of either dialect: what they want, what they have, or why not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from devalloc.api import inwords, meta
from devalloc.api.aside import ALLOCATOR, DEVALLOC
from devalloc.controller.claims import ClaimKey, allocations, claim_key, is_deleting
from devalloc.controller.overview.facts import Claim
from devalloc.controller.overview.words import annotation, mapping, mappings, said, short
from devalloc.store import Object
from devalloc_solver.naming import natural

DRIVER = "devalloc.io"
"""Of the node plugin, where nobody gave it another name."""
_MOST = 8
"""Pods and devices of a claim that are named."""
UNTOLD = "devalloc's controller gives it devices when a pod waits for it"
SCHEDULER = "kube-scheduler gives it devices when a pod uses it"


def device_claim(doc: Object, users: Mapping[ClaimKey, str]) -> Claim:
    namespace, name = claim_key(doc)
    return Claim(
        namespace=namespace,
        name=name,
        state=said(inwords.claim_state, doc),
        wants=said(inwords.wanted, doc),
        node=annotation(doc, meta.ALLOCATED_NODE),
        devices=said(lambda claim: inwords.devices_text(allocations(claim), limit=_MOST), doc),
        reason=annotation(doc, meta.REASON),
        message=annotation(doc, meta.MESSAGE),
        machine=users.get((namespace, name), ""),
        created=str(doc["metadata"].get("creationTimestamp", "")),
        is_pending=not allocations(doc) and not is_deleting(doc),
    )


def order(claim: Claim) -> tuple[Any, ...]:
    return not claim.is_pending, claim.namespace, natural(claim.name), claim.kind


# -- of resource.k8s.io ----------------------------------------------------------------------------------------------


def resource_claims_among(documents: Iterable[Object]) -> list[Object]:
    """Those that wait, and those that have devices of ours: before it has any nobody can tell whose a claim gets."""
    found = (doc for doc in documents if doc["kind"] == "ResourceClaim")
    return [doc for doc in found if not is_allocated(doc) or results(doc)]


def is_allocated(doc: Object) -> bool:
    return mapping(doc.get("status")).get("allocation") is not None


def results(doc: Object) -> list[Mapping[str, Any]]:
    """The devices of ours that a ResourceClaim has, as its allocation names them."""
    allocation = mapping(mapping(doc.get("status")).get("allocation"))
    found = mappings(mapping(allocation.get("devices")).get("results"))
    return [each for each in found if each.get("driver") == DRIVER]


def pods_of(doc: Object) -> tuple[str, ...]:
    """Whom it is reserved for."""
    reserved = mappings(mapping(doc.get("status")).get("reservedFor"))
    names = [short(each.get("name", "")) for each in reserved if each.get("resource") == "pods"]
    return tuple(names if len(names) <= _MOST else [*names[: _MOST - 1], f"{len(names) - _MOST + 1} more"])


def is_labelled(doc: Object) -> bool:
    """Whether devalloc's controller is to give it devices."""
    return mapping(doc["metadata"].get("labels")).get(ALLOCATOR) == DEVALLOC


def has_untold(documents: Iterable[Object]) -> bool:
    """Whether among ResourceClaims one waits for devalloc's controller, which says why not on no object but Events."""
    return any(is_labelled(doc) and not is_allocated(doc) for doc in documents)


def set_aside(aside: int, devices: int) -> str:
    """What to say of devices that kube-scheduler gives nobody; "" where there are none. Whether a claim could use them
    its selectors tell, which are not evaluated for a page."""
    if not aside:
        return ""
    label = f"{ALLOCATOR}={DEVALLOC}"
    number = f"all {devices}" if aside == devices else f"{aside} of {devices}"
    return f"{number} devices of devalloc are set aside for claims with the label {label}"


def resource_claim(doc: Object, told: Mapping[str, tuple[str, str]], aside: str = "") -> Claim:
    """``told``: reason and message of the last Event of each claim, by UID. ``aside``: of ``set_aside``."""
    metadata = doc["metadata"]
    is_pending = not is_allocated(doc) and not is_deleting(doc)
    reason, message = _why(doc, told) if is_pending else ("", "")
    if is_pending and aside and not is_labelled(doc):
        message = f"{message}; {aside}"
    return Claim(
        namespace=metadata.get("namespace") or "default",
        name=metadata["name"],
        state=_state(doc),
        wants=said(_wanted, doc),
        node=said(_node, doc),
        devices=said(_devices, doc),
        reason=reason,
        message=message,
        machine="",
        created=str(metadata.get("creationTimestamp", "")),
        is_pending=is_pending,
        kind="ResourceClaim",
        pods=pods_of(doc),
    )


def reasons(documents: Iterable[Object]) -> dict[str, tuple[str, str]]:
    """Of Events what each ResourceClaim was told last, by its UID."""
    last: dict[str, tuple[str, Object]] = {}
    for doc in documents:
        if doc["kind"] != "Event":
            continue
        uid = str(mapping(doc.get("regarding")).get("uid", ""))
        at = str(mapping(doc.get("series")).get("lastObservedTime") or doc.get("eventTime") or "")
        if uid not in last or at >= last[uid][0]:
            last[uid] = at, doc
    return {
        uid: (short(doc.get("reason", "")), short(doc.get("note", "")))
        for uid, (_, doc) in last.items()
        if doc.get("type") == "Warning"
    }


def _why(doc: Object, told: Mapping[str, tuple[str, str]]) -> tuple[str, str]:
    if (event := told.get(str(doc["metadata"].get("uid", "")))) is not None:
        return event
    if reason := annotation(doc, meta.REASON):  # it is left aside, in a store that is no cluster
        return reason, annotation(doc, meta.MESSAGE)
    owner = next((each for each in mappings(doc["metadata"].get("ownerReferences")) if each.get("kind") == "Pod"), None)
    who = UNTOLD if is_labelled(doc) else SCHEDULER
    return "", who if owner is None else short(f"{who}: kubectl describe pod {owner.get('name', '')}")


def _state(doc: Object) -> str:
    if is_deleting(doc):
        return "Deleting"
    if not is_allocated(doc):
        return "Pending"
    return "Reserved" if mappings(mapping(doc.get("status")).get("reservedFor")) else "Allocated"


def _wanted(doc: Object) -> str:
    requests = doc["spec"].get("devices", {}).get("requests", [])
    return ", ".join(_request(each) for each in requests)


def _request(request: Mapping[str, Any]) -> str:
    if "firstAvailable" in request:
        return " or ".join(_exact(each) for each in request["firstAvailable"])
    return _exact(request["exactly"])


def _exact(asked: Mapping[str, Any]) -> str:
    number = "all" if asked.get("allocationMode") == "All" else asked.get("count", 1)
    amounts = " ".join(f"{n} {name}" for name, n in (asked.get("capacity") or {}).get("requests", {}).items())
    return f"{number} {asked['deviceClassName']}" + (f" with {amounts}" if amounts else "")


def _node(doc: Object) -> str:
    """The one node that its allocation names."""
    allocation = mapping(mapping(doc.get("status")).get("allocation"))
    terms = mappings(mapping(allocation.get("nodeSelector")).get("nodeSelectorTerms"))
    fields = mappings(terms[0].get("matchFields")) if len(terms) == 1 else []
    named = [each["values"] for each in fields if each.get("key") == "metadata.name" and each.get("operator") == "In"]
    return str(named[0][0]) if len(named) == 1 and len(named[0]) == 1 else ""


def _devices(doc: Object) -> str:
    entries: list[Object] = [
        {
            "devicePoolName": each["pool"],
            "deviceName": each["device"],
            "allocations": [{"name": n, "allocation": a} for n, a in (each.get("consumedCapacity") or {}).items()],
        }
        for each in results(doc)
    ]
    return inwords.devices_text(entries, limit=_MOST)
