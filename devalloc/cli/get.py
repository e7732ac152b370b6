"""``devalloc get``: objects of the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from devalloc.cli import suggestions
from devalloc.cli.names import keys_of, kind_of, namesake, shown
from devalloc.cli.options import all_namespaces_option, namespace_option, output_option
from devalloc.cli.output import dump, dump_objects, note, table
from devalloc.cli.place import Place, place_options
from devalloc.cli.verb import BadInput, verb
from devalloc.store.key import Key

if TYPE_CHECKING:
    from devalloc.api.kinds import Kind
    from devalloc.cli.output import Cell, Feed
    from devalloc.store import Store

Object = dict[str, Any]


@verb("get")
@click.argument(
    "what", nargs=-1, required=True, metavar="KIND [NAME...] | KIND/NAME...", shell_complete=suggestions.objects
)
@namespace_option
@all_namespaces_option
@output_option()
@click.option("-w", "--watch", is_flag=True, help="Go on with every change, until Ctrl-C.")
@place_options
def get(what: tuple[str, ...], namespace: str, all_namespaces: bool, output: str, watch: bool, place: Place) -> int:
    """List objects, or print them.

    \b
    devalloc get pools
    devalloc get claims -A -o wide
    devalloc get dclaim/train -o yaml
    """
    from devalloc.cli.place import opened

    if "/" not in what[0] and len(what) == 1:
        with opened(place) as objects:
            kinds = [kind_of(word, objects) for word in what[0].split(",")]
            return _list(objects, kinds, None if all_namespaces else namespace, output, watch)
    if all_namespaces:
        raise BadInput("a name and --all-namespaces do not go together; say the namespace with -n")
    with opened(place) as objects:
        keys = keys_of(what, namespace, store=objects)
        return _named(objects, keys, output, watch)


def _list(store: Store, kinds: list[Kind], namespace: str | None, output: str, watch: bool) -> int:
    wanted = {kind.kind: namespace if kind.namespaced else None for kind in kinds}
    listing = store.list(wanted)
    found = [
        obj
        for obj in listing.objects
        if wanted[kind := Key.of(obj).kind] is None or obj["metadata"].get("namespace") == wanted[kind]
    ]
    _print_first(found, output, watch=watch, namespaces=namespace is None)
    if not found and output in ("table", "wide") and not watch:
        where = "" if namespace is None or not kinds[0].namespaced else f" in namespace {namespace} (-A shows all)"
        note(f"no {', '.join(kind.plural for kind in kinds)}{where}")
    if watch:
        _follow(store, set(wanted), listing.resource_version, None, namespace, output)
    return 0


def _named(store: Store, keys: list[Key], output: str, watch: bool) -> int:
    from devalloc.store.errors import NotFound

    version = store.list(()).resource_version
    found, missing = [], 0
    for key in keys:
        try:
            found.append(store.get(*key))
        except NotFound as error:
            note(f"error: {error}{namesake(store, key)}")
            missing += 1
    if output in ("json", "yaml") and len(keys) == 1 and found and not watch:
        dump(found[0], output)
    else:
        _print_first(found, output, watch=watch, namespaces=False)
    if watch:
        _follow(store, {key.kind for key in keys}, version, set(keys), None, output)
    return 1 if missing else 0


def _follow(
    store: Store, kinds: set[str], since: str, keys: set[Key] | None, namespace: str | None, output: str
) -> None:
    from devalloc.cli.output import Feed

    feed = Feed()
    for event in store.watch(kinds, since):
        key = Key.of(event.object)
        if (keys is None and key.namespace in (None, namespace or key.namespace)) or (keys and key in keys):
            everywhere = namespace is None and keys is None
            _print_change(feed, event.type.value, event.object, output, namespaces=everywhere)


def _print_first(objects: list[Object], output: str, *, watch: bool, namespaces: bool) -> None:
    """What is there before any change. A program that watches gets it in the same form as the changes."""
    if watch and output in ("json", "yaml"):
        for obj in objects:
            dump({"type": "ADDED", "object": obj}, output)
    else:
        _print(objects, output, namespaces=namespaces)


def _print(objects: list[Object], output: str, *, namespaces: bool) -> None:
    if output == "name":
        for obj in objects:
            click.echo(shown(Key.of(obj)))
    elif output in ("json", "yaml"):
        dump_objects(objects, output)
    else:
        for i, kind in enumerate(dict.fromkeys(Key.of(obj).kind for obj in objects)):
            if i:
                click.echo()
            table(*_table(kind, [obj for obj in objects if Key.of(obj).kind == kind], output, namespaces))


def _print_change(feed: Feed, change: str, obj: Object, output: str, *, namespaces: bool) -> None:
    if output == "name":
        click.echo(shown(Key.of(obj)))
    elif output in ("json", "yaml"):
        dump({"type": change, "object": obj}, output)
    else:
        headers, (row,) = _table(Key.of(obj).kind, [obj], output, namespaces)
        feed.row(["CHANGE", *headers], [change, *row])


def _table(kind: str, objects: list[Object], output: str, namespaces: bool) -> tuple[list[str], list[list[Cell]]]:
    from devalloc.api.kinds import KINDS
    from devalloc.cli.columns import header_and_rows

    namespaces = namespaces and (kind not in KINDS or KINDS[kind].namespaced)
    return header_and_rows(kind, objects, wide=output == "wide", namespaces=namespaces)
