"""Copies of configuration objects for an answer: those that its classes and chosen requests refer to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Any

from devalloc.api.claim import DeviceConfigReference
from devalloc_solver.dialects.device_claims.manifests import ConfigKey, ProblemInput

CONFIG_FIELDS = ("classConfigs", "classConfigAllocations", "claimConfigs")
"""What an answer, and the status of a claim, say of configuration objects."""


def config_entries(
    namespace: str, entries: Iterable[tuple[str | None, Sequence[DeviceConfigReference]]], problem_input: ProblemInput
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
        for ref in problem_input.classes[accepted].spec.configs if accepted is not None else ():
            of_class.setdefault((ref.api_version, ref.kind, ref.namespace, ref.name), {})[index] = None
        for own_ref in own:
            of_claim[own_ref.api_version, own_ref.kind, namespace, own_ref.name] = None
    is_partial = any(len(indexes) < count for indexes in of_class.values())
    sections: dict[str, Any] = {
        "classConfigs": [deepcopy(problem_input.configs[key]) for key in of_class],
        "classConfigAllocations": [list(indexes) for indexes in of_class.values()] if is_partial else [],
        "claimConfigs": [deepcopy(problem_input.configs[key]) for key in of_claim],
    }
    return {name: section for name, section in sections.items() if section}
