"""What expressions mean: claim-semantics S6, row by row."""

from __future__ import annotations

import pytest

from devalloc_solver.cel.device_claims import compile
from tests.support.cel_outcomes import DEVICE, outcome, table
from tests.support.reference_data import claim_cases


@pytest.mark.parametrize(
    ("expression", "want"),
    table(r"""
    true    | device.model == 'a100'
    false   | device.model == 'h100'
    true    | device['model'] == "a100"
    true    | device['pcie-root'] == 'pci0000:00'
    true    | device['devalloc.io/pool'] == 'p'
    true    | device['ünïcode'] == 'é'
    true    | device.function == 'vf'
    true    | 'pcie-root' in device
    false   | 'mig-profile' in device
    true    | !('mig-profile' in device)
    true    | has(device.model)
    false   | has(device.absent)
    true    | has(device.model) && device.model == 'a100'
    error   | device.absent == 'a100'
    error   | device.absent != 'a100'
    error   | device['absent'] == 'a100'
    error   | device.model.vendor == 'x'
    true    | .device.model == 'a100'
    error   | device.model
    invalid | device.model()
    """),
)
def test_device_is_a_map_and_a_missing_attribute_an_error(expression: str, want: object) -> None:
    assert outcome(expression) == want


@pytest.mark.parametrize(
    ("expression", "want"),
    table("""
    true  | device.vram >= quantity('40Gi')
    true  | device.vram == quantity('40960Mi')
    false | device.vram != quantity('40960Mi')
    true  | quantity('8Gi') < device.vram
    true  | device.vram >= '40Gi'
    true  | device.vram == '40960Mi'
    true  | '40960Mi' == device.vram
    true  | '8Gi' < device.vram
    false | '8Gi' > device.vram
    true  | device.bandwidth >= '1G'
    true  | device.bandwidth > '1.4G'
    true  | device.fraction == '1.5'
    true  | device.bandwidth == '15e8'
    true  | device.vram > device.bandwidth
    true  | device.linkSpeed < device.vram
    true  | device.vram in ['8Gi', '40Gi']
    false | device.vram in ['8Gi', quantity('80Gi')]
    error | device.vram >= 'lots'
    error | device.vram == 'a100'
    error | device.vram == device.model
    error | device.vram >= '40GiB'
    error | device.vram >= 40
    error | device.vram == 42949672960
    error | device.vram == device.numa
    error | device.vram == device.firmware
    true  | device.linkSpeed == '25G'
    false | device.linkSpeed == '25000M'
    true  | device.linkSpeed > '100G'
    true  | quantity(device.linkSpeed) < '100G'
    """),
)
def test_quantities_compare_by_amount_with_quantities_and_with_their_texts(expression: str, want: object) -> None:
    assert outcome(expression) == want


@pytest.mark.parametrize(
    ("expression", "want"),
    table("""
    true  | device.firmware == semver('1.10.0')
    true  | device.firmware == '1.10.0'
    true  | '1.10.0+other' == device.firmware
    false | device.firmware != '1.10.0'
    true  | device.firmware > '1.9.9'
    true  | '1.9.9' < device.firmware
    true  | device.firmware >= semver('1.10.0')
    false | device.firmware >= semver('1.10.1')
    true  | device.candidate < '2.0.0'
    true  | device.candidate > '2.0.0-rc'
    true  | device.candidate > '2.0.0-beta.11'
    true  | device.firmware in ['1.9.0', '1.10.0']
    error | device.firmware >= '1.10'
    error | device.firmware >= 'v1.10.0'
    error | device.firmware > 1
    error | device.firmware == device.model
    """),
)
def test_versions_compare_by_precedence_with_versions_and_with_their_texts(expression: str, want: object) -> None:
    assert outcome(expression) == want


