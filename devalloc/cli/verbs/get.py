"""``devalloc get``: objects of the store."""

from __future__ import annotations

import sys
from typing import Any

from devalloc.api.api_kind import ApiKind
from devalloc.api.kinds import API_KINDS
from devalloc.cli.command import BadInput, NoSuchObject
from devalloc.cli.node_objects import is_nodes, node_names, node_objects
from devalloc.cli.object_names import format_key, keys_of, kind_of, not_found_hint, similar_names_hint
from devalloc.cli.options.common import (
    LabelTest,
)
from devalloc.cli.options.objects import OutputForm
from devalloc.cli.options.places import StoreTarget
from devalloc.cli.render.columns import header_and_rows
from devalloc.cli.render.jsonpath import render_template, sort_key
from devalloc.cli.render.output import Cell, GrowingTable, print_content, print_objects, print_table
from devalloc.cli.target import explain_waiting, open_target, silence_note
from devalloc.cli.terminal import print_data, print_line, print_note
from devalloc.store import Store
from devalloc.store.errors import Key, NotFound

Object = dict[str, Any]


def get(
    what: tuple[str, ...],
    namespace: str,
    all_namespaces: bool,
    form: OutputForm,
    selected: LabelTest | None,
    watch: bool,
    everything: bool,
    place: StoreTarget,
) -> int:
    all_namespaces = all_namespaces or everything
    if is_nodes(what):
        if watch or selected or form.show_labels:
            option = "--watch" if watch else "--selector" if selected else "--show-labels"
            raise BadInput(f"nodes are not objects of the store, so {option} is not possible; `devalloc top` is live")
        with open_target(place) as store:
            return _nodes(store, what, form)
    if "/" not in what[0] and len(what) == 1:
        with open_target(place if all_namespaces else place.within(namespace)) as objects:
            explain_waiting(objects, answers=form.shows_objects)
            words = [kind for kind in API_KINDS if what[0] == "all"] or what[0].split(",")
            kinds = [kind_of(word, objects) for word in words]
            return _list(objects, kinds, None if all_namespaces else namespace, form, watch, selected)
    if all_namespaces or selected:
        option = "--all-namespaces" if all_namespaces else "--selector"
        raise BadInput(f"a name and {option} cannot be combined; give the namespace with -n")
    with open_target(place.within(namespace)) as objects:
        explain_waiting(objects, answers=form.shows_objects)
        keys = keys_of(what, namespace, store=objects)
        return _named(objects, keys, form, watch)


def _list(
    store: Store, kinds: list[ApiKind], namespace: str | None, form: OutputForm, watch: bool, selected: LabelTest | None
) -> int:
    wanted = {kind.kind: namespace if kind.namespaced else None for kind in kinds}
    listing = store.list(wanted)
    objects = [
        obj
        for obj in listing.objects
        if wanted[kind := Key.of(obj).kind] is None or obj["metadata"].get("namespace") == wanted[kind]
    ]
    objects = [obj for obj in objects if selected is None or selected(obj)]
    if form.sort_by is not None:
        objects.sort(key=lambda obj: sort_key(form.sort_by or "", obj))
    _print_first(objects, form, watch=watch, namespaces=namespace is None)
    if not objects and form.is_table and not watch:
        where = "" if namespace is None or not kinds[0].namespaced else f" in namespace {namespace} (-A shows all)"
        print_note(f"no {', '.join(kind.plural for kind in kinds)}{where}{' with these labels' if selected else ''}")
    if form.is_table and (silence := silence_note(store, objects)):
        print_note(silence)
    if watch:
        _print_changes(store, set(wanted), listing.resource_version, None, namespace, form, selected)
    return 0


def _named(store: Store, keys: list[Key], form: OutputForm, watch: bool) -> int:
    version = store.list(()).resource_version
    objects, missing = [], 0
    for key in keys:
        try:
            objects.append(store.get(*key))
        except NotFound as error:
            print_note(f"error: {error}{not_found_hint(store, key)}")
            missing += 1
    if (form.is_data or form.template is not None) and len(keys) == 1 and objects and not watch:
        _print_one(objects[0], form)
    else:
        _print_first(objects, form, watch=watch, namespaces=False)
        if form.is_table and (silence := silence_note(store, objects)):
            print_note(silence)
    if watch:
        _print_changes(store, {key.kind for key in keys}, version, set(keys), None, form)
    return NoSuchObject.exit_code if missing else 0


