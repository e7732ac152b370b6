"""The AllocationResult of a claim: devices, configuration, node selector."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from devalloc_solver.assignment import Entry
from devalloc_solver.dra import features as gate
from devalloc_solver.dra.amounts import Amount
from devalloc_solver.dra.candidates import Choice
from devalloc_solver.dra.inventory import Offer
from devalloc_solver.dra.nodes import merged, only_node
from devalloc_solver.dra.objects import Ask, Claim, Class
from devalloc_solver.dra.usage import DeviceId

_SHARES = uuid.UUID("5b1d3c02-7b0f-5d7e-9c68-0d1f3c1e7a55")
"""The namespace of share ids."""


class ShareIds:
    """Share ids derived from claim, request, device and number: the same every time, and new on their device."""

    def __init__(self, used: Mapping[DeviceId, Iterable[str]]) -> None:
        """``used``: the ids that shares of a device have already."""
        self._used = used
        self._known: dict[DeviceId, set[str]] = {}

    def make(self, claim: Claim, ask: Ask, offer: Offer) -> str:
        known = self._known.get(offer.id)
        if known is None:
            known = self._known[offer.id] = set(self._used.get(offer.id, ()))
        number = 0
        while (found := self._name(claim, ask, offer, number)) in known:
            number += 1
        known.add(found)
        return found

    @staticmethod
    def _name(claim: Claim, ask: Ask, offer: Offer, number: int) -> str:
        owner = claim.uid or claim.title
        return str(uuid.uuid5(_SHARES, "\n".join((owner, ask.name, *offer.id, str(number)))))


class Given(NamedTuple):
    """One device given to one request."""

    number: int
    """of the request in its claim"""
    ask: Ask
    offer: Offer
    takes: Mapping[str, Amount] | None
    """what a share takes; None for a device that is not shareable"""


def given_by(entries: Sequence[Entry], offers: Sequence[Offer]) -> list[Given]:
    """The entries of a placement: requests in order, the devices of each in order."""
    found = []
    for entry in sorted(entries, key=lambda e: (e.slot.detail, e.device.index)):
        choice: Choice = entry.slot.spec
        offer = offers[entry.device.index]
        takes = choice.verdict.takes[offer.index] if offer.is_shareable else None
        found.append(Given(entry.slot.detail, choice.ask, offer, takes))
    return found


def make_result(
    claim: Claim,
    given: Sequence[Given],
    classes: Mapping[str, Class],
    node: str,
    gates: frozenset[str],
    shares: ShareIds,
) -> dict[str, Any]:
    """What goes to ``status.allocation``; fields that say nothing are left out (settled D2)."""
    chosen: dict[int, Ask] = {}
    results = []
    for one in given:
        chosen[one.number] = one.ask
        results.append(_device_result(claim, one, gates, shares))
    devices: dict[str, Any] = {"results": results} if results else {}
    if config := _configs(claim, chosen, classes):
        devices["config"] = config
    found: dict[str, Any] = {"devices": devices}
    if (selector := _node_selector([one.offer for one in given], node)) is not None:
        found["nodeSelector"] = selector
    return found


def _device_result(claim: Claim, given: Given, gates: frozenset[str], shares: ShareIds) -> dict[str, Any]:
    ask, offer, device = given.ask, given.offer, given.offer.device
    found: dict[str, Any] = {
        "request": ask.name,
        "driver": offer.pool.driver,
        "pool": offer.pool.name,
        "device": device.name,
    }
    if ask.admin:
        found["adminAccess"] = True
    if ask.told_tolerations:
        found["tolerations"] = [dict(toleration) for toleration in ask.told_tolerations]
    if gate.BINDING_CONDITIONS in gates:
        if device.binding_conditions:
            found["bindingConditions"] = list(device.binding_conditions)
        if device.binding_failure_conditions:
            found["bindingFailureConditions"] = list(device.binding_failure_conditions)
    if given.takes is not None:
        found["shareID"] = shares.make(claim, ask, offer)
        if given.takes:
            found["consumedCapacity"] = {name: str(amount) for name, amount in given.takes.items()}
    return found


def _configs(claim: Claim, chosen: Mapping[int, Ask], classes: Mapping[str, Class]) -> list[dict[str, Any]]:
    """Configuration of the classes, each class once, then of the claim; of what was chosen only."""
    users: dict[str, list[str]] = {}
    for number in sorted(chosen):
        users.setdefault(chosen[number].class_name, []).append(chosen[number].name)
    told: list[tuple[str, list[str], Mapping[str, Any]]] = []
    for name, requests in users.items():
        told += [("FromClass", requests, config) for config in classes[name].config]
    for config in claim.config:
        requests = list(config.get("requests") or ())
        if not requests or any(_names(requests, claim, number, ask) for number, ask in chosen.items()):
            told.append(("FromClaim", requests, config))
    return [
        {"source": source}
        | _requests_of(claim, chosen, requests)
        | {k: v for k, v in config.items() if k != "requests"}
        for source, requests, config in told
    ]


def _names(requests: Iterable[str], claim: Claim, number: int, ask: Ask) -> bool:
    """Whether a list of names has a request, or the alternative that was chosen of it."""
    return claim.requests[number].name in requests or ask.name in requests


def _requests_of(claim: Claim, chosen: Mapping[int, Ask], requests: list[str]) -> dict[str, list[str]]:
    """The requests a configuration is for; left out where it is for all."""
    if not requests or all(_names(requests, claim, number, ask) for number, ask in chosen.items()):
        return {}
    return {"requests": list(requests)}


def _node_selector(offers: Sequence[Offer], node: str) -> dict[str, Any] | None:
    """The nodes from which all devices can be reached; None for all nodes."""
    if any(offer.reach.node_name is not None or offer.device.binds_to_node for offer in offers):
        return only_node(node)
    return merged(_selectors(offers))


def _selectors(offers: Sequence[Offer]) -> Iterator[Any]:
    return (offer.reach.selector for offer in offers if offer.reach.selector is not None)
