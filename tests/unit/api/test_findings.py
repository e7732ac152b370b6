"""Sentences of findings: a cause, then a remedy, as long as their reader can show."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar, get_args

import pytest

from devalloc.api.findings import (
    AT_LENGTH,
    HOLDERS,
    Cause,
    Finding,
    Reader,
    Rule,
    RuleCode,
    agree_verb,
    causes,
    edit_words,
    edits,
    fact,
    finding_of,
    first_of,
    message_of,
    rule,
    rule_words,
    sentences,
)
from devalloc.api.findings.style import Style
from devalloc_solver.answer_types import BlockerKind
from tests.support.call_count import calls

SHORT = fact(Cause.TOO_FEW, wanted=9, most="3")
COUNT = {"kind": "amount", "path": "spec.claims[0].requests.count", "requested": "9", "most": "3"}
TAKEN = {"kind": "claim", "namespace": "default", "name": "a", "priority": 0}


def test_each_cause_has_words() -> None:
    assert causes.CAUSES.keys() == {*Cause}


def test_each_rule_of_a_funnel_has_words_of_several_devices() -> None:
    alike = {code.row.words.partition(" ")[0] for code in RuleCode if agree_verb(code.row.words, 1) == code.row.words}
    assert alike == {"cannot"}


@pytest.mark.parametrize(
    ("by", "count", "words"),
    [
        (rule(RuleCode.UNAVAILABLE), 1, "is unavailable"),
        (rule(RuleCode.UNAVAILABLE), 2, "are unavailable"),
        (rule(RuleCode.CONSTRAINTS, expression="device.vram == '{80}'"), 1, "fails device.vram == '{80}'"),
    ],
)
def test_a_rule_of_a_funnel_agrees_with_its_count(by: Rule, count: int, words: str) -> None:
    step = by.as_json()
    assert rule_words(step["code"], step.get("args"), count) == words


def test_each_kind_of_blocker_has_words() -> None:
    assert {*get_args(BlockerKind)} == edits.EDITS.keys() | HOLDERS - {"machine"}


def test_a_remedy_names_changes_then_who_is_to_go() -> None:
    remedy = "lower spec.claims[0].requests.count to 3, and delete claim default/a"
    assert message_of(Finding([SHORT], [COUNT, TAKEN])) == f"no node has 9 devices (at most 3); {remedy}"


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("a" * 30, f"delete claim default/{'a' * 30}, or wait for it"),
        ("a" * 60, f"delete claim default/{'a' * 60}"),
        ("a" * 250, f"delete claim default/{'a' * 32}…{'a' * 31}"),
    ],
    ids=["all of it", "as it is", "shortened"],
)
def test_names_are_shortened_only_where_a_sentence_is_too_long(name: str, remedy: str) -> None:
    assert message_of(Finding([SHORT], [{**TAKEN, "name": name}])) == f"no node has 9 devices (at most 3); {remedy}"


def test_the_last_segment_of_a_long_attribute_stays() -> None:
    """What its domain is can be guessed; which attribute it is can not."""
    name = f"{'sub.' * 25}example.com/pcieRoot"
    cause = fact(Cause.TOO_FEW_AGREE, attribute=name, wanted=2, most="1")
    cut = f"{name[:38]}…/pcieRoot"
    assert message_of(Finding([cause])) == f"no node has 2 devices with the same `{cut}`; ask for fewer devices"


def test_the_ends_of_a_long_path_stay_whole() -> None:
    edit = {"kind": "constraint", "path": "spec.devices.requests[0].firstAvailable[3].selectors"}
    assert edit_words(edit, Style(24)) == "relax requests[0]…selectors"


def test_of_more_changes_than_a_sentence_can_name_it_names_the_first() -> None:
    changes = [{**COUNT, "path": f"spec.claims[{number}].requests.count"} for number in range(3)]
    changes = [{**each, "most": str(number)} for number, each in enumerate(changes, start=4)]
    first = "no node has 9 devices (at most 3); lower spec.claims[0].requests.count to 4"
    assert message_of(Finding([SHORT], changes)) == f"{first}, and 2 more (`devalloc explain`)"
    assert message_of(Finding([SHORT], changes), AT_LENGTH).count("lower spec.claims[") == 3
    removed = [{"kind": "request", "request": str(number), "path": f"spec.claims[{number}]"} for number in range(3)]
    assert message_of(Finding([SHORT], removed)).endswith("; remove spec.claims[0], and 2 more (`devalloc explain`)")


def test_a_device_that_would_do_is_the_cause_where_no_other_rule_is_to_change() -> None:
    taken = {"kind": "unavailable", "pool": "gpus", "node": "n1", "device": "g0", "why": "unhealthy: too hot"}
    rule = fact(Cause.STEP, rule="otherDriver", args={"drivers": "gpu.io"}, count=3, total=4)
    assert message_of(Finding([fact(Cause.NO_MATCH), rule], [taken])) == (
        "device gpus/g0 would do, but is unhealthy: too hot; repair it"
    )


def test_a_rule_that_leaves_out_only_some_devices_is_said_with_what_comes_of_it() -> None:
    step = fact(Cause.STEP, rule="otherDriver", args={"drivers": "gpu.io"}, count=3, total=4)
    finding = Finding([fact(Cause.NO_MATCH, request="r"), step])
    assert message_of(finding) == (
        "no device matches request r: 3 of 4 devices are not of driver gpu.io; name another class"
    )


def test_a_name_that_no_change_is_about_is_no_cause() -> None:
    """Few devices have it, and no other name is near: nothing says that it was mistyped."""
    strange = fact(Cause.UNKNOWN_NAME, name="link", count=0, total=8)
    without = message_of(Finding([SHORT], [COUNT]))
    assert message_of(Finding([SHORT, strange], [COUNT])) == without
    about = {"kind": "matchAttribute", "attribute": "link", "path": "spec.matchAttributes"}
    assert "none of 8 devices has attribute `link`" in message_of(Finding([SHORT, strange], [about]))


def test_a_short_name_is_not_found_in_other_words() -> None:
    """``m`` is in "amount" and in "memory", and neither is about it."""
    strange = fact(Cause.UNKNOWN_NAME, name="m", count=0, total=8)
    edit = {**COUNT, "resource": "memory"}
    assert message_of(Finding([SHORT, strange], [edit])) == message_of(Finding([SHORT], [edit]))
    reads = {"kind": "constraint", "path": "spec.claims[0].constraints", "expression": "device.m == 'x'"}
    assert "none of 8 devices has attribute `m`" in message_of(Finding([SHORT, strange], [reads]))


def test_an_amount_that_no_device_has_is_said_once() -> None:
    short = fact(Cause.TOO_LITTLE, resource="cores", wanted="3", most="0")
    none = fact(Cause.UNKNOWN_NAME, name="cores", what="amount", count=0, total=4)
    assert message_of(Finding([short, none])) == (
        "none of 4 devices offers shares of `cores`; leave `cores` out of requests"
    )


def test_an_amount_that_no_matching_device_can_be_shared_by_is_not_one_that_is_in_use() -> None:
    short = fact(Cause.TOO_LITTLE, resource="memory", wanted="9Gi", most="0")
    request = {"kind": "request", "request": "0", "path": "spec.claims[1]"}
    assert message_of(Finding([short], [request])) == (
        "no matching device offers shares of `memory` (9Gi wanted); remove spec.claims[1]"
    )
    assert message_of(Finding([{**short, "free": True}], [TAKEN])) == (
        "no matching device has free memory (9Gi wanted); delete claim default/a, or wait for it"
    )


IS_FPGA = "device.attributes['gpu.io'].kind == 'fpga'"
SELECTORS = {"kind": "selector", "path": "spec.devices.requests[0].exactly.selectors", "expressions": [IS_FPGA]}


def test_a_sentence_says_as_much_of_a_selector_as_fits() -> None:
    """What it compares tells most, and that is at its end."""
    step = fact(Cause.STEP, rule="requestSelector", count=5, total=5, example=IS_FPGA)
    relax = "relax requests[0].selectors"
    assert message_of(Finding([step], [SELECTORS])) == (
        f"all 5 devices fail a selector of the request ({IS_FPGA}); {relax}"
    )
    count = {**COUNT, "path": "spec.devices.requests[0].exactly.count"}
    assert message_of(Finding([step], [SELECTORS, count, TAKEN])) == (
        f"all 5 devices fail a selector (…gpu.io'].kind == 'fpga'); {relax}, and 2 more (`devalloc explain`)"
    )


def test_devices_pass_all_else_only_if_nothing_else_is_to_change() -> None:
    kind = {"expression": "device.kind == 'b'"}
    other = {"rule": "otherDriver", "args": {"drivers": "gpu.devalloc.io or nic.devalloc.io"}, "count": 9}
    step = fact(Cause.STEP, rule="constraints", args=kind, count=1, total=11, others=(other,), more=1)
    relax = {"kind": "constraint", "path": "spec.claims[0].oneOf[0].constraints", **kind}
    assert message_of(Finding([step], [relax, TAKEN])).startswith(
        "devices that pass all else fail device.kind == 'b'; "
    )
    changes = [relax, {**COUNT, "path": "spec.claims[0].oneOf[0].requests.count"}]
    assert message_of(Finding([step], changes)).startswith("1 of 11 devices fails device.kind == 'b'; relax ")


def test_of_rules_that_do_not_fit_it_counts_what_they_are_about() -> None:
    others = (
        {"rule": "requestSelector", "count": 7, "example": "device.attributes['gpu.io'].kind == 'fpga'"},
        {"rule": "poolState", "args": {"state": "incomplete"}, "count": 5, "example": "gpu.io/p: 1 of 2 slices"},
    )
    args = {"device_class": "a"}
    step = fact(Cause.STEP, rule="classSelector", args=args, example="device.driver", count=22, total=34, others=others)
    edit = {"kind": "class", "deviceClassName": "a"}
    assert message_of(Finding([step], [edit])) == (
        "22 of 34 devices are not of class a, 7 fail on selector and 5 on pool; name another deviceClassName than `a`"
    )


def test_a_change_that_no_cause_is_about_has_its_own() -> None:
    count = {**COUNT, "path": "spec.claims[0].requests.count"}
    pin = {"kind": "node", "node": "n2"}
    fails = fact(Cause.STEP, rule="constraints", args={"expression": "device.numa == 0"}, count=4, total=4)
    relax = {"kind": "constraint", "path": "spec.claims[0].constraints", "expression": "device.numa == 0"}
    assert message_of(Finding([SHORT], [count, pin])).endswith(
        " (at most 3); lower claims[0].requests.count to 3 and remove devalloc.io/node=n2 (no room there)"
    )
    # What does not fit with its cause is left to `explain`.
    match = {"kind": "matchAttribute", "attribute": "numa", "path": "spec.claims[10].oneOf[10].matchAttributes"}
    assert message_of(Finding([fails], [match, relax])) == (
        "all 4 devices fail device.numa == 0; relax spec.claims[0].constraints, and 1 more (`devalloc explain`)"
    )


def test_a_number_that_is_in_a_cause_and_in_a_change_makes_neither_about_the_other() -> None:
    few = fact(Cause.TOO_FEW, wanted=2, most="0", attributes=["model"])
    none_shares = fact(Cause.UNKNOWN_NAME, name="memory", what="amount", count=0, total=4)
    leave_out = {"kind": "amount", "resource": "memory", "path": "spec.claims[0].requests.memory", "request": "0"}
    message = message_of(Finding([few, none_shares], [leave_out]))
    assert message.startswith("none of 4 devices shares `memory`; ")


def test_a_rule_comes_after_the_names_that_no_device_has() -> None:
    """A sentence leaves out the rule first, and its first change is about what it says."""
    step = fact(Cause.STEP, rule="constraints", args={"expression": "device.model == 'x' && " * 9}, count=4, total=4)
    none_shares = fact(Cause.UNKNOWN_NAME, name="memory", what="amount", count=0, total=4)
    relax = {"kind": "constraint", "path": "spec.claims[0].constraints", "request": "0"}
    leave_out = {"kind": "amount", "resource": "memory", "path": "spec.claims[1].requests.memory", "request": "1"}
    message = message_of(Finding([fact(Cause.NO_MATCH, request="0"), none_shares, step], [relax, leave_out, TAKEN]))
    assert message.startswith("none of 4 devices offers shares of `memory`; remove spec.claims[1].requests.memory, and")


def test_the_cause_comes_first_that_what_is_to_change_is_about() -> None:
    little = fact(Cause.TOO_LITTLE, resource="memory", wanted="3Gi", most="0")
    few = fact(Cause.TOO_FEW, wanted=9, most="3")
    text = message_of(Finding([little, few], [COUNT]))
    assert text.startswith("no node has 9 devices; ")


def test_of_changes_that_a_cause_is_about_a_whole_request_is_the_last() -> None:
    none = fact(Cause.NO_MATCH, request="0", path="spec.claims[0]")
    fails = fact(Cause.STEP, rule="constraints", args={"expression": "device.numa == 0"}, count=4, total=4)
    relax = {"kind": "constraint", "request": "0", "path": "spec.claims[0].constraints"}
    remove = {"kind": "request", "request": "0", "path": "spec.claims[0]"}
    other = {"kind": "limit", "request": "1", "path": "spec.claims[1].limits.memory"}
    text = message_of(Finding([none, fails], [other, remove, relax]))
    assert text.endswith("; relax spec.claims[0].constraints, and 2 more (`devalloc explain`)")
    text = message_of(Finding([none, fails], [other, remove]))
    assert text.endswith("; remove claims[0] and remove claims[1].limits.memory (too few are within it)")


def test_of_an_attribute_that_no_device_has_it_names_the_class_that_asks_for_it() -> None:
    args = {"expression": "'model' in device", "device_class": "any"}
    step = fact(Cause.STEP, rule="classConstraints", args=args, count=6, total=6)
    model = fact(Cause.UNKNOWN_NAME, name="model", count=0, total=6)
    other = {"kind": "class", "path": "spec.claims[0].deviceClass", "deviceClass": "any"}
    assert message_of(Finding([fact(Cause.NO_MATCH), step, model], [other])) == (
        "no device matches; class any asks for `model`, which none of 6 devices has; change spec.claims[0].deviceClass"
    )
    link = fact(Cause.UNKNOWN_NAME, name="link", count=0, total=6)
    assert "asks for" not in message_of(Finding([fact(Cause.NO_MATCH), step, link], [other]))


@pytest.mark.parametrize(
    ("lack", "amounts"),
    [
        ({"kind": "poolResource", "resource": "mem", "capacity": "9", "missing": "3"}, "12 of mem, pool p has 9"),
        (
            {"kind": "poolResource", "resource": "mem", "capacity": "more than 9", "missing": "3"},
            "more than their pool has",
        ),
        (
            {"kind": "counter", "driver": "a.io", "counterSet": "s", "counter": "c", "needed": "6Gi", "missing": "2Gi"},
            "6Gi of s/c, pool p has 4Gi",
        ),
    ],
    ids=["pool resource", "beyond", "counter"],
)
def test_what_a_pool_lacks_is_said_with_its_amounts(lack: dict[str, str], amounts: str) -> None:
    exclusive = fact(Cause.EXCLUSIVE, of="limits")
    assert f"need {amounts}; ask for fewer" in message_of(Finding([exclusive], [{**lack, "pool": "p"}]))


@pytest.mark.parametrize(("by", "who"), [("driver", "ask who runs its driver"), (None, "correct it")])
def test_a_pool_that_is_not_the_readers_is_for_who_runs_its_driver(by: str | None, who: str) -> None:
    cause = fact(Cause.INVALID_POOL, drivers=("a.io",), why="pool p is incomplete", by=by)
    assert message_of(Finding([cause])) == f"no valid pool of driver a.io exists: pool p is incomplete; {who}"


def test_of_two_rules_a_sentence_names_both() -> None:
    other = {"rule": "classSelector", "args": {"device_class": "b"}, "count": 10, "example": "device.driver == 'b.io'"}
    step = fact(Cause.STEP, rule="requestSelector", count=10, total=20, example="device.driver == 'a'", others=(other,))
    remove = {"kind": "request", "request": "r", "path": "spec.devices.requests[0]"}
    selectors = "10 of 20 devices fail a selector of the request (device.driver == 'a')"
    assert message_of(Finding([step], [remove])) == f"{selectors}, 10 are not of class b; remove request r"


@pytest.mark.parametrize(
    ("why", "verb"),
    [
        ("unhealthy: too hot", "repair"),
        ("reset failed: timeout", "repair"),
        ("reserved: default route", "free"),
        ("in use", "free"),
        ("unhealthy; cordoned: node, by root", "free or repair"),
        ("by policy", "free or repair"),
    ],
)
def test_a_device_is_freed_or_repaired_as_its_reason_says(why: str, verb: str) -> None:
    edit = {"kind": "unavailable", "pool": "p", "node": "n", "device": "d", "why": why}
    assert edit_words(edit) == f"{verb} device p/d ({why})"


def test_a_remedy_quotes_the_expression_where_it_fits() -> None:
    edit = {"kind": "constraint", "path": "spec.claims[0].constraints", "expression": "device.numa == 7"}
    assert edit_words(edit) == "relax device.numa == 7 in spec.claims[0].constraints"
    assert edit_words({**edit, "expression": "device.numa == 7 || device.numa == 8 || device.numa == 9"}) == (
        "relax spec.claims[0].constraints"
    )


def test_an_edit_names_the_claim_only_if_it_is_another_one() -> None:
    edit = {**COUNT, "claim": "default/own"}
    answer = {"namespace": "default", "name": "own", "causes": [SHORT], "blockers": [edit]}
    assert message_of(finding_of(answer)).endswith("requests.count to 3")
    assert message_of(finding_of({**answer, "name": "other"})).endswith("requests.count of claim default/own to 3")


def test_a_rule_for_nodes_names_the_claim_that_has_it_if_that_is_another_one() -> None:
    rule = {"kind": "nodeRule", "claim": "default/b", "annotation": "devalloc.io/excluded-nodes", "path": "p"}
    finding = Finding([fact(Cause.GROUP, group="g")], [rule], subject="default/a")
    assert message_of(finding).endswith("; remove the annotation devalloc.io/excluded-nodes of claim default/b")


def test_what_was_most_likely_meant_is_the_remedy_and_who_is_to_go_stays() -> None:
    typo = fact(Cause.UNKNOWN_NAME, name="modle", count=0, total=8, near="model")
    assert message_of(Finding([fact(Cause.NO_MATCH), typo], [TAKEN])) == (
        "no device matches; none of 8 devices has attribute `modle`; did you mean `model`? Then delete claim default/a"
    )


def test_a_finding_that_leaves_nothing_advises_nothing() -> None:
    assert message_of(Finding([SHORT], [COUNT], caveats=["nothingLeft"])) == (
        "no node has 9 devices (at most 3); run `devalloc explain` to see all that is in the way"
    )


def test_what_a_pool_lacks_is_said_without_its_name_where_that_does_not_fit() -> None:
    lacks = {"kind": "poolResource", "pool": "nvidia-00-dgxa100", "resource": "memory-slices-0", "missing": "1"}
    assert message_of(Finding([fact(Cause.EXCLUSIVE, of="limits")], [lacks])) == (
        "the devices together need more than their pool has; "
        "ask for fewer devices, or ones that use less memory-slices-0"
    )


def test_what_is_not_certain_is_said_where_it_fits() -> None:
    assert message_of(Finding([SHORT], [TAKEN], caveats=["notSmallest"])).endswith("; fewer changes may suffice")


def test_a_machine_that_is_one_with_its_claims_is_no_group() -> None:
    whole = fact(Cause.GROUP, group="of machine web", machine="web")
    assert message_of(Finding([whole]), AT_LENGTH) == "machine web and its claims must fit on one node"


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        ({"kind": "node", "node": "n1"}, "remove the annotation devalloc.io/node=n1"),
        ({"kind": "member", "namespace": "default", "name": "c"}, "take claim default/c out of the group"),
        (
            {"kind": "unavailable", "node": "n1", "why": "cordoned: node, by root: fan"},
            "run `devalloc uncordon node/n1` (cordoned by root: fan)",
        ),
        (
            {"kind": "taint", "driver": "d", "pool": "p", "device": "x", "key": "k", "effect": "NoSchedule"},
            "tolerate taint k:NoSchedule of device d/p/x",
        ),
        (
            {"kind": "poolResource", "pool": "p", "node": "n", "resource": "mem", "capacity": "9", "missing": "2"},
            "ask for fewer devices, or ones that use less mem (pool p lacks 2)",
        ),
    ],
)
def test_edits_are_said_in_the_imperative(edit: Mapping[str, Any], words: str) -> None:
    assert edit_words(edit) == words


def test_a_cause_lists_the_first_of_many_and_counts_the_others() -> None:
    """Many machines can be refused on the same thousands of nodes."""
    lack = {"resource": "CPU", "has": "2", "wanted": "4"}
    rooms = [{"node": f"n{number}", "lacks": [lack]} for number in range(5000)]
    cause = fact(Cause.ROOM, **first_of("nodes", rooms))
    assert (len(cause["nodes"]), cause["more"]) == (8, 4992)
    assert message_of(Finding([cause])) == (
        "no node is large enough: node n0 has 2 CPU, 4 wanted (and 4999 more nodes); ask for less CPU"
    )


def test_members_of_a_group_on_many_nodes_are_counted() -> None:
    places = [{"node": f"n{number}", **first_of("members", [f"m{number}"] * 20)} for number in range(12)]
    apart = fact(Cause.MEMBERS_APART, group="g", **first_of("nodes", places), see="x")
    assert message_of(Finding([apart]), AT_LENGTH).endswith("m7 and 12 more) and 4 more; give all the same x")


def test_a_sentence_of_long_content_is_not_cached() -> None:
    """A tenant writes expressions of kilobytes into as many claims as it likes."""
    before = sentences._fitted.cache_info().currsize
    for number in range(3):
        edit = {"kind": "constraint", "path": "spec.claims[0].constraints", "expression": f"{number}" * 10_000}
        assert message_of(Finding([SHORT], [edit])).endswith("; relax spec.claims[0].constraints")
    assert sentences._fitted.cache_info().currsize == before


@pytest.mark.parametrize("width", [None, 120], ids=["whole", "short"])
@pytest.mark.parametrize("part", ["own", "leaving", "foreign", "edits", "fields", "bound", "names", "counts", "steps"])
def test_a_sentence_costs_no_more_than_what_it_is_of(
    part: str, width: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that is shared has thousands of holders: none of them is compared with the others."""
    compared: list[_Compared] = []
    monkeypatch.setattr(_Compared, "all", compared)
    read = partial(json.loads, object_hook=_Compared)
    monkeypatch.setattr(sentences, "json", SimpleNamespace(dumps=json.dumps, loads=read))
    few, many = (
        calls(lambda count=count: message_of(_of_many(part, count), Reader("default", width))) for count in (100, 800)
    )
    assert many < 16 * few  # the square would be 64 times as much
    assert len(compared) < 100


