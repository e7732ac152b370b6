"""The funnel of a request: how many devices drop out at which step, and what is left on the best node (S19)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Protocol

from devalloc.api.findings import (
    ARE_EXCLUDED,
    Cause,
    Fact,
    Rule,
    RuleCode,
    agree_verb,
    count_devices,
    fact,
    member_ref,
    rule,
    rule_words,
)
from devalloc.api.quantity import Quantity
from devalloc_solver.bounds.node_counts import NodeCounts, counts_whole_devices, match_attributes, max_on_node
from devalloc_solver.explain.joint_counts import best_on_node
from devalloc_solver.problem.allocations import Holding, Key, Usage
from devalloc_solver.problem.demand import AllocationMode, Demand, Request
from devalloc_solver.problem.overuse import device_title
from devalloc_solver.problem.snapshot import Snapshot

SHOWN = 3
"""Examples per step, and claims that are named as users of devices."""
_OTHER_RULES = 4
"""Rules besides the first one that a cause names."""
NO_DEVICES = "there are no devices"
MAX_USERS = 20
"""Claims that use matching devices, as far as they are listed; those with most devices first."""

Step = tuple[Rule, int, tuple[str, ...], str | None]
"""(rule, devices, first names, why it rejects the first one)"""
Holders = tuple[tuple[Key, int], ...]


@dataclass(frozen=True, slots=True)
class Funnel:
    """What became of all devices of the fleet, as one request sees them."""

    request: Request
    total: int
    steps: tuple[Step, ...]
    matching: int
    """devices that pass all steps, in use or not"""
    list_holders: Callable[[], Holders]
    """claims that hold matching devices this request cannot have, with the number of them; most first. They are counted
    when they are asked for, since few answers name them"""
    in_use: int
    excluded: int
    """matching devices without owner that cannot be allocated: their card or its counters are taken"""
    free: int

    def to_dict(self, name: str, *, with_users: bool) -> dict[str, Any]:
        """As JSON; ``name``: of the request."""
        steps = []
        for by, count, names, example in self.steps:
            step = {"what": by.words, **by.as_json(), "count": count, "devices": list(names)}
            steps.append(step | ({"example": example} if example else {}))
        users: dict[str, Any] = {}
        if with_users:
            holders = self.list_holders()
            used_by = [{**member_ref(key), "count": number} for key, number in holders[:MAX_USERS]]
            users = {"users": len(holders), "usedBy": used_by}
        return {
            "request": name,
            "devices": self.total,
            "steps": steps,
            "matching": self.matching,
            "inUse": self.in_use,
            **users,
            "excluded": self.excluded,
            "free": self.free,
        }


class FunnelSource(Protocol):
    """Makes the funnels of a fleet."""

    def make(self, request: Request) -> Funnel: ...


@dataclass(slots=True)
class FunnelCounter:
    """Makes the funnels of a fleet; what requests that ask for the same have in common is counted once."""

    snapshot: Snapshot
    allocations: Sequence[Holding]
    """all that is held now"""
    usage: Usage = field(init=False)
    total: int = field(init=False)
    """devices that some node reaches"""
    _nothing_held: Usage = field(init=False)
    _holders: dict[int, list[Key]] = field(init=False)
    """device -> who holds it"""
    _by_request: dict[object, Funnel] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.usage, self._nothing_held = Usage.of(self.snapshot, self.allocations), Usage(self.snapshot)
        self.total = sum(device.reach is None or bool(device.reach) for device in self.snapshot.devices)
        self._holders = defaultdict(list)
        for allocation in self.allocations:
            for item in allocation.items:
                holders = self._holders[item.device]
                # A claim that has several portions of a device has one device.
                if not (self.snapshot.devices[item.device].shareable and holders[-1:] == [allocation.owner]):
                    holders.append(allocation.owner)

    def make(self, request: Request) -> Funnel:
        """The funnel of one request."""
        key = (
            id(request.candidates),
            id(request.portions) if request.portions else None,
            request.mode,
            tuple(request.requests),
        )
        if key not in self._by_request:
            self._by_request[key] = self._count(request)
        return replace(self._by_request[key], request=request)

    def _count(self, request: Request) -> Funnel:
        snapshot = self.snapshot
        accepted = {i for i in request.candidates.accepted if has_room_for(request, snapshot, i, self._nothing_held)}
        without = [i for i in request.candidates.accepted if i not in accepted]
        taken, excluded = count_unavailable(request, snapshot, accepted, self.usage)
        rejected = [(step.rule, step.devices, step.example) for step in request.candidates.funnel]
        if without:
            rejected.append((nothing_to_share(request), tuple(without), None))
        steps = tuple(
            (by, len(devices), tuple(device_title(snapshot, i) for i in devices[:SHOWN]), example)
            for by, devices, example in rejected
        )
        free = len(accepted) - len(taken) - excluded
        holders = cache(lambda: self._holders_of(taken))
        return Funnel(request, self.total, steps, len(accepted), holders, len(taken), excluded, free)

    def _holders_of(self, devices: Iterable[int]) -> Holders:
        users = Counter(claim for index in devices for claim in self._holders[index])
        return tuple(sorted(users.items(), key=lambda item: (-item[1], item[0])))

    def most(self, request: Request, pin: str | None, *, is_empty: bool) -> int:
        """The most devices for a request that one node has, or node ``pin``, free or not (``is_empty``)."""
        devices = request.candidates.accepted
        free = (i for i in devices if is_empty or has_room_for(request, self.snapshot, i, self.usage))
        return best_on_node(self.snapshot, free, pin, len) or 0

    def having(self, request: Request, name: str) -> tuple[int, int]:
        """(devices for a request that have a value of an attribute, all devices for it)"""
        accepted = request.candidates.accepted
        return sum(bool(self.snapshot.devices[index].values(name)) for index in accepted), len(accepted)


def count_unavailable(
    request: Request, snapshot: Snapshot, devices: Collection[int], usage: Usage
) -> tuple[set[int], int]:
    """Of devices that match: those that are in use, with nothing left for the request, and how many are excluded."""
    taken = {index for index in devices if not has_room_for(request, snapshot, index, usage)}
    if request.mode.is_admin:
        return taken, 0
    return taken, sum(usage.excludes(snapshot.devices[index]) for index in devices if index not in taken)


def shortage(
    counting: NodeCounts, demand: Demand, request: Request, held: tuple[Holding, ...], *, pin: str | None
) -> Fact | None:
    """What the best node lacks, of devices or of an amount; None if counting alone does not show it."""
    match = (*match_attributes(demand, request),)
    where: dict[str, Any] = {"node": pin, "free": bool(held), "attributes": match}
    if counts_whole_devices(request):
        best = max_on_node(counting.devices(demand, request, held), pin)
        if best < request.min_count:
            return fact(Cause.TOO_FEW, wanted=request.min_count, most=str(best), **where)
    for name, amount in request.requests.items() if not request.portions else ():
        best = max_on_node(counting.amounts(demand, request, name, held), pin)
        if best < amount:
            shown = request.spec.requests[name]
            most = str(Quantity(best, shown.format))
            amounts: dict[str, Any] = {"resource": name, "wanted": str(shown), "most": most}
            return fact(Cause.TOO_LITTLE, **amounts, devices=request.max_count, **where)
    return None


def has_room_for(request: Request, snapshot: Snapshot, index: int, usage: Usage) -> bool:
    """Whether a device has anything left for a request."""
    if request.mode.is_admin:
        return True
    device = snapshot.devices[index]
    portion = request.portions.get(index)
    if portion is not None:
        return usage.portions_left(device, portion) != 0
    if request.mode is not AllocationMode.SHARE:
        return not usage.in_use(device)
    return any(usage.free_blocks(device, name) > 0 for name in request.requests)


def nothing_to_share(request: Request) -> Rule:
    """By which devices drop out that match, and have none of the amounts that a request wants."""
    return rule(RuleCode.NOTHING_TO_SHARE, resources=" or ".join(sorted(request.requests)))


def describe_funnel(funnel: Mapping[str, Any]) -> str:
    """A row of a table, such as "8 of 12 devices are not of driver gpu.io, 2 are in use"."""
    parts = [
        f"{step['count']} {rule_words(step['code'], step.get('args'), step['count'])}{_example(step)}"
        for step in funnel["steps"]
    ]
    if funnel["inUse"]:
        parts.append(f"{funnel['inUse']} {'is' if funnel['inUse'] == 1 else 'are'} in use")
    if funnel["excluded"]:
        parts.append(f"{funnel['excluded']} {agree_verb(ARE_EXCLUDED, funnel['excluded'])}")
    total = funnel["devices"]
    if not parts:
        matching = "the only device matches" if total == 1 else f"all {total} devices match"
        return matching if total else NO_DEVICES
    first_part, *rest = parts
    number, _, what = first_part.partition(" ")
    return ", ".join([f"{number} of {count_devices(total)} {what}", *rest])


def _example(step: Mapping[str, Any]) -> str:
    return f" ({step['example']})" if "example" in step and RuleCode(step["code"]).row.tells_example else ""


def main_step(
    funnel: Funnel, counts: Collection[RuleCode] = frozenset(RuleCode), edits: Collection[str] = ()
) -> Fact | None:
    """The rule that leaves out most devices, of those that count, and the next ones; None if none does. One that is
    lifted by ``edits``, which are of these kinds, comes first; without edits the last one, by which only devices drop
    out that pass all else."""
    steps = [step for step in funnel.steps if step[1] and step[0].code in counts]
    if not steps:
        return None
    last = () if edits else (steps[-1],)
    steps.sort(key=lambda step: (step not in last, {*edits}.isdisjoint(step[0].code.row.lifted_by), -step[1]))
    first, *others = map(_step_content, steps)
    named, rest = others[:_OTHER_RULES], others[_OTHER_RULES:]
    more = sum(each["count"] for each in rest) or None
    return fact(Cause.STEP, **first, total=funnel.total, others=(*named,), more=more)


def _step_content(step: Step) -> Fact:
    by, count, _, example = step
    content = {"rule": by.code.value, "args": dict(by.args), "count": count, "example": example}
    return {
        name: value for name, value in content.items() if value and (name != "example" or by.code.row.tells_example)
    }
