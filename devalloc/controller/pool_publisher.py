"""Publish this host's inventory as pools of the store: write what changed, and nothing else. One process at a time
does.

``devalloc up`` without the node plugin and ``devalloc node`` may both run on a machine and its store. The node
plugin knows what is prepared, broken or withheld, so it publishes while it runs, and the other when it does not. Two
plugins of one node would both run its machines, so the second one does not start. The locks are the kernel's, so that
they go with the process however that ends.
"""

from __future__ import annotations

import glob
import hashlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from devalloc.api.cordon import NODE_NOTES, apply_cordons, cordon_reasons, has_cordon_annotation, pool_node
from devalloc.api.meta import PUBLISHED_BY, STANDALONE
from devalloc.api.pool import DevicePool
from devalloc.api.views import ClaimView
from devalloc.controller.reconcile.fenced import held_objects
from devalloc.file_lock import FileLock
from devalloc.store import (
    REFUSALS,
    AlreadyExists,
    Conflict,
    Event,
    EventType,
    Key,
    NotFound,
    Object,
    Store,
    StoreError,
    StoreLocked,
    Unavailable,
)
from devalloc.store.paths import access_error, check_private
from devalloc.store.serving import node_lock_path

log = logging.getLogger(__name__)

PLUGIN_WAIT_SECONDS = 15.0
"""How long a plugin waits for its predecessor to end: it waits for its loops, and for warm setups in the making."""
_NOTICE_SECONDS = 0.5
"""After which it says whom it waits for. Others look at the plugin's lock for moments (``is_yield_requested``)."""
_LOCK_POLL_SECONDS = 0.05


class PublishLock:
    """One process's part in it. Use from one thread, but for ``is_yield_requested``."""

    def __init__(
        self,
        store: Path,
        node_name: str,
        *,
        is_plugin: bool,
        is_shared: bool = False,
        wait: float = PLUGIN_WAIT_SECONDS,
    ) -> None:
        """``is_plugin``: this is the node's plugin, of which only one can run, and others stop publishing for it, as
        long as it is not closed. ``is_shared``: on a cluster, where the old and the new pod of a rolling update are
        plugins of the node for a while, and other locks decide which of them serves it. ``wait``: seconds that a plugin
        that is about to end may take. Raises Unavailable, and StoreLocked if the plugin of this node runs already."""
        self._path = node_lock_path(store, node_name, "publish")
        self._plugin_lock_path = node_lock_path(store, node_name, "first")
        self._is_plugin = is_plugin
        self._lock = _open_lock_file(self._path)
        try:
            self._plugin_lock = _open_lock_file(self._plugin_lock_path)
        except BaseException:
            self._lock.close()
            raise
        if not is_plugin:
            return
        if is_shared:
            self._plugin_lock.lock(shared=True)
            return
        if not self._lock_as_plugin(node_name, store, wait):
            error = StoreLocked(
                f"{_already_served(self._plugin_lock, node_name, store)}; a second one would start its machines a "
                "second time. Stop that process first. On a store, `devalloc up --no-node` can run beside it, and a "
                "second plugin on this host needs its own --node-name, --state and --socket",
                None,
            )
            self.close()
            raise error
        self._warn_of_other_plugins(store)

    def _lock_as_plugin(self, node_name: str, store: Path, wait: float) -> bool:
        if self._plugin_lock.lock_within(min(wait, _NOTICE_SECONDS), _LOCK_POLL_SECONDS):
            return True
        rest = wait - _NOTICE_SECONDS
        if rest <= 0:
            return False
        log.warning("%s; waiting %.0f s for it to end", _already_served(self._plugin_lock, node_name, store), rest)
        return self._plugin_lock.lock_within(rest, _LOCK_POLL_SECONDS)

    def acquire(self) -> bool:
        """Whether it is our turn now, and is from here on."""
        return not self.is_yield_requested() and self._lock.try_lock()

    def is_yield_requested(self) -> bool:
        """Whether another publisher has precedence. From any thread."""
        if self._is_plugin:
            return False
        try:
            with _open_lock_file(self._plugin_lock_path) as probe:
                return not probe.try_lock()
        except Unavailable:  # the folder is gone, and with it whatever another process could say there
            return False

    def _warn_of_other_plugins(self, store: Path) -> None:
        """Report the plugins of other nodes on this store, which belongs to one host."""
        for path in sorted(store.parent.glob(f"{glob.escape(store.name)}.*.first.lock")):
            if path == self._plugin_lock_path:
                continue
            with suppress(OSError), FileLock.existing(path) as other:
                if other.is_locked_elsewhere():
                    log.warning(
                        "%s runs the plugin of another node on the store %s: both publish this host's CPUs, memory and "
                        "devices, so more is promised than there is; do this in tests only",
                        other.holder(),
                        store,
                    )

    def release(self) -> None:
        """Let others have it."""
        self._lock.unlock()

    def close(self) -> None:
        """Release the lock for others."""
        self._plugin_lock.close()
        self._lock.close()