class _Compared(dict[str, Any]):
    """A part of a finding that notes when it is compared with another one."""

    all: ClassVar[list[Any]] = []
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        self.all.append(self)
        return dict(self) == other


def _of_many(part: str, count: int) -> Finding:
    numbers = range(count)
    claims: list[dict[str, Any]] = [{**TAKEN, "name": f"c{number}"} for number in numbers]
    short = {"code": "tooFew", "wanted": 9, "most": "3", "free": True}
    match part:
        case "own":
            return Finding([short], claims)
        case "leaving":
            return Finding([short], [{**each, "leaving": True} for each in claims])
        case "foreign":
            return Finding([short], [{**each, "namespace": "other"} for each in claims])
        case "edits":
            return Finding([short], [{"kind": "request", "request": f"r{number}"} for number in numbers])
        case "fields":
            same = {"kind": "matchAttribute", "path": "spec.matchAttributes"}
            return Finding([short], [{**same, "attribute": f"a{number}"} for number in numbers])
        case "bound":
            return Finding([short], [{"kind": "node", "node": "n", "boundBy": claims}])
        case "names":
            names = [fact(Cause.UNKNOWN_NAME, name=f"a{number}", count=0, total=3) for number in numbers]
            return Finding(names, claims)
        case "counts":
            return Finding([{**short, "request": f"r{number}"} for number in numbers], claims)
    tests = ({"expression": f"device.a == {number}"} for number in numbers)
    steps = [fact(Cause.STEP, rule="constraints", args=each, count=3, total=4) for each in tests]
    return Finding([fact(Cause.NO_MATCH, request="r"), *steps], claims)


