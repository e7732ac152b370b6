"""Units that are left to later rounds: the same units are taken, in whatever order they came and changed."""

import math
import random
from typing import Any

import pytest

from devalloc.controller.reconcile.postponed import FORGOTTEN, PostponedUnits, Unit
from devalloc.store import Key
from tests.support.examples import examples

Waiting = dict[Unit, tuple[tuple[Any, ...], set[Key]]]
"""Each unit that waits, with its place and its objects."""
MOST = 3


def first_of_all(waiting: Waiting, shares: dict[str, float]) -> set[Unit]:
    """What a round takes, decided on all that waits: the most urgent first, of these one of the namespace that rounds
    have looked at least for, the oldest; and so on."""
    first: set[Unit] = set()
    while sum(len(waiting[unit][1]) for unit in first) < MOST and (rest := waiting.keys() - first):
        unit = min(rest, key=lambda one: (waiting[one][0][0], shares.get(one.namespace, 0.0), waiting[one][0]))
        first.add(unit)
        shares[unit.namespace] = shares.get(unit.namespace, 0.0) + len(waiting[unit][1])
    return first


def machine(*claims: str) -> dict[str, Any]:
    return {"kind": "VirtualMachine", "metadata": {"name": "m"}, "spec": {"claims": [*claims]}}


@pytest.mark.parametrize("seed", range(examples(8, 0.05)))
def test_a_round_takes_what_it_would_take_of_all_that_waits(seed: int) -> None:
    random_ = random.Random(seed)
    postponed, waiting, shares = PostponedUnits(), Waiting(), dict[str, float]()
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
            postponed.begin_round()
            shares = {namespace: half for namespace, share in shares.items() if (half := share / 2) > FORGOTTEN}
            taken = first_of_all(waiting, shares)
            assert {*postponed.take(MOST)} == {key for unit in taken for key in waiting.pop(unit)[1]}
        assert postponed.claims == sum(len(keys) for _, keys in waiting.values())
        assert postponed.urgent == min((order[0] for order, _ in waiting.values()), default=None)
        assert bool(postponed) == bool(waiting)


@pytest.mark.parametrize("seed", range(examples(8, 0.05)))
def test_no_namespace_waits_long_for_its_turn_however_many_units_others_make(seed: int) -> None:
    """A namespace has at most twice as many objects counted as a round looks at; each round halves them, and counts
    one at least for each namespace that had its turn."""
    random_, namespaces = random.Random(seed), "abcdefg"
    longest = math.ceil(math.log2(2 * MOST * 2)) + math.ceil(len(namespaces) / (MOST / 2))
    postponed, waiting = PostponedUnits(), dict[Key, tuple[Any, ...]]()
    rounds_without = dict.fromkeys(namespaces, 0)
    for now in range(300):
        flood = random_.choice([(), (), "a", "ab", namespaces[:4], random_.choice(namespaces)])
        for number, namespace in enumerate([*flood] * random_.choice([1, 5, 30])):
            key = Key("DeviceClaim", namespace, f"c{now:03}-{number:03}")
            waiting[key] = (-random_.choice([0, 0, 0, 1]), f"{now:03}", *key)
            others = {key._replace(name=f"{key.name}-{n}") for n in range(random_.randrange(2))}
            postponed.add(Unit(key), waiting[key], {one: {} for one in (key, *others)})
        postponed.begin_round()
        urgent = min((order[0] for order in waiting.values()), default=None)
        are_due = {key.namespace for key, order in waiting.items() if order[0] == urgent}
        keys = postponed.take(MOST)
        taken = waiting.keys() & keys
        orders = {key: waiting.pop(key) for key in taken}
        assert MOST <= len(keys) <= MOST + 1 or not waiting, "the last one may have two objects"
        first_left = dict[str, tuple[Any, ...]]()
        for key, order in waiting.items():
            first_left[key.namespace] = min(order, first_left.get(key.namespace, order))
        most_urgent = min((order[0] for order in first_left.values()), default=0)
        assert all(order[0] <= most_urgent for order in orders.values())
        assert all(order <= first_left.get(key.namespace, order) for key, order in orders.items()), (
            "the first of each namespace first"
        )
        had_a_turn = {key.namespace for key in taken}
        for namespace in namespaces:
            waits = namespace in are_due - had_a_turn
            rounds_without[namespace] = rounds_without[namespace] + 1 if waits else 0
        assert max(rounds_without.values()) < longest


def test_a_namespace_that_rounds_have_looked_at_much_for_gives_way_for_a_while() -> None:
    def taken(rounds: int) -> list[str]:
        postponed = PostponedUnits()
        postponed.charge(Key("DeviceClaim", "much", f"c{number}") for number in range(MOST))
        for _ in range(rounds):
            postponed.begin_round()
        for namespace, created in (("much", 1), ("little", 2)):
            for number in range(MOST):
                key = Key("DeviceClaim", namespace, f"w{number}")
                postponed.add(Unit(key), (0, created, number), {key: {}})
        return sorted(key.namespace for key in postponed.take(MOST))

    assert taken(0) == ["little", "little", "little"]
    assert taken(1) == ["little", "little", "much"]
    assert taken(9) == ["little", "much", "much"], "the older first"


def test_a_claim_of_a_machine_belongs_to_it_before_it_is_there() -> None:
    postponed = PostponedUnits()
    vm, claim = Key("VirtualMachine", "default", "m"), Key("DeviceClaim", "default", "c")
    postponed.add(Unit(vm), (0, "m"), {vm: machine("c")})
    assert postponed.claims == 0
    assert postponed.withdraw(claim) == (vm,)
    assert not postponed
    assert postponed.withdraw(claim) == ()


def test_a_machine_and_a_claim_of_one_name_are_two_units() -> None:
    postponed = PostponedUnits()
    units = [Key(kind, "default", "m") for kind in ("VirtualMachine", "DeviceClaim")]
    for key in units:
        postponed.add(Unit(key), (0, "m"), {key: machine() if key.kind == "VirtualMachine" else {}})
    for key in reversed(units):
        assert postponed.withdraw(key) == (key,)
    assert not postponed
