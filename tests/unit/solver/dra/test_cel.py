"""Selectors of resource.k8s.io: what is refused and where, what fails on a device, and what bounds an evaluation.

What each function answers is in ``tests/conformance/selectors.json``, held against upstream by test_cel_upstream.py
beside it.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from devalloc.api.quantity import Quantity
from devalloc.api.semver import SemVer
from devalloc_solver.cel.kubernetes import CelDevice, CompileError, EvaluationError, ExhaustedError, compile

GATES = frozenset(("DRAConsumableCapacity", "DRAListTypeAttributes"))
DEVICE = CelDevice(
    "gpu.example.com",
    {"gpu.example.com": {"model": "a100", "index": 3, "mig": False, "version": SemVer("1.2.3"), "ids": (1, 2)}},
    {"gpu.example.com": {"memory": Quantity.parse("80Gi")}},
)


def matches(expression: str, device: CelDevice = DEVICE, gates: frozenset[str] = GATES) -> bool:
    return compile(expression, gates).matches(device)


# -- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "position", "message"),
    [
        ("noSuchVar", (1, 1), "undeclared reference to 'noSuchVar'"),
        ("true &&\n  noSuchVar", (2, 3), "undeclared reference to 'noSuchVar'"),
        ("device.driver ==", (1, 17), "Syntax error"),
        ("", (1, 1), "Syntax error"),
        ("device.driver", (1, 1), "must evaluate to bool or the unknown type, not string"),
        ("device", (1, 1), "must evaluate to bool or the unknown type, not kubernetes.DRADevice"),
        ('device.attributes["d"]', (1, 1), "must evaluate to bool or the unknown type, not map(string, dyn)"),
        ('device.capacity["d"].m', (1, 1), "not kubernetes.Quantity"),
        ("device.model == 1", (1, 7), "undefined field 'model'"),
        ("device['driver'] == 'd'", (1, 7), "the device is no map"),
        ("device.driver == 1", (1, 15), "no matching overload for '_==_' applied to '(string, int)'"),
        ('device.capacity["d"].m > quantity("1")', (1, 24), "no matching overload for '_>_'"),
        ('quantity("1") == {"nano": 1}', (1, 15), "no matching overload"),
        ('semver("1.0.0") == "1.0.0"', (1, 17), "no matching overload"),
        ('quantity("1").nano == 1', (1, 14), "cannot be the operand of a select"),
        ('[1, "a"] == []', (1, 5), "expected type 'int' but found 'string'"),
        ('{"a": 1, "b": true}.size() == 1', (1, 15), "expected type 'int' but found 'bool'"),
        ('true && duration("1x") == duration("1s")', (1, 17), "invalid duration '1x'"),
        ('int("x") == 1', (1, 4), "'x' is not an int"),
        ('device.driver.matches("(")', (1, 22), "invalid regular expression '('"),
        ('"%d".format(["a"]) == ""', (1, 12), "%d does not take a string"),
        ('"%s".format([]) == ""', (1, 12), "index 0 out of range"),
        ("google.protobuf.Int64Value{value: 1} == 1", (1, 1), "cannot be constructed"),
        ("math.greatest(1, 2) == 2", (1, 1), "undeclared reference to 'math'"),
        ("'\ud800' == ''", (1, 2), "not valid Unicode"),
        ("(" * 100 + "true" + ")" * 100, (1, 1), "recursion limit"),
        ("optional.of(1)" + ".optMap(x, x)" * 7 + ".hasValue()", (1, 1), "optMap and optFlatMap may be used 6 times"),
    ],
)
def test_invalid_expressions_are_refused_with_a_position(
    expression: str, position: tuple[int, int], message: str
) -> None:
    with pytest.raises(CompileError) as caught:
        compile(expression, GATES)
    line, column = position
    assert message in caught.value.message
    assert str(caught.value) == f"line {caught.value.line}, column {caught.value.column}: {caught.value.message}"
    assert caught.value.line == line
    assert caught.value.column == column


LITERALS = [
    ('string(dyn(["a"]))', True),
    ('string(dyn({"a": 1}))', True),
    ('string(dyn([["a"]]))', True),
    ("string(dyn([device.driver]))", False),
    ('string(dyn({"a": device.driver}))', False),
    ('string(dyn({device.driver: "a"}))', False),
    ('string(dyn([?optional.of("a")]))', False),
    ('string(dyn({?"a": optional.of(1)}))', False),
    ('string(dyn([?device.attributes["d"][?"x"]]))', False),
]


@pytest.mark.parametrize(("expression", "is_constant"), LITERALS)
def test_a_conversion_is_computed_when_it_compiles_only_if_all_in_it_is_a_constant(
    expression: str, is_constant: bool
) -> None:
    """Neither a list nor a map has a string, so the one is refused at once, and the other where there is a device."""
    if is_constant:
        with pytest.raises(CompileError, match="string"):
            compile(f'{expression} == ""', GATES)
    else:
        program = compile(f'{expression} == ""', GATES)
        with pytest.raises(EvaluationError):
            program.matches(DEVICE)


def test_ten_kibibytes_are_the_longest_expression() -> None:
    longest = "true" + " " * (10 * 1024 - 4)
    assert matches(longest)
    with pytest.raises(CompileError, match="has 10241 bytes, at most 10240 are allowed"):
        compile(longest + " ", GATES)
    with pytest.raises(CompileError, match="has 12008 bytes"):
        compile(f"'{'é' * 6000}' == ''", GATES)


@pytest.mark.parametrize(
    ("expression", "gate"),
    [
        ("device.allowMultipleAllocations", "DRAConsumableCapacity"),
        ("has(device.allowMultipleAllocations)", "DRAConsumableCapacity"),
        ('device.attributes["gpu.example.com"].ids.includes(1)', "DRAListTypeAttributes"),
    ],
)
def test_what_a_gate_adds_is_refused_without_it(expression: str, gate: str) -> None:
    assert compile(expression, {gate, "DRAAdminAccess"}).matches(DEVICE) in (True, False)
    with pytest.raises(CompileError, match=f"it needs the feature gate {gate}"):
        compile(expression, GATES - {gate})


# -- on a device ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ('device.attributes["gpu.example.com"].nope', "no such key: nope"),
        ('device.attributes["nope"].model == "a100"', "no such key: model"),
        ('sign(device.capacity["gpu.example.com"].nope) == 1', "no such key: nope"),
        ('device.attributes["gpu.example.com"].model', "the result is a string, not a bool"),
        ('device.attributes["gpu.example.com"].version', "the result is a kubernetes.Semver, not a bool"),
        ('device.attributes["gpu.example.com"].model > 1', "no such overload: _>_(string, int)"),
        (
            'device.attributes["gpu.example.com"].version == "1.2.3"',
            "no such overload: _==_(kubernetes.Semver, string)",
        ),
        ('semver(device.attributes["gpu.example.com"].model) == semver("1.0.0")', "is not a semantic version: 'a100'"),
        ('sign(quantity(device.attributes["gpu.example.com"].model)) == 1', "'a100' is not a quantity"),
        ('device.attributes["gpu.example.com"].index + 9223372036854775807 > 0', "integer overflow"),
        ('1 / (device.attributes["gpu.example.com"].index - 3) == 1', "division by zero"),
        ('[1][device.attributes["gpu.example.com"].index] == 1', "index out of bounds: 3"),
        ('device.attributes["gpu.example.com"].?nope.value() == 1', "optional.none() dereference"),
        ('device.attributes["gpu.example.com"].index.all(x, true)', "no such overload: comprehension(int)"),
        ('"a".matches(device.attributes["gpu.example.com"].model + "(")', "invalid regular expression"),
    ],
)
def test_what_cannot_be_computed_is_an_evaluation_error(expression: str, message: str) -> None:
    with pytest.raises(EvaluationError) as caught:
        matches(expression)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ('"a %s b %d c".format(["x", 3])', "a x b 3 c"),
        ('"%s%s".format(["x", "y"])', "xy"),
        ('"100 %% of %s".format(["x"])', "100 % of x"),
        ('"as it is".format([])', "as it is"),
    ],
)
def test_what_is_around_the_clauses_of_a_format_stays(expression: str, text: str) -> None:
    assert matches(f'{expression} == "{text}"')


def test_an_unknown_domain_holds_nothing_and_is_no_error() -> None:
    assert matches('device.attributes["nope"].size() == 0 && device.capacity["nope"].size() == 0')
    assert not matches('"nope" in device.attributes')
    assert not matches('has(device.attributes["nope"].model)')


@pytest.mark.parametrize(
    "expression",
    [
        'dyn({"nano": 85899345920}) == device.capacity["gpu.example.com"].memory',
        'dyn({"text": "1.2.3"}) == device.attributes["gpu.example.com"].version',
        'dyn("80Gi") == device.capacity["gpu.example.com"].memory',
        'dyn("1.2.3") == device.attributes["gpu.example.com"].version',
        'type(device.attributes["gpu.example.com"].version) == map',
        'type(device.attributes["gpu.example.com"].version) == string',
        'has(device.attributes["gpu.example.com"].version.text)',
        "dyn(1) == dyn(true) || dyn(0) == dyn(false)",
        'device.attributes["gpu.example.com"].mig in [0]',
    ],
)
def test_values_of_their_own_types_are_not_taken_for_others(expression: str) -> None:
    assert not matches(expression)


def test_lists_of_attributes_are_lists() -> None:
    assert matches('device.attributes["gpu.example.com"].ids == [1, 2]')
    assert matches('type(device.attributes["gpu.example.com"].ids) == list')


# -- bounds -----------------------------------------------------------------------------------------------------------


def bound(count: int, step: str, first: str, last: str) -> str:
    """cel.bind nested ``count`` deep: each variable is made of the one before it, ``$``."""
    expression = last.replace("$", f"a{count}")
    for number in range(count, 0, -1):
        expression = f"cel.bind(a{number}, {step.replace('$', f'a{number - 1}')}, {expression})"
    return f"cel.bind(a0, {first}, {expression})"


@pytest.mark.parametrize(
    "expression",
    [
        "lists.range(300).all(x, lists.range(300).all(y, lists.range(300).all(z, z >= 0)))",
        "lists.range(100000000).size() > 0",
        "lists.range(20000).distinct().size() > 0",
        "sets.contains(lists.range(20000), lists.range(20000))",
        bound(20, "$ + $ + $ + $", f'"{"x" * 1000}"', "$.size() > 0"),
        bound(20, "$ + $ + $ + $", "[1, 2, 3]", "$.size() > 0"),
        bound(20, "[$, $, $, $]", "[1, 2, 3]", "$ == $"),
        bound(18, "[$, $, $, $]", "[1, 2, 3]", '"%s".format([$]).size() > 0'),
        bound(18, "[$, $, $, $]", "[1, 2, 3]", "$.flatten(50).size() > 0"),
        bound(5, '$.replace("", $)', f'"{"x" * 100}"', "$.size() > 0"),
        f'lists.range(9).map(i, "{"a" * 4000}".split("").join("{"b" * 3000}")).join("").size() > 0',
        f'lists.range(100000).exists(i, "{"a" * 4000}".matches("(a|b)*c"))',
    ],
)
def test_runaway_expressions_end_with_an_error(expression: str) -> None:
    with pytest.raises(ExhaustedError, match="costs more than 1000000 units"):
        matches(f"{expression} || true")


@pytest.mark.parametrize(
    "expression",
    [
        'sign(quantity("1e1000000000")) == 1',
        f'sign(quantity("{"9" * 9000}")) == 1',
        f'semver("{"9" * 9000}.0.0").major() == 1',
        '"%.2000000000f".format([1.0]).size() > 0',
        f'timestamp(0).getHours("{"A" * 5000}") == 0',
        'timestamp(0).getHours("/etc/localtime") == 0',
        'timestamp(0).getHours("../UTC") == 0',
    ],
)
def test_extreme_arguments_are_errors(expression: str) -> None:
    with pytest.raises(EvaluationError):
        matches(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "!" * 5001 + "true",
        " || ".join(["device.driver == 'x'"] * 400),
        "]" * 3000,
        "[" * 3000,
        "." * 3000,
        "device" + ".a" * 3000,
        "'a'" + ".trim()" * 900 + " == 'a'",
        " + ".join(["1"] * 2000) + " == 1",
        "-" * 5000 + "1 == 1",
        "true ? " * 600 + "true" + " : false" * 600,
        "[1].all(x, " * 200 + "true" + ")" * 200,
        "\x00",
        "'''",
        "/*",
        "`",
    ],
)
def test_odd_texts_compile_or_are_refused(expression: str) -> None:
    try:
        program = compile(expression, GATES)
    except CompileError:
        return
    assert program.matches(DEVICE) in (True, False)


# -- programs ---------------------------------------------------------------------------------------------------------


def test_the_same_expression_is_compiled_once_for_each_set_of_gates() -> None:
    expression = 'device.driver == "gpu.example.com"'
    assert compile(expression, GATES) is compile(expression, {*GATES, "DRAAdminAccess"})
    assert compile(expression, GATES) is not compile(expression, frozenset())


def test_a_refusal_is_remembered_and_raised_afresh() -> None:
    errors = []
    for _ in range(2):
        with pytest.raises(CompileError) as caught:
            compile("device.nope", GATES)
        errors.append(caught.value)
    assert errors[0] is not errors[1]
    assert str(errors[0]) == str(errors[1])


def test_threads_may_share_a_program() -> None:
    program = compile(
        'lists.range(200).all(i, device.attributes["d"].x + i >= 0) '
        '&& cel.bind(v, device.attributes["d"].x, v % 2 == 0)',
        GATES,
    )
    devices = [CelDevice("d", {"d": {"x": number}}, {}) for number in range(64)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(program.matches, devices)) == [number % 2 == 0 for number in range(64)]


def test_evaluating_leaves_the_device_as_it_is() -> None:
    device = CelDevice("d", {"d": {"x": (3, 1, 2)}}, {"d": {"m": Quantity.parse("1")}})
    assert matches('device.attributes["d"].x.sort() == [1, 2, 3]', device)
    assert matches("device.attributes.transformMap(d, a, a.transformMap(k, v, v.size()))['d']['x'] == 3", device)
    assert device.attributes == {"d": {"x": (3, 1, 2)}}
    assert device.capacity == {"d": {"m": Quantity.parse("1")}}


def _path() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