def test_edits_of_one_verb_say_it_once() -> None:
    edits = [{"kind": "limit", "path": f"spec.claims[{number}].limits.m"} for number in range(2)]
    assert message_of(Finding([SHORT], [*edits])).endswith(
        "; remove spec.claims[0].limits.m and spec.claims[1].limits.m"
    )


def test_what_is_known_comes_before_what_the_search_had_no_time_for() -> None:
    failed = "selector #0 fails on device d0: the evaluation costs more than 1000000 units; guard it"
    unknown = fact(Cause.CUT_SHORT, of="edits")
    finding = Finding([fact(Cause.NO_MATCH), unknown, fact(Cause.EXPRESSION_FAILED, text=failed)])
    assert message_of(finding) == f"no device matches; {failed}"


def test_a_search_that_ended_by_its_steps_does_not_ask_for_more_time() -> None:
    late, limited = (message_of(Finding([fact(Cause.CUT_SHORT, of="reason", by=by)])) for by in (None, "steps"))
    assert late == "time ran out before the reason was found; run `devalloc explain --deadline 60s`"
    assert limited == "the search ended before the reason was found; ask for less"


def test_objects_of_several_words_have_their_own_verb() -> None:
    """ "remove `a` from b and c" would leave open whether c goes."""
    match = {"kind": "matchAttribute", "attribute": "numa", "path": "spec.matchAttributes"}
    whole = {"kind": "request", "request": "1", "path": "spec.claims[1]"}
    text = message_of(Finding([SHORT], [match, whole]))
    assert text.endswith("; remove `numa` from spec.matchAttributes and remove spec.claims[1] (it does not fit)")


def test_the_same_cause_is_said_once() -> None:
    assert message_of(Finding([SHORT, SHORT], [COUNT])) == message_of(Finding([SHORT], [COUNT]))


def test_a_request_without_a_name_of_its_own_is_named_by_its_path() -> None:
    cause = fact(Cause.TOO_FEW_AGREE, attribute="root", wanted=2, most="1", request="0", path="spec.claims[0]")
    assert message_of(Finding([cause])) == (
        "no node has 2 devices with the same `root` for spec.claims[0] (at most 1); ask for fewer devices"
    )


@pytest.mark.parametrize("name", ["{m}", "{9}", "{", "}", "%s"])
@pytest.mark.parametrize("most", ["0", "4Gi"])
def test_a_name_is_no_template(name: str, most: str) -> None:
    """Publishers choose names of resources and attributes."""
    for more in ({}, {"devices": 1}, {"devices": 3}):
        cause = fact(Cause.TOO_LITTLE, resource=name, wanted="9Gi", most=most, attributes=[name], **more)
        assert name in message_of(Finding((cause,)))
