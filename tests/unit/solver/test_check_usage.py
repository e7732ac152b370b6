"""The account of what is in use: its sums say quickly what the users one by one would, and cost no more with many."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from devalloc.api import meta
from devalloc.api.quantity import NANO
from devalloc_solver.check import usage
from devalloc_solver.check.device_records import CountedDraws
from devalloc_solver.check.pools import CheckedPool
from devalloc_solver.check.usage import CheckedUse, PoolUse, UsageAccount, conflicts
from tests.support.answer_builders import device, pool
from tests.support.call_count import calls
from tests.support.examples import examples

AMOUNTS = ({}, {"m": NANO}, {"m": 3 * NANO}, {"m": 2 * NANO, "n": 2 * NANO}, {"n": 4 * NANO})


def checked_pool() -> CheckedPool:
    """Devices that share what they have, draw on the pool, and exclude each other by groups."""
    devices = [
        device("a", has={"m": "8", "n": "4"}),
        device("b", has={"m": "4"}, draws={"slots": "2"}),
        device("c", {meta.COMPATIBILITY_GROUP: "x"}, draws={"slots": "1"}),
        device("d", {meta.COMPATIBILITY_GROUP: "y"}, draws={"slots": "1"}),
        device("e", draws={"slots": "3"}, has={"m": "6"}),
    ]
    return CheckedPool(("n1", "p"), pool("p", *devices, has={"slots": "5"}))


def random_use(checked: CheckedPool, random: Random, number: int) -> CheckedUse:
    counted = random.choice([CountedDraws()] * 5 + [CountedDraws({"slots": 2}, "x"), CountedDraws({}, None, True)])
    pooled = checked.find(random.choice("abcde"))
    assert pooled is not None
    return CheckedUse(pooled, ("default", f"c{number}"), "detail 0", random.choice(AMOUNTS), counted=counted)


@pytest.mark.parametrize("start", range(0, examples(200), 50))
def test_sums_say_what_the_users_one_by_one_would(start: int, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[list[list[str]]] = []
    for is_quick in (True, False):
        if not is_quick:
            monkeypatch.setattr(PoolUse, "has_shares_for", lambda *_: False)
            monkeypatch.setattr(PoolUse, "has_room_for", lambda *_: False)
        answers.append([_judged(Random(seed)) for seed in range(start, start + 50)])
    assert answers[0] == answers[1]
    assert 10 < sum(map(bool, answers[0])) < 50


def _judged(random: Random) -> list[str]:
    """What new uses break beside those that are left of many."""
    checked, account, held = checked_pool(), UsageAccount(), list[CheckedUse]()
    for number in range(random.randint(0, 12)):
        if held and random.random() < 0.4:
            gone = held.pop(random.randrange(len(held)))
            account.remove([gone])
        elif len(held) < 3:
            use = random_use(checked, random, number)
            use.held = True
            held.append(use)
            account.add([use])
    new = [random_use(checked, random, 100 + number) for number in range(random.randint(1, 2))]
    if random.random() < 0.7:
        for use in new:
            use.counted = usage.NOTHING
    return sorted(conflicts(account, new))


def test_nothing_is_left_of_what_has_gone() -> None:
    checked, account, random = checked_pool(), UsageAccount(), Random(1)
    uses = [random_use(checked, random, number) for number in range(40)]
    keep = uses[0]
    account.add(uses)
    account.remove(uses[1:])
    alone = UsageAccount()
    alone.add([keep])
    for name in ("closed", "drawn", "groups", "users"):
        left, fresh = (getattr(each.of(checked), name) for each in (account, alone))
        assert ({k: v for k, v in left.items() if v} if isinstance(left, dict) else left) == fresh, name
    assert account.of(checked).shares.keys() == alone.of(checked).shares.keys()
    account.remove([keep])
    assert account.pools == {}


def test_one_more_share_costs_the_same_beside_many() -> None:
    def cost(holders: int) -> int:
        checked, account = checked_pool(), UsageAccount()
        pooled = checked.find("b")
        assert pooled is not None
        account.add(
            [CheckedUse(pooled, ("default", f"c{number}"), "", {"m": 0}, held=True) for number in range(holders)]
        )
        new: Sequence[CheckedUse] = [CheckedUse(pooled, ("default", "new"), "", {"m": NANO})]
        return calls(lambda: [*conflicts(account, new)])

    assert cost(10) == cost(1_000)
