"""All that asks for no devices: pools, classes, configurations, Nodes, quotas; as rounds decide on it.

A round has thousands of pools, of which one or two have changed. What is made of the others stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from devalloc.api.cordon import NODE_KIND, apply_cordons, is_node, pool_node, unknown_nodes, unschedulable_nodes
from devalloc.api.fencing import fence_statements
from devalloc.controller.reconcile.snapshot import order_of_key
from devalloc.controller.reconcile.stored_claims import is_foreign
from devalloc.store import Key, Object
from devalloc_solver.pipeline import quota

_POOL = "DevicePool"


@dataclass(slots=True)
class Surroundings:
    """Of one loop. Not thread-safe."""

    asking: frozenset[str]
    """Kinds of what asks for devices. A round looks at it only if a change could matter to it."""
    documents: Sequence[Object] = ()
    """What is decided on, in order: cordoned devices are unavailable, and what counts of Nodes is in their pools."""
    foreign: Sequence[Object] = ()
    """What is only stored."""
    _objects: dict[Key, Object] = field(default_factory=dict)
    _documents: dict[Key, Object] = field(default_factory=dict)
    _foreign: dict[Key, Object] = field(default_factory=dict)
    _closed: dict[str, str] = field(default_factory=dict)
    """The Nodes that get nothing new, and why."""
    _stating: set[Key] = field(default_factory=set)
    """Objects that say that a node is off."""
    _quotas: set[Key] = field(default_factory=set)
    _unknown: dict[str, str] | None = None
    """``unknown_nodes``; None until it is asked for."""

    @property
    def has_quotas(self) -> bool:
        """Whether there is a ResourceQuota, of whatever."""
        return bool(self._quotas)

    @property
    def pools(self) -> int:
        """How many there are, those too that cannot be read."""
        return sum(key.kind == _POOL for key in self._documents)

    @property
    def has_fences(self) -> bool:
        """Whether a node is stated to be off."""
        return bool(self._stating)

    @property
    def nodes_and_pools(self) -> list[Object]:
        """The Nodes, and the pools as they are."""
        return [obj for key, obj in self._objects.items() if key.kind in (NODE_KIND, _POOL)]

    @property
    def unknown_nodes(self) -> Mapping[str, str]:
        """The nodes of pools for which there is no Node (``devalloc.api.cordon.unknown_nodes``)."""
        if self._unknown is None:
            self._unknown = unknown_nodes(self._objects.values())
        return self._unknown

    def update(self, objects: Mapping[Key, Object], changed: Iterable[Key]) -> None:
        """Read what there is now. ``changed``: what has come, gone or become another since the last call; and more."""
        others = {
            key for key in changed if key.kind not in self.asking and objects.get(key) is not self._objects.get(key)
        }
        if not others:
            return
        moved: set[str | None] = set()  # nodes whose pools are to be read anew
        for key in others:
            before, now = self._objects.get(key), objects.get(key)
            if now is None:
                del self._objects[key]
            else:
                self._objects[key] = now
            if before is None or now is None or pool_node(before) != pool_node(now):
                self._unknown = None
            if key.kind == NODE_KIND and self._close(key.name, now):
                moved.add(key.name)
            _keep(self._stating, key, is_in=now is not None and bool(fence_statements([now])))
            _keep(self._quotas, key, is_in=now is not None and quota.is_quota(now))
        if moved:
            others |= {key for key, obj in self._objects.items() if key.kind == _POOL and pool_node(obj) in moved}
        is_new = False
        for key in others:
            now = self._objects.get(key)
            self._foreign.pop(key, None)
            if now is not None and is_foreign(now):
                self._foreign[key] = now
            if now is None or is_foreign(now) or is_node(now):
                self._documents.pop(key, None)
                continue
            is_new |= key not in self._documents
            self._documents[key] = (
                apply_cordons(now, self._closed.get(pool_node(now) or "")) if key.kind == _POOL else now
            )
        if is_new:
            self._documents = dict(sorted(self._documents.items(), key=lambda item: order_of_key(item[0])))
        self.documents = [*self._documents.values()]
        self.foreign = [*self._foreign.values()]

    def _close(self, name: str, node: Object | None) -> bool:
        """Note whether a Node gets something new; whether that is otherwise than before."""
        before, now = self._closed.pop(name, None), None
        if node is not None and (now := unschedulable_nodes([node]).get(name)) is not None:
            self._closed[name] = now
        return before != now


def _keep(keys: set[Key], key: Key, *, is_in: bool) -> None:
    if is_in:
        keys.add(key)
    else:
        keys.discard(key)
