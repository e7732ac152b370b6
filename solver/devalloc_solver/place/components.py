"""Independent components of a pool, and what each can serve.

Devices depend on each other if they draw on a pool resource that may run short, if compatibility groups may separate
them, or if they have a value that only one device may have. A card with its partitions is a component (a cell); so is a
group of equal devices that draw on nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from devalloc_solver.bounds.largest_partition import Draws, Shapes
from devalloc_solver.place.component_options import ComponentOption, IndexedGroup, component_options
from devalloc_solver.place.demand_vector import DemandEntry, DemandVector, TakeKind
from devalloc_solver.place.device_uses import DeviceUse, LoadOf, Value, distinct_values, uses_of
from devalloc_solver.place.node_view import CandidateGroup
from devalloc_solver.place.step_budget import StepBudget
from devalloc_solver.problem.demand import AllocationMode
from devalloc_solver.problem.linked_parts import LinkedParts
from devalloc_solver.problem.snapshot import Device, Pool

Counter = Hashable
"""A pool resource by its name, or a (distinct, value) of which there is one."""


@dataclass(frozen=True, slots=True, eq=False)
class MergedGroup:
    """Devices of a pool that are alike to the demand entries."""

    devices: tuple[Device, ...]
    uses: tuple[DeviceUse, ...]
    watchers: tuple[tuple[DemandEntry, tuple[Value, ...]], ...]
    """admin demand entries that may look at them, and the distinct values that uses up"""
    draws: tuple[tuple[Counter, int], ...]
    group: object | None
    seen: bool

    @property
    def size(self) -> int:
        return len(self.devices)


@dataclass(frozen=True, slots=True, eq=False)
class Component:
    """Stacks that share counters or groups."""

    groups: tuple[MergedGroup, ...]
    kind: int
    """equal for cells that can do the same"""
    options: tuple[ComponentOption, ...]
    """what it can do beyond nothing, the most first"""


@dataclass(frozen=True, slots=True, eq=False)
class PoolComponents:
    """The cells of one pool."""

    pool: int
    """position in ``NodeView.pools``"""
    cells: tuple[Component, ...]
    is_open: bool
    """whether the pool counts already"""

    @property
    def kind(self) -> tuple[object, ...]:
        """Equal for pools that can do the same."""
        return (self.is_open, tuple(cell.kind for cell in self.cells))


def make_components(
    demand_vector: DemandVector,
    steps: StepBudget,
    shapes_of: Callable[[Pool], Shapes] | None = None,
    load_of: LoadOf | None = None,
) -> list[PoolComponents]:
    """The pools that can do something, each as its cells; with ``shapes_of`` options say what partitions they cost,
    with ``load_of`` how much of the pool comes into use."""
    node_view = demand_vector.stock.node_view
    by_pool: dict[int, list[MergedGroup]] = {pool: [] for pool in range(len(node_view.pools))}
    for pool, stack in _merge_groups(demand_vector, steps, load_of):
        by_pool[pool].append(stack)
    wide = _wide_values(by_pool)
    kinds: dict[Hashable, tuple[int, tuple[ComponentOption, ...]]] = {}
    components = []
    for pool, stacks in by_pool.items():
        free = demand_vector.stock.free[pool]
        shapes = shapes_of(node_view.pools[pool]) if shapes_of else ()
        cells = []
        for members in _connected(demand_vector, stacks, free, all_draws=bool(shapes)):
            for stack_group in _split_device_by_device(members):
                cells.append(_make_component(demand_vector, stack_group, free, wide, shapes, kinds, steps))
        if cells := [cell for cell in cells if cell.options]:
            components.append(PoolComponents(pool, tuple(cells), pool in demand_vector.stock.opened))
    return components


def _merge_groups(
    demand_vector: DemandVector, steps: StepBudget, load_of: LoadOf | None
) -> list[tuple[int, MergedGroup]]:
    """Candidate groups that the demand entries do not tell apart, together."""
    stock = demand_vector.stock
    alike: dict[object, tuple[list[Device], int, MergedGroup]] = {}
    admins = [entry for entry in demand_vector.demand_entries if entry.kind is TakeKind.ADMIN]
    cached: dict[object, tuple[DeviceUse, ...]] = {}
    numbers: dict[tuple[DeviceUse, ...], int] = {}
    numbered: dict[int, tuple[tuple[DeviceUse, ...], int]] = {}
    """identity of uses -> these and their number: most candidate groups have the very same"""
    for candidate_group in stock.node_view.candidate_groups:
        watchers = tuple(
            (entry, values)
            for entry in admins
            if entry.candidate_mask >> candidate_group.number & 1
            and (values := distinct_values(demand_vector, entry, candidate_group)) is not None
        )
        group = stock.group(candidate_group)
        draws: tuple[tuple[Counter, int], ...] = stock.draws(candidate_group)
        uses: tuple[DeviceUse, ...] = ()
        barred = group is not None and stock.groups[candidate_group.pool] - {group}
        if not barred and all(blocks <= stock.free[candidate_group.pool][str(name)] for name, blocks in draws):
            counting = _counted_key(demand_vector, candidate_group)
            if counting is None:
                uses = uses_of(demand_vector, candidate_group, steps, load_of)
            else:
                same = counting, load_of and (candidate_group.pool, candidate_group.one.draws)
                if same not in cached:
                    cached[same] = uses_of(demand_vector, candidate_group, steps, load_of)
                uses = cached[same]
        if not uses and not watchers:
            continue
        if not uses:
            draws, group = (), None
        if id(uses) not in numbered:
            numbered[id(uses)] = uses, numbers.setdefault(uses, len(numbers))
        number, seen = numbered[id(uses)][1], candidate_group.number in stock.seen
        key: object = (candidate_group.pool, number, watchers, draws, group, seen, candidate_group.one.shareable)
        if (found_alike := alike.get(key)) is not None:
            found_alike[0].extend(candidate_group.devices)
        else:
            alike[key] = (
                [*candidate_group.devices],
                candidate_group.pool,
                MergedGroup((), uses, watchers, draws, group, seen),
            )
    stacks = []
    for devices, pool, stack in alike.values():
        ordered = tuple(sorted(devices, key=lambda device: device.index))
        whole = MergedGroup(ordered, stack.uses, stack.watchers, stack.draws, stack.group, stack.seen)
        stacks.append((pool, whole))
    return stacks


def _counted_key(demand_vector: DemandVector, candidate_group: CandidateGroup) -> object | None:
    """Equal for candidate groups of the same uses: whole devices that demand entries count, whatever they are. None for
    any others."""
    takers = [entry for entry in demand_vector.demand_entries if entry.candidate_mask >> candidate_group.number & 1]
    plain = all(
        entry.kind is TakeKind.COUNT and entry.indexed.request.mode is AllocationMode.WHOLE and not entry.distincts
        for entry in takers
    )
    if candidate_group.one.shareable or not plain:
        return None
    return tuple(entry.number for entry in takers), candidate_group.number in demand_vector.stock.seen


def _values(stack: MergedGroup) -> dict[Value, None]:
    """The distinct values that some use of a device takes up."""
    all_values = [value for use in stack.uses for value in use.values]
    all_values += [value for _, values in stack.watchers for value in values]
    return dict.fromkeys(all_values)


def _wide_values(by_pool: dict[int, list[MergedGroup]]) -> dict[Value, int]:
    """Distinct values that devices of several pools have -> a bit each."""
    pools: dict[Value, set[int]] = defaultdict(set)
    for pool, stacks in by_pool.items():
        for stack in stacks:
            for value in _values(stack):
                pools[value].add(pool)
    wide = [value for value, indexes in pools.items() if len(indexes) > 1]
    return {value: 1 << bit for bit, value in enumerate(wide)}


def _connected(
    demand_vector: DemandVector, stacks: Sequence[MergedGroup], free: dict[str, int], *, all_draws: bool
) -> list[list[MergedGroup]]:
    """Stacks that touch, together; in the order of their first devices."""
    demand: dict[Counter, int] = defaultdict(int)
    for stack in stacks:
        most = min(stack.size, _max_useful(demand_vector, stack))
        for name, blocks in stack.draws:
            demand[name] += blocks * most
    short = {name for name, total in demand.items() if all_draws or total > free[str(name)]}
    groups = {stack.group for stack in stacks if stack.group is not None}
    linked = LinkedParts(range(len(stacks)))
    for number, stack in enumerate(stacks):
        links: list[Hashable] = [("draw", name) for name, _ in stack.draws if name in short]
        links += [("value", value) for value in _values(stack)]
        if stack.group is not None and len(groups) > 1:
            links.append("group")
        linked.link(number, links)

    def merged(stack: MergedGroup) -> MergedGroup:
        draws = tuple((name, blocks) for name, blocks in stack.draws if name in short)
        group = stack.group if len(groups) > 1 else None
        return MergedGroup(stack.devices, stack.uses, stack.watchers, draws, group, stack.seen)

    return [[merged(stacks[number]) for number in part] for part in linked.parts()]


def _max_useful(demand_vector: DemandVector, stack: MergedGroup) -> int:
    """No more devices than the demand entries need can be of use; amounts may need all."""
    total = 0
    for number in {entry for use in stack.uses for entry, _ in use.takes}:
        entry = demand_vector.demand_entries[number]
        if entry.kind is not TakeKind.COUNT:
            return stack.size
        total += demand_vector.needs[entry.first]
    return total


def _split_device_by_device(stacks: list[MergedGroup]) -> list[list[MergedGroup]]:
    """A stack that touches nothing may be taken device by device, which is better where each has many uses."""
    if len(stacks) > 1 or stacks[0].draws or stacks[0].group is not None or stacks[0].watchers:
        return [stacks]
    one = stacks[0]
    counted = all(len(use.takes) == 1 and use.takes[0][1] == 1 for use in one.uses)
    if _values(one) or counted or one.size == 1:
        return [stacks]
    return [[MergedGroup((device,), one.uses, (), (), None, one.seen)] for device in one.devices]


def _make_component(
    demand_vector: DemandVector,
    stacks: Sequence[MergedGroup],
    free: dict[str, int],
    wide: dict[Value, int],
    partitions: Sequence[tuple[int, Draws]],
    kinds: dict[Hashable, tuple[int, tuple[ComponentOption, ...]]],
    steps: StepBudget,
) -> Component:
    renamed: dict[Counter, int] = {}
    counters: list[int] = []

    def rename(counter: Counter, capacity: int) -> int:
        if counter not in renamed:
            renamed[counter] = len(counters)
            counters.append(capacity)
        return renamed[counter]

    shapes = []
    for stack in stacks:
        draws = tuple((rename(name, free[str(name)]), blocks) for name, blocks in stack.draws)
        group = None if stack.group is None else rename(("group", stack.group), 0)
        uses = tuple(
            (use, tuple(rename(v, 1) for v in use.values), sum(wide.get(v, 0) for v in use.values))
            for use in stack.uses
        )
        shareable = stack.devices[0].shareable
        watchers = tuple(
            (entry, tuple(rename(v, 1) for v in values), sum(wide.get(v, 0) for v in values))
            for entry, values in stack.watchers
        )
        shapes.append(IndexedGroup(stack.size, draws, group, stack.seen, shareable, watchers, uses))
    named = tuple(
        (
            *(shape.size, shape.draws, shape.group, shape.seen, shape.shareable, shape.watchers),
            tuple((u.gain, u.spend, u.cost, u.takes, u.load, values, bits) for u, values, bits in shape.uses),
        )
        for shape in shapes
    )
    drawn = {name for stack in stacks for name, _ in stack.draws}
    left = tuple(
        (size, tuple((rename(name, free[name]), blocks) for name, blocks in draws))
        for size, draws in partitions
        if any(name in drawn for name, _ in draws)
    )
    key: Hashable = (named, left, tuple(counters))
    if key not in kinds:
        kinds[key] = (len(kinds), tuple(component_options(demand_vector, shapes, counters, left, steps)))
    kind, options = kinds[key]
    return Component(tuple(stacks), kind, options)
