"""What a claim gets by its place: its answer, what of it is written on the claim, and what it holds from then on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import lru_cache
from typing import Any, NamedTuple

from devalloc.api.meta import ALLOCATED_NODE, ALLOCATION_DETAILS, DEVICE_RECORDS
from devalloc.api.quantity import Quantity
from devalloc_solver.dialects.device_claims.answers import CONFIG_FIELDS, config_entries, records_of
from devalloc_solver.dialects.device_claims.manifest_records import ClaimRecord
from devalloc_solver.dialects.device_claims.manifests import ProblemInput
from devalloc_solver.fleet.node_class_plan import ChosenDevice, ChosenPlace
from devalloc_solver.fleet.node_index import HeldDevice, HeldDevices, HeldItem
from devalloc_solver.fleet.placed import PlacedClaim
from devalloc_solver.problem.ghosts import device_record
from devalloc_solver.problem.snapshot import Device, Pool


class _WholeDevice(NamedTuple):
    """A device that a claim gets whole, in the forms that are needed of it: equal for all claims, so made once."""

    entry: dict[str, Any]
    """of the allocations; each answer has a copy"""
    held: HeldDevice
    item: HeldItem
    is_limited: bool
    """whether it draws on what others of its pool draw on, too"""


def place_claim(claim: ClaimRecord, spot: ChosenPlace, problem_input: ProblemInput) -> PlacedClaim:
    """The claim with the devices of a place."""
    namespace, name = claim.key
    chosen: list[int | None] = [None] * len(claim.spec.claims)
    labels: list[str] = []
    entries: list[dict[str, Any]] = []
    held: list[HeldDevice] = []
    items: list[HeldItem] = []
    limited: list[tuple[Pool, Device]] = []
    before, label = None, ""
    for given in spot.given:
        request, pool, device, amounts = given.request, given.pool, given.device, given.amounts
        if request is not before:
            before, label = request, request.label
            chosen[request.detail] = request.alternative
        labels.append(label)
        whole = pool.given.get(device.index) or _whole_device(pool, device)
        entry, own_held, item, is_limited = whole
        if amounts:
            entry, own_held, item = _share(claim, given), own_held._replace(amounts=amounts), (*item[:2], amounts)
        entries.append(entry)
        if not request.mode.is_admin:
            held.append(own_held)
            items.append(item)
            if is_limited:
                limited.append((pool, device))
    annotations = {ALLOCATION_DETAILS: _labels(tuple(labels))}
    if spot.node is not None:
        annotations[ALLOCATED_NODE] = spot.node
    if limited and (records := records_of(limited)) is not None:
        annotations[DEVICE_RECORDS] = records
    answer: dict[str, Any] = {
        "namespace": namespace,
        "name": name,
        "allocated": True,
        "node": spot.node,
        "allocations": _copies(entries),
        "oneOf": chosen,
        "reason": None,
        "message": None,
        "annotations": annotations,
    }
    written: dict[str, Any] = {"allocations": entries, "annotations": {**annotations}}
    if problem_input.configs:
        given_by = ((given.accepted, given.request.spec.configs) for given in spot.given)
        configs = config_entries(namespace, given_by, problem_input)
        answer |= configs
        written |= deepcopy(configs)
    answer |= claim.repeated
    return PlacedClaim(answer, written, HeldDevices(claim.priority, spot.node, tuple(held)), items)


def _whole_device(pool: Pool, device: Device) -> _WholeDevice:
    is_limited = bool(pool.resources) or device.compatibility is not None
    record = device_record(pool, device) if is_limited else None
    whole = _WholeDevice(
        {"devicePoolName": pool.name, "deviceName": device.name},
        HeldDevice(pool.name, device.name, None, record),
        (pool.node, device.index, None),
        is_limited,
    )
    pool.given[device.index] = whole
    return whole


@lru_cache(maxsize=1024)
def _labels(labels: tuple[str, ...]) -> str:
    return json.dumps(labels)


def _copies(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {**entry, "allocations": [*map(dict, entry["allocations"])]} if "allocations" in entry else {**entry}
        for entry in entries
    ]


def status_of_answer(answer: Mapping[str, Any]) -> dict[str, Any]:
    """What of an answer is written on its claim, as a copy: the answer is the caller's."""
    content = {"allocations": _copies(answer["allocations"]), "annotations": {**answer["annotations"]}}
    return content | {name: deepcopy(answer[name]) for name in CONFIG_FIELDS if name in answer}


def _share(claim: ClaimRecord, given: ChosenDevice) -> dict[str, Any]:
    # The request may be that of an equal claim, which wrote its amounts in another way.
    requests = claim.spec.claims[given.request.detail].alternatives[given.request.alternative or 0].requests
    return {
        "devicePoolName": given.pool.name,
        "deviceName": given.device.name,
        "allocations": [
            {"name": name, "allocation": str(Quantity(nano, requests[name].format))} for name, nano in given.amounts
        ],
    }
