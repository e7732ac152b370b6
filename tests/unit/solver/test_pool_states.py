"""The loss of a pool's largest device is the same whether it is computed by part or from the whole pool."""

from __future__ import annotations

from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from devalloc.api.meta import UNAVAILABLE
from devalloc_solver.bounds.largest_partition import fitting_parts, losses, shapes_of_draws
from devalloc_solver.fleet.equal_devices import EqualDevices
from devalloc_solver.fleet.pool_states import SOLE_USE, NodeClasses, PoolKind, PoolState
from devalloc_solver.problem.snapshot import Device, Pool, Resource, join_pools
from tests.support.examples import examples

NAMES = [f"slice{number}" for number in range(6)]


@st.composite
def pool_kinds(draw: st.DrawFn) -> PoolKind:
    """Groups of devices that draw on anything or nothing, some of which no claim can have."""
    capacities = draw(st.sampled_from([st.just(2), st.integers(0, 4)]))
    resources = {name: Resource(1, draw(capacities)) for name in NAMES}
    most = draw(st.sampled_from([1, 3]))
    names = st.lists(st.sampled_from(NAMES), max_size=most, unique=True)
    kinds = []
    for number in range(draw(st.integers(1, 7))):
        draws = tuple((name, draw(st.integers(1, most))) for name in sorted(draw(names)))
        attributes = {UNAVAILABLE: "mode"} if draw(st.integers(0, 3)) == 3 else {}
        undefined = "lost" if draw(st.integers(0, 3)) == 3 else None
        kinds.append(EqualDevices(number, "gpu", Device(number, 0, f"d{number}", attributes, {}, draws, undefined), {}))
    numbers = count()
    groups = tuple(tuple(next(numbers) for _ in range(draw(st.integers(1, 3)))) for _ in kinds)
    return PoolKind(0, resources, tuple(kinds), groups, ())


@settings(max_examples=examples(45, 0.375))
@given(st.data())
def test_part_by_part_and_as_a_whole_it_is_the_same(data: st.DataObject) -> None:
    kind = data.draw(pool_kinds())
    for index in range(6):
        free = tuple(data.draw(st.integers(0, size)) for size in kind.sizes)
        state = PoolState(index, kind, free, (), in_use=free != kind.sizes)
        usable = [
            group
            for group, each in enumerate(kind.kinds)
            if free[group] and each.one.undefined is None and each.one.unavailable is None
        ]
        shapes = shapes_of_draws(
            (kind.kinds[group].one.draws for group in usable), {name: r.blocks for name, r in kind.resources.items()}
        )
        by_group = {}
        for group in usable:
            draws = kind.kinds[group].one.draws
            for taken in (1, free[group]):
                whole = losses(fitting_parts(shapes, state.left), state.left, [draws] * taken)
                if shapes:
                    assert state.parts[kind.part_of[group]].losses(group, taken) == whole
                assert state.partition_loss(group, taken) == whole[0]
                by_group[group, taken] = whole[0]
        assert state.least_partition_loss == min((by_group[group, 1] for group in usable), default=None)


@settings(max_examples=examples(30, 0.25))
@given(st.data())
def test_parts_have_all_groups_and_no_resource_in_common(data: st.DataObject) -> None:
    kind = data.draw(pool_kinds())
    free = tuple(data.draw(st.integers(0, size)) for size in kind.sizes)
    state = PoolState(0, kind, free, (), in_use=free != kind.sizes)
    assert sorted(group for part in kind.parts for group in part.groups) == [*range(len(kind.kinds))]
    drawn = [{name for draws in part.draws for name, _ in draws} for part in kind.parts]
    assert sum(map(len, drawn)) == len(set().union(*drawn))
    used = dict.fromkeys(kind.resources, 0)
    for each, size, left in zip(kind.kinds, kind.sizes, free, strict=True):
        for name, blocks in each.one.draws:
            used[name] += blocks * (size - left)
    assert state.left == {name: max(0, resource.blocks - used[name]) for name, resource in kind.resources.items()}
    twin = PoolState(1, kind, free, (), in_use=False)
    assert all(one is other for one, other in zip(state.parts, twin.parts, strict=True))


def test_states_of_parts_are_forgotten_with_the_states_of_pools() -> None:
    devices = tuple(Device(n, 0, f"d{n}", {}, {}, (), None) for n in range(8))
    snapshot = join_pools([Pool(0, "n", "p", "gpu", {}, devices)], ("n",))
    classes = NodeClasses()
    record = classes.record("n", 0, snapshot, (EqualDevices(0, "gpu", devices[0], {}),) * 8)
    for position in range(8):
        record.uses[0][position] = SOLE_USE
        classes.renew(record, {0})
        assert len(record.states[0].parts) == 1
    (kind,) = record.pools
    assert len(kind._part_states) == 8
    classes.forget_empty()
    assert len(kind._part_states) == 0
