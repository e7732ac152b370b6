"""Shares of equal claims, counted: how many members have theirs on one device, and what the others take together.

What members take of a resource in parts can be dealt out to them block by block, as long as all blocks are of one size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from devalloc_solver.exact.builder import ModelBuilder, sum_terms
from devalloc_solver.exact.share_variables import ShareVariables
from devalloc_solver.exact.variables import DeviceBin, GroupCellVars, LinearTerms
from devalloc_solver.problem.demand import Request
from devalloc_solver.problem.device_groups import DeviceGroup

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

MAX_BLOCKS = 2**40
"""Blocks of a device or a request up to which shares are counted: sums over thousands of members fit into 64 bits."""


def are_shares_countable(request: Request, device_groups: Sequence[DeviceGroup]) -> bool:
    """Whether shares of equal requests can be counted: each on one device, or split in blocks of one size."""
    if request.most not in (None, 1):
        return False
    for name, amount in request.requests.items():
        accepted = (
            device_group.one.resources.get(name)
            for device_group in device_groups
            if device_group.one.index in request.candidates.accepted
        )
        resources = [resource for resource in accepted if resource is not None]
        if any(max(r.blocks, -(-amount // r.block)) > MAX_BLOCKS for r in resources):
            return False
        if request.most is None and len({resource.block for resource in resources}) > 1:
            return False
    return True


@dataclass(slots=True, eq=False)
class CountedShares:
    """Adds the shares of one request of a claim group; lives only while the model is being built."""

    draft: ModelBuilder
    amounts: ShareVariables
    request: Request
    size: int
    """members of the claim group"""

    def room(self, device_groups: Sequence[int]) -> int:
        """How many members these devices are enough for, as far as counting tells."""
        if self.request.most is not None:
            return min(self.size, sum(self.whole(b) * self.draft.model.device_groups[b].size for b in device_groups))
        rooms = [self.size]
        for name in self.request.requests:
            free = sum(self.free(b, name) * self.draft.model.device_groups[b].size for b in device_groups)
            needed = next((self.needed(b, name) for b in device_groups if self.free(b, name)), 1)
            rooms.append(free // needed)
        return min(rooms)

    def add(self, cell: GroupCellVars, device_groups: Sequence[int]) -> None:
        """Shares of the members of a cell, of these device groups."""
        draft, cp = self.draft, self.draft.model.cp
        here = sum_terms(cell.members)
        supply: dict[str, list[cp_model.IntVar]] = {name: [] for name in self.request.requests}
        needed: dict[str, int] = {}
        for b in device_groups:
            for number in range(draft.bin_count(b)):
                if whole := min(self.size, self.whole(b)):
                    self.add_undivided(cell, (b, number), whole)
                for name in self.request.requests if self.request.most is None else ():
                    if free := self.free(b, name):
                        needed[name] = self.needed(b, name)
                        most = min(free, self.size * needed[name])
                        supply[name].append(self.add_part(cell, (b, number), name, most))
        undivided = sum(cell.undivided.values())
        if self.request.most is not None or not all(supply.values()):
            cp.add(undivided == here)
            return
        cell.split = draft.new_int(self.size)
        cp.add(undivided + cell.split == here)
        for name, parts in supply.items():
            cp.add(sum(parts) == needed[name] * cell.split)

    def add_undivided(self, cell: GroupCellVars, place: DeviceBin, most: int) -> None:
        """Members that have all of their share on this device."""
        count = cell.undivided[place] = self.draft.new_int(most)
        self.draft.bin_takers[place].append(count)
        for name in self.request.requests:
            blocks = self.needed(place[0], name) * self.step(place[0], name)
            self.draft.bin_blocks[*place, name].append((blocks, count))

    def add_part(self, cell: GroupCellVars, place: DeviceBin, name: str, most: int) -> cp_model.IntVar:
        """Blocks of this device for members whose share is on several."""
        part = self.draft.new_int(most)
        terms: LinearTerms = [(self.step(place[0], name), part)]
        cell.parts.setdefault(place, {})[name] = terms
        self.draft.bin_takers[place].append(part)
        self.draft.bin_blocks[*place, name] += terms
        return part

    # -- amounts in steps of so many blocks ----------------------------------------------------------------------------

    def step(self, b: int, name: str) -> int:
        return max(1, self.amounts.measure(name) // self.draft.model.device_groups[b].one.resources[name].block)

    def free(self, b: int, name: str) -> int:
        """What is free on one device of a device group."""
        blocks = self.draft.model.ledger.free_blocks(self.draft.model.device_groups[b].one, name)
        return blocks // self.step(b, name) if blocks else 0

    def needed(self, b: int, name: str) -> int:
        """What one member asks for."""
        size = self.draft.model.device_groups[b].one.resources[name].block * self.step(b, name)
        return -(-self.request.requests[name] // size)

    def whole(self, b: int) -> int:
        """How many members one device of a device group has room for, each with all of its share."""
        return min(
            (self.free(b, n) // self.needed(b, n) if self.free(b, n) else 0 for n in self.request.requests), default=0
        )
