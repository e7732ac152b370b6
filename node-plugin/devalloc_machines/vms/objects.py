"""Read and write VirtualMachine objects: which node has them, and what is reserved for them.

A node *takes* an object (it adds the finalizer ``devalloc.io/node`` and its own name) before it does anything for it,
and releases the object when nothing of it is left on the node. So a deleted object stays until its machine is gone,
and a machine that moves to another node starts there only after it ended here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from devalloc.api import meta, views
from devalloc.api.fencing import fenced_from, without_holder
from devalloc.api.machine_reservation import FITS, missing_amounts
from devalloc.api.machine_reservation import reserved_entries as reserved
from devalloc.api.virtual_machine import VirtualMachineSpec
from devalloc.store import Conflict, NotFound, Object, Store, StoreError
from devalloc_node.errors import Failed, NodeError

BUSY_SECONDS = 5.0
"""The pause before what others hold is asked for again: there is no event when they release it."""
_BUSY = frozenset(
    {"Busy", "ClaimBusy", "CopyUnfinished", "DiskInUse", "LockUnavailable", "MachineBusy", "SharedBusy", "TapInUse"}
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is in the way of the object's wish; empty when nothing is."""

    reason: str = ""
    message: str = ""
    after: float | None = None
    """Seconds until it is worth trying again though nothing changed; None: as often as the loop likes."""
    at_rest: bool = False
    """Nothing of the machine runs, and it is not started again as things are."""
    is_unchanged: Callable[[], bool] | None = None
    """Whether what it waits for on the host, without an event, is as it was when it was tried; None: it waits for
    nothing like that. Does not raise, and may take its time."""
    refused: Mapping[str, Any] | None = None
    """The condition ``Startable`` of a machine that cannot start, and for which nothing is reserved because of that."""
    written: Mapping[str, Any] | None = None
    """This node's part of the status (``own_status``) after it was written; None: nothing was to be written."""


def retry_delay(error: NodeError) -> float | None:
    """As ``Outcome.after``."""
    return BUSY_SECONDS if error.code in _BUSY else None


KIND = "VirtualMachine"
IDENTITY = f"identity/{KIND}"
"""A setting of the journal: the identity of the store that the objects of this node's machines come from."""
_ATTEMPTS = 20


def key_of(obj: Object) -> str:
    """``namespace/name``"""
    return f"{namespace_of(obj)}/{obj['metadata']['name']}"


def namespace_of(obj: Object) -> str:
    return obj["metadata"].get("namespace") or "default"


def reference(key: str, uid: str) -> Object:
    """What is known of an object that is not there: how it is, or was, called."""
    namespace, _, name = key.partition("/")
    return {"kind": KIND, "metadata": {"namespace": namespace, "name": name, "uid": uid}}


def reserved_entries(obj: Object, node_name: str) -> list[Any]:
    """The entries of what this node reserves for it; empty if it reserves nothing."""
    return reserved(obj) if (obj.get("status") or {}).get("nodeName") == node_name else []


def is_admitted(obj: Object, node_name: str, spec: VirtualMachineSpec) -> bool:
    """Whether this node reserves for it what it needs."""
    entries = reserved_entries(obj, node_name)
    return bool(entries) and not missing_amounts(spec, entries) and not views.MachineView(obj).is_unsettled


def why_not_admitted(obj: Object) -> str:
    """What the allocator says of it."""
    conditions = (obj.get("status") or {}).get("conditions")
    for one in conditions if isinstance(conditions, list) else ():
        if isinstance(one, dict) and one.get("type") in ("Placed", FITS) and one.get("status") == "False":
            return str(one.get("message") or one.get("reason") or "no reason is given")
    answered = "reserved more for" if (obj.get("status") or {}).get("allocations") else "placed"
    return f"no controller has {answered} it yet: is `devalloc up`, or on a cluster the controller, running?"


def why_not_begun(obj: Object, node_name: str) -> str:
    """Why a node has no machine of an object, as the end of a sentence."""
    view = views.MachineView(obj)
    if node_name not in (view.node, view.holder):
        where = f"is on node {view.node}" if view.node else "has no node yet"
        return f"not found on node {node_name}: it {where}"
    reason = ": ".join(filter(None, views.machine_reason(obj)))
    return f"has not started{': ' if reason else ''}{reason}"


def holder_of(obj: Object) -> str | None:
    """The node that holds it; None if no node does. If the name was removed, that of its spec."""
    return views.MachineView(obj).holder or None


def must_leave(obj: Object, node_name: str) -> bool:
    """Whether nothing of it may run on this node, but what it keeps there stays: it was evicted from here, or has left
    and waits for a node."""
    view = views.MachineView(obj)
    has_left = view.node is None and view.annotation(meta.LAST_NODE) == node_name
    return view.must_leave(node_name) or has_left


def release_object(store: Store, obj: Object, node_name: str) -> None:
    """Write that this node has nothing of the object any more. Raises Failed."""

    def free(now: Object) -> Object | None:
        return without_holder(now) if holder_of(now) == node_name else None

    update_with_retry(store, obj, free, store.replace)


def was_taken_away(obj: Object, node_name: str) -> bool:
    """Whether the object was taken away from this node, which was fenced, and what is left of it here is not ended."""
    return node_name in fenced_from(obj)


def runner_pod(obj: Object) -> str:
    """The name of the pod that its status names as its runner, in its own namespace; empty without one."""
    pod = (obj.get("status") or {}).get("runnerPod")
    return pod if isinstance(pod, str) and "/" not in pod else ""


def read_again(store: Store, kind: str, key: str, uid: str | None = None) -> Object | None:
    """An object as the store has it now, by its ``namespace/name``; None if it is gone, or if an object with another
    UID has its name. ``uid``: None accepts any. Raises StoreError."""
    namespace, _, name = key.partition("/")
    try:
        now = store.get(kind, namespace, name)
    except NotFound:
        return None
    return now if uid in (None, now["metadata"]["uid"]) else None


def update_with_retry(
    store: Store, obj: Object, change: Callable[[Object], Object | None], write: Callable[[Object], Object]
) -> Object | None:
    """Change the object as the store has it now, again if another writer came in between. None if it is gone, if
    another object has its name, or if ``change`` returns None. Raises Failed."""
    key = key_of(obj)
    try:
        for _ in range(_ATTEMPTS):
            try:
                now = store.get(obj["kind"], namespace_of(obj), obj["metadata"]["name"])
                if now["metadata"]["uid"] != obj["metadata"]["uid"]:
                    return None
                after = change(now)
                return after if after is None or after is now else write(after)
            except NotFound:
                return None
            except Conflict:
                continue
    except StoreError as error:
        raise Failed("StoreUnavailable", f"cannot read or write {obj['kind']} {key}: {error}") from error
    raise Failed("StoreUnavailable", f"{obj['kind']} {key} keeps changing; trying again")
