"""``devalloc describe``: all details of an object."""

from __future__ import annotations

from typing import TYPE_CHECKING

from devalloc.cli.command import BadInput
from devalloc.cli.details import print_details
from devalloc.cli.object_names import fetch_object, keys_of, kind_of, objects_named
from devalloc.cli.options.places import StoreTarget
from devalloc.cli.target import open_readable_target
from devalloc.cli.terminal import print_line, print_note
from devalloc.store.errors import Key

if TYPE_CHECKING:
    pass


def describe(what: tuple[str, ...], namespace: str, place: StoreTarget) -> int:
    with open_readable_target(place, namespace) as objects:
        if len(what) == 1 and "/" not in what[0] and (same := objects_named(objects, what[0])):
            raise BadInput(f"{what[0]} is not a kind; did you mean {' or '.join(same)}?")
        keys = keys_of(what, namespace, store=objects)
        if not keys:
            kind = kind_of(what[0], objects)
            keys = [Key.of(obj) for obj in objects.list(kind.kind, namespace if kind.namespaced else None).objects]
            if not keys:
                print_note(f"there are no {kind.plural}" + (f" in namespace {namespace}" if kind.namespaced else ""))
        for i, key in enumerate(keys):
            if i:
                print_line()
            print_details(objects, fetch_object(objects, key))
    return 0
