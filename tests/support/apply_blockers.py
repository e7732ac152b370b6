"""Apply what the blockers of a claim name to the manifests: drop the request, raise the counter, free the claim."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

from devalloc.api.cordon import unschedulable_reasons
from devalloc.api.meta import COMPATIBILITY_GROUP, GROUP, GROUP_MATCH, NODE, UNAVAILABLE
from devalloc.api.quantity import Quantity
from tests.support.manifests import Manifest

Key = tuple[str, str]
Blocker = Mapping[str, Any]


def with_blockers_applied(documents: Iterable[Manifest], key: Key, blockers: Sequence[Blocker]) -> list[Manifest]:
    """The documents as the blockers of the claim ``key`` say they must be.

    It may be left with no request at all; of the members of its group, one that asks for nothing any more goes.
    """
    changed = deepcopy(list(documents))
    claims = {key_of(document): document for document in changed if document["kind"] == "DeviceClaim"}
    dropped: list[tuple[Manifest, Manifest]] = []
    for blocker in blockers:
        claim = claims[_key(blocker["claim"]) if "claim" in blocker else key]
        match blocker["kind"]:
            case "claim" | "member":
                changed.remove(claims[blocker["namespace"], blocker["name"]])
            case "request":
                dropped.append((claim, claim["spec"]["claims"][int(blocker["request"])]))
            case "nodeRule":
                del claim["metadata"]["annotations"][blocker["annotation"]]
            case "node":
                _unpin(changed, claims, claim, blocker)
            case "matchAttribute" if GROUP_MATCH in blocker["path"]:
                _disagree(claims, claim, blocker["attribute"])
            case "unavailable" if "device" not in blocker:
                _make_schedulable(changed, blocker["node"])
            case "poolResource" | "compatibilityGroup" | "unavailable" | "undefinedResource":
                _supply(changed, blocker)
            case _:
                _edit_spec(claim["spec"], blocker)
    for claim, entry in dropped:
        claim["spec"]["claims"] = [other for other in claim["spec"]["claims"] if other is not entry]
    return [d for d in changed if d["kind"] != "DeviceClaim" or d["spec"]["claims"] or key_of(d) == key]


def key_of(document: Manifest) -> Key:
    return document["metadata"].get("namespace", "default"), document["metadata"]["name"]


def _key(text: str) -> Key:
    namespace, _, name = text.partition("/")
    return namespace, name


def _disagree(claims: Mapping[Key, Manifest], claim: Manifest, attribute: str) -> None:
    """The members of the claim's group do not name the attribute any more."""
    group = claim["metadata"]["annotations"][GROUP]
    for key, other in claims.items():
        marks = other["metadata"].get("annotations", {})
        if key[0] == key_of(claim)[0] and marks.get(GROUP) == group and GROUP_MATCH in marks:
            names = [name for name in map(str.strip, marks.pop(GROUP_MATCH).split(",")) if name != attribute]
            marks |= {GROUP_MATCH: ",".join(names)} if names else {}


def _unpin(documents: list[Manifest], claims: Mapping[Key, Manifest], claim: Manifest, blocker: Blocker) -> None:
    for other in blocker.get("boundBy", ()):
        documents.remove(claims[other["namespace"], other["name"]])
    group = claim["metadata"].get("annotations", {}).get(GROUP)
    for other in documents:
        marks = other["metadata"].get("annotations", {})
        same = other is claim or (group and (key_of(other)[0], marks.get(GROUP)) == (key_of(claim)[0], group))
        if other["kind"] == "DeviceClaim" and same:
            marks.pop(NODE, None)


# -- the claim's spec ------------------------------------------------------------------------------------------------


def _edit_spec(spec: Manifest, blocker: Blocker) -> None:
    path = blocker["path"]
    detail = _at(spec, blocker["request"]) if "request" in blocker else spec
    match blocker["kind"]:
        case "matchAttribute":
            assert path.endswith("matchAttributes")
            detail["matchAttributes"] = [n for n in detail["matchAttributes"] if n != blocker["attribute"]]
        case "limit":
            del detail["limits"][blocker["resource"]]
        case "amount" if "most" not in blocker:
            del detail["requests"][blocker["resource"]]
        case "amount":
            assert Quantity.parse(detail["requests"][blocker["resource"]]) > Quantity.parse(blocker["most"])
            detail["requests"][blocker["resource"]] = blocker["most"]
        case "constraint":
            del detail["constraints"]
        case "class":
            detail.pop("deviceClass", None)
            detail.pop("deviceType", None)
        case kind:
            raise AssertionError(f"this helper cannot take away a {kind}")


def _at(spec: Manifest, label: str) -> Manifest:
    index, _, alternative = label.partition(".")
    entry: Manifest = spec["claims"][int(index)]
    return entry["oneOf"][int(alternative)] if alternative else entry


# -- the fleet -------------------------------------------------------------------------------------------------------


def _supply(documents: Sequence[Manifest], blocker: Blocker) -> None:
    (pool,) = [
        document
        for document in documents
        if document["kind"] == "DevicePool"
        and document["metadata"]["name"] == blocker["pool"]
        and document["spec"].get("nodeName") == blocker["node"]
    ]
    spec = pool["spec"]
    match blocker["kind"]:
        case "poolResource":
            (resource,) = [r for r in spec["resources"] if r["name"] == blocker["resource"]]
            capacity = Quantity.parse(blocker["capacity"]) + Quantity.parse(blocker["missing"])
            resource["capacity"] = str(capacity)
        case "compatibilityGroup":
            _strip(spec, COMPATIBILITY_GROUP, lambda _: True)
        case "unavailable":
            _strip(spec, UNAVAILABLE, lambda device: bool(device["name"] == blocker["device"]))
        case "undefinedResource":
            spec.setdefault("resources", []).append({"name": blocker["resource"], "capacity": "1000"})


def _make_schedulable(documents: Sequence[Manifest], node: str) -> None:
    """What is unavailable because of the whole node is available."""
    for document in documents:
        if document["kind"] == "DevicePool" and document["spec"].get("nodeName") == node:
            _strip(document["spec"], UNAVAILABLE, partial(_is_unschedulable, document["spec"]))


def _is_unschedulable(spec: Manifest, device: Manifest) -> bool:
    attributes = [*device.get("attributes", []), *spec.get("attributes", [])]
    why = next((str(one["stringValue"]) for one in attributes if one["name"] == UNAVAILABLE), "")
    return bool(unschedulable_reasons(why))


def _strip(spec: Manifest, attribute: str, which: Callable[[Manifest], bool]) -> None:
    """Take an attribute from some devices of a pool; what was the pool's is the other devices' own from then on."""
    chosen = [which(device) for device in spec["devices"]]
    common = [a for a in spec.get("attributes", []) if a["name"] == attribute]
    spec["attributes"] = [a for a in spec.get("attributes", []) if a["name"] != attribute]
    for device, is_chosen in zip(spec["devices"], chosen, strict=True):
        own = device.get("attributes", [])
        named = any(a["name"] == attribute for a in own)
        if is_chosen:
            device["attributes"] = [a for a in own if a["name"] != attribute]
        elif common and not named:
            device["attributes"] = [*own, *common]
