"""Conditions of objects (``metav1.Condition``): how one is built and takes the place of the one before it; and the
status that the API server fills in on objects that have none.

That status is a default of the CRD, so no request writes it, and `kubectl wait`, Helm, Argo CD and Flux see an object
that has no answer yet as one that is not ready. Stores leave it out of what they read: for devalloc such an object has
no status.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

READY: Final = "Ready"
"""Condition for tools that know no other one: whether a claim has devices; whether a machine runs and, if its guest
reports, says that it is ready; whether a replica set has all its machines, and they are ready; whether a migration has
moved its machine. A machine that is stopped on request, and whose guest does not report, has none."""
LAST_READY: Final = "LastReady"
"""Condition of a machine whose guest reports and whose node no plugin serves: what Ready was. The plugin takes that up
again when it is back, for a guest need not report twice."""
REPLICA_FAILURE: Final = "ReplicaFailure"
"""Condition of a replica set: why machines cannot be created or deleted. It is not there otherwise."""
STALLED: Final = "Stalled"
"""Condition of a migration that failed, and of a claim, machine or class that is invalid: nothing more happens until
the object is changed or replaced, so tools do not wait any longer. Others have none."""
PLACED: Final = "Placed"
"""Condition of a machine: whether a node was chosen that keeps for it what it needs. Where it is False, why."""
ALLOCATED: Final = "Allocated"
"""Condition of a claim: whether it has devices; and its reason if nothing is wrong with them."""
VALID: Final = "Valid"
"""Condition of a class: whether claims can name it. Where it is False, why."""
DEVICE_LOST: Final = "DeviceLost"
"""Condition of an allocated device that no longer exists (S18), and the state of its claim."""
WAITING: Final = "Waiting"
"""Reason of the conditions that the API server fills in."""
_WAITING: Final = {
    "status": "False",
    "lastTransitionTime": "1970-01-01T00:00:00Z",
    "reason": WAITING,
    "message": "devalloc's controller has not answered yet",
}
DEFAULT_STATUS: Final[dict[str, dict[str, Any]]] = {
    "DeviceClaim": {"conditions": [{"type": name, **_WAITING} for name in (ALLOCATED, READY)]},
    "VirtualMachine": {"conditions": [{"type": name, **_WAITING} for name in (PLACED, READY)]},
    "VirtualMachineMigration": {"conditions": [{"type": READY, **_WAITING}]},
    "VirtualMachineReplicaSet": {"conditions": [{"type": READY, **_WAITING}]},
}
"""By kind."""
MAX_MESSAGE: Final = 32768
"""Characters of a condition's message, as in the API conventions of Kubernetes."""


def find_condition(conditions: object, name: str) -> Mapping[str, Any]:
    """The condition of a type among those of a status, well formed or not; empty without it."""
    return next((one for one in _readable(conditions) if one.get("type") == name), {})


def with_condition(
    conditions: object,
    name: str,
    content: tuple[str, str, str],
    now: str,
    generation: object = None,
) -> list[Any]:
    """Conditions with this one, which keeps its place, and the time of its last transition as long as its status does.

    ``content``: status, reason and message. ``now``: "" if it is not known when the status changed. ``generation``: of
    the object that was observed, if it has one.
    """
    others = _readable(conditions)
    before = find_condition(others, name)
    status, reason, message = content
    since = (before.get("lastTransitionTime") if before.get("status") == status else None) or now
    new: dict[str, Any] = {
        "type": name,
        "status": status,
        **({"lastTransitionTime": since} if since else {}),
        "reason": reason,
        "message": message[:MAX_MESSAGE],
    }
    if isinstance(generation, int):
        new["observedGeneration"] = generation
    return [new if one is before else one for one in others] if before else [*others, new]


def with_conditions(conditions: object, new: Iterable[Mapping[str, str]], now: str) -> list[Any]:
    """Conditions with all of these, each with type and status, and reason and message if there are any; as
    ``with_condition``."""
    merged = _readable(conditions)
    for one in new:
        content = one["status"], one.get("reason", ""), one.get("message", "")
        merged = with_condition(merged, one["type"], content, now)
    return merged


def with_stall(conditions: object, why: tuple[str, str] | None, now: str, generation: object = None) -> list[Any]:
    """Conditions with Stalled, or without it. ``why``: its reason and message; None if something goes on."""
    if why is None:
        return without_conditions(conditions, [STALLED])
    return with_condition(conditions, STALLED, ("True", *why), now, generation)


def without_conditions(conditions: object, names: Iterable[str]) -> list[Any]:
    """Conditions without those of these types."""
    gone = frozenset(names)
    return [one for one in _readable(conditions) if one.get("type") not in gone]


def with_migration_conditions(status: Mapping[str, Any], now: str, generation: object) -> dict[str, Any]:
    """The status of a migration with the conditions that say the same as its phase, reason and message. ``now``: RFC
    3339."""
    phase = str(status.get("phase") or "Pending")
    words = str(status.get("reason") or phase), str(status.get("message") or f"its phase is {phase}")
    is_ready = "True" if phase == "Succeeded" else "False"
    conditions = with_condition(status.get("conditions"), READY, (is_ready, *words), now, generation)
    return {**status, "conditions": with_stall(conditions, words if phase == "Failed" else None, now, generation)}


def _readable(conditions: object) -> list[dict[str, Any]]:
    return [one for one in conditions if isinstance(one, dict)] if isinstance(conditions, list) else []


def without_default_status(kind: str, content: dict[str, Any]) -> dict[str, Any]:
    """The object without a status that is the default; also one of a CRD of another version."""
    default = DEFAULT_STATUS.get(kind)
    status = content.get("status")
    if default is None or not isinstance(status, dict) or [*status] != ["conditions"]:
        return content
    conditions = status["conditions"]
    if not isinstance(conditions, list) or not conditions or not all(map(_is_waiting, conditions)):
        return content
    return {name: part for name, part in content.items() if name != "status"}


def _is_waiting(condition: Any) -> bool:
    facts = ("status", "lastTransitionTime", "reason")
    return isinstance(condition, dict) and all(condition.get(name) == _WAITING[name] for name in facts)
