"""Permits beyond their tables (tests/conformance/cases/scaling): a node with one machine and all others as one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from devalloc.scaling.permits.arithmetic import PermitsArithmetic
from devalloc.scaling.permits.ledger import (
    NO_RESOURCES,
    MachineAccount,
    MachineKey,
    NodeLedger,
    after_first_request,
    answer_request,
    assume_unrecorded,
    begin_migration,
    credible_permit,
    is_under_pressure,
    make_ledger,
)
from devalloc.scaling.resources import Resources
from devalloc.scaling.versions import ProtocolEra
from tests.support.node_scoring import Curve, score, spread

ME: MachineKey = ("default", "me")
OTHERS: MachineKey = ("default", "others")
UNIT = Resources(1, 1)


def both(amount: int) -> Resources:
    return Resources(amount, amount)


def some(reserved: int, **more: object) -> MachineAccount:
    machine = MachineAccount(least=NO_RESOURCES, most=both(100), reserved=both(reserved), permit=both(reserved))
    return replace(machine, **more)  # type: ignore[arg-type]


def node_of(others: int, own: int) -> NodeLedger:
    return make_ledger(both(10), both(10), {OTHERS: some(others), ME: some(own)})


def test_newest_form_with_twice_the_commitment() -> None:
    own = some(3, overcommit=Resources(2000, 2000))
    node = make_ledger(both(10), both(10), {OTHERS: some(7), ME: own})
    assert node.counted == both(8)
    done = answer_request(node, ME, both(7), UNIT, era=ProtocolEra.NEWEST)
    assert (done.machines[ME].permit, done.counted) == (both(7), both(10))
    assert answer_request(done, ME, both(8), UNIT, era=ProtocolEra.NEWEST).machines[ME].permit == both(7)


def test_a_machine_counts_for_what_was_read_back_of_it_whatever_it_is_permitted() -> None:
    node = make_ledger(both(10), both(10), {OTHERS: some(5), ME: some(5, use=both(5))})
    less = answer_request(node, ME, both(2), UNIT)
    assert (less.machines[ME].permit, less.counted) == (both(2), both(10))
    assert answer_request(less, ME, both(4), UNIT).machines[ME].permit == both(4), (
        "what it counts for is its own to ask for"
    )
    assert answer_request(less, OTHERS, both(6), UNIT).machines[OTHERS].permit == both(5), "and of no other"


def test_a_machine_that_reserves_its_maximum_counts_for_all_of_it() -> None:
    own = some(2, most=both(6), reserve_max=True)
    node = make_ledger(both(10), both(10), {OTHERS: some(4), ME: replace(own, reserved=own.floor)})
    assert answer_request(node, OTHERS, both(9), UNIT).machines[OTHERS].permit == both(4)
    assert answer_request(node, ME, both(6), UNIT).machines[ME].permit == both(6)


def test_overheads_are_taken_of_the_node_and_not_of_the_permit() -> None:
    node = make_ledger(both(10), both(10), {ME: some(3, overhead=both(2))})
    done = answer_request(node, ME, both(9), UNIT)
    assert (done.machines[ME].permit, done.counted) == (both(8), both(10))


# -- first contact ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("others", "last", "counts"), [(3, 5, 5), (3, 50, 7), (9, 5, 2), (12, 5, 2)])
def test_a_last_permit_counts_as_far_as_there_is_room(others: int, last: int, counts: int) -> None:
    own = assume_unrecorded(MachineAccount(NO_RESOURCES, both(6), NO_RESOURCES, use=both(2)))
    node = make_ledger(both(10), both(10), {OTHERS: some(others), ME: own})
    assert credible_permit(node, ME, both(last)) == both(min(last, max(0, 10 - others)))
    assert after_first_request(node, ME, both(last)).machines[ME].reserved == both(counts)


def test_cpu_is_believed_by_its_own_overcommitment_and_memory_by_its_own() -> None:
    own = assume_unrecorded(MachineAccount(NO_RESOURCES, both(50), NO_RESOURCES, overcommit=Resources(4000, 1000)))
    node = make_ledger(both(10), both(10), {OTHERS: some(7), ME: own})
    assert credible_permit(node, ME, both(50)) == Resources(12, 3)
    swapped = node.with_machine(ME, replace(node.machines[ME], overcommit=Resources(1000, 4000)))
    assert credible_permit(swapped, ME, both(50)) == Resources(3, 12)


@pytest.mark.parametrize("total", [Resources(0, 10), Resources(10, 0)])
def test_a_node_that_lacks_cpu_or_memory_altogether_is_no_place(total: Resources) -> None:
    nothing = MachineAccount(NO_RESOURCES, NO_RESOURCES, NO_RESOURCES)
    assert score(make_ledger(total, NO_RESOURCES, {}), nothing, both(10)) == 0


def test_a_repeated_first_request_changes_nothing() -> None:
    node = node_of(5, 2)
    assert after_first_request(node, ME, both(5)) is node


# -- pressure and scores ---------------------------------------------------------------------------------------------


def test_pressure_of_one_resource_is_none_while_both_are_below_the_mark() -> None:
    """CPU at its mark is still fine, memory at its mark is not: so it is in the reference."""
    pressed = some(0, pressure=Resources(50, 0))
    assert not is_under_pressure(make_ledger(both(10), both(9), {ME: replace(pressed, reserved=Resources(9, 8))}))
    assert is_under_pressure(make_ledger(both(10), both(9), {ME: replace(pressed, reserved=Resources(9, 9))}))


def test_scores() -> None:
    curve = Curve(empty=0.5, full=0.0, peak=0.8)
    assert [round(curve.at(used), 6) for used in (0, 0.4, 0.8, 0.9, 1)] == [0.5, 0.75, 1.0, 0.5, 0.0]
    assert [spread(s, lambda low, high: high) for s in (0, 1, 70)] == [0, 1, 70]
    assert spread(70, lambda low, high: low) == 1


def test_marks_are_exact() -> None:
    assert PermitsArithmetic(watermark=(0.9, 0.7)).limits(Resources(1001, 10))[1] == Resources(900, 7)


def test_a_migrating_machine_counts_without_its_buffer_and_with_its_use() -> None:
    found_running = assume_unrecorded(MachineAccount(NO_RESOURCES, both(6), NO_RESOURCES, use=both(2)))
    assert (begin_migration(found_running).reserved, begin_migration(found_running).buffer) == (both(2), NO_RESOURCES)
    assert begin_migration(some(5, buffer=both(3), use=both(4))).reserved == both(4)
    assert begin_migration(some(5, use=both(2))).reserved == both(5)
