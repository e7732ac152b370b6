"""From the solver's answer to what is written on the claims. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import ValidationError

from devalloc.api import meta
from devalloc.api.claim import DeviceClaimStatus
from devalloc.api.inwords import devices_text
from devalloc.controller.claims import (
    OF_ALLOCATION,
    ClaimKey,
    admin_classes,
    allocated_spec,
    allocations,
    annotation,
    claim_key,
    claims_among,
    classes_named,
    group_of,
    is_deleting,
    is_prepared,
    spec_text,
    wants_release,
)
from devalloc.controller.reading import Made
from devalloc.controller.release import released
from devalloc.store import Change, Key, Object
from devalloc_solver.reasons import SEARCHING, Reason

SPEC_CHANGED = "SpecChanged"
"""Reason on an allocated claim: its spec was edited, which takes effect only after a release (S18)."""
STILL_PREPARED = "StillPrepared"
"""Reason on a claim that holds nothing any more: its node has not let go of what it held."""
_LENGTH = 300
"""Characters that a column shows of a claim's devices."""
OF_THE_BATCH = frozenset({Reason.LOST_TO_HIGHER_PRIORITY.value, Reason.LOST_TO_COMPETITION.value})
"""Reasons of claims that would have found a place, had others that are answered with them asked for less."""
ALLOCATED = "Allocated"
"""Condition of a claim that has devices, and its reason."""
DEVICE_LOST = "DeviceLost"
"""Condition of an allocated device that exists no more (S18)."""


@dataclass(frozen=True)
class Unit:
    """Changes that only make sense together: a group, or one claim."""

    changes: tuple[Change, ...]
    granted: bool
    """It gives devices to claims that had none."""
    released: bool = False
    """It takes devices from a claim, so that another round is due."""
    grows: bool = False
    """It gives more to a machine that has some."""
    passing: bool = False
    """It says that others of the batch were given what is wanted: a reason that holds until these have it."""

    @property
    def keys(self) -> frozenset[Key]:
        return frozenset(change.key for change in self.changes)


def decide(
    documents: Sequence[Object],
    answer: Mapping[str, Any],
    now: str,
    made: Made | None = None,
    *,
    has_conditions: bool = False,
) -> list[Unit]:
    """What to write so that the claims say what ``answer`` (of ``solve_manifests`` for these documents) says.

    Claims that say it already are left out. ``now`` is the time of conditions that change, RFC 3339.
    ``has_conditions``: claims that get devices get the condition ``Allocated`` as well.
    """
    answers: dict[ClaimKey, Mapping[str, Any]] = {(a["namespace"], a["name"]): a for a in answer["claims"]}
    admin, made = admin_classes(documents), made or Made()
    groups: dict[tuple[str, str], list[Change]] = {}
    blocked = {(claim_key(claim)[0], group_of(claim)) for claim in claims_among(documents) if _is_held_back(claim)}
    units = []
    for claim in claims_among(documents):
        key = claim_key(claim)
        found = answers.get(key)
        if found is None or found.get(SEARCHING):
            continue
        granted = passing = False
        if allocations(claim) and wants_release(claim) and not is_prepared(claim):
            units.append(Unit((released(claim),), granted=False, released=True))
            continue
        if allocations(claim):
            if (kept := made.of("kept", claim, partial(_kept_if_new, claim, found, now), found)) is None:
                continue
            change = kept
        elif is_deleting(claim):
            continue
        elif _is_held_back(claim):
            change = _change(claim, claim.get("status"), {meta.REASON: STILL_PREPARED, meta.MESSAGE: _STILL_PREPARED})
        elif found["allocated"] and group_of(claim) is not None and (key[0], group_of(claim)) in blocked:
            continue  # all of a group or none
        elif found["allocated"]:
            change, granted = _granted(claim, found, admin, now if has_conditions else None), True
        else:
            change, passing = _refused(claim, found), found["reason"] in OF_THE_BATCH
        if not _says_anything(change, claim):
            continue
        group = group_of(claim)
        if granted and group is not None:
            groups.setdefault((key[0], group), []).append(change)
        else:
            units.append(Unit((change,), granted, passing=passing))
    return units + [Unit(tuple(changes), granted=True) for changes in groups.values()]


_STILL_PREPARED = (
    "its node has not let go of the devices it held before; it is answered when the finalizer "
    f"{meta.NODE_FINALIZER} is gone"
)


def _is_held_back(claim: Object) -> bool:
    """Whether a claim that holds nothing is still prepared: somebody took its status away, and its node lives on."""
    return is_prepared(claim) and not allocations(claim)


def _granted(claim: Object, answer: Mapping[str, Any], admin: frozenset[str], since: str | None) -> Change:
    """``since``: the time of the condition; None for none."""
    written = ("allocations", "classConfigs", "classConfigAllocations", "claimConfigs")
    status = {name: value for name, value in claim.get("status", {}).items() if name not in written}
    status |= {name: answer[name] for name in written if answer.get(name)}
    if since is not None:
        told = status.get("conditions")
        others = [one for one in told if one.get("type") != ALLOCATED] if isinstance(told, list) else []
        status["conditions"] = [*others, _allocated(claim, answer, since)]
    annotations = {**answer.get("annotations", {}), meta.ALLOCATED_SPEC: spec_text(claim), meta.RELEASE: None}
    annotations[meta.ALLOCATED_DEVICES] = _shown(answer["allocations"])
    if named := sorted(admin & classes_named(claim)):
        annotations[meta.ADMIN_CLASSES] = json.dumps(named)
    return _change(claim, status, annotations)


