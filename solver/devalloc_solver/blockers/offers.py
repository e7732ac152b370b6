"""What a unit of DeviceClaims offers to be taken away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from devalloc_solver.blockers import details, supply
from devalloc_solver.blockers.details import Details
from devalloc_solver.blockers.edits import Edit
from devalloc_solver.demand import Unit
from devalloc_solver.eligibility import Eligibility
from devalloc_solver.holdings import Key
from devalloc_solver.snapshot import Device


@dataclass(frozen=True, slots=True)
class ClaimOffers:
    """The ``structure.Offers`` of the devmgmtproto dialect."""

    eligibility: Eligibility
    unit: Unit
    held_back: Sequence[Device]
    """``supply.withheld_devices`` of the fleet"""
    limits_of_pools: Edit
    """``supply.shared_limits`` of the fleet"""
    bound_by: Sequence[Key] = ()
    """members of the group that have their devices already, on the node that the others must go to"""
    _details: Details = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_details", Details(self.eligibility, self.unit))

    def matches(self) -> list[Edit]:
        return self._details.matches()

    def limits(self) -> list[Edit]:
        return self._details.limits()

    def amounts(self) -> list[Edit]:
        return self._details.amounts()

    def constraints(self) -> list[Edit]:
        return self._details.constraints()

    def classes(self) -> list[Edit]:
        return self._details.classes()

    def requests(self) -> list[Edit]:
        return self._details.requests()

    def withheld(self) -> list[Edit]:
        found = supply.withheld(self.held_back, lambda slot, device: self.eligibility.accepts(slot.spec, device))
        return [] if found is None else [found]

    def pins(self) -> list[Edit]:
        return [] if self.unit.pin is None else [details.pin(self.unit, self.bound_by)]

    def shared(self) -> list[Edit]:
        """Also where the candidates share nothing: other rules taken away may bring in devices that do."""
        return [self.limits_of_pools]
