"""Random histories of a node against a bookkeeper that knows nothing but the words of the specification."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from devalloc.scaling.permits import ledger
from devalloc.scaling.permits.ledger import (
    NO_RESOURCES,
    MachineAccount,
    NodeLedger,
    after_first_request,
    answer_request,
    is_under_pressure,
    make_ledger,
)
from devalloc.scaling.resources import Resources
from devalloc.scaling.versions import ProtocolEra
from tests.support.examples import examples
from tests.support.node_scoring import shortfall

TOTAL, MARK = Resources(40, 30), Resources(36, 27)
FACTOR = Resources(3, 2)
NAMES = ("a", "b", "c", "d")


@dataclass
class Row:
    """One machine, one resource, as the bookkeeper has it."""

    low: int
    high: int
    use: int
    permit: int | None = None
    spare: int = 0
    unmet: int = 0

    def base(self) -> int:
        return max(self.low, self.use)

    def weight(self) -> int:
        return max(self.base() + self.spare, self.permit or 0)


@dataclass
class Book:
    """The bookkeeper of one resource: adds everything up anew each time it is asked."""

    limit: int
    mark: int
    unit: int
    rows: dict[str, Row] = field(default_factory=dict)
    gone_soon: set[str] = field(default_factory=set)

    def taken(self, but: str = "") -> int:
        return sum(row.weight() for name, row in self.rows.items() if name != but)

    def ask(self, name: str, wanted: int, last: int, leaving: bool) -> int:
        row, others = self.rows[name], self.taken(but=name)
        has = row.weight()
        if row.permit is None:  # never seen: what it says, where there is room, and what it uses
            has = max(row.base(), min(last, max(0, self.limit - others)))
        row.spare = 0
        if wanted <= has:
            row.permit, row.unmet = wanted, 0
        elif leaving:
            row.permit, row.unmet = has, wanted - has
        else:
            steps = max(0, self.limit - others - has) // self.unit
            got = min(wanted, has + steps * self.unit)
            row.permit, row.unmet = got, wanted - got
        return row.permit

    def pressed(self) -> bool:
        above = max(0, self.taken() - self.mark)
        below = max(0, self.mark - self.taken())
        spare = sum(row.spare for row in self.rows.values())
        unmet = sum(row.unmet for row in self.rows.values())
        back = sum(row.weight() + row.unmet for name, row in self.rows.items() if name in self.gone_soon)
        return above + unmet > back + spare + below


amounts = st.integers(0, 25)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.sampled_from(NAMES), amounts, amounts),
        st.tuples(st.just("find"), st.sampled_from(NAMES), amounts, amounts),
        st.tuples(st.just("ask"), st.sampled_from(NAMES), amounts, st.one_of(st.none(), amounts)),
        st.tuples(st.just("ask leaving"), st.sampled_from(NAMES), amounts, st.none()),
        st.tuples(st.just("read back"), st.sampled_from(NAMES), amounts, st.none()),
        st.tuples(st.just("leave"), st.sampled_from(NAMES), st.none(), st.none()),
        st.tuples(st.just("stay"), st.sampled_from(NAMES), st.none(), st.none()),
        st.tuples(st.just("end"), st.sampled_from(NAMES), st.none(), st.none()),
    ),
    max_size=30,
)


def _books() -> tuple[Book, Book]:
    return Book(TOTAL.cpu, MARK.cpu, FACTOR.cpu), Book(TOTAL.memory, MARK.memory, FACTOR.memory)


def _memory(amount: int) -> int:
    """Another amount of memory than of CPU, so that none is taken for the other."""
    return amount * 2 % 23


def _play(node: NodeLedger, books: tuple[Book, Book], action: tuple[str, str, Any, Any]) -> NodeLedger:
    what, name, first, second = action
    key = ("ns", name)
    here = key in node.machines
    if what in ("begin", "find") and not here:
        use = NO_RESOURCES if what == "begin" else Resources(second, _memory(second))
        machine = MachineAccount(Resources(2, 1), Resources(2 + first, 1 + _memory(first)), NO_RESOURCES, use=use)
        for book, low, high, used in (
            (books[0], 2, 2 + first, use.cpu),
            (books[1], 1, 1 + _memory(first), use.memory),
        ):
            row = Row(low, high, used)
            row.spare = max(0, high - row.base()) if what == "find" else 0
            book.rows[name] = row
        machine = ledger.admit(machine) if what == "begin" else ledger.assume_unrecorded(machine)
        return node.with_machine(key, machine)
    if not here:
        return node
    machine = node.machines[key]
    if what.startswith("ask"):
        wanted = Resources(first, _memory(first))
        last = None if second is None else Resources(second, _memory(second))
        leaving = what == "ask leaving"
        for book, name_of in ((books[0], "cpu"), (books[1], "memory")):
            book.ask(name, getattr(wanted, name_of), 0 if last is None else getattr(last, name_of), leaving)
        return answer_request(after_first_request(node, key, last), key, wanted, FACTOR, leaving=leaving)
    if what == "read back":
        unseen = any(book.rows[name].spare for book in books)
        for book, used in ((books[0], first), (books[1], _memory(first))):
            row = book.rows[name]
            held = row.weight()
            row.use = used
            # What may have been permitted before this ledger began stays counted, used or not.
            row.spare = max(0, held - row.base()) if unseen else 0
        return node.with_machine(key, ledger.observe_use(machine, Resources(first, _memory(first))))
    if what == "leave":
        for book in books:
            book.gone_soon.add(name)
            book.rows[name].spare = book.rows[name].unmet = 0
        return node.with_machine(key, ledger.begin_migration(machine))
    if what == "stay":
        for book in books:
            book.gone_soon.discard(name)
        return node.with_machine(key, replace(machine, migrating=False))
    for book in books:
        del book.rows[name]
        book.gone_soon.discard(name)
    return node.without(key)


@settings(max_examples=examples(21, 0.175), deadline=None)
@given(ACTIONS)
def test_every_history_is_kept_as_the_bookkeeper_has_it(actions: list[tuple[str, str, Any, Any]]) -> None:
    node, books = make_ledger(TOTAL, MARK), _books()
    for action in actions:
        node = _play(node, books, action)
        for book, name in zip(books, ("cpu", "memory"), strict=True):
            by_machine = {
                key[1]: (getattr(m.reserved, name), None if m.permit is None else getattr(m.permit, name))
                for key, m in node.machines.items()
            }
            assert by_machine == {n: (row.weight(), row.permit) for n, row in book.rows.items()}, action
            assert getattr(node.counted, name) == book.taken()
            assert getattr(node.buffer, name) == sum(row.spare for row in book.rows.values())
            assert getattr(node.pressure, name) == sum(row.unmet for row in book.rows.values())
        below = node.counted.cpu <= MARK.cpu and node.counted.memory < MARK.memory
        assert is_under_pressure(node) == (not below and any(book.pressed() for book in books))


machines = st.builds(
    lambda low, more, use, held, oc, over, whole: ledger.restore_recorded(
        MachineAccount(
            Resources(low, low),
            Resources(low + more, low + more),
            NO_RESOURCES,
            use=Resources(use, use // 2),
            overcommit=Resources(1000 + oc, 1000 + oc // 3),
            overhead=Resources(over, over),
            reserve_max=whole,
        ),
        Resources(held, held // 3),
    ),
    *[st.integers(0, 12)] * 4,
    st.integers(0, 2500),
    st.integers(0, 3),
    st.booleans(),
)


@settings(max_examples=examples(27, 0.225), deadline=None)
@given(
    st.dictionaries(st.sampled_from([("ns", n) for n in NAMES]), machines, min_size=1),
    st.lists(st.tuples(st.sampled_from(NAMES), amounts, amounts, st.booleans()), max_size=12),
    st.sampled_from(list(ProtocolEra)),
    st.integers(1, 7),
)
def test_what_always_holds(
    held: dict[tuple[str, str], MachineAccount], requests: list[tuple[str, int, int, bool]], era: ProtocolEra, unit: int
) -> None:
    node = make_ledger(TOTAL, MARK, held)
    factor = Resources(unit, unit + 1)
    for name, cpu, memory, leaving in requests:
        key = ("ns", name)
        if key not in node.machines:
            continue
        before, wanted = node.machines[key], Resources(cpu, memory)
        after = answer_request(node, key, wanted, factor, leaving=leaving, era=era)
        now = after.machines[key]
        assert now.permit is not None
        for one in ("cpu", "memory"):
            had, requested, got = (getattr(r, one) for r in (before.reserved, wanted, now.permit))
            assert min(had, requested) <= got <= max(had, requested), "between what it had and what it asked for"
            assert got == requested or got >= had, "less only where less was asked for"
            assert got == requested or leaving or (got - had) % getattr(factor, one) == 0, "an increase in whole units"
            limit, was, taken = (getattr(r, one) for r in (TOTAL, node.counted, after.counted))
            assert taken <= max(limit, was), "nothing is granted beyond the limit"
            assert taken == sum(getattr(m.counted, one) + getattr(m.overhead, one) for m in after.machines.values())
            assert getattr(now.reserved, one) >= getattr(now.floor, one)
            if era is not ProtocolEra.NEWEST:
                assert getattr(now.pressure, one) == max(0, requested - got)
        assert answer_request(after, key, now.permit, factor, era=era).counted == after.counted, (
            "asking again changes nothing"
        )
        assert all(after.machines[k] == m for k, m in node.machines.items() if k != key), "no other is touched"
        node = after


def test_bounds_change_what_a_machine_may_have_been_permitted_only_before_it_asked() -> None:
    one = ledger.assume_unrecorded(MachineAccount(Resources(1, 1), Resources(6, 6), NO_RESOURCES, use=Resources(2, 2)))
    wider = ledger.change_bounds(one, Resources(1, 1), Resources(9, 4))
    assert (wider.reserved, wider.buffer) == (Resources(9, 4), Resources(7, 2))
    assert ledger.change_bounds(one, Resources(3, 1), Resources(6, 6)).buffer == Resources(3, 4)
    recorded = ledger.restore_recorded(one, Resources(3, 3))
    assert ledger.change_bounds(recorded, Resources(1, 1), Resources(9, 9)).reserved == Resources(3, 3)
    assert ledger.change_bounds(recorded, Resources(4, 1), Resources(9, 9)).reserved == Resources(4, 3)
    new = ledger.admit(replace(one, use=NO_RESOURCES))
    assert ledger.change_bounds(new, Resources(2, 2), Resources(9, 9)).reserved == Resources(2, 2)


def test_a_machine_that_is_not_scaled_counts_for_what_it_uses() -> None:
    one = ledger.assume_unrecorded(MachineAccount(Resources(1, 1), Resources(6, 6), NO_RESOURCES, use=Resources(2, 2)))
    plain = ledger.assume_unrecorded(replace(one, scaled=False))
    assert (plain.reserved, plain.buffer) == (Resources(2, 2), NO_RESOURCES)
    assert ledger.observe_use(plain, Resources(3, 1)).reserved == Resources(3, 1)


def test_admission_looks_at_the_least_that_a_machine_can_have() -> None:
    node = make_ledger(Resources(10, 10), Resources(9, 9), {("ns", "a"): ledger.admit(_new(7))})
    assert shortfall(node, ledger.admit(_new(3))) == NO_RESOURCES
    assert shortfall(node, ledger.admit(_new(4))) == Resources(1, 1)
    assert shortfall(node, ledger.admit(replace(_new(3), reserve_max=True))) == Resources(7, 7)
    assert shortfall(node, ledger.admit(replace(_new(3), overhead=Resources(0, 2)))) == Resources(0, 2)
    smaller = node.with_limits(Resources(5, 5), Resources(4, 4))
    assert smaller.counted == Resources(7, 7)
    assert smaller.free == NO_RESOURCES


def _new(least: int) -> MachineAccount:
    return MachineAccount(Resources(least, least), Resources(10, 10), NO_RESOURCES)


def test_events_that_say_nothing_new_change_nothing() -> None:
    node = make_ledger(TOTAL, MARK, {("ns", "a"): ledger.admit(_new(3))})
    assert ledger.replace_machine(node, ("ns", "a"), ledger.admit(_new(3))) is node
    assert node.without(("ns", "b")) is node
