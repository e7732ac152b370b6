"""Lists of objects as manifests: ``kind: List`` of kubectl, and ``ResourceSliceList`` of an API server.

The items of a typed list need no ``kind`` and ``apiVersion`` of their own: ``kubectl get --raw`` and client libraries
leave them out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from devalloc.api.json_content import MAPPINGS

_LIST = "List"


def is_object_list(content: object) -> bool:
    """Whether a manifest is a list of objects."""
    if not isinstance(content, MAPPINGS) or not isinstance(content.get("items"), list):
        return False
    kind = content.get("kind")
    return kind is None or (isinstance(kind, str) and kind.endswith(_LIST))


def own_object(item: Any, content: Mapping[str, Any]) -> Any:
    """An item of a list as an object of its own: with the kind and the version that the list has."""
    kind = content.get("kind")
    if not isinstance(item, Mapping) or not isinstance(kind, str) or kind == _LIST:
        return item
    missing = {"apiVersion": content.get("apiVersion"), "kind": kind.removesuffix(_LIST)}
    added = {name: value for name, value in missing.items() if value and item.get(name) is None}
    return {**added, **{name: value for name, value in item.items() if name not in added}} if added else item


def flatten_lists(document: Any) -> Iterator[Any]:
    """The objects of a list, and of the lists in it; of anything else, itself.

    Raises ValueError for a list that contains itself.
    """
    if not is_object_list(document):
        yield document
        return
    waiting: list[tuple[Iterator[Any], int]] = [(iter((document,)), id(document))]
    """What is left of the lists that are being read, from the outermost on, and the identities of their items."""
    around = {id(document)}
    """The identities of the items of all these lists."""
    while waiting:
        left, identity = waiting[-1]
        for content in left:
            if not is_object_list(content):
                yield content
                continue
            items = content["items"]
            if id(items) in around:
                raise ValueError("a list of objects contains itself; give its objects one by one")
            around.add(id(items))
            waiting.append((iter([own_object(item, content) for item in items]), id(items)))
            break
        else:
            waiting.pop()
            around.remove(identity)
