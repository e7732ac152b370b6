"""Units that are left to later rounds: the same units are taken, in whatever order they came and changed."""

import random
from typing import Any

import pytest

from devalloc.controller.reconcile.postponed import PostponedUnits, Unit
from devalloc.store import Key

Waiting = dict[Unit, tuple[tuple[Any, ...], set[Key]]]
"""Each unit that waits, with its place and its objects."""
MOST = 3


def first_of_all(waiting: Waiting) -> set[Unit]:
    """What a round takes, decided on all that waits: the first of each namespace, and none before a more urgent one."""
    first: set[Unit] = set()
    for namespace in {unit.namespace for unit in waiting}:
        ordered = sorted((unit for unit in waiting if unit.namespace == namespace), key=lambda unit: waiting[unit][0])
        first.update(ordered[:MOST])
    urgent = min((waiting[unit][0][0] for unit in waiting.keys() - first), default=None)
    return {unit for unit in first if urgent is None or waiting[unit][0][0] <= urgent}


def machine(*claims: str) -> dict[str, Any]:
    return {"kind": "VirtualMachine", "metadata": {"name": "m"}, "spec": {"claims": [*claims]}}


@pytest.mark.parametrize("seed", range(20))
def test_a_round_takes_what_it_would_take_of_all_that_waits(seed: int) -> None:
    random_ = random.Random(seed)
    postponed, waiting = PostponedUnits(), Waiting()
    for number in range(400):
        event = random_.random()
        if event < 0.6:
            namespace, group = random_.choice("abcd"), random_.choice(["", "", "g", "h"])
            key = Key("DeviceClaim", namespace, f"c{number}")
            unit = Unit(Key("DeviceClaim", namespace, ""), group) if group else Unit(key)
            keys = {key, *(other for one in waiting.get(unit, ((), ()))[1] for other in postponed.withdraw(one))}
            waiting[unit] = ((-random_.randrange(3), random_.random()), keys)
            postponed.add(unit, waiting[unit][0], {each: {} for each in keys})
        elif event < 0.85 and waiting:
            unit = random_.choice([*waiting])
            assert {*postponed.withdraw(random_.choice(sorted(waiting.pop(unit)[1])))}.isdisjoint(
                key for _, keys in waiting.values() for key in keys
            )
        else:
            taken = first_of_all(waiting)
            assert {*postponed.take(MOST)} == {key for unit in taken for key in waiting.pop(unit)[1]}
        assert postponed.claims == sum(len(keys) for _, keys in waiting.values())
        assert postponed.urgent == min((order[0] for order, _ in waiting.values()), default=None)
        assert bool(postponed) == bool(waiting)


def test_a_claim_of_a_machine_belongs_to_it_before_it_is_there() -> None:
    postponed = PostponedUnits()
    vm, claim = Key("VirtualMachine", "default", "m"), Key("DeviceClaim", "default", "c")
    postponed.add(Unit(vm), (0, "m"), {vm: machine("c")})
    assert postponed.claims == 0
    assert postponed.withdraw(claim) == (vm,)
    assert not postponed
    assert postponed.withdraw(claim) == ()
