"""A sentence fits its reader, and acts on no terminal, whatever the names, texts and amounts in it are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devalloc.api.findings import (
    ADMIN,
    AT_LENGTH,
    HOLDERS,
    MAX_MESSAGE,
    Cause,
    Finding,
    Reader,
    RuleCode,
    edit_words,
    fact,
    finding_of,
    message_of,
    rule_words,
)
from devalloc.api.findings.data import CAVEATS, MAX_AT_LENGTH
from devalloc.api.findings.edits import EDITS
from devalloc.controller.refusals import refusal_of
from devalloc_solver import solve_manifests
from devalloc_solver.dra import solve_manifests as solve_resource_claims
from tests.support import dra_builders as dra
from tests.support.examples import examples
from tests.support.fleet_manifests import gpu_claim, gpu_class, gpu_pool

Content = dict[str, Any]
HOSTILE = ("a\nb", "\x1b[31m\x1b]0;x\x07", "\u202egnp.exe", "n" * 10_000, "x y; delete claim a/b", "", "{0}", "9" * 200)
AMOUNTS = ("9223372036854775807", "0", "8191Pi", "1n", "46116860184273879035")
_OWNER = {"kind": "claim", "namespace": "a", "name": "b", "priority": 0}
_OWNERS = [{**_OWNER, "name": f"holder-{number}"} for number in range(5000)]
_WANTS = {"wanted": 3, "most": "1", "attributes": ["a", "b"]}
_MEMBER = {"namespace": "a", "name": "m"}
CAUSES: Mapping[Cause, Content] = {
    Cause.NO_POOLS: {},
    Cause.NO_DEVICES: {},
    Cause.NO_DRIVER: {"drivers": ["a", "b", "c", "d"], "there": ["e"], "near": "f"},
    Cause.INVALID_POOL: {"why": "text", "drivers": ["a"], "by": "driver"},
    Cause.UNREACHED: {"text": "text"},
    Cause.NO_MATCH: {"request": "r"},
    Cause.STEP: {"count": 2, "total": 3, "example": "text", "others": [], "more": 1},
    Cause.PARTS: {"count": 2, "say": "text"},
    Cause.UNKNOWN_NAME: {"name": "a", "count": 0, "total": 3, "near": "b"},
    Cause.UNKNOWN_VALUE: {"name": "a", "total": 3, "value": "b", "whole": "c", "write": "d"},
    Cause.WRONG_TYPE: {"name": "a", "type": "int", "count": 2, "literal": "b", "of": "string", "advice": "text"},
    Cause.UNKNOWN_TYPE: {"type": "a", "near": "b"},
    Cause.ADMIN_TYPE: {"type": "a", "device_class": "b"},
    Cause.MISPLACED: {"name": "a", "what": "text", "write": "text"},
    Cause.TOO_FEW: {**_WANTS, "request": "r", "node": "n"},
    Cause.TOO_LITTLE: {**_WANTS, "wanted": "5", "resource": "a", "devices": 2},
    Cause.TOO_MANY: {"limit": 32, "count": 10**30},
    Cause.COMPETITION: {**_WANTS, "count": 3, "requests": ["r", "s", "t"]},
    Cause.AMOUNTS: {**_WANTS, "wanted": "5", "count": 2, "resource": "a"},
    Cause.DIFFER: {"attributes": ["a", "b"]},
    Cause.TOO_FEW_AGREE: {
        "attribute": "a",
        "wanted": 2,
        "most": "1",
        "without": 1,
        "total": 2,
        "path": "p",
        "request": "r",
    },
    Cause.CONSTRAINTS: {"attributes": ["a"], "free": True},
    Cause.EXCLUSIVE: {},
    Cause.PARTS_TAKEN: {},
    Cause.APART: {"free": True},
    Cause.BOUND: {"node": "n"},
    Cause.NODE_UNKNOWN: {"node": "n", "near": "m"},
    Cause.GROUP: {"group": "g"},
    Cause.MEMBERS: {"group": "g", "members": [{**_OWNER, "name": f"m{n}"} for n in range(5)], "more": 3},
    Cause.OUTRANKED: {"by": 10**30, "priority": -(10**30)},
    Cause.UNPUBLISHED: {"holder": _OWNER, "pool": "p", "device": "d", "more": 2},
    Cause.EXPRESSION_FAILED: {"text": "spec.a text"},
    Cause.CUT_SHORT: {"of": "reason"},
    Cause.TEXT: {"text": "spec.a text"},
    Cause.MEMBER_FAILS: {"member": _OWNER, "group": "g", "reason": "a", "cause": fact(Cause.BOUND, node="n")},
    Cause.MEMBERS_APART: {"group": "g", "nodes": [{"node": "n", "members": ["a", "b"]}] * 8, "see": "text"},
    Cause.HELD_DIFFER: {"group": "g", "attribute": "a", "see": "text"},
    Cause.SEVERAL_OWNERS: {"devices": ["d"], "holders": _OWNERS[:8], "more": 9},
    Cause.OVER_COMMITTED: {"devices": ["d"], "resource": "a", "holders": _OWNERS[:8], "more": 9},
    Cause.OVER_DRAWN: {"devices": ["d"] * 8, "resource": "a", "holders": _OWNERS[:8], "more": 9},
    Cause.ROOM: {"nodes": [{"node": "n", "lacks": [{"resource": "a", "has": "1", "wanted": "2"}]}] * 8, "more": 5},
    Cause.TIE: {"text": "text"},
    Cause.NO_NODE: {"node": "n"},
    Cause.NODE_BARRED: {},
    Cause.OTHER_VALUE: {"attributes": ["a"]},
    Cause.NODE_UNSUITED: {},
    Cause.RESERVATION_STAYS: {},
}
_PLACE = {"driver": "d", "pool": "p", "node": "n", "device": "e"}
_WRITTEN = {"path": "spec.devices.requests[0].exactly.selectors[1]", "claim": "a/b"}
EDIT: Mapping[str, Content] = {
    "amount": {**_WRITTEN, "requested": "5", "most": "1", "resource": "m"},
    "capacity": _WRITTEN,
    "class": {**_WRITTEN, "deviceClassName": "c", "written": "c", "didYouMean": "d"},
    "compatibilityGroup": _PLACE,
    "config": {"configKind": "k", "namespace": "a", "name": "b", **_WRITTEN},
    "constraint": {**_WRITTEN, "expression": "e"},
    "counter": {**_PLACE, "counterSet": "s", "counter": "c", "missing": "3", "needed": "9"},
    "device": _PLACE,
    "feature": {"feature": "f"},
    "limit": {**_WRITTEN, "limit": "1"},
    "matchAttribute": {**_WRITTEN, "attribute": "a"},
    "member": _MEMBER,
    "node": {"node": "n", "boundBy": [_MEMBER] * 50},
    "nodeRule": {"annotation": "a"},
    "pool": {**_PLACE, "state": "incomplete", "why": "text"},
    "poolResource": {**_PLACE, "resource": "r", "capacity": "5", "missing": "2"},
    "request": {**_WRITTEN, "request": "r"},
    "selector": {**_WRITTEN, "expressions": ["e"]},
    "taint": {**_PLACE, "key": "k", "value": "v", "effect": "NoSchedule"},
    "unavailable": {**_PLACE, "why": "unhealthy: text"},
    "undefinedResource": {**_PLACE, "resource": "r", "devices": ["d"]},
}
_OURS = frozenset(("code", "kind", "rule", "of", "by", "state"))
"""Keys whose texts devalloc chooses."""
_NUMBERS = frozenset(("most", "wanted", "requested", "missing", "needed", "capacity", "limit", "has"))
"""Keys of texts that are amounts."""


def _spoilt(content: Any, random: Random, key: str = "") -> Any:
    """The same with hostile texts and amounts in about every second place."""
    if isinstance(content, Mapping):
        return {name: _spoilt(value, random, name) for name, value in content.items()}
    if isinstance(content, list):
        return [_spoilt(each, random, key) for each in content]
    if not isinstance(content, str) or key in _OURS or random.random() < 0.5:
        return content
    # An amount of a blocker is read as one.
    return random.choice(AMOUNTS[:4] if key in _NUMBERS else HOSTILE)


def _findings(random: Random) -> Iterator[Finding]:
    for code, content in CAUSES.items():
        more: Content = {}
        if code is Cause.STEP:
            chosen = random.choice([*RuleCode])
            names = (
                "type",
                "device_class",
                "drivers",
                "expression",
                "attribute",
                "say",
                "resources",
                "state",
                "feature",
            )
            more = {"rule": chosen.value, "args": dict.fromkeys(names, "text")}
        cause = _spoilt({**content, **more, "code": code.value}, random)
        kinds = random.sample([*EDIT], random.choice([0, 1, 2, 12]))
        edits = [_spoilt({"kind": kind, **EDIT[kind]}, random) for kind in kinds]
        holders = _OWNERS[: random.choice([0, 1, 3, 40])]
        blockers = [*edits, *_spoilt(holders, random)]
        yield Finding([cause], blockers, edits[:1], random.sample([*CAVEATS], random.randint(0, 2)), "a/b")


def _is_harmless(text: str) -> bool:
    return text.isprintable()


def test_there_is_a_sample_of_each_cause_and_change() -> None:
    assert CAUSES.keys() == {*Cause}
    assert EDIT.keys() | HOLDERS == EDITS.keys() | HOLDERS


@settings(max_examples=examples(15), deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([ADMIN, Reader("a"), Reader("other")]))
def test_a_sentence_of_any_content_fits_and_is_harmless(seed: int, reader: Reader) -> None:
    for finding in _findings(Random(seed)):
        text = message_of(finding, reader)
        assert len(text) <= MAX_MESSAGE, text
        assert _is_harmless(text), text
        text = message_of(finding, Reader(reader.namespace, width=None))
        assert len(text) <= MAX_AT_LENGTH, text
        assert _is_harmless(text), text


@settings(max_examples=examples(15), deadline=None)
@given(st.integers(0, 10**6))
def test_so_are_changes_and_rules_in_a_table(seed: int) -> None:
    random = Random(seed)
    for kind, content in EDIT.items():
        assert _is_harmless(edit_words(_spoilt({"kind": kind, **content}, random)))
    text = rule_words(RuleCode.CONSTRAINTS, {"expression": random.choice(HOSTILE)}, 2)
    assert _is_harmless(text)
    assert len(text) < 400


def test_a_sentence_at_length_names_the_first_of_many() -> None:
    text = message_of(Finding([fact(Cause.TOO_FEW, wanted=2, most="0", free=True)], _OWNERS), AT_LENGTH)
    assert text.endswith("; delete claims a/holder-0, a/holder-1, a/holder-2, a/holder-3, a/holder-4, a/holder-5, "
                         "a/holder-6, a/holder-7 and 4992 more, or wait for them")  # fmt: skip
    edits = [{"kind": "request", "request": f"r{number}"} for number in range(12)]
    text = message_of(Finding([fact(Cause.NO_DEVICES)], edits), AT_LENGTH)
    assert text.endswith(" and remove request r7 and 4 more")


# -- in manifests ------------------------------------------------------------------------------------------------------


def _resource_claims(name: str) -> list[Content]:
    """Claims that are refused in several ways, with a hostile name where the API server would refuse it."""
    content = [
        dra.device(f"d{n}", {"model": "a"}, capacity={"m": "9223372036854775807"}, shared=True) for n in range(4)
    ]
    most = {"m": "9223372036854775807"}
    long = f"device.attributes['gpu.io'].model == '{name}'".replace("\n", "\\n").replace("\x1b", "\\u001b")
    return [
        dra.ANY,
        dra.slice_("s", content),
        dra.claim(dra.request(name or "r", 9), name="count"),
        dra.claim(dra.request("r", 1, long.replace("\x07", "")), name="selector"),
        dra.claim(dra.request("r", 1, class_name=name or "c"), name="class"),
        dra.claim(dra.request("r", 1, amounts={name or "x": "5"}), name="amount"),
        dra.claim(*[dra.request(f"r{n}", 1, amounts=most) for n in range(5)], name="sum"),
        dra.claim(dra.request("r", 2), name="match", match=f"gpu.io/{name or 'x'}"),
    ]


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_resource_claims_with_any_names_have_short_and_harmless_reasons(name: str) -> None:
    refused = [each for each in solve_resource_claims(_resource_claims(name))["claims"] if not each["allocated"]]
    assert len(refused) >= 4
    for each in refused:
        _judge(each)


def test_sums_beyond_64_bits_are_exact() -> None:
    answers = {each["name"]: each for each in solve_resource_claims(_resource_claims("r"))["claims"]}
    assert answers["sum"]["message"] == (
        "no node has 46116860184273879035 of m for 5 requests together (at most 36893488147419103228); "
        "remove request r0"
    )


@pytest.mark.parametrize("constraint", [f"device.model == '{'x' * 8000}'", "device.model ==\n\n  'b'"])
def test_claims_with_any_constraints_have_short_and_harmless_reasons(constraint: str) -> None:
    claim = gpu_claim("c", 2)
    claim["spec"]["claims"][0]["constraints"] = constraint
    (answer,) = solve_manifests([gpu_class(), gpu_pool("p", 2, "n", model="a"), claim])["claims"]
    assert not answer["allocated"]
    _judge(answer)


def test_what_a_rule_names_in_quotes_is_escaped_once() -> None:
    args = {"type": "a\x1bb", "device_class": "c\u202e"}
    assert rule_words(RuleCode.NO_CLASS_OF_TYPE, args, 2).endswith("no class has deviceType 'a\\x1bb'")


def _judge(answer: Mapping[str, Any]) -> None:
    at_length = message_of(finding_of(answer), AT_LENGTH)
    assert len(answer["message"]) <= MAX_MESSAGE
    assert len(at_length) <= MAX_AT_LENGTH
    refusal = refusal_of(answer)
    cells = [text for funnel in refusal.funnels for layer in funnel.layers for text in (layer.what, layer.example)]
    cells += [obstacle.which for obstacle in refusal.obstacles]
    assert all(map(_is_harmless, (answer["message"], at_length, *cells))), answer
    assert max(map(len, cells), default=0) < 400
