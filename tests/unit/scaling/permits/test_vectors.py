"""Permits of the specification, one by one: a node with one machine and all others as one, total 10, in units of 1."""

from __future__ import annotations

from dataclasses import replace

import pytest

from devalloc.scaling.eras import Era
from devalloc.scaling.permits.events import found
from devalloc.scaling.permits.grant import answer, believed, factor_of, grant, met
from devalloc.scaling.permits.ledger import NOTHING, Key, Machine, Node, fraction_of, ledger
from devalloc.scaling.permits.pressure import first_to_leave, is_too_full, oldest_to_leave, should_leave
from devalloc.scaling.permits.scoring import Curve, score, spread
from devalloc.scaling.resources import Resources

ME: Key = ("default", "me")
OTHERS: Key = ("default", "others")
UNIT = Resources(1, 1)


def both(amount: int) -> Resources:
    return Resources(amount, amount)


def some(reserved: int, **more: object) -> Machine:
    machine = Machine(least=NOTHING, most=both(100), reserved=both(reserved), permit=both(reserved))
    return replace(machine, **more)  # type: ignore[arg-type]


def node_of(others: int, mine: int) -> Node:
    return ledger(both(10), both(10), {OTHERS: some(others), ME: some(mine)})


@pytest.mark.parametrize(
    ("before", "mine", "wanted", "last", "leaving", "permit", "after", "pressure"),
    [
        (9, 3, 5, None, False, 4, 10, 1),
        (10, 3, 5, 5, False, 5, 12, 0),
        (10, 3, 4, 3, False, 3, 10, 1),  # the oldest releases gave 4 here
        (10, 3, 2, None, False, 2, 9, 0),
        (9, 3, 5, None, True, 3, 9, 2),
        (3, 3, 5, None, False, 5, 5, 0),
        (12, 4, 3, None, False, 3, 11, 0),
        (12, 4, 4, None, False, 4, 12, 0),
        (12, 4, 6, None, False, 4, 12, 2),
    ],
)
def test_one_request(
    before: int, mine: int, wanted: int, last: int | None, leaving: bool, permit: int, after: int, pressure: int
) -> None:
    node = node_of(before - mine, mine)
    done = answer(node, ME, both(wanted), UNIT, last=None if last is None else both(last), leaving=leaving)
    assert done.machines[ME].permit == both(permit)
    assert (done.counted, done.pressure) == (both(after), both(pressure))


@pytest.mark.parametrize(
    ("before", "mine", "wanted", "permit", "after"),
    [(3, 3, 5, 5, 5), (8, 3, 5, 5, 10), (9, 3, 5, 4, 10), (10, 3, 5, 3, 10), (12, 4, 3, 3, 11)],
)
def test_newest_form(before: int, mine: int, wanted: int, permit: int, after: int) -> None:
    done = answer(node_of(before - mine, mine), ME, both(wanted), UNIT, last=both(9), era=Era.NEWEST)
    assert (done.machines[ME].permit, done.counted, done.pressure) == (both(permit), both(after), NOTHING)


def test_newest_form_with_twice_the_commitment() -> None:
    mine = some(3, overcommit=Resources(2000, 2000))
    node = ledger(both(10), both(10), {OTHERS: some(7), ME: mine})
    assert node.counted == both(8)
    done = answer(node, ME, both(7), UNIT, era=Era.NEWEST)
    assert (done.machines[ME].permit, done.counted) == (both(7), both(10))
    assert answer(done, ME, both(8), UNIT, era=Era.NEWEST).machines[ME].permit == both(7)


def test_only_the_increase_is_rounded_to_the_factor() -> None:
    assert grant(reserved=300, wanted=1300, free=900, factor=250).permit == 300 + 750
    assert grant(reserved=300, wanted=1000, free=900, factor=250).permit == 1000  # it asked for less than there is
    assert grant(reserved=1000, wanted=3000, free=1900, factor=1000).permit == 2000


