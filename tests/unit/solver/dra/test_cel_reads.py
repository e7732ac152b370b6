"""What a selector says beforehand: the parts of a device that it reads, and the equalities that it demands."""

from __future__ import annotations

from random import Random

import pytest

from devalloc.api.quantity import Quantity
from devalloc.api.semver import SemVer
from devalloc_solver.cel.kubernetes import (
    ALLOW_MULTIPLE,
    DRIVER,
    CelDevice,
    CompileError,
    DeviceField,
    Equality,
    Program,
    compile,
)
from devalloc_solver.cel.kubernetes.reads import PLACES
from devalloc_solver.cel.kubernetes.type_checker import parse_and_check
from devalloc_solver.cel.reads import comparisons, nodes_with_places, value_path
from tests.support.random_selectors import selector
from tests.support.upstream_cel import GATES, cel_devices, kept_answers, ours

X = DeviceField("attribute", "d", "x")
Y = DeviceField("attribute", "d", "y")
MEMORY = DeviceField("capacity", "d", "memory")


@pytest.mark.parametrize(
    ("expression", "reads"),
    [
        ("true", set()),
        ('device.driver == "d"', {DRIVER}),
        ("device.allowMultipleAllocations", {ALLOW_MULTIPLE}),
        ('device.attributes["d"].x == 1', {X}),
        ('device.attributes["d"]["x"] == 1', {X}),
        ("device.attributes.d.x == 1", {X}),
        ('device.attributes["d"].?x.orValue(1) == 1', {X}),
        ('device.attributes["d"][?"x"].hasValue()', {X}),
        ('device.attributes.?d.?x.hasValue() || device.attributes[?"d"].?y.hasValue()', {X, Y}),
        ('has(device.attributes["d"].x)', {X}),
        ('"x" in device.attributes["d"]', {X}),
        ('"memory" in device.capacity["d"]', {MEMORY}),
        ('device.capacity["d"].memory.isGreaterThan(quantity("1Gi")) || device.attributes["d"].y', {MEMORY, Y}),
        ('cel.bind(a, device.attributes["d"], a.x == 1 && a.y == 2)', {X, Y}),
        ('cel.bind(a, device.attributes, a["d"].x == 1)', {X}),
        ('cel.bind(v, device.attributes["d"].x, v > 1 && v < 3)', {X}),
        ('cel.bind(a, device.attributes["d"], [1].all(a, a == 1) && a.x == 1)', {X}),
        ('device.attributes["d"].x.exists(m, m == device.driver)', {X, DRIVER}),
        ('device.attributes["d"].x.y == 1', {X}),
        ('device.attributes["d"].x.?y.hasValue()', {X}),
    ],
)
def test_the_parts_that_can_influence_the_answer(expression: str, reads: set[DeviceField]) -> None:
    assert compile(expression, GATES).reads == reads
    paths = [value_path(*one) for one in nodes_with_places(parse_and_check(expression, GATES).root, PLACES)]
    assert {DeviceField(*path) for path in paths if path is not None} == reads  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("expression", "compared"),
    [
        ('device.attributes["d"].x == 1 || !("a" != device.attributes["d"].y)', [("==", "x", 1), ("!=", "y", "a")]),
        ('device.attributes["d"].x in [1, 2]', [("==", "x", 1), ("==", "x", 2)]),
        ('2 < device.attributes["d"].x', [(">", "x", 2)]),
        ('cel.bind(a, device.attributes["d"], a.x <= 3)', [("<=", "x", 3)]),
        ('device.attributes["d"].x == device.attributes["d"].y', []),
        ('has(device.attributes["d"].x) == true', []),
    ],
)
def test_what_is_compared_with_literals_anywhere(expression: str, compared: list[tuple[str, str, object]]) -> None:
    nodes = nodes_with_places(parse_and_check(expression, GATES).root, PLACES)
    listed = [one for node, places in nodes for one in comparisons(node, places)]

    assert listed == [(operator, ("attribute", "d", name), literal) for operator, name, literal in compared]


@pytest.mark.parametrize(
    "expression",
    [
        'device.attributes.exists(d, d == "d")',
        'device.attributes["d"].exists(k, k == "x")',
        'device.attributes["d"].size() == 1',
        'size(device.capacity["d"]) == 1',
        'device.attributes["d"] == device.attributes["e"]',
        "device.attributes[device.driver].x == 1",
        'device.attributes["d"][device.driver] == 1',
        'device.driver in device.attributes["d"]',
        '"d" in device.attributes',
        'cel.bind(a, device.attributes["d"], a.size() == 1)',
        'cel.bind(a, device.attributes["d"], {"b": a}.b.x == 1)',
        "cel.bind(d, device, d.driver == 'd')",
        "device == device",
        '[device.attributes["d"]].exists(a, a.x == 1)',
        '(true ? device.attributes["d"] : device.attributes["e"]).x == 1',
    ],
)
def test_nothing_is_promised_where_the_maps_are_used_as_a_whole(expression: str) -> None:
    assert compile(expression, GATES).reads is None


