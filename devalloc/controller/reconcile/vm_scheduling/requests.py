"""Requests of the claims that stand for machines in the solver's input."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from devalloc.api import host_pool_names, meta
from devalloc.api.claim import MAX_NAME
from devalloc.store import Object

_FUNCTION_EXPRESSION = "device.function == '{}'"
_COMPUTE_EXPRESSION = _FUNCTION_EXPRESSION.format(host_pool_names.FUNCTION_COMPUTE)


def machine_details(amounts: Mapping[str, Any]) -> list[Object]:
    """What is asked for of NUMA nodes, and of the node as a whole."""
    compute = {name: amounts[name] for name in host_pool_names.COMPUTE if name in amounts}
    others = {name: amount for name, amount in amounts.items() if name not in compute}
    entries = [_detail(host_pool_names.FUNCTION_COMPUTE, compute)] if compute else []
    return [*entries, _detail(host_pool_names.FUNCTION_IO, others)] if others else entries


def restrict_to_numa(detail: Object, number: int) -> None:
    """Have what is of NUMA nodes come from that one."""
    if _COMPUTE_EXPRESSION in detail["constraints"]:
        detail["constraints"] += f" && device.numa == {number}"


def priority_annotation(machine: Object) -> dict[str, str]:
    """The annotation of a machine that its claims have too; empty where it has none."""
    value = machine["metadata"].get("annotations", {}).get(meta.PRIORITY)
    return {} if value is None else {meta.PRIORITY: value}


def group_label(machine: str) -> str:
    """The label of the group that a machine and its claims are, as long at most as groups' names are."""
    label = f"of machine {machine}"
    return label if len(label) <= MAX_NAME else f"{label[: MAX_NAME - 17]}-{sha256(machine.encode()).hexdigest()[:16]}"


def _detail(function: str, amounts: Mapping[str, Any]) -> Object:
    requests = {name: str(amount) for name, amount in amounts.items()}
    return {"constraints": _FUNCTION_EXPRESSION.format(function), "requests": requests}


def with_group(claim: Object, label: str, *, agree: bool) -> Object:
    """A claim in a group, with ``agree`` on one NUMA node with the rest of that."""
    metadata = claim["metadata"]
    annotations = {**metadata.get("annotations", {}), meta.GROUP: label}
    if agree:
        before = annotations.get(meta.GROUP_MATCH)
        annotations[meta.GROUP_MATCH] = "numa" if before is None else f"{before},numa"
    return {**claim, "metadata": {**metadata, "annotations": annotations}}