def test_what_increases_are_multiples_of() -> None:
    unit = Resources(250, 2**30)
    assert factor_of(unit) == unit
    assert factor_of(unit, whole_cpus=True) == Resources(1000, 2**30)
    assert factor_of(unit, slot=2**29, era=Era.V0_12) == Resources(1, 2**29)
    assert factor_of(unit, whole_cpus=True, slot=2**29, era=Era.V0_12) == Resources(1000, 2**29)
    assert factor_of(unit, era=Era.NEWEST) == unit


def test_a_machine_counts_for_what_was_read_back_of_it_whatever_it_is_permitted() -> None:
    node = ledger(both(10), both(10), {OTHERS: some(5), ME: some(5, use=both(5))})
    less = answer(node, ME, both(2), UNIT)
    assert (less.machines[ME].permit, less.counted) == (both(2), both(10))
    assert answer(less, ME, both(4), UNIT).machines[ME].permit == both(4), "what it counts for is its own to ask for"
    assert answer(less, OTHERS, both(6), UNIT).machines[OTHERS].permit == both(5), "and of nobody else"


def test_a_machine_that_reserves_its_maximum_counts_for_all_of_it() -> None:
    mine = some(2, most=both(6), reserve_max=True)
    node = ledger(both(10), both(10), {OTHERS: some(4), ME: replace(mine, reserved=mine.floor)})
    assert answer(node, OTHERS, both(9), UNIT).machines[OTHERS].permit == both(4)
    assert answer(node, ME, both(6), UNIT).machines[ME].permit == both(6)


def test_overheads_are_taken_of_the_node_and_not_of_the_permit() -> None:
    node = ledger(both(10), both(10), {ME: some(3, overhead=both(2))})
    done = answer(node, ME, both(9), UNIT)
    assert (done.machines[ME].permit, done.counted) == (both(8), both(10))


# -- first contact ---------------------------------------------------------------------------------------------------


def test_a_first_request_is_not_given_the_buffer() -> None:
    """The reference grants up to the upper bound here, without a look at the room."""
    mine = found(Machine(NOTHING, both(6), NOTHING, use=both(2)))
    assert (mine.reserved, mine.buffer) == (both(6), both(4))
    node = ledger(both(10), both(10), {OTHERS: some(7), ME: mine})
    assert node.counted == both(13), "too much is no error"
    done = answer(met(node, ME, None), ME, both(6), UNIT)
    assert (done.machines[ME].permit, done.counted, done.buffer) == (both(3), both(10), NOTHING)


@pytest.mark.parametrize(("others", "last", "counts"), [(3, 5, 5), (3, 50, 7), (9, 5, 2), (12, 5, 2)])
def test_a_last_permit_counts_as_far_as_there_is_room(others: int, last: int, counts: int) -> None:
    mine = found(Machine(NOTHING, both(6), NOTHING, use=both(2)))
    node = ledger(both(10), both(10), {OTHERS: some(others), ME: mine})
    assert believed(node, ME, both(last)) == both(min(last, max(0, 10 - others)))
    assert met(node, ME, both(last)).machines[ME].reserved == both(counts)


def test_who_asked_before_is_believed_nothing() -> None:
    node = node_of(5, 2)
    assert met(node, ME, both(5)) is node


def test_newest_form_has_no_buffer() -> None:
    mine = found(Machine(NOTHING, both(6), NOTHING, use=both(2)), era=Era.NEWEST)
    assert (mine.reserved, mine.buffer) == (both(2), NOTHING)


# -- pressure and migration ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reserved", "buffer", "pressure", "leaving", "full"),
    [
        (8, 0, 0, 0, False),
        (9, 0, 0, 0, False),  # at the mark
        (10, 0, 0, 0, True),
        (10, 1, 0, 0, False),  # above the mark by what may be none
        (9, 0, 1, 0, True),  # somebody did not get what he asked for
        (8, 0, 1, 0, False),  # and there is room below the mark
        (10, 0, 2, 3, False),  # what leaves makes up for it
        (10, 0, 3, 3, True),
    ],
)
def test_when_a_node_is_too_full(reserved: int, buffer: int, pressure: int, leaving: int, full: bool) -> None:
    gone = some(leaving, migrating=True)
    rest = some(reserved - leaving, buffer=both(buffer), pressure=both(pressure))
    assert is_too_full(ledger(both(10), both(9), {OTHERS: gone, ME: rest})) is full


