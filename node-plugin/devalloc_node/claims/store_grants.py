"""DeviceClaims of the embedded store as grants: which devices, for which detail, with which configuration."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from typing import Any

from devalloc.api import meta
from devalloc.api.device_identity import Identity, identity_of
from devalloc.api.fencing import fenced_from
from devalloc.api.unreadable_claims import recover_status
from devalloc.api.views import ClaimView, MachineView, MigrationView
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
        if (moved := self._moved(ref)) is not None:
            return self._granted(moved, ref)
        return self._granted(finalizers.add_finalizer(self._store, self._node_name, ref), ref)

    def look(self, ref: ClaimRef) -> Grant:
        if (moved := self._moved(ref)) is not None:
            return self._granted(moved, ref)
        return self._granted(finalizers.claim_as_is(self._store, self._node_name, ref), ref)

    def _moved(self, ref: ClaimRef) -> Object | None:
        """The claim with the devices that it has here by the word of a machine that moves to this node, or has moved
        and waits for the controller to give them to the claim; None for every other claim. It stays unmarked until
        then: the mark is that of the node that it comes from."""
        try:
            claim = self._store.get(KIND, ref.namespace, ref.name)
            view = ClaimView(claim)
            if claim["metadata"]["uid"] != ref.uid or not view.entries or view.holder == self._node_name:
                return None
            if view.node in (None, self._node_name) and self._is_of_this_node(view.entries[0]):
                return None
            machines = [*self._moving_here(), *self._store.list(["VirtualMachine"]).objects]
        except NotFound:
            return None
        except StoreError as error:
            raise _unavailable(ref, error) from error
        for machine in machines:
            entry = moved_here(machine, self._node_name).get(ref.uid)
            if entry is None or (machine["metadata"].get("namespace") or "default") != ref.namespace:
                continue
            if entry["allocations"] != claim["status"]["allocations"]:  # else it has them by now, and is marked
                return {**claim, "status": {**claim["status"], "allocations": entry["allocations"]}}
        return None

    def _moving_here(self) -> list[Object]:
        """The machines that move to this node, as they are now: it does not watch those of other nodes. Raises
        StoreError."""
        moving = (MigrationView(obj) for obj in self._store.list(["VirtualMachineMigration"]).objects)
        to_here = [one for one in moving if not one.is_over and one.status.get("targetNode") == self._node_name]
        machines = []
        for key in dict.fromkeys(one.machine for one in to_here if one.machine is not None):
            with suppress(NotFound):
                machines.append(self._store.get("VirtualMachine", *key))
        return machines

    def _is_of_this_node(self, entry: Mapping[str, Any]) -> bool:
        """Whether an allocation is of this node, or of none; a claim that is being given new devices may name this node
        before it has them."""
        try:
            pool = self._store.get("DevicePool", None, str(entry.get("devicePoolName")))
        except NotFound:
            return True
        return (pool.get("spec") or {}).get("nodeName") in (None, self._node_name)

    def _granted(self, claim: Object, ref: ClaimRef) -> Grant:
        return Grant(ref, KIND, self._devices(claim, ref), tuple(_texts(ClaimView(claim).status.get("podNames"))))

    def is_gone(self, ref: ClaimRef) -> bool:
        try:
            return bool(self._store.get(KIND, ref.namespace, ref.name)["metadata"]["uid"] != ref.uid)
        except NotFound:
            return True
        except StoreError as error:
            raise _unavailable(ref, error) from error

    def belongs_to_node(self, ref: ClaimRef, node_name: str) -> bool:
        """See ``Grants``. A claim that was taken away from the node does not belong to it any more."""
        try:
            claim = self._store.get(KIND, ref.namespace, ref.name)
        except NotFound:
            return False
        except StoreError as error:
            raise _unavailable(ref, error) from error
        if claim["metadata"]["uid"] != ref.uid or node_name in fenced_from(claim):
            return False
        view = ClaimView(claim)
        is_anywhere = bool(view.entries) and not view.node and not (view.is_held and view.holder)
        return view.is_on(node_name) or is_anywhere

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
        class_configs, identities = _class_configs(claim, ref, len(status.allocations)), _identities(claim)
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
                    identity=identities.get(f"{entry.device_pool_name}/{entry.device_name}", {}),
                )
            )
        return tuple(devices)


def moved_here(machine: Object, node_name: str) -> Mapping[str, Object]:
    """What a machine's object says that its claims have on this node, though they do not say so yet, by their UIDs."""
    view = MachineView(machine)
    entries = view.booked_claims if view.migration_target == node_name else []
    entries = [*entries, *(view.moved_claims if view.status.get("nodeName") == node_name else [])]
    return {str(one.get("uid")): one for one in entries}


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


def _identities(claim: Object) -> dict[str, Identity]:
    """What the claim's devices were at its allocation, by ``pool/device``; empty for claims of 0.1.0."""
    noted = _json(claim, meta.ALLOCATED_IDENTITIES)
    devices = noted.items() if isinstance(noted, dict) else ()
    return {name: identity_of(identity) for name, identity in devices if isinstance(identity, dict)}


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