def _already_served(lock: FileLock, node_name: str, store: Path) -> str:
    return f"{lock.holder()} already runs the plugin of node {node_name} on {store}"


def _open_lock_file(path: Path) -> FileLock:
    try:
        check_private(path)
        return FileLock(path)
    except OSError as error:
        raise access_error(f"cannot open {path}", error) from error


INVENTORY = "inventory"
"""Value of the label PUBLISHED_BY on the pools that are ours together with their node."""

_ATTEMPTS = 10


@dataclass(frozen=True)
class PublishResult:
    """What became of the pools, by name."""

    created: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    """Pools that could not be published, because another publisher's pool has the name."""

    @property
    def changed(self) -> bool:
        """Whether there is anything to tell."""
        return self != PublishResult()

    def __str__(self) -> str:
        parts = {"created": self.created, "updated": self.updated, "deleted": self.deleted, "refused": self.refused}
        return "; ".join(f"{what} {', '.join(names)}" for what, names in parts.items() if names) or "nothing changed"


class PoolsRefused(StoreError):
    """The store refuses to have some pools published. All others are."""


class PoolPublisher:
    """Keeps the pools of one node in the store as its inventory has them.

    A pool is ours when it carries our label and is of this node: pools of other nodes and pools made by hand are never
    changed or deleted. Labels, annotations and finalizers that others put on our pools stay, and a pool that notes what
    is cordoned outlives its card, without devices. A card that comes to a cordoned node is cordoned.
    """

    def __init__(
        self,
        store: Store,
        node_name: str,
        owner: Callable[[], Mapping[str, Any] | None] = lambda: None,
        *,
        standalone: bool = False,
    ) -> None:
        """``owner``: an owner reference for the pools, asked for at each publication; with what it names they go.
        ``standalone``: mark them as those of `devalloc up` (``withdraw_previous_names``)."""
        self._store = store
        self._labels = {PUBLISHED_BY: INVENTORY, **({STANDALONE: _host_mark()} if standalone else {})}
        self._owner = owner
        self._node_name = node_name
        self._generations: dict[str, int] = {}
        self._cordons: dict[str, dict[str, str]] = {}
        self._publishing = threading.Lock()

    def publish(self, pools: Sequence[DevicePool]) -> PublishResult:
        """Make the store say that these are the node's pools. Raises StoreError; PoolsRefused after all that could be
        published."""
        with self._publishing:
            owner = self._owner()
            owned = [_with_owner(_with_labels(pool.to_manifest(), self._labels), owner) for pool in pools]
            published = self._publish({pool["metadata"]["name"]: pool for pool in owned})
        log.info("pools of node %s: %s", self._node_name, published)
        return published

    def is_overwritten(self, event: Event) -> bool:
        """Whether an event says that one of our pools is not what we last published any more, or cordons have changed.

        Waits for a publication that is under way: what that writes is not overwritten.
        """
        if event.object["kind"] != "DevicePool" or not self._is_ours(event.object):
            return False
        with self._publishing:
            generation = self._generations.get(event.object["metadata"]["name"])
            noted = self._cordons.get(event.object["metadata"]["name"], {})
        if generation is None:
            return False
        if event.type is not EventType.DELETED and cordon_reasons(event.object) != noted:
            return True
        return event.type is EventType.DELETED or event.object["metadata"]["generation"] != generation

    def _publish(self, wanted: dict[str, Object]) -> PublishResult:
        there = {obj["metadata"]["name"]: obj for obj in self._store.list("DevicePool").objects}
        ours = {name: obj for name, obj in there.items() if self._is_ours(obj)}
        wanted = {**{name: _without_devices(obj) for name, obj in ours.items() if has_cordon_annotation(obj)}, **wanted}
        deleted = [name for name in ours if name not in wanted]
        node_notes = {name: note for pool in ours.values() for name, note in _node_notes(pool).items()}
        created, updated, refused = [], [], []
        failures: list[StoreError] = []
        # Deletions first: a card that moved to another slot is never there twice.
        for name in deleted:
            try:
                self._delete(there[name])
            except REFUSALS as error:
                failures.append(error)
        is_all_deleted = not failures
        for name, pool in wanted.items():
            before = there.get(name)
            if before is None and not is_all_deleted:
                continue
            try:
                after = self._write(_with_node_notes(pool, node_notes) if node_notes else pool)
            except REFUSALS as error:
                failures.append(error)
                continue
            if after is None:
                refused.append(name)
                continue
            self._generations[name] = after["metadata"]["generation"]
            self._cordons[name] = cordon_reasons(after)
            if before is None or before["metadata"]["uid"] != after["metadata"]["uid"]:
                created.append(name)
            elif before["metadata"]["generation"] != after["metadata"]["generation"]:
                updated.append(name)
        if failures:
            raise PoolsRefused("; ".join(map(str, failures)))
        return PublishResult(tuple(created), tuple(updated), tuple(deleted), tuple(refused))

    def _write(self, pool: Object) -> Object | None:
        """The pool as stored; None when it is not ours to write."""
        key = Key.of(pool)
        for _ in range(_ATTEMPTS):
            try:
                return self._store.create(apply_cordons(pool))
            except AlreadyExists:
                pass
            try:
                old = self._store.get(*key)
                if not self._is_ours(old):
                    log.error(
                        "%s exists and was not published by the inventory of node %s: this node's devices in it are "
                        "not offered. Delete it, or give it another name",
                        key,
                        self._node_name,
                    )
                    return None
                if old["spec"].get("driver") != pool["spec"].get("driver"):
                    # A card of another kind in this slot, or one that an upgrade knows better. A pool keeps its driver.
                    notes = old["metadata"].get("annotations", {})
                    pool = {**pool, "metadata": {**pool["metadata"], "annotations": notes}}
                    self._delete(old)
                    continue
                return self._store.replace(apply_cordons(_updated(old, pool)))
            except (Conflict, NotFound):
                continue
        raise Conflict({key: f"{key} keeps changing; the next scan of the inventory tries again"})

    def _delete(self, pool: Object) -> None:
        key = Key.of(pool)
        self._generations.pop(key.name, None)
        self._cordons.pop(key.name, None)
        try:
            self._store.delete(*key, uid=pool["metadata"]["uid"])
        except (Conflict, NotFound):
            log.info("%s was already deleted", key)

    def _is_ours(self, obj: Object) -> bool:
        return _is_of_inventory(obj) and pool_node(obj) == self._node_name


