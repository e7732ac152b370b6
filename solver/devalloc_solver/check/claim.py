"""The rules for one claim's answer: its form, its node, each of its details, what they have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from devalloc.api import meta
from devalloc.api.claim import DeviceClaim, DeviceClaimDetail
from devalloc_solver.cel import BudgetExceeded
from devalloc_solver.check.answer import Answer, DetailIndex, MalformedAnswer
from devalloc_solver.check.catalogue import Catalogue
from devalloc_solver.check.detail import detail_violations, disagreements
from devalloc_solver.check.fleet import Fleet, PooledDevice
from devalloc_solver.check.use import Use


def new_uses(claim: DeviceClaim, answer: Answer, fleet: Fleet, catalogue: Catalogue) -> tuple[list[Use], list[str]]:
    """What a newly allocated claim takes from others, and what is wrong with it, as sentences without its name."""
    if invalid := catalogue.invalid(claim):
        return [], [f"cannot be allocated, {invalid}"]
    try:
        chosen, details = _chosen(claim, answer), answer.details()
    except MalformedAnswer as error:
        return [], [str(error)]
    wrong = list(_annotations(answer, chosen, details))
    uses: dict[DetailIndex, list[Use]] = {index: [] for index in chosen}
    name, node = _name(claim), answer.node
    users = {index: f"{name}: {_label(index)}" for index in chosen}
    for grant, index in zip(answer.grants, details, strict=True):
        pooled = fleet.find(node, grant.pool, grant.device)
        if pooled is None:
            reach = f"node {node}" if node else "the network alone"
            wrong.append(f"device {grant.pool}/{grant.device} does not exist or is not reached from {reach} (S7)")
        elif index in uses:
            uses[index].append(Use(pooled, users[index], grant.amounts))
    devices = [use.pooled for of_detail in uses.values() for use in of_detail]
    wrong += _node(claim, answer, devices)
    try:
        for index, detail in chosen.items():
            for sentence in detail_violations(detail, uses[index], answer.node, fleet, catalogue):
                wrong.append(f"{_label(index)}: {sentence}")
    except BudgetExceeded:
        wrong.append("cannot be allocated, its expressions are too costly (S6)")
    wrong += disagreements(claim.spec.match_attributes, devices)
    consuming = [use for index, detail in chosen.items() if not catalogue.is_admin(detail) for use in uses[index]]
    return consuming, wrong


def _chosen(claim: DeviceClaim, answer: Answer) -> dict[DetailIndex, DeviceClaimDetail]:
    """The details that the answer is about, exactly one alternative of each oneOf (S16)."""
    instances = claim.spec.claims
    one_of = [None] * len(instances) if answer.one_of is None else answer.one_of
    if len(one_of) != len(instances):
        raise MalformedAnswer(f"oneOf has {len(one_of)} elements, and spec.claims {len(instances)} (S16)")
    chosen: dict[DetailIndex, DeviceClaimDetail] = {}
    for position, (instance, index) in enumerate(zip(instances, one_of, strict=True)):
        if instance.one_of:
            if index is None or not 0 <= index < len(instance.one_of):
                raise MalformedAnswer(f"detail {position}: oneOf is {index}, not one of its alternatives (S16)")
            chosen[position, index] = instance.one_of[index]
        else:
            if index is not None:
                raise MalformedAnswer(f"detail {position}: oneOf is {index}, and it has no alternatives (S16)")
            chosen[position, None] = instance
    return chosen


def _annotations(
    answer: Answer, chosen: dict[DetailIndex, DeviceClaimDetail], details: Sequence[DetailIndex]
) -> Iterator[str]:
    for index in sorted({index for index in details if index not in chosen}, key=str):
        yield f"an allocation is for {_label(index)}, which was not chosen (S16, S18)"
    if any(later[0] < earlier[0] for earlier, later in pairwise(details)):
        yield "the allocations are not in the order of the details (S18)"
    noted = answer.annotations.get(meta.ALLOCATED_NODE)
    if noted != answer.node:
        yield f"the annotation {meta.ALLOCATED_NODE} says {noted}, and the node is {answer.node} (S2)"


def _node(claim: DeviceClaim, answer: Answer, devices: Sequence[PooledDevice]) -> Iterator[str]:
    pin = claim.pinned_node
    if pin is not None and answer.node != pin:
        yield f"is pinned to node {pin}, and is answered on {answer.node} (S7)"
    network_only = bool(devices) and all(pooled.node is None for pooled in devices)
    if pin is None and claim.group is None and answer.node is not None and network_only:
        yield f"has network devices only, so that its node is null and not {answer.node} (S7)"


def _name(claim: DeviceClaim) -> str:
    return "/".join(claim.key)


def _label(index: DetailIndex) -> str:
    position, alternative = index
    return f"detail {position}" if alternative is None else f"detail {position}.{alternative}"
