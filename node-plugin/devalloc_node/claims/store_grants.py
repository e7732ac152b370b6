"""DeviceClaims of the embedded store as grants: which devices, for which detail, with which configuration."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from typing import Any

from devalloc.api import meta
from devalloc.api.views import ClaimView, recover_status
from devalloc.store import NotFound, Object, Store, StoreError
from devalloc_node.claims import finalizers
from devalloc_node.errors import Denied, Failed
from devalloc_node.model.grant import ClaimRef, Configs, Grant, GrantedDevice

KIND = "DeviceClaim"


class StoreGrants:
    """``Grants`` of one node. A claim that is looked up gets the node's finalizer, so that its devices are not
    reallocated meanwhile."""

    def __init__(self, store: Store, node_name: str) -> None:
        self._store = store
        self._node_name = node_name

    def get(self, ref: ClaimRef) -> Grant:
        return self._granted(finalizers.add_finalizer(self._store, self._node_name, ref), ref)

    def look(self, ref: ClaimRef) -> Grant:
        return self._granted(finalizers.claim_as_is(self._store, self._node_name, ref), ref)

    def _granted(self, claim: Object, ref: ClaimRef) -> Grant:
        return Grant(ref, KIND, self._devices(claim, ref), tuple(_texts(ClaimView(claim).status.get("podNames"))))

    def is_gone(self, ref: ClaimRef) -> bool:
        try:
            return bool(self._store.get(KIND, ref.namespace, ref.name)["metadata"]["uid"] != ref.uid)
        except NotFound:
            return True
        except StoreError as error:
            raise _unavailable(ref, error) from error

    def identity(self) -> str:
        try:
            return f"store {self._store.identity()}"
        except StoreError as error:
            raise Failed("StoreUnavailable", f"cannot read the identity of the store: {error}") from error

    def let_go(self, ref: ClaimRef) -> None:
        finalizers.remove_finalizer(self._store, self._node_name, ref)

    def held(self) -> Sequence[ClaimRef]:
        try:
            claims = self._store.list(KIND).objects
        except StoreError as error:
            raise Failed("StoreUnavailable", f"cannot list claims: {error}") from error
        return [claim_ref(claim) for claim in finalizers.claims_of_node(claims, self._node_name)]

    def _devices(self, claim: Object, ref: ClaimRef) -> tuple[GrantedDevice, ...]:
        status = recover_status(claim.get("status"))
        if status is None:
            raise Denied("ClaimInvalid", f"the status of claim {ref} has an unreadable device")
        labels = _labels(claim, len(status.allocations))
        admin = frozenset(_texts(_json(claim, meta.ADMIN_CLASSES)))
        details = [_detail(claim, label) for label in labels]
        # Without labels an entry may be of any detail: it is held unless all of them are for admins (S18).
        all_admin = bool(admin) and all(_class_of(detail) in admin for detail in _all_details(claim))
        devices = []
        class_configs = _class_configs(claim, ref, len(status.allocations))
        for index, (entry, label, detail) in enumerate(zip(status.allocations, labels, details, strict=True)):
            is_admin = all_admin if detail is None else _class_of(detail) in admin
            devices.append(
                GrantedDevice(
                    requests=() if label is None else (label.partition(".")[0],),
                    pool=entry.device_pool_name,
                    device=entry.device_name,
                    admin=is_admin,
                    share=(label or "0") if entry.allocations and not is_admin else None,
                    class_configs=tuple(config for config, entries in class_configs if index in entries),
                    claim_configs=_claim_configs(claim, detail),
                )
            )
        return tuple(devices)


def claim_ref(claim: Object) -> ClaimRef:
    """A claim of the store as callers name it."""
    metadata = claim["metadata"]
    return ClaimRef(metadata.get("namespace") or "default", metadata["name"], metadata["uid"])


def _labels(claim: Object, count: int) -> list[str | None]:
    """Of each allocation the index of its detail, with that of the alternative: ``0``, ``1.0``. None: not known."""
    labels = _json(claim, meta.ALLOCATION_DETAILS)
    if not isinstance(labels, list) or len(labels) != count or any(_detail(claim, x) is None for x in labels):
        return [None] * count
    return labels


def _detail(claim: Object, label: object) -> Mapping[str, Any] | None:
    """The detail of that label, as of the allocation."""
    if not isinstance(label, str):
        return None
    index, _, alternative = label.partition(".")
    try:
        detail = _spec(claim)["claims"][int(index)]
        chosen = detail["oneOf"][int(alternative)] if alternative else detail
    except (KeyError, IndexError, ValueError, TypeError):
        return None
    return chosen if isinstance(chosen, dict) else None


def _all_details(claim: Object) -> list[Mapping[str, Any]]:
    """Every detail, with all alternatives."""
    listed = _spec(claim).get("claims")
    details = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    return [each for detail in details for each in (detail.get("oneOf") or [detail])]


def _spec(claim: Object) -> Mapping[str, Any]:
    """The spec that the allocation answers (S18)."""
    recorded = _json(claim, meta.ALLOCATED_SPEC)
    spec = recorded if isinstance(recorded, dict) else claim.get("spec")
    return spec if isinstance(spec, dict) else {}


def _class_configs(claim: Object, ref: ClaimRef, count: int) -> list[tuple[Mapping[str, Any], Container[int]]]:
    """The copies in the status, and the indexes of the allocations that each is for: the allocator wrote them there,
    which users who may only edit the claim cannot write (T6). ``count``: allocations that could be read."""
    configs = _configs(claim, "classConfigs")
    indexes = claim["status"].get("classConfigAllocations")
    if not indexes:
        return [(config, range(count)) for config in configs]
    is_whole = count == len(claim["status"]["allocations"]) and len(configs) == len(claim["status"]["classConfigs"])
    if not is_whole or not _are_indexes(indexes) or len(indexes) != len(configs):
        raise Denied(
            "ClaimInvalid",
            f"status.classConfigAllocations of claim {ref} does not match its status.classConfigs; release the "
            "claim, so that it is allocated again",
        )
    return list(zip(configs, indexes, strict=True))


def _are_indexes(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, list) and all(type(index) is int for index in each) for each in value
    )


def _claim_configs(claim: Object, detail: Mapping[str, Any] | None) -> Configs:
    copies = _configs(claim, "claimConfigs")
    if detail is None:
        return copies
    refs = detail.get("configs") or ()
    wanted = [(each.get("apiVersion"), each.get("kind"), each.get("name")) for each in refs]
    return tuple(
        config for config in copies if (config.get("apiVersion"), config.get("kind"), _place(config)[1]) in wanted
    )


def _configs(claim: Object, name: str) -> Configs:
    configs = ClaimView(claim).status.get(name)
    return tuple(config for config in configs if isinstance(config, dict)) if isinstance(configs, list) else ()


def _place(config: Mapping[str, Any]) -> tuple[Any, Any]:
    """(namespace, name)"""
    metadata = config.get("metadata")
    return (metadata.get("namespace"), metadata.get("name")) if isinstance(metadata, dict) else (None, None)


def _class_of(detail: Mapping[str, Any]) -> str | None:
    name = detail.get("deviceClass")
    return name if isinstance(name, str) else None


def _json(claim: Object, annotation: str) -> Any:
    """The content of an annotation; None if it is missing, or if others wrote there."""
    try:
        return json.loads(ClaimView(claim).annotation(annotation) or "null")
    except ValueError:
        return None


def _texts(value: Any) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


def _unavailable(ref: ClaimRef, error: StoreError) -> Failed:
    return Failed("StoreUnavailable", f"cannot look up claim {ref}: {error}")
