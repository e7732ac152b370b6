"""From the solver's answer to what is written on the claims, and to messages that everyone may read. Pure.

Who may read one namespace learns from its objects and Events how much others use, and not who they are; kube-scheduler
tells as little of other pods. `devalloc explain` with the rights of an admin names them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from devalloc.api import meta
from devalloc.api.claim import DeviceClaimStatus
from devalloc.api.conditions import (
    ALLOCATED,
    DEFAULT_STATUS,
    DEVICE_LOST,
    READY,
    find_condition,
    with_condition,
    with_stall,
)
from devalloc.api.reasons import STILL_SEARCHING, Reason, is_transient_reason
from devalloc.api.views import (
    ClaimKey,
    ClaimView,
    admin_class_names,
    device_claims_in,
    format_devices,
)
from devalloc.controller.reconcile.pool_attributes import PoolAttributes
from devalloc.controller.reconcile.release import release_change
from devalloc.controller.reconcile.snapshot import Memo
from devalloc.controller.reconcile.stored_claims import (
    ALLOCATION_ANNOTATIONS,
    allocated_spec,
    canonical_spec,
    class_names,
)
from devalloc.store import Change, Key, Object

DEVICE_CLAIM = "DeviceClaim"
_OURS = (ALLOCATED, READY)
"""The conditions of a claim that say whether it has devices."""
_REASONS = (meta.REASON, meta.MESSAGE)
_MAX_MESSAGE = 300
"""Characters that a column shows of a claim's devices."""


@dataclass(frozen=True)
class AnswerForm:
    """Where a claim says why it has no devices, or what is wrong with those it has."""

    in_conditions: bool = False
    """In its conditions: on a cluster, where a write of the status cannot change annotations, and one of annotations
    not the status."""
    in_annotations: bool = True
    """In annotations: in an embedded store, whose claims have no conditions because 0.1.0 would not read them."""


IN_ANNOTATIONS = AnswerForm()
IN_CONDITIONS = AnswerForm(in_conditions=True, in_annotations=False)


@dataclass(frozen=True)
class WriteUnit:
    """Changes that only make sense together: a group, or one claim."""

    changes: tuple[Change, ...]
    granted: bool
    """It gives devices to claims that had none."""
    released: bool = False
    """It takes devices from a claim, so that another round is due."""
    grows: bool = False
    """It gives more to a machine that has some."""
    follows_up: bool = False
    """What it writes is what another round decides on, which is due then."""
    transient: bool = False
    """It only says that other claims of the batch won (``Reason.is_transient``)."""

    @property
    def keys(self) -> frozenset[Key]:
        return frozenset(change.key for change in self.changes)


def decide_claims(
    documents: Sequence[Object],
    answer: Mapping[str, Any],
    now: str,
    memo: Memo | None = None,
    *,
    form: AnswerForm = IN_ANNOTATIONS,
) -> list[WriteUnit]:
    """What to write so that the claims say what ``answer`` (of ``solve_manifests`` for these documents) says.

    Claims that say it already are left out. ``now`` is the time of conditions that change, RFC 3339.
    """
    answers: dict[ClaimKey, Mapping[str, Any]] = {(a["namespace"], a["name"]): a for a in answer["claims"]}
    admin, memo, attributes = admin_class_names(documents), memo or Memo(), PoolAttributes(documents)
    groups: dict[tuple[str, str], list[Change]] = {}
    claims = [
        claim
        for claim in device_claims_in(documents)
        if not memo.is_none("kept", claim, answers.get(_key(claim["metadata"])))  # it says all already
    ]
    views = [*map(ClaimView, claims)]
    blocked = {(view.key[0], view.group) for view in views if not view.entries and view.is_held}
    units = []
    says = _ClaimWriter(form, now)
    for claim, view in zip(claims, views, strict=True):
        key = view.key
        verdict = answers.get(key)
        if verdict is None or verdict.get(STILL_SEARCHING):
            continue
        granted = is_transient = False
        if view.entries:
            unit = memo.of("kept", claim, partial(_unit_of_kept, claim, verdict, says), verdict)
            if unit is not None:
                units.append(unit)
            continue
        if view.is_deleting:
            continue
        if view.is_held:
            change = says.refused(claim, Reason.STILL_PREPARED.value, _STILL_PREPARED)
        elif verdict["allocated"] and view.group is not None and (key[0], view.group) in blocked:
            continue  # all of a group or none
        elif verdict["allocated"]:
            change = _grant_change(claim, verdict, admin, attributes, says)
            granted = True
        else:
            change = says.refused(claim, verdict["reason"], verdict["message"])
            is_transient = is_transient_reason(verdict["reason"])
        if not _changes_object(change, claim):
            continue
        if granted and view.group is not None:
            groups.setdefault((key[0], view.group), []).append(change)
        else:
            units.append(WriteUnit((change,), granted, transient=is_transient))
    return units + [WriteUnit(tuple(changes), granted=True) for changes in groups.values()]


