"""Change one field of a manifest."""

from __future__ import annotations

from copy import deepcopy
from typing import Any


def with_change(content: dict[str, Any], where: str, value: Any) -> dict[str, Any]:
    """A copy with ``value`` at ``where``, such as spec.devices.1.name; None takes the place away.

    A ``~`` in a step stands for a dot.
    """
    result: Any = deepcopy(content)
    *way, last = (step.replace("~", ".") for step in where.split("."))
    place = result
    for step in way:
        place = place[int(step)] if isinstance(place, list) else place.setdefault(step, {})
    key: Any = int(last) if isinstance(place, list) else last
    if value is None:
        del place[key]
    else:
        place[key] = value
    return result