class StillNamed(StoreError):
    """This host has another name than before, and something of its store is of the previous one."""


def withdraw_previous_names(store: Store, path: Path, node_name: str) -> tuple[str, ...]:
    """Delete the pools that `devalloc up` published on this store under other names of its host; returns their names.

    The same devices would otherwise be there twice, under both names. Only one `devalloc up` can run on a store. Pools
    of other publishers stay, and those that another host's `devalloc up` made: a user copied them. ``path``: of the
    store, which is held. Raises StillNamed if anything of such a name is in use, and StoreError.
    """
    stale = [pool for pool in store.list("DevicePool").objects if _is_of_inventory(pool) and _is_standalone(pool)]
    return _withdraw(store, path, node_name, [pool for pool in stale if pool_node(pool) != node_name])


def withdraw_previous_name(store: Store, path: Path, node_name: str, previous: str) -> tuple[str, ...]:
    """As ``withdraw_previous_names``, for the one name under which the node plugin of this host served before; also the
    pools that it published itself. Several node plugins may run on a store: other names are theirs."""
    stale = [pool for pool in store.list("DevicePool").objects if _is_of_inventory(pool)]
    return _withdraw(store, path, node_name, [pool for pool in stale if pool_node(pool) == previous])


def _withdraw(store: Store, path: Path, node_name: str, stale: Sequence[Object]) -> tuple[str, ...]:
    for previous in sorted({pool_node(pool) or "" for pool in stale}):
        pools = [pool for pool in stale if pool_node(pool) == previous]
        if uses := _uses(store, path, previous, pools):
            raise StillNamed(
                f"the devices of this host are published as those of node {previous}, not {node_name}, and are in use: "
                f"{', '.join(uses[:5])}{f' and {len(uses) - 5} more' if len(uses) > 5 else ''}. Start it with "
                f"--node-name {previous}. To rename the node, release or delete all of that first, and uncordon what "
                "is cordoned"
            )
    for pool in stale:
        store.delete(*Key.of(pool), uid=pool["metadata"]["uid"])
    return tuple(pool["metadata"]["name"] for pool in stale)


