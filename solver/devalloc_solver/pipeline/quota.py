"""How many devices of a class the claims of a namespace may hold, as ResourceQuotas say (``v1``).

Kubernetes counts devices of its own claims by ``<class>.deviceclass.resource.k8s.io/devices``; the names here are the
same with our API group. An entry of a claim counts each device that it holds, or may at most get: for its class, or for
every class of its type, or, if it names neither, for every class; otherwise a claim without the name would
escape the quota. Admin access counts nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from devalloc.api.claim import COUNT, DeviceClaim, DeviceClaimDetail
from devalloc.api.decode import decode
from devalloc.api.device_class import DeviceClass
from devalloc.api.fields import label_name
from devalloc.api.json_content import escape_invalid_unicode
from devalloc.api.kinds import API_KINDS
from devalloc.api.meta import DEVMGMT
from devalloc.api.owner_names import is_object
from devalloc.api.problems import Problem, closest_match
from devalloc.api.quantity import Quantity
from devalloc.api.unreadable_claims import claim_key_or_none, recover_status
from devalloc.api.views import ClaimView

Object = dict[str, Any]
KIND = "ResourceQuota"
SUFFIX = ".deviceclass.devmgmtproto.k8s.io/devices"
"""What follows the name of a class in ``spec.hard``."""
_SUFFIX_OF_KUBERNETES = ".deviceclass.resource.k8s.io/devices"
"""The same of classes of resource.k8s.io, which the API server counts."""
_COUNT, _OF_PODS = "count/", "requests.deviceclass.resource.kubernetes.io/"
"""What comes before the name of a kind of objects that are counted, and before a class that pods ask for as an extended
resource."""
_OF_KUBERNETES = frozenset(
    {
        "configmaps", "cpu", "ephemeral-storage", "memory", "persistentvolumeclaims", "pods", "replicationcontrollers",
        "resourcequotas", "secrets", "services", "storage",
    }
)  # fmt: skip
"""Names without a domain that the API server takes in ``spec.hard``, beside ``hugepages-<size>``."""
_COUNTED = frozenset(f"{kind.plural}.{kind.group}" for kind in API_KINDS.values() if kind.namespaced)
_COUNTED_GROUPS = frozenset(kind.group for kind in API_KINDS.values())
Bound = tuple[str, str, str]
"""Namespace, name of the quota, and class."""
Classes = Mapping[str, DeviceClass]


def is_quota(doc: Mapping[str, Any]) -> bool:
    """Whether it is a ResourceQuota, of whatever."""
    return doc.get("kind") == KIND and doc.get("apiVersion") == "v1"


def bounds_of(quota: Object) -> dict[Bound, int]:
    """How many devices it allows; empty for one that says nothing of devices. What cannot be read allows none."""
    spec, key = _mapping(quota.get("spec")), _key(quota)
    if spec.get("scopes") or spec.get("scopeSelector"):
        return {}  # those with scopes are of pods
    if key is None:
        return {}
    return {
        (*key, escape_invalid_unicode(name.removesuffix(SUFFIX))): _whole_number(amount)
        for name, amount in _mapping(spec.get("hard")).items()
        if isinstance(name, str) and name.endswith(SUFFIX) and name != SUFFIX
    }


def _key(quota: Mapping[str, Any]) -> tuple[str, str] | None:
    """Its namespace and name, so that they can be written; None for one that has none, and so bounds no namespace."""
    metadata = quota.get("metadata")
    if not isinstance(metadata, Mapping):
        return None
    namespace, name = metadata.get("namespace") or "default", metadata.get("name")
    return (
        (escape_invalid_unicode(namespace), escape_invalid_unicode(name))
        if isinstance(namespace, str) and isinstance(name, str)
        else None
    )


@dataclass(frozen=True, slots=True)
class ClassNames:
    """The names of classes beside quotas, which show what a quota means; empty: nothing is known of them."""

    own: frozenset[str] = frozenset()
    of_kubernetes: frozenset[str] = frozenset()
    """of resource.k8s.io"""
    requested: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """how many devices ResourceClaims want, by namespace and class"""

    @classmethod
    def among(cls, documents: Iterable[Any]) -> ClassNames:
        names: dict[bool, set[str]] = {True: set(), False: set()}
        requested: Counter[tuple[str, str]] = Counter()
        for doc in documents:
            if not isinstance(doc, Mapping) or (key := _key(doc)) is None:
                continue
            if doc.get("kind") == "DeviceClass":
                names[doc.get("apiVersion") == DEVMGMT].add(key[1])
            elif doc.get("kind") == "ResourceClaim":
                requested.update({(key[0], name): count for name, count in _wanted_devices(doc).items()})
        return cls(frozenset(names[True]), frozenset(names[False]), requested)


def _wanted_devices(claim: Mapping[str, Any]) -> Counter[str]:
    """The devices of each class that a ResourceClaim (v1) wants at most, as the API server counts them for quotas."""
    wanted: Counter[str] = Counter()
    requests = _mapping(_mapping(claim.get("spec")).get("devices")).get("requests")
    for request in requests if isinstance(requests, list) else ():
        alternatives = _mapping(request).get("firstAvailable")
        most: Counter[str] = Counter()
        for one in alternatives if isinstance(alternatives, list) else [_mapping(request).get("exactly")]:
            name, count = _mapping(one).get("deviceClassName"), _mapping(one).get("count", 1)
            number = _MOST_DEVICES if _mapping(one).get("allocationMode") == "All" else count
            if isinstance(name, str) and isinstance(number, int):
                most[name] = max(most[name], number)
        wanted += most
    return wanted


_MOST_DEVICES = 32
"""The devices of a ResourceClaim, for one that wants all of a node."""
NO_CLASSES = ClassNames()


def problems_of(quota: Object, classes: ClassNames = NO_CLASSES) -> Iterator[Problem]:
    """What is wrong with a quota: amounts that cannot be read, each of which allows no device, a namespace that no
    claim can have, and what bounds nothing. Nothing of one that has no name, or no text as its namespace: decoding it
    reports that."""
    if (key := _key(quota)) is None:
        return
    here = Problem("", kind=KIND, namespace=key[0], name=key[1])
    try:
        label_name(key[0])
    except ValueError as error:
        yield replace(here, path="metadata.namespace", message=f"{error}; the quota applies to no claim")
    spec = _mapping(quota.get("spec"))
    has_scopes = bool(spec.get("scopes") or spec.get("scopeSelector"))
    for name, amount in _mapping(spec.get("hard")).items():
        if not isinstance(name, str) or not _is_about_devices(name):
            continue
        path = f"spec.hard[{escape_invalid_unicode(name)}]"
        if (why := _why_without_effect(name, classes, has_scopes=has_scopes)) is not None:
            yield replace(here, path=path, message=why, severity="warning")
        if not name.endswith((SUFFIX, _SUFFIX_OF_KUBERNETES)):
            continue
        try:
            number = Quantity.parse(amount).as_integer()
        except (TypeError, ValueError) as error:
            yield replace(here, path=path, message=f"{error}; until you correct it, the quota allows no such device")
            continue
        if number is None or number < 0:
            message = f"must be a whole number of devices, 0 or more, not {amount!r}"
            yield replace(here, path=path, message=message)
        elif name.endswith(_SUFFIX_OF_KUBERNETES):
            requested = classes.requested.get((key[0], name.removesuffix(_SUFFIX_OF_KUBERNETES)), 0)
            if requested > number:
                message = (
                    f"allows {number}, and ResourceClaims want {requested}; the API server refuses those beyond it"
                )
                yield replace(here, path=path, message=message, severity="warning")


def _is_about_devices(name: str) -> bool:
    """Or about objects that are counted here (count/deviceclaims.devmgmtproto.k8s.io), or about nothing that a quota
    counts, such as ``gpu``."""
    if "/" not in name and "." not in name:
        return name not in _OF_KUBERNETES and not name.startswith("hugepages-")
    if name.startswith(_COUNT):
        return any(group in name for group in ("devmgmtproto", *_COUNTED_GROUPS)) or "/deviceclaim" in name
    return "deviceclass" in name or "devmgmtproto" in name


def _why_without_effect(name: str, classes: ClassNames, *, has_scopes: bool) -> str | None:
    """Why a line of a quota that is about devices bounds no claim of either dialect; None if it does."""
    if name.startswith(_COUNT):
        counted = name.removeprefix(_COUNT)
        near = closest_match(counted, _COUNTED) or "deviceclaims.devmgmtproto.k8s.io"
        return None if counted in _COUNTED else f"counts nothing; write {_COUNT}{near}"
    if name.startswith(_OF_PODS):
        return _why_no_class(name.removeprefix(_OF_PODS), classes.of_kubernetes)
    suffix = next((each for each in (SUFFIX, _SUFFIX_OF_KUBERNETES) if name.endswith(each)), None)
    if suffix is None or name == suffix:
        return f"is ignored: a quota counts <class>{_SUFFIX_OF_KUBERNETES if 'resource.k8s.io' in name else SUFFIX}"
    if has_scopes:
        return "is ignored: a quota with scopes bounds pods only; remove the scopes"
    class_name = name.removesuffix(suffix)
    if suffix == SUFFIX:
        there, others, kinds, other_suffix = classes.own, classes.of_kubernetes, _KINDS, _SUFFIX_OF_KUBERNETES
    else:
        there, others, kinds, other_suffix = classes.of_kubernetes, classes.own, _KINDS[::-1], SUFFIX
    if class_name in there:
        return None
    if class_name in others:
        return f"counts {kinds[0]} only; for {kinds[1]}, write {escape_invalid_unicode(class_name)}{other_suffix}"
    return _why_no_class(class_name, there)


def _why_no_class(name: str, there: frozenset[str]) -> str | None:
    """That there is no such class; None if there is, or no class is known."""
    if not there or name in there:
        return None
    near = closest_match(name, there)
    advice = f"did you mean {near}?" if near else "apply the class, or correct the name"
    return f"is for class {escape_invalid_unicode(name)}, which does not exist; {advice}"


_KINDS = ("DeviceClaims", "ResourceClaims")


def quota_status(quota: Object) -> dict[str, Any]:
    """What its status says of devices."""
    used = _mapping(_mapping(quota.get("status")).get("used"))
    return {name: number for name, number in used.items() if name.endswith(SUFFIX)}


def _mapping(content: Any) -> dict[str, Any]:
    """Content as it should be; empty where it is something else."""
    return content if isinstance(content, dict) else {}


def _whole_number(amount: Any) -> int:
    try:
        return max(0, Quantity.parse(amount).nano // 10**9)
    except (TypeError, ValueError):
        return 0


def classes_among(documents: Iterable[Object]) -> dict[str, DeviceClass]:
    """The valid classes, by name."""
    objects = (decode(doc).object for doc in documents if doc.get("kind") == "DeviceClass")
    return {one.metadata.name: one for one in objects if isinstance(one, DeviceClass)}


def max_devices(claim: DeviceClaim, name: str, classes: Classes) -> int | str:
    """How many devices of a class the claim may get at most; the path of an entry that has no such number."""
    total = 0
    for i, entry in enumerate(claim.spec.claims):
        numbers = []
        for j, detail in enumerate(entry.alternatives):
            number = _max_of_detail(detail) if counts_towards(detail, name, classes) else 0
            if number is None:
                return f"spec.claims[{i}]" + (f".oneOf[{j}]" if entry.one_of else "")
            numbers.append(number)
        total += max(numbers)
    return total


def _max_of_detail(detail: DeviceClaimDetail) -> int | None:
    """S9."""
    count = detail.limits.get(COUNT) or detail.requests.get(COUNT)
    if count is not None:
        return count.as_integer()
    return None if detail.requests else 1


def counts_towards(detail: DeviceClaimDetail, name: str, classes: Classes) -> bool:
    """Whether what the detail gets counts for a class."""
    device_class = classes.get(name)
    if device_class is not None and device_class.spec.admin_access:
        return False
    if detail.device_class:
        return detail.device_class == name
    if detail.device_type:
        return device_class is not None and device_class.spec.device_type == detail.device_type
    return True


def count_allocated(documents: Iterable[Any], bounds: Iterable[Bound], classes: Classes) -> Counter[Bound]:
    """How much of each bound the allocated claims take up, those too that cannot be read. ``documents``: as they count
    (``effective_documents``)."""
    by_namespace: dict[str, list[Bound]] = {}
    for bound in bounds:
        by_namespace.setdefault(bound[0], []).append(bound)
    usage: Counter[Bound] = Counter()
    for doc in documents:
        key = claim_key_or_none(doc)
        own_bounds = by_namespace.get(key[0]) if key is not None and is_object(key) else None
        if own_bounds is None or not ClaimView(doc).entries:
            continue
        claim = decode(doc).object
        for bound in own_bounds:
            if isinstance(claim, DeviceClaim):
                usage[bound] += sum(any(counts_towards(one, bound[2], classes) for one in of) for of in _details(claim))
            elif claim is None:  # else it is a foreign object
                status = recover_status(doc.get("status"))
                usage[bound] += len(status.allocations) if status else 0  # what it was for cannot be told any more
    return usage


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


def copies_allowed(documents: Sequence[Object], manifest: Object) -> tuple[int, str] | None:
    """How many more claims like one the quotas of its namespace allow beside all that are allocated, and which of them
    says so; None where none does. ``documents``: as they count (``effective_documents``)."""
    namespace, claim = ClaimView(manifest).key[0], decode(manifest).object
    bounds = {bound: number for doc in documents if is_quota(doc) for bound, number in bounds_of(doc).items()}
    bounds = {bound: number for bound, number in bounds.items() if bound[0] == namespace}
    if not bounds or not isinstance(claim, DeviceClaim):
        return None
    classes = classes_among(documents)
    used = count_allocated(documents, bounds, classes)
    limits = []
    for bound, number in bounds.items():
        each = max_devices(claim, bound[2], classes)
        if each != 0:
            copies = 0 if isinstance(each, str) else max(0, number - used[bound]) // each
            devices = f"{number} {'device' if number == 1 else 'devices'} of class {bound[2]}"
            may = f"{each} has no limits.count" if isinstance(each, str) else f"each may get up to {each}"
            limits.append((copies, f"quota {namespace}/{bound[1]} allows {devices}, {used[bound]} are held, and {may}"))
    return min(limits, default=None)


def quota_statuses_to_write(documents: Sequence[Object]) -> list[tuple[Object, Object]]:
    """Quotas whose status does not say how much of them is used, with the status that does.

    ``documents``: as they count (``effective_documents``). Others may count in the same status, so its rest stays.
    """
    quotas = [(doc, bounds) for doc in documents if is_quota(doc) and (bounds := bounds_of(doc))]
    if not quotas:
        return []
    used = count_allocated(documents, [bound for _, bounds in quotas for bound in bounds], classes_among(documents))
    updates = []
    for doc, bounds in quotas:
        before = _mapping(doc.get("status"))
        hard = {f"{bound[2]}{SUFFIX}": str(most) for bound, most in bounds.items()}
        own_used = {f"{bound[2]}{SUFFIX}": str(used[bound]) for bound in bounds}
        status = {
            **before,
            "hard": _mapping(before.get("hard")) | hard,
            "used": _mapping(before.get("used")) | own_used,
        }
        if status != before:
            updates.append((doc, status))
    return updates