def _key(metadata: Mapping[str, Any]) -> ClaimKey:
    return metadata.get("namespace") or "default", metadata["name"]


_STILL_PREPARED = (
    "its node has not released the devices it held before; it is answered when the finalizer "
    f"{meta.NODE_FINALIZER} is removed"
)


@dataclass(frozen=True)
class _ClaimWriter:
    """Writes answers on claims, in their form."""

    form: AnswerForm
    now: str

    def refused(self, claim: Object, reason: str, message: str) -> Change:
        """The change of a claim that has no devices."""
        status = claim.get("status")
        if self.form.in_conditions:
            others = {name: part for name, part in (status or {}).items() if name != "nodeName"}
            status = _with_answer(claim, others, ("False", reason, message), self.now)
        return _annotation_change(claim, status, self._notes(reason, message))

    def given(self, claim: Object, status: Object, annotations: Mapping[str, str | None], node: str | None) -> Change:
        """The change of a claim that gets the devices of this status."""
        if self.form.in_conditions:
            status = with_given(claim, status, node, self.now)
        return _annotation_change(claim, status, annotations)

    def held(
        self, claim: Object, status: Object, annotations: Mapping[str, str | None], problem: tuple[str, str] | None
    ) -> Change:
        """The change of a claim that keeps its devices; ``problem``: the reason and message of what is wrong with them.
        One that an earlier version allocated gets conditions only with a problem: else each would cost a write."""
        if self.form.in_conditions and problem is not None:
            status = _with_answer(claim, status, ("True", *problem), self.now)
        elif self.form.in_conditions and has_answer(status) and not ClaimView(claim).is_deleting:
            status = with_given(claim, status, annotations.get(meta.ALLOCATED_NODE), self.now)
        notes = {} if problem is None else self._notes(*problem)
        return _annotation_change(claim, status, {**annotations, **notes})

    def _notes(self, reason: str, message: str) -> dict[str, str | None]:
        return {meta.REASON: reason, meta.MESSAGE: message} if self.form.in_annotations else {}


def _grant_change(
    claim: Object, answer: Mapping[str, Any], admin: frozenset[str], attributes: PoolAttributes, says: _ClaimWriter
) -> Change:
    written = ("allocations", "classConfigs", "classConfigAllocations", "claimConfigs")
    status = {name: value for name, value in claim.get("status", {}).items() if name not in written}
    status |= {name: answer[name] for name in written if answer.get(name)}
    annotations = {**answer.get("annotations", {}), meta.ALLOCATED_SPEC: canonical_spec(claim), meta.RELEASE: None}
    annotations[meta.ALLOCATED_DEVICES] = allocation_words(answer["allocations"])
    annotations[meta.ALLOCATED_IDENTITIES] = attributes.identities(answer["allocations"])
    if named := sorted(admin & class_names(claim)):
        annotations[meta.ADMIN_CLASSES] = json.dumps(named)
    return says.given(claim, status, annotations, answer.get("node"))


def has_answer(status: Mapping[str, Any]) -> bool:
    """Whether the status of a claim says whether it has devices."""
    return bool(find_condition(status.get("conditions"), ALLOCATED))


def with_given(claim: Object, status: Object, node: str | None, now: str) -> Object:
    """The status of a claim that has the devices in it, with what says so. It goes when these are taken back."""
    message = allocation_words(status["allocations"]) + (f" on node {node}" if node else "")
    return _with_answer(claim, status, ("True", ALLOCATED, message), now, node)


def with_shown_answer(claim: Object) -> Object:
    """A claim of an embedded store, which has its answer in annotations, with the conditions that it would have on a
    cluster. Since when they are so, and for which generation, is not stored."""
    view = ClaimView(claim)
    status, problem = dict(view.status), (view.reason, view.message)
    if has_answer(status):
        return claim
    unknown = {**claim, "metadata": {**claim["metadata"], "generation": None}}
    if view.entries and not problem[0]:
        status = with_given(unknown, status, view.node, "")
    elif view.entries:
        status = _with_answer(unknown, status, ("True", *problem), "", view.node)
    elif problem[0]:
        status = _with_answer(unknown, status, ("False", *problem), "")
    else:
        waits = [one for one in DEFAULT_STATUS[DEVICE_CLAIM]["conditions"] if one["type"] in _OURS]
        status = {**status, "conditions": [*status.get("conditions", ()), *waits]}
    return {**claim, "status": status}


