"""What the spec of a DeviceClaim offers to be taken away, rule by rule, named by field path."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

from devalloc.api.claim import COUNT, DeviceClaimDetail
from devalloc.api.meta import GROUP_MATCH
from devalloc.api.quantity import NANO, Quantity
from devalloc_solver.blockers import supply
from devalloc_solver.blockers.edits import Edit
from devalloc_solver.blockers.question import Finder, Question
from devalloc_solver.demand import Demand, Mode, Slot, Unit, make_slot
from devalloc_solver.eligibility import Eligibility
from devalloc_solver.holdings import Key
from devalloc_solver.snapshot import Device

HALVINGS = 40
"""Questions that the search for the largest amount that fits may ask."""


@dataclass(frozen=True, slots=True)
class Offers:
    """What a unit of DeviceClaims offers to be taken away, and what of the fleet concerns it."""

    eligibility: Eligibility
    unit: Unit
    held_back: Sequence[Device]
    """``supply.withheld_devices`` of the fleet"""
    limits_of_pools: Edit
    """``supply.shared_limits`` of the fleet"""
    bound_by: Sequence[Key] = ()
    """members of the group that have their devices already, on the node that the others must go to"""
    pinned: Sequence[Key] = ()
    """members of the group that name its node"""

    def matches(self) -> list[Edit]:
        """matchAttributes, of the spec and of each detail (S15)."""
        edits = [_spec_match(self.unit, d, name) for d in self.unit.demands for name in d.match]
        shared = dict.fromkeys(name for demand in self.unit.demands for name in demand.shared)
        edits += [_group_match(name) for name in shared]
        for demand, slot in self._slots():
            edits += [self._match(demand, slot, name) for name in dict.fromkeys(slot.spec.match_attributes)]
        return edits

    def limits(self) -> list[Edit]:
        """Limits that bind: that of count only where the count is not fixed (S9, S14)."""
        edits = []
        for demand, slot in self._slots():
            capped = slot.mode in (Mode.SHARE, Mode.ADMIN_ALL)
            names = [n for n in slot.spec.limits if (capped if n == COUNT else not slot.mode.is_admin)]
            edits += [self._limit(demand, slot, name) for name in names]
        return edits

    def amounts(self) -> list[Edit]:
        """Requested amounts that could be less; narrowed to the most that fits."""
        edits = []
        for demand, slot in self._slots():
            for name, amount in slot.spec.requests.items():
                if (amount.nano > NANO) if name == COUNT else not slot.mode.is_admin:
                    edits.append(self._amount(demand, slot, name))
        return edits

    def constraints(self) -> list[Edit]:
        """Expressions of details."""
        return [self._constraints(d, slot) for d, slot in self._slots() if (slot.spec.constraints or "").strip()]

    def classes(self) -> list[Edit]:
        """Class and type; a class with admin access is what makes a detail an admin one, so it stays."""
        return [
            self._class(demand, slot)
            for demand, slot in self._slots()
            if not slot.mode.is_admin and (slot.spec.device_class or slot.spec.device_type)
        ]

    def requests(self) -> list[Edit]:
        """Whole details."""
        return [_request(self.unit, demand, slots) for demand in self.unit.demands for slots in demand.details]

    def pins(self) -> list[Edit]:
        """The node that the unit is bound to."""
        return [] if self.unit.pin is None else [_pin(self.unit, self.bound_by, self.pinned)]

    def withheld(self) -> list[Edit]:
        """Devices that are withheld and would do (S6a, S12)."""
        found = supply.withheld(self.held_back, lambda slot, device: self.eligibility.accepts(slot.spec, device))
        return [] if found is None else [found]

    def shared(self) -> list[Edit]:
        """Also where the candidates share nothing: other rules taken away may bring in devices that do."""
        return [self.limits_of_pools]

    def _slots(self) -> Iterator[tuple[Demand, Slot]]:
        return ((demand, slot) for demand in self.unit.demands for slot in demand.slots)

    # -- one edit each -----------------------------------------------------------------------------------------------

    def _match(self, demand: Demand, slot: Slot, name: str) -> Edit:
        path = f"{path_of(slot)}.matchAttributes"
        entry = {"kind": "matchAttribute", **self._about(demand, slot), "attribute": name, "path": path}
        return self._edit(
            demand,
            slot,
            entry,
            f"without `{name}` in {path}",
            lambda d: {"match_attributes": [other for other in d.match_attributes if other != name]},
        )

    def _limit(self, demand: Demand, slot: Slot, name: str) -> Edit:
        path = f"{path_of(slot)}.limits.{name}"
        entry = {"kind": "limit", **self._about(demand, slot), "resource": name, "path": path}
        entry["limit"] = str(slot.spec.limits[name])
        return self._edit(demand, slot, entry, f"without {path}", lambda d: {"limits": _but(d.limits, name)})

    def _constraints(self, demand: Demand, slot: Slot) -> Edit:
        path = f"{path_of(slot)}.constraints"
        entry = {"kind": "constraint", **self._about(demand, slot), "path": path, "expression": slot.spec.constraints}
        return self._edit(demand, slot, entry, f"without {path}", lambda _: {"constraints": None})

    def _class(self, demand: Demand, slot: Slot) -> Edit:
        named = slot.spec.device_class
        field = "deviceClass" if named else "deviceType"
        path = f"{path_of(slot)}.{field}"
        entry = {"kind": "class", **self._about(demand, slot), "path": path, field: named or slot.spec.device_type}
        words = f"with devices of another class than {path} asks for"
        return self._edit(demand, slot, entry, words, lambda _: {"device_class": None, "device_type": None})

    def _amount(self, demand: Demand, slot: Slot, name: str) -> Edit:
        """The least amount there is; narrowed to the most that fits."""
        asked = slot.spec.requests[name]

        def asking(nano: int) -> Callable[[Question], Question]:
            amount = Quantity(nano, asked.format)
            return self._change(demand, slot, lambda d: {"requests": {**d.requests, name: amount}})

        def narrow(question: Question, finder: Finder) -> Sequence[Edit]:
            step = NANO if name == COUNT else _step(question, demand, slot, name)
            fits, fails = 1, -(-asked.nano // step)
            for _ in range(HALVINGS):
                if fails - fits <= 1:
                    break
                middle = (fits + fails) // 2
                if finder.works(asking(middle * step)(question)):
                    fits = middle
                else:
                    fails = middle
            return [told(fits * step)]

        def told(nano: int) -> Edit:
            most = Quantity(nano, asked.format)
            path = f"{path_of(slot)}.requests.{name}"
            entry = {"kind": "amount", **self._about(demand, slot), "resource": name, "path": path}
            noun = "device" if nano == NANO else "devices"
            what = f"{most} {noun}" if name == COUNT else f"{most} of {name}"
            words = f"with at most {what} in request {slot.label}{_of(self.unit, demand)}"
            return Edit({**entry, "requested": str(asked), "most": str(most)}, words, asking(nano))

        return replace(told(NANO if name == COUNT else 1), narrow=narrow)

    # -- the edit of a slot ------------------------------------------------------------------------------------------

    def _edit(
        self,
        demand: Demand,
        slot: Slot,
        entry: dict[str, Any],
        words: str,
        change: Callable[[DeviceClaimDetail], dict[str, Any]],
    ) -> Edit:
        return Edit(entry, words + _of(self.unit, demand), self._change(demand, slot, change))

    def _change(
        self, demand: Demand, slot: Slot, change: Callable[[DeviceClaimDetail], dict[str, Any]]
    ) -> Callable[[Question], Question]:
        key, alternative = demand.key, slot.alternative

        def changed(now: Slot) -> Slot:
            if now.alternative != alternative:
                return now
            detail = now.spec.model_copy(update=change(now.spec))
            return make_slot(now.detail, now.alternative, detail, self.eligibility)

        def apply(question: Question) -> Question:
            return question.with_detail(key, slot.detail, changed)

        return apply

    def _about(self, demand: Demand, slot: Slot) -> dict[str, str]:
        return _member(self.unit, demand.key) | {"request": slot.label}


def _pin(unit: Unit, binding: Sequence[Key], pinned: Sequence[Key]) -> Edit:
    """The node that a unit is bound to; see ``Offers`` for by whom."""
    entry: dict[str, Any] = {"kind": "node", "node": unit.pin}
    words = f"without the pin to node {unit.pin}"
    if pinned and not binding:
        words += f" of {', '.join(f'{namespace}/{name}' for namespace, name in pinned)}"
        entry["pinned"] = [{"namespace": namespace, "name": name} for namespace, name in pinned]
    if binding:
        names = ", ".join(f"{namespace}/{name}" for namespace, name in binding)
        entry["boundBy"] = [{"namespace": namespace, "name": name} for namespace, name in binding]
        words = f"on another node than {unit.pin}, where {names} of group {unit.group} already is"
    return Edit(entry, words, lambda question: question.without(frozenset(binding)).pinned(None))


def members(unit: Unit, but: Key) -> list[Edit]:
    """The members of a group, each to be left out; not the one that is told so."""
    edits = []
    for demand in unit.demands:
        if demand.key != but:
            namespace, name = demand.key
            entry = {"kind": "member", "namespace": namespace, "name": name}
            edits.append(Edit(entry, f"without member {namespace}/{name} of the group", _leave_out(demand.key)))
    return edits


def without_moot(edits: Sequence[Edit]) -> list[Edit]:
    """The same without those that change a detail, or a member of a group, which another one leaves out."""
    left_out = {f"{e.entry['namespace']}/{e.entry['name']}" for e in edits if e.kind == "member"}
    gone = {(e.entry.get("claim"), e.entry["request"]) for e in edits if e.kind == "request"}

    def is_moot(edit: Edit) -> bool:
        claim, detail = edit.entry.get("claim"), str(edit.entry.get("request", "")).partition(".")[0]
        return claim in left_out or (edit.kind != "request" and (claim, detail) in gone)

    return [edit for edit in edits if not is_moot(edit)]


def path_of(slot: Slot) -> str:
    """The slot's detail in the claim's spec."""
    path = f"spec.claims[{slot.detail}]"
    return path if slot.alternative is None else f"{path}.oneOf[{slot.alternative}]"


def _step(question: Question, demand: Demand, slot: Slot, name: str) -> int:
    """Nano units of which all amounts that devices can give are multiples."""
    now = next(s for d in question.unit.demands if d.key == demand.key for s in d.slots if s.label == slot.label)
    devices = (question.snapshot.devices[i] for i in now.candidates.accepted)
    return gcd(*(d.resources[name].block for d in devices if name in d.resources)) or 1


def _leave_out(key: Key) -> Callable[[Question], Question]:
    return lambda question: question.without_member(key)


def _spec_match(unit: Unit, demand: Demand, name: str) -> Edit:
    def change(other: Demand) -> Demand:
        if other.key != demand.key:
            return other
        return replace(other, match=tuple(n for n in other.match if n != name), shape=None)

    path = "spec.matchAttributes"
    entry = {"kind": "matchAttribute", **_member(unit, demand.key), "attribute": name, "path": path}
    words = f"without `{name}` in {path}{_of(unit, demand)}"
    return Edit(entry, words, lambda question: question.with_demands(change))


def _group_match(name: str) -> Edit:
    """Among the members that are still to be placed: what others hold is not edited."""
    path = f"metadata.annotations[{GROUP_MATCH}]"
    entry = {"kind": "matchAttribute", "attribute": name, "path": path}

    def change(other: Demand) -> Demand:
        return replace(other, shared=tuple(n for n in other.shared if n != name))

    return Edit(entry, f"without `{name}` in {path}", lambda question: question.with_demands(change))


def _request(unit: Unit, demand: Demand, slots: Sequence[Slot]) -> Edit:
    key, detail = demand.key, slots[0].detail
    entry = {"kind": "request", **_member(unit, demand.key), "request": str(detail), "path": f"spec.claims[{detail}]"}
    words = f"without request {detail}{_of(unit, demand)}"
    return Edit(
        entry, words, lambda question: question.with_detail(key, detail, lambda _: None), alike=(key, shape_of(slots))
    )


def shape_of(slots: Sequence[Slot]) -> object:
    """Equal for details of a claim that ask for the same."""
    return tuple(
        (id(s.candidates), s.mode, s.least, s.most, s.match, tuple(s.requests.items()), tuple(s.limits.items()))
        for s in slots
    )


def _member(unit: Unit, key: Key) -> dict[str, str]:
    """Whose spec it is, where the unit is a group."""
    return {"claim": f"{key[0]}/{key[1]}"} if unit.group is not None else {}


def _of(unit: Unit, demand: Demand) -> str:
    return f" of {demand.key[0]}/{demand.key[1]}" if unit.group is not None else ""


def _but(amounts: dict[str, Quantity], name: str) -> dict[str, Quantity]:
    return {other: amount for other, amount in amounts.items() if other != name}
