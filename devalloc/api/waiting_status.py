"""The status that the API server fills in on claims that have none: they wait for devices.

It is a default of the CRD, so no request writes it, and `kubectl wait`, Helm, Argo CD and Flux see a claim that waits
as one that is not ready. Stores leave it out of what they read: for devalloc such a claim has no status.
"""

from __future__ import annotations

from typing import Any, Final

READY: Final = "Ready"
"""Condition of a claim that has devices, for tools that know no other one."""
ALLOCATED: Final = "Allocated"
"""Condition of a claim that has devices, and its reason."""
_WAITING: Final = {
    "status": "False",
    "lastTransitionTime": "1970-01-01T00:00:00Z",
    "reason": "Waiting",
    "message": "no devices yet; the annotations devalloc.io/reason and devalloc.io/message say why",
}
DEFAULT_STATUS: Final[dict[str, dict[str, Any]]] = {
    "DeviceClaim": {"conditions": [{"type": name, **_WAITING} for name in (ALLOCATED, READY)]},
}
"""By kind."""


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
