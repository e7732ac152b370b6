"""How many devices of a class the claims of a namespace may hold, as ResourceQuotas say (``v1``).

Kubernetes counts devices of its own claims by ``<class>.deviceclass.resource.k8s.io/devices``; the names here are the
same with our API group. An entry of a claim counts each device that it holds, or may at most get: for its class, or for
every class of its type, or, where it names neither, for every class; else who leaves out the name would not be
counted. Admin access counts nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from devalloc.api import hostpool
from devalloc.api.claim import COUNT, DeviceClaim, DeviceClaimDetail
from devalloc.api.content import writable
from devalloc.api.decode import decode
from devalloc.api.deviceclass import DeviceClass
from devalloc.api.plainclaims import allocations, claim_key, claim_key_or_none
from devalloc.api.problems import Problem
from devalloc.api.quantity import Quantity
from devalloc.api.salvage import salvaged_status

Object = dict[str, Any]
KIND = "ResourceQuota"
SUFFIX = ".deviceclass.devmgmtproto.k8s.io/devices"
"""What follows the name of a class in ``spec.hard``."""
_GROUP = SUFFIX.partition("/")[0]
Bound = tuple[str, str, str]
"""Namespace, name of the quota, and class."""
Classes = Mapping[str, DeviceClass]


def is_quota(doc: Mapping[str, Any]) -> bool:
    """Whether it is a ResourceQuota, of whatever."""
    return doc.get("kind") == KIND and doc.get("apiVersion") == "v1"


def bounds_of(quota: Object) -> dict[Bound, int]:
    """How many devices it allows; empty for one that says nothing of devices. What cannot be read allows none."""
    spec, key = _map(quota.get("spec")), _key(quota)
    if spec.get("scopes") or spec.get("scopeSelector"):
        return {}  # those with scopes are of pods
    if key is None:
        return {}
    return {
        (*key, writable(name.removesuffix(SUFFIX))): _whole(amount)
        for name, amount in _map(spec.get("hard")).items()
        if isinstance(name, str) and name.endswith(SUFFIX) and name.removesuffix(SUFFIX) != hostpool.CLASS
    }


def _key(quota: Object) -> tuple[str, str] | None:
    """Its namespace and name, so that they can be written; None for one that has none, which bounds nobody."""
    metadata = quota.get("metadata")
    if not isinstance(metadata, Mapping):
        return None
    namespace, name = metadata.get("namespace") or "default", metadata.get("name")
    return (writable(namespace), writable(name)) if isinstance(namespace, str) and isinstance(name, str) else None


def problems_of(quota: Object) -> Iterator[Problem]:
    """What is wrong with a quota: amounts that cannot be read, each of which allows no device. Nothing of one that has
    no name, or no namespace that can be one: whoever decodes it says so."""
    if (key := _key(quota)) is None:
        return
    here = Problem("", kind=KIND, namespace=key[0], name=key[1])
    spec = quota.get("spec")
    hard = spec.get("hard") if isinstance(spec, dict) else None
    for name, amount in _map(hard).items():
        if not isinstance(name, str) or _GROUP not in name:
            continue
        path = f"spec.hard[{writable(name)}]"
        if not name.endswith(SUFFIX):
            message = f"is ignored: a quota counts <class>{SUFFIX}"
            yield replace(here, path=path, message=message, severity="warning")
            continue
        try:
            number = Quantity.parse(amount).as_integer()
        except (TypeError, ValueError) as error:
            yield replace(here, path=path, message=f"{error}; until you correct it, the quota allows no such device")
            continue
        if number is None or number < 0:
            message = f"must be a whole number of devices, 0 or more, not {amount!r}"
            yield replace(here, path=path, message=message)


def told_of(quota: Object) -> dict[str, Any]:
    """What its status says of devices."""
    used = _map(_map(quota.get("status")).get("used"))
    return {name: number for name, number in used.items() if name.endswith(SUFFIX)}


def _map(content: Any) -> dict[str, Any]:
    """Content as it should be; empty where it is something else."""
    return content if isinstance(content, dict) else {}


def _whole(amount: Any) -> int:
    try:
        return max(0, Quantity.parse(amount).nano // 10**9)
    except (TypeError, ValueError):
        return 0


def classes_among(documents: Iterable[Object]) -> dict[str, DeviceClass]:
    """The valid classes, by name."""
    found = (decode(doc).object for doc in documents if doc.get("kind") == "DeviceClass")
    return {one.metadata.name: one for one in found if isinstance(one, DeviceClass)}


def most(claim: DeviceClaim, name: str, classes: Classes) -> int | str:
    """How many devices of a class the claim may get at most; the path of an entry that has no such number."""
    total = 0
    for i, entry in enumerate(claim.spec.claims):
        numbers = []
        for j, detail in enumerate(entry.alternatives):
            number = _most(detail) if counts_for(detail, name, classes) else 0
            if number is None:
                return f"spec.claims[{i}]" + (f".oneOf[{j}]" if entry.one_of else "")
            numbers.append(number)
        total += max(numbers)
    return total


def _most(detail: DeviceClaimDetail) -> int | None:
    """S9."""
    count = detail.limits.get(COUNT) or detail.requests.get(COUNT)
    if count is not None:
        return count.as_integer()
    return None if detail.requests else 1


def counts_for(detail: DeviceClaimDetail, name: str, classes: Classes) -> bool:
    """Whether what the detail gets counts for a class."""
    device_class = classes.get(name)
    if device_class is not None and device_class.spec.admin_access:
        return False
    if detail.device_class:
        return detail.device_class == name
    if detail.device_type:
        return device_class is not None and device_class.spec.device_type == detail.device_type
    return True


def held(documents: Iterable[Any], bounds: Iterable[Bound], classes: Classes) -> Counter[Bound]:
    """How much of each bound the allocated claims take up, those too that cannot be read. ``documents``: as they count
    (``as_allocated``)."""
    by_namespace: dict[str, list[Bound]] = {}
    for bound in bounds:
        by_namespace.setdefault(bound[0], []).append(bound)
    found: Counter[Bound] = Counter()
    for doc in documents:
        key = claim_key_or_none(doc)
        mine = None if key is None else by_namespace.get(key[0])
        if mine is None or not allocations(doc):
            continue
        claim = decode(doc).object
        for bound in mine:
            if isinstance(claim, DeviceClaim):
                found[bound] += sum(any(counts_for(one, bound[2], classes) for one in of) for of in _details(claim))
            elif claim is None:  # else it is a foreign object
                status = salvaged_status(doc.get("status"))
                found[bound] += len(status.allocations) if status else 0  # what it was for cannot be told any more
    return found


def _details(claim: DeviceClaim) -> Iterator[list[DeviceClaimDetail]]:
    """For each entry of the status the detail that it is for, or all that it may be for."""
    entries = claim.spec.claims
    every = [detail for entry in entries for detail in entry.alternatives]
    indexes = claim.allocation_details()
    for index in indexes if indexes is not None else [None] * len(claim.status.allocations if claim.status else ()):
        if index is None or index[0] >= len(entries) or (index[1] or 0) >= len(entries[index[0]].alternatives):
            yield every
        else:
            yield [entries[index[0]].alternatives[index[1] or 0]]


def left_for(documents: Sequence[Object], manifest: Object) -> tuple[int, str] | None:
    """How many more claims like one the quotas of its namespace allow beside all that are allocated, and which of them
    says so; None where none does. ``documents``: as they count (``as_allocated``)."""
    namespace, claim = claim_key(manifest)[0], decode(manifest).object
    bounds = {bound: number for doc in documents if is_quota(doc) for bound, number in bounds_of(doc).items()}
    bounds = {bound: number for bound, number in bounds.items() if bound[0] == namespace}
    if not bounds or not isinstance(claim, DeviceClaim):
        return None
    classes = classes_among(documents)
    used = held(documents, bounds, classes)
    found = []
    for bound, number in bounds.items():
        each = most(claim, bound[2], classes)
        if each != 0:
            copies = 0 if isinstance(each, str) else max(0, number - used[bound]) // each
            devices = f"{number} {'device' if number == 1 else 'devices'} of class {bound[2]}"
            may = f"{each} has no limits.count" if isinstance(each, str) else f"each may get up to {each}"
            found.append((copies, f"quota {namespace}/{bound[1]} allows {devices}, {used[bound]} are held, and {may}"))
    return min(found, default=None)


def statuses(documents: Sequence[Object]) -> list[tuple[Object, Object]]:
    """Quotas whose status does not say how much of them is used, with the status that does.

    ``documents``: as they count (``as_allocated``). Others may count in the same status, so the rest of it stays.
    """
    quotas = [(doc, bounds) for doc in documents if is_quota(doc) and (bounds := bounds_of(doc))]
    if not quotas:
        return []
    used = held(documents, [bound for _, bounds in quotas for bound in bounds], classes_among(documents))
    found = []
    for doc, bounds in quotas:
        before = _map(doc.get("status"))
        hard = {f"{bound[2]}{SUFFIX}": str(most) for bound, most in bounds.items()}
        mine = {f"{bound[2]}{SUFFIX}": str(used[bound]) for bound in bounds}
        status = {**before, "hard": _map(before.get("hard")) | hard, "used": _map(before.get("used")) | mine}
        if status != before:
            found.append((doc, status))
    return found
