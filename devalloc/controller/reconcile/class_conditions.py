"""Whether classes are valid, as their status says it: pure.

A class whose expression does not compile, or that cannot be read, gives nothing to any claim that names it. Its author
sees that on the class, not only on the claims of others.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from devalloc.api.conditions import VALID, with_condition, with_stall
from devalloc.api.decode import decode
from devalloc.api.device_class import DeviceClass
from devalloc.api.reasons import Reason
from devalloc.api.views import ObjectView
from devalloc.controller.reconcile.decision import WriteUnit
from devalloc.controller.reconcile.snapshot import Memo
from devalloc.store import Change, Key, Object
from devalloc_solver.cel.device_claims import CompileError, compile


def class_units(documents: Iterable[Object], memo: Memo, now: str) -> list[WriteUnit]:
    """The writes on classes that do not say yet of their present generation whether they are valid. ``now``: RFC
    3339."""
    units = []
    for doc in documents:
        if Key.of(doc).kind != "DeviceClass" or ObjectView(doc).is_deleting:
            continue
        fault = memo.of("class fault", doc, partial(find_class_fault, doc))
        content = ("True", "ClassValid", "claims can name it") if fault is None else fault
        status, generation = ObjectView(doc).status, doc["metadata"].get("generation")
        conditions = with_condition(status.get("conditions"), VALID, content, now, generation)
        conditions = with_stall(conditions, None if fault is None else fault[1:], now, generation)
        if conditions != status.get("conditions"):
            change = Change.of(doc, {**status, "conditions": conditions})
            units.append(WriteUnit((change,), granted=False))
    return units


def find_class_fault(doc: Object) -> tuple[str, str, str] | None:
    """The condition of a class that gives nothing to claims; None for a valid one."""
    decoded = decode(doc)
    fault: object = decoded.error
    if isinstance(decoded.object, DeviceClass) and (text := decoded.object.spec.constraints):
        try:
            compile(text)
        except CompileError as error:
            fault = f"spec.constraints: line {error.line}, column {error.column}: {error.message}"
    return None if fault is None else ("False", Reason.CLASS_INVALID.value, str(fault))
