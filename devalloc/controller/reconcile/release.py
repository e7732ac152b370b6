"""Take the devices of an allocated claim back while the claim stays.

A claim that its node has prepared (finalizer ``devalloc.io/node``) is not released: its devices are bound there,
perhaps in a machine. ``force`` asks the node to let go of them, and the claim is released when it has.
``devalloc_node.claims.finalizers`` describes how a release and a node that begins to prepare avoid each other; the
release contributes that its one write is based on a state of the claim without the finalizer.
"""

from __future__ import annotations

from typing import Literal

from devalloc.api import meta
from devalloc.api.fencing import without_holder
from devalloc.api.views import ClaimView
from devalloc.controller.reconcile.stored_claims import ALLOCATION_ANNOTATIONS
from devalloc.store import REFUSALS, Change, Conflict, Key, Object, Store, StoreError
from devalloc.store.metadata_rules import with_annotations

ReleaseOutcome = Literal["released", "asked", "held nothing"]


class InUse(StoreError):
    """The claim's devices are still in use."""


def release_claim(
    store: Store, namespace: str, name: str, *, force: bool = False, abandon: bool = False
) -> ReleaseOutcome:
    """Clear the claim's status and what the allocator noted on it, so that it is allocated anew.

    ``asked``: its node was asked to let go of the devices, by force; the allocator releases it when that is done. Or
    only the controller may write the status, and was asked to.

    Raises NotFound, and InUse if it is prepared on its node, or while status.podNames says who uses it. ``force``
    asks the node instead of raising. ``abandon`` takes the claim from a node that is gone for good.
    """
    while True:
        claim = store.get("DeviceClaim", namespace, name)
        try:
            if abandon and ClaimView(claim).is_held:
                return _abandon(store, claim)
            return _release_or_ask(store, claim, force)
        except Conflict:
            continue  # it changed since we read it; what we want is still the same


def _release_or_ask(store: Store, claim: Object, force: bool) -> ReleaseOutcome:
    view = ClaimView(claim)
    if not view.entries:
        return "held nothing"
    if view.is_held:
        if not force:
            raise InUse(_prepared(claim))
        if not view.wants_release:
            store.commit([Change.of(claim, claim["status"], {meta.RELEASE: "forced"})])
        return "asked"
    if (users := _users(claim)) and not force:
        raise InUse(f"{Key.of(claim)} is in use by {users}; stop that first")
    try:
        store.commit([release_change(claim)])
    except REFUSALS:  # by rights, or by a policy: who may only edit the claim asks the controller for it
        if not view.wants_release:
            store.replace(with_annotations(claim, {meta.RELEASE: "asked"}))
        return "asked"
    return "released"


def _abandon(store: Store, claim: Object) -> ReleaseOutcome:
    """The status goes first: a claim that holds devices is never seen without its mark."""
    if ClaimView(claim).entries:
        (claim,) = store.commit([release_change(claim)]).objects
    store.replace(without_holder(claim))
    return "released"


def release_change(claim: Object) -> Change:
    """What is written on a claim that is released: only on this very state of it."""
    return Change.of(claim, None, dict.fromkeys((*ALLOCATION_ANNOTATIONS, meta.RELEASE)))


def _users(claim: Object) -> str:
    names = claim.get("status", {}).get("podNames")
    return ", ".join(map(str, names)) if isinstance(names, list) else ""


def _prepared(claim: Object) -> str:
    users, node = _users(claim), ClaimView(claim).holder or "its node"
    return (
        f"{Key.of(claim)} is prepared on {node}"
        + (f" for {users}" if users else "")
        + ": its devices are bound there. "
        f"{'Stop ' + users if users else 'Run `devalloc vm unprepare` there'} first, "
        "or have the node take them away with --force"
    )
