"""Pending ResourceClaims: which claims pods wait for, and which of them belong together. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from devalloc.api.dedicated_pools import is_for_devalloc
from devalloc.api.meta import GROUP, NODE, PRIORITY
from devalloc.api.node_rules import FIELD, NodeRestriction, Restrictions
from devalloc.controller.reconcile.stored_claims import DisjointSets

Object = dict[str, Any]
Key = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True, slots=True)
class PendingGroup:
    """Claims that are to be allocated on one node, all or none: what a pod waits for, with all that shares these."""

    claims: tuple[Key, ...]
    """Those that have no devices yet; sorted."""
    pods: tuple[Object, ...]
    """That wait for them, by name."""
    held: tuple[Key, ...]
    """Other claims of ours that these pods use and that have devices."""
    nodes: frozenset[str] | None
    """Where the pods' other claims and the claims' own pins are; None: anywhere."""

    @property
    def priority(self) -> int:
        """The highest priority of its pods."""
        return max((pod["spec"].get("priority") or 0 for pod in self.pods), default=0)

    def users(self, key: Key) -> list[Object]:
        """Name the pod for which a claim is reserved, as ``reservedFor`` has it: the most urgent that uses it.

        kube-scheduler adds each other pod that it places. A claim that is reserved for several it would never give
        back, even if none of them finds room on the node."""
        pods = [
            pod
            for pod in self.pods
            if pod["metadata"]["namespace"] == key[0] and key[1] in (pod_claim_names(pod) or ())
        ]
        first = min(pods, key=lambda pod: (-(pod["spec"].get("priority") or 0), key_of(pod)))
        return [{"resource": "pods", "name": first["metadata"]["name"], "uid": first["metadata"]["uid"]}]


def allocation_of(claim: Mapping[str, Any]) -> Mapping[str, Any] | None:
    content: Mapping[str, Any] | None = (claim.get("status") or {}).get("allocation")
    return content


def key_of(content: Mapping[str, Any]) -> Key:
    metadata = content["metadata"]
    return metadata["namespace"], metadata["name"]


def pod_claim_names(pod: Mapping[str, Any]) -> list[str] | None:
    """The names of a pod's claims; None as long as one is not made yet."""
    statuses = {
        each["name"]: each.get("resourceClaimName")
        for each in (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    }
    names = []
    for entry in (pod.get("spec") or {}).get("resourceClaims") or ():
        if entry.get("resourceClaimName"):
            names.append(entry["resourceClaimName"])
        elif entry["name"] not in statuses:
            return None
        elif statuses[entry["name"]]:
            names.append(statuses[entry["name"]])
    return names


def is_waiting(pod: Mapping[str, Any]) -> bool:
    """Whether kube-scheduler looks for a node for the pod."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    if pod["metadata"].get("deletionTimestamp") or spec.get("nodeName") or spec.get("schedulingGates"):
        return False
    return str(status.get("phase", "Pending")) == "Pending"


def pending_groups(pods: Iterable[Object], claims: Mapping[Key, Object]) -> list[PendingGroup]:
    """All of them, ordered by the first claim of each."""
    joined: DisjointSets[Key] = DisjointSets()
    using: list[tuple[Object, list[Key]]] = []
    groups: dict[Key, Key] = {}
    for pod in sorted((pod for pod in pods if is_waiting(pod)), key=key_of):
        keys = _usable(pod, claims)
        pending = [key for key in keys if is_for_devalloc(claims[key]) and allocation_of(claims[key]) is None]
        if not pending:
            continue
        using.append((pod, keys))
        for key in pending:
            joined.join(key, pending[0])
            if (group := _annotation(claims[key], GROUP)) is not None:
                joined.join(key, groups.setdefault((key[0], group), key))
    together: dict[int, list[tuple[Object, list[Key]]]] = defaultdict(list)
    for pod, keys in using:
        members = next(filter(None, map(joined.set_of, keys)))
        together[id(members)].append((pod, keys))
    return sorted((_pending_group(members, claims) for members in together.values()), key=lambda want: want.claims)


class PendingClaims:
    """What pods wait for, kept from one look to the next: a look costs what has changed. Not thread-safe."""

    def __init__(self) -> None:
        self._pods: dict[Key, Object] = {}
        self._claims: Mapping[Key, Object] = {}
        self._users: dict[Key, dict[Key, None]] = {}
        """Claim, there or not -> the pods that wait and name it."""
        self._members: dict[Key, dict[Key, None]] = {}
        """Namespace and group -> its claims."""
        self._group_of: dict[Key, PendingGroup] = {}
        self.groups: list[PendingGroup] = []
        """As ``pending_groups`` has them; the very same as before where nothing has changed."""
        self.holding: dict[Key, Object] = {}
        """The pods that wait and name a claim that has devices."""

    def look(self, pods: Iterable[Object], claims: Mapping[Key, Object]) -> None:
        """See what there is now; an unchanged object is the very same one as before."""
        there = {key_of(pod): pod for pod in pods}
        touched = {name for pod in _changes(self._pods, there) for name in self._enter(*pod)}
        touched.update(name for claim in _changes(self._claims, claims) for name in self._enter_claim(*claim))
        self._pods, self._claims = there, claims
        if not touched:
            return
        users, near, seen = set[Key](), [*touched], set[object]()
        while near:
            more = {*self._related(near.pop(), users, seen)} - touched
            touched |= more
            near += more
        for user in users:
            self.holding.pop(user, None)
            if any(name in claims and allocation_of(claims[name]) is not None for name in _names_of(there[user])):
                self.holding[user] = there[user]
        for key in touched:
            self._group_of.pop(key, None)
        fresh = pending_groups([there[user] for user in users], claims)
        self._group_of.update((key, group) for group in fresh for key in group.claims)
        self.groups = sorted(
            {id(each): each for each in self._group_of.values()}.values(), key=lambda group: group.claims
        )

    def group_of(self, key: Key) -> PendingGroup | None:
        """The group of a claim that pods wait for."""
        return self._group_of.get(key)

    def _enter(self, key: Key, old: Object | None, new: Object | None) -> Iterator[Key]:
        """A pod is another one now; the claims to which that may matter."""
        for name in _names_of(old):
            self._users[name].pop(key, None)
            if not self._users[name]:
                del self._users[name]
        for name in _names_of(new):
            self._users.setdefault(name, {})[key] = None
        if new is None or not _names_of(new):
            self.holding.pop(key, None)
        yield from (*_names_of(old), *_names_of(new))

    def _enter_claim(self, key: Key, old: Object | None, new: Object | None) -> Iterator[Key]:
        """The same of a claim."""
        groups = [None if one is None else _annotation(one, GROUP) for one in (old, new)]
        if groups[0] is not None and groups[0] != groups[1]:
            members = self._members[key[0], groups[0]]
            members.pop(key, None)
            if members:
                yield next(iter(members))  # the others are related to it
            else:
                del self._members[key[0], groups[0]]
        if groups[1] is not None:
            self._members.setdefault((key[0], groups[1]), {})[key] = None
        yield key

    def _related(self, key: Key, users: set[Key], seen: set[object]) -> Iterator[Key]:
        """The claims that belong or belonged together with this one, directly, but for those of pods and groups that
        were looked at."""
        for user in self._users.get(key, ()):
            if user not in users:
                users.add(user)
                yield from _names_of(self._pods[user])
        claim = self._claims.get(key)
        group = None if claim is None else _annotation(claim, GROUP)
        if group is not None and (key[0], group) not in seen:
            seen.add((key[0], group))
            yield from self._members[key[0], group]
        if (before := self._group_of.get(key)) is not None and id(before) not in seen:
            seen.add(id(before))
            yield from before.claims


def _names_of(pod: Object | None) -> list[Key]:
    """The claims that a pod names while it waits, there or not."""
    if pod is None or not is_waiting(pod):
        return []
    return [*dict.fromkeys((pod["metadata"]["namespace"], name) for name in pod_claim_names(pod) or ())]


def _changes(before: Mapping[Key, Object], now: Mapping[Key, Object]) -> list[tuple[Key, Object | None, Object | None]]:
    """What has come, gone or become another one: what it was, and what it is."""
    changed = [(key, before.get(key), obj) for key, obj in now.items() if before.get(key) is not obj]
    return [*changed, *((key, before[key], None) for key in before.keys() - now.keys())]


def _pending_group(members: list[tuple[Object, list[Key]]], claims: Mapping[Key, Object]) -> PendingGroup:
    used = sorted({key for _, keys in members for key in keys})
    pending = tuple(key for key in used if is_for_devalloc(claims[key]) and allocation_of(claims[key]) is None)
    nodes: frozenset[str] | None = None
    for key in used:
        for allowed in _nodes(claims[key]):
            nodes = frozenset(allowed) if nodes is None else nodes & frozenset(allowed)
    held = tuple(key for key in used if is_for_devalloc(claims[key]) and allocation_of(claims[key]) is not None)
    return PendingGroup(pending, tuple(pod for pod, _ in members), held, nodes)


def _usable(pod: Object, claims: Mapping[Key, Object]) -> list[Key]:
    """The pod's claims, if all are there and may be its own."""
    names = pod_claim_names(pod)
    if not names:
        return []
    keys = list(dict.fromkeys((pod["metadata"]["namespace"], name) for name in names))
    for key in keys:
        claim = claims.get(key)
        if claim is None or claim["metadata"].get("deletionTimestamp") or not _may_use(pod, claim):
            return []
    return keys


def _may_use(pod: Object, claim: Object) -> bool:
    """A claim that was made for a pod is that pod's alone."""
    owners = [owner for owner in claim["metadata"].get("ownerReferences") or () if owner.get("controller")]
    pod_uids = [owner["uid"] for owner in owners if owner.get("kind") == "Pod"]
    return not pod_uids or pod_uids == [pod["metadata"]["uid"]]


def _nodes(claim: Object) -> Iterator[set[str]]:
    if (pin := _annotation(claim, NODE)) is not None:
        yield {pin}
    if (held := allocation_of(claim)) is not None and (node := allocation_node(held)) is not None:
        yield {node}


def allocation_node(held: Mapping[str, Any]) -> str | None:
    """The one node that an allocation is tied to by name."""
    terms = (held.get("nodeSelector") or {}).get("nodeSelectorTerms") or []
    fields = terms[0].get("matchFields") or [] if len(terms) == 1 else []
    for field in fields:
        if field.get("key") == "metadata.name" and field.get("operator") == "In" and len(field.get("values", ())) == 1:
            name: str = field["values"][0]
            return name
    return None


def _annotation(claim: Object, name: str) -> str | None:
    return (claim["metadata"].get("annotations") or {}).get(name) or None


def pending_document(
    claim: Object, group: str | None, restrictions: tuple[NodeRestriction, ...], priority: int
) -> Object:
    """A claim as the solver is asked: with its group, which may be a pod's (``owner_name``), its pod's priority, and
    the nodes on which it may be."""
    metadata = claim["metadata"]
    annotations = {k: v for k, v in (metadata.get("annotations") or {}).items() if k not in (GROUP, NODE)}
    annotations.setdefault(PRIORITY, str(priority))
    if group is not None:
        annotations[GROUP] = group
    document = {**claim, "metadata": {**metadata, "annotations": annotations}}
    return {**document, FIELD: Restrictions(restrictions)} if restrictions or group is not None else document