@pytest.mark.parametrize(
    ("expression", "equalities"),
    [
        ('device.attributes["d"].x == "a"', [("d", "x", ("a",))]),
        ('"a" == device.attributes["d"].x', [("d", "x", ("a",))]),
        ('device.attributes["d"]["x"] == 1', [("d", "x", (1,))]),
        ('device.attributes["d"].x == true', [("d", "x", (True,))]),
        ('device.attributes["d"].x in ["a", "b", "a"]', [("d", "x", ("a", "b"))]),
        (
            'device.attributes["d"].x == 1 && device.driver == "d" && device.attributes["e"].y == "b"',
            [("d", "x", (1,)), ("e", "y", ("b",))],
        ),
        (
            '(device.attributes["d"].x == 1 && true) && (true && device.attributes["d"].y == 2)',
            [("d", "x", (1,)), ("d", "y", (2,))],
        ),
        ('device.attributes["d"].x == "a" || "b" == device.attributes["d"].x', [("d", "x", ("a", "b"))]),
        (
            'device.attributes["d"].x == 1 || device.attributes["d"].x in [2, 1] && device.driver == "d"'
            ' || (device.attributes["d"].x == 3 && device.attributes["d"].y == 2)',
            [("d", "x", (1, 2, 3))],
        ),
        (
            '(device.attributes["d"].x == 1 || device.attributes["d"].x == 2) && device.attributes["e"].y == "b"',
            [("d", "x", (1, 2)), ("e", "y", ("b",))],
        ),
        ('device.attributes["d"].x == 1 || device.attributes["d"].x == "1"', []),
        ('device.attributes["d"].x == 1 || device.attributes["d"].x == true', []),
        ('device.attributes["d"].x == 1 || device.attributes["d"].y == 1', []),
        ('device.attributes["d"].x == 1 || true', []),
        ('!(device.attributes["d"].x == 1)', []),
        ('device.attributes["d"].x != 1', []),
        ('device.attributes["d"].x == 1.0', []),
        ('device.attributes["d"].x == 1u', []),
        ('device.attributes["d"].x == device.driver', []),
        ('device.attributes["d"].x in [device.driver, device.driver]', []),
        ('device.attributes["d"].x in []', []),
        ('device.attributes["d"].?x == optional.of(1)', []),
        ('device.attributes["d"].?x.orValue(1) == 1', []),
        ('has(device.attributes["d"].x) == true', []),
        ('device.attributes["d"].x.y == 1', []),
        ('cel.bind(a, device.attributes["d"], a.x == 1)', []),
        ("1 in [1]", []),
        ('device.attributes["d"].x == 1 ? true : false', []),
    ],
)
def test_the_equalities_among_the_conjuncts(
    expression: str, equalities: list[tuple[str, str, tuple[object, ...]]]
) -> None:
    parts = [(parts.domain, parts.id, parts.values) for parts in compile(expression, GATES).equalities]
    assert parts == equalities
    assert [tuple(map(type, values)) for *_name, values in parts] == [tuple(map(type, v)) for *_name, v in equalities]


@pytest.mark.parametrize(
    ("expression", "texts"),
    [
        ('device.attributes["d"].x.endsWith("a")', {X}),
        ('device.attributes["d"].x.startsWith("a") && !device.attributes["d"]["y"].contains("b")', {X, Y}),
        ('device.attributes["d"].x != "a" || device.attributes["d"].y in ["a", "b"]', {X, Y}),
        ('device.attributes["d"].x == device.attributes["d"].y', {X, Y}),
        ('device.attributes["d"].x < "b"', {X}),
        ('device.attributes["d"].x == 1', None),
        ('device.attributes["d"].x.lowerAscii().matches("a")', {X}),
        ('device.attributes["d"].x.matches("a{900}")', None),
        ('["a", "b"].exists(t, device.attributes["d"].x.startsWith(t))', {X}),
        ('[1, 2].exists(t, device.attributes["d"].x == "a")', None),
        ('device.attributes["d"].x.size() > 1', None),
        ('device.attributes["d"].?x.orValue("") == "a"', None),
        ('has(device.attributes["d"].x)', None),
        ('device.capacity["d"].memory == device.capacity["d"].memory', None),
        ('device.attributes["d"].x in [device.driver]', None),
        ('int(device.attributes["d"].x) == 1', None),
        ('device.attributes["d"].x', None),
        ('"a" in device.attributes["d"].x', None),
    ],
)
def test_the_texts_on_which_an_expression_cannot_fail(expression: str, texts: set[DeviceField] | None) -> None:
    assert compile(expression, GATES).safe_texts == texts


