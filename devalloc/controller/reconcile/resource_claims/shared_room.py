"""Which node each of several pods gets that are given devices at once, so that they share the room of nodes.

The solver knows amounts that claims share: those of a device with consumable capacity. So each node has one more device
here, whose capacity is its free CPU, memory and so on, and what waits requests of it what its pods take. Of the answer
only the nodes count: the devices are then asked for there, as ever.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from devalloc.api.quantity import MAX_BASE_UNITS, Quantity
from devalloc.api.views import ObjectView
from devalloc.controller.reconcile.resource_claims.node_room import Amounts

log = logging.getLogger(__name__)

Object = dict[str, Any]

_DRIVER = "room.controller.devalloc.io"
_NAME = "ROOM"
"""Of class and request: like all names in capitals, one that no object of an API server has."""
_API = "resource.k8s.io/v1"


@dataclass(frozen=True, slots=True)
class RoomRequest:
    """Claims that get devices of one node, all or none, and what their pods take there."""

    documents: tuple[Object, ...]
    """As the solver is asked."""
    amounts: Amounts


def most_at_once(requests: Sequence[Amounts], free: Mapping[str, Mapping[str, int | None]]) -> int:
    """Compute how many of these find room at most, if each took no more of a resource than the least. ``free``: by
    node, as for ``plan_nodes``."""
    most = len(requests)
    for name in {name for amounts in free.values() for name in amounts}:
        least = min(each.get(name, 0) for each in requests)
        amounts = [each[name] for each in free.values()]
        if least:
            most = min(most, sum(len(requests) if each is None else max(0, each) // least for each in amounts))
    return most


def plan_nodes(
    requests: Sequence[RoomRequest],
    supply: Iterable[Object],
    free: Mapping[str, Mapping[str, int | None]],
    *,
    placement: str,
    seconds: float,
) -> list[str]:
    """Choose a node for each request, empty for those that cannot all have one, or were not decided in time.

    Args:
        supply: slices, classes, and claims that have devices.
        free: by node its free amounts by resource; None if there is no limit.
    """
    from devalloc_solver import AnswerRefused, solve_manifests  # this and the solver take a while to load
    from devalloc_solver.exact.model import load_solver

    load_solver()  # or it would have to be done in these seconds

    selector = {"cel": {"expression": f"device.driver == '{_DRIVER}'"}}
    documents = [*supply, _object("DeviceClass", _NAME, {"selectors": [selector]})]
    for node, amounts in free.items():
        capacity = {name: {"value": _quantity(amount)} for name, amount in amounts.items()}
        device = {"name": "room", "allowMultipleAllocations": True, "capacity": capacity}
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": _DRIVER, "nodeName": node, "pool": pool, "devices": [device]}
        documents.append(_object("ResourceSlice", f"{_NAME}/{node}", spec))
    counted = {name for amounts in free.values() for name in amounts}
    for request in requests:
        first, *more = request.documents
        documents += [_with_room(first, request.amounts, counted), *more]
    try:
        answers = solve_manifests(documents, placement=placement, deadline=seconds)["claims"]
    except AnswerRefused as error:  # it is not needed: each pod can go on alone
        log.error("the room of nodes was not shared: %s", error)
        return [""] * len(requests)
    nodes = {(each["namespace"], each["name"]): each["node"] or "" for each in answers if each["allocated"]}
    return [min(nodes.get(ObjectView(one).key, "") for one in each.documents) for each in requests]


def _with_room(claim: Object, amounts: Amounts, counted: Collection[str]) -> Object:
    """The claim with one more request, to which its constraints do not apply. ``counted``: resources that matter."""
    devices = claim["spec"].get("devices") or {}
    own = devices.get("requests") or []
    names = [each["name"] for each in own]
    constraints = [{**each, "requests": each.get("requests") or names} for each in devices.get("constraints") or ()]
    wanted = {name: _quantity(amount) for name, amount in amounts.items() if name in counted}
    room = {"deviceClassName": _NAME, "allocationMode": "ExactCount", "count": 1, "capacity": {"requests": wanted}}
    requests = [*own, {"name": _NAME, "exactly": room}]
    return {
        **claim,
        "spec": {**claim["spec"], "devices": {**devices, "requests": requests, "constraints": constraints}},
    }


def _quantity(amount: int | None) -> str:
    """Of an amount in nano units; as much as there can be for None."""
    most = MAX_BASE_UNITS * 10**9
    return str(Quantity(most if amount is None else min(max(0, amount), most)))


def _object(kind: str, name: str, spec: Object) -> Object:
    return {"apiVersion": _API, "kind": kind, "metadata": {"name": name}, "spec": spec}
