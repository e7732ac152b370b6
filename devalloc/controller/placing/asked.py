"""What claims ask for that stand for machines in the solver's input."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from devalloc.api import hostpool, meta
from devalloc.api.claim import MAX_NAME
from devalloc.store import Object

_FUNCTION = "device.function == '{}'"
_OF_NUMA = _FUNCTION.format(hostpool.FUNCTION_COMPUTE)


def details(amounts: Mapping[str, Any]) -> list[Object]:
    """What is asked for of NUMA nodes, and of the node as a whole."""
    compute = {name: amounts[name] for name in hostpool.COMPUTE if name in amounts}
    others = {name: amount for name, amount in amounts.items() if name not in compute}
    found = [_detail(hostpool.FUNCTION_COMPUTE, compute)] if compute else []
    return [*found, _detail(hostpool.FUNCTION_IO, others)] if others else found


def keep_on_numa(detail: Object, number: int) -> None:
    """Have what is of NUMA nodes come from that one."""
    if _OF_NUMA in detail["constraints"]:
        detail["constraints"] += f" && device.numa == {number}"


def priority(machine: Object) -> dict[str, str]:
    """The annotation of a machine that its claims have too; empty where it has none."""
    said = machine["metadata"].get("annotations", {}).get(meta.PRIORITY)
    return {} if said is None else {meta.PRIORITY: said}


def group_of(machine: str) -> str:
    """The label of the group that a machine and its claims are, as long at most as groups' names are."""
    label = f"of machine {machine}"
    return label if len(label) <= MAX_NAME else f"{label[: MAX_NAME - 17]}-{sha256(machine.encode()).hexdigest()[:16]}"


def _detail(function: str, amounts: Mapping[str, Any]) -> Object:
    requests = {name: str(amount) for name, amount in amounts.items()}
    return {"constraints": _FUNCTION.format(function), "requests": requests}


def labelled(claim: Object, label: str, *, agree: bool) -> Object:
    """A claim in a group, with ``agree`` on one NUMA node with the rest of that."""
    metadata = claim["metadata"]
    annotations = {**metadata.get("annotations", {}), meta.GROUP: label}
    if agree:
        before = annotations.get(meta.GROUP_MATCH)
        annotations[meta.GROUP_MATCH] = "numa" if before is None else f"{before},numa"
    return {**claim, "metadata": {**metadata, "annotations": annotations}}
