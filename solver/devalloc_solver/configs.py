"""Copies of configuration objects for an answer: what classes and chosen details refer to, as it is now."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Any

from devalloc.api.claim import DeviceConfigReference
from devalloc.api.meta import CONFIG_OF
from devalloc_solver.intake import ConfigKey, Intake

Copies = list[dict[str, Any]]


def copied(
    namespace: str, entries: Iterable[tuple[str | None, Sequence[DeviceConfigReference]]], intake: Intake
) -> tuple[Copies, Copies]:
    """Those of the classes and those of the claim, each once, in spec order.

    ``entries``: of each allocation the class that accepted the device, and what its detail refers to. A copy of a
    class's configuration tells which of them it is for: a claim may name several classes, or a type that several have.
    """
    of_class: dict[ConfigKey, list[int]] = {}
    of_claim: dict[ConfigKey, None] = {}
    for index, (accepted, own) in enumerate(entries):
        for ref in intake.classes[accepted].spec.configs if accepted is not None else ():
            of_class.setdefault((ref.api_version, ref.kind, ref.namespace, ref.name), []).append(index)
        for mine in own:
            of_claim[mine.api_version, mine.kind, namespace, mine.name] = None
    return (
        [_for(intake.configs[key], indexes) for key, indexes in of_class.items()],
        [deepcopy(intake.configs[key]) for key in of_claim],
    )


def _for(config: dict[str, Any], indexes: Sequence[int]) -> dict[str, Any]:
    copy = deepcopy(config)
    copy["metadata"]["annotations"] = {**(copy["metadata"].get("annotations") or {}), CONFIG_OF: json.dumps(indexes)}
    return copy
