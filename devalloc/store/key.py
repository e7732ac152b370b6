"""The identity of an object in a store."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from devalloc.api.kinds import qualified_kind
from devalloc.store.errors import Invalid

Object = dict[str, Any]
"""A manifest as plain JSON content: apiVersion, kind, metadata, then spec, status or other fields of the kind."""

_SEGMENT = re.compile(r"[^\x00-\x20\x7f/%\ud800-\udfff]+")


class Key(NamedTuple):
    """Kind (``qualified_kind``), namespace (None for cluster-scoped objects) and name."""

    kind: str
    namespace: str | None
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" if self.namespace is None else f"{self.kind} {self.namespace}/{self.name}"

    @classmethod
    def of(cls, obj: Object) -> Key:
        """The key of a manifest. Raises Invalid, with the field, if it is incomplete."""
        metadata = obj.get("metadata")
        if not isinstance(metadata, dict):
            raise Invalid("metadata: must be a map with a name")
        key = cls.checked(obj.get("kind"), metadata.get("namespace"), metadata.get("name"))
        kind = qualified_kind(key.kind, obj.get("apiVersion"))
        return key if kind == key.kind else cls.checked(kind, key.namespace, key.name)

    @classmethod
    def checked(cls, kind: object, namespace: object, name: object) -> Key:
        """The key of these values. Raises Invalid, with the field that is wrong."""
        return cls(
            _segment("kind", kind),
            None if namespace is None else _segment("metadata.namespace", namespace),
            _segment("metadata.name", name),
        )


def _segment(field: str, value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 253 or _SEGMENT.fullmatch(value) is None:
        raise Invalid(f"{field}: must be a string of 1 to 253 characters without '/', '%' or spaces, not {value!r:.60}")
    if value in (".", ".."):
        raise Invalid(f"{field}: must not be {value!r}")
    return value
