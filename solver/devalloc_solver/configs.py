"""Copies of configuration objects for an answer: what classes and chosen details refer to, as it is now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Any

from devalloc.api.claim import DeviceConfigReference
from devalloc_solver.intake import ConfigKey, Intake

OF_CONFIGS = ("classConfigs", "classConfigAllocations", "claimConfigs")
"""What an answer, and the status of a claim, say of configuration objects."""


def copied(
    namespace: str, entries: Iterable[tuple[str | None, Sequence[DeviceConfigReference]]], intake: Intake
) -> dict[str, Any]:
    """What an answer says of them, where there is something to say: ``classConfigs`` and ``claimConfigs``, each object
    once, in spec order; ``classConfigAllocations`` where one of the classes is not for all allocations.

    ``entries``: of each allocation the class that accepted the device, and what its detail refers to. A claim may name
    several classes, or a type that several have.
    """
    count = 0
    of_class: dict[ConfigKey, dict[int, None]] = {}  # a class may name an object twice
    of_claim: dict[ConfigKey, None] = {}
    for index, (accepted, own) in enumerate(entries):
        count += 1
        for ref in intake.classes[accepted].spec.configs if accepted is not None else ():
            of_class.setdefault((ref.api_version, ref.kind, ref.namespace, ref.name), {})[index] = None
        for mine in own:
            of_claim[mine.api_version, mine.kind, namespace, mine.name] = None
    is_partial = any(len(indexes) < count for indexes in of_class.values())
    said: dict[str, Any] = {
        "classConfigs": [deepcopy(intake.configs[key]) for key in of_class],
        "classConfigAllocations": [list(indexes) for indexes in of_class.values()] if is_partial else [],
        "claimConfigs": [deepcopy(intake.configs[key]) for key in of_claim],
    }
    return {name: found for name, found in said.items() if found}
