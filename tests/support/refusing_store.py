"""A store that refuses writes of some objects, as an API server does because of a policy of its admin."""

from __future__ import annotations

from typing import Any

from devalloc.store import Invalid, Object, StoreError

DENIED = Invalid("ValidatingAdmissionPolicy 'org' with binding 'org' denied request: the label team is missing")


class RefusingStore:
    """Reads and all other writes go to a store."""

    def __init__(self, store: Any, **refused: StoreError) -> None:
        """``refused``: what writes of objects of these names raise."""
        self._store, self.refused = store, refused

    @property
    def __class__(self) -> Any:
        """Nodes count in a store of a cluster."""
        return type(self._store)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _check(self, name: str) -> None:
        if name in self.refused:
            raise self.refused[name]

    def create(self, obj: Object) -> Object:
        self._check(obj["metadata"]["name"])
        return self._store.create(obj)  # type: ignore[no-any-return]

    def replace(self, obj: Object) -> Object:
        self._check(obj["metadata"]["name"])
        return self._store.replace(obj)  # type: ignore[no-any-return]

    def delete(self, kind: str, namespace: str | None, name: str, **preconditions: str) -> Object:
        self._check(name)
        return self._store.delete(kind, namespace, name, **preconditions)  # type: ignore[no-any-return]

    def commit(self, changes: Any, fence: Any = None) -> Any:
        for change in changes:
            self._check(change.key.name)
        return self._store.commit(changes, fence)
