"""Permits: what a request gets, what a first one does, when a node is too full, who leaves it, how nodes score.

CPU and memory are judged alike, so most tables have one number for both; each is in units of no kind. What they say of
reconciling spells its names in several ways: they are found by words (see ``words``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

from devalloc.scaling.permits.ledger import (
    MachineAccount,
    MachineKey,
    NodeLedger,
    after_first_request,
    all_to_migrate,
    answer_request,
    assume_unrecorded,
    is_under_pressure,
    make_ledger,
    next_to_migrate,
    should_migrate,
)
from devalloc.scaling.resources import NO_RESOURCES, Resources
from devalloc.scaling.versions import ProtocolEra
from tests.support.node_scoring import Curve, score
from tests.support.tables.path_words import PathWords
from tests.support.tables.table_form import CaseVerdict, TableForm, each, section, verdict

ME: MachineKey = ("default", "me")
OTHERS: MachineKey = ("default", "others")
_ENDLESS = 2**40


def both(amount: int) -> Resources:
    return Resources(amount, amount)


def _machine(reserved: int, **more: Any) -> MachineAccount:
    return MachineAccount(
        least=NO_RESOURCES, most=both(_ENDLESS), reserved=both(reserved), permit=both(reserved), **more
    )


def _one(amounts: Resources) -> int | str:
    """The one number of both, as tables have it."""
    return amounts.cpu if amounts.cpu == amounts.memory else f"{amounts.cpu} of CPU, {amounts.memory} of memory"


# -- requests --------------------------------------------------------------------------------------------------------


def _requests(content: dict[str, Any]) -> Iterator[CaseVerdict]:
    def one(case: dict[str, Any]) -> CaseVerdict:
        last, era = case.get("last"), ProtocolEra(case.get("era", "v0.31"))
        given = both(int(1000 * case.get("overcommit", 1)))
        own = _machine(case["reserved"], use=both(case.get("use", 0)), overcommit=given)
        node = make_ledger(both(case["total"]), NO_RESOURCES, {OTHERS: _machine(case["others"]), ME: own})
        unit = both(case.get("factor", 1))
        last = None if last is None else both(last)
        done = answer_request(
            node, ME, both(case["wanted"]), unit, last=last, leaving=case.get("leaving", False), era=era
        )
        permit = done.machines[ME].permit
        assert permit is not None
        got = {"permit": _one(permit), "counted": _one(done.counted), "pressure": _one(done.pressure)}
        return verdict(case["name"], {"pressure": 0, **case["expected"]}, lambda: got)

    yield from each(content["permits"], one)


def _first_requests(content: dict[str, Any]) -> Iterator[CaseVerdict]:
    def one(case: dict[str, Any]) -> CaseVerdict:
        last, era = case.get("last"), ProtocolEra(case.get("era", "v0.31"))
        own = assume_unrecorded(
            MachineAccount(NO_RESOURCES, both(case["max"]), NO_RESOURCES, use=both(case["use"])), era=era
        )
        node = make_ledger(both(case["total"]), NO_RESOURCES, {OTHERS: _machine(case["others"]), ME: own})
        before = {"reserved": _one(own.reserved), "buffer": _one(own.buffer)}
        node_met = after_first_request(node, ME, None if last is None else both(last))
        done = answer_request(node_met, ME, both(case["wanted"]), both(1), era=era)
        permit = done.machines[ME].permit
        assert permit is not None
        got = {**before, "permit": _one(permit), "counted": _one(done.counted), "buffer after": _one(done.buffer)}
        return verdict(case["name"], {"buffer after": 0, **case["expected"]}, lambda: got)

    yield from each(content["first_permits"], one)


# -- reconciling, as the newest form does ----------------------------------------------------------------------------

_SCALE = 1000
_LATER = ("after", "expect", "result")


def _reconciles(content: dict[str, Any]) -> Iterator[CaseVerdict]:
    shared = PathWords({name: value for name, value in content.items() if not isinstance(value, list)})
    for name, cases in content.items():
        if _is_reconcile(cases):
            yield from each(cases, lambda case: _reconcile(case, shared), name)


def _reconcile(case: dict[str, Any], shared: PathWords) -> CaseVerdict:
    words = PathWords({name: value for name, value in case.items() if name != "name"}, shared)
    verdicts = [_reconciled(case["name"], of_one) for of_one in words.each_without("cpu", "mem")]
    return CaseVerdict(case["name"], [failure for one in verdicts for failure in one.failures])


def _reconciled(name: str, words: PathWords) -> CaseVerdict:
    given = words.number("overcommit", otherwise=1)
    overcommit = both(int(given if given >= _SCALE else given * _SCALE))
    reserved, before = _scaled(words.number("pod", "reserved", but=_LATER)), _first(words, "node", "before", "reserved")
    own = _machine(reserved, overcommit=overcommit)
    others = _machine(before - own.counted.cpu)
    node = make_ledger(both(_scaled(words.number("total"))), NO_RESOURCES, {OTHERS: others, ME: own})
    wanted = _scaled(words.number("requested", but=_LATER))
    done = answer_request(
        node, ME, both(wanted), both(_scaled(words.number("factor", otherwise=1))), era=ProtocolEra.NEWEST
    )
    permit = done.machines[ME].permit
    assert permit is not None
    expected = {"pod": _later(words, "pod"), "node": _later(words, "node")}
    got = {"pod": _one(permit), "node": _one(done.counted)}
    if words.has("done"):
        expected["done"], got["done"] = words.flag("done"), permit == both(wanted)
    return verdict(name, expected, lambda: got)


def _first(words: PathWords, of: str, *names: str) -> int:
    """An amount before, by the first of these names that there is."""
    but = (*_LATER, "total", "committed")
    return _scaled(words.number(of, next((name for name in names if words.has(of, name, but=but)), ""), but=but))


def _later(words: PathWords, of: str) -> int:
    """What is expected, which may repeat what was requested."""
    later = next((word for word in _LATER if words.has(of, word)), _LATER[0])
    return _scaled(words.number(of, later, but=("requested", "committed")))


def _scaled(amount: float) -> int:
    return int(Fraction(str(amount)) * _SCALE)


def _is_reconcile(cases: Any) -> bool:
    def fits(case: Any) -> bool:
        return isinstance(case, dict) and all(PathWords(case).has(word) for word in ("done", "requested", "node"))

    return isinstance(cases, list) and any(map(fits, cases))


# -- nodes -----------------------------------------------------------------------------------------------------------


def _too_full(content: dict[str, Any]) -> Iterator[CaseVerdict]:
    def one(case: dict[str, Any]) -> CaseVerdict:
        leaving = case.get("leaving", 0)
        rest = _machine(case["reserved"] - leaving)
        rest = replace(rest, buffer=both(case.get("buffer", 0)), pressure=both(case.get("pressure", 0)))
        node = make_ledger(both(_ENDLESS), both(case["mark"]), {OTHERS: _machine(leaving, migrating=True), ME: rest})
        return verdict(case["name"], case["expected"], lambda: is_under_pressure(node))

    yield from each(content["too_full"], one)


def _leavers(content: dict[str, Any]) -> Iterator[CaseVerdict]:
    def one(case: dict[str, Any]) -> CaseVerdict:
        node = make_ledger(both(_ENDLESS), both(case["mark"]), _named(case["machines"]))
        first = next_to_migrate(node)
        got: dict[str, Any] = {
            "first": None if first is None else first[1],
            "leave": sorted(key[1] for key in node.machines if should_migrate(node, key)),
            "oldest": [key[1] for key in all_to_migrate(node)],
        }
        return verdict(case["name"], case["expected"], lambda: {name: got[name] for name in case["expected"]})

    yield from each(content["leavers"], one)


def _named(machines: dict[str, dict[str, Any]]) -> dict[MachineKey, MachineAccount]:
    return {("default", name): _machine(**fields) for name, fields in machines.items()}


def _operations(content: dict[str, Any]) -> Iterator[CaseVerdict]:
    """Machines that come and go. ``try`` is a decision that is not carried out: it changes another ledger."""

    def one(case: dict[str, Any]) -> CaseVerdict:
        node = make_ledger(both(case["total"]), both(case["mark"]))
        got = []
        for step in case["steps"]:
            after = _operated(node, step)
            node = node if step.get("try", False) else after
            got.append([_one(node.counted), sorted(key[1] for key in node.machines)])
        return verdict(case["name"], [[step["counted"], step["machines"]] for step in case["steps"]], lambda: got)

    yield from each(content["node_operations"], one)


def _operated(node: NodeLedger, step: dict[str, Any]) -> NodeLedger:
    for name in step.get("remove", []):
        node = node.without(("default", name))
    for name, reserved in step.get("add", {}).items():
        node = node.with_machine(("default", name), _machine(reserved))
    return node


def _scores(content: dict[str, Any]) -> Iterator[CaseVerdict]:
    def one(case: dict[str, Any]) -> CaseVerdict:
        curve = Curve(**case.get("curve", {}))
        node = make_ledger(
            Resources(*case["total"]), NO_RESOURCES, {OTHERS: replace(_machine(0), reserved=_pair(case["used"]))}
        )
        largest = Resources(*case.get("largest", case["total"]))
        return verdict(case["name"], case["expected"], lambda: score(node, _machine(case["machine"]), largest, curve))

    yield from each(content["scores"], one)


def _pair(amounts: list[int]) -> Resources:
    return Resources(*amounts)


FORMS = [
    section("permits", "permits", _requests),
    section("first permits", "first_permits", _first_requests),
    section("when nodes are too full", "too_full", _too_full),
    section("who leaves a node", "leavers", _leavers),
    section("machines that come and go", "node_operations", _operations),
    section("scores of nodes", "scores", _scores),
    TableForm("reconciled reservations", lambda content: any(map(_is_reconcile, content.values())), _reconciles),
]
