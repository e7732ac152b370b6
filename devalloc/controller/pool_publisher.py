"""Publish this host's inventory as pools of the store: write what changed, and nothing else. One process at a time
does.

``devalloc up`` without the node plugin and ``devalloc node`` may both run on a machine and its store. The node
plugin knows what is prepared, broken or withheld, so it publishes while it runs, and the other when it does not. The
locks are the kernel's, so that they go with the process however that ends.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devalloc.api.cordon import apply_cordons, cordon_reasons, has_cordon_annotation
from devalloc.api.meta import CORDONED_NODE, PUBLISHED_BY
from devalloc.api.pool import DevicePool
from devalloc.file_lock import FileLock
from devalloc.store import AlreadyExists, Conflict, Event, EventType, Key, NotFound, Object, Store, Unavailable
from devalloc.store.paths import check_private


class PublishLock:
    """One process's part in it. Use from one thread, but for ``is_wanted``."""

    def __init__(self, store: Path, node_name: str, *, first: bool) -> None:
        """``first``: others stop publishing for this one, as long as it is not closed. Raises Unavailable."""
        name = hashlib.sha256(node_name.encode()).hexdigest()[:12]
        self._path = store.with_name(f"{store.name}.{name}.publish.lock")
        self._wanted_path = store.with_name(f"{store.name}.{name}.first.lock")
        self._first = first
        self._lock = _open_lock_file(self._path)
        try:
            self._wanted = _open_lock_file(self._wanted_path)
        except BaseException:
            self._lock.close()
            raise
        if first:
            self._wanted.lock(shared=True)

    def take(self) -> bool:
        """Whether it is our turn now, and is from here on."""
        return not self.is_yield_requested() and self._lock.try_lock()

    def is_yield_requested(self) -> bool:
        """Whether another publisher has precedence. From any thread."""
        if self._first:
            return False
        try:
            with _open_lock_file(self._wanted_path) as probe:
                return not probe.try_lock()
        except Unavailable:  # the folder is gone, and with it whatever another process could say there
            return False

    def give(self) -> None:
        """Let others have it."""
        self._lock.unlock()

    def close(self) -> None:
        """Release the lock for others."""
        self._wanted.close()
        self._lock.close()


def _open_lock_file(path: Path) -> FileLock:
    check_private(path)
    try:
        return FileLock(path)
    except OSError as error:
        raise Unavailable(f"cannot open {path}: {error.strerror}") from error


log = logging.getLogger(__name__)

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


class PoolPublisher:
    """Keeps the pools of one node in the store as its inventory has them.

    A pool is ours when it carries our label and is of this node: pools of other nodes and pools made by hand are never
    changed or deleted. Labels, annotations and finalizers that others put on our pools stay, and a pool that notes what
    is cordoned outlives its card, without devices. A card that comes to a cordoned node is cordoned.
    """

    def __init__(
        self, store: Store, node_name: str, owner: Callable[[], Mapping[str, Any] | None] = lambda: None
    ) -> None:
        """``owner``: an owner reference for the pools, asked for at each publication; with what it names they go."""
        self._store = store
        self._owner = owner
        self._node_name = node_name
        self._generations: dict[str, int] = {}
        self._cordons: dict[str, dict[str, str]] = {}
        self._publishing = threading.Lock()

    def publish(self, pools: Sequence[DevicePool]) -> PublishResult:
        """Make the store say that these are the node's pools. Raises StoreError."""
        with self._publishing:
            owner = self._owner()
            owned = [_with_owner(_with_labels(pool.to_manifest()), owner) for pool in pools]
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
        node_note = next(filter(None, map(_node_note, ours.values())), None)
        created, updated, refused = [], [], []
        # Deletions first: a card that moved to another slot is never there twice.
        for name in deleted:
            self._delete(there[name])
        for name, pool in wanted.items():
            before = there.get(name)
            after = self._write(pool if node_note is None else _with_node_note(pool, node_note))
            if after is None:
                refused.append(name)
                continue
            self._generations[name] = after["metadata"]["generation"]
            self._cordons[name] = cordon_reasons(after)
            if before is None or before["metadata"]["uid"] != after["metadata"]["uid"]:
                created.append(name)
            elif before["metadata"]["generation"] != after["metadata"]["generation"]:
                updated.append(name)
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
        labels = obj["metadata"].get("labels", {})
        spec = obj.get("spec")
        node = spec.get("nodeName") if isinstance(spec, dict) else None
        return labels.get(PUBLISHED_BY) == INVENTORY and node == self._node_name


def _with_labels(pool: Object) -> Object:
    metadata = pool["metadata"]
    return {**pool, "metadata": {**metadata, "labels": {**metadata.get("labels", {}), PUBLISHED_BY: INVENTORY}}}


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
    return _with_labels({**pool, "metadata": {"name": pool["metadata"]["name"]}, "spec": spec})


def _node_note(pool: Object) -> str | None:
    note: str | None = pool["metadata"].get("annotations", {}).get(CORDONED_NODE)
    return note


def _with_node_note(pool: Object, note: str) -> Object:
    """A pool that is new on a cordoned node; what is there already is cordoned and uncordoned by admins alone."""
    metadata = pool["metadata"]
    return {**pool, "metadata": {**metadata, "annotations": {**metadata.get("annotations", {}), CORDONED_NODE: note}}}