def _uses(store: Store, path: Path, node: str, pools: Sequence[Object]) -> list[str]:
    """What keeps pools of a node from being withdrawn."""
    names = {pool["metadata"]["name"] for pool in pools}
    claims = [one for one in store.list("DeviceClaim").objects if names & _pools_in(one)]
    keys = sorted({Key.of(one) for one in (*held_objects(store, node), *claims)})
    uses = [f"{'machine' if key.kind == 'VirtualMachine' else 'claim'} {key.namespace}/{key.name}" for key in keys]
    uses += [f"pool {pool['metadata']['name']}, which is cordoned" for pool in pools if has_cordon_annotation(pool)]
    with closing(PublishLock(path, node, is_plugin=False)) as turn:
        if not turn.acquire():
            uses.append(f"a process that publishes the devices of node {node}")
    return uses


def _pools_in(claim: Object) -> set[str]:
    entries = ClaimView(claim).entries
    return {str(entry.get("devicePoolName")) for entry in entries if isinstance(entry, dict)}


def _is_of_inventory(pool: Object) -> bool:
    return bool(pool["metadata"].get("labels", {}).get(PUBLISHED_BY) == INVENTORY)


def _is_standalone(pool: Object) -> bool:
    return bool(pool["metadata"].get("labels", {}).get(STANDALONE) == _host_mark())


@cache
def _host_mark() -> str:
    """What stays the same when this host's name changes; the machine's ID itself is not published."""
    try:
        machine = Path("/etc/machine-id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        machine = ""
    return hashlib.sha256(f"{STANDALONE} {machine}".encode()).hexdigest()[:16]


def _with_labels(pool: Object, labels: Mapping[str, str]) -> Object:
    metadata = pool["metadata"]
    return {**pool, "metadata": {**metadata, "labels": {**metadata.get("labels", {}), **labels}}}


def _with_owner(pool: Object, owner: Mapping[str, Any] | None) -> Object:
    if owner is None:
        return pool
    return {**pool, "metadata": {**pool["metadata"], "ownerReferences": [dict(owner)]}}


def _updated(old: Object, new: Object) -> Object:
    """``old`` with the spec of ``new``, and the labels and the owner that ``new`` has."""
    metadata = dict(old["metadata"])
    metadata["labels"] = {**metadata.get("labels", {}), **new["metadata"].get("labels", {})}
    if owners := new["metadata"].get("ownerReferences"):
        metadata["ownerReferences"] = owners
    return {**new, "metadata": metadata}


def _without_devices(pool: Object) -> Object:
    """What is left of a pool whose card is gone, and which is cordoned."""
    spec = {name: pool["spec"][name] for name in ("nodeName", "driver") if name in pool["spec"]}
    return _with_labels(
        {**pool, "metadata": {"name": pool["metadata"]["name"]}, "spec": spec}, {PUBLISHED_BY: INVENTORY}
    )


def _node_notes(pool: Object) -> dict[str, str]:
    annotations = pool["metadata"].get("annotations", {})
    return {name: annotations[name] for name in NODE_NOTES if name in annotations}


def _with_node_notes(pool: Object, notes: dict[str, str]) -> Object:
    """A pool that is new on a cordoned or fenced node. Only admins change the notes of a pool that exists."""
    metadata = pool["metadata"]
    return {**pool, "metadata": {**metadata, "annotations": {**metadata.get("annotations", {}), **notes}}}
