"""Functions, collections and macros of the expression dialect, as ``docs/cel.md`` lists them."""

from __future__ import annotations

import re

import pytest

from devalloc_solver.cel.device_claims.declarations import FUNCTIONS
from tests.support.cel_outcomes import outcome, table
from tests.support.repository import REPO


@pytest.mark.parametrize(
    ("expression", "want"),
    table(r"""
    true    | size('é😀') == 2 && 'abc'.size() == 3 && size([1, 2]) == 2 && {'a': 1}.size() == 1
    true    | device.model.contains('10') && device.model.startsWith('a1') && device.model.endsWith('00')
    true    | device.model.matches('^a[0-9]+$') && 'xay'.matches('a') && matches('b', r'^\w$')
    false   | device.model.matches('^A')
    invalid | device.model.matches('(')
    error   | device.model.matches(device.model + '(')
    invalid | device.model.matches('(a)\\1')
    true    | int('-42') == -42 && int(4.9) == 4 && int(-4.9) == -4 && int(7u) == 7
    error   | int('4.5') == 4
    error   | int('') == 0
    error   | int(1e30) == 0
    error   | int(0.0 / 0.0) == 0
    error   | int(18446744073709551615u) == 0
    true    | uint(3) == 3u && uint('3') == 3u && uint(3.7) == 3u
    error   | uint(-1) == 0u
    error   | uint(-0.5) == 0u
    true    | uint('18446744073709551615') > 0u && uint(18446744073709549568.0) > 0u
    error   | uint('18446744073709551616') > 0u
    error   | uint(18446744073709551616.0) > 0u
    true    | uint('18446744073709551616') > 0u || true
    true    | double(3) == 3.0 && double('1e3') == 1000.0 && double(2u) == 2.0
    error   | double('1e999') > 1.0
    error   | double('nan') > 1.0
    true    | string(5) == '5' && string(true) == 'true' && string(1u) == '1'
    error   | string(device.vram) == '40Gi'
    invalid | string(1.5) == '1.5'
    true    | string(device.firmware) == '1.10.0+build.7'
    true    | bool('true') && !bool('F') && bool(true)
    error   | bool('yes')
    true    | 'AbÉ'.lowerAscii() == 'abÉ' && 'abé'.upperAscii() == 'ABé'
    true    | 'abcb'.indexOf('b') == 1 && 'abcb'.indexOf('b', 2) == 3 && 'abc'.indexOf('x') == -1
    true    | 'abcb'.lastIndexOf('b') == 3 && 'abc'.indexOf('a', 99) == -1
    error   | 'abc'.indexOf('a', -1) == 0
    true    | 'abab'.replace('b', 'x') == 'axax' && 'abab'.replace('b', 'x', 1) == 'axab'
    true    | 'ab'.replace('', '-') == '-a-b-'
    true    | 'abab'.replace('b', 'x', 0) == 'abab' && 'abab'.replace('b', 'x', -1) == 'axax'
    true    | 'a,b,c'.split(',') == ['a', 'b', 'c'] && 'a,b,c'.split(',', 2) == ['a', 'b,c']
    true    | 'ab'.split('') == ['a', 'b']
    true    | 'a,b'.split(',', 0) == [] && 'a,b'.split(',', 1) == ['a,b'] && 'abc'.split('', 2) == ['a', 'bc']
    true    | 'abcd'.substring(2) == 'cd' && 'abcd'.substring(1, 3) == 'bc' && 'abcd'.substring(4) == ''
    error   | 'abcd'.substring(3, 2) == ''
    error   | 'abcd'.substring(5) == ''
    error   | 'abcd'.substring(-1) == ''
    true    | '\t a \n'.trim() == 'a' && 'abc'.charAt(1) == 'b' && 'abc'.charAt(3) == ''
    error   | 'abc'.charAt(4) == ''
    true    | ['a', 'b'].join() == 'ab' && ['a', 'b'].join('-') == 'a-b' && [].join('-') == ''
    error   | ['a', 1].join() == 'a1'
    true    | [1, 2, 3].sum() == 6 && [1.5, 1.5].sum() == 3.0 && [].sum() == 0 && [1u].sum() == 1u
    error   | [1, 2.0].sum() == 3
    error   | [9223372036854775807, 1].sum() > 0
    true    | [2, 1, 3].min() == 1 && [2, 1, 3].max() == 3 && ['b', 'a'].min() == 'a'
    error   | [].max() == 1
    error   | [1, 'a'].max() == 1
    true    | [1, 1, 2].isSorted() && ![2, 1].isSorted() && [].isSorted()
    true    | [1, 2, 1].indexOf(1) == 0 && [1, 2, 1].lastIndexOf(1) == 2 && [1].indexOf(5) == -1
    invalid | size(5) == 1
    invalid | size() == 1
    invalid | size('a', 'b') == 1
    invalid | lowerAscii('a') == 'a'
    invalid | timestamp('2026-01-01T00:00:00Z') == 5
    invalid | duration('1h') == 5
    invalid | math.greatest(1, 2) == 2
    invalid | type(1) == int
    invalid | 'abc'.reverse() == 'cba'
    """),
)
def test_functions(expression: str, want: object) -> None:
    assert outcome(expression) == want


