"""The dialect against another implementation, cel-python's evaluator: as it is, and as the check extends it.

As it is, it is compared on what the two have in common. Left out, because the dialects differ on purpose: comparisons
of two types (an error here). Left out, because cel-python 0.5 gets them wrong: functions of a concatenated string (it
has become a plain one), an error inside map() or exists_one() beside || (not absorbed), ``1.foo()`` (refused), strings
with a backslash before the closing quote.
"""

from __future__ import annotations

from typing import Any

import celpy
import pytest
from celpy import celtypes
from hypothesis import given, settings
from hypothesis import strategies as st

from devalloc.api.quantity import Quantity
from devalloc.api.semver import SemVer
from devalloc_solver.cel.device_claims import Budget, CompileError, EvaluationError, compile
from tests.support.cel_outcomes import outcome
from tests.support.examples import examples

DEVICE: dict[str, Any] = {"model": "a100", "numa": 1, "slot": -7, "pcie-root": "r1"}
ACTIVATION = {
    "device": celtypes.MapType(
        {
            celtypes.StringType(name): celtypes.StringType(value) if isinstance(value, str) else celtypes.IntType(value)
            for name, value in DEVICE.items()
        }
    )
}
ENVIRONMENT = celpy.Environment()


def ours(text: str) -> object:
    try:
        return compile(text).evaluate(DEVICE, Budget(1_000_000))
    except EvaluationError:
        return "error"


def theirs(text: str) -> object:
    try:
        result = ENVIRONMENT.program(ENVIRONMENT.compile(text)).evaluate(ACTIVATION)
    except (celpy.CELEvalError, IndexError):  # the latter: cel-python 0.5 trips over printing an error inside ?:
        return "error"
    return bool(result)


def spell(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


Text = st.SearchStrategy[str]
TEXTS = st.sampled_from(["", "a", "a100", "A", "é", "a b", "it's", "\\", "r1", "😀", "10"])
NAMES = st.sampled_from(["model", "absent"])
EDGES = [0, 1, 2, 3, 7, 2**31, 2**62, 2**63 - 1]


def ints(part: Text) -> Text:
    pairs = st.tuples(part, st.sampled_from(["+", "-", "*", "/", "%"]), part)
    return st.one_of(pairs.map(lambda p: f"({p[0]} {p[1]} {p[2]})"), part.map(lambda p: f"(-{p})"))


INT: Text = st.recursive(
    st.one_of(st.sampled_from(EDGES).map(str), st.sampled_from(["device.numa", "device.slot", "device.absent"])),
    ints,
    max_leaves=5,
)
PLAIN: Text = st.one_of(TEXTS.map(spell), st.sampled_from(["device.model", "device['pcie-root']", "device.absent"]))
STRING: Text = st.recursive(
    PLAIN,
    lambda part: st.tuples(part, part).map(lambda p: f"({p[0]} + {p[1]})"),
    max_leaves=3,
)


def chosen(template: str, *parts: Text) -> Text:
    return st.tuples(*parts).map(lambda values: template.format(*values))


ORDER = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])
LISTS = st.lists(INT, max_size=4).map(lambda items: "[" + ", ".join(items) + "]")
LEAF: Text = st.one_of(
    st.sampled_from(["true", "false"]),
    chosen("{0} {1} {2}", INT, ORDER, INT),
    chosen("{0} {1} {2}", STRING, ORDER, STRING),
    chosen("{0}.{1}({2})", PLAIN, st.sampled_from(["contains", "startsWith", "endsWith"]), PLAIN),
    chosen("size({0}) {1} {2}", st.one_of(PLAIN, LISTS), ORDER, INT),
    chosen("'{0}' in device", NAMES),
    chosen("has(device.{0})", NAMES),
    chosen("{0} in {1}", INT, LISTS),
)


def macro(name: str, collection: Text) -> Text:
    # The body reads the variable in place of an attribute, so that it depends on the element.
    return st.tuples(collection, LEAF).map(
        lambda p: f"{p[0]}.{name}(x, {p[1].replace('device.numa', 'x').replace('device.slot', 'x')})"
    )


def bools(part: Text) -> Text:
    return st.one_of(
        chosen("({0} && {1})", part, part),
        chosen("({0} || {1})", part, part),
        chosen("({0} ? {1} : {2})", part, part, part),
        chosen("!{0}", part.map(lambda p: f"({p})")),
    )


BOOL: Text = st.one_of(
    st.recursive(st.one_of(LEAF, macro("all", LISTS), macro("exists", LISTS)), bools, max_leaves=5),
    macro("exists_one", LISTS),
)


@given(BOOL)
@settings(max_examples=examples(36, 0.3), deadline=None)
def test_predicates_agree(text: str) -> None:
    assert ours(text) == theirs(text)


