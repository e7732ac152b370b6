"""Who had what in each state that a cluster ever had, and whether they may have had it.

This is to judge controllers by, so it shares nothing with them: plain JSON, and a few lines of counting.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

Object = dict[str, Any]
CLAIM, MACHINE, POOL, RECORD = "DeviceClaim", "VirtualMachine", "DevicePool", "ConfigMap"
RESOURCE_CLAIM, POD = "ResourceClaim", "Pod"
MARK = "devalloc.io/transaction"
"""On an object that is written together with others; its value is the name of their record."""
PREPARED = "devalloc.io/node"
"""The finalizer by which a node says that it has a claim's devices, or something of a machine."""
REASON, GROUP = "devalloc.io/reason", "devalloc.io/group"
COMMITTED = "committed"
"""The state of a record whose objects count."""
_UNITS = {"m": Fraction(1, 1000), "": Fraction(1), "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


class ObjectKey(NamedTuple):
    """Of one object."""

    kind: str
    namespace: str
    name: str


@dataclass(frozen=True)
class State:
    """One object from one resourceVersion on."""

    version: int
    kind: str
    obj: Object
    gone: bool = False
    """It was deleted; ``obj`` is what it was last."""

    @property
    def key(self) -> ObjectKey:
        metadata = self.obj["metadata"]
        return ObjectKey(self.kind, metadata.get("namespace", ""), metadata["name"])


@dataclass
class HistoryVerdict:
    """What a history shows."""

    states: int = 0
    grants: int = 0
    joint: int = 0
    """Transactions of several objects that came to count."""
    undone: int = 0
    """Those that were put back."""
    doubles: list[str] = field(default_factory=list)
    """Devices that two claims had at one resourceVersion."""
    over: list[str] = field(default_factory=list)
    """What nodes have for machines, of which more was kept than there is."""
    moved: list[str] = field(default_factory=list)
    """Claims whose devices became others without being taken back first."""
    torn: list[str] = field(default_factory=list)
    """Claims and machines of which something was taken back while their node, or a pod that runs, had it."""
    half: list[str] = field(default_factory=list)
    """Objects that said that they have what they were given with others, while those had not."""

    @property
    def wrong(self) -> list[str]:
        return [*self.doubles, *self.over, *self.moved, *self.torn, *self.half]


@dataclass(frozen=True)
class _Record:
    state: str
    members: dict[ObjectKey, tuple[str, Object]]
    """UID, and the fields of the status as they are to be."""


def judge(states: Iterable[State]) -> HistoryVerdict:
    """Of states in the order of their versions."""
    judge_ = _Judge()
    for state in states:
        judge_.take(state)
    return judge_.verdict


class _Judge:
    def __init__(self) -> None:
        self.verdict = HistoryVerdict()
        self.there: dict[ObjectKey, Object] = {}
        self.records: dict[str, _Record] = {}
        self.owners: dict[str, set[ObjectKey]] = defaultdict(set)
        self.usage: dict[tuple[str, str, str], Fraction] = defaultdict(Fraction)
        """By pool, device and resource."""
        self.room: dict[tuple[str, str, str], Fraction] = {}
        self.waited: set[ObjectKey] = set()
        """Claims that were told why they wait, and have nothing since."""

    def take(self, state: State) -> None:
        key, now = state.key, None if state.gone else state.obj
        before = self.there.get(key)
        if state.kind == RECORD:
            if MARK in state.obj["metadata"].get("labels", {}):
                self._record(state)
            return
        if now is None:
            self.there.pop(key, None)
        else:
            self.there[key] = now
        if state.kind == POOL:
            self._pool(state)
        elif state.kind == POD:
            self._pod(state, before, now)
        elif state.kind in (CLAIM, MACHINE, RESOURCE_CLAIM):
            self.verdict.states += 1
            self._holder(state, key, before, now)

    # -- who has what --------------------------------------------------------------------------------------------------

    def _holder(self, state: State, key: ObjectKey, before: Object | None, now: Object | None) -> None:
        where = f"{key.kind} {key.namespace}/{key.name} at {state.version}"
        had, has = held(key.kind, before), held(key.kind, now)
        self.verdict.grants += bool(has) and not had
        is_same = before is not None and now is not None and before["metadata"]["uid"] == now["metadata"]["uid"]
        if is_same and had and has and had != has:
            self.verdict.moved.append(f"{where}: {had} became {has}")
        if had != has and before is not None and had and (user := self._user(key, before, now)):
            self.verdict.torn.append(f"{where}: {user} had {had}, and now {has or 'nothing is left'}")
        if key.kind == MACHINE:
            for sign, obj in ((-1, before), (1, now)):
                for place, amount in _amounts(obj):
                    self.usage[place] += sign * amount
                    if sign > 0 and self.usage[place] > self.room.get(place, 0):
                        share = f"{float(self.usage[place])} of {float(self.room.get(place, Fraction()))}"
                        self.verdict.over.append(f"{where}: {share} of {'/'.join(place)} are kept")
        else:
            for device in had:
                self.owners[device].discard(key)
            for device in has:
                self.owners[device].add(key)
                if len(self.owners[device]) > 1:
                    names = sorted(f"{one.kind} {one.namespace}/{one.name}" for one in self.owners[device])
                    self.verdict.doubles.append(f"{device} at {state.version}: {names}")
        if now is not None:
            self._whole(where, key, before, now)
        if now is None or has:
            self.waited.discard(key)
        elif why_not(now) is not None:
            self.waited.add(key)

    def _user(self, key: ObjectKey, before: Object, now: Object | None) -> str | None:
        """Who has what was taken away with this state; None if no user has."""
        if key.kind == RESOURCE_CLAIM:
            users = [user["name"] for user in (before.get("status") or {}).get("reservedFor") or ()]
            running = [self.there.get(ObjectKey(POD, key.namespace, name)) for name in users]
            names = [pod["metadata"]["name"] for pod in running if pod is not None and pod["spec"].get("nodeName")]
            return f"pod {', '.join(names)}" if names else None
        if now is None or PREPARED not in now["metadata"].get("finalizers", []):
            return None
        # A node gives back what is kept for a machine with the write that says that nothing of it runs.
        gives = key.kind == MACHINE and (now.get("status") or {}).get("phase") == "Stopped"
        return None if gives else "its node"

    def _pod(self, state: State, before: Object | None, now: Object | None) -> None:
        """What a pod uses that begins to run is its own."""
        if now is None or not now["spec"].get("nodeName") or (before and before["spec"].get("nodeName")):
            return
        metadata = now["metadata"]
        for used in now["spec"].get("resourceClaims") or ():
            claim = self.there.get(ObjectKey(RESOURCE_CLAIM, metadata["namespace"], used["resourceClaimName"]))
            users = ((claim or {}).get("status") or {}).get("reservedFor") or ()
            if not held(RESOURCE_CLAIM, claim) or metadata["uid"] not in {user["uid"] for user in users}:
                where = f"pod {metadata['name']} at {state.version}"
                self.verdict.torn.append(f"{where}: it runs, and {used['resourceClaimName']} is not its own")

    def _pool(self, state: State) -> None:
        name = state.obj["metadata"]["name"]
        for place in [place for place in self.room if place[0] == name]:
            del self.room[place]
        for device in () if state.gone else state.obj["spec"].get("devices") or ():
            for one in device.get("resources") or ():
                self.room[name, device["name"], one["name"]] = number(one["capacity"])

    # -- several at once -----------------------------------------------------------------------------------------------

    def _record(self, state: State) -> None:
        name = state.obj["metadata"]["name"]
        before = self.records.get(name)
        if state.gone:
            self.records.pop(name, None)
            self.verdict.undone += before is not None and before.state != COMMITTED
            return
        data = state.obj["data"]
        members = {
            ObjectKey(one["key"][0], one["key"][1] or "", one["key"][2]): (
                one["uid"],
                {field: after for field, (_, after) in ((part[0], part[1:]) for part in one["status"])},
            )
            for one in json.loads(data["members"])
        }
        self.records[name] = _Record(data["state"], members)
        if data["state"] != COMMITTED or (before is not None and before.state == COMMITTED):
            return
        self.verdict.joint += 1
        for key, (uid, meant) in members.items():
            obj = self.there.get(key)
            if obj is None or obj["metadata"]["uid"] != uid:
                continue
            where = f"{key.kind} {key.namespace}/{key.name} at {state.version}"
            status = obj.get("status") or {}
            if wrong := [field for field, value in meant.items() if status.get(field) != value]:
                self.verdict.half.append(f"{where}: {name} counts, and {wrong} are not written")
            self._together(where, key, obj)

    def _counts(self, obj: Object) -> bool:
        """Whether what an object says holds: it has no mark, or that of a record that counts."""
        mark = _annotation(obj, MARK)
        return mark is None or (mark in self.records and self.records[mark].state == COMMITTED)

    def _whole(self, where: str, key: ObjectKey, before: Object | None, now: Object) -> None:
        if not held(key.kind, now) or key.kind == RESOURCE_CLAIM or not self._counts(now):
            return
        for name, record in self.records.items():
            uid, meant = record.members.get(key, ("", {}))
            is_its = uid == now["metadata"]["uid"] and meant.get("allocations") == now["status"]["allocations"]
            if is_its and record.state != COMMITTED and not self._had(key, before):
                self.verdict.half.append(f"{where}: it has no mark, and {name} is still {record.state}")
        if not self._had(key, before):
            self._together(where, key, now)

    def _had(self, key: ObjectKey, before: Object | None) -> bool:
        return before is not None and bool(held(key.kind, before)) and self._counts(before)

    def _together(self, where: str, key: ObjectKey, now: Object) -> None:
        """What comes to count with this state needs others, which must count by then."""
        namespace = key.namespace
        if key.kind == MACHINE:
            for name in now["spec"].get("claims") or ():
                claim = self.there.get(ObjectKey(CLAIM, namespace, name))
                if claim is not None and not (held(CLAIM, claim) and self._counts(claim)):
                    self.verdict.half.append(f"{where}: it is placed without its claim {name}")
            return
        if (group := _annotation(now, GROUP)) is None:
            return
        for other, obj in self.there.items():
            is_member = other.kind == CLAIM and other != key and other.namespace == namespace
            if not is_member or _annotation(obj, GROUP) != group:
                continue
            # Both were seen to wait: from then on they get something together.
            is_held_back = obj["metadata"].get("deletionTimestamp") or obj["metadata"].get("finalizers")
            if {key, other} <= self.waited and not is_held_back and not (held(CLAIM, obj) and self._counts(obj)):
                self.verdict.half.append(f"{where}: it has devices without {other.name} of its group")


def held(kind: str, obj: Object | None) -> tuple[str, ...]:
    """The devices that a claim has, whole ones; the entries of what is kept for a machine."""
    status = (obj or {}).get("status") or {}
    if kind == RESOURCE_CLAIM:
        results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
        return tuple(sorted(f"{one['driver']}/{one['pool']}/{one['device']}" for one in results))
    entries = status.get("allocations") or ()
    return tuple(sorted(f"{entry['devicePoolName']}/{entry['deviceName']}" for entry in entries))


def _amounts(machine: Object | None) -> Iterator[tuple[tuple[str, str, str], Fraction]]:
    for entry in ((machine or {}).get("status") or {}).get("allocations") or ():
        for one in entry.get("allocations") or ():
            yield (entry["devicePoolName"], entry["deviceName"], one["name"]), number(one["allocation"])


def number(quantity: str) -> Fraction:
    """What a quantity says, such as 1500m or 2Gi."""
    text = str(quantity)
    digits = text.rstrip("mkKMGTi")
    return Fraction(digits) * _UNITS[text[len(digits) :]]


def why_not(claim: Object) -> str | None:
    """The reason why a claim has no devices: of its condition, or of an annotation, as controllers of 0.1.0 write it;
    None without an answer."""
    conditions = (claim.get("status") or {}).get("conditions") or ()
    reasons = [one.get("reason") for one in conditions if (one["type"], one["status"]) == ("Allocated", "False")]
    answers = [reason for reason in reasons if reason != "Waiting"]
    return answers[0] if answers else _annotation(claim, REASON)


def _annotation(obj: Object, name: str) -> str | None:
    value: str | None = (obj["metadata"].get("annotations") or {}).get(name)
    return value
