"""An exhaustive search for small instances of resource.k8s.io: allocated or not, and the best firstAvailable choices.

Written from the rules, for instances of ``dra_instances``, sharing nothing with the solver, its check or its CEL: the
few expressions that are drawn are looked up in a table. Only devices that are equal in everything but their name are
taken together, or larger instances would never end.

Where upstream's released allocator is known to answer otherwise than the rules, a *quirk* makes the oracle do the same,
so that a difference can be told from an unknown one by solving again.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from tests.support.dra_oracle_model import LIMIT, OracleDevice, Problem, Slot
from tests.support.dra_semantics import Manifest, quantity, tolerates

QUIRKS = {
    "admin access blocks": "a device that an admin request took is in use for the requests of the claims after it",
    "admin access draws": "admin requests need counters and capacity, though they ignore allocations",
    "dedicated while shared": "a device that is not shareable any more is given away while its shares are in use",
}
"""What v0.37.2 does otherwise, by the name that the documentation gives it."""

BUDGET = 15_000
"""Steps of a search, after which the outcome is unknown."""


@dataclass(frozen=True)
class OracleVerdict:
    outcome: str
    """allocated, not-allocated, error or unknown (the search took too long, or the rules leave it open)"""
    choices: tuple[int | None, ...] = ()
    """the alternative of each request of each claim, None where a request has none; only when allocated"""
    node_local: bool = False
    reasons: tuple[str, ...] = ()
    """kinds of what is wrong: of errors all that apply, otherwise what may have excluded devices"""


class _Open(Exception):
    """The rules do not say, or it takes too long."""


def solve(instance: Manifest, quirks: frozenset[str] = frozenset(), budget: int = BUDGET) -> OracleVerdict:
    """The outcome by the rules, with the given quirks of upstream."""
    problem = Problem(instance, quirks)
    fatal = problem.fatal()
    if fatal:
        return OracleVerdict("error", reasons=tuple(sorted(fatal)))
    if not problem.claims:
        return OracleVerdict("not-allocated")
    try:
        for choices in itertools.product(*(range(len(options)) for options in problem.requests)):
            slots = [options[index] for options, index in zip(problem.requests, choices, strict=True)]
            if _Search(problem, slots, budget).search():
                pairs = zip(problem.requests, choices, strict=True)
                indices = tuple(None if options[0].parent is None else index for options, index in pairs)
                return OracleVerdict("allocated", indices)
    except _Open as reason:
        return OracleVerdict("unknown", reasons=(str(reason),))
    if problem.failing:
        return OracleVerdict("error", reasons=("selector fails",))
    if problem.contradicted:
        return OracleVerdict("error", reasons=("constraint on all devices",))
    if any(pool.invalid for pool in problem.pools):
        return OracleVerdict("error", node_local=True, reasons=("invalid pool",))
    return OracleVerdict("not-allocated", reasons=("constraint on all devices",) if _contradictory(problem) else ())


def _contradictory(problem: Problem) -> bool:
    """Whether all devices of some request violate a constraint among themselves."""
    for slot in (slot for options in problem.requests for slot in options if slot.everything):
        search = _Search(problem, [slot])
        for device, _ in slot.candidates:
            if not search.is_related(slot, device, device.size):
                return True
            search.taken.append((slot, device, device.size))
    return False


class _Search:
    """Whether the chosen slots can all be filled."""

    def __init__(self, problem: Problem, slots: list[Slot], budget: int = BUDGET) -> None:
        self.problem = problem
        self.slots = slots
        self.taken: list[tuple[Slot, OracleDevice, int]] = []
        self.budget = budget
        self.relations = [
            (number, constraint)
            for number, claim in enumerate(problem.claims)
            for constraint in claim["spec"]["devices"].get("constraints") or ()
        ]

    def search(self) -> bool:
        for number in range(len(self.problem.claims)):
            if sum(slot.count for slot in self.slots if slot.claim == number) > LIMIT:
                return False
        return self._fill(0)

    def _fill(self, index: int) -> bool:
        if index == len(self.slots):
            return True
        slot = self.slots[index]
        if slot.everything and not slot.candidates:
            return False
        return self._choose(index, 0, slot.count)

    def _choose(self, index: int, first: int, wanted: int) -> bool:
        """Take `wanted` devices for a slot from its candidates, beginning with the `first`."""
        self.budget -= 1
        if self.budget < 0:
            raise _Open("too many steps")
        slot = self.slots[index]
        if wanted == 0:
            return self._fill(index + 1)
        if sum(device.size for device, _ in slot.candidates[first:]) < wanted:
            return False
        device, amounts = slot.candidates[first]
        most = min(wanted, device.size)
        for times in range(most, most - 1 if slot.everything else -1, -1):
            if times == 0:
                return self._choose(index, first + 1, wanted)
            if self._may_take(slot, device, amounts, times):
                self.taken.append((slot, device, times))
                if self._choose(index, first + 1, wanted - times):
                    return True
                self.taken.pop()
        return False

    def _may_take(self, slot: Slot, device: OracleDevice, amounts: Mapping[str, Fraction], times: int) -> bool:
        if device.skips or self._is_tainted(slot, device):
            return False
        others = [(other, count) for other, held, count in self.taken if held is device]
        draws = "admin access draws" in self.problem.quirks
        if not self._is_free(slot, device, others, times):
            return False
        if (not slot.admin or draws) and not self._has_room(slot, device, amounts, draws):
            return False
        if not self._has_counters(slot, device, others, times, draws):
            return False
        if not self.is_related(slot, device, times):
            self.problem.contradicted |= slot.everything
            return False
        return True

    def _is_tainted(self, slot: Slot, device: OracleDevice) -> bool:
        if "DeviceTaints" not in self.problem.on:
            return False
        tolerations = slot.spec.get("tolerations") or ()
        return any(
            taint.get("effect") in ("NoSchedule", "NoExecute") and not any(tolerates(t, taint) for t in tolerations)
            for taint in device.manifest.get("taints") or ()
        )

    def _is_free(self, slot: Slot, device: OracleDevice, others: list[tuple[Slot, int]], times: int) -> bool:
        quirks = self.problem.quirks
        if not slot.admin and device.dedicated:
            return False
        if device.shareable:
            return True
        if not slot.admin and device.shared and "dedicated while shared" not in quirks:
            return False
        ordinary = sum(count for other, count in others if not other.admin)
        same_claim = sum(count for other, count in others if other.claim == slot.claim)
        if same_claim + times > device.size:
            return False
        if "admin access blocks" in quirks and not slot.admin and others:
            return False
        return slot.admin or ordinary + times <= device.size

    def _has_room(self, slot: Slot, device: OracleDevice, amounts: Mapping[str, Fraction], draws: bool) -> bool:
        used = dict(device.used)
        for other, held, _ in self.taken:
            if held is device and device.shareable and (draws or not other.admin):
                for name, amount in next(a for d, a in other.candidates if d is device).items():
                    used[name] = used.get(name, Fraction(0)) + amount
        capacities = device.manifest.get("capacity") or {}
        return all(used.get(n, Fraction(0)) + a <= quantity(capacities[n]["value"]) for n, a in amounts.items())

    def _has_counters(
        self, slot: Slot, device: OracleDevice, others: list[tuple[Slot, int]], times: int, draws: bool
    ) -> bool:
        if not device.manifest.get("consumesCounters"):
            return True
        if "PartitionableDevices" not in self.problem.on:
            return False
        if slot.admin and not draws:
            return True
        charged = [(slot, device, times)] + [one for one in self.taken if draws or not one[0].admin]
        needs: dict[tuple[int, str, str], Fraction] = {}
        seen: list[OracleDevice] = []
        for _, one, count in charged:
            if one.shareable and (one.shared or any(one is before for before in seen)):
                continue
            seen.append(one)
            for key, amount in one.draws:
                needs[key] = needs.get(key, Fraction(0)) + amount * count
        if device.shareable and device.shared:
            return True
        # Every counter of the pool: one that is overcommitted blocks all devices that draw on any.
        left = self.problem.left
        return all(amount >= needs.get(key, 0) for key, amount in left.items() if key[0] == device.pool)

    def is_related(self, slot: Slot, device: OracleDevice, times: int) -> bool:
        for claim, constraint in self.relations:
            requests = constraint.get("requests") or []
            if claim != slot.claim or not slot.in_scope(requests):
                continue
            name = constraint.get("matchAttribute") or constraint["distinctAttribute"]
            values = device.values(name)
            before = [d.values(name) for s, d, _ in self.taken if s.claim == claim and s.in_scope(requests)]
            if not values:
                return False
            if constraint.get("matchAttribute") and not values.intersection(*before):
                return False
            if constraint.get("distinctAttribute") and (times > 1 or any(values & other for other in before)):
                return False
        return True