@pytest.mark.parametrize(
    ("expression", "want"),
    table("""
    true    | device.vram.compareTo(quantity('40Gi')) == 0
    true    | device.vram.compareTo(quantity('8Gi')) == 1
    true    | device.vram.compareTo('80Gi') == -1
    true    | device.vram.isGreaterThan(quantity('8Gi'))
    false   | device.vram.isGreaterThan('40Gi')
    true    | device.vram.isLessThan(quantity('80Gi'))
    error   | device.vram.isLessThan('big')
    invalid | device.vram.isLessThan(80)
    error   | device.vram.isLessThan(device.firmware)
    error   | device.model.isLessThan(quantity('1'))
    true    | device.firmware.compareTo(semver('1.10.0')) == 0
    true    | device.firmware.isGreaterThan(semver('1.9.0'))
    true    | device.firmware.isLessThan('2.0.0')
    error   | device.firmware.isLessThan('2')
    true    | device.firmware.major() == 1 && device.firmware.minor() == 10 && device.firmware.patch() == 0
    true    | quantity('-1').sign() == -1 && quantity('0').sign() == 0 && device.vram.sign() == 1
    true    | quantity('2k').asInteger() == 2000
    error   | device.fraction.asInteger() == 1
    false   | device.fraction.isInteger()
    true    | device.vram.isInteger()
    true    | device.fraction.asApproximateFloat() == 1.5
    true    | device.vram.add(quantity('1Gi')) == '41Gi'
    true    | device.vram.add(1) == '42949672961'
    true    | device.vram.sub('8Gi') == '32Gi'
    true    | device.vram.sub(device.vram).sign() == 0
    error   | quantity('8E').add(quantity('8E')) > device.vram
    error   | quantity('8E').add(9223372036854775807) > device.vram
    true    | isQuantity('40Gi')
    false   | isQuantity(device.model)
    true    | isSemver('1.2.3-rc.1+b')
    false   | isSemver('1.2')
    error   | isQuantity(device.numa)
    invalid | quantity('abc') == device.vram
    invalid | semver('1.2') == device.firmware
    invalid | device.model == 'a100' || device.vram > quantity('40GiB')
    error   | quantity(device.model) > device.vram
    invalid | quantity('1', '2').isInteger()
    invalid | device.vram.compareTo() == 0
    invalid | compareTo(device.vram, quantity('1')) == 0
    """),
)
def test_kubernetes_functions_of_quantities_and_versions(expression: str, want: object) -> None:
    assert outcome(expression) == want


@pytest.mark.parametrize(
    ("expression", "want"),
    table("""
    error   | device.numa == '0'
    error   | device.numa != '0'
    error   | device.numa == 0.0
    error   | device.numa == 0u
    error   | device.numa < 1.5
    error   | device.numa < 1u
    error   | device.numa == true
    error   | device.model == 5
    error   | device.model == null
    error   | device.model < 5
    true    | double(device.numa) == 0.0
    true    | device.numa >= 0
    true    | 1u < 2u && 1.0 < 1.5 && 'a' < 'b' && false < true && null == null
    true    | 'Z' < 'a' && '10' < '9'
    true    | [1, 2] == [1, 2] && [1] != [1, 2] && [] == []
    true    | {'a': 1} == {'a': 1} && {'a': 1} != {'a': 2} && {'a': 1} != {'b': 1}
    false   | [1, 'a'] == [2, 5]
    error   | [1, 'a'] == [1, 5]
    true    | device.numa in [1, 0]
    true    | device.numa in ['a', 0]
    error   | device.numa in ['a', 'b']
    false   | device.model in []
    invalid | device.model in 'a100'
    error   | device.numa in device.model
    invalid | 1 == 1.0
    invalid | 1 == 'a'
    invalid | 1 < 2.0
    invalid | 1u == 1
    invalid | null < null
    invalid | [1] < [2]
    invalid | 'a' in 'abc'
    """),
)
def test_two_types_never_compare(expression: str, want: object) -> None:
    assert outcome(expression) == want


@pytest.mark.parametrize(
    ("expression", "want"),
    table("""
    true    | device.absent == 1 || true
    true    | true || device.absent == 1
    error   | device.absent == 1 || false
    error   | false || device.absent == 1
    false   | device.absent == 1 && false
    false   | false && device.absent == 1
    error   | true && device.absent == 1
    true    | device.absent || device.model == 'a100'
    true    | device.model || true
    error   | device.model || false
    false   | device.numa && false
    error   | !device.absent
    error   | !device.model
    true    | 1 == 'a' || true
    true    | 1 / 0 == 1 || true
    true    | false || false || true
    true    | true && true || false && device.absent
    true    | device.model == 'a100' ? true : device.absent
    false   | device.model == 'h100' ? device.absent : false
    error   | device.absent ? true : true
    error   | device.model ? true : true
    true    | false ? false : true ? true : false
    true    | (device.numa == 0 ? 'zero' : 'other') == 'zero'
    error   | device.numa == 0 ? 5 : true
    true    | !!true && !false && !!!false
    invalid | true && 1 == 'a' ? 5 : 6
    """),
)
def test_logic_absorbs_errors_on_either_side(expression: str, want: object) -> None:
    assert outcome(expression) == want