def _allocated(claim: Object, answer: Mapping[str, Any], since: str) -> dict[str, Any]:
    """The condition for those who wait for it. It goes with the rest of the status when the devices are taken back."""
    node = f" on node {answer['node']}" if answer.get("node") else ""
    condition: dict[str, Any] = {
        "type": ALLOCATED,
        "status": "True",
        "lastTransitionTime": since,
        "reason": ALLOCATED,
        "message": f"{_shown(answer['allocations'])}{node}",
    }
    if isinstance(generation := claim["metadata"].get("generation"), int):
        condition["observedGeneration"] = generation
    return condition


def _shown(entries: Sequence[Any]) -> str:
    return devices_text(entries)[:_LENGTH]


def _refused(claim: Object, answer: Mapping[str, Any]) -> Change:
    return _change(claim, claim.get("status"), {meta.REASON: answer["reason"], meta.MESSAGE: answer["message"]})


def _kept_if_new(claim: Object, answer: Mapping[str, Any], now: str) -> Change | None:
    change = _kept(claim, answer, now)
    return change if _says_anything(change, claim) else None


def _kept(claim: Object, answer: Mapping[str, Any], now: str) -> Change:
    """An allocated claim: its allocation stays; what is wrong with it is said."""
    kept = {name: annotation(claim, name) for name in OF_ALLOCATION}
    if not answer["allocated"]:  # invalid in a way that an edit of the spec does not explain; what it holds it holds
        said = {meta.REASON: answer["reason"], meta.MESSAGE: answer["message"]}
        return _change(claim, claim["status"], {**kept, **said})
    said = dict.fromkeys((meta.REASON, meta.MESSAGE))
    for warning in answer.get("warnings", ()):  # of an invalid claim: why, and it keeps what it holds
        reason, _, message = warning.partition(": ")
        if reason == Reason.CLAIM_INVALID:
            said = {meta.REASON: reason, meta.MESSAGE: message}
    if allocated_spec(claim) != claim.get("spec") and not is_deleting(claim):
        namespace, name = claim_key(claim)
        said[meta.REASON] = SPEC_CHANGED
        said[meta.MESSAGE] = (
            "the spec was edited after the allocation, which stays as it is; "
            f"to have the edit answered: devalloc release -n {namespace} {name}"
        )
    lost = {(entry["devicePoolName"], entry["deviceName"]) for entry in answer.get("lost", ())}
    status = dict(claim["status"])
    if _is_readable(status):
        said[meta.ALLOCATED_DEVICES] = _shown(allocations(claim))  # of versions before this, too
        if statuses := _device_statuses(claim, lost, now):
            status["deviceStatuses"] = statuses
    return _change(claim, status, {**kept, **said})


def _is_readable(status: Object) -> bool:
    """Whether a status is one of the API: of what others wrote in another form nothing is changed."""
    try:
        DeviceClaimStatus.model_validate(status, by_alias=True, by_name=False)
    except ValidationError:
        return False
    return True


def _device_statuses(claim: Object, lost: set[tuple[str, str]], now: str) -> list[Any]:
    """The statuses of the claim's devices, with the condition DeviceLost where a device went or came back.

    All else in them is their drivers'.
    """
    statuses = list(claim["status"].get("deviceStatuses", ()))
    positions = {(s.get("devicePoolName"), s.get("deviceName")): i for i, s in enumerate(statuses)}
    for entry in allocations(claim):
        device = (entry["devicePoolName"], entry["deviceName"])
        position = positions.get(device)
        if position is None:
            if device not in lost:
                continue
            position = positions[device] = len(statuses)
            statuses.append({"devicePoolName": device[0], "deviceName": device[1]})
        status = statuses[position]
        conditions = [c for c in status.get("conditions", ()) if c.get("type") != DEVICE_LOST]
        before = next((c for c in status.get("conditions", ()) if c.get("type") == DEVICE_LOST), None)
        if before is None and device not in lost:
            continue
        condition = _device_lost(device, device in lost, before, now)
        if condition != before:
            statuses[position] = {**status, "conditions": [*conditions, condition]}
    return statuses


def _device_lost(device: tuple[str, str], lost: bool, before: Mapping[str, Any] | None, now: str) -> dict[str, Any]:
    value = "True" if lost else "False"
    pool, name = device
    return {
        "type": DEVICE_LOST,
        "status": value,
        "lastTransitionTime": before["lastTransitionTime"] if before and before.get("status") == value else now,
        "reason": "DeviceGone" if lost else "DeviceBack",
        "message": f"device {name} of pool {pool} " + ("does not exist any more" if lost else "exists again"),
    }


def _change(claim: Object, status: Object | None, annotations: Mapping[str, str | None]) -> Change:
    """Of the allocator's own annotations, exactly these."""
    return Change(
        Key.of(claim), claim["metadata"]["resourceVersion"], status, {**dict.fromkeys(OF_ALLOCATION), **annotations}
    )


def _says_anything(change: Change, claim: Object) -> bool:
    return any(annotation(claim, name) != value for name, value in change.annotations.items()) or json.dumps(
        change.status or {}, sort_keys=True
    ) != json.dumps(claim.get("status", {}), sort_keys=True)
