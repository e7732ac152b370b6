"""``devalloc describe``: all details of an object."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from devalloc.cli.command import BadInput, verb
from devalloc.cli.object_names import fetch_object, keys_of, kind_of, objects_named
from devalloc.cli.options.common import namespace_option
from devalloc.cli.shell_completion import complete_objects
from devalloc.cli.target import StoreTarget, open_readable_target, target_options
from devalloc.cli.terminal import print_line, print_note
from devalloc.store.errors import Key

if TYPE_CHECKING:
    pass


@verb("describe")
@click.argument(
    "what",
    nargs=-1,
    required=True,
    metavar="KIND [NAME...] | KIND/NAME...",
    shell_complete=complete_objects,
)
@namespace_option
@target_options
def describe(what: tuple[str, ...], namespace: str, place: StoreTarget) -> int:
    """Show all details of objects: a claim with its devices, a pool with its users. KIND alone: of all.

    \b
    devalloc describe dclaim/train
    devalloc describe pool node-a-l40s
    """
    from devalloc.cli.details import print_details

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