@pytest.mark.parametrize(
    ("expression", "want"),
    table("""
    true  | 7 / 2 == 3 && -7 / 2 == -3 && 7 / -2 == -3 && -7 / -2 == 3
    true  | 7 % 3 == 1 && -7 % 3 == -1 && 7 % -3 == 1
    true  | 1 + 2 * 3 - 4 == 3 && (1 + 2) * 3 == 9 && 10 - 2 - 3 == 5
    true  | 7u / 2u == 3u && 7u % 4u == 3u && 18446744073709551615u % 10u == 5u
    true  | 0.1 + 0.2 > 0.3 && 1.0 / 4.0 == 0.25 && -1.0 / 0.0 < 0.0
    error | 1 / 0 == 1
    error | 1 % 0 == 1
    error | 1u / 0u == 1u
    error | 9223372036854775807 + 1 > 0
    error | -9223372036854775808 - 1 < 0
    error | 4611686018427387904 * 2 > 0
    error | - -9223372036854775808 > 0
    error | -9223372036854775808 / -1 > 0
    error | -9223372036854775808 % -1 == 0
    error | 1u - 2u == 0u
    error | 18446744073709551615u + 1u > 0u
    true  | -9223372036854775808 < 0 && 0x7fffffffffffffff == 9223372036854775807 && -0x8000000000000000 < 0
    true  | - -1 == 1 && --1 == 1 && 1--1 == 2 && -(-1) == 1
    true  | 0xff == 255 && 0xFFu == 255u && 1e3 == 1000.0 && .5 == 0.5 && 1.5E-1 == 0.15
    true  | 'a' + 'b' == 'ab' && [1] + [2] == [1, 2]
    error | device.numa + 'a' == 'a'
    error | device.numa + 1.0 == 1.0
    error | device.model + 1 == 2
    true  | device.numa + 1 == 1 && -device.numa == 0
    error | -device.model == 0
    """),
)
def test_arithmetic_stays_in_64_bits(expression: str, want: object) -> None:
    assert outcome(expression) == want


@pytest.mark.parametrize(
    ("expression", "want"),
    [
        ("'''two\nlines''' == 'two\\nlines'", True),
        ("'two\nlines' == 'x'", "invalid"),
        ("\ttrue\r\n&& // why\n\f true", True),
        ("// nothing else", "invalid"),
        *table(r"""
    true    | '\u00e9' == 'é' && '\U0001F600' == '😀' && '\x41\X42' == 'AB' && '\101' == 'A'
    true    | size('\a\b\f\n\r\t\v\\\?\"\'\`') == 12
    true    | r'\n' == '\\n' && R"\" == '\\' && r'\' == '\\'
    true    | 'it"s' == "it\"s" && "it's" == 'it\'s'
    true    | '''it's "so"''' == 'it\'s "so"' && r'''\''' == '\\'
    true    | '' == "" && '''''' == ''
    true    | true // comment
    invalid | '\q' == 'q'
    invalid | '\u12' == 'x'
    invalid | '\ud800' == 'x'
    invalid | '\U00110000' == 'x'
    invalid | '\400' == 'x'
    invalid | 'open
    invalid | 'a\' == device.model
    invalid | b'a' == b'a'
    invalid | rb'a' == 'a'
    """),
    ],
)
def test_strings_and_blanks(expression: str, want: object) -> None:
    assert outcome(expression) == want


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("true", set()),
        ("device.model == 'a' && device['pcie-root'] == 'b'", {"model", "pcie-root"}),
        ("'x' in device || has(device.y)", {"x", "y"}),
        ("[1, 2].exists(n, device.numa == n)", {"numa"}),
        ("[1].all(device, device == 1)", set()),
        ("[1].all(device, .device.numa == device)", {"numa"}),
        ("false && device.model == 'never read'", {"model"}),
        ("device == {'a': 1}", None),
        ("size(device) > 1", None),
        ("device.all(name, name != '')", None),
        ("['a'].all(name, name in device)", None),
        ("device[string(1)] == 'a'", None),
        ("device.model == 'a' && [device].size() == 1", None),
        ("device['mod' + 'el'] == 'a'", None),
    ],
)
def test_a_program_knows_which_attributes_it_reads(expression: str, names: set[str] | None) -> None:
    assert compile(expression).attributes == names


@pytest.mark.parametrize(
    "expression",
    [
        "device.model == 'a100' && device['pcie-root'] == 'pci0000:00'",
        "has(device.model) && 'pcie-root' in device && [0].exists(n, n == device.numa)",
    ],
)
def test_attributes_that_are_not_named_have_no_influence(expression: str) -> None:
    names = compile(expression).attributes
    assert names is not None
    read = {name: value for name, value in DEVICE.items() if name in names}
    assert outcome(expression, read) is True
    assert outcome(expression) is True


def test_the_same_text_is_compiled_once() -> None:
    assert compile("device.numa == 1") is compile("device.numa == 1")
    assert compile("device.numa == 1").text == "device.numa == 1"


def _known_expressions() -> list[str]:
    expressions: set[str] = set()

    def walk(part: object) -> None:
        if isinstance(part, dict):
            expressions.update(text for text in [part.get("constraints")] if isinstance(text, str))
            for value in part.values():
                walk(value)
        elif isinstance(part, list):
            for value in part:
                walk(value)

    walk(claim_cases())
    return sorted(expressions)


@pytest.mark.parametrize("expression", _known_expressions())
def test_expressions_of_the_known_cases_compile_and_name_what_they_read(expression: str) -> None:
    attributes = compile(expression).attributes
    assert attributes is not None
    assert all(name in expression for name in attributes)