TEXT_TESTS = (
    "{}.startsWith({})",
    "{}.endsWith({})",
    "{}.contains({})",
    "{} == {}",
    "{} != {}",
    "{} < {}",
    "{} in [{}]",
)


def text_test(random: Random, depth: int = 3) -> str:
    """A random expression, most of which compare texts only."""
    if depth and random.random() < 0.7:
        left, right = text_test(random, depth - 1), text_test(random, depth - 1)
        return random.choice((f"({left} && {right})", f"({left} || {right})", f"!({left})"))
    operands = ['device.attributes["d"].x', "device.attributes.d.y", "'a'", "'ab'", "1", "device.attributes.d.?x"]
    return random.choice(TEXT_TESTS).format(random.choice(operands[:2]), random.choice(operands))


def test_no_expression_fails_on_the_texts_that_it_needs() -> None:
    random, checked = Random(1), 0
    values = ("", "a", "ab", "x" * 1000)
    for _ in range(400):
        try:
            program = compile(text_test(random), GATES)
        except CompileError:
            continue
        if program.safe_texts is not None:
            texts = {domain: {} for domain in ("d",)}
            for read in program.safe_texts:
                texts[read.domain][read.id] = random.choice(values)
            assert program.matches(CelDevice("d", texts, {}, False)) in (True, False)
            checked += 1
    assert checked > 100


DEVICES = cel_devices(kept_answers()["devices"])
VALUES = (0, 3, True, "b", "A100-SXM4-80GB", SemVer("1.0.0"), ("a", "b"), (3, 1), None)


def changed(device: CelDevice, kept_parts: frozenset[DeviceField], random: Random) -> CelDevice:
    """The device with everything else replaced, removed or added at random."""
    attributes = {domain: dict(values) for domain, values in device.attributes.items()}
    capacity = {domain: dict(values) for domain, values in device.capacity.items()}
    domains = ("gpu.example.com", "nic.example.com", "lists.example.com", "nope")
    for domain in domains:
        for name in {*attributes.get(domain, ()), "model", "index", "x", "new"}:
            if DeviceField("attribute", domain, name) in kept_parts:
                continue
            value = random.choice(VALUES)
            if value is None:
                attributes.get(domain, {}).pop(name, None)
            else:
                attributes.setdefault(domain, {})[name] = value  # type: ignore[assignment]
        for name in {*capacity.get(domain, ()), "memory", "new"}:
            if DeviceField("capacity", domain, name) not in kept_parts:
                capacity.setdefault(domain, {})[name] = Quantity.parse(random.choice(("0", "80Gi", "1500m")))
    driver = device.driver if DRIVER in kept_parts else random.choice(domains)
    allow = device.allow_multiple if ALLOW_MULTIPLE in kept_parts else random.random() < 0.5
    return CelDevice(driver, attributes, capacity, allow)


def test_nothing_but_what_is_read_changes_an_answer() -> None:
    random, checked = Random(1), 0
    for seed in range(500):
        expression = selector(seed)
        try:
            program = compile(expression, GATES)
        except CompileError:
            continue
        if program.reads is None:
            continue
        before = ours(expression, DEVICES)
        others = {name: changed(device, program.reads, random) for name, device in DEVICES.items()}
        assert ours(expression, others) == before, expression
        checked += 1
    assert checked > 300


def fulfilled(equality: Equality, device: CelDevice) -> bool:
    value = device.attributes.get(equality.domain, {}).get(equality.id)
    return any(type(wanted) is type(value) and wanted == value for wanted in equality.values)


def test_a_device_that_matches_fulfils_every_equality() -> None:
    demanding = 0
    for expression, answer in kept_answers()["selectors"].items():
        if answer == "C":
            continue
        program: Program = compile(expression, GATES)
        demanding += bool(program.equalities)
        for letter, name in zip(answer, sorted(DEVICES), strict=True):
            assert letter != "T" or all(fulfilled(equality, DEVICES[name]) for equality in program.equalities), (
                expression
            )
    assert demanding > 25
