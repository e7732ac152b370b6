"""The label from which a node knows that a claim or a machine is its own: nodes watch nothing else.

The label is written with the allocation, in the same write. A round also writes it on objects that lack it: those of an
earlier version, those whose label a user removed, and machines that name a node themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from devalloc.api.meta import ALLOCATED_NODE, NODE_LABEL, PREPARED_ON, node_label
from devalloc.controller.reconcile.claims import allocation_entries, annotation_of, is_prepared
from devalloc.controller.reconcile.decision import WriteUnit
from devalloc.controller.reconcile.snapshot import Memo
from devalloc.controller.reconcile.vm_scheduling import machines
from devalloc.store import Change, Key, Object
from devalloc.store.lifecycle import with_change

LABELLED_KINDS = frozenset({"DeviceClaim", machines.KIND})


MAX_REPAIRS = 200
"""Labels that a round writes on objects that need nothing else: claims that wait must not wait for an upgrade."""


def labelled_units(objects: Mapping[Key, Object], units: Sequence[WriteUnit]) -> list[WriteUnit]:
    """``units`` with the labels that their objects need then."""
    return [replace(unit, changes=tuple(_labelled(objects[each.key], each) for each in unit.changes)) for unit in units]


def missing_labels(objects: Iterable[tuple[Key, Object]], apart_from: Collection[Key], made: Memo) -> list[WriteUnit]:
    """Units for the objects whose label is not as it should be."""
    changes = (
        made.of("node label", obj, partial(_label_change, key, obj))
        for key, obj in objects
        if key.kind in LABELLED_KINDS and key not in apart_from
    )
    return [WriteUnit((change,), granted=False) for change in changes if change is not None]


def owning_node(obj: Object) -> str | None:
    """The node that has the object, else the one that is to have it; None if there is none."""
    if Key.of(obj).kind == machines.KIND:
        return machines.running_node(obj) or None
    if is_prepared(obj):
        return annotation_of(obj, PREPARED_ON) or annotation_of(obj, ALLOCATED_NODE)
    return annotation_of(obj, ALLOCATED_NODE) if allocation_entries(obj) else None


def _label_change(key: Key, obj: Object) -> Change | None:
    change = Change(key, obj["metadata"]["resourceVersion"], obj.get("status"))
    labelled = _labelled(obj, change)
    return None if labelled is change else labelled


def _labelled(obj: Object, change: Change) -> Change:
    """The change with the label that the object needs after it."""
    if change.key.kind not in LABELLED_KINDS:
        return change
    node = owning_node(with_change(obj, change))
    value = None if node is None else node_label(node)
    if obj["metadata"].get("labels", {}).get(NODE_LABEL) == value:
        return change
    return replace(change, labels={**change.labels, NODE_LABEL: value})