MEASURED: dict[str, Any] = {
    **DEVICE,
    "vram": Quantity.parse("40Gi"),
    "half": Quantity.parse("500m"),
    "firmware": SemVer.parse("1.10.0+build.7"),
    "text": "40960Mi",
}
AMOUNT = st.sampled_from(
    [
        "device.vram",
        "device.half",
        "device.text",
        "device.model",
        "'40Gi'",
        "'0.5'",
        "'lots'",
        "quantity('40Gi')",
        "device.vram.add('1Gi')",
        "device.vram.sub(1)",
        "quantity(device.text)",
        "device.absent",
        "1",
        "1.5",
    ]
)
VERSION = st.sampled_from(
    ["device.firmware", "'1.10.0'", "'1.9.9'", "'1.10'", "semver('1.10.0-rc.1')", "semver(device.model)", "device.text"]
)
VALUE: Text = st.one_of(INT, STRING, AMOUNT, VERSION, LISTS, st.sampled_from(["true", "null", "1u", "2.5", "device"]))
MEASURES: Text = st.one_of(
    LEAF,
    chosen("{0} {1} {2}", AMOUNT, ORDER, AMOUNT),
    chosen("{0} {1} {2}", VERSION, ORDER, VERSION),
    chosen("{0} {1} {2}", VALUE, ORDER, VALUE),
    chosen("{0}.{1}({2})", AMOUNT, st.sampled_from(["isGreaterThan", "isLessThan"]), AMOUNT),
    chosen("{0}.compareTo({1}) {2} 0", VERSION, VERSION, ORDER),
    chosen("{0} in [{1}, {2}]", VALUE, VALUE, VALUE),
    chosen("[{0}, {1}] == [{2}, {3}]", VALUE, VALUE, VALUE, VALUE),
    chosen("({0} + {1}) {2} {3}", VALUE, VALUE, ORDER, VALUE),
    chosen("{0}.split({1}).join({2}) == {3}", STRING, PLAIN, PLAIN, STRING),
    chosen("{0}.replace({1}, {2}).indexOf({3}) >= {4}", STRING, PLAIN, PLAIN, PLAIN, INT),
    chosen("{0}.substring({1}).lastIndexOf({2}) < {3}", STRING, INT, PLAIN, INT),
    chosen("[{0}, {1}].{2}() == {0}", VALUE, VALUE, st.sampled_from(["max", "sum", "isSorted", "size"])),
    chosen("{0}({1}) == {2}", st.sampled_from(["int", "uint", "double", "string", "bool", "size"]), VALUE, VALUE),
    chosen("[{0}, {1}].exists(e, {2})", VALUE, VALUE, st.sampled_from(["e == device.vram", "e", "e > 1", "has(e.f)"])),
    chosen("[{0}, {1}].all(e, e != {2})", VALUE, VALUE, VALUE),
)


@given(st.recursive(MEASURES, bools, max_leaves=4))
@settings(max_examples=examples(60, 0.5), deadline=None)
def test_the_evaluator_of_the_check_agrees(text: str) -> None:
    outcome(text, MEASURED)


@given(LISTS, LEAF, INT)
@settings(max_examples=examples(15, 0.125), deadline=None)
def test_filter_and_map_agree(items: str, condition: str, body: str) -> None:
    condition, body = (text.replace("device.numa", "x") for text in (condition, body))
    for text in (f"size({items}.filter(x, {condition})) == 1", f"{items}.map(x, {body}) == [1, 2]"):
        assert ours(text) == theirs(text)


@pytest.mark.parametrize("left", [2**63 - 1, -(2**63), 0, -1, 7, -7])
@pytest.mark.parametrize("right", [2**63 - 1, -(2**63), -1, 1, 3, -3])
def test_arithmetic_agrees_at_the_edges(left: int, right: int) -> None:
    for operator in "+-*/":
        text = f"{left} {operator} ({right}) > 5"
        assert ours(text) == theirs(text)


SYNTAX = [
    "a?b:c?d:e", "a||b&&c", "!a.b==c", "-a.b", "- -1", "!!a", "a-1", "a -1", "1-1", "a in [1]", "[1][0]", "{}", "[]",
    "a.b.c(d)[e]", "{'a':1}", "a[b].c", "f()", "a<b<c", "(((a)))", "'''a'b'''", "a//c\n==b", "0x1F", "1u", "1e5", ".5",
    "a b", "1 2", "a.1", "(a", "a)", "[a", "a?b", "a:b", "a==", "==a", "'a", "a.", "", "f(,)", "{a}", "a..b",
]  # fmt: skip


@pytest.mark.parametrize("text", SYNTAX)
def test_both_parse_or_refuse(text: str) -> None:
    try:
        compile(text)
        parsed = True
    except CompileError as error:
        parsed = "undeclared" in error.message or "must be a boolean" in error.message or "negates" in error.message
    try:
        ENVIRONMENT.compile(text)
        theirs_parsed = True
    except celpy.CELParseError:
        theirs_parsed = False
    assert parsed == theirs_parsed