def _nodes(store: Store, what: tuple[str, ...], form: OutputForm) -> int:
    """All nodes, or those that are named."""
    from devalloc.store.kubernetes import KubernetesStore

    objects = node_objects(store)
    by_name = {obj["metadata"]["name"]: obj for obj in objects}
    names, missing = node_names(what), 0
    for name in names or ():
        if name not in by_name:
            print_note(
                f"error: there is no node {name} with pools, machines or claims{similar_names_hint(name, by_name)}"
            )
            missing += 1
    if names is not None:
        objects = [by_name[name] for name in names if name in by_name]
    if form.sort_by is not None:
        objects.sort(key=lambda obj: sort_key(form.sort_by or "", obj))
    if names is not None and len(names) == 1 and objects and (form.is_data or form.template is not None):
        _print_one(objects[0], form)
    elif objects or not form.is_table:
        _print(objects, form, namespaces=False)
    elif names is None:
        others = ""
        if isinstance(store, KubernetesStore):
            others = "; nodes that publish ResourceSlices only are not listed: kubectl get resourceslices"
        print_note(f"no nodes with pools, machines or claims{others}")
    return NoSuchObject.exit_code if missing else 0


def _print_changes(
    store: Store,
    kinds: set[str],
    since: str,
    keys: set[Key] | None,
    namespace: str | None,
    form: OutputForm,
    selected: LabelTest | None = None,
) -> None:
    feed = GrowingTable()
    for event in store.watch(kinds, since):
        key = Key.of(event.object)
        if selected is not None and not selected(event.object):
            continue
        if (keys is None and key.namespace in (None, namespace or key.namespace)) or (keys and key in keys):
            everywhere = namespace is None and keys is None
            _print_change(feed, event.type.value, event.object, form, namespaces=everywhere)


def _print_first(objects: list[Object], form: OutputForm, *, watch: bool, namespaces: bool) -> None:
    """Print the objects before any change. A program that watches gets them in the same form as the changes."""
    if watch and form.is_data:
        for obj in objects:
            print_content({"type": "ADDED", "object": obj}, form.output)
    elif watch and form.template is not None:
        for obj in objects:
            _print_one(obj, form)
    else:
        _print(objects, form, namespaces=namespaces)


def _print_one(obj: Object, form: OutputForm) -> None:
    if form.template is None:
        print_content(obj, form.output)
        return

    print_data(render_template(form.template, obj), end="\n" if sys.stdout.isatty() else "")


def _print(objects: list[Object], form: OutputForm, *, namespaces: bool) -> None:
    if form.template is not None:
        _print_one({"kind": "List", "items": objects}, form)
    elif form.output == "name":
        for obj in objects:
            print_line(format_key(Key.of(obj)))
    elif form.is_data:
        print_objects(objects, form.output)
    else:
        for i, kind in enumerate(dict.fromkeys(Key.of(obj).kind for obj in objects)):
            if i:
                print_line()
            same = [obj for obj in objects if Key.of(obj).kind == kind]
            print_table(*_table(kind, same, form, namespaces), no_headers=form.no_headers, wide=form.output == "wide")


def _print_change(feed: GrowingTable, change: str, obj: Object, form: OutputForm, *, namespaces: bool) -> None:
    if form.template is not None:
        _print_one(obj, form)
    elif form.output == "name":
        print_line(format_key(Key.of(obj)))
    elif form.is_data:
        print_content({"type": change, "object": obj}, form.output)
    else:
        headers, (row,) = _table(Key.of(obj).kind, [obj], form, namespaces)
        feed.row(["CHANGE", *headers], [change, *row])


def _table(kind: str, objects: list[Object], form: OutputForm, namespaces: bool) -> tuple[list[str], list[list[Cell]]]:
    if form.columns is not None:
        rows: list[list[Cell]] = [
            [render_template(f"{{{path.strip('{}')}}}", obj) or "<none>" for _, path in form.columns] for obj in objects
        ]
        return [header for header, _ in form.columns], rows
    namespaces = namespaces and (kind not in API_KINDS or API_KINDS[kind].namespaced)
    headers, rows = header_and_rows(kind, objects, wide=form.output == "wide", namespaces=namespaces)
    if form.show_labels:
        labels = [obj["metadata"].get("labels") or {} for obj in objects]
        texts = [",".join(f"{name}={value}" for name, value in each.items()) or "<none>" for each in labels]
        return [*headers, "LABELS"], [[*row, text] for row, text in zip(rows, texts, strict=True)]
    return headers, rows