def test_pressure_of_one_resource_is_none_while_both_are_below_the_mark() -> None:
    """CPU at its mark is still fine, memory at its mark is not: so it is in the reference."""
    pressed = some(0, pressure=Resources(50, 0))
    assert not is_too_full(ledger(both(10), both(9), {ME: replace(pressed, reserved=Resources(9, 8))}))
    assert is_too_full(ledger(both(10), both(9), {ME: replace(pressed, reserved=Resources(9, 9))}))


def names(*machines: Machine) -> dict[Key, Machine]:
    return {("default", f"m{number}"): machine for number, machine in enumerate(machines)}


def test_the_lowest_load_leaves_first_and_only_of_machines_that_can_move() -> None:
    idle_and_bound = some(3, load=0.0)
    unknown, low, high = some(3, movable=True), some(3, movable=True, load=0.1), some(2, movable=True, load=0.5)
    node = ledger(both(10), both(9), names(idle_and_bound, unknown, high, low))
    assert is_too_full(node)
    assert first_to_leave(node) == ("default", "m3")
    assert [should_leave(node, key) for key in node.machines] == [False, False, False, True]
    assert first_to_leave(ledger(both(10), both(9), names(idle_and_bound, unknown))) == ("default", "m1")
    assert first_to_leave(ledger(both(10), both(9), names(idle_and_bound))) is None


def test_nobody_leaves_a_node_with_room() -> None:
    node = ledger(both(10), both(9), names(some(3, movable=True, load=0.1)))
    assert not should_leave(node, ("default", "m0"))


def test_who_must_move_does_so_once_its_load_is_known_and_if_it_can() -> None:
    must = some(1, movable=True, must_move=True)
    node = ledger(both(10), both(9), names(must, replace(must, load=9.0), replace(must, load=9.0, movable=False)))
    assert [should_leave(node, key) for key in node.machines] == [False, True, False]


def test_newest_form_moves_the_oldest_until_the_rest_fits() -> None:
    old = some(3, movable=True, since=1, load=5.0)
    older_and_bound, young, younger = some(3, since=0), some(3, movable=True, since=2), some(4, movable=True, since=3)
    node = ledger(both(10), both(9), names(young, old, older_and_bound, younger))
    assert oldest_to_leave(node) == [("default", "m1"), ("default", "m0")]
    less = node.with_machine(("default", "m1"), replace(old, migrating=True))
    assert oldest_to_leave(less) == [("default", "m0")]
    huge = ledger(both(20), both(9), names(some(10, movable=True), some(2, movable=True, since=9)))
    assert oldest_to_leave(huge) == [("default", "m1")], "one above the mark all by itself stays"


# -- scores ----------------------------------------------------------------------------------------------------------


def test_scores() -> None:
    curve = Curve(empty=0.5, full=0.0, peak=0.8)
    assert [round(curve.at(used), 6) for used in (0, 0.4, 0.8, 0.9, 1)] == [0.5, 0.75, 1.0, 0.5, 0.0]
    one = some(1)
    assert [score(ledger(both(10), both(9), {ME: some(n)}), one, both(10)) for n in (0, 4, 8, 9, 10)] == [
        50,
        75,
        100,
        50,
        0,
    ]
    assert score(ledger(both(10), both(9), {ME: some(8)}), one, both(20)) == 50
    assert score(ledger(both(10), both(9), {ME: some(8)}), some(3), both(10)) == 0
    assert [spread(s, lambda low, high: high) for s in (0, 1, 70)] == [0, 1, 70]
    assert spread(70, lambda low, high: low) == 1


def test_marks_are_exact() -> None:
    assert fraction_of(Resources(1001, 10), 0.9, 0.7) == Resources(900, 7)