def _with_answer(
    claim: Object, status: Object, content: tuple[str, str, str], now: str, node: str | None = None
) -> Object:
    conditions, generation = status.get("conditions"), claim["metadata"].get("generation")
    for name in _OURS:
        conditions = with_condition(conditions, name, content, now, generation)
    is_invalid = content[:2] == ("False", Reason.CLAIM_INVALID.value)
    conditions = with_stall(conditions, content[1:] if is_invalid else None, now, generation)
    status = {**status, "conditions": conditions, "reason": content[1]}
    return status if node is None else {**status, "nodeName": node}


def allocation_words(entries: Sequence[Any]) -> str:
    """Devices as a column shows them."""
    return format_devices(entries)[:_MAX_MESSAGE]


def _unit_of_kept(claim: Object, answer: Mapping[str, Any], says: _ClaimWriter) -> WriteUnit | None:
    """What to write on an allocated claim; None if it says all already."""
    view = ClaimView(claim)
    if view.wants_release and not view.is_held:
        return WriteUnit((release_change(claim),), granted=False, released=True)
    change = _keep_change(claim, answer, says)
    return WriteUnit((change,), granted=False) if _changes_object(change, claim) else None


def _keep_change(claim: Object, answer: Mapping[str, Any], says: _ClaimWriter) -> Change:
    """An allocated claim: its allocation stays; what is wrong with it is said."""
    view = ClaimView(claim)
    stored = {name: view.annotation(name) for name in ALLOCATION_ANNOTATIONS} | dict.fromkeys(_REASONS)
    if not answer["allocated"]:  # invalid in a way that an edit of the spec does not explain; what it holds it holds
        return says.held(claim, claim["status"], stored, (answer["reason"], answer["message"]))
    problem = None
    for warning in answer.get("warnings", ()):  # of an invalid claim: why, and it keeps what it holds
        reason, _, message = warning.partition(": ")
        if reason == Reason.CLAIM_INVALID:
            problem = reason, message
    if allocated_spec(claim) != claim.get("spec") and not view.is_deleting:
        namespace, name = view.key
        problem = (
            Reason.SPEC_CHANGED.value,
            "the spec was edited after the allocation, which stays as it is; "
            f"to apply the edit: devalloc release -n {namespace} {name}",
        )
    lost = {(entry["devicePoolName"], entry["deviceName"]) for entry in answer.get("lost", ())}
    status = dict(claim["status"])
    if DeviceClaimStatus.accepts(status):  # of what others wrote in another form nothing is changed
        stored[meta.ALLOCATED_DEVICES] = allocation_words(view.entries)  # of versions before this, too
        if statuses := _device_statuses(claim, lost, says.now):
            status["deviceStatuses"] = statuses
    return says.held(claim, status, stored, problem)


def _device_statuses(claim: Object, lost: set[tuple[str, str]], now: str) -> list[Any]:
    """The statuses of the claim's devices, with the condition DeviceLost if a device went or came back.

    All else in them is their drivers'.
    """
    statuses = list(claim["status"].get("deviceStatuses", ()))
    positions = {(s.get("devicePoolName"), s.get("deviceName")): i for i, s in enumerate(statuses)}
    for entry in ClaimView(claim).entries:
        device = (entry["devicePoolName"], entry["deviceName"])
        position = positions.get(device)
        if position is None:
            if device not in lost:
                continue
            position = positions[device] = len(statuses)
            statuses.append({"devicePoolName": device[0], "deviceName": device[1]})
        status = statuses[position]
        conditions, (pool, name) = status.get("conditions", []), device
        if device in lost:
            content = "True", "DeviceGone", f"device {name} of pool {pool} no longer exists"
        elif find_condition(conditions, DEVICE_LOST):
            content = "False", "DeviceBack", f"device {name} of pool {pool} exists again"
        else:
            continue
        conditions = with_condition(conditions, DEVICE_LOST, content, now)
        if conditions != status.get("conditions"):
            statuses[position] = {**status, "conditions": conditions}
    return statuses


def _annotation_change(claim: Object, status: Object | None, annotations: Mapping[str, str | None]) -> Change:
    """Of the allocator's own annotations, exactly these."""
    return Change.of(claim, status, {**dict.fromkeys(ALLOCATION_ANNOTATIONS), **annotations})


def _changes_object(change: Change, claim: Object) -> bool:
    return any(ClaimView(claim).annotation(name) != value for name, value in change.annotations.items()) or json.dumps(
        change.status or {}, sort_keys=True
    ) != json.dumps(claim.get("status", {}), sort_keys=True)
