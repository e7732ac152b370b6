"""The answer to one claim of a cluster (settled L2), and its AllocationResult: devices, configuration, selector."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from devalloc.api.device_records import DeviceRecord, PoolDevice, write_records
from devalloc.api.meta import DEVICE_RECORDS
from devalloc_solver.dialects.resource_k8s import feature_gates as gate
from devalloc_solver.dialects.resource_k8s.candidates import RequestCandidates
from devalloc_solver.dialects.resource_k8s.claims import ResourceClaim, ResourceDeviceClass, SubRequest
from devalloc_solver.dialects.resource_k8s.decode import selected_node
from devalloc_solver.dialects.resource_k8s.fields import Amount
from devalloc_solver.dialects.resource_k8s.published_devices import (
    DeviceId,
    PublishedDevice,
    published_device,
    record_of_device,
)
from devalloc_solver.dialects.resource_k8s.slices import merge_selectors, single_node_selector
from devalloc_solver.problem.answer import ClaimAnswer
from devalloc_solver.problem.demand import Demand
from devalloc_solver.problem.placement import PlacedDevice, Placement

_SHARES = uuid.UUID("5b1d3c02-7b0f-5d7e-9c68-0d1f3c1e7a55")
"""The namespace of share ids."""


class ShareIds:
    """Share ids derived from claim, request, device and number: the same every time, and new on their device."""

    def __init__(self, used: Mapping[DeviceId, Iterable[str]]) -> None:
        """``used``: the ids that shares of a device have already."""
        self._used = used
        self._taken_ids: dict[DeviceId, set[str]] = {}

    def make(self, claim: ResourceClaim, subrequest: SubRequest, offer: PublishedDevice) -> str:
        taken_ids = self._taken_ids.get(offer.id)
        if taken_ids is None:
            taken_ids = self._taken_ids[offer.id] = set(self._used.get(offer.id, ()))
        number = 0
        while (share_id := self._name(claim, subrequest, offer, number)) in taken_ids:
            number += 1
        taken_ids.add(share_id)
        return share_id

    @staticmethod
    def _name(claim: ResourceClaim, subrequest: SubRequest, offer: PublishedDevice, number: int) -> str:
        owner = claim.metadata.uid or claim.title
        return str(uuid.uuid5(_SHARES, "\n".join((owner, subrequest.name, *offer.id, str(number)))))


class AllocatedRequestDevice(NamedTuple):
    """One device given to one request."""

    number: int
    """of the request in its claim"""
    subrequest: SubRequest
    offer: PublishedDevice
    takes: Mapping[str, Amount] | None
    """what a share takes; None for a device that is not shareable"""


def devices_of_placement(entries: Sequence[PlacedDevice]) -> list[AllocatedRequestDevice]:
    """The entries of a placement: requests in order, the devices of each in order."""
    chosen = []
    for entry in sorted(entries, key=lambda e: (e.request.detail, e.device.index)):
        choice: RequestCandidates = entry.request.spec
        offer = published_device(entry.device)
        takes = choice.verdict.takes[entry.device.index] if offer.is_shareable else None
        chosen.append(AllocatedRequestDevice(entry.request.detail, choice.subrequest, offer, takes))
    return chosen


def make_result(
    claim: ResourceClaim,
    given: Sequence[AllocatedRequestDevice],
    classes: Mapping[str, ResourceDeviceClass],
    node: str,
    gates: frozenset[str],
    shares: ShareIds,
) -> dict[str, Any]:
    """What goes to ``status.allocation``; fields that say nothing are left out (settled D2)."""
    chosen: dict[int, SubRequest] = {}
    results = []
    for one in given:
        chosen[one.number] = one.subrequest
        results.append(_device_result(claim, one, gates, shares))
    devices: dict[str, Any] = {"results": results} if results else {}
    if config := _configs(claim, chosen, classes):
        devices["config"] = config
    allocation: dict[str, Any] = {"devices": devices}
    if (selector := _node_selector([one.offer for one in given], node)) is not None:
        allocation["nodeSelector"] = selector
    return allocation


def _device_result(
    claim: ResourceClaim, given: AllocatedRequestDevice, gates: frozenset[str], shares: ShareIds
) -> dict[str, Any]:
    subrequest, offer, device = given.subrequest, given.offer, given.offer.device
    entry: dict[str, Any] = {
        "request": subrequest.name,
        "driver": offer.pool.driver,
        "pool": offer.pool.name,
        "device": device.name,
    }
    if subrequest.admin:
        entry["adminAccess"] = True
    if subrequest.toleration_manifests:
        entry["tolerations"] = [dict(toleration) for toleration in subrequest.toleration_manifests]
    if gate.BINDING_CONDITIONS in gates:
        if device.binding_conditions:
            entry["bindingConditions"] = list(device.binding_conditions)
        if device.binding_failure_conditions:
            entry["bindingFailureConditions"] = list(device.binding_failure_conditions)
    if given.takes is not None:
        entry["shareID"] = shares.make(claim, subrequest, offer)
        if given.takes:
            entry["consumedCapacity"] = {name: str(amount) for name, amount in given.takes.items()}
    return entry


def _configs(
    claim: ResourceClaim, chosen: Mapping[int, SubRequest], classes: Mapping[str, ResourceDeviceClass]
) -> list[dict[str, Any]]:
    """Configuration of the classes, each class once, then of the claim; of what was chosen only."""
    if not claim.config and not any(classes[subrequest.class_name].config for subrequest in chosen.values()):
        return []
    users: dict[str, list[str]] = {}
    for number in sorted(chosen):
        users.setdefault(chosen[number].class_name, []).append(chosen[number].name)
    sources: list[tuple[str, list[str], Mapping[str, Any]]] = []
    for name, requests in users.items():
        sources += [("FromClass", requests, config) for config in classes[name].config]
    for config in claim.config:
        requests = list(config.get("requests") or ())
        if not requests or any(
            _applies_to(requests, claim, number, subrequest) for number, subrequest in chosen.items()
        ):
            sources.append(("FromClaim", requests, config))
    return [
        {"source": source}
        | _requests_of(claim, chosen, requests)
        | {k: v for k, v in config.items() if k != "requests"}
        for source, requests, config in sources
    ]


def _applies_to(requests: Iterable[str], claim: ResourceClaim, number: int, subrequest: SubRequest) -> bool:
    """Whether a list of names has a request, or the alternative that was chosen of it."""
    return claim.requests[number].name in requests or subrequest.name in requests


def _requests_of(claim: ResourceClaim, chosen: Mapping[int, SubRequest], requests: list[str]) -> dict[str, list[str]]:
    """The requests a configuration is for; left out where it is for all."""
    if not requests or all(_applies_to(requests, claim, number, subrequest) for number, subrequest in chosen.items()):
        return {}
    return {"requests": list(requests)}


def _node_selector(offers: Sequence[PublishedDevice], node: str) -> dict[str, Any] | None:
    """The nodes from which all devices can be reached; None for all nodes."""
    for offer in offers:  # mostly it is the first
        if offer.reach.node_name is not None or offer.device.binds_to_node:
            return single_node_selector(node)
    return merge_selectors(_selectors(offers))


def _selectors(offers: Sequence[PublishedDevice]) -> Iterator[Any]:
    return (offer.reach.node_selector for offer in offers if offer.reach.node_selector is not None)


def records_of(given: Iterable[AllocatedRequestDevice], gates: frozenset[str]) -> dict[PoolDevice, DeviceRecord]:
    """What is to be recorded of the devices of an answer: what they draw, if that matters."""
    held = [one.offer for one in given if not one.subrequest.admin]
    records = [(offer, record_of_device(offer, gates)) for offer in held]
    return {(offer.pool.title, offer.device.name): record for offer, record in records if record is not None}


def annotations_of(records: Mapping[PoolDevice, DeviceRecord]) -> dict[str, str]:
    """What is to be written on a claim together with its allocation."""
    text = write_records(records) if records else None
    return {} if text is None else {DEVICE_RECORDS: text}


def placed_answer(placement: Placement, result: Mapping[str, Any], gates: frozenset[str]) -> ClaimAnswer:
    """The answer for a claim that got its devices."""
    return ClaimAnswer(
        *placement.demand.key,
        allocated=True,
        node=placement.node or selected_node(result),
        allocations=result,
        one_of=chosen_alternatives(
            placement.demand.claim.claim,
            ((entry.request.detail, entry.request.alternative) for entry in placement.entries),
        ),
        annotations=annotations_of(records_of(devices_of_placement(placement.entries), gates)),
        warnings=unjudged_devices(placement.demand),
    )


def unjudged_devices(demand: Demand) -> tuple[str, ...]:
    """List the devices that could not be judged for a claim."""
    return tuple(sorted({error for request in demand.requests for error in request.spec.verdict.errors}))


def chosen_alternatives(claim: ResourceClaim, requests: Iterable[tuple[int, int | None]]) -> tuple[int | None, ...]:
    """The alternative chosen of each request; ``requests`` are (request, alternative) of each device."""
    chosen = dict(requests)
    return tuple([chosen.get(number) for number in range(len(claim.requests))])


def answer_dict(answer: ClaimAnswer) -> dict[str, Any]:
    """Write an answer as JSON-able content: ``allocations`` is an AllocationResult, which has no keys where there is
    none, and who gets funnels gets blockers, too."""
    shown = answer.to_dict()
    if not answer.allocated:
        shown["allocations"] = {}
    if answer.funnel:
        shown.setdefault("blockers", [])
    return shown
