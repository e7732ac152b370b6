"""Answers for placed claims, in the form of ``solve_manifests``, and allocations read back from them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import lru_cache
from typing import Any

from devalloc.api.claim import DeviceClaim, DeviceClaimStatus
from devalloc.api.meta import ALLOCATED_NODE, ALLOCATION_DETAILS
from devalloc.api.quantity import Quantity
from devalloc_solver.dialects.devmgmt.config_copies import CONFIG_FIELDS, config_entries
from devalloc_solver.dialects.devmgmt.manifests import ProblemInput
from devalloc_solver.fleet.interfaces import ChosenDevice, ChosenPlace


def placed_answer(
    claim: DeviceClaim, spot: ChosenPlace, intake: ProblemInput, warnings: Sequence[str]
) -> dict[str, Any]:
    """The dict of one allocated claim (settled L2)."""
    chosen: list[int | None] = [None] * len(claim.spec.claims)
    for given in spot.given:
        chosen[given.request.detail] = given.request.alternative
    annotations = {ALLOCATION_DETAILS: _labels(tuple([given.request.label for given in spot.given]))}
    if spot.node is not None:
        annotations[ALLOCATED_NODE] = spot.node
    namespace, name = claim.key
    answer: dict[str, Any] = {
        "namespace": namespace,
        "name": name,
        "allocated": True,
        "node": spot.node,
        "allocations": [
            {"devicePoolName": given.pool.name, "deviceName": given.device.name}
            if not given.amounts
            else _share(claim, given)
            for given in spot.given
        ],
        "oneOf": chosen,
        "reason": None,
        "message": None,
        "annotations": annotations,
    }
    answer |= config_entries(namespace, ((given.accepted, given.request.spec.configs) for given in spot.given), intake)
    if warnings:
        answer["warnings"] = list(warnings)
    return answer


@lru_cache(maxsize=1024)
def _labels(labels: tuple[str, ...]) -> str:
    return json.dumps(labels)


def status_of_answer(answer: Mapping[str, Any]) -> dict[str, Any]:
    """What of an answer is written on its claim, as a copy: the answer is the caller's."""
    content = {
        "allocations": [
            {**entry, "allocations": [*map(dict, entry["allocations"])]} if "allocations" in entry else {**entry}
            for entry in answer["allocations"]
        ],
        "annotations": {**answer["annotations"]},
    }
    for name in CONFIG_FIELDS:
        if name in answer:
            content[name] = deepcopy(answer[name])
    return content


def with_status(claim: DeviceClaim, answer: Mapping[str, Any]) -> DeviceClaim:
    """The claim as it is once its answer is written on it."""
    content = {
        "allocations": answer["allocations"],
        **{name: answer[name] for name in CONFIG_FIELDS if name in answer},
    }
    status = DeviceClaimStatus.model_validate(content, by_alias=True, by_name=False)
    annotations = {**claim.metadata.annotations, **answer["annotations"]}
    metadata = claim.metadata.model_copy(update={"annotations": annotations})
    return claim.model_copy(update={"status": status, "metadata": metadata})


def _share(claim: DeviceClaim, given: ChosenDevice) -> dict[str, Any]:
    # The request may be that of an equal claim, which wrote its amounts in another way.
    requests = claim.spec.claims[given.request.detail].alternatives[given.request.alternative or 0].requests
    return {
        "devicePoolName": given.pool.name,
        "deviceName": given.device.name,
        "allocations": [
            {"name": name, "allocation": str(Quantity(nano, requests[name].format))} for name, nano in given.amounts
        ],
    }