@pytest.mark.parametrize(
    ("expression", "want"),
    table("""
    true    | [1, 2, 3].all(x, x > 0) && ![1, -2].all(x, x > 0) && [].all(x, false)
    true    | [1, 2].exists(x, x == 2) && ![].exists(x, true)
    true    | ['a', 'b'].exists_one(x, x == 'a') && !['a', 'a'].exists_one(x, x == 'a')
    true    | [1, 2, 3].map(x, x * x) == [1, 4, 9] && [1, 2, 3].map(x, x > 1, x * 10) == [20, 30]
    true    | [1, 2, 3].filter(x, x > 1) == [2, 3]
    true    | {'a': 1, 'b': 2}.all(k, k in ['a', 'b']) && {'a': 1}.map(k, k + '!') == ['a!']
    true    | [[1, 2], [3]].all(xs, xs.exists(x, xs.size() <= x))
    true    | [1, 2].all(x, [x].exists(x, x < 3) && x < 3)
    true    | ['a100', 'h100'].exists(model, device.model == model)
    true    | [1].all(device, device == 1)
    error   | [1].all(device, .device.model == 5)
    true    | ['model', 'numa'].all(name, name in device)
    true    | device.exists(name, name == 'pcie-root') && size(device) == 12
    true    | [0, 1].exists(x, 1 / x == 1)
    false   | [0, 1].all(x, 1 / x == 2)
    error   | [0, 1].all(x, 1 / x == 1)
    error   | [0, 1].exists_one(x, 1 / x == 1)
    error   | [0, 1].map(x, 1 / x) == [1]
    error   | [1].all(x, x)
    error   | device.model.all(x, true)
    true    | {'a': {'b': 1}}.a.b == 1 && has({'a': 1}.a) && !has({'a': 1}.b) && {'a': 1}['a'] == 1
    true    | [10, 20][1] == 20 && {1: 'a', true: 'b'}[true] == 'b' && {1u: 'x'}[1u] == 'x'
    error   | [10][1] == 10
    error   | [10][-1] == 10
    error   | {'a': 1}.b == 1
    error   | {1: 'a'}[1u] == 'a'
    error   | {'a': 1, 'a': 2}.size() == 1
    error   | {1.0: 1}.size() == 1
    true    | 1 in {1: 'a'} && !('b' in {'a': 1}) && [1, 2,] == [1, 2] && {'a': 1,} == {'a': 1}
    invalid | [1].all(1, true)
    invalid | [1].all(x)
    invalid | [1].all(x, y)
    invalid | [1].all(x, true) && x == 1
    invalid | [1].exists_one(x, true, true)
    invalid | 'abc'.all(x, true)
    invalid | has(device)
    invalid | has(device['model'])
    """),
)
def test_collections_and_macros(expression: str, want: object) -> None:
    assert outcome(expression) == want


def test_the_documentation_lists_exactly_the_functions_that_exist() -> None:
    documented = re.findall(r"^\| `([^`]+ -> \w+)` \|", (REPO / "docs" / "cel.md").read_text(), re.MULTILINE)
    assert sorted(documented) == sorted(row.signature for rows in FUNCTIONS.values() for row in rows)
